"""Gathers of weights, reductions of gradients, and the ports that transfers share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ppsim.actions import FIRST_TRANSFER, Kind
from ppsim.base.immutable import DeviceLists, EqualColumns
from ppsim.costs.table import CostTable
from ppsim.lowering.rows import compute_before, crosses_devices
from ppsim.lowering.sharding import last_backwards
from ppsim.schedule.columns import ScheduleColumns

POST_VALIDATED = "post-validated"
OPTIMIZERS = ("sync", POST_VALIDATED)


@dataclass(frozen=True, eq=False)
class Gathers(DeviceLists, EqualColumns):
    """The UNSHARDs in program order; device d owns `offsets[d]:offsets[d + 1]`.

    They run one after the other on a stream of their device. Each is posted when the compute actions before it have
    ended.

    Attributes
    ----------
    offsets : int64 (devices + 1,)
    stage : int32 (gathers,)
    before : int32 (gathers,)
        First row of its device after the post.
    user : int32 (gathers,)
        The row that waits for it: the first row of its stage after the post.
    seconds : float64 (gathers,)
    """

    offsets: np.ndarray
    stage: np.ndarray
    before: np.ndarray
    user: np.ndarray
    seconds: np.ndarray


@dataclass(frozen=True, eq=False)
class Reductions(EqualColumns):
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


def find_gathers(program: ScheduleColumns, table: CostTable) -> Gathers | None:
    """Return the UNSHARDs of a program; None if there are none or they take no time."""
    seconds = table.unshard_seconds
    if seconds is None or not program.is_program:
        return None
    row = np.flatnonzero(program.kind == Kind.UNSHARD)
    if not len(row):
        return None
    device, stage, before = program.device[row], program.stage[row], compute_before(program)[row]
    return Gathers(
        np.searchsorted(row, program.offsets),
        stage,
        before,
        _first_use(program, device, stage, before),
        seconds[stage],
    )


def find_reductions(program: ScheduleColumns, table: CostTable) -> Reductions | None:
    """Return a reduction for each REDUCE_GRAD, or without any, one after the last backward of each stage.

    Lists of several iterations have one per iteration, after its last backward. None if reductions take no time.
    """
    seconds = table.reduce_seconds
    if seconds is None:
        return None
    row = np.flatnonzero(program.kind == Kind.REDUCE_GRAD)
    if program.iterations > 1 or not len(row):
        row = np.sort(last_backwards(program, of_each_iteration=True))
    stage = program.stage[row]
    after = compute_before(program)[row + 1] - 1
    return Reductions(program.device[row], stage, after, seconds[stage])


def _first_use(program: ScheduleColumns, device: np.ndarray, stage: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Return the first row of each stage on its device from row `before` on, in rows of the compute schedule."""
    compute = np.flatnonzero(program.kind < FIRST_TRANSFER)
    rows, stages = len(compute), program.num_stages
    use = (program.device[compute].astype(np.int64) * stages + program.stage[compute]) * rows + np.arange(rows)
    wanted = (device.astype(np.int64) * stages + stage) * rows + before
    use.sort()
    return (use[np.searchsorted(use, wanted)] % rows).astype(np.int32)


@dataclass(frozen=True, eq=False)
class Ports(EqualColumns):
    """The ports that each transfer goes through.

    Attributes
    ----------
    of_transfer : int32 (rows, ports on a path)
        One entry per consuming row; -1 if the path has fewer ports.
    capacity : int64 (ports,)
        Transfers that a port carries at once, each at its full rate.
    """

    of_transfer: np.ndarray
    capacity: np.ndarray


def make_ports(schedule: ScheduleColumns, table: CostTable) -> Ports | None:
    """Return the ports of a schedule's transfers; None if the costs have none."""
    if table.link_ports is None or table.port_capacity is None or not crosses_devices(schedule).any():
        return None
    remote = crosses_devices(schedule)
    of_transfer = np.full((len(remote), table.port_columns.shape[2]), -1, np.int32)
    consumer = np.flatnonzero(remote)
    of_transfer[consumer] = table.port_columns[schedule.device[schedule.source[consumer]], schedule.device[consumer]]
    return Ports(of_transfer, np.asarray(table.port_capacity).astype(np.int64))
