"""TimelineColumns: the result of a simulation or of a measurement, as columns that are never written to again."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from ppsim.base.columns import unwritable
from ppsim.costs.table import CostModel, CostTable
from ppsim.engines.ending import Spans, run_optimizer, run_reductions, unshard_spans
from ppsim.plan.resolve import Plan
from ppsim.schedule.columns import ScheduleColumns

_COMPARED = (
    "row_start", "row_end", "transfer_start", "transfer_end", "unshard_start", "unshard_end", "device_start",
    "device_end",
)  # fmt: skip


class TimelineColumns:
    """Start and end of every action and transfer, and what follows from them.

    Attributes
    ----------
    schedule : ScheduleColumns
        The compute schedule that ran.
    row_start, row_end : float64 arrays, seconds, one entry a row of the schedule
        An OVERLAP_F_B slot is two rows; `start` and `end` have one entry an action.
    transfer_start, transfer_end : float64 arrays, seconds, one entry a row
        Of the transfer that the row consumes; nan where it consumes none.
    unshard_start, unshard_end : float64 arrays, seconds, one entry an UNSHARD that takes time
        In program order, device by device; `unshards` has them with their devices and stages.
    engine, transport : str
        What ran.
    costs : CostModel
        What priced it; `table` holds its columns.
    """

    plan: Plan
    table: CostTable
    costs: CostModel
    row_start: np.ndarray
    row_end: np.ndarray
    transfer_start: np.ndarray
    transfer_end: np.ndarray
    unshard_start: np.ndarray
    unshard_end: np.ndarray
    engine: str

    def __init__(
        self,
        plan: Plan,
        table: CostTable,
        costs: CostModel,
        row_start: np.ndarray,
        row_end: np.ndarray,
        transfer_start: np.ndarray,
        transfer_end: np.ndarray,
        unshard_start: np.ndarray | None = None,
        unshard_end: np.ndarray | None = None,
        *,
        engine: str,
    ):
        nothing = np.empty(0)
        vars(self).update(
            plan=plan,
            table=table,
            costs=costs,
            row_start=unwritable(row_start),
            row_end=unwritable(row_end),
            transfer_start=unwritable(transfer_start),
            transfer_end=unwritable(transfer_end),
            unshard_start=unwritable(nothing if unshard_start is None else unshard_start),
            unshard_end=unwritable(nothing if unshard_end is None else unshard_end),
            engine=engine,
        )

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name} cannot be set: a timeline is never changed; simulate again with other costs")

    def __eq__(self, other: object) -> bool:
        """Whether both ran the same lists under the same transport at the same times, bit for bit."""
        if not isinstance(other, TimelineColumns):
            return NotImplemented
        return (
            self.transport == other.transport
            and self.schedule == other.schedule
            and all(
                np.array_equal(getattr(self, column), getattr(other, column), equal_nan=True) for column in _COMPARED
            )
        )

    __hash__ = None  # type: ignore[assignment]

    @cached_property
    def schedule(self) -> ScheduleColumns:
        return self.plan.schedule

    @property
    def transport(self) -> str:
        return self.plan.transport

    @cached_property
    def start(self) -> np.ndarray:
        """Start of each compute action in seconds, device by device in list order; a fused slot is one entry."""
        return self.row_start[~self.schedule.joined]

    @cached_property
    def end(self) -> np.ndarray:
        """End of each compute action in seconds, like `start`; of a fused slot the end of its later part."""
        return self.row_end[np.append(~self.schedule.joined[1:], True)]

    @cached_property
    def device_start(self) -> np.ndarray:
        """First start on each device, seconds: of a compute action or an UNSHARD that takes time."""
        start = self.row_start[self.schedule.offsets[:-1]]
        return _merged(np.minimum, start, self.unshards.device, self.unshards.start)

    @cached_property
    def device_end(self) -> np.ndarray:
        """Last end on each device, seconds: of a compute action, a gradient reduction or an optimizer step."""
        steps = self.optimizer_steps
        return self.gradients_ready if steps is None else steps.end

    @cached_property
    def unshards(self) -> Spans:
        """The UNSHARDs that take time: device, stage, start and end in seconds."""
        return unshard_spans(self.plan.gathers, self.unshard_start, self.unshard_end)

    @cached_property
    def reductions(self) -> Spans:
        """The gradient reductions that take time: device, stage, start and end in seconds."""
        return run_reductions(self.plan.reductions, self.row_end)

    @cached_property
    def optimizer_steps(self) -> Spans | None:
        """Each device's optimizer step: device, start and end in seconds; None where none was asked for."""
        plan = self.plan
        if plan.optimizer is None or plan.optimizer_seconds is None:
            return None
        return run_optimizer(plan.optimizer, self.gradients_ready, plan.optimizer_seconds)

    @cached_property
    def gradients_ready(self) -> np.ndarray:
        """When each device's last action and gradient reduction have ended, seconds."""
        end = self.row_end[self.schedule.offsets[1:] - 1]
        return _merged(np.maximum, end, self.reductions.device, self.reductions.end)

    @cached_property
    def device_busy(self) -> np.ndarray:
        """Seconds in compute actions on each device; a timed OVERLAP_F_B slot counts its own length once."""
        return np.add.reduceat(self.plan.seconds, self.schedule.offsets[:-1])


def _merged(extreme: np.ufunc, column: np.ndarray, device: np.ndarray, times: np.ndarray) -> np.ndarray:
    """The smaller (or larger) of a time a device and those of `times` on it."""
    if not len(device):
        return column
    merged = column.copy()
    extreme.at(merged, device, times)
    return merged
