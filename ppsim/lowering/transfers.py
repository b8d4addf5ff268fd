"""Insert SEND and RECV into the lists of a schedule, in the order in which PyTorch's runtime inserts them."""

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import DeadlockError
from ppsim.lowering.rows import TransferEnds, crosses_devices, insert_rows, transfer_ends
from ppsim.schedule.columns import ScheduleColumns
from ppsim.schedule.recurrence import run_lists
from ppsim.schedule.waiting import standing, waiting_cycle, waiting_message


def insert_transfers(schedule: ScheduleColumns) -> ScheduleColumns:
    """The schedule with a SEND behind each producer whose consumer sits on another device, and the matching RECV.

    The walk goes over the devices in order, one slot (or sharding action) a turn: a slot whose inputs have arrived is
    appended with its SENDs, and at the same moment the RECVs to the lists of their receivers. A slot takes its turn at

        turn(slot) = max(turn(slot before) + 1, turn(producer) + [producer's device is not a lower one])

    so that the walk is a longest path, found here in linear time.
    Source of the order: PyTorch, torch/distributed/pipelining/schedules.py, `_add_send_recv`.
    """
    turn = _turns(schedule)
    device, source = schedule.device, schedule.source
    consumer = np.flatnonzero(crosses_devices(schedule))
    producer = source[consumer]
    forward = schedule.kind[producer] == Kind.F
    written_by = np.concatenate([device, device[producer], device[producer]])
    # Within a turn of one device: its slot's rows, then for each part in order its SEND (and RECV elsewhere).
    place = np.concatenate([np.zeros(len(turn), np.int64), producer + 1, producer + 1])
    return insert_rows(
        schedule,
        np.concatenate([device[producer], device[consumer]]),
        np.concatenate([np.where(forward, Kind.SEND_F, Kind.SEND_B), np.where(forward, Kind.RECV_F, Kind.RECV_B)]),
        np.concatenate([schedule.stage[producer], schedule.stage[consumer]]),
        np.concatenate([schedule.microbatch[producer], schedule.microbatch[consumer]]),
        (place, written_by, np.concatenate([turn, turn[producer], turn[producer]])),
    )


def _turns(schedule: ScheduleColumns) -> np.ndarray:
    """The turn of the walk in which each row is appended; both parts of a fused slot share one.

    A turn is the start of a slot that lasts one turn; what a lower device makes is there within the turn, one earlier.
    """
    device, source = schedule.device, schedule.source
    wait = np.where(device.take(source) < device, -1.0, 0.0)
    position, end = run_lists(schedule.offsets, source, np.ones(len(source)), wait, schedule.joined)
    blocked = standing(schedule, position, (source >= 0) & (end.take(source) < 0), schedule.joined)
    if blocked:
        cycle = waiting_cycle(schedule, blocked, source)
        raise DeadlockError(waiting_message(f"schedule {schedule.name!r} cannot be lowered", cycle), cycle)
    return end.astype(np.int64) - 1


def postpone_receives(program: ScheduleColumns) -> ScheduleColumns:
    """The program with each RECV just before the action that needs it, or before an earlier SEND to the same peer.

    The second only on the lower device of a pair: it posts its RECV first, so that two devices that send to each other
    do not wait for each other. A RECV takes along those that stood before it on the same pair: they arrive first.
    Source of the order: PyTorch, torch/distributed/pipelining/schedules.py, `_defer_recv_ops`. That one takes nothing
    along, so that it crosses the receives of some schedules (torch 2.13: ZB-V on 2 devices with 3 microbatches or
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
    # What a RECV stands before, then its turn among those that stand there; both as one number each.
    _, target = np.unique(before * (count + 1) + np.where(at_consumer, consumer, row), return_inverse=True)
    taken_along = _smallest_to_come(target, link[receive])
    earliest = np.full(len(row), count)
    np.minimum.at(earliest, target, before)

    anchor, rank = np.arange(count), np.full(count, len(row))
    anchor[row], rank[row] = earliest[taken_along], taken_along
    order = np.lexsort((rank, anchor))
    return ScheduleColumns(
        program.kind[order],
        program.stage[order],
        program.microbatch[order],
        program.offsets,
        joined=program.joined[order],
        is_valid=True,
        **program.traits,
    )


def _next_flushing_send(program: ScheduleColumns, ends: TransferEnds, link: np.ndarray) -> np.ndarray:
    """For each RECV the row of the next SEND of its link if its device is the lower one of the two, else a late row."""
    late = len(program.kind)
    flushing = ends.is_send & (program.device[ends.row] < ends.peer)
    sends = np.sort(link[flushing] * (late + 1) + ends.row[flushing])
    receives = link[~ends.is_send] * (late + 1) + ends.row[~ends.is_send]
    found_link, found_row = np.divmod(np.append(sends, -1)[np.searchsorted(sends, receives)], late + 1)
    return np.where(found_link == link[~ends.is_send], found_row, late)


def _smallest_to_come(values: np.ndarray, group: np.ndarray) -> np.ndarray:
    """For each entry the smallest value from it on in its group; values lie from 0 to below their number."""
    order = np.argsort(group, kind="stable")
    _, number = np.unique(group[order], return_inverse=True)
    apart = values[order] + number * (len(values) + 1)
    smallest = np.empty_like(values)
    smallest[order] = np.minimum.accumulate(apart[::-1])[::-1] - number * (len(values) + 1)
    return smallest
