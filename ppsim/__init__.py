"""ppsim: a discrete-event simulator and visualiser for pipeline-parallel training schedules."""

from ppsim.costs import Costs
from ppsim.engines import simulate
from ppsim.errors import BuildError, ConfigError, CostError, DeadlockError, PpsimError, ScheduleError
from ppsim.lowering import lower
from ppsim.schedule import Program, Schedule
from ppsim.schedules import Family, build, schedules

__version__ = "0.1.0"

__all__ = [
    "BuildError",
    "ConfigError",
    "CostError",
    "Costs",
    "DeadlockError",
    "Family",
    "PpsimError",
    "Program",
    "Schedule",
    "ScheduleError",
    "build",
    "lower",
    "schedules",
    "simulate",
]
