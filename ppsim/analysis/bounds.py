"""Lower bounds on the makespan of a run, for every order of the same actions on the same devices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ppsim.actions import Kind
from ppsim.analysis.bubbles import makespan
from ppsim.analysis.counting_bounds import DevicePath, device_path, makespan_bounds
from ppsim.analysis.graph import grouped, topological_order
from ppsim.analysis.memory import activation_shares, peak_activations
from ppsim.base.compiling import call_fastest, kernel
from ppsim.base.immutable import cached_on
from ppsim.base.rules import declared, described
from ppsim.lowering.rows import row_table, row_tables
from ppsim.plan.resolve import dependencies, seconds_away
from ppsim.plan.streams import OFFLOADS, Copies, first_users
from ppsim.schedule.barriers import Barriers
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
    rows, (before, after) = len(lengths), _shortest_times_around(run, lengths)
    around_collectives, before, after = (before[rows:], after[rows:]), before[:rows], after[:rows]
    head = np.minimum.reduceat(before, offsets)
    tail = np.minimum.reduceat(after, offsets)
    per_device = {
        "busiest device": run.device_busy,
        "fill + work + drain": head + run.device_busy + tail,
        "memory": head + _shortest_holding(run, before, lengths, weight) / np.maximum(peaks, 1e-300) + tail,
    }
    if run.plan.copies is not None:
        per_device["copies"] = _copy_bounds(run, run.plan.copies, lengths, before, after)
    paths = _device_paths(run, lengths, weight)
    if paths:
        moves = run.plan.copies is not None or run.schedule.recomputes
        limits = np.full(run.schedule.devices, np.inf) if moves else peaks
        per_device["counting"] = makespan_bounds(paths, limits, makespan(run))
    unrounded = {name: float(seconds.max()) for name, seconds in per_device.items()}
    if run.plan.barriers is not None:
        unrounded["collectives"] = _collective_bound(run.plan.barriers, *around_collectives)
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


def _shortest_times_around(run: TimelineColumns, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the shortest seconds before the start and after the end of each row, and then of each collective.

    They follow from the dataflow of one microbatch.
    """
    plan, rows, seconds = run.plan, len(lengths), lengths
    source, target, delay = dependencies(plan)
    if plan.barriers is not None:
        first, second = plan.barriers.edges(rows)
        of_microbatch = np.minimum(first, second) < rows  # one of the two is a row
        outputs = np.flatnonzero(plan.barriers.own_output >= 0)
        source = np.concatenate([source, first[of_microbatch], plan.barriers.own_output[outputs]])
        target = np.concatenate([target, second[of_microbatch], outputs])
        delay = np.append(delay, np.zeros(len(source) - len(delay)))
        seconds = np.append(lengths, plan.barriers.seconds)
    order = topological_order(source, target, np.ones(len(seconds), bool))
    first, edges = grouped(source, np.arange(len(source)), len(seconds))
    before, after = np.zeros((2, len(seconds)))
    call_fastest(fill_longest_chains, len(order), order, first, target[edges], delay[edges], seconds, before, after)
    return before, after


@kernel
def fill_longest_chains(order, first, targets, delay, seconds, before, after):
    """Fill the seconds of the longest chain of nodes before each node and after it, from zeros."""
    for node in order:
        for edge in range(first[node], first[node + 1]):
            arrival = before[node] + seconds[node] + delay[edge]
            before[targets[edge]] = max(before[targets[edge]], arrival)
    for position in range(len(order) - 1, -1, -1):
        node = order[position]
        for edge in range(first[node], first[node + 1]):
            after[node] = max(after[node], delay[edge] + seconds[targets[edge]] + after[targets[edge]])


def _copy_bounds(
    run: TimelineColumns, copies: Copies, lengths: np.ndarray, before: np.ndarray, after: np.ndarray
) -> np.ndarray:
    """Return the shortest makespan that the copies one way of a device, or its switch, allow, float64 (devices,).

    It is the sum of the shortest time before the first copy, all copies, and the shortest time after the last copy.
    """
    bounds = np.zeros(run.schedule.devices)
    at = copies.stage, copies.microbatch
    forward, user = row_tables(run.schedule)[0][at], first_users(run.schedule)[at]
    away = seconds_away(run.plan)[at] - copies.seconds
    is_out = copies.direction == OFFLOADS
    head = before[forward] + lengths[forward] + np.where(is_out, 0.0, away)
    tail = lengths[user] + after[user] + np.where(is_out, away, 0.0)
    line = np.where(copies.line >= 0, copies.line, copies.lines + 2 * copies.device + copies.direction)
    _, first, number = np.unique(line, return_index=True, return_inverse=True)
    heads, tails = np.full((2, len(first)), np.inf)
    np.minimum.at(heads, number, head)
    np.minimum.at(tails, number, tail)
    np.maximum.at(bounds, copies.device[first], heads + np.bincount(number, copies.seconds) + tails)
    return bounds


def _collective_bound(barriers: Barriers, before: np.ndarray, after: np.ndarray) -> float:
    """Return the shortest makespan that the collectives of one stream, one after the other, allow.

    `before` and `after` are the shortest seconds before each collective's start and after its end.
    """
    seconds, begins = barriers.seconds, barriers.streams[:-1]
    heads, tails = (np.minimum.reduceat(np.where(seconds > 0, column, np.inf), begins) for column in (before, after))
    bounds = heads + np.add.reduceat(seconds, begins) + tails
    return float(np.where(np.isfinite(bounds), bounds, 0.0).max())


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
        chosen = path_of.ravel() == number
        rows, back, after = forward[:, chosen], backward[:, chosen], weight[:, chosen]
        seconds = [lengths[rows], lengths[back], np.where(after >= 0, lengths[after], 0.0)]
        waits = [np.append(transfer[rows[1:]].min(axis=1), 0.0), np.append(0.0, transfer[back[:-1]].min(axis=1))]
        shortest = np.concatenate([column.min(axis=1) for column in seconds])
        until_weight = np.where((after >= 0).all(axis=1), for_weight[:, chosen].min(axis=1), 0.0)
        share = whole[:, chosen].min(axis=1)
        paths.append(device_path(int(chosen.sum()), device_of, shortest, np.concatenate(waits), share, until_weight))
    return paths
