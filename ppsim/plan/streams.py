"""Streams that overlap the rows of a plan: weight gathers, reductions, copies of activations; ports of transfers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from ppsim.actions import FIRST_TRANSFER, Kind, is_backward, is_copy
from ppsim.base.immutable import DeviceLists, EqualColumns
from ppsim.costs.table import CostTable
from ppsim.lowering.rows import compute_before, crosses_devices, row_table, row_tables
from ppsim.lowering.sharding import last_backwards
from ppsim.plan.holding import moved_bytes
from ppsim.plan.lengths import HOST_MEMORY, copy_seconds
from ppsim.schedule.columns import ScheduleColumns

POST_VALIDATED = "post-validated"
OPTIMIZERS = ("sync", POST_VALIDATED)


@dataclass(frozen=True, eq=False)
class SideStream(DeviceLists, EqualColumns):
    """Items of work that overlap the rows, in program order.

    A device posts an item when the compute actions before it have ended. Items of one direction run one after the other
    on a device; gathers and reductions have one direction each, copies two. The first row of a gather's stage after the
    post waits for the gather; no row waits for a reduction.
    """

    offsets: np.ndarray  # int64 (devices + 1,): device d owns items `offsets[d]:offsets[d + 1]`
    # all other columns: one entry per item
    stage: np.ndarray  # int32
    direction: np.ndarray  # int8
    before: np.ndarray  # int32: first row of its device after the post
    after: np.ndarray  # int32: the item whose end it waits for too, or -1
    user: np.ndarray  # int32: the row that waits for it, or -1
    line: np.ndarray  # int32: number of the line (a queue) before its switch, or -1 without a switch
    seconds: np.ndarray  # float64

    @property
    def previous(self) -> np.ndarray:
        """The item before each one of its device and direction, or -1; int64."""
        order = np.lexsort((self.direction, self.device))  # stable, so in program order
        same = (np.diff(self.direction[order]) == 0) & (np.diff(self.device[order]) == 0)
        previous = np.full(len(order), -1, np.int64)
        previous[order[1:][same]] = order[:-1][same]
        return previous

    @property
    def lines(self) -> int:
        """Number of lines before switches."""
        return int(self.line.max(initial=-1)) + 1


def find_gathers(program: ScheduleColumns, table: CostTable) -> SideStream | None:
    """Return the UNSHARDs of a program; None if there are none or they take no time."""
    seconds = table.unshard_seconds
    if seconds is None or not program.is_program:
        return None
    row = np.flatnonzero(program.kind == Kind.UNSHARD)
    if not len(row):
        return None
    before = compute_before(program)[row]
    return _of_stages(program, row, before, _first_use(program, row, before), seconds)


def find_reductions(program: ScheduleColumns, table: CostTable) -> SideStream | None:
    """Return a reduction for each REDUCE_GRAD; if there are none, one after the last backward of each stage.

    Lists of several iterations have one per stage and iteration. None if reductions take no time.
    """
    seconds = table.reduce_seconds
    if seconds is None:
        return None
    row = np.flatnonzero(program.kind == Kind.REDUCE_GRAD)
    if program.iterations > 1 or not len(row):
        row = np.sort(last_backwards(program, of_each_iteration=True))
    return _of_stages(program, row, compute_before(program)[row + 1], np.full(len(row), -1, np.int32), seconds)


def _of_stages(
    program: ScheduleColumns, row: np.ndarray, before: np.ndarray, user: np.ndarray, seconds: np.ndarray
) -> SideStream:
    """Return the stream of one direction for the stages of some rows of a program; `seconds` has an entry per stage."""
    offsets, stage, none = np.searchsorted(row, program.offsets), program.stage[row], np.full(len(row), -1, np.int32)
    return SideStream(offsets, stage, np.zeros(len(row), np.int8), before, none, user, none, seconds[stage])


def _first_use(program: ScheduleColumns, row: np.ndarray, before: np.ndarray) -> np.ndarray:
    """Return the first use of each row's stage on its device from `before` on, in rows of the compute schedule."""
    device, stage, compute = program.device[row], program.stage[row], np.flatnonzero(program.kind < FIRST_TRANSFER)
    rows, stages = len(compute), program.num_stages
    use = (program.device[compute].astype(np.int64) * stages + program.stage[compute]) * rows + np.arange(rows)
    wanted = (device.astype(np.int64) * stages + stage) * rows + before
    use.sort()
    return (use[np.searchsorted(use, wanted)] % rows).astype(np.int32)


