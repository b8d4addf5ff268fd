"""Lower bounds: what no order of the same actions on the same devices can beat."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ppsim.actions import Kind
from ppsim.analysis.bubbles import makespan
from ppsim.analysis.counting_bounds import Chain, chain_of, least_makespan
from ppsim.analysis.memory import peak_activations
from ppsim.base.immutable import kept
from ppsim.base.short_repr import short_repr
from ppsim.lowering.rows import row_tables
from ppsim.plan.host_copies import OFFLOADS
from ppsim.schedule.barriers import BARRIER_KINDS
from ppsim.schedule.columns import ScheduleColumns
from ppsim.timeline import TimelineColumns


@dataclass(frozen=True)
class LowerBound:
    """The strongest lower bound on a run's makespan, and all of them.

    Attributes
    ----------
    seconds : float
        The largest of `bounds`.
    which : str
        Its name.
    device : int or None
        The device it speaks of; None for the dataflow of one microbatch.
    gap : float
        makespan / seconds - 1: how far above the bound the run is, a fraction; 0 where it is proven shortest.
    bounds : mapping name -> seconds
        busiest device: its compute seconds. fill + work + drain: the least time before a device's first action, its
        compute seconds and the least time after its last. dataflow: the longest way of one microbatch. memory: each
        activation is held for at least its way to the last stage and back (an evicted or offloaded one only while its
        own actions run), so that a device which may hold `peak_activations` at once needs (sum of holding times) / peak
        seconds between its fill and its drain. copies: the same as fill + work + drain, of what one copy engine, or one
        switch, copies one way. collectives: the same, of one stream of collectives. counting: the nth action of a kind
        and stage follows the nth before it, and whatever frees the memory that it takes; then what a device can have
        run by a time, and behind one, within its peak (`counting_bounds`; not where fused slots are timed).
    """

    seconds: float
    which: str
    device: int | None
    gap: float
    bounds: dict[str, float]

    __repr__ = short_repr


@kept
def lower_bound(run: TimelineColumns) -> LowerBound:
    """The lower bounds of a run; placement, costs and (for the memory bound) each device's peak are taken as given."""
    offsets = run.schedule.offsets[:-1]
    lengths, weight = _lengths(run), _weight_rows(run)
    before, after = _ways(run, lengths, weight)
    head = np.minimum.reduceat(before, offsets)
    tail = np.minimum.reduceat(after, offsets)
    per_device = {
        "busiest device": run.device_busy,
        "fill + work + drain": head + run.device_busy + tail,
        "memory": head + _holding(run, before, lengths, weight) / np.maximum(peak_activations(run), 1e-300) + tail,
    }
    if run.plan.copies is not None:
        per_device["copies"] = _copying(run, lengths, before, after)
    chains = _chains(run, lengths, weight)
    if chains:
        per_device["counting"] = least_makespan(chains, _limits(run), makespan(run))
    unrounded = {name: float(seconds.max()) for name, seconds in per_device.items()}
    if run.plan.barriers is not None:
        unrounded["collectives"] = _collecting(run, lengths, before, after)
    unrounded["dataflow"] = float((before + lengths + after).max())
    bounds = {name: _without_rounding(seconds, makespan(run)) for name, seconds in unrounded.items()}
    which = max(bounds, key=lambda name: bounds[name])
    device = int(per_device[which].argmax()) if which in per_device else None
    seconds = bounds[which]
    gap = makespan(run) / seconds - 1.0 if seconds > 0 else 0.0
    return LowerBound(seconds, which, device, gap, bounds)


def _without_rounding(bound: float, makespan: float) -> float:
    """The bound, unless it differs from the makespan by no more than the rounding of sums: then the makespan."""
    return makespan if makespan * (1.0 - 1e-12) <= bound <= makespan * (1.0 + 1e-9) else bound


def _lengths(run: TimelineColumns) -> np.ndarray:
    """Seconds of each row; both rows of a timed fused slot last the slot."""
    lengths = run.plan.seconds.copy()
    first, second = run.plan.slots[:2]
    lengths[second] = lengths[first]
    return lengths


