"""Posts: when devices post SENDs and RECVs, and which FIFO each joins."""

from dataclasses import dataclass, replace

import numpy as np

from ppsim.actions import FIRST_TRANSFER
from ppsim.base.arrays import DeviceLists
from ppsim.base.compiling import call_fastest, kernel
from ppsim.base.errors import DeadlockError
from ppsim.lowering.rows import consumers, crosses_devices, has_transfers, transfer_ends
from ppsim.schedule.barriers import awaited_rows, with_barriers
from ppsim.schedule.columns import ScheduleColumns
from ppsim.schedule.recurrence import run_lists
from ppsim.schedule.waiting import blocked_rows, waiting_cycle, waiting_message

TRANSPORTS = ("async", "directed", "pair", "rank", "blocking")


@dataclass(frozen=True)
class Posts(DeviceLists):
    """SENDs and RECVs in program order; device d owns posts `offsets[d]:offsets[d + 1]`.

    Attributes
    ----------
    offsets : int64 (devices + 1,)
    transfer : int32 (posts,)
        The transfer posted, named by the row that consumes it.
    is_send : bool (posts,)
    before : int32 (posts,)
        The post waits for all rows of its device below this one.
    queue : int32 (posts,)
        The FIFO that the post joins on its own device; equal numbers mean one FIFO.
    """

    offsets: np.ndarray
    transfer: np.ndarray
    is_send: np.ndarray
    before: np.ndarray
    queue: np.ndarray


def queued_posts(program: ScheduleColumns, transport: str) -> Posts:
    """Return the posts of valid lists under a transport other than `async`; lower lists without transfers.

    `before` and `transfer` are rows of the compute schedule. Raises the errors of `transfer_posts`.
    """
    if not program.is_program:
        return transfer_posts(program, transport)
    compute_before = np.concatenate([[0], np.cumsum(program.kind < FIRST_TRANSFER)]).astype(np.int32)
    if not has_transfers(program):
        posts = transfer_posts(program, transport)
        return replace(posts, transfer=compute_before[posts.transfer], before=compute_before[posts.before])
    ends = transfer_ends(program)
    owner = program.device[ends.row].astype(np.int64)
    return Posts(
        np.searchsorted(ends.row, program.offsets),
        compute_before[ends.consumer],
        ends.is_send,
        compute_before[ends.row],
        _queues(owner, ends.peer, ends.is_send, program.devices, transport),
    )


def _queues(owner: np.ndarray, peer: np.ndarray, sends: np.ndarray, devices: int, transport: str) -> np.ndarray:
    """Return the number of the FIFO of each post, int32: per device, peer and end, unless the transport shares them."""
    by_peer, by_end = {"pair": (2, 0), "rank": (0, 0)}.get(transport, (2, 1))
    return (owner * devices * 2 + peer * by_peer + sends * by_end).astype(np.int32)


def transfer_posts(schedule: ScheduleColumns, transport: str) -> Posts:
    """Return the posts of lists without transfers, where PyTorch's runtime puts them; rows are those of the lists.

    When a slot takes its turn (`rows_in_turn`), its SENDs are posted after it, and at the same time the RECVs of their
    receivers. DeadlockError if the two parts of a fused slot wait for each other through another device.
    """
    remote = crosses_devices(schedule)
    taker = consumers(schedule.source, remote)
    counts = np.bincount(schedule.device[remote], minlength=schedule.devices)
    counts += np.bincount(schedule.device[taker >= 0], minlength=schedule.devices)
    offsets = np.append(0, np.cumsum(counts))
    transfer, is_send, before, peer = (np.empty(offsets[-1], dtype) for dtype in (np.int32, bool, np.int32, np.int32))
    if len(transfer):
        call_fastest(
            post_in_turn, len(schedule.kind), rows_in_turn(schedule), schedule.device, schedule.joined, taker,
            offsets[:-1].copy(), schedule.offsets[:-1].copy(), transfer, is_send, before, peer,
        )  # fmt: skip
    owner = np.repeat(np.arange(schedule.devices), counts)
    return Posts(offsets, transfer, is_send, before, _queues(owner, peer, is_send, schedule.devices, transport))