@dataclass(frozen=True, eq=False)
class Ports(EqualColumns):
    """The ports that each transfer goes through."""

    # int32 (rows, ports on a path): one entry per consuming row; -1 if the path has fewer ports
    of_transfer: np.ndarray
    capacity: np.ndarray  # int64 (ports,): transfers that a port carries at once, each at its full rate


def make_ports(schedule: ScheduleColumns, table: CostTable) -> Ports | None:
    """Return the ports of a schedule's transfers; None if the costs have none."""
    if table.link_ports is None or table.port_capacity is None:
        return None
    consumer = np.flatnonzero(crosses_devices(schedule))
    if not len(consumer):
        return None
    ports = np.asarray(table.link_ports)
    of_transfer = np.full((len(schedule.kind), ports.shape[2]), -1, np.int32)
    of_transfer[consumer] = ports[schedule.device[schedule.source[consumer]], schedule.device[consumer]]
    return Ports(of_transfer, np.asarray(table.port_capacity).astype(np.int64))


OFFLOADS, RELOADS = 0, 1  # directions of copies


@dataclass(frozen=True, eq=False)
class Copies(SideStream):
    """The OFFLOADs and RELOADs, and the moves of evicted activations; a device has one copy engine per direction.

    A RELOAD also waits for the end of its OFFLOAD, unless an earlier RELOAD does. A RELOAD from another device waits
    for every OFFLOAD posted before it, because it takes their memory. The first R or backward of an activation waits
    for its RELOAD. An F on a device that evicts waits until the OFFLOADs before it have freed as much memory as if
    moves took no time. If neighbours share a switch, a copy that could start joins the switch's line of its direction,
    which lets one copy through at a time, first come, first served; at equal times the lower device, then list order.
    """

    microbatch: np.ndarray  # int32
    origin: np.ndarray  # int32: the OFFLOAD whose activation a RELOAD brings back; else -1
    host: np.ndarray  # int32: the device that holds the activation between the two copies, or HOST_MEMORY


def find_copies(program: ScheduleColumns, table: CostTable) -> Copies | None:
    """Return the OFFLOADs and RELOADs of a valid program and the moves of evicted activations, or None."""
    if not program.is_program and not len(program.evicted):
        return None
    compute = program.compute
    found = np.concatenate([_copies_in_lists(program), _moves_of_evicted(compute)], axis=1)
    if not found.size:
        return None
    order = np.lexsort((found[1], found[0]))  # stable: copies before the same row stay in program order
    device, before, direction, stage, microbatch, host = found[:, order]
    reloads = direction == RELOADS
    cell = stage.astype(np.int64) * compute.microbatches + microbatch
    offload_of = np.full(compute.num_stages * compute.microbatches, -1, np.int32)
    offload_of[cell[~reloads]] = np.flatnonzero(~reloads)
    origin = np.where(reloads, offload_of[cell], -1)
    last_offload = np.maximum.accumulate(np.where(reloads, -1, np.arange(len(direction))))
    user = np.where(reloads, first_users(compute)[stage, microbatch], -1)
    awaited, first = np.unique(np.where(reloads & (host != HOST_MEMORY), last_offload, origin), return_index=True)
    after = np.full(len(direction), -1, np.int32)  # of copies that wait for the same OFFLOAD, the first one
    after[first] = awaited
    copies = Copies(
        np.searchsorted(device, np.arange(compute.devices + 1)),
        stage,
        direction.astype(np.int8),
        before,
        after,
        _with_waiting_forwards(compute, user, device, before, reloads) if len(compute.evicted) else user,
        np.empty(0, np.int32),
        np.empty(0),
        microbatch,
        origin,
        host,
    )
    return with_costs(copies, compute, table)


