"""ppsim: a discrete-event simulator and visualiser for pipeline-parallel training schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppsim.costs import Cluster, Costs, DerivedCosts, Layout, Model
from ppsim.engines import simulate
from ppsim.engines.batch import Batch, simulate_many
from ppsim.engines.jitter import Jitter
from ppsim.errors import BuildError, ConfigError, CostError, DeadlockError, PpsimError, ScheduleError
from ppsim.lowering import lower
from ppsim.schedule import Program, Schedule
from ppsim.schedules import Family, build, schedules
from ppsim.timeline import Timeline

if TYPE_CHECKING:
    from collections.abc import Mapping
    from os import PathLike

    from ppsim.config import Config

__version__ = "0.1.0"

__all__ = [
    "Batch",
    "BuildError",
    "Cluster",
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
    "load_config",
    "lower",
    "schedules",
    "simulate",
    "simulate_many",
]


def load_config(path: str | PathLike[str], *, overrides: Mapping[str, Any] | None = None) -> Config:
    """Read and check a YAML config; see `ppsim.config.load_config`."""
    from ppsim.config import load_config as load  # imported here: pydantic and YAML take longer than all of ppsim

    return load(path, overrides=overrides)
