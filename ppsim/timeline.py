"""TimelineColumns: the result of a simulation or of a measurement, as read-only columns."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np

from ppsim.base.immutable import Columns, EqualColumns, SizedColumns, as_class, cached_column, equal, read_only
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.table import CostModel, CostTable
from ppsim.engines.running import run_plan
from ppsim.engines.times import RowEnds, Times, unqueued_times
from ppsim.plan.resolve import Plan
from ppsim.plan.streams import OFFLOADS, RELOADS, SideStream
from ppsim.schedule.columns import ScheduleColumns


@dataclass(frozen=True, eq=False)
class StreamSpans(SizedColumns, EqualColumns):
    """Start and end of work that is not a compute action, device by device in time order."""

    device: np.ndarray  # int32
    stage: np.ndarray  # int32: -1 for all stages of the device together
    start: np.ndarray  # float64, seconds
    end: np.ndarray  # float64, seconds
    microbatch: np.ndarray | None = None  # int32 or None: None for all microbatches together


@dataclass(frozen=True, eq=False)
class FillSpans(StreamSpans):
    """Pieces of work in idle time: `item` has the index in `names` of each piece's item, int32."""

    item: np.ndarray | None = None
    names: tuple[str, ...] = ()


NOTHING = StreamSpans(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0), np.empty(0))


