"""What a schedule takes at least under given costs, worked out without simulating it: seconds of a step and bytes."""

from __future__ import annotations

import numpy as np

from ppsim.actions import Kind, is_vocabulary
from ppsim.costs.table import CostTable
from ppsim.plan.holding import held_changes
from ppsim.plan.resolve import by_kind_and_stage, row_seconds
from ppsim.plan.streams import optimizer_seconds
from ppsim.schedule.columns import ScheduleColumns

SAFETY = 1 - 1e-9  # sums in another order than the engines' differ by rounding


def least_step(
    schedule: ScheduleColumns, table: CostTable, optimizer: str | None = None, sharded: bool = False
) -> float:
    """A lower bound, in seconds, on `iteration_time` under every transport.

    A device computes nothing before the way of a forward through the stages before its first one (its fill), then all
    of its actions one at a time, and then either the rest of a backward's way to stage 0 follows (its drain), or the
    reduction of the gradients of its last stage; the optimizer step comes last. Of several steps without a drain
    between them no bound is known, and 0 is given. `sharded`: the first weights are gathered before the first forward.
    """
    if schedule.iterations > 1:
        return 0.0
    schedule = schedule.compute
    busy = np.add.reduceat(row_seconds(schedule, table), schedule.offsets[:-1])
    fill, drain = _ways(schedule, table, sharded)
    before = _least_by_device(schedule, fill)
    steps = np.zeros(schedule.devices) if optimizer is None else optimizer_seconds(schedule, table)
    own = before + busy
    if table.reduce_seconds is not None:
        own = own + _least_by_device(schedule, table.reduce_seconds)
    others = before + busy
    if not ((schedule.kind == Kind.W) | is_vocabulary(schedule.kind)).any():
        others = others + _least_by_device(schedule, drain)
    if optimizer == "post-validated":
        return float(max(others.max(), (own + steps).max())) * SAFETY
    return float(max(others.max(), own.max()) + steps.max()) * SAFETY


def _ways(schedule: ScheduleColumns, table: CostTable, sharded: bool) -> tuple[np.ndarray, np.ndarray]:
    """Seconds that must pass before a stage's first forward, and after its last backward, one entry a stage."""
    part = float(table.slice_fraction.min()) if schedule.slices > 1 else 1.0
    if table.microbatch_scale is not None:
        part *= float(table.microbatch_scale.min())
    forward = table.seconds[Kind.F] * part
    backward = table.seconds[Kind.B] * part
    if table.overlap is not None and schedule.joined.any():
        forward, backward = (np.minimum(column, _shortest_slot(table)) for column in (forward, backward))
    hop = _hops(schedule, table) * min(part, 1.0)  # latency stays as it is
    first = np.cumsum(np.append(0.0, forward[:-1] + hop))
    if sharded and table.unshard_seconds is not None:
        first = first + table.unshard_seconds.min()
    last = np.cumsum(np.append(0.0, backward[:-1] + hop))
    return first, last


def _shortest_slot(table: CostTable) -> np.ndarray:
    assert table.overlap is not None  # noqa: S101 - asked for where slots are timed
    return np.minimum(table.overlap.min(axis=0), table.overlap.min(axis=1))


def _hops(schedule: ScheduleColumns, table: CostTable) -> np.ndarray:
    """Least seconds between stage s and stage s + 1, one entry a pair of neighbours; 0 where a device holds both."""
    stages = schedule.num_stages
    holders: list[list[int]] = [[] for _ in range(stages)]
    for device, stage in schedule.holdings.tolist():
        holders[stage].append(device)
    sent = np.minimum(table.transfer_bytes[0, :-1], table.transfer_bytes[1, 1:])
    ways = [
        min(
            0.0 if one == other else min(_seconds(table, one, other, size), _seconds(table, other, one, size))
            for one in holders[stage]
            for other in holders[stage + 1]
        )
        for stage, size in enumerate(sent.tolist())
    ]
    return np.array(ways)


def _seconds(table: CostTable, sender: int, receiver: int, size: float) -> float:
    return float(table.latency[sender, receiver] + size * table.seconds_per_byte[sender, receiver])


def _least_by_device(schedule: ScheduleColumns, of_stage: np.ndarray) -> np.ndarray:
    """The least entry among the stages that each device holds."""
    least = np.full(schedule.devices, np.inf)
    device, stage = schedule.holdings.T
    np.minimum.at(least, device, of_stage[stage])
    return least


def least_memory(schedule: ScheduleColumns, table: CostTable) -> np.ndarray | None:
    """A lower bound on each device's `peak_memory`, bytes: all of it but transfer buffers; None where it is not known.

    The order of a device's list, not time, decides how many activations it holds. Where activations move elsewhere, or
    actions of a list compute them again, only what stays throughout counts.
    """
    if table.activation_bytes is None or table.state_bytes is None:
        return None
    device, stage = schedule.holdings.T
    parts = [np.bincount(device, part[stage], minlength=schedule.devices) for part in table.state_bytes]
    static = parts[0] * schedule.weight_versions + parts[1] + parts[2]
    if len(schedule.evicted) or (schedule.kind > Kind.W).any():
        return static * SAFETY
    return (static + _most_held(schedule, table, table.activation_bytes)) * SAFETY


def _most_held(schedule: ScheduleColumns, table: CostTable, whole: np.ndarray) -> np.ndarray:
    """Most bytes of live activations on each device, with what a backward brings back while it recomputes.

    `whole` is of one microbatch, by stage.
    """
    adds, frees = held_changes(schedule, table, whole)
    level = np.cumsum(adds - frees)
    first = schedule.offsets[:-1]
    before_device = np.append(0.0, level)[first]
    while_running = level + frees
    if table.recompute_bytes is not None and table.recompute_bytes.any():
        again, nothing = table.recompute_bytes / schedule.slices, np.zeros_like(whole)
        again = by_kind_and_stage(schedule, np.stack([nothing, again, again, nothing]))
        while_running = while_running + again * table.scale_of(schedule, schedule.stage, schedule.microbatch)
    return np.maximum.reduceat(while_running, first) - before_device
