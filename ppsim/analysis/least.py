"""What a schedule takes at least under given costs, worked out without simulating it: seconds of a step and bytes."""

from __future__ import annotations

import numpy as np

from ppsim.actions import Kind, is_vocabulary
from ppsim.analysis.outline import Outline
from ppsim.costs.table import CostTable
from ppsim.plan.lengths import row_seconds
from ppsim.plan.streams import POST_VALIDATED, optimizer_seconds
from ppsim.schedule.columns import ScheduleColumns

SAFETY = 1 - 1e-9  # sums in another order than the engines' differ by rounding


def least_step(outline: Outline, table: CostTable, optimizer: str | None = None, sharded: bool = False) -> float:
    """A lower bound, in seconds, on `iteration_time` under every transport and dispatch, without jitter.

    `sharded`: the first weights are gathered before the first forward. Of several steps without a drain between them no
    bound is known, and 0 is given. Where microbatches differ in their costs, the outline is a whole one.

    Proof, for a device d that holds the stages S:

    1. All else of a stage and microbatch (R, B, I, W) follows its F on the same device, so that the first action of d
       is an F of a stage s in S. It follows the F of stages 0 .. s-1 and the transfers between them; each lasts at
       least its seconds times the least part that a slice or a small microbatch is of a whole one, in a timed slot at
       least the shortest slot with it; queues only delay. Nothing on d starts before the least such sum over S: `fill`.
    2. Actions of d run one at a time, so that the last one ends no sooner than fill + busy.
    3. Without W the last one is a B: every F and R of d has its B behind it on d. Its gradient passes the B of stages
       s-1 .. 0, so that the step ends no sooner than fill + busy + the least such sum over S: `drain`. With W it is 0.
    4. The gradients of the last action's stage are reduced behind it: fill + busy + the least reduction over S.
    5. An optimizer step follows the last reduction of all devices ("sync"), or of its own ("post-validated"). Steps of
       the second kind follow each other at the span: from the first action of d to its own step lie busy, the least
       reduction over S and the step, while its fill and the drain overlap with the steps before and after.
    """
    schedule = outline.actions
    if schedule.iterations > 1:
        return 0.0
    busy = np.add.reduceat(row_seconds(schedule, table) * outline.times, schedule.offsets[:-1])
    fill, drain = _ways(schedule, table, sharded)
    before = _least_by_device(schedule, fill)
    steps = np.zeros(schedule.devices) if optimizer is None else optimizer_seconds(schedule, table)
    own = before + busy
    if table.reduce_seconds is not None:
        own = own + _least_by_device(schedule, table.reduce_seconds)
    others = before + busy
    if not ((schedule.kind == Kind.W) | is_vocabulary(schedule.kind)).any():
        others = others + _least_by_device(schedule, drain)
    if optimizer == POST_VALIDATED:  # a device neither waits for its first forward nor for the others to drain
        return float((own - before + steps).max()) * SAFETY
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
    sent = np.minimum(table.transfer_bytes[0, :-1], table.transfer_bytes[1, 1:])
    device, stage = schedule.holdings.T
    if len(stage) == stages:  # one device holds each
        device = device[np.argsort(stage)]
        there, back = (device[:-1], device[1:]), (device[1:], device[:-1])
        ways = np.minimum(*(table.latency[way] + sent * table.seconds_per_byte[way] for way in (there, back)))
        return np.where(device[1:] == device[:-1], 0.0, ways)
    holders: list[list[int]] = [[] for _ in range(stages)]
    for device, stage in schedule.holdings.tolist():
        holders[stage].append(device)
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


def least_memory(outline: Outline, table: CostTable) -> np.ndarray | None:
    """A lower bound on each device's `peak_memory`, bytes: all of it but transfer buffers; None where it is not known.

    Proof: an F adds its activation when it starts and a B, or I and W, frees it when it ends; a device runs its list in
    order, one action at a time, so that the list, not time, decides what it holds while each action runs. Every
    timeline reaches what it holds in each of the outline's moments, and weights, gradients and optimizer state are
    there throughout. Where activations move elsewhere, or actions of a list compute them again, only those count. Not
    for lists that are priorities (dispatch "ready").
    """
    if table.activation_bytes is None or table.state_bytes is None:
        return None
    most = np.zeros(outline.actions.devices)
    np.maximum.at(most, outline.moments.device, held_in_moments(outline, table))
    return most * SAFETY


def held_in_moments(outline: Outline, table: CostTable) -> np.ndarray:
    """Bytes that a device holds in each of the outline's moments, all of it but transfer buffers, at least; of a table
    that says what is held.
    """
    schedule, whole = outline.actions, table.activation_bytes
    assert whole is not None  # noqa: S101 - asked for where they are known
    assert table.state_bytes is not None  # noqa: S101
    device, stage = schedule.holdings.T
    parts = [np.bincount(device, part[stage], minlength=schedule.devices) for part in table.state_bytes]
    static = parts[0] * schedule.weight_versions + parts[1] + parts[2]
    return static[outline.moments.device] + _live(outline, table, whole / schedule.slices)


def _live(outline: Outline, table: CostTable, whole: np.ndarray) -> np.ndarray:
    """Bytes of live activations in each of the outline's moments, with what a backward brings back while it recomputes;
    `whole` is of one microbatch or slice, by stage.
    """
    moments = outline.moments
    stored = 0.0 if table.input_fraction is None else table.input_fraction
    of_each = np.stack([whole, whole * table.weight_grad_fraction, whole * stored])
    held = (of_each[:, moments.stage] * moments.held).sum(axis=(0, 2))
    if table.recompute_bytes is not None and table.recompute_bytes.any():
        held += ((table.recompute_bytes / outline.actions.slices)[moments.stage] * moments.again).sum(axis=1)
    return held if table.microbatch_scale is None else held * table.microbatch_scale.min()
