"""Times: what an engine returns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ppsim.base.immutable import column_of, unwritable
from ppsim.plan.resolve import Plan

NONE = np.empty(0)


class Times(NamedTuple):
    """Start and end of all that a plan runs; float64 arrays, seconds.

    An `UnqueuedColumn` may stand for a column that is worked out when it is read; `whole` has none.

    Attributes
    ----------
    row_start, row_end : one entry a row of the schedule
    transfer_start, transfer_end : one entry a row
        Of the transfer that the row consumes; nan where it consumes none.
    unshard_start, unshard_end : one entry a gather of the plan
    reduce_start, reduce_end : one entry a reduction of the plan
    copy_start, copy_end : one entry a copy of the plan
    barrier_start, barrier_end : one entry a barrier of the plan
    step_start, step_end : one entry a device
        Of its optimizer step; empty where none was asked for.
    """

    row_start: np.ndarray
    row_end: np.ndarray
    transfer_start: np.ndarray
    transfer_end: np.ndarray
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

    @property
    def whole(self) -> Times:
        """The same with every column worked out."""
        return Times(*map(column_of, self))


class Unqueued:
    """Where nothing queues, what follows from the ends of all rows, worked out when it is first asked for.

    What the engine worked out is worked out once more, in the same operations, so that bits are the same.
    """

    def __init__(self, plan: Plan, row_end: np.ndarray):
        self.plan, self.row_end = plan, row_end

    @cached_property
    def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Start of each row, and start and end of its transfer."""
        plan, row_end = self.plan, self.row_end
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

    @property
    def parts(self) -> tuple[Any, ...]:
        """The columns, each to be worked out when it is read."""
        return tuple(UnqueuedColumn(self, index) for index in range(3))

    @property
    def first_starts(self) -> np.ndarray:
        """Start of each device's first row, without the other rows where they are not known."""
        schedule, prices = self.plan.schedule, self.plan.prices
        first = schedule.offsets[:-1]
        if prices is None or "columns" in vars(self):
            return self.columns[0][first]
        source = schedule.source[first]
        holder = np.searchsorted(schedule.offsets, source, "right") - 1
        arrival = self.row_end[source] + prices[1][schedule.kind[first], schedule.stage[first]]
        return np.where((source >= 0) & (holder != np.arange(schedule.devices)), arrival, 0.0)


@dataclass(frozen=True)
class UnqueuedColumn:
    """One of the three columns of `Unqueued`."""

    of: Unqueued
    index: int

    @property
    def column(self) -> np.ndarray:
        """The column, float64."""
        return unwritable(self.of.columns[self.index])
