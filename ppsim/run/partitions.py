"""Which layers each stage gets where the partition shall be optimal: those whose step, simulated, is shortest."""

from __future__ import annotations

import functools
from collections.abc import Iterable

import numpy as np

from ppsim.analysis.bubbles import iteration_time
from ppsim.analysis.memory import peak_memory
from ppsim.costs.balance import Pieces, balanced
from ppsim.costs.cuts import Counts, best_cut
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.layout_string import LayoutString
from ppsim.costs.table import CostModel
from ppsim.engines.running import run_for_timeline
from ppsim.plan.resolve import Plan, make_plan, repriced
from ppsim.schedule.columns import ScheduleColumns
from ppsim.timeline import TimelineColumns

MOST_ROWS = 80_000  # simulated for cuts of one kind: about half a second
MOST, LEAST = 64, 8  # cuts of one kind tried for one choice
MOST_OF_ALL = 500  # so many are all tried


def settled(costs: CostModel, schedule: ScheduleColumns, transport: str, optimizer: str | None) -> CostModel:
    """`costs`, with partition `optimal` settled for the step that is simulated, within the memory of the device."""
    if not isinstance(costs, DerivedCosts) or costs.layout.partition != "optimal" or costs.layers_of_stages is not None:
        return costs
    return best_stages(costs, schedule, transport, optimizer, costs.cluster.device.memory, filled=True)


def best_stages(
    costs: DerivedCosts,
    schedule: ScheduleColumns,
    transport: str,
    optimizer: str | None,
    limit: float,
    *,
    engine: str = "auto",
    patience: int = 1,
    starts: Iterable[LayoutString] = (),
    filled: bool = False,
) -> DerivedCosts:
    """`costs` with the stages that have the shortest step under this schedule, transport and optimizer step.

    Of the cuts that are tried (`ppsim.costs.cuts.best_cut`) it is the fastest of those with which no device holds more
    than `limit` bytes; where there is none, the fastest of all. Tried are also `starts` and those that leave the
    busiest device least to do. With `patience` so many times as many are tried. `filled`: every stage has a layer.
    """
    compute, names = schedule.compute, [layer.name for layer in costs.model.layers]
    first: list[Plan] = []

    @functools.cache
    def over_and_step(counts: Counts) -> tuple[float, float]:
        """Bytes above the limit, and seconds of the step."""
        cut = costs.with_stages(counts)
        table = cut.table(compute)
        plan = repriced(first[0], table) if first else make_plan(schedule, table, transport, optimizer)
        first[:] = first or [plan]
        ran, times = run_for_timeline(plan, engine)
        run = TimelineColumns(plan, table, cut, times, engine=ran)
        held = peak_memory(run)
        return 0.0 if held is None else max(0.0, float(held.max()) - limit), iteration_time(run)

    devices = _first_holders(compute)
    pieces = Pieces.of(names, costs.layer_seconds)
    balanced_devices = [balanced(pieces, devices, late=late) for late in (False, True)]
    begin = [one.layer_counts(names, len(devices)) for one in (*starts, *balanced_devices)]
    affordable = MOST_ROWS // max(len(compute), 1)
    search = functools.partial(
        best_cut, costs.layer_seconds, devices, most=patience * min(MOST, max(LEAST, affordable)),
        most_of_all=patience * min(MOST_OF_ALL, affordable), starts=begin, filled=filled,
    )  # fmt: skip
    best = search(over_and_step)
    if over_and_step(best)[0] > 0:
        best = search(lambda counts: over_and_step(counts)[1])
    return costs.with_stages(best)


def _first_holders(schedule: ScheduleColumns) -> list[int]:
    """The first device that holds each stage."""
    device, stage = schedule.holdings.T
    holders = np.full(schedule.num_stages, schedule.devices)
    np.minimum.at(holders, stage, device)
    return holders.tolist()
