"""Lower bounds on step time and memory, without simulation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ppsim.actions import Kind, is_copy, is_vocabulary
from ppsim.base.compiling import call_fastest, kernel
from ppsim.base.distinct import distinct
from ppsim.costs.collectives import regather_seconds
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.effects import update_seconds
from ppsim.costs.table import CostTable
from ppsim.plan.lengths import optimizer_step_seconds, row_seconds
from ppsim.plan.streams import POST_VALIDATED
from ppsim.schedule.columns import ScheduleColumns

PICKS = 3  # of the moments at which a device holds most, for each stage and way: the first, a middle and the last one
# Under which weights such moments are looked for: of the part of an activation that waits for W, and of the last stage.
WEIGHTS = ((1.0, 1.0), (1.0, 4.0), (0.5, 1.0))
# What a row adds at its start and frees at its end, as `ppsim.plan.holding.Holding` has it in bytes: whole
# activations, parts of them that wait for W, stored inputs. The last two are an F before an R, and what moves away.
SHORT_F, AWAY = len(Kind), len(Kind) + 1
ADDS, FREES = np.zeros((2, AWAY + 1, 3))
ADDS[[Kind.F, Kind.R, SHORT_F]] = (1, 0, 0), (1, 0, -1), (0, 0, 1)
FREES[[Kind.B, Kind.I, Kind.W]] = (1, 0, 0), (1, -1, 0), (0, 1, 0)


class PeakCandidates(NamedTuple):
    """PeakCandidates in which an action runs on a device, and what the device holds then; several a device, by device.

    Attributes
    ----------
    device : int64 (moments,)
    stage : int64 (moments, stages)
        The stages of that device; the last ones, of devices with fewer, hold nothing.
    held : float64 (3, moments, stages)
        Microbatches of each stage that it holds whole, whose part for W it holds, and whose stored input it holds.
    recomputing : float64 (moments, stages)
        1 at the stage whose backward runs.
    """

    device: np.ndarray
    stage: np.ndarray
    held: np.ndarray
    recomputing: np.ndarray


@dataclass(frozen=True, eq=False)
class ScheduleSummary:
    """A schedule without its order, and the moments at which its devices hold most.

    Attributes
    ----------
    actions : ScheduleColumns
        Of compute actions that are alike in device, kind, stage and slice one.
    times : int64, one entry a row of `actions`
        How often it runs.
    peaks : PeakCandidates
    """

    actions: ScheduleColumns
    times: np.ndarray
    peaks: PeakCandidates

    def __len__(self) -> int:
        return len(self.times)

    @classmethod
    def of(cls, schedule: ScheduleColumns, whole: bool = False) -> ScheduleSummary:
        """The summary of a valid schedule or program; `whole` keeps every action, for microbatches that differ."""
        compute = schedule.compute
        actions, times = (compute, np.ones(len(compute.kind), np.int64)) if whole else _thinned(compute)
        return cls(actions, times, _moments(compute, _moved(schedule)))


def _thinned(schedule: ScheduleColumns) -> tuple[ScheduleColumns, np.ndarray]:
    """One action of each that are alike, and how often each of its rows is in the schedule."""
    first, joined = schedule.first_rows, np.append(schedule.joined, False)
    alike = (schedule.kind.astype(np.int64) * schedule.num_stages + schedule.stage) * schedule.slices
    alike += schedule.microbatch % schedule.slices
    own = _numbered(alike)
    key = own[first]
    if schedule.joined.any():
        other = np.where(joined[first + 1], own[np.minimum(first + 1, len(own) - 1)] + 1, 0)
        key = _numbered(key * (int(own.max()) + 2) + other)
    number = _numbered(schedule.device[first].astype(np.int64) * (int(key.max(initial=0)) + 1) + key)
    times = np.bincount(number)
    chosen = np.empty(len(times), np.int64)
    chosen[number] = first
    parts = 1 + joined[chosen + 1]
    rows = np.repeat(chosen, parts) + (np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts))
    offsets = np.searchsorted(schedule.device[rows], np.arange(schedule.devices + 1))
    kind, stage, microbatch = (column[rows] for column in (schedule.kind, schedule.stage, schedule.microbatch))
    actions = ScheduleColumns(kind, stage, microbatch, offsets, joined=schedule.joined[rows], **schedule.traits)
    return actions, np.repeat(times, parts)


def _numbered(values: np.ndarray) -> np.ndarray:
    """The number of each value among the distinct ones in rising order, from 0."""
    size = int(values.max(initial=-1)) + 1
    if size > 4 * len(values) + 1000:
        return np.searchsorted(distinct(values), values)
    there = np.bincount(values, minlength=size) > 0
    return (np.cumsum(there) - 1)[values]


def _moved(schedule: ScheduleColumns) -> np.ndarray | None:
    """Whether an activation leaves its device before its backward, bool (stages, microbatches); None: none."""
    copied = is_copy(schedule.kind)
    if not len(schedule.evicted) and not copied.any():
        return None
    moved = np.zeros((schedule.num_stages, schedule.microbatches), bool)
    moved[schedule.stage[copied], schedule.microbatch[copied]] = True
    moved[schedule.evicted[:, 0], schedule.evicted[:, 1]] = True
    return moved


def _moments(schedule: ScheduleColumns, moved: np.ndarray | None) -> PeakCandidates:
    """The moments in which a device holds most while a forward, or a backward, of each of its stages runs."""
    does = schedule.kind.copy()
    if schedule.recomputes:
        does[schedule.recomputed & (does == Kind.F)] = SHORT_F
    if moved is not None:
        does[moved[schedule.stage, schedule.microbatch]] = AWAY
    holding = _numbered(schedule.device.astype(np.int64) * schedule.num_stages + schedule.stage)
    backward = (does == Kind.B) | (does == Kind.I)
    rows = _fullest(schedule, does, 2 * holding + backward)
    device, stage = schedule.holdings.T
    first = np.searchsorted(device, np.arange(schedule.devices))
    most = int(np.bincount(device, minlength=1).max())
    of_moment = schedule.device[rows].astype(np.int64)
    stages = np.pad(stage, (0, most))[first[of_moment, None] + np.arange(most)].astype(np.int64)
    place = holding - first[schedule.device]
    held = np.zeros(3 * len(rows) * most)
    columns = schedule.offsets, does, place, most, rows, ADDS.ravel(), FREES.ravel(), np.zeros(3 * most), held
    call_fastest(hold, len(does), *columns)
    again = np.zeros((len(rows), most))
    again[np.arange(len(rows)), place[rows]] = backward[rows]
    return PeakCandidates(of_moment, stages, held.reshape(len(rows), 3, most).transpose(1, 0, 2), again)


def _fullest(schedule: ScheduleColumns, does: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Of each group of rows some of those during which most is held, in rising order."""
    last, groups = schedule.stage == schedule.num_stages - 1, int(group.max(initial=-1)) + 1
    found = []
    for waiting, of_last in WEIGHTS if (does == Kind.I).any() else WEIGHTS[:-1]:
        adds, frees = (side @ (1.0, waiting, 1 / 64) for side in (ADDS, FREES))
        rows = np.full(groups * PICKS, -1)
        columns = does, group, last, of_last, adds, frees, np.full(groups, -1.0), np.zeros(groups, np.int64), rows
        call_fastest(find_fullest, len(does), *columns)
        found.append(rows)
    rows = distinct(np.concatenate(found))
    return rows[rows >= 0]


