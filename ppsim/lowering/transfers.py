"""Insert SEND and RECV into the lists of a schedule, in the order in which PyTorch's runtime inserts them."""

import numpy as np

from ppsim.actions import Kind
from ppsim.errors import DeadlockError
from ppsim.lowering.rows import insert_rows, transfer_ends
from ppsim.schedule import Program, Schedule
from ppsim.waiting import waiting_cycle, waiting_message


def insert_transfers(schedule: Schedule) -> Program:
    """The schedule with a SEND behind each producer whose consumer sits on another device, and the matching RECV.

    The walk goes over the devices in order, one slot (or sharding action) a turn: a slot whose inputs have arrived is
    appended with its SENDs, and at the same moment the RECVs to the lists of their receivers. A slot takes its turn at

        turn(slot) = max(turn(slot before) + 1, turn(producer) + [producer's device is not a lower one])

    so that the walk is a longest path, found here in linear time.
    Source of the order: PyTorch, torch/distributed/pipelining/schedules.py, `_add_send_recv`.
    """
    turn = _turns(schedule)
    device, source = schedule.device, schedule.source
    consumer = np.flatnonzero(source >= 0)
    consumer = consumer[device[source[consumer]] != device[consumer]]
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


def _turns(schedule: Schedule) -> np.ndarray:
    """The turn of the walk in which each row is appended; both parts of a fused slot share one."""
    offsets, needs = schedule.offsets.tolist(), schedule.source.tolist()
    joined, device_of = schedule.joined.tolist(), schedule.device.tolist()
    turn = [-1] * len(needs)
    position = offsets[:-1]
    waiter: dict[int, int] = {}
    blocked: dict[int, int] = {}
    ready = list(range(schedule.devices))
    while ready:
        device = ready.pop()
        blocked.pop(device, None)
        row, last = position[device], offsets[device + 1]
        now = turn[row - 1] if row > offsets[device] else -1
        while row < last:
            end = row + 2 if row + 1 < last and joined[row + 1] else row + 1
            missing = next((part for part in range(row, end) if needs[part] >= 0 and turn[needs[part]] < 0), -1)
            if missing >= 0:
                waiter[needs[missing]] = device
                blocked[device] = missing
                break
            now += 1
            for part in range(row, end):
                need = needs[part]
                if need >= 0:
                    now = max(now, turn[need] + (device_of[need] >= device))
            for part in range(row, end):
                turn[part] = now
                if part in waiter:
                    ready.append(waiter.pop(part))
            row = end
        position[device] = row
    if blocked:
        cycle = waiting_cycle(schedule, blocked)
        raise DeadlockError(waiting_message(f"schedule {schedule.name!r} cannot be lowered", cycle), cycle)
    return np.array(turn, np.int64)


def postpone_receives(program: Program) -> Program:
    """The program with each RECV just before the action that needs it, or before an earlier SEND to the same peer.

    The second only on the lower device of a pair: it posts its RECV first, so that two devices that send to each other
    do not wait for each other.
    Source of the order: PyTorch, torch/distributed/pipelining/schedules.py, `_defer_recv_ops`.
    """
    ends = transfer_ends(program)
    rows = np.arange(len(program.kind))
    owner = program.device[ends.row]
    link = owner.astype(np.int64) * program.devices + ends.peer
    flushing = ends.is_send & (owner < ends.peer)
    # The SENDs that flush, by link and row, behind each of which stands an end that is later than any row.
    barrier = np.sort(link[flushing] * (len(rows) + 1) + ends.row[flushing])
    receive = ~ends.is_send
    key = link[receive] * (len(rows) + 1) + ends.row[receive]
    found = np.searchsorted(barrier, key)
    following = np.append(barrier, -1)[found]
    flushed_at = np.where(following // (len(rows) + 1) == link[receive], following % (len(rows) + 1), len(rows))

    consumer = ends.consumer[receive]
    slot = consumer - program.joined[consumer]
    at_consumer = slot < flushed_at
    row = ends.row[receive]
    anchor, behind, rank = rows.copy(), np.ones(len(rows), np.int8), np.zeros(len(rows), np.int64)
    anchor[row] = np.where(at_consumer, slot, flushed_at)
    behind[row] = 0
    rank[row] = np.where(at_consumer, consumer, row)
    order = np.lexsort((rank, behind, anchor))
    moved = Program(
        program.kind[order],
        program.stage[order],
        program.microbatch[order],
        program.offsets,
        joined=program.joined[order],
        **program.traits,
    )
    moved._valid = True
    return moved
