"""Lower bounds on the makespan of a run, for every order of the same actions on the same devices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ppsim.actions import Kind
from ppsim.analysis.bubbles import makespan
from ppsim.analysis.counting_bounds import DevicePath, device_path, makespan_bounds
from ppsim.analysis.memory import activation_shares, peak_activations
from ppsim.base.immutable import cached_on
from ppsim.base.rules import declared, described
from ppsim.lowering.rows import row_table, row_tables
from ppsim.plan.streams import OFFLOADS
from ppsim.schedule.barriers import BARRIER_KINDS
from ppsim.timeline import TimelineColumns


@described
@dataclass(frozen=True)
class LowerBound:
    """The strongest lower bound on a run's makespan, and all of them.

    - busiest device: its compute seconds.
    - fill + work + drain: the shortest time before a device's first action, its compute seconds and the shortest time
      after its last action.
    - dataflow: the longest path of one microbatch.
    - memory: a device holds each activation at least for its path to the last stage and back (an evicted or offloaded
      one only while its own actions run). With `peak_activations` it therefore needs (sum of holding times) / peak
      seconds between its fill and its drain.
    - copies: fill + work + drain of the copies one way by one copy engine, or through one switch.
    - collectives: fill + work + drain of one stream of collectives.
    - counting: the nth action of a kind and stage follows the nth action before it, and the actions that free its
      memory. This limits the work of a device before and after each time (`ppsim.analysis.counting_bounds`). Runs with
      timed fused slots have no such bound.
    """

    seconds: float = declared("the largest of `bounds`")
    which: str = declared("its name")
    device: int | None = declared("the device of the bound; None for the dataflow of one microbatch")
    gap: float = declared("makespan / seconds - 1, a fraction; 0 proves that no order is shorter")
    bounds: dict[str, float] = declared("all bounds by name, in seconds")


@cached_on
def lower_bound(run: TimelineColumns) -> LowerBound:
    """Return the lower bounds of a run for its placement and costs, and for the memory bounds its devices' peaks."""
    offsets, peaks = run.schedule.offsets[:-1], peak_activations(run)
    # both rows of a timed slot last as long as the slot
    lengths, weight = run.plan.seconds[run.plan.slot_of_row], row_table(run.schedule, run.schedule.kind == Kind.W)
    before, after = _shortest_times_around(run, lengths, weight)
    head = np.minimum.reduceat(before, offsets)
    tail = np.minimum.reduceat(after, offsets)
    per_device = {
        "busiest device": run.device_busy,
        "fill + work + drain": head + run.device_busy + tail,
        "memory": head + _shortest_holding(run, before, lengths, weight) / np.maximum(peaks, 1e-300) + tail,
    }
    if run.plan.copies is not None:
        per_device["copies"] = _copy_bounds(run, lengths, before, after)
    paths = _device_paths(run, lengths, weight)
    if paths:
        moves = run.plan.copies is not None or run.schedule.recomputes
        limits = np.full(run.schedule.devices, np.inf) if moves else peaks
        per_device["counting"] = makespan_bounds(paths, limits, makespan(run))
    unrounded = {name: float(seconds.max()) for name, seconds in per_device.items()}
    if run.plan.barriers is not None:
        unrounded["collectives"] = _collective_bound(run, lengths, before, after)
    unrounded["dataflow"] = float((before + lengths + after).max())
    bounds = {name: _without_rounding(seconds, makespan(run)) for name, seconds in unrounded.items()}
    which = max(bounds, key=lambda name: bounds[name])
    device = int(per_device[which].argmax()) if which in per_device else None
    seconds = bounds[which]
    gap = makespan(run) / seconds - 1.0 if seconds > 0 else 0.0
    return LowerBound(seconds, which, device, gap, bounds)


def _without_rounding(bound: float, makespan: float) -> float:
    """Return the makespan if the bound differs from it only by the rounding of sums, else the bound."""
    return makespan if makespan * (1.0 - 1e-12) <= bound <= makespan * (1.0 + 1e-9) else bound


