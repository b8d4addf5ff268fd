"""Engines: simulate() runs a schedule under costs and a transport and returns a Timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppsim.costs import CostModel, Costs
from ppsim.engines.plan import TRANSPORTS, make_plan
from ppsim.errors import ConfigError
from ppsim.schedule import Schedule

if TYPE_CHECKING:
    from ppsim.timeline import Timeline

ENGINES = ("auto", "event")


def simulate(
    schedule: Schedule, costs: CostModel | None = None, *, transport: str = "async", engine: str = "auto"
) -> Timeline:
    """Run a schedule or program and return its timeline.

    Parameters
    ----------
    schedule : Schedule or Program
        Validated first. Under a queued transport a schedule is lowered.
    costs : Costs or any CostModel, optional
        Default `Costs()`: forward 1 s, backward 2 s, free transfers.
    transport : {"async", "directed"}
        How transfers queue; docs/glossary.md has the rules.
    engine : {"auto", "event"}

    Raises
    ------
    ScheduleError, DeadlockError
        The schedule is invalid, or its devices wait for each other under this transport.
    CostError
        The costs do not fit the schedule.
    ConfigError
        Unknown transport or engine.
    """
    for word, value, legal in (("transport", transport, TRANSPORTS), ("engine", engine, ENGINES)):
        if value not in legal:
            raise ConfigError(f"{word}={value!r} is not known; use one of: {', '.join(legal)}")
    if not isinstance(schedule, Schedule):
        raise ConfigError(f"simulate takes a Schedule or a Program, not {type(schedule).__name__}; see ppsim.build")
    schedule.validate()
    costs = Costs() if costs is None else costs
    compute = getattr(schedule, "schedule", schedule)
    table = costs.table(compute)
    plan = make_plan(schedule, table, transport)

    # Imported here: SimPy and the timeline's floor load only when something runs.
    from ppsim.engines.event import EventModel
    from ppsim.timeline import Timeline

    columns = EventModel(plan).run()
    return Timeline(plan, table, costs, *columns, engine="event")
