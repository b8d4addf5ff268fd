"""Choice of the engine that runs a plan."""

from __future__ import annotations

from typing import Any

from ppsim.base.compiling import ROWS_WORTH_LOADING, can_compile, pays
from ppsim.base.errors import ConfigError
from ppsim.base.host import note_failure
from ppsim.costs.table import CostTable
from ppsim.engines.times import RowEnds, Times
from ppsim.plan.dispatch import check_dispatch, check_plan, in_order, make_choices
from ppsim.plan.resolve import Plan, make_plan
from ppsim.schedule.columns import ScheduleColumns

ENGINES = ("auto", "event", "compiled")


def compiled_or(engine: str) -> str:
    """Return the compiled engine, which many runs load once, in place of "auto" if it can run; else this engine."""
    return "compiled" if engine == "auto" and can_compile() else engine


def run_plan(plan: Plan, engine: str) -> tuple[str, Times | RowEnds]:
    """Return the name of the engine that ran a plan, and the times of everything in the plan."""
    engine = _chosen(plan, engine)
    if engine == "compiled":
        from ppsim.engines.compiled import run_compiled
        from ppsim.engines.contention import run_contended, shares_ports

        if plan.posts is not None and shares_ports(plan):
            return engine, run_contended(plan, plan.posts)
        return engine, run_compiled(plan)
    from ppsim.engines.event import EventModel

    return engine, EventModel(plan).run()


def makespan_of(schedule: ScheduleColumns, table: CostTable) -> float:
    """Return the seconds of a step of a valid schedule if transfers do not queue."""
    return float(run_plan(make_plan(schedule, table, "async"), "auto")[1].row_end.max())


def dispatched(plan: Plan, table: CostTable, dispatch: str, memory_limit: Any, engine: str) -> Plan:
    """Return the plan in the order in which its devices run it: the order of its lists, or the one that they choose.

    If choosing devices deadlock, the order stays: the lists deadlock too, and their run names the cycle. Raises
    ConfigError as `check_dispatch`, `check_plan` and `make_choices`.
    """
    check_dispatch(dispatch, memory_limit)
    if dispatch == "list":
        return plan
    check_plan(plan)
    choices = make_choices(plan, table, memory_limit)
    from ppsim.engines.ready import ReadyModel, ready_order

    is_compiled = _chosen(plan, engine) == "compiled"
    order = ready_order(choices) if is_compiled else ReadyModel(choices).run()
    return in_order(plan, table, choices, order) if len(order) == len(choices.row) else plan


def _chosen(plan: Plan, engine: str) -> str:
    """Return the engine; "auto" is the one that ends sooner, with what it must still load and compile.

    ConfigError if the compiled one cannot run.
    """
    if engine == "compiled" and not can_compile():
        note_failure()
        raise ConfigError("engine='compiled' needs Numba, which cannot be imported; use 'event' or 'auto'")
    if engine != "auto":
        return engine
    rows = len(plan.schedule.kind)
    if rows < ROWS_WORTH_LOADING or not can_compile():
        return "event"
    from ppsim.engines.compiled import main_kernel

    return "compiled" if pays(main_kernel(plan), rows) else "event"