def _with_waiting_forwards(
    compute: ScheduleColumns, user: np.ndarray, device: np.ndarray, before: np.ndarray, reloads: np.ndarray
) -> np.ndarray:
    """Return `user` with the first F that waits for the end of each move out.

    The number of activations on a device follows list order, as if moves took no time; it includes a RELOAD in
    progress. An F may start if this number plus the moves out in progress is at most the device's largest number.
    """
    rows = len(compute.kind)
    moves_in = np.bincount(before[reloads], minlength=rows + 1)[:rows]
    waiting = np.cumsum(moves_in - np.bincount(user[reloads] + 1, minlength=rows + 1)[:rows])
    moves_out = np.bincount(before[~reloads], minlength=rows + 1)[:rows]
    forward, backward = compute.kind == Kind.F, is_backward(compute.kind)
    freed = np.append(0, backward[:-1].astype(np.int64))
    level = np.cumsum(forward + moves_in - moves_out - freed)  # 0 again after the last row of each device
    free = np.maximum.reduceat(level, compute.offsets[:-1])[compute.device] - level + waiting
    first = np.searchsorted(device, compute.device)
    outgoing = np.flatnonzero(~reloads)
    posted = np.cumsum(moves_out) - np.searchsorted(outgoing, first)  # moves out of the device before each row
    last = posted - 1 - free
    needing = np.flatnonzero(forward & (last >= 0))
    copy, index = np.unique(outgoing[np.searchsorted(outgoing, first[needing]) + last[needing]], return_index=True)
    user = user.copy()
    user[copy] = needing[index]
    return user


def _copies_in_lists(program: ScheduleColumns) -> np.ndarray:
    """Return device, next row, direction, stage, microbatch and host of the OFFLOADs and RELOADs, int32 (6, copies)."""
    row = np.flatnonzero(is_copy(program.kind))
    before = np.cumsum(program.kind < FIRST_TRANSFER)[row]
    direction, host = program.kind[row] == Kind.RELOAD, np.full(len(row), HOST_MEMORY)
    return np.stack([program.device[row], before, direction, program.stage[row], program.microbatch[row], host]).astype(
        np.int32
    )


def _moves_of_evicted(compute: ScheduleColumns) -> np.ndarray:
    """Return the columns of `_copies_in_lists` for evicted activations.

    An activation moves out after its F, and back during the action before its R or backward.
    """
    stage, microbatch, host = compute.evicted.T
    forward, user = row_tables(compute)[0][stage, microbatch], first_users(compute)[stage, microbatch]
    before = np.concatenate([forward + 1, np.maximum(user - 1, forward + 1)])
    direction = np.repeat([OFFLOADS, RELOADS], len(stage))
    device, stage, microbatch, host = np.tile([compute.device[forward], stage, microbatch, host], 2)
    return np.stack([device, before, direction, stage, microbatch, host]).astype(np.int32)


def first_users(compute: ScheduleColumns) -> np.ndarray:
    """Return the row of the R or, without one, of the backward, by [stage, microbatch]."""
    recompute = row_table(compute, compute.kind == Kind.R)
    return np.where(recompute >= 0, recompute, row_tables(compute)[1]).astype(np.int32)


def with_costs(copies: Copies, compute: ScheduleColumns, table: CostTable) -> Copies:
    """Return the copies with their seconds and their switches under the costs of a table."""
    neighbours = table.offload_switch or 1
    switched = (copies.host == HOST_MEMORY) & (neighbours > 1)
    line = np.where(switched, 2 * (copies.device // neighbours) + copies.direction, -1).astype(np.int32)
    ends = copies.device, copies.host
    sender, receiver = np.where(copies.direction == OFFLOADS, ends, ends[::-1])
    moved = moved_bytes(compute, table, copies.stage, copies.microbatch, copies.host == HOST_MEMORY)
    return replace(copies, line=line, seconds=copy_seconds(table, sender, receiver, moved))