class TimelineColumns(Columns):
    """Start and end of every action and transfer.

    Its columns are those of `ppsim.engines.times.Times`, float64, seconds. `row_start` and `row_end` have an entry per
    row of the schedule, two for an OVERLAP_F_B slot; `start` and `end` have one per action. The entries of `unshard_*`,
    `reduce_*` and `copy_*` are in program order, device by device; `unshards`, `reductions`, `offloads` and `reloads`
    have them with their devices and stages.
    """

    plan: Plan
    table: CostTable  # the columns of `costs`
    costs: CostModel
    row_end: np.ndarray
    unshard_start: np.ndarray
    unshard_end: np.ndarray
    reduce_start: np.ndarray
    reduce_end: np.ndarray
    step_start: np.ndarray
    step_end: np.ndarray
    copy_start: np.ndarray
    copy_end: np.ndarray
    barrier_start: np.ndarray
    barrier_end: np.ndarray
    engine: str
    framework: str  # of a measured step, if its trace gives one: "Megatron-LM", "Primus" or "PyTorch"; else empty
    name: str | None = None  # the config's, for titles
    config: Any = None  # that ran, or None; the assumptions name its keys without effect
    fills: FillSpans | None = None  # work placed in idle time, which charts show

    def __init__(
        self,
        plan: Plan,
        table: CostTable,
        costs: CostModel,
        times: Times | RowEnds,
        *,
        engine: str,
        framework: str = "",
    ):
        # A column that RowEnds lacks is empty, or follows from the ends in the cached columns below.
        found = {name: read_only(column) for name, column in (Times._field_defaults | times._asdict()).items()}
        vars(self).update(plan=plan, table=table, costs=costs, engine=engine, framework=framework, **found)

    def __getstate__(self) -> dict[str, Any]:
        found = {name: vars(self)[name] for name in (*Times._fields, *RowEnds._fields) if name in vars(self)}
        return super().__getstate__() | found

    def named(self, name: str | None) -> Self:
        """Return the same timeline under its config's name, for the titles of its charts."""
        return self.changed(name=name)

    def changed(self, **attributes: Any) -> Self:
        """Return the same timeline with other attributes, such as the `fills` of its charts; its times stay."""
        return as_class(type(self), self, **attributes)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name} cannot be set: a timeline is never changed; simulate again with other costs")

    def __eq__(self, other: object) -> bool:
        """Return whether both ran the same lists under the same transport at the same times, bit for bit."""
        if not isinstance(other, TimelineColumns):
            return NotImplemented
        same_times = equal(tuple(self.times), tuple(other.times))
        return self.transport == other.transport and self.schedule == other.schedule and same_times

    @property
    def times(self) -> Times:
        """All columns of times."""
        return Times(*(getattr(self, name) for name in Times._fields))

    @cached_column
    def _unqueued_times(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return unqueued_times(self.plan, self.row_end)

    @cached_property
    def row_start(self) -> np.ndarray:
        """Start of each row in seconds; both rows of a timed fused slot start with the slot."""
        return self._unqueued_times[0]

    @cached_property
    def transfer_start(self) -> np.ndarray:
        """Start of the transfer that each row needs, seconds; nan if it needs none."""
        return self._unqueued_times[1]

    @cached_property
    def transfer_end(self) -> np.ndarray:
        """End of the transfer that each row needs, seconds; nan if it needs none."""
        return self._unqueued_times[2]

    @cached_column
    def first_start(self) -> np.ndarray:
        """Start of each device's first row, seconds."""
        return self.row_start[self.schedule.offsets[:-1]]

    @cached_column
    def device_busy(self) -> np.ndarray:
        """Seconds in compute actions on each device; a timed OVERLAP_F_B slot counts its own length once."""
        return self.plan.device_seconds

    @cached_property
    def schedule(self) -> ScheduleColumns:
        """The schedule or program that ran."""
        return self.plan.schedule

    @property
    def derived(self) -> DerivedCosts | None:
        """The costs if a model and a cluster gave them, else None."""
        return self.costs if isinstance(self.costs, DerivedCosts) else None

    @property
    def transport(self) -> str:
        """The rule by which transfers queued; docs/glossary.md defines all rules."""
        return self.plan.transport

    @cached_column
    def start(self) -> np.ndarray:
        """Start of each compute action in seconds, device by device in list order; a fused slot has one entry."""
        return self.row_start[self.schedule.first_rows]

    @cached_column
    def end(self) -> np.ndarray:
        """End of each compute action in seconds, like `start`; a fused slot has the end of its later part."""
        return self.row_end[np.append(~self.schedule.joined[1:], True)]

    @cached_column
    def device_start(self) -> np.ndarray:
        """First start on each device, seconds: of a compute action or an UNSHARD that takes time."""
        return _merged(np.minimum, self.first_start, self.unshards.device, self.unshards.start)

    @cached_column
    def device_end(self) -> np.ndarray:
        """Last end on each device, seconds: of a compute action, a gradient reduction or an optimizer step."""
        return self.step_end if len(self.step_end) else self.gradients_ready

    @cached_property
    def unshards(self) -> StreamSpans:
        """The UNSHARDs that take time: device, stage, start and end in seconds."""
        return _spans(self.plan.gathers, self.unshard_start, self.unshard_end)

    @cached_property
    def reductions(self) -> StreamSpans:
        """The gradient reductions that take time: device, stage, start and end in seconds."""
        return _spans(self.plan.reductions, self.reduce_start, self.reduce_end)

    @cached_property
    def offloads(self) -> StreamSpans:
        """The copies of activations to host memory: device, stage, microbatch, start and end in seconds."""
        return self._copies(OFFLOADS)

    @cached_property
    def reloads(self) -> StreamSpans:
        """The copies of activations back from host memory, like `offloads`."""
        return self._copies(RELOADS)

    def _copies(self, direction: int) -> StreamSpans:
        copies = self.plan.copies
        if copies is None:
            return NOTHING
        mine = copies.direction == direction
        columns = (copies.device, copies.stage, self.copy_start, self.copy_end, copies.microbatch)
        return StreamSpans(*(column[mine] for column in columns))

    @cached_property
    def optimizer_steps(self) -> StreamSpans | None:
        """Each device's optimizer step: device, start and end in seconds; None if none was requested."""
        if not len(self.step_end):
            return None
        devices = np.arange(self.schedule.devices, dtype=np.int32)
        return StreamSpans(devices, np.full_like(devices, -1), self.step_start, self.step_end)

    @cached_column
    def gradients_ready(self) -> np.ndarray:
        """Time when each device's last action and gradient reduction have ended, seconds."""
        end = self.row_end[self.schedule.offsets[1:] - 1]
        return _merged(np.maximum, end, self.reductions.device, self.reductions.end)


def _spans(stream: SideStream | None, start: np.ndarray, end: np.ndarray) -> StreamSpans:
    return NOTHING if stream is None else StreamSpans(stream.device, stream.stage, start, end)


def _merged(extreme: np.ufunc, column: np.ndarray, device: np.ndarray, times: np.ndarray) -> np.ndarray:
    """Return the smaller (or larger) of each device's time in `column` and its entries in `times`."""
    if not len(device):
        return column
    merged = column.copy()
    extreme.at(merged, device, times)
    return merged


AnyTimeline = TypeVar("AnyTimeline", bound=TimelineColumns)


def timeline_of_plan(
    kind: type[AnyTimeline], plan: Plan, table: CostTable, costs: CostModel, engine: str = "auto"
) -> AnyTimeline:
    """Run a plan and return its timeline; `table` holds the columns of `costs`."""
    engine, times = run_plan(plan, engine)
    return kind(plan, table, costs, times, engine=engine)