@kernel
def post_in_turn(order, device, joined, consumer, following, position, transfer, is_send, before, peer):
    """Fill the columns of posts while the rows take their turns in `order`.

    `consumer` is the row of another device that needs the row, or -1. `following` and `position` are the next post and
    the next row of each device.
    """
    for row in order:
        one = device[row]
        position[one] = row + 1
        if row + 1 < len(joined) and joined[row + 1]:
            continue
        for producer in range(row - 1 if joined[row] else row, row + 1):
            taker = consumer[producer]
            if taker >= 0:
                other = device[taker]
                for owner, far, sends in ((one, other, True), (other, one, False)):
                    post = following[owner]
                    transfer[post], is_send[post], before[post], peer[post] = taker, sends, position[owner], far
                    following[owner] = post + 1


def rows_in_turn(schedule: ScheduleColumns) -> np.ndarray:
    """Return the rows of a valid schedule in the order in which PyTorch's runtime appends them, int32.

    The runtime goes over the devices in order, one slot (or sharding action) per turn, and appends a slot whose inputs
    have arrived. A slot takes its turn at

        turn(slot) = max(turn(slot before) + 1, turn(producer) + [producer's device is not a lower one])

    Source of the order: PyTorch, torch/distributed/pipelining/schedules.py, `_add_send_recv`. DeadlockError if the two
    parts of a fused slot wait for each other through another device.
    """
    turns = _turns(schedule)
    order, first = np.empty(len(turns), np.int32), np.zeros(int(turns.max(initial=0)) + 2, np.int64)
    call_fastest(place_by_count, len(turns), turns, first, order)
    return order


@kernel
def place_by_count(turns, first, order):
    """Fill `order` with the rows by turn, rows of one turn in list order; `first` holds a zero per turn, plus one."""
    for turn in turns:
        first[turn + 1] += 1
    for turn in range(1, len(first)):
        first[turn] += first[turn - 1]
    for row in range(len(turns)):
        turn = turns[row]
        order[first[turn]] = row
        first[turn] += 1


def _turns(schedule: ScheduleColumns) -> np.ndarray:
    """Return the turn of each row as a longest path; both parts of a fused slot share one.

    A slot lasts one turn. What a lower device makes is available within the turn, one earlier.
    """
    device, source = schedule.device, schedule.source
    rows = len(source)
    offsets, needed = with_barriers(schedule, source)
    seconds, wait = np.zeros((2, len(needed)))
    seconds[:rows] = 1.0
    wait[:rows][device.take(source) < device] = -1.0
    fused = np.append(schedule.joined, np.zeros(len(needed) - rows, bool))
    position, end = run_lists(offsets, needed, seconds, wait, fused)
    needed, position = needed[:rows], position[: schedule.devices]
    blocked = blocked_rows(schedule, position, (needed >= 0) & (end.take(needed) < 0), schedule.joined)
    if blocked:
        cycle = waiting_cycle(schedule, blocked, awaited_rows(schedule, source, position))
        raise DeadlockError(waiting_message(f"schedule {schedule.name!r} cannot be lowered", cycle), cycle)
    return end[:rows].astype(np.int64) - 1


def unqueued_posts(compute: ScheduleColumns, remote: np.ndarray) -> Posts:
    """Return each SEND directly after its producer and each RECV at its device's beginning, each in its own queue.

    `remote` is `crosses_devices(compute)`.
    """
    consumer = np.flatnonzero(remote).astype(np.int32)
    taker = consumers(compute.source, remote)
    producer = np.flatnonzero(taker >= 0).astype(np.int32)
    owner = [compute.device[rows] for rows in (consumer, producer)]
    counts = [np.bincount(of, minlength=compute.devices) for of in owner]
    offsets = np.append(0, np.cumsum(counts[0] + counts[1]))
    # The RECVs of a device come before its SENDs: skip the SENDs of lower devices, and the RECVs of this one and those.
    place = [np.arange(len(of)) for of in owner]
    place[0] += (np.cumsum(counts[1]) - counts[1])[owner[0]]
    place[1] += np.cumsum(counts[0])[owner[1]]
    transfer, is_send, before = columns = [np.empty(2 * len(consumer), dtype) for dtype in (np.int32, bool, np.int32)]
    received, sent = (consumer, False, compute.offsets[owner[0]]), (taker[producer], True, producer + 1)
    for column, of_receive, of_send in zip(columns, received, sent, strict=True):
        column[place[0]], column[place[1]] = of_receive, of_send
    return Posts(offsets, transfer, is_send, before, np.arange(2 * len(consumer), dtype=np.int32))
