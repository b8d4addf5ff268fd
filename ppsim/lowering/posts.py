"""How transfers queue: the SENDs and RECVs of a program, when its devices post them and which FIFO they join."""

from dataclasses import dataclass, replace

import numpy as np

from ppsim.actions import FIRST_TRANSFER
from ppsim.base.compiling import run_where_it_pays
from ppsim.base.lists import DeviceLists
from ppsim.lowering.rows import crosses_devices, has_transfers, transfer_ends
from ppsim.lowering.turns import rows_in_turn
from ppsim.schedule.columns import ScheduleColumns

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
        The FIFO that the post joins on its own device; the numbers tell queues apart and mean nothing else.
    """

    offsets: np.ndarray
    transfer: np.ndarray
    is_send: np.ndarray
    before: np.ndarray
    queue: np.ndarray


def queued_posts(program: ScheduleColumns, transport: str) -> Posts:
    """The posts of valid lists under a transport other than `async`; lists without transfers are lowered.

    `before` and `transfer` are rows of the compute schedule. Errors as `transfer_posts`.
    """
    if not program.is_program:
        return transfer_posts(program, transport)
    compute_before = np.concatenate([[0], np.cumsum(program.kind < FIRST_TRANSFER)]).astype(np.int32)
    if not has_transfers(program):
        posts = transfer_posts(program, transport)
        return replace(posts, transfer=compute_before[posts.transfer], before=compute_before[posts.before])
    devices = program.devices
    ends = transfer_ends(program)
    owner = program.device[ends.row].astype(np.int64)
    by_peer, by_end = _queue_steps(transport)
    queue = owner * devices * 2 + ends.peer * by_peer + ends.is_send * by_end
    return Posts(
        np.searchsorted(ends.row, program.offsets),
        compute_before[ends.consumer],
        ends.is_send,
        compute_before[ends.row],
        queue.astype(np.int32),
    )


def _queue_steps(transport: str) -> tuple[int, int]:
    """What a peer and what being a SEND add to the number of a queue: one a device and end, one a pair, one a rank."""
    return {"pair": (2, 0), "rank": (0, 0)}.get(transport, (2, 1))


def transfer_posts(schedule: ScheduleColumns, transport: str) -> Posts:
    """The posts of lists without transfers, where PyTorch's runtime puts them; their rows are those of the lists.

    When a slot takes its turn (`rows_in_turn`), its SENDs are posted behind it, and at the same moment the RECVs of
    their receivers. DeadlockError where the two parts of a fused slot wait for each other through another device.
    """
    offsets, count = np.zeros(schedule.devices + 1, np.int64), 2 * np.count_nonzero(crosses_devices(schedule))
    posts = Posts(offsets, *(np.empty(count, dtype) for dtype in (np.int32, bool, np.int32, np.int32)))
    if not count:
        return posts
    order = rows_in_turn(schedule)
    run_where_it_pays(
        post_in_turn, len(order), order, schedule.offsets, schedule.device, schedule.source, schedule.joined,
        *_queue_steps(transport), np.full(len(order), -1, np.int32), offsets, posts.transfer, posts.is_send,
        posts.before, posts.queue,
    )  # fmt: skip
    return posts


def post_in_turn(
    order, offsets, device, source, joined, by_peer, by_end, consumer, begin, transfer, is_send, before, queue
):
    """Fill the columns of `Posts`, of which `begin` are the offsets, for rows that take their turns in this order.

    `consumer` becomes the row on another device that needs each row, or stays -1.
    """
    devices = len(offsets) - 1
    for row in range(len(source)):
        if source[row] >= 0 and device[source[row]] != device[row]:
            consumer[source[row]] = row
            begin[device[row] + 1] += 1
            begin[device[source[row]] + 1] += 1
    for one in range(devices):
        begin[one + 1] += begin[one]
    free, position = begin[:-1].copy(), offsets[:-1].copy()
    for row in order:
        sender = device[row]
        position[sender] = row + 1
        if row + 1 < offsets[sender + 1] and joined[row + 1]:
            continue  # a fused slot posts behind both parts
        for part in range(row - joined[row], row + 1):
            taker = consumer[part]
            if taker >= 0:
                for owner, peer, end in ((sender, device[taker], True), (device[taker], sender, False)):
                    post = free[owner]
                    transfer[post], is_send[post], before[post] = taker, end, position[owner]
                    queue[post] = owner * devices * 2 + peer * by_peer + end * by_end
                    free[owner] = post + 1


def unqueued_posts(compute: ScheduleColumns, remote: np.ndarray) -> Posts:
    """Each SEND directly behind its producer, each RECV where its device begins, and each in a queue of its own.

    `remote` is `crosses_devices(compute)`.
    """
    consumer = np.flatnonzero(remote).astype(np.int32)
    producer = compute.source[consumer]
    owner = np.concatenate([compute.device[consumer], compute.device[producer]])
    before = np.concatenate([compute.offsets[compute.device[consumer]], producer + 1]).astype(np.int32)
    order = np.lexsort((before, owner))
    return Posts(
        np.searchsorted(owner[order], np.arange(compute.devices + 1)),
        np.tile(consumer, 2)[order],
        np.repeat([False, True], len(consumer))[order],
        before[order],
        np.arange(len(order), dtype=np.int32),
    )
