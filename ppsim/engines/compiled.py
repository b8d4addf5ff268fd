"""The compiled engine: the same timeline as the event model, bit for bit, some thousand times faster.

A device runs its rows until it needs a result that does not exist yet. The row that makes this result lets the device
go on. `ppsim.schedule.recurrence.run_rows` is this loop if nothing queues and each row waits for one other row only;
`run_queues` below is the loop for transfers that queue, and for gathers, copies and barriers.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ppsim.base.compiling import call_compiled, kernel
from ppsim.base.immutable import offsets_of, read_only
from ppsim.checks.deadlock import deadlock_error
from ppsim.engines.times import RowEnds, Times, first_starts
from ppsim.lowering.posts import Posts
from ppsim.plan.resolve import Plan
from ppsim.plan.streams import SideStream
from ppsim.schedule.barriers import Barriers
from ppsim.schedule.recurrence import Lengths, run_lists, run_rows


class Rows(NamedTuple):
    """The rows of a plan, as `Plan` has them; device d owns rows `offsets[d]:offsets[d + 1]`."""

    offsets: np.ndarray
    device: np.ndarray
    source: np.ndarray
    fused: np.ndarray
    lengths: Lengths
    blocking: bool
    message_overhead: float


# Columns of the table of times, float64 (items, 4): one table, because they are read together. Until an item starts,
# its start is the latest time so far of what it waits for. Until a row or item ends, its end is its length.
ROW_START, ROW_END, TRANSFER_START, TRANSFER_END = range(4)


class ItemPosts(NamedTuple):
    """Posts in program order: ends of transfers, gathers, copies, and the end of each row that a barrier needs.

    Device d owns posts `offsets[d]:offsets[d + 1]`.
    """

    offsets: np.ndarray
    item: np.ndarray  # int32 (posts,): the item that waits for the post
    is_send: np.ndarray  # bool (posts,)
    before: np.ndarray  # int32 (posts,): the post waits for all rows of its device below this one


class Items(NamedTuple):
    """Everything that runs in addition to the rows, in one numbering.

    Transfers have the number of the row that consumes them; then come gathers, copies and barriers. The table of times
    has a row per item, with the item's times in the columns of transfers.
    """

    # int32 (items, 4): `WAITS`, the number of posts and items that the item still waits for; `RECEIVER`, the device
    # that waits for the item, or -1 if the item has ended, the row needs no transfer, or each device may wait (for a
    # barrier); from `NEXT` on two items that wait for the item's end, or -1 (of a transfer: in the queue of its RECV
    # and in that of its SEND)
    links: np.ndarray
    # int32 (rows, 3): the gather, the copy and the barrier that each row waits for, or -1; empty without any
    needed: np.ndarray
    first_barrier: int  # number of the first barrier


WAITS, RECEIVER, NEXT = range(3)  # columns of `Items.links`; `NEXT` has two


class Devices(NamedTuple):
    """The state of each device."""

    position: np.ndarray  # its next row
    next_post: np.ndarray  # the post that it makes next
    waiting_for: np.ndarray  # the item that it waits for, or -1
    running_until: np.ndarray  # in time order only: the row after the slot that it runs, or -1
    free_at: np.ndarray  # the end of its last slot
    sends_done: np.ndarray  # the post before which the ends of all its SENDs are known
    sent_at: np.ndarray  # the latest of those ends


class QueuedRun(NamedTuple):
    """Everything that a loop for queued transfers reads and changes."""

    rows: Rows
    posts: ItemPosts
    items: Items
    devices: Devices
    times: np.ndarray  # the table of times


def main_kernel(plan: Plan) -> Callable:
    """Return the kernel that takes longest to compile of those that run a plan, or one that takes as long."""
    return run_rows if plan.posts is None else run_queues


def run_compiled(plan: Plan) -> Times | RowEnds:
    """Return the times of everything in a plan by following dependencies, without a clock; DeadlockError.

    A time is the largest of a few earlier times plus a length, in whatever order the times are computed.
    `ppsim.engines.contention` runs the plans for which that order matters.
    """
    if plan.posts is None:
        return _run_unqueued(plan)
    run = queued_run(plan, plan.posts)
    stack = np.arange(plan.schedule.devices - 1, -1, -1, dtype=np.int32)
    call_compiled(run_queues, *run, stack, np.empty(len(run.times), np.int32))
    return queued_times(plan, plan.posts, run)


def _run_unqueued(plan: Plan) -> RowEnds:
    schedule = plan.schedule
    position, row_end, busy = run_lists(
        schedule.offsets, schedule.source, _lengths(plan), plan.fused, always_compiled=True
    )
    if not np.array_equal(position, schedule.offsets[1:]):
        posted = np.zeros(schedule.devices, np.int64)
        arrived = plan.remote & (row_end[plan.source] >= 0)
        raise deadlock_error(schedule, plan.transport, None, plan.fused, position, posted, arrived)
    return RowEnds(row_end, busy, first_starts(plan, row_end), **_step_end(plan, row_end))


def _lengths(plan: Plan) -> Lengths:
    """Return the lengths of rows and transfers, by kind and stage if nothing else sets them: this saves memory."""
    if plan.transfer_lengths.ndim == 1 or plan.row_lengths.ndim == 1:
        return Lengths.by_row(plan.seconds, plan.transfer_seconds)
    schedule = plan.schedule
    values = plan.row_lengths.ravel(), plan.transfer_lengths.ravel()
    return Lengths(schedule.kind, schedule.stage, schedule.num_stages, *values)


def queued_run(plan: Plan, posts: Posts) -> QueuedRun:
    """Return the state of a plan whose transfers queue, before anything has run."""
    schedule, rows, devices = plan.schedule, len(plan.schedule.kind), plan.schedule.devices
    item_posts, items, seconds = _posted_items(plan, posts)
    times = np.empty((len(items.links), 4))
    columns = Rows(
        schedule.offsets, schedule.device, schedule.source, plan.fused, _lengths(plan), plan.blocking,
        plan.message_overhead,
    )  # fmt: skip
    call_compiled(set_lengths, columns, items, times)
    times[rows:, TRANSFER_START], times[rows:, TRANSFER_END] = 0.0, seconds
    state = Devices(
        position=schedule.offsets[:-1].copy(),
        next_post=item_posts.offsets[:-1].copy(),
        waiting_for=np.full(devices, -1, np.int64),
        running_until=np.full(devices, -1, np.int64),
        free_at=np.zeros(devices),
        sends_done=item_posts.offsets[:-1].copy(),
        sent_at=np.zeros(devices),
    )
    return QueuedRun(columns, item_posts, items, state, times)


def queued_times(plan: Plan, posts: Posts, run: QueuedRun) -> Times:
    """Return the times of a plan that a loop has run; raise DeadlockError if a device has not reached its end."""
    schedule, rows, items = plan.schedule, len(plan.schedule.kind), run.items
    if not np.array_equal(run.devices.position, schedule.offsets[1:]):
        arrived = plan.remote & (items.links[:rows, RECEIVER] < 0)
        of_transfers = offsets_of(run.posts.item < rows)
        posted = of_transfers[run.devices.next_post] - of_transfers[run.posts.offsets[:-1]]
        raise deadlock_error(schedule, plan.transport, posts, plan.fused, run.devices.position, posted, arrived)
    times = read_only(run.times)  # so that a timeline need not copy its columns
    first_copy = rows + (0 if plan.gathers is None else len(plan.gathers.seconds))
    of_rows, gathers, copies, barriers = (part.T for part in np.split(times, [rows, first_copy, items.first_barrier]))
    unshard, copy, barrier = (part[TRANSFER_START:] for part in (gathers, copies, barriers))
    return Times(
        *of_rows, **_step_end(plan, of_rows[ROW_END]), unshard_start=unshard[0], unshard_end=unshard[1],
        copy_start=copy[0], copy_end=copy[1], barrier_start=barrier[0], barrier_end=barrier[1],
    )  # fmt: skip


def _posted_items(plan: Plan, posts: Posts) -> tuple[ItemPosts, Items, np.ndarray]:
    """Return what the devices of a plan post, its items, and the seconds of the items that are not transfers."""
    schedule, rows = plan.schedule, len(plan.schedule.kind)
    links = np.empty((rows, 4), np.int32)
    call_compiled(link_queues, posts.offsets, posts.transfer, posts.is_send, posts.queue, links)
    of_transfers = ItemPosts(posts.offsets, posts.transfer, posts.is_send, posts.before)
    if plan.gathers is None and plan.copies is None and plan.barriers is None:
        return of_transfers, Items(links, np.empty((0, 3), np.int32), rows), np.empty(0)
    needed, count = np.full((rows, 3), -1, np.int32), rows
    tables, seconds, posted = [links], [], [(posts.device, posts.before, posts.transfer)]
    for column, stream in enumerate((plan.gathers, plan.copies)):
        if stream is not None:
            number = count + np.arange(len(stream.seconds))
            used = stream.user >= 0
            needed[stream.user[used], column] = number[used]
            tables.append(_stream_links(stream, count))
            seconds.append(stream.seconds)
            posted.append((stream.device, stream.before, number))
            count += len(number)
    if (barriers := plan.barriers) is not None:
        needed[:, 2] = np.where(barriers.needs >= 0, count + barriers.needs, -1)
        tables.append(_barrier_links(barriers, count))
        seconds.append(barriers.seconds)
        # Before other posts at the same row: messages may take time of the host.
        posted.insert(0, (schedule.device[barriers.producer], barriers.producer + 1, count + barriers.of_producer))
    items = Items(np.concatenate(tables), needed, count)
    return _in_program_order(plan, of_transfers, posted), items, np.concatenate(seconds)


def _in_program_order(
    plan: Plan, of_transfers: ItemPosts, posted: list[tuple[np.ndarray, np.ndarray, np.ndarray]]
) -> ItemPosts:
    """Return posts, given by device, next row and item, device by device; at equal rows they keep the order given.

    `of_transfers` are the posts of transfers alone.
    """
    device, before, item = (np.concatenate(column) for column in zip(*posted, strict=True))
    if plan.fused.any():
        before = before + np.append(plan.fused, False)[before]  # no device posts within a slot
    key = device + before  # rises within a device, and from device to device
    order = np.argsort(key, kind="stable")
    item = item[order].astype(np.int32)
    is_send = np.zeros(len(item), bool)
    is_send[item < len(plan.schedule.kind)] = of_transfers.is_send  # they stay in program order
    first_keys = np.append(plan.schedule.offsets[:-1] + np.arange(plan.schedule.devices), key.max() + 1)
    return ItemPosts(np.searchsorted(key[order], first_keys), item, is_send, before[order].astype(np.int32))


def _stream_links(stream: SideStream, first: int) -> np.ndarray:
    """Return the links of gathers or copies, whose numbers begin with `first`."""
    links = np.full((len(stream.seconds), 4), -1, np.int32)
    links[:, WAITS] = 1  # its post
    links[:, RECEIVER] = stream.device
    for column, before in enumerate((stream.previous, stream.after), NEXT):
        waiting = np.flatnonzero(before >= 0)
        links[waiting, WAITS] += 1
        links[before[waiting], column] = first + waiting
    return links


def _barrier_links(barriers: Barriers, first: int) -> np.ndarray:
    """Return the links of barriers, whose numbers begin with `first`; each device may wait for a barrier."""
    links = np.full((len(barriers), 4), -1, np.int32)
    links[:, WAITS] = np.diff(barriers.first)
    links[barriers.followed + 1, WAITS] += 1
    links[barriers.followed, NEXT] = first + barriers.followed + 1
    return links


def _step_end(plan: Plan, row_end: np.ndarray) -> dict[str, np.ndarray]:
    """Return start and end of each gradient reduction and of each device's optimizer step, seconds.

    A reduction starts when its gradients and the reduction before it are complete. An optimizer step starts when the
    gradients of its device are complete ("post-validated", arXiv 2401.10241, section 4), or of all devices ("sync").
    """
    ready, times = row_end[plan.schedule.offsets[1:] - 1], {}
    if (reductions := plan.reductions) is not None:
        start = row_end[reductions.before - 1]
        end = np.empty_like(start)
        waits = zip(reductions.previous.tolist(), reductions.seconds, strict=True)
        for number, (previous, seconds) in enumerate(waits):
            if previous >= 0:
                start[number] = max(start[number], end[previous])
            end[number] = start[number] + seconds
        np.maximum.at(ready, reductions.device, end)
        times |= {"reduce_start": start, "reduce_end": end}
    if plan.optimizer_seconds is not None:
        start = np.full_like(ready, ready.max()) if plan.optimizer == "sync" else ready
        times |= {"step_start": start, "step_end": start + plan.optimizer_seconds}
    return times


@kernel(allocates=True)
def link_queues(offsets, transfer, is_send, queue, links):
    """Fill the `links` of transfers: queues are first in, first out, so their order is known before any time.

    A transfer waits for its two posts, and in each queue for the transfer before it. The other columns are `Posts`. A
    sort in NumPy in its place makes a whole call of `simulate` 1.6 times as long at a million actions.
    """
    links[:] = -1
    links[:, WAITS] = 0
    # By queue of a device its last post so far, as 2 * transfer + is_send, or -1.
    tail = np.empty(0, np.int32)
    for device in range(len(offsets) - 1):
        first, last = offsets[device], offsets[device + 1]
        if first == last:
            continue
        lowest = highest = queue[first]
        for post in range(first, last):
            lowest, highest = min(lowest, queue[post]), max(highest, queue[post])
        size = highest - lowest + 1
        if size > len(tail):
            tail = np.empty(size, np.int32)
        tail[:size] = -1
        for post in range(first, last):
            number, place = transfer[post], queue[post] - lowest
            links[number, WAITS] += 1
            if not is_send[post]:
                links[number, RECEIVER] = device
            before = tail[place]
            if before >= 0:
                links[number, WAITS] += 1
                links[before >> 1, NEXT + (before & 1)] = number
            tail[place] = 2 * number + is_send[post]


@kernel
def set_lengths(rows, items, times):
    """Give each row and each transfer its length, and nan to the transfers of rows that need none."""
    kind, stage, stages, seconds, waits = rows.lengths
    for row in range(len(rows.device)):
        cell = kind[row] * stages + stage[row] if stages else row
        times[row, ROW_END] = seconds[cell]
        needs_transfer = items.links[row, RECEIVER] >= 0
        times[row, TRANSFER_START] = 0.0 if needs_transfer else np.nan
        times[row, TRANSFER_END] = waits[cell] if needs_transfer else np.nan


@kernel
def run_queues(rows, posts, items, devices, times, stack, pending):
    """Fill `times`; at the end `devices` has the state in which each device has stopped.

    `stack` holds all devices at first; `pending`, one entry per item, is scratch. `run_rows` cannot run such a plan:
    each of its rows waits for one other row, while a transfer also waits for the transfers before it in two queues.
    """
    transfers = len(rows.device)
    timed_slots = rows.fused.any()
    height = len(stack)
    while height > 0:
        height -= 1
        device = stack[height]
        row, post, free = devices.position[device], devices.next_post[device], devices.free_at[device]
        last, last_post = rows.offsets[device + 1], posts.offsets[device + 1]
        while True:
            while post < last_post and posts.before[post] <= row:
                number, sends = posts.item[post], posts.is_send[post]
                overhead = rows.message_overhead if number < transfers else 0.0
                if not sends:
                    free += overhead
                times[number, TRANSFER_START] = max(times[number, TRANSFER_START], free)
                if sends:
                    free += overhead
                items.links[number, WAITS] -= 1
                if items.links[number, WAITS] == 0:
                    height = run_items(number, rows, items, times, devices, pending, stack, height)
                post += 1
            if row == last:
                break
            missing, start, stop = -1, free, row + 1
            if timed_slots and stop < last and rows.fused[stop]:
                stop += 1
            if rows.blocking:
                missing = wait_for_sends(device, post, posts, items, times, devices)
                start = max(start, devices.sent_at[device])
            for part in range(row, stop):
                if items.links[part, RECEIVER] >= 0:
                    missing = part if missing < 0 else missing
                elif times[part, TRANSFER_END] > start:  # False for nan, of a row that needs no transfer
                    start = times[part, TRANSFER_END]
            if len(items.needed) > 0 and missing < 0:
                end, missing = end_of_needed(row, stop, items, times)
                start = max(start, end)
            if missing >= 0:
                devices.waiting_for[device] = missing
                break
            free = start + times[row, ROW_END]
            for part in range(row, stop):
                times[part, ROW_START], times[part, ROW_END] = start, free
            row = stop
        devices.position[device], devices.next_post[device], devices.free_at[device] = row, post, free


@kernel
def end_of_needed(row, stop, items, times):
    """Return the latest end of the gathers, copies and barriers that the slot of rows `row` to `stop` waits for.

    Also return the first of them that has not ended, or -1.
    """
    end = 0.0
    for part in range(row, stop):
        for column in range(items.needed.shape[1]):
            item = items.needed[part, column]
            if item >= 0:
                if items.links[item, WAITS] > 0:
                    return end, np.int64(item)
                end = max(end, times[item, TRANSFER_END])
    return end, np.int64(-1)


@kernel
def run_items(first, rows, items, times, devices, pending, stack, height):
    """Run item `first`, which waits for nothing more, and all items that can run after it.

    Put the devices that wait for one of them on the stack; return the height of the stack.
    """
    pending[0] = first
    count = 1
    while count > 0:
        count -= 1
        number = pending[count]
        end = times[number, TRANSFER_START] + times[number, TRANSFER_END]
        times[number, TRANSFER_END] = end
        receiver = items.links[number, RECEIVER]
        items.links[number, RECEIVER] = -1
        if receiver >= 0:
            height = wake(receiver, number, devices, stack, height)
        if number >= items.first_barrier:
            for device in range(len(devices.waiting_for)):
                height = wake(device, number, devices, stack, height)
        elif rows.blocking and number < len(rows.device):
            height = wake(rows.device[rows.source[number]], number, devices, stack, height)
        for side in range(NEXT, NEXT + 2):
            follower = items.links[number, side]
            if follower >= 0:
                times[follower, TRANSFER_START] = max(times[follower, TRANSFER_START], end)
                items.links[follower, WAITS] -= 1
                if items.links[follower, WAITS] == 0:
                    pending[count] = follower
                    count += 1
    return height


@kernel
def wake(device, number, devices, stack, height):
    """Put a device on the stack if it waits for this item; return the height of the stack."""
    if devices.waiting_for[device] == number:
        devices.waiting_for[device] = -1
        stack[height] = device
        height += 1
    return height


@kernel
def wait_for_sends(device, post, posts, items, times, devices):
    """Return the first SEND of a device before `post` that has not ended, or -1; those before it ended by `sent_at`."""
    while devices.sends_done[device] < post:
        number = posts.item[devices.sends_done[device]]
        if posts.is_send[devices.sends_done[device]]:
            if items.links[number, RECEIVER] >= 0:
                return number
            devices.sent_at[device] = max(devices.sent_at[device], times[number, TRANSFER_END])
        devices.sends_done[device] += 1
    return -1