@kernel
def find_fullest(does, group, last, of_last, adds, frees, most, times, rows):
    """Write into `rows` of each group the first row at which most is held, the last, and one whose number is a power
    of two; `most` and `times` are what that is and how often.
    """
    level = 0.0
    for row in range(len(does)):
        weight = of_last if last[row] else 1.0
        level += adds[does[row]] * weight
        one = group[row]
        if level > most[one] + 1e-6:
            most[one], times[one] = level, 0
            for pick in range(PICKS):
                rows[one * PICKS + pick] = row
        elif level > most[one] - 1e-6:
            times[one] += 1
            rows[one * PICKS + PICKS - 1] = row
            if times[one] & (times[one] - 1) == 0:
                rows[one * PICKS + 1] = row
        level -= frees[does[row]] * weight


@kernel
def hold(offsets, does, place, places, rows, adds, frees, now, held):
    """Write into `held` what a device holds, by part and place, while each of `rows` runs; `now` is scratch."""
    number = 0
    for device in range(len(offsets) - 1):
        for cell in range(len(now)):
            now[cell] = 0.0
        for row in range(offsets[device], offsets[device + 1]):
            for part in range(3):
                now[part * places + place[row]] += adds[does[row] * 3 + part]
            if number < len(rows) and rows[number] == row:
                for cell in range(len(now)):
                    held[number * len(now) + cell] = now[cell]
                number += 1
            for part in range(3):
                now[part * places + place[row]] -= frees[does[row] * 3 + part]


SAFETY = 1 - 1e-9  # sums in another order than the engines' differ by rounding


