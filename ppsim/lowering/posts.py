"""How transfers queue: the SENDs and RECVs of a program, when its devices post them and which FIFO they join."""

from dataclasses import dataclass, replace

import numpy as np

from ppsim.actions import FIRST_TRANSFER
from ppsim.base.compiling import call_fastest
from ppsim.base.lists import DeviceLists
from ppsim.lowering.posting import AT_ONCE, PostColumns, SenderLists, Staged, post_by_turns
from ppsim.lowering.rows import consumers, crosses_devices, has_transfers, transfer_ends
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

    When a slot takes its turn (`ppsim.lowering.turns`), its SENDs are posted behind it, and at the same moment the
    RECVs of their receivers. DeadlockError where the two parts of a fused slot wait for each other through another
    device.
    """
    offsets, count = np.zeros(schedule.devices + 1, np.int64), 2 * np.count_nonzero(crosses_devices(schedule))
    posts = Posts(offsets, *(np.empty(count, dtype) for dtype in (np.int32, bool, np.int32, np.int32)))
    if count:
        filled = offsets, posts.transfer, posts.is_send, posts.before, posts.queue
        columns = PostColumns(*filled, *_queue_steps(transport))
        rows = len(schedule.kind)
        order, walks = np.empty(0, np.int32), not schedule.cuts_vocabulary
        if not (walks and call_fastest(post_by_turns, rows, order, *_scratch(schedule), columns)):
            call_fastest(post_by_turns, rows, rows_in_turn(schedule), *_scratch(schedule), columns)
    return posts


def _scratch(schedule: ScheduleColumns) -> tuple[SenderLists, Staged]:
    """What `post_by_turns` begins with."""
    room = AT_ONCE * schedule.devices
    links = np.full(len(schedule.kind), -2, np.int32)
    lists = SenderLists(schedule.offsets, schedule.device, schedule.source, schedule.joined, links)
    return lists, Staged(*np.zeros((3, schedule.devices), np.int64), *np.empty((3, room), np.int32))


def unqueued_posts(compute: ScheduleColumns, remote: np.ndarray) -> Posts:
    """Each SEND directly behind its producer, each RECV where its device begins, and each in a queue of its own.

    `remote` is `crosses_devices(compute)`.
    """
    consumer = np.flatnonzero(remote).astype(np.int32)
    taker = consumers(compute.source, remote)
    producer = np.flatnonzero(taker >= 0).astype(np.int32)
    owner = [compute.device[rows] for rows in (consumer, producer)]
    counts = [np.bincount(of, minlength=compute.devices) for of in owner]
    offsets = np.append(0, np.cumsum(counts[0] + counts[1]))
    # Behind the RECVs of the devices before come their SENDs, and behind the SENDs of those the device's own RECVs.
    place = [np.arange(len(of)) for of in owner]
    place[0] += (np.cumsum(counts[1]) - counts[1])[owner[0]]
    place[1] += np.cumsum(counts[0])[owner[1]]
    transfer, is_send, before = columns = [np.empty(2 * len(consumer), dtype) for dtype in (np.int32, bool, np.int32)]
    received, sent = (consumer, False, compute.offsets[owner[0]]), (taker[producer], True, producer + 1)
    for column, of_receive, of_send in zip(columns, received, sent, strict=True):
        column[place[0]], column[place[1]] = of_receive, of_send
    return Posts(offsets, transfer, is_send, before, np.arange(2 * len(consumer), dtype=np.int32))
