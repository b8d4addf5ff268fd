"""Which layers each stage gets where the partition shall be optimal: those whose step, simulated, is shortest."""

from __future__ import annotations

from ppsim.analysis.steady import iteration_time
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.table import CostModel
from ppsim.engines.running import run_for_timeline
from ppsim.plan.resolve import make_plan, repriced
from ppsim.schedule.columns import ScheduleColumns
from ppsim.timeline import TimelineColumns

MOST_ROWS = 80_000  # simulated for partitions of one kind: about half a second
MOST, LEAST = 64, 8  # partitions of one kind tried for one choice


def settled(costs: CostModel, schedule: ScheduleColumns, transport: str, optimizer: str | None) -> CostModel:
    """`costs`, with partition `optimal` settled for the step that is simulated: this schedule, transport, optimizer."""
    if not isinstance(costs, DerivedCosts):
        return costs
    compute, plans = schedule.compute, []

    def step(cut: DerivedCosts) -> float:
        table = cut.table(compute)
        plans.append(repriced(plans[0], table) if plans else make_plan(schedule, table, transport, optimizer))
        engine, times = run_for_timeline(plans[-1], "auto")
        return iteration_time(TimelineColumns(plans[-1], table, cut, times, engine=engine))

    most = min(MOST, max(LEAST, MOST_ROWS // max(len(compute), 1)))
    return costs.partitioned(compute.num_stages, step, most)
