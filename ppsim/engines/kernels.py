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


# Columns of the table of times, float64 (rows, 4): one table, because they are read together. Until a transfer
# starts, its start is the latest time so far of what it waits for. Until a row or transfer ends, its end is its length.
ROW_START, ROW_END, TRANSFER_START, TRANSFER_END = range(4)


class Queues(NamedTuple):
    """The posts of a plan, as `Posts` has them, and `links`, int32 (rows, 4).

    The columns of `links` are `WAITS`, the number of posts and transfers that the transfer still waits for; `RECEIVER`,
    the receiving device, or -1 if the transfer has ended or the row needs none; and from `NEXT` on the transfers after
    it in the queue of its RECV and in that of its SEND, or -1.
    """

    offsets: np.ndarray
    transfer: np.ndarray
    is_send: np.ndarray
    before: np.ndarray
    queue: np.ndarray
    links: np.ndarray


WAITS, RECEIVER, NEXT = range(3)  # columns of `Queues.links`; `NEXT` and the one after it are of RECV and SEND


class StreamColumns(NamedTuple):
    """The gathers or copies of a plan with their times, and by row the one that it waits for, or -1; empty without any.

    `next` is the one that each device posts next, and `free_at`, by device and way, when those posted have ended.
    """

    offsets: np.ndarray
    way: np.ndarray
    before: np.ndarray
    after: np.ndarray
    seconds: np.ndarray
    start: np.ndarray
    end: np.ndarray
    of_row: np.ndarray
    next: np.ndarray
    free_at: np.ndarray


class BarrierColumns(NamedTuple):
    """The barriers of a plan, by row the one that it waits for and the one that it feeds, or -1; empty without any.

    `waits` counts the rows and the barrier before it that a barrier still waits for. `start` is the latest of their
    ends so far; `end` is inf until all have ended; `following` is the barrier after it, or -1.
    """

    needs: np.ndarray
    feeds: np.ndarray
    following: np.ndarray
    waits: np.ndarray
    seconds: np.ndarray
    start: np.ndarray
    end: np.ndarray


class Streams(NamedTuple):
    """The streams of a plan: they run in addition to its rows and transfers."""

    gathers: StreamColumns
    copies: StreamColumns
    barriers: BarrierColumns


class Devices(NamedTuple):
    """The state of each device."""

    # position, running_until: its next row, and the row after the slot that it runs, or -1
    position: np.ndarray
    next_post: np.ndarray  # the post that it makes next
    waiting_for: np.ndarray  # transfer (by row) or other item (numbered after the rows) that it waits for, or -1
    running_until: np.ndarray
    free_at: np.ndarray  # the end of its last slot
    # sends_done, sent_at: the post before which the ends of its SENDs are known, and the latest of those ends
    sends_done: np.ndarray
    sent_at: np.ndarray


@kernel(allocates=True)
def link_queues(queues):
    """Fill `links`: queues are first in, first out, so the order of their transfers is known before any time.

    A transfer waits for its two posts, and in each queue for the transfer before it.
    """
    links = queues.links
    links[:] = -1
    links[:, WAITS] = 0
    # By queue of a device its last post so far, as 2 * transfer + is_send, or -1.
    tail = np.empty(0, np.int32)
    for device in range(len(queues.offsets) - 1):
        first, last = queues.offsets[device], queues.offsets[device + 1]
        if first == last:
            continue
        lowest = highest = queues.queue[first]
        for post in range(first, last):
            lowest, highest = min(lowest, queues.queue[post]), max(highest, queues.queue[post])
        size = highest - lowest + 1
        if size > len(tail):
            tail = np.empty(size, np.int32)
        tail[:size] = -1
        for post in range(first, last):
            number, queue = queues.transfer[post], queues.queue[post] - lowest
            links[number, WAITS] += 1
            if not queues.is_send[post]:
                links[number, RECEIVER] = device
            before = tail[queue]
            if before >= 0:
                links[number, WAITS] += 1
                links[before >> 1, NEXT + (before & 1)] = number
            tail[queue] = 2 * number + queues.is_send[post]


@kernel
def run_queues(rows, queues, streams, devices, stack, moving, times):
    """Fill `times`; at the end `devices` has the state in which each device has stopped.

    `stack` holds all devices at first; `moving`, one entry per transfer, is scratch. Gathers and copies wait only for
    their own device, so their times are known when they are posted. `run_rows` cannot run such a plan: each of its rows
    waits for one other row, while a transfer also waits for the transfers before it in two queues.
    """
    set_lengths(rows, queues, times)
    gathers, copies, barriers = streams
    streaming = len(gathers.seconds) + len(copies.seconds) + len(barriers.seconds) > 0
    timed_slots = rows.fused.any()
    height = len(stack)
    while height > 0:
        height -= 1
        device = stack[height]
        row, post, free = devices.position[device], devices.next_post[device], devices.free_at[device]
        last, last_post = rows.offsets[device + 1], queues.offsets[device + 1]
        while True:
            while post < last_post and queues.before[post] <= row:
                number, sends = queues.transfer[post], queues.is_send[post]
                if not sends:
                    free += rows.message_overhead
                times[number, TRANSFER_START] = max(times[number, TRANSFER_START], free)
                if sends:
                    free += rows.message_overhead
                queues.links[number, WAITS] -= 1
                if queues.links[number, WAITS] == 0:
                    height = run_transfers(number, rows, queues, times, devices, moving, stack, height)
                post += 1
            if streaming:
                run_stream(device, row, free, gathers)
                run_stream(device, row, free, copies)
            if row == last:
                break
            missing, start, stop = -1, free, row + 1
            if timed_slots and stop < last and rows.fused[stop]:
                stop += 1
            if rows.blocking:
                missing = wait_for_sends(device, post, queues, times, devices)
                start = max(start, devices.sent_at[device])
            for part in range(row, stop):
                if queues.links[part, RECEIVER] >= 0:
                    missing = part if missing < 0 else missing
                elif times[part, TRANSFER_END] > start:  # False for nan, of a row that needs no transfer
                    start = times[part, TRANSFER_END]
            if streaming and missing < 0:
                end, missing = end_of_streams(row, stop, streams)
                start = max(start, end)
            if missing >= 0:
                devices.waiting_for[device] = missing
                break
            free = start + times[row, ROW_END]
            for part in range(row, stop):
                times[part, ROW_START], times[part, ROW_END] = start, free
                if streaming and len(barriers.feeds) > 0:
                    height = pass_barrier(part, free, barriers, devices, stack, height)
            row = stop
        devices.position[device], devices.next_post[device], devices.free_at[device] = row, post, free


