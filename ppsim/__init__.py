"""ppsim: a discrete-event simulator and visualiser for pipeline-parallel training schedules."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # defined here, because importing `typing` takes time, and Ctrl-C then prints a traceback
if TYPE_CHECKING:
    from ppsim.analysis.filling import FillItem
    from ppsim.base.errors import BuildError, ConfigError, CostError, DeadlockError, PpsimError, ScheduleError
    from ppsim.config import Config, load_config
    from ppsim.costs import Cluster, Costs, DerivedCosts, Layout, Model
    from ppsim.launch import from_launch, to_launch
    from ppsim.plan.jitter import Jitter
    from ppsim.run.schedules import (
        Family,
        Program,
        Schedule,
        build,
        lower,
        schedules,
        with_encoder,
        with_offload,
        with_recompute,
    )
    from ppsim.run.simulation import Batch, simulate, simulate_many
    from ppsim.run.timelines import Timeline
    from ppsim.studies.advise import advise, what_fits
    from ppsim.studies.choose import choose
    from ppsim.studies.compare import compare
    from ppsim.studies.explain import explain
    from ppsim.studies.step_calibration import calibrate_steps
    from ppsim.studies.sweep import Sweep, sweep

__version__ = "0.1.0"

__all__ = [
    "Batch", "BuildError", "Cluster", "Config", "ConfigError", "CostError", "Costs", "DeadlockError", "DerivedCosts",
    "Family", "FillItem", "Jitter", "Layout", "Model", "PpsimError", "Program", "Schedule", "ScheduleError", "Sweep",
    "Timeline", "advise", "build", "calibrate_steps", "choose", "compare", "explain", "from_launch", "load_config",
    "lower", "schedules", "simulate", "simulate_many", "sweep", "to_launch", "what_fits", "with_encoder",
    "with_offload", "with_recompute",
]  # fmt: skip

if not TYPE_CHECKING:  # type checkers report a name that is not imported above
    # The module of each name, imported at the first use of one of its names: `ppsim --help` starts without NumPy.
    _HOMES = {
        "ppsim.analysis.filling": ("FillItem",),
        "ppsim.base.errors": ("BuildError", "ConfigError", "CostError", "DeadlockError", "PpsimError", "ScheduleError"),
        "ppsim.config": ("Config", "load_config"),
        "ppsim.costs": ("Cluster", "Costs", "DerivedCosts", "Layout", "Model"),
        "ppsim.launch": ("from_launch", "to_launch"),
        "ppsim.plan.jitter": ("Jitter",),
        "ppsim.run.schedules": (
            "Family", "Program", "Schedule", "build", "lower", "schedules", "with_encoder", "with_offload",
            "with_recompute",
        ),
        "ppsim.run.simulation": ("Batch", "simulate", "simulate_many"),
        "ppsim.run.timelines": ("Timeline",),
        "ppsim.studies.advise": ("advise", "what_fits"),
        "ppsim.studies.choose": ("choose",),
        "ppsim.studies.compare": ("compare",),
        "ppsim.studies.explain": ("explain",),
        "ppsim.studies.step_calibration": ("calibrate_steps",),
        "ppsim.studies.sweep": ("Sweep", "sweep"),
    }  # fmt: skip

    def __getattr__(name):
        for home, names in _HOMES.items():
            if name in names:
                globals()[name] = getattr(import_module(home), name)
                return globals()[name]
        from importlib.util import find_spec

        if find_spec(f"{__name__}.{name}") is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