def _ways(run: TimelineColumns, lengths: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Least seconds before each row's start, and after its end, by the dataflow of its microbatch alone."""
    transfer, stages = run.plan.transfer_seconds, run.schedule.num_stages
    forward, backward = row_tables(run.schedule)
    again = _table_of(run.schedule, Kind.R)
    away_seconds = _away_seconds(run)
    again_seconds = away_seconds + np.where(again >= 0, lengths[again], 0.0)
    before, after = np.zeros(len(lengths)), np.zeros(len(lengths))

    def arrival(row: np.ndarray, source: np.ndarray) -> np.ndarray:
        """Least seconds until the results of `source` are where `row` needs them."""
        return before[source] + lengths[source] + transfer[row]

    def onward(target: np.ndarray) -> np.ndarray:
        """Least seconds from the end of what `target` needs to the end of all that follows it."""
        return transfer[target] + lengths[target] + after[target]

    for stage in range(1, stages):
        before[forward[stage]] = arrival(forward[stage], forward[stage - 1])
    _through_barriers(run, lengths, before)
    for stage in range(stages - 1, -1, -1):
        row, own = backward[stage], forward[stage]
        before[row] = np.maximum(before[row], before[own] + lengths[own] + again_seconds[stage])
        if stage < stages - 1:
            before[row] = np.maximum(before[row], arrival(row, backward[stage + 1]))
    for stage in range(stages):
        row, own_weight = backward[stage], weight[backward[stage]]
        after[row] = np.where(own_weight >= 0, lengths[own_weight], 0.0)
        before[own_weight[own_weight >= 0]] = (before[row] + lengths[row])[own_weight >= 0]
        if stage:
            after[row] = np.maximum(after[row], onward(backward[stage - 1]))
    _back_through_barriers(run, lengths, after)
    for stage in range(stages - 1, -1, -1):
        row, own = forward[stage], backward[stage]
        after[row] = np.maximum(after[row], again_seconds[stage] + lengths[own] + after[own])
        if stage < stages - 1:
            after[row] = np.maximum(after[row], onward(forward[stage + 1]))
    with_again = again >= 0
    own, row = forward[with_again], backward[with_again]
    before[again[with_again]] = before[own] + lengths[own] + away_seconds[with_again]
    after[again[with_again]] = lengths[row] + after[row]
    return before, after


def _away_seconds(run: TimelineColumns) -> np.ndarray:
    """Seconds of the copies of each activation out and back, by [stage, microbatch]."""
    seconds = np.zeros((run.schedule.num_stages, run.schedule.microbatches))
    if run.plan.copies is not None:
        np.add.at(seconds, (run.plan.copies.stage, run.plan.copies.microbatch), run.plan.copies.seconds)
    return seconds


def _copying(run: TimelineColumns, lengths: np.ndarray, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Least seconds by what a device, or its switch, copies one way, float64 (devices,).

    The least time before the first copy, all copies, and the least time after the last.
    """
    copies, least = run.plan.copies, np.zeros(run.schedule.devices)
    if copies is None:
        return least
    at = copies.stage, copies.microbatch
    own, user = (table[at] for table in row_tables(run.schedule))
    again = _table_of(run.schedule, Kind.R)[at]
    user = np.where(again >= 0, again, user)
    others = _away_seconds(run)[at] - copies.seconds
    is_out = copies.way == OFFLOADS
    head = before[own] + lengths[own] + np.where(is_out, 0.0, others)
    tail = lengths[user] + after[user] + np.where(is_out, others, 0.0)
    line = np.where(copies.line >= 0, copies.line, copies.lines + 2 * copies.device + copies.way)
    _, first, number = np.unique(line, return_index=True, return_inverse=True)
    heads, tails = np.full((2, len(first)), np.inf)
    np.minimum.at(heads, number, head)
    np.minimum.at(tails, number, tail)
    np.maximum.at(least, copies.device[first], heads + np.bincount(number, copies.seconds) + tails)
    return least


def _collecting(run: TimelineColumns, lengths: np.ndarray, before: np.ndarray, after: np.ndarray) -> float:
    """Least seconds by what a stream of collectives runs one after the other, the largest of all streams."""
    barriers, seconds = run.plan.barriers, run.plan.barrier_seconds
    if barriers is None or seconds is None:
        return 0.0
    ready, to_come = np.zeros((2, len(barriers)))
    np.maximum.at(ready, barriers.of_producer, (before + lengths)[barriers.producer])
    waiting = np.flatnonzero(barriers.needs >= 0)
    np.maximum.at(to_come, barriers.needs[waiting], (lengths + after)[waiting])
    begins = barriers.streams[:-1]
    heads, tails = (np.minimum.reduceat(np.where(seconds > 0, column, np.inf), begins) for column in (ready, to_come))
    every = heads + np.add.reduceat(seconds, begins) + tails
    return float(np.where(np.isfinite(every), every, 0.0).max())


def _through_barriers(run: TimelineColumns, lengths: np.ndarray, before: np.ndarray) -> None:
    """Raise `before` of all that waits for a barrier, in the order in which a microbatch meets them."""
    barriers, seconds = run.plan.barriers, run.plan.barrier_seconds
    if barriers is None or seconds is None:
        return
    for kind in BARRIER_KINDS:
        ready = np.zeros(len(barriers))
        ended = before + lengths
        np.maximum.at(ready, barriers.of_producer, ended[barriers.producer])
        before[:] = np.maximum(before, np.where(barriers.has >= 0, ended[barriers.has], 0.0))
        waiting = np.flatnonzero(barriers.is_of(kind, barriers.needs))
        before[waiting] = np.maximum(before[waiting], (ready + seconds)[barriers.needs[waiting]])


def _back_through_barriers(run: TimelineColumns, lengths: np.ndarray, after: np.ndarray) -> None:
    """Raise `after` of all that a barrier needs, the other way round."""
    barriers, seconds = run.plan.barriers, run.plan.barrier_seconds
    if barriers is None or seconds is None:
        return
    waiting = np.flatnonzero(barriers.needs >= 0)
    for kind in reversed(BARRIER_KINDS):
        to_come = np.zeros(len(barriers))
        np.maximum.at(to_come, barriers.needs[waiting], (lengths + after)[waiting])
        needed = barriers.is_of(kind, barriers.of_producer)
        row = barriers.producer[needed]
        after[row] = np.maximum(after[row], (to_come + seconds)[barriers.of_producer[needed]])
    own = np.flatnonzero(barriers.has >= 0)
    np.maximum.at(after, barriers.has[own], (lengths + after)[own])


def _chains(run: TimelineColumns, lengths: np.ndarray, weight: np.ndarray) -> list[Chain]:
    """The microbatches by the devices that they run on; none where slots that run two actions at once are timed."""
    schedule, table, transfer = run.schedule, run.table, run.plan.transfer_seconds
    if len(run.plan.slots[0]) or schedule.iterations > 1:
        return []
    forward, backward = row_tables(schedule)
    weight = weight[backward]
    paths, path_of = np.unique(schedule.device[forward], axis=1, return_inverse=True)
    chains = []
    for number, device_of in enumerate(paths.T):
        own = path_of.ravel() == number
        rows, back, after = forward[:, own], backward[:, own], weight[:, own]
        seconds = [lengths[rows], lengths[back], np.where(after >= 0, lengths[after], 0.0)]
        waits = [np.append(transfer[rows[1:]].min(axis=1), 0.0), np.append(0.0, transfer[back[:-1]].min(axis=1))]
        kept = np.where((after >= 0).all(axis=1), table.weight_grad_fraction, 0.0)
        least = np.concatenate([column.min(axis=1) for column in seconds])
        share = table.stage_share / schedule.slices * _least_scale(run, own)
        chains.append(chain_of(int(own.sum()), device_of, least, np.concatenate(waits), share, kept))
    return chains


def _limits(run: TimelineColumns) -> np.ndarray:
    """What each device may hold: its peak, or anything where activations leave it or are made again."""
    moves = run.plan.copies is not None or run.schedule.recomputes
    return np.full(run.schedule.devices, np.inf) if moves else peak_activations(run)


def _least_scale(run: TimelineColumns, own: np.ndarray) -> np.ndarray:
    """The least part of a whole activation that one of these microbatches is, by stage."""
    stage, microbatch = np.indices((run.schedule.num_stages, len(own)))[:, :, own]
    scale = run.table.scale_of(run.schedule, stage, microbatch)
    return np.broadcast_to(scale, stage.shape).min(axis=1)


def _weight_rows(run: TimelineColumns) -> np.ndarray:
    """For each row the W of the same stage and microbatch where the row is its I, else -1."""
    schedule = run.schedule
    table = _table_of(schedule, Kind.W)
    return np.where(schedule.kind == Kind.I, table[schedule.stage, schedule.microbatch], -1)


def _table_of(schedule: ScheduleColumns, kind: Kind) -> np.ndarray:
    """Row of a kind by [stage, microbatch], or -1."""
    table = np.full((schedule.num_stages, schedule.microbatches), -1, np.int64)
    rows = np.flatnonzero(schedule.kind == kind)
    table[schedule.stage[rows], schedule.microbatch[rows]] = rows
    return table


def _holding(run: TimelineColumns, before: np.ndarray, lengths: np.ndarray, weight_rows: np.ndarray) -> np.ndarray:
    """Least sum over a device's activations of (amount x seconds held), one entry a device."""
    schedule, table = run.schedule, run.table
    forward, backward = row_tables(schedule)
    weight = weight_rows[backward]
    held = before[backward] + lengths[backward] - before[forward]
    if run.plan.copies is not None:
        away = run.plan.copies.stage, run.plan.copies.microbatch
        held[away] = lengths[forward[away]] + lengths[backward[away]]
    again = _table_of(schedule, Kind.R)
    stored = np.zeros(schedule.num_stages) if table.input_fraction is None else table.input_fraction
    short = lengths[again] + lengths[backward]  # what R makes again lives no shorter than R and its backward
    held = np.where(again >= 0, stored[:, None] * held + (1.0 - stored)[:, None] * short, held)
    kept = np.where(weight >= 0, lengths[weight] * table.weight_grad_fraction[:, None], 0.0)
    amount = (held + kept) * table.stage_share[:, None] / schedule.slices
    place = np.indices(held.shape)
    amount = amount * table.scale_of(schedule, place[0], place[1])
    return np.bincount(schedule.device[forward].ravel(), amount.ravel(), minlength=schedule.devices)
