"""Times: what an engine returns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ppsim.base.immutable import column_of, unwritable
from ppsim.engines.kernel_columns import place
from ppsim.plan.resolve import Plan

NONE = np.empty(0)


class Times(NamedTuple):
    """Start and end of all that a plan runs; float64 arrays, seconds.

    A `LaterColumn` may stand for a column that is worked out when it is read; `whole` has none.

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
        transfer_start, transfer_end = self._transfers()
        row_start = np.empty_like(self.row_end)
        row_start[1:] = self.row_end[:-1]
        row_start[self.plan.schedule.offsets[:-1]] = 0.0
        first, second = self.plan.slots[:2]
        row_start[second] = row_start[first]
        np.fmax(row_start, transfer_end, out=row_start)
        row_start[first] = row_start[second] = np.maximum(row_start[first], row_start[second])
        return row_start, transfer_start, transfer_end

    def _transfers(self) -> tuple[np.ndarray, np.ndarray]:
        plan = self.plan
        start = np.where(plan.remote, self.row_end.take(plan.source), np.nan)
        return start, start + plan.transfer_seconds

    @property
    def parts(self) -> tuple[Any, ...]:
        """The columns, each to be worked out when it is read."""
        return tuple(LaterColumn(self, index) for index in range(3))

    @property
    def first_starts(self) -> np.ndarray:
        """Start of each device's first row, without the other rows where they are not known."""
        arrivals = None if "columns" in vars(self) else self._first_arrivals(self.plan.schedule.offsets[:-1])
        return self.columns[0][self.plan.schedule.offsets[:-1]] if arrivals is None else np.fmax(arrivals, 0.0)

    @property
    def transfers_ended(self) -> np.ndarray:
        """At a standstill, whether what each row needs from another device has come, bool."""
        return self.row_end[self.plan.source] >= 0

    def _first_arrivals(self, first: np.ndarray) -> np.ndarray | None:
        """End of the transfer of each device's first row, nan where it needs none; None where that takes all rows."""
        schedule, prices = self.plan.schedule, self.plan.prices
        if prices is None:
            return None
        source = schedule.source[first]
        holder = np.searchsorted(schedule.offsets, source, "right") - 1
        arrival = self.row_end[source] + prices[1][schedule.kind[first], schedule.stage[first]]
        return np.where((source >= 0) & (holder != np.arange(schedule.devices)), arrival, np.nan)


class Queued(Unqueued):
    """Where transfers queue and nothing else happens, what follows from the ends of all rows and transfers.

    `transfers`, made by `apart`, holds start and end of each row's transfer; nan where it needs none or has not ended.
    """

    def __init__(self, plan: Plan, row_end: np.ndarray, transfers: np.ndarray):
        super().__init__(plan, row_end)
        self.transfers = transfers

    def _transfers(self) -> tuple[np.ndarray, np.ndarray]:
        places = place(np.arange(len(self.row_end)))
        return self.transfers[places, 0], self.transfers[places, 1]

    @property
    def transfers_ended(self) -> np.ndarray:
        """As in `Unqueued`."""
        return ~np.isnan(self._transfers()[1])

    def _first_arrivals(self, first: np.ndarray) -> np.ndarray:
        return self.transfers[place(first), 1]


@dataclass(frozen=True)
class LaterColumn:
    """One of the three columns of `Unqueued`."""

    of: Unqueued
    index: int

    @property
    def column(self) -> np.ndarray:
        """The column, float64."""
        return unwritable(self.of.columns[self.index])
