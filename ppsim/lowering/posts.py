"""How transfers queue: the SENDs and RECVs of a program, when its devices post them and which FIFO they join."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ppsim.actions import FIRST_TRANSFER
from ppsim.base.compiling import part, run_where_it_pays
from ppsim.base.kept_memory import empty_column, full_column
from ppsim.base.lists import DeviceLists
from ppsim.base.unsigned import from_the_start
from ppsim.lowering.rows import crosses_devices, has_transfers, transfer_ends
from ppsim.lowering.turns import rows_in_turn
from ppsim.schedule.columns import ScheduleColumns

TRANSPORTS = ("async", "directed", "pair", "rank", "blocking")
AT_ONCE = 32  # posts, two lines of the processor's cache


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
    posts = Posts(offsets, *(empty_column(count, dtype) for dtype in (np.int32, bool, np.int32, np.int32)))
    if not count:
        return posts
    order, room = rows_in_turn(schedule), AT_ONCE * schedule.devices
    lists = SenderLists(schedule.offsets, schedule.device, schedule.source, schedule.joined)
    staged = Staged(*np.zeros((3, schedule.devices), np.int64), *np.empty((3, room), np.int32))
    run_where_it_pays(
        post_in_turn, len(order), order, lists, staged, full_column(len(order), -1, np.int32), *_queue_steps(transport),
        offsets, posts.transfer, posts.is_send, posts.before, posts.queue,
    )  # fmt: skip
    return posts


class SenderLists(NamedTuple):
    """What of a schedule says who sends to whom."""

    offsets: np.ndarray
    device: np.ndarray
    source: np.ndarray
    joined: np.ndarray


class Staged(NamedTuple):
    """Scratch: by device its row, the post to write next and how many are waiting; by device and number those posts.

    Lists of equal lengths that are powers of two lie so in memory that posts written to all of them by turns push each
    other out of the processor's cache; so posts are written some at a time.
    """

    position: np.ndarray
    written: np.ndarray
    waiting: np.ndarray
    code: np.ndarray  # 2 x transfer + whether it is a SEND
    before: np.ndarray
    queue: np.ndarray


@from_the_start
def post_in_turn(order, lists, staged, consumer, by_peer, by_end, begin, transfer, is_send, before, queue):
    """Fill the columns of `Posts`, of which `begin` are the offsets, for rows that take their turns in this order.

    `consumer` becomes the row on another device that needs each row, or stays -1.
    """
    offsets, device, joined = lists.offsets, lists.device, lists.joined
    devices = len(offsets) - 1
    find_consumers(lists, consumer, begin)
    for one in range(devices):
        staged.position[one], staged.written[one] = offsets[one], begin[one]
    for row in order:
        sender = device[row]
        staged.position[sender] = row + 1
        if row + 1 < offsets[sender + 1] and joined[row + 1]:
            continue  # a fused slot posts behind both parts
        for producer in range(row - joined[row], row + 1):
            taker = consumer[producer]
            if taker >= 0:
                receiver = device[taker]
                for owner, peer, end in ((sender, receiver, 1), (receiver, sender, 0)):
                    place = owner * AT_ONCE + staged.waiting[owner]
                    staged.code[place], staged.before[place] = 2 * taker + end, staged.position[owner]
                    staged.queue[place] = owner * devices * 2 + peer * by_peer + end * by_end
                    staged.waiting[owner] += 1
                    if staged.waiting[owner] == AT_ONCE:
                        write_staged(owner, staged, transfer, is_send, before, queue)
    for owner in range(devices):
        write_staged(owner, staged, transfer, is_send, before, queue)


@part
@from_the_start
def find_consumers(lists, consumer, begin):
    """Fill `consumer`, and `begin` with where the posts of each device begin."""
    offsets, source = lists.offsets, lists.source
    devices = len(offsets) - 1
    for one in range(devices):
        first, last, count = offsets[one], offsets[one + 1], 0
        for row in range(first, last):
            needed = source[row]
            if needed >= 0 and (needed < first or needed >= last):
                consumer[needed] = row
                count += 1
        begin[one + 1] = count
    for one in range(devices):
        count = begin[one] + begin[one + 1]
        for row in range(offsets[one], offsets[one + 1]):
            if consumer[row] >= 0:
                count += 1
        begin[one + 1] = count


@part
@from_the_start
def write_staged(owner, staged, transfer, is_send, before, queue):
    """Write the staged posts of a device to the columns."""
    post = staged.written[owner]
    for place in range(owner * AT_ONCE, owner * AT_ONCE + staged.waiting[owner]):
        transfer[post], is_send[post] = staged.code[place] >> 1, staged.code[place] & 1
        before[post], queue[post] = staged.before[place], staged.queue[place]
        post += 1
    staged.written[owner], staged.waiting[owner] = post, 0


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
