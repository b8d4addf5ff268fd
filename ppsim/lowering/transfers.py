"""Insert SEND and RECV into the lists of a schedule, in the order in which PyTorch's runtime inserts them."""

import numpy as np

from ppsim.actions import FIRST_TRANSFER, Kind
from ppsim.errors import DeadlockError
from ppsim.schedule import Program, Schedule
from ppsim.waiting import find_waiting_cycle, waiting_message


def insert_transfers(schedule: Schedule) -> Program:
    """The schedule with a SEND behind each producer whose consumer sits on another device, and the matching RECV.

    The walk goes over the devices in order, one slot a turn: a slot whose inputs have arrived is appended with its
    SENDs, and at the same moment the RECVs to the lists of their receivers. An action takes its turn at

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
    transfers = len(consumer)

    kind = np.concatenate(
        [
            schedule.kind,
            np.where(forward, Kind.SEND_F, Kind.SEND_B).astype(np.int8),
            np.where(forward, Kind.RECV_F, Kind.RECV_B).astype(np.int8),
        ]
    )
    list_of = np.concatenate([device, device[producer], device[consumer]])
    written_by = np.concatenate([device, device[producer], device[producer]])
    # Within a turn of one device: its slot's rows, then for each part in order its SEND (and RECV elsewhere).
    place = np.concatenate([np.zeros(len(turn), np.int64), producer + 1, producer + 1])
    order = np.lexsort((place, written_by, turn[np.concatenate([np.arange(len(turn)), producer, producer])], list_of))
    counts = np.bincount(list_of, minlength=schedule.devices)
    program = Program(
        kind[order],
        np.concatenate([schedule.stage, schedule.stage[producer], schedule.stage[consumer]])[order],
        np.concatenate([schedule.microbatch, schedule.microbatch[producer], schedule.microbatch[consumer]])[order],
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        joined=np.concatenate([schedule.joined, np.zeros(2 * transfers, bool)])[order],
        name=schedule.name,
        slices=schedule.slices,
    )
    program._valid = True
    return program


def _turns(schedule: Schedule) -> np.ndarray:
    """The turn of the walk in which each row is appended; both parts of a fused slot share one."""
    offsets, needs = schedule.offsets.tolist(), schedule.source.tolist()
    joined, device_of = schedule.joined.tolist(), schedule.device.tolist()
    turn = [-1] * len(needs)
    position = offsets[:-1]
    waiter: dict[int, int] = {}
    ready = list(range(schedule.devices))
    while ready:
        device = ready.pop()
        row, last = position[device], offsets[device + 1]
        now = turn[row - 1] if row > offsets[device] else -1
        while row < last:
            end = row + 2 if row + 1 < last and joined[row + 1] else row + 1
            missing = next((needs[part] for part in range(row, end) if needs[part] >= 0 and turn[needs[part]] < 0), -1)
            if missing >= 0:
                waiter[missing] = device
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
    if min(turn, default=0) < 0:
        cycle = find_waiting_cycle(schedule) or ["both parts of a fused slot must be able to start together"]
        raise DeadlockError(waiting_message(f"schedule {schedule.name!r} cannot be lowered", cycle), cycle)
    return np.array(turn, np.int64)


def has_transfers(schedule: Schedule) -> bool:
    """Whether any SEND or RECV stands in the lists."""
    return bool(((schedule.kind >= FIRST_TRANSFER) & (schedule.kind <= Kind.RECV_B)).any())
