"""Posts: when devices post SENDs and RECVs, and which FIFO each joins."""

from dataclasses import dataclass, replace

import numpy as np

from ppsim.actions import Kind
from ppsim.base.compiling import call_fastest, kernel
from ppsim.base.errors import DeadlockError
from ppsim.base.immutable import DeviceLists, offsets_of
from ppsim.lowering.rows import compute_before, consumers, crosses_devices, has_transfers, transfer_ends
from ppsim.schedule.columns import ScheduleColumns
from ppsim.schedule.recurrence import Lengths, run_with_barriers, waiting_message

DIRECTIONS = "directions"  # the one transport whose FIFOs depend on what a transfer carries
TRANSPORTS = ("async", "directed", DIRECTIONS, "pair", "rank", "blocking")


@dataclass(frozen=True)
class Posts(DeviceLists):
    """SENDs and RECVs in program order; device d owns posts `offsets[d]:offsets[d + 1]`."""

    offsets: np.ndarray  # int64 (devices + 1,)
    transfer: np.ndarray  # int32 (posts,): the transfer posted, named by the row that consumes it
    is_send: np.ndarray  # bool (posts,)
    before: np.ndarray  # int32 (posts,): the post waits for all rows of its device below this one
    queue: np.ndarray  # int32 (posts,): the FIFO that the post joins on its own device; equal numbers mean one FIFO

    def between_rows(self, offsets: np.ndarray) -> np.ndarray:
        """Return for each row the number of posts between the row before it and it; `offsets` are those of the rows."""
        rows = int(offsets[-1])
        made = self.before < offsets[self.device + 1]
        return np.bincount(self.before[made], minlength=rows)

    def following(self) -> tuple[np.ndarray, np.ndarray]:
        """Return pairs of transfers: the second waits in a FIFO for the end of the first."""
        by_queue = np.argsort(self.queue, kind="stable")
        queue, transfer = self.queue[by_queue], self.transfer[by_queue]
        same = queue[1:] == queue[:-1]
        return transfer[:-1][same], transfer[1:][same]


def queued_posts(program: ScheduleColumns, transport: str) -> Posts:
    """Return the posts of valid lists under a transport other than `async`; lower lists without transfers.

    `before` and `transfer` are rows of the compute schedule. Raises the errors of `transfer_posts`.
    """
    before = compute_before(program)
    if not has_transfers(program):
        posts = transfer_posts(program, transport)
        return replace(posts, transfer=before[posts.transfer], before=before[posts.before])
    ends = transfer_ends(program)
    by_peer, by_end = _queue_steps(transport)
    queue = program.device[ends.row] * program.devices * 2 + ends.peer * by_peer + ends.is_send * by_end
    if transport == DIRECTIONS:
        queue += program.kind[ends.consumer] != Kind.F
    return Posts(
        np.searchsorted(ends.row, program.offsets),
        before[ends.consumer],
        ends.is_send,
        before[ends.row],
        queue.astype(np.int32),
    )


def _queue_steps(transport: str) -> tuple[int, int]:
    """Return the factors of the peer and of SEND or RECV in the number of a post's FIFO; 0 if all share one FIFO."""
    return {"pair": (2, 0), "rank": (0, 0), DIRECTIONS: (0, 0)}.get(transport, (2, 1))


def transfer_posts(schedule: ScheduleColumns, transport: str) -> Posts:
    """Return the posts of lists without transfers, where PyTorch's runtime puts them; rows are those of the lists.

    When a slot takes its turn (`_turns`), its SENDs are posted after it, and at the same time the RECVs of their
    receivers. DeadlockError if the two parts of a fused slot wait for each other through another device.
    """
    remote = crosses_devices(schedule)
    consumer, count = consumers(schedule), np.count_nonzero(remote)
    received, sent = (offsets_of(column)[schedule.offsets] for column in (remote, consumer >= 0))
    offsets = received + sent
    transfer, is_send, before, queue = (np.empty(2 * count, dtype) for dtype in (np.int32, bool, np.int32, np.int32))
    if count:
        turns = _turns(schedule)
        call_fastest(
            post_in_turn, len(turns), np.argsort(turns, kind="stable"), turns, schedule.offsets, schedule.device,
            schedule.joined, consumer, received, np.empty(count, np.int32), *_queue_steps(transport), transfer, is_send,
            before, queue,
        )  # fmt: skip
        if transport == DIRECTIONS:
            queue += schedule.kind[transfer] != Kind.F
    return Posts(offsets, transfer, is_send, before, queue)


