"""Times: what an engine returns."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ppsim.plan.resolve import Plan

NONE = np.empty(0)


class Times(NamedTuple):
    """Start and end of everything that a plan runs; float64 arrays, seconds."""

    # one entry per row of the schedule; of transfers, the one that the row needs: nan if it needs none
    row_start: np.ndarray
    row_end: np.ndarray
    transfer_start: np.ndarray
    transfer_end: np.ndarray
    # one entry per gather, reduction, copy or barrier of the plan, and per device's optimizer step, if one is requested
    unshard_start: np.ndarray = NONE
    unshard_end: np.ndarray = NONE
    reduce_start: np.ndarray = NONE
    reduce_end: np.ndarray = NONE
    step_start: np.ndarray = NONE
    step_end: np.ndarray = NONE
    copy_start: np.ndarray = NONE
    copy_end: np.ndarray = NONE
    barrier_start: np.ndarray = NONE
    barrier_end: np.ndarray = NONE


class RowEnds(NamedTuple):
    """Result of the compiled engine if nothing queues: the other columns of rows follow from the ends.

    A whole call of `simulate` at a million actions is 2.6 times as fast without those columns.
    """

    row_end: np.ndarray  # float64 (rows,)
    device_busy: np.ndarray  # float64 (devices,): sum of the seconds of each device's rows
    first_start: np.ndarray  # float64 (devices,): start of its first row
    # float64 arrays, as in `Times`
    reduce_start: np.ndarray = NONE
    reduce_end: np.ndarray = NONE
    step_start: np.ndarray = NONE
    step_end: np.ndarray = NONE


def unqueued_times(plan: Plan, row_end: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the start of each row, and start and end of its transfer, from the ends of all rows if nothing queues.

    The engine's operations are repeated, so that the bits are the same.
    """
    transfer_start = np.where(plan.remote, row_end.take(plan.source), np.nan)
    transfer_end = transfer_start + plan.transfer_seconds
    row_start = np.empty_like(row_end)
    row_start[1:] = row_end[:-1]
    row_start[plan.schedule.offsets[:-1]] = 0.0
    first, second = plan.slots[:2]
    row_start[second] = row_start[first]
    np.fmax(row_start, transfer_end, out=row_start)
    row_start[first] = row_start[second] = np.maximum(row_start[first], row_start[second])
    return row_start, transfer_start, transfer_end


def first_starts(plan: Plan, row_end: np.ndarray) -> np.ndarray:
    """Return the start of each device's first row, from the ends of all rows if nothing queues."""
    schedule, lengths = plan.schedule, plan.transfer_lengths
    first, last = schedule.offsets[:-1], schedule.offsets[1:]
    rows = np.stack([first, first + np.append(plan.fused, False)[first + 1]])  # of a fused slot both, else one twice
    source = schedule.source[rows]
    seconds = lengths[rows] if lengths.ndim == 1 else lengths[schedule.kind[rows], schedule.stage[rows]]
    needs_transfer = (source >= 0) & ((source < first) | (source >= last))
    return np.where(needs_transfer, row_end[source] + seconds, 0.0).max(axis=0)
