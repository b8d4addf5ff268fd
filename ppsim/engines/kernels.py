"""The compiled loop for transfers that queue, and the columns that it shares with `ppsim.engines.contention`.

Like `ppsim.schedule.recurrence.run_rows`, which lets each row wait for one other row only: a device runs its rows until
it needs a result that does not exist yet. The row that makes this result puts the device back on the stack.
"""

from typing import NamedTuple

import numpy as np

from ppsim.base.compiling import kernel
from ppsim.schedule.recurrence import Lengths


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


class Posted(NamedTuple):
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


@kernel(allocates=True)
def link_queues(offsets, transfer, is_send, queue, links):
    """Fill the `links` of transfers: queues are first in, first out, so their order is known before any time.

    A transfer waits for its two posts, and in each queue for the transfer before it. The other columns are `Posts`.
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
def run_queues(rows, posted, items, devices, stack, moving, times):
    """Fill `times`; at the end `devices` has the state in which each device has stopped.

    `stack` holds all devices at first; `moving`, one entry per item, is scratch. `times` has the lengths of the items
    that are not transfers. `run_rows` cannot run such a plan: each of its rows waits for one other row, while a
    transfer also waits for the transfers before it in two queues.
    """
    set_lengths(rows, items, times)
    transfers = len(rows.device)
    timed_slots = rows.fused.any()
    height = len(stack)
    while height > 0:
        height -= 1
        device = stack[height]
        row, post, free = devices.position[device], devices.next_post[device], devices.free_at[device]
        last, last_post = rows.offsets[device + 1], posted.offsets[device + 1]
        while True:
            while post < last_post and posted.before[post] <= row:
                number, sends = posted.item[post], posted.is_send[post]
                overhead = rows.message_overhead if number < transfers else 0.0
                if not sends:
                    free += overhead
                times[number, TRANSFER_START] = max(times[number, TRANSFER_START], free)
                if sends:
                    free += overhead
                items.links[number, WAITS] -= 1
                if items.links[number, WAITS] == 0:
                    height = run_items(number, rows, items, times, devices, moving, stack, height)
                post += 1
            if row == last:
                break
            missing, start, stop = -1, free, row + 1
            if timed_slots and stop < last and rows.fused[stop]:
                stop += 1
            if rows.blocking:
                missing = wait_for_sends(device, post, posted, items, times, devices)
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
def run_items(first, rows, items, times, devices, moving, stack, height):
    """Run item `first`, which waits for nothing more, and all items that can run after it.

    Put the devices that wait for one of them on the stack; return the height of the stack.
    """
    moving[0] = first
    count = 1
    while count > 0:
        count -= 1
        number = moving[count]
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
                    moving[count] = follower
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
def wait_for_sends(device, post, posted, items, times, devices):
    """Return the first SEND of a device before `post` that has not ended, or -1; those before it ended by `sent_at`."""
    while devices.sends_done[device] < post:
        number = posted.item[devices.sends_done[device]]
        if posted.is_send[devices.sends_done[device]]:
            if items.links[number, RECEIVER] >= 0:
                return number
            devices.sent_at[device] = max(devices.sent_at[device], times[number, TRANSFER_END])
        devices.sends_done[device] += 1
    return -1
