"""From a schedule to a program, with SEND and RECV where PyTorch's runtime inserts them; its receive buffers."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import ConfigError
from ppsim.base.immutable import EqualColumns
from ppsim.base.rules import argument, choice, declared, described
from ppsim.lowering.posts import transfer_posts
from ppsim.lowering.rows import TransferEnds, row_table, row_tables, transfer_ends
from ppsim.lowering.sharding import DEFAULT_WINDOW, Window, insert_sharding
from ppsim.schedule.columns import ScheduleColumns, select_rows

RECEIVES = ("early", "just-in-time")


def lower_schedule(
    schedule: ScheduleColumns, sharded: bool = False, receive: str = "early", window: Window = DEFAULT_WINDOW
) -> ScheduleColumns:
    """Return the program of a valid schedule, or of a program's compute actions and copies; see `ppsim.lower`.

    Raises DeadlockError if the two parts of a fused slot wait for each other through another device, ConfigError
    for an unknown `receive`, or a window without `sharded`.
    """
    argument("receive", receive, choice(*RECEIVES))
    if window != DEFAULT_WINDOW and not sharded:
        raise ConfigError("max_active_stages and look_ahead place UNSHARD and RESHARD; give sharded=True too")
    lists = schedule.unlowered
    program = insert_transfers(insert_sharding(lists, window) if sharded else lists)
    return postpone_receives(program) if receive == "just-in-time" else program


def insert_transfers(schedule: ScheduleColumns) -> ScheduleColumns:
    """Return the schedule with a SEND after each producer whose consumer is on another device, and the matching RECV.

    `transfer_posts` gives their positions. DeadlockError if the two parts of a fused slot wait for each other.
    """
    posts = transfer_posts(schedule, "async")
    count, rows = len(posts.transfer), len(schedule.kind)
    post_at = posts.before + np.arange(count)
    row_at = np.arange(rows) + np.cumsum(np.bincount(posts.before, minlength=rows + 1))[:rows]
    named = np.where(posts.is_send, schedule.source[posts.transfer], posts.transfer)  # the SENDing or RECVing action

    def merged(of_rows: np.ndarray, of_posts: np.ndarray) -> np.ndarray:
        column = np.empty(count + rows, of_rows.dtype)
        column[row_at], column[post_at] = of_rows, of_posts
        return column

    forward = schedule.kind[posts.transfer] == Kind.F
    sends, receives = np.where(forward, Kind.SEND_F, Kind.SEND_B), np.where(forward, Kind.RECV_F, Kind.RECV_B)
    return ScheduleColumns(
        merged(schedule.kind, np.where(posts.is_send, sends, receives)),
        merged(schedule.stage, schedule.stage[named]),
        merged(schedule.microbatch, schedule.microbatch[named]),
        schedule.offsets + posts.offsets,
        joined=merged(schedule.joined, np.zeros(count, bool)),
        is_valid=True,
        **schedule.traits,
    )


def postpone_receives(program: ScheduleColumns) -> ScheduleColumns:
    """Return the program with each RECV just before the action that needs it, or before an earlier SEND to its peer.

    The second rule holds on the lower device of a pair: it posts its RECV first, so that two devices that send to each
    other do not wait for each other. A RECV takes along the earlier RECVs of its pair, because they arrive first.
    Source of the order: PyTorch, torch/distributed/pipelining/schedules.py, `_defer_recv_ops`. PyTorch takes nothing
    along, so it crosses the receives of some schedules (torch 2.13: ZB-V on 2 devices with 3 microbatches or
    more), which gives wrong gradients.
    """
    ends = transfer_ends(program)
    count = len(program.kind)
    receive = ~ends.is_send
    row, consumer = ends.row[receive], ends.consumer[receive]
    link = program.device[ends.row].astype(np.int64) * program.devices + ends.peer
    slot = consumer - program.joined[consumer]
    flushed_at = _next_flushing_send(program, ends, link)
    at_consumer = slot < flushed_at
    before = np.where(at_consumer, slot, flushed_at)
    # One number per RECV: the row that it comes before, then its order among the RECVs before that row.
    _, target = np.unique(before * (count + 1) + np.where(at_consumer, consumer, row), return_inverse=True)
    taken_along = _smallest_to_come(target, link[receive])
    earliest = np.full(len(row), count)
    np.minimum.at(earliest, target, before)

    anchor, rank = np.arange(count), np.full(count, len(row))
    anchor[row], rank[row] = earliest[taken_along], taken_along
    order = np.lexsort((rank, anchor))
    return select_rows(program, order, program.offsets, is_valid=True)


def _next_flushing_send(program: ScheduleColumns, ends: TransferEnds, link: np.ndarray) -> np.ndarray:
    """Return for each RECV on the lower device of a link the row of the link's next SEND; else the number of rows."""
    late = len(program.kind)
    flushing = ends.is_send & (program.device[ends.row] < ends.peer)
    sends = np.sort(link[flushing] * (late + 1) + ends.row[flushing])
    receives = link[~ends.is_send] * (late + 1) + ends.row[~ends.is_send]
    found_link, found_row = np.divmod(np.append(sends, -1)[np.searchsorted(sends, receives)], late + 1)
    return np.where(found_link == link[~ends.is_send], found_row, late)