@kernel
def post_in_turn(
    order, turns, offsets, device, joined, consumer, received, arriving, by_peer, by_end, transfer, is_send, before,
    queue,
):  # fmt: skip
    """Fill the columns of posts, device by device: merge its own rows and the rows that it receives from, by turn.

    `order` has all rows by turn. `consumer` is the row of another device that needs each row, or -1. `arriving` is
    scratch for the rows that each device receives from; `received` is the index of the first one, then of the last + 1.
    Sorted columns in its place would make a whole call of `simulate` 1.7 times as long at a million actions.
    """
    for row in order:
        if consumer[row] >= 0:
            receiver = device[consumer[row]]
            arriving[received[receiver]] = row
            received[receiver] += 1
    devices = len(offsets) - 1
    post = arrival = 0
    for owner in range(devices):
        row, last = offsets[owner], offsets[owner + 1]
        while row < last or arrival < received[owner]:
            if arrival < received[owner]:
                sender = arriving[arrival]
                if row == last or turns[sender] < turns[row] or (turns[sender] == turns[row] and sender < row):
                    transfer[post], is_send[post], before[post] = consumer[sender], False, row
                    queue[post] = owner * devices * 2 + device[sender] * by_peer
                    post += 1
                    arrival += 1
                    continue
            row += 1
            if row < last and joined[row]:
                continue
            for producer in range(row - 2 if joined[row - 1] else row - 1, row):
                taker = consumer[producer]
                if taker >= 0:
                    transfer[post], is_send[post], before[post] = taker, True, row
                    queue[post] = owner * devices * 2 + device[taker] * by_peer + by_end
                    post += 1


def _turns(schedule: ScheduleColumns) -> np.ndarray:
    """Return the turn of each row of a valid schedule, int32; both parts of a fused slot share one.

    PyTorch's runtime goes over the devices in order, one slot (or sharding action) per turn, and appends a slot whose
    inputs have arrived. A slot takes its turn, 1 or later, at

        turn(slot) = max(turn(slot before) + 1, turn(producer) + [producer's device is not a lower one])

    So a turn is a longest path: a slot lasts one turn, and the results of a lower device arrive one turn earlier.
    Source of the order: PyTorch, torch/distributed/pipelining/schedules.py, `_add_send_recv`. DeadlockError if the two
    parts of a fused slot wait for each other through another device.
    """
    source, rows = schedule.source, np.arange(len(schedule.kind), dtype=np.int32)
    arrives_early = crosses_devices(schedule) & (source < rows)
    end, cycle = run_with_barriers(schedule, Lengths.by_row(np.ones(len(rows)), -1.0 * arrives_early), schedule.joined)
    if cycle:
        raise DeadlockError(waiting_message(f"schedule {schedule.name!r} cannot be lowered", cycle), cycle)
    return end.astype(np.int32)


def posts_in_order(program: ScheduleColumns) -> Posts:
    """Return the posts of valid lists in program order, each in its own queue; raises as `transfer_posts`."""
    posts = queued_posts(program, "directed")
    return replace(posts, queue=np.arange(len(posts.queue), dtype=np.int32))


def unqueued_posts(compute: ScheduleColumns) -> Posts:
    """Return each SEND directly after its producer and each RECV at its device's beginning, each in its own queue."""
    consumer = np.flatnonzero(crosses_devices(compute)).astype(np.int32)
    taker = consumers(compute)
    producer = np.flatnonzero(taker >= 0).astype(np.int32)
    owner = np.concatenate([compute.device[consumer], compute.device[producer]])
    is_send = np.arange(len(owner)) >= len(consumer)
    order = np.lexsort((is_send, owner))  # stable: the RECVs of a device, then its SENDs in list order
    transfer = np.concatenate([consumer, taker[producer]])[order]
    before = np.concatenate([compute.offsets[owner[: len(consumer)]], producer + 1])[order].astype(np.int32)
    offsets = offsets_of(np.bincount(owner, minlength=compute.devices))
    return Posts(offsets, transfer, is_send[order], before, np.arange(len(order), dtype=np.int32))
