"""The loops of the compiled engine for transfers that queue.

Like `ppsim.schedule.recurrence`: a device walks its rows until it needs a result that does not exist yet, and whoever
makes that result puts the device back on the stack.
"""

import numpy as np

from ppsim.base.compiling import kernel
from ppsim.engines.kernel_columns import NEXT_OF_RECV, NEXT_OF_SEND, RECEIVER, WAITS, place


@kernel(allocates=True)
def link_queues(queues):
    """Fill `links`: first in first out, so who follows whom in the queues is known before any time.

    A transfer waits for its two posts, and in each queue for the transfer before it.
    """
    links = queues.links
    for at in range(len(links)):
        links[at, WAITS] = 0
        links[at, NEXT_OF_SEND] = links[at, NEXT_OF_RECV] = links[at, RECEIVER] = -1
    tail = np.full(64, -1, np.int32)
    for device in range(len(queues.offsets) - 1):
        first, last = queues.offsets[device], queues.offsets[device + 1]
        if first == last:
            continue
        lowest = queues.queue[first:last].min()
        while queues.queue[first:last].max() - lowest >= len(tail):
            tail = np.full(2 * len(tail), -1, np.int32)
        for post in range(first, last):
            number = queues.transfer[post]
            links[place(number), WAITS] += 1
            if not queues.is_send[post]:
                links[place(number), RECEIVER] = device
            before = tail[queues.queue[post] - lowest]
            if before >= 0:
                links[place(number), WAITS] += 1
                links[place(queues.transfer[before]), NEXT_OF_SEND if queues.is_send[before] else NEXT_OF_RECV] = number
            tail[queues.queue[post] - lowest] = post
        for post in range(first, last):
            tail[queues.queue[post] - lowest] = -1


@kernel
def run_transfers(first, at, rows, queues, times, waiting_for, moving, stack, height):
    """One more of what transfer `first` waits for has come, at time `at`: if it was the last, run what can run.

    `transfer_start` holds the latest of what has come until the transfer starts. Devices that wait for a transfer that
    ends go on the stack; returns the height of the stack.
    """
    times.transfer_start[first] = max(times.transfer_start[first], at)
    queues.links[place(first), WAITS] -= 1
    if queues.links[place(first), WAITS] > 0:
        return height
    moving[0] = first
    count = 1
    while count > 0:
        count -= 1
        number = moving[count]
        end = times.transfer_start[number] + rows.transfer_seconds[number]
        times.transfer_end[number] = end
        for holder in (rows.device[rows.source[number]], rows.device[number]):
            if waiting_for[holder] == number:
                waiting_for[holder] = -1
                stack[height] = holder
                height += 1
        for side in (NEXT_OF_SEND, NEXT_OF_RECV):
            follower = queues.links[place(number), side]
            if follower >= 0:
                times.transfer_start[follower] = max(times.transfer_start[follower], end)
                queues.links[place(follower), WAITS] -= 1
                if queues.links[place(follower), WAITS] == 0:
                    moving[count] = follower
                    count += 1
    return height