def _smallest_to_come(values: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Return for each entry the smallest value of it and the later entries of its group.

    Values are from 0 to below the number of entries.
    """
    order = np.argsort(group, kind="stable")
    _, number = np.unique(group[order], return_inverse=True)
    separated = values[order] + number * (len(values) + 1)
    smallest = np.empty_like(values)
    smallest[order] = np.minimum.accumulate(separated[::-1])[::-1] - number * (len(values) + 1)
    return smallest


POOLS = ("stage", "direction", "device")


@described
@dataclass(frozen=True, eq=False)
class ReceiveBuffers(EqualColumns):
    """Buffers that receives write to, one entry per RECV of a program, in list order.

    Autograd keeps a received activation until the B or W of its stage, and PyTorch the gradient of a stage's output.
    """

    device: np.ndarray = declared("int32 (receives,)")
    stage: np.ndarray = declared("int32 (receives,)")
    microbatch: np.ndarray = declared("int32 (receives,)")
    is_activation: np.ndarray = declared("True for RECV_F, False for the gradients of RECV_B")
    first: np.ndarray = declared("row of the RECV in the program")
    last: np.ndarray = declared("row of the action that frees the buffer: the B or W of its stage")
    slot: np.ndarray = declared("the lowest slot of its pool that is free; lifetimes include both ends")
    slots: np.ndarray = declared("(devices,): slots of all pools of a device")
    peak: np.ndarray = declared("(devices,): most buffers alive at once, if each is allocated when its RECV is posted")
    received: np.ndarray = declared("(devices,): receives of a step: what a device holds if each has its own buffer")


def find_receive_buffers(program: ScheduleColumns, pool: str = "stage") -> ReceiveBuffers:
    """Return the receive buffers of a valid program, as `ppsim.Program.receive_buffers`.

    The pool "stage" is that of pytorch/pytorch pull request 196465.
    """
    argument("pool", pool, choice(*POOLS))
    ends = transfer_ends(program)
    first = ends.row[~ends.is_send]
    device, stage, microbatch = program.device[first], program.stage[first], program.microbatch[first]
    activation = program.kind[first] == Kind.RECV_F
    weight = row_table(program, program.kind == Kind.W)[stage, microbatch]
    last = np.where(weight >= 0, weight, row_tables(program)[1][stage, microbatch])
    direction = 2 * device.astype(np.int64) + activation
    pools = {"stage": direction * program.num_stages + stage, "direction": direction, "device": device}
    slot, slots = _assigned(first, last, pools[pool], device, program.devices)
    _, peak = _assigned(first, last, device, device, program.devices)
    received = np.bincount(device, minlength=program.devices)
    return ReceiveBuffers(device, stage, microbatch, activation, first, last, slot, slots, peak, received)


def _assigned(
    first: np.ndarray, last: np.ndarray, pool: np.ndarray, device: np.ndarray, devices: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the slot of each interval in its pool, and the slots of each device; the fewest, as intervals allow."""
    slot, slots = np.empty(len(first), np.int32), np.zeros(devices, np.int64)
    count: dict[int, int] = {}
    free: dict[int, list[int]] = {}
    busy: dict[int, list[tuple[int, int]]] = {}
    for index, (start, end, of, on) in enumerate(
        zip(first.tolist(), last.tolist(), pool.tolist(), device.tolist(), strict=True)
    ):
        unused, used = free.setdefault(of, []), busy.setdefault(of, [])
        while used and used[0][0] < start:
            heappush(unused, heappop(used)[1])
        if unused:
            slot[index] = heappop(unused)
        else:
            slot[index] = count.get(of, 0)
            count[of] = count.get(of, 0) + 1
            slots[on] += 1
        heappush(used, (end, int(slot[index])))
    return slot, slots
