"""ppsim: a discrete-event simulator and visualiser for pipeline-parallel training schedules."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ppsim.base.errors import BuildError, ConfigError, CostError, DeadlockError, PpsimError, ScheduleError
from ppsim.costs import Cluster, Costs, DerivedCosts, Layout, Model
from ppsim.plan.jitter import Jitter
from ppsim.run.batches import Batch, simulate_many
from ppsim.run.schedules import Family, Program, Schedule, build, lower, schedules
from ppsim.run.simulation import simulate
from ppsim.run.timelines import Timeline

if TYPE_CHECKING:
    from ppsim.config import Config, load_config
    from ppsim.studies.compare import compare
    from ppsim.studies.fits import what_fits

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "BuildError",
    "Cluster",
    "Config",
    "ConfigError",
    "CostError",
    "Costs",
    "DeadlockError",
    "DerivedCosts",
    "Family",
    "Jitter",
    "Layout",
    "Model",
    "PpsimError",
    "Program",
    "Schedule",
    "ScheduleError",
    "Timeline",
    "build",
    "compare",
    "load_config",
    "lower",
    "schedules",
    "simulate",
    "simulate_many",
    "what_fits",
]


# Names whose modules take longer to load than all of ppsim, loaded when first asked for.
_LOADED_LATER = {
    "Config": "ppsim.config",
    "compare": "ppsim.studies.compare",
    "load_config": "ppsim.config",
    "what_fits": "ppsim.studies.fits",
}


def __getattr__(name: str) -> Any:
    if name not in _LOADED_LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LOADED_LATER[name]), name)