@kernel
def end_of_streams(row, stop, streams):
    """Return the latest end of the gathers, copies and barriers that the slot of rows `row` to `stop` waits for.

    Also return the first of these barriers that has not ended, numbered after the rows, or -1.
    """
    gathers, copies, barriers = streams
    end, missing = 0.0, -1
    for part in range(row, stop):
        if len(gathers.of_row) > 0 and gathers.of_row[part] >= 0:
            end = max(end, gathers.end[gathers.of_row[part]])
        if len(copies.of_row) > 0 and copies.of_row[part] >= 0:
            end = max(end, copies.end[copies.of_row[part]])
        if len(barriers.needs) > 0 and barriers.needs[part] >= 0:
            end = max(end, barriers.end[barriers.needs[part]])
            if missing < 0 and np.isinf(end):
                missing = len(barriers.needs) + barriers.needs[part]
    return end, missing


@kernel
def set_lengths(rows, queues, times):
    """Give each row and each transfer its length, and nan to the transfers of rows that need none."""
    kind, stage, stages, seconds, waits = rows.lengths
    for row in range(len(rows.device)):
        cell = kind[row] * stages + stage[row] if stages else row
        times[row, ROW_END] = seconds[cell]
        needs_transfer = queues.links[row, RECEIVER] >= 0
        times[row, TRANSFER_START] = 0.0 if needs_transfer else np.nan
        times[row, TRANSFER_END] = waits[cell] if needs_transfer else np.nan


@kernel
def run_transfers(first, rows, queues, times, devices, moving, stack, height):
    """Run transfer `first`, which waits for nothing more, and all transfers that can run after it.

    Put the devices that wait for one of them on the stack; return the height of the stack.
    """
    moving[0] = first
    count = 1
    while count > 0:
        count -= 1
        number = moving[count]
        end = times[number, TRANSFER_START] + times[number, TRANSFER_END]
        times[number, TRANSFER_END] = end
        receiver = queues.links[number, RECEIVER]
        queues.links[number, RECEIVER] = -1
        if devices.waiting_for[receiver] == number:
            devices.waiting_for[receiver] = -1
            stack[height] = receiver
            height += 1
        if rows.blocking:
            sender = rows.device[rows.source[number]]
            if devices.waiting_for[sender] == number:
                devices.waiting_for[sender] = -1
                stack[height] = sender
                height += 1
        for side in range(NEXT, NEXT + 2):
            follower = queues.links[number, side]
            if follower >= 0:
                times[follower, TRANSFER_START] = max(times[follower, TRANSFER_START], end)
                queues.links[follower, WAITS] -= 1
                if queues.links[follower, WAITS] == 0:
                    moving[count] = follower
                    count += 1
    return height


@kernel
def run_stream(device, row, now, stream):
    """Run the gathers or copies that a device posts before a row: their times follow at once."""
    number = stream.next[device]
    while number < stream.offsets[device + 1] and stream.before[number] <= row:
        start = max(now, stream.free_at[device, stream.way[number]])
        if stream.after[number] >= 0:
            start = max(start, stream.end[stream.after[number]])
        stream.start[number] = start
        stream.end[number] = stream.free_at[device, stream.way[number]] = start + stream.seconds[number]
        number += 1
    stream.next[device] = number


@kernel
def wait_for_sends(device, post, queues, times, devices):
    """Return the first SEND of a device before `post` that has not ended, or -1; those before it ended by `sent_at`."""
    while devices.sends_done[device] < post:
        number = queues.transfer[devices.sends_done[device]]
        if queues.is_send[devices.sends_done[device]]:
            if queues.links[number, RECEIVER] >= 0:
                return number
            devices.sent_at[device] = max(devices.sent_at[device], times[number, TRANSFER_END])
        devices.sends_done[device] += 1
    return -1


@kernel
def pass_barrier(row, now, barriers, devices, stack, height):
    """Count a row that ended at `now` off its barrier; after the last, set the barrier's end and wake its waiters.

    Put the devices that wait for it, or for a barrier after it, on the stack; return the height of the stack.
    """
    barrier = barriers.feeds[row]
    while barrier >= 0:
        barriers.start[barrier] = max(barriers.start[barrier], now)
        barriers.waits[barrier] -= 1
        if barriers.waits[barrier] > 0:
            break
        now = barriers.end[barrier] = barriers.start[barrier] + barriers.seconds[barrier]
        for device in range(len(devices.waiting_for)):
            if devices.waiting_for[device] == len(barriers.needs) + barrier:
                devices.waiting_for[device] = -1
                stack[height] = device
                height += 1
        barrier = barriers.following[barrier]
    return height