def step_bound(
    summary: ScheduleSummary, table: CostTable, optimizer: str | None = None, sharded: bool = False
) -> float:
    """A lower bound, in seconds, on `iteration_time` under every transport and dispatch, without jitter.

    `sharded`: the first weights are gathered before the first forward. Of several steps without a drain between them no
    bound is known, and 0 is given. Where microbatches differ in their costs, the summary is a whole one.

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
    schedule = summary.actions
    if schedule.iterations > 1:
        return 0.0
    busy = np.add.reduceat(row_seconds(schedule, table) * summary.times, schedule.offsets[:-1])
    fill, drain = _ways(schedule, table, sharded)
    before = _least_by_device(schedule, fill)
    steps = np.zeros(schedule.devices) if optimizer is None else optimizer_step_seconds(schedule, table)
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


def memory_bound(summary: ScheduleSummary, table: CostTable) -> np.ndarray | None:
    """A lower bound on each device's `peak_memory`, bytes: all of it but transfer buffers; None where it is not known.

    Proof: an F adds its activation when it starts and a B, or I and W, frees it when it ends; a device runs its list in
    order, one action at a time, so that the list, not time, decides what it holds while each action runs. Every
    timeline reaches what it holds in each of the summary's moments, and weights, gradients and optimizer state are
    there throughout. Where activations move elsewhere, or actions of a list compute them again, only those count. Not
    for lists that are priorities (dispatch "ready").
    """
    if table.activation_bytes is None or table.state_bytes is None:
        return None
    most = np.zeros(summary.actions.devices)
    np.maximum.at(most, summary.peaks.device, memory_at_peaks(summary, table))
    return most * SAFETY


def memory_at_peaks(summary: ScheduleSummary, table: CostTable) -> np.ndarray:
    """Bytes that a device holds in each of the summary's moments, all of it but transfer buffers, at least; of a table
    that says what is held.
    """
    schedule, whole = summary.actions, table.activation_bytes
    assert whole is not None  # noqa: S101 - asked for where they are known
    assert table.state_bytes is not None  # noqa: S101
    device, stage = schedule.holdings.T
    parts = [np.bincount(device, part[stage], minlength=schedule.devices) for part in table.state_bytes]
    static = parts[0] * schedule.weight_versions + parts[1] + parts[2]
    return static[summary.peaks.device] + _live(summary, table, whole / schedule.slices)


def _live(summary: ScheduleSummary, table: CostTable, whole: np.ndarray) -> np.ndarray:
    """Bytes of live activations in each of the summary's moments, with what a backward brings back while it recomputes;
    `whole` is of one microbatch or slice, by stage.
    """
    moments = summary.peaks
    stored = 0.0 if table.input_fraction is None else table.input_fraction
    of_each = np.stack([whole, whole * table.weight_grad_fraction, whole * stored])
    held = (of_each[:, moments.stage] * moments.held).sum(axis=(0, 2))
    if table.recompute_bytes is not None and table.recompute_bytes.any():
        held += ((table.recompute_bytes / summary.actions.slices)[moments.stage] * moments.recomputing).sum(axis=1)
    return held if table.microbatch_scale is None else held * table.microbatch_scale.min()


SECONDS = ("forward", "backward", "input_grad", "weight_grad", "overlap", "microbatch_scale")  # where given, unknown


def layout_bounds(
    costs: Any, devices: int, microbatches: int, optimizer: str | None, keeps: bool = True
) -> tuple[float, float]:
    """Seconds and bytes that every synchronous schedule and partition takes at least in a layout; 0 where not known.

    All computing and the optimizer step spread evenly over the devices, without a bubble. Likewise the bytes: weights,
    gradients, optimizer state, and one microbatch's activations of every layer, all held when its last forward ends;
    without these where a schedule does not keep (`keeps`) every activation on some device until its backward.
    """
    if not isinstance(costs, DerivedCosts):
        return 0.0, 0.0
    layers = costs.model.layers
    held = _least_bytes(costs, keeps) / devices if not _gives(costs, "_bytes") else 0.0
    if _gives(costs, *SECONDS):
        return 0.0, held * SAFETY
    seconds = sum(count * layer_bound(costs, layer) for layer, count in Counter(layers).items())
    stepping = 0.0
    if optimizer and not _gives(costs, "optimizer_step") and (updating := update_seconds(costs, costs.held(layers))):
        hidden = costs.layout.chosen("overlap_data")
        stepping = updating if hidden else updating + regather_seconds(costs, costs.held(layers))
    return (microbatches * seconds + stepping) / devices * SAFETY, held * SAFETY


def _least_bytes(costs: DerivedCosts, keeps: bool) -> float:
    """Bytes that the devices of a pipeline hold together, at least."""
    layers, level = costs.model.layers, costs.layout.recompute
    state = sum(costs.layout.state_bytes(costs.held(layers), 0.0))
    if not (keeps and isinstance(level, str)) or costs.layout.recompute_stages is not None:
        return state
    if _gives(costs, "microbatch_scale"):
        return state
    return state + sum(count * costs.activation_bytes(layer, level) for layer, count in Counter(layers).items())


def _gives(costs: DerivedCosts, *endings: str) -> bool:
    return any(name.endswith(endings) for name in costs.given)


def layer_bound(costs: DerivedCosts, layer: Any) -> float:
    """Least seconds of one layer for one microbatch, forward and backward; a fused slot may hide its collectives."""
    level = costs.layout.recompute if costs.layout.recompute_stages is None else "none"
    if not isinstance(level, str) or costs.layout.recompute_blocks is not None:
        level = "none"
    computing = costs.work(layer).whole + costs.repeated(layer, level)
    if costs.layout.overlap:
        return computing
    exchange = costs.exchange(layer)
    return computing + exchange.forward + exchange.input_grad + exchange.repeated * (level == "full")
