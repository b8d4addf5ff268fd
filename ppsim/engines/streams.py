"""What a step does beside compute and transfers: gather weights, reduce gradients, step the optimizer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ppsim.actions import FIRST_TRANSFER, Kind
from ppsim.costs.table import CostTable
from ppsim.lowering.sharding import last_backwards
from ppsim.schedule import Schedule

OPTIMIZERS = ("sync", "post-validated")


@dataclass(frozen=True)
class Gathers:
    """The UNSHARDs in program order; device d owns `offsets[d]:offsets[d + 1]`.

    They run one after the other on a stream of their device. Each is posted when the compute actions that stand before
    it have ended.

    Attributes
    ----------
    offsets : int64 (devices + 1,)
    stage : int32 (gathers,)
    before : int32 (gathers,)
        Posted after all rows of its device below this one.
    user : int32 (gathers,)
        The row that waits for it: the first of its stage that stands behind it.
    seconds : float64 (gathers,)
    """

    offsets: np.ndarray
    stage: np.ndarray
    before: np.ndarray
    user: np.ndarray
    seconds: np.ndarray

    @property
    def device(self) -> np.ndarray:
        """Device of each gather, int32."""
        return np.repeat(np.arange(len(self.offsets) - 1, dtype=np.int32), np.diff(self.offsets))


@dataclass(frozen=True)
class Reductions:
    """The gradient reductions, device by device in the order in which they run on a stream of their device.

    Attributes
    ----------
    device, stage : int32 (reductions,)
    after : int32 (reductions,)
        The row whose end lets it start.
    seconds : float64 (reductions,)
    """

    device: np.ndarray
    stage: np.ndarray
    after: np.ndarray
    seconds: np.ndarray


@dataclass(frozen=True)
class Spans:
    """When things that are no compute actions ran, one entry each, device by device in time order.

    Attributes
    ----------
    device, stage : int32
        Stage -1 where it is about all stages of the device.
    start, end : float64, seconds
    """

    device: np.ndarray
    stage: np.ndarray
    start: np.ndarray
    end: np.ndarray

    def __len__(self) -> int:
        """Number of entries."""
        return len(self.device)


NOTHING = Spans(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0), np.empty(0))


def find_gathers(program: Schedule, table: CostTable) -> Gathers | None:
    """The UNSHARDs of a program, or None where there are none or the costs give them no time."""
    row = np.flatnonzero(program.kind == Kind.UNSHARD)
    if table.unshard_seconds is None or not len(row):
        return None
    compute_before = _compute_before(program)
    device, stage, before = program.device[row], program.stage[row], compute_before[row]
    return Gathers(
        np.searchsorted(row, program.offsets),
        stage,
        before,
        _first_use(program, device, stage, before),
        table.unshard_seconds[stage],
    )


def find_reductions(program: Schedule, table: CostTable) -> Reductions | None:
    """A reduction for each REDUCE_GRAD, or where none stands in the lists after the last backward of each stage.

    None where the costs give them no time.
    """
    if table.reduce_seconds is None:
        return None
    named = np.flatnonzero(program.kind == Kind.REDUCE_GRAD)
    place = named if len(named) else np.sort(last_backwards(program))
    stage = program.stage[place]
    after = _compute_before(program)[place + 1] - 1
    return Reductions(program.device[place], stage, after, table.reduce_seconds[stage])


def _compute_before(program: Schedule) -> np.ndarray:
    """Number of compute rows before each row, and before the end."""
    return np.concatenate([[0], np.cumsum(program.kind < FIRST_TRANSFER)]).astype(np.int32)


def _first_use(program: Schedule, device: np.ndarray, stage: np.ndarray, before: np.ndarray) -> np.ndarray:
    """The first compute row of a stage on a device from row `before` on, in rows of the compute schedule."""
    compute = np.flatnonzero(program.kind < FIRST_TRANSFER)
    rows, stages = len(compute), program.num_stages
    use = (program.device[compute].astype(np.int64) * stages + program.stage[compute]) * rows + np.arange(rows)
    wanted = (device.astype(np.int64) * stages + stage) * rows + before
    use.sort()
    return (use[np.searchsorted(use, wanted)] % rows).astype(np.int32)


def optimizer_seconds(schedule: Schedule, table: CostTable) -> np.ndarray:
    """Seconds of each device's optimizer step: of all stages that it holds."""
    if table.optimizer_seconds is None:
        return np.zeros(schedule.devices)
    device, stage = schedule.holdings.T
    return np.bincount(device, table.optimizer_seconds[stage], minlength=schedule.devices)


def unshard_spans(gathers: Gathers | None, start: np.ndarray, end: np.ndarray) -> Spans:
    """The gathers with their times."""
    if gathers is None:
        return NOTHING
    return Spans(gathers.device, gathers.stage, start, end)


def run_reductions(reductions: Reductions | None, row_end: np.ndarray) -> Spans:
    """Each starts when its gradients are complete and the reduction before it on its device has ended."""
    if reductions is None:
        return NOTHING
    free: dict[int, float] = {}
    starts, ends = [], []
    for device, ready, seconds in zip(
        reductions.device.tolist(), row_end[reductions.after].tolist(), reductions.seconds.tolist(), strict=True
    ):
        starts.append(max(ready, free.get(device, 0.0)))
        free[device] = starts[-1] + seconds
        ends.append(free[device])
    return Spans(reductions.device, reductions.stage, np.array(starts), np.array(ends))


def run_optimizer(optimizer: str, done: np.ndarray, seconds: np.ndarray) -> Spans:
    """One step a device: under "sync" when the last device is done, under "post-validated" when the device itself is.

    `done` is when the gradients of each device are complete. Source of post-validation: arXiv 2401.10241, section 4.
    """
    start = np.full_like(done, done.max()) if optimizer == "sync" else done
    devices = np.arange(len(done), dtype=np.int32)
    return Spans(devices, np.full(len(done), -1, np.int32), start, start + seconds)