@kernel(allocates=True)
def walk_and_post(rows, queues, gathers, copies, barriers, devices, times):
    """Fill the columns of times where SENDs and RECVs queue; `devices` tells where devices stand in the end.

    Gathers and copies wait for their own device alone, so that their times are known when they are posted.
    """
    any_gathers, any_copies, any_barriers = len(gathers.of_row) > 0, len(copies.of_row) > 0, len(barriers.needs) > 0
    for row in range(len(rows.seconds)):
        times.transfer_start[row] = 0.0 if rows.remote[row] else np.nan
        times.transfer_end[row] = np.nan
    moving = np.empty(len(rows.seconds), np.int64)
    stack = np.arange(len(rows.offsets) - 2, -1, -1)
    height = len(stack)
    while height > 0:
        height -= 1
        device = stack[height]
        row, last, free = devices.position[device], rows.offsets[device + 1], devices.free_at[device]
        post, last_post = queues.offsets[device] + devices.posted[device], queues.offsets[device + 1]
        while True:
            while post < last_post and queues.before[post] <= row:
                height = run_transfers(
                    queues.transfer[post], free, rows, queues, times, devices.waiting_for, moving, stack, height
                )
                post += 1
            if any_gathers:
                post_gathers(device, row, free, gathers, devices)
            if any_copies:
                post_copies(device, row, free, copies, devices)
            if row == last:
                break
            stop = row + 2 if row + 1 < last and rows.fused[row + 1] else row + 1
            missing = -1
            if rows.blocking:
                missing = wait_for_sends(device, post, queues, times, devices)
            start = max(free, devices.sent_at[device])
            for part in range(row, stop):
                if rows.remote[part]:
                    if np.isnan(times.transfer_end[part]):
                        missing = part if missing < 0 else missing
                    else:
                        start = max(start, times.transfer_end[part])
                if any_gathers and gathers.of_row[part] >= 0:
                    start = max(start, gathers.end[gathers.of_row[part]])
                if any_copies and copies.of_row[part] >= 0:
                    start = max(start, copies.end[copies.of_row[part]])
                if any_barriers and barriers.needs[part] >= 0:
                    start = max(start, barriers.end[barriers.needs[part]])
            if missing >= 0:
                devices.waiting_for[device] = missing
                break
            if np.isinf(start):
                devices.waiting_at[device] = open_barrier(row, stop, barriers)
                break
            free = start + rows.seconds[row]
            times.row_start[row:stop] = start
            times.row_end[row:stop] = free
            if any_barriers:
                for part in range(row, stop):
                    height = pass_barrier(part, free, barriers, devices, stack, height)
            row = stop
        devices.position[device], devices.free_at[device] = row, free
        devices.posted[device] = post - queues.offsets[device]


@kernel
def post_gathers(device, row, now, gathers, devices):
    """Put the gathers that stand before a row on the device's stream: their times follow at once."""
    gather = devices.next_gather[device]
    while gather < gathers.offsets[device + 1] and gathers.before[gather] <= row:
        gathers.start[gather] = max(now, devices.gathered_at[device])
        gathers.end[gather] = devices.gathered_at[device] = gathers.start[gather] + gathers.seconds[gather]
        gather += 1
    devices.next_gather[device] = gather


@kernel
def post_copies(device, row, now, copies, devices):
    """Put the copies that stand before a row on the device's copy engines: their times follow at once."""
    copy = devices.next_copy[device]
    while copy < copies.offsets[device + 1] and copies.before[copy] <= row:
        start = max(now, devices.copied_at[device, copies.way[copy]])
        if copies.after[copy] >= 0:
            start = max(start, copies.end[copies.after[copy]])
        copies.start[copy] = start
        copies.end[copy] = devices.copied_at[device, copies.way[copy]] = start + copies.seconds[copy]
        copy += 1
    devices.next_copy[device] = copy


@kernel
def wait_for_sends(device, post, queues, times, devices):
    """The first SEND of a device, before `post`, that has not ended, or -1; `sent_at` is the end of those before."""
    while devices.sends_done[device] < post:
        number = queues.transfer[devices.sends_done[device]]
        if queues.is_send[devices.sends_done[device]]:
            if np.isnan(times.transfer_end[number]):
                return number
            devices.sent_at[device] = max(devices.sent_at[device], times.transfer_end[number])
        devices.sends_done[device] += 1
    return -1


@kernel
def open_barrier(row, stop, barriers):
    """The barrier that has not ended of those that the slot of rows `row` to `stop` waits for, or -1."""
    for part in range(row, stop):
        if barriers.needs[part] >= 0 and np.isinf(barriers.end[barriers.needs[part]]):
            return barriers.needs[part]
    return -1


@kernel
def pass_barrier(row, now, barriers, devices, stack, height):
    """Count a row that ended at `now` off its barrier: after the last, its end is known and who waits for it goes on.

    Devices that wait for it, or for those behind it, go on the stack; returns the height of the stack.
    """
    barrier = barriers.feeds[row]
    while barrier >= 0:
        barriers.start[barrier] = max(barriers.start[barrier], now)
        barriers.waits[barrier] -= 1
        if barriers.waits[barrier] > 0:
            break
        now = barriers.end[barrier] = barriers.start[barrier] + barriers.seconds[barrier]
        for device in range(len(devices.waiting_at)):
            if devices.waiting_at[device] == barrier:
                devices.waiting_at[device] = -1
                stack[height] = device
                height += 1
        barrier = barriers.following[barrier]
    return height