def _shortest_times_around(
    run: TimelineColumns, lengths: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the shortest seconds before each row's start and after its end, by the dataflow of its microbatch."""
    transfer, stages = run.plan.transfer_seconds, run.schedule.num_stages
    forward, backward = row_tables(run.schedule)
    recompute = row_table(run.schedule, run.schedule.kind == Kind.R)
    copy_seconds = _copy_seconds(run)
    between = copy_seconds + np.where(recompute >= 0, lengths[recompute], 0.0)  # from the end of F to its backward
    before, after, needs = np.zeros(len(lengths)), np.zeros(len(lengths)), run.plan.source >= 0

    def arrival(row: np.ndarray, source: np.ndarray) -> np.ndarray:
        """Return the shortest seconds until the results of `source` have reached the device of `row`."""
        return before[source] + lengths[source] + transfer[row]

    def onward(target: np.ndarray) -> np.ndarray:
        """Return the shortest seconds from the end of `target`'s source to the end of all that follows `target`."""
        return transfer[target] + lengths[target] + after[target]

    for stage in range(1, stages):
        row = forward[stage]
        before[row] = np.where(needs[row], arrival(row, forward[stage - 1]), 0.0)
    _through_barriers(run, lengths, before)
    for stage in range(stages - 1, -1, -1):
        row, own = backward[stage], forward[stage]
        before[row] = np.maximum(before[row], before[own] + lengths[own] + between[stage])
        if stage < stages - 1:
            before[row] = np.maximum(before[row], arrival(row, backward[stage + 1]))
    for stage in range(stages):
        row, own_weight = backward[stage], weight[stage]
        after[row] = np.where(own_weight >= 0, lengths[own_weight], 0.0)
        before[own_weight[own_weight >= 0]] = (before[row] + lengths[row])[own_weight >= 0]
        if stage:
            after[row] = np.maximum(after[row], onward(backward[stage - 1]))
    _back_through_barriers(run, lengths, after)
    for stage in range(stages - 1, -1, -1):
        row, own = forward[stage], backward[stage]
        after[row] = np.maximum(after[row], between[stage] + lengths[own] + after[own])
        if stage < stages - 1:
            after[row] = np.maximum(after[row], np.where(needs[forward[stage + 1]], onward(forward[stage + 1]), 0.0))
    known = recompute >= 0
    own, row = forward[known], backward[known]
    before[recompute[known]] = before[own] + lengths[own] + copy_seconds[known]
    after[recompute[known]] = lengths[row] + after[row]
    return before, after


def _through_barriers(run: TimelineColumns, lengths: np.ndarray, before: np.ndarray) -> None:
    """Raise `before` of all rows that wait for a barrier, in the order in which a microbatch meets the barriers."""
    barriers, seconds = run.plan.barriers, run.plan.barrier_seconds
    if barriers is None or seconds is None:
        return
    for kind in BARRIER_KINDS:
        ready = np.zeros(len(barriers))
        ended = before + lengths
        np.maximum.at(ready, barriers.of_producer, ended[barriers.producer])
        before[:] = np.maximum(before, np.where(barriers.own_output >= 0, ended[barriers.own_output], 0.0))
        waiting = np.flatnonzero(barriers.is_of(kind, barriers.needs))
        before[waiting] = np.maximum(before[waiting], (ready + seconds)[barriers.needs[waiting]])


def _back_through_barriers(run: TimelineColumns, lengths: np.ndarray, after: np.ndarray) -> None:
    """Raise `after` of all rows that a barrier needs, in the reverse order."""
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
    own = np.flatnonzero(barriers.own_output >= 0)
    np.maximum.at(after, barriers.own_output[own], (lengths + after)[own])


def _copy_seconds(run: TimelineColumns) -> np.ndarray:
    """Return the seconds of the copies of each activation out and back, by [stage, microbatch]."""
    seconds = np.zeros((run.schedule.num_stages, run.schedule.microbatches))
    if run.plan.copies is not None:
        np.add.at(seconds, (run.plan.copies.stage, run.plan.copies.microbatch), run.plan.copies.seconds)
    return seconds


def _copy_bounds(run: TimelineColumns, lengths: np.ndarray, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return the shortest makespan that the copies one way of a device, or its switch, allow, float64 (devices,).

    It is the sum of the shortest time before the first copy, all copies, and the shortest time after the last copy.
    """
    copies, bounds = run.plan.copies, np.zeros(run.schedule.devices)
    if copies is None:
        return bounds
    at = copies.stage, copies.microbatch
    own, user = (table[at] for table in row_tables(run.schedule))
    recompute = row_table(run.schedule, run.schedule.kind == Kind.R)[at]
    user = np.where(recompute >= 0, recompute, user)
    others = _copy_seconds(run)[at] - copies.seconds
    is_out = copies.way == OFFLOADS
    head = before[own] + lengths[own] + np.where(is_out, 0.0, others)
    tail = lengths[user] + after[user] + np.where(is_out, others, 0.0)
    line = np.where(copies.line >= 0, copies.line, copies.lines + 2 * copies.device + copies.way)
    _, first, number = np.unique(line, return_index=True, return_inverse=True)
    heads, tails = np.full((2, len(first)), np.inf)
    np.minimum.at(heads, number, head)
    np.minimum.at(tails, number, tail)
    np.maximum.at(bounds, copies.device[first], heads + np.bincount(number, copies.seconds) + tails)
    return bounds


def _collective_bound(run: TimelineColumns, lengths: np.ndarray, before: np.ndarray, after: np.ndarray) -> float:
    """Return the shortest makespan that the collectives of one stream, one after the other, allow."""
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


def _activation_parts(run: TimelineColumns) -> np.ndarray:
    """Return `holding.parts_of` of each activation in device shares, float64 (3, stages, microbatches)."""
    return activation_shares(run).parts(*np.indices((run.schedule.num_stages, run.schedule.microbatches)))


def _shortest_holding(run: TimelineColumns, before: np.ndarray, lengths: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Return the smallest sum over a device's activations of amount x seconds held, float64 (devices,).

    Seconds that vanish in the rounding of times do not count: an activation held only for them adds to no peak.
    """
    schedule, shortest = run.schedule, makespan(run) * 1e-12
    whole, for_weight, stored = _activation_parts(run)
    forward, backward = row_tables(schedule)
    held = before[backward] + lengths[backward] - before[forward]
    if run.plan.copies is not None:
        away = run.plan.copies.stage, run.plan.copies.microbatch
        held[away] = lengths[forward[away]] + lengths[backward[away]]
    recompute = row_table(schedule, schedule.kind == Kind.R)
    recomputed = lengths[recompute] + lengths[backward]  # the shortest life of a recomputed activation
    until_weight = lengths[weight]
    for seconds in (held, recomputed, until_weight):
        seconds[seconds < shortest] = 0.0
    amount = np.where(recompute >= 0, stored * held + (whole - stored) * recomputed, whole * held)
    amount += np.where(weight >= 0, until_weight * for_weight, 0.0)
    return np.bincount(schedule.device[forward].ravel(), amount.ravel(), minlength=schedule.devices)


def _device_paths(run: TimelineColumns, lengths: np.ndarray, weight: np.ndarray) -> list[DevicePath]:
    """Return one path per group of microbatches that run on the same devices; none for timed slots, or prefetching."""
    schedule, transfer = run.schedule, run.plan.transfer_seconds
    if len(run.plan.slots[0]) or schedule.iterations > 1 or len(schedule.prefetched):
        return []
    whole, for_weight, _ = _activation_parts(run)
    forward, backward = row_tables(schedule)
    devices, path_of = np.unique(schedule.device[forward], axis=1, return_inverse=True)
    paths = []
    for number, device_of in enumerate(devices.T):
        own = path_of.ravel() == number
        rows, back, after = forward[:, own], backward[:, own], weight[:, own]
        seconds = [lengths[rows], lengths[back], np.where(after >= 0, lengths[after], 0.0)]
        waits = [np.append(transfer[rows[1:]].min(axis=1), 0.0), np.append(0.0, transfer[back[:-1]].min(axis=1))]
        shortest = np.concatenate([column.min(axis=1) for column in seconds])
        until_weight = np.where((after >= 0).all(axis=1), for_weight[:, own].min(axis=1), 0.0)
        share = whole[:, own].min(axis=1)
        paths.append(device_path(int(own.sum()), device_of, shortest, np.concatenate(waits), share, until_weight))
    return paths
