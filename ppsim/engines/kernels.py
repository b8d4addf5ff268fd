"""The other loops of the compiled engine: what follows from the ends of all rows, and transfers that queue.

Like `ppsim.recurrence`: a device walks its rows until it needs a result that does not exist yet, and whoever makes that
result puts the device back on the stack.
"""

import numpy as np

from ppsim.base.compiling import compiled


@compiled
def complete(offsets, fused, source, remote, transfer_seconds, row_end, row_start, transfer_start, transfer_end):
    """The other three columns, from the ends of all rows: what `walk` worked out once more, in the same operations."""
    for device in range(len(offsets) - 1):
        free = 0.0
        for row in range(offsets[device], offsets[device + 1]):
            start = row_start[row - 1] if fused[row] else free
            if remote[row]:
                sent = row_end[source[row]]
                transfer_start[row] = sent
                transfer_end[row] = sent + transfer_seconds[row]
                start = max(start, transfer_end[row])
            else:
                transfer_start[row] = transfer_end[row] = np.nan
            row_start[row] = start
            if fused[row]:
                row_start[row - 1] = start
            free = row_end[row]


@compiled
def link_queues(post_offsets, transfer, is_send, queue, waits, next_of_send, next_of_recv):
    """Who follows whom in the queues: first in first out, so each transfer's followers are known before any time.

    `waits[t]` becomes what transfer t waits for: its two posts, and in each queue the transfer before it.
    """
    for device in range(len(post_offsets) - 1):
        first, last = post_offsets[device], post_offsets[device + 1]
        if first == last:
            continue
        lowest = queue[first:last].min()
        tail = np.full(queue[first:last].max() - lowest + 1, -1, np.int64)
        for post in range(first, last):
            number = transfer[post]
            waits[number] += 1
            before = tail[queue[post] - lowest]
            if before >= 0:
                waits[number] += 1
                if is_send[before]:
                    next_of_send[transfer[before]] = number
                else:
                    next_of_recv[transfer[before]] = number
            tail[queue[post] - lowest] = post


@compiled
def run_transfers(
    first, at, device, source, transfer_seconds, waits, next_of_send, next_of_recv,
    transfer_start, transfer_end, waiting_for, moving, stack, height,
):  # fmt: skip
    """One more of what transfer `first` waits for has come, at time `at`: if it was the last, run what can run.

    `transfer_start` holds the latest of what has come until the transfer starts. Devices that wait for a transfer that
    ends go on the stack; returns the height of the stack.
    """
    transfer_start[first] = max(transfer_start[first], at)
    waits[first] -= 1
    if waits[first] > 0:
        return height
    moving[0] = first
    count = 1
    while count > 0:
        count -= 1
        number = moving[count]
        end = transfer_start[number] + transfer_seconds[number]
        transfer_end[number] = end
        for holder in (device[source[number]], device[number]):
            if waiting_for[holder] == number:
                waiting_for[holder] = -1
                stack[height] = holder
                height += 1
        for follower in (next_of_send[number], next_of_recv[number]):
            if follower >= 0:
                transfer_start[follower] = max(transfer_start[follower], end)
                waits[follower] -= 1
                if waits[follower] == 0:
                    moving[count] = follower
                    count += 1
    return height


@compiled
def walk_and_post(
    offsets, device_of, seconds, fused, source, remote, transfer_seconds, blocking,
    post_offsets, transfer, is_send, before, waits, next_of_send, next_of_recv,
    position, posted, row_start, row_end, transfer_start, transfer_end, gathers,
):  # fmt: skip
    """Fill the four columns of times where SENDs and RECVs queue; `position` and `posted` tell where devices stand.

    A transfer that has not ended has nan as its end. A gather waits for its own device alone, so that its times are
    known when it is posted. `gathers` holds their offsets, before, seconds and columns of times, and the gather that
    each row waits for, or -1; that column is empty where nothing is gathered.
    """
    gather_offsets, gather_before, gather_seconds, gather_start, gather_end, gather_of = gathers
    any_gathers = len(gather_of) > 0
    next_gather = gather_offsets[:-1].copy()
    devices = len(offsets) - 1
    gathered_at = np.zeros(devices, np.float64)
    for row in range(len(seconds)):
        transfer_start[row] = 0.0 if remote[row] else np.nan
        transfer_end[row] = np.nan
    waiting_for = np.full(devices, -1, np.int64)
    free_at, sent_at = np.zeros(devices, np.float64), np.zeros(devices, np.float64)
    sends_done = post_offsets[:-1].copy()
    moving = np.empty(len(seconds), np.int64)
    stack = np.arange(devices - 1, -1, -1)
    height = devices
    while height > 0:
        height -= 1
        device = stack[height]
        row, last, free = position[device], offsets[device + 1], free_at[device]
        post, last_post = post_offsets[device] + posted[device], post_offsets[device + 1]
        while True:
            while post < last_post and before[post] <= row:
                height = run_transfers(
                    transfer[post], free, device_of, source, transfer_seconds, waits, next_of_send, next_of_recv,
                    transfer_start, transfer_end, waiting_for, moving, stack, height,
                )  # fmt: skip
                post += 1
            if any_gathers:
                while next_gather[device] < gather_offsets[device + 1] and gather_before[next_gather[device]] <= row:
                    gather = next_gather[device]
                    gather_start[gather] = max(free, gathered_at[device])
                    gather_end[gather] = gathered_at[device] = gather_start[gather] + gather_seconds[gather]
                    next_gather[device] += 1
            if row == last:
                break
            stop = row + 2 if row + 1 < last and fused[row + 1] else row + 1
            missing = -1
            if blocking:
                missing = wait_for_sends(device, post, transfer, is_send, transfer_end, sends_done, sent_at)
            start = max(free, sent_at[device])
            for part in range(row, stop):
                if remote[part]:
                    if np.isnan(transfer_end[part]):
                        missing = part if missing < 0 else missing
                    else:
                        start = max(start, transfer_end[part])
                if any_gathers and gather_of[part] >= 0:
                    start = max(start, gather_end[gather_of[part]])
            if missing >= 0:
                waiting_for[device] = missing
                break
            free = start + seconds[row]
            row_start[row:stop] = start
            row_end[row:stop] = free
            row = stop
        position[device], free_at[device], posted[device] = row, free, post - post_offsets[device]


@compiled
def wait_for_sends(device, post, transfer, is_send, transfer_end, sends_done, sent_at):
    """The first SEND of a device, before `post`, that has not ended, or -1; `sent_at` is the end of those before."""
    while sends_done[device] < post:
        number = transfer[sends_done[device]]
        if is_send[sends_done[device]]:
            if np.isnan(transfer_end[number]):
                return number
            sent_at[device] = max(sent_at[device], transfer_end[number])
        sends_done[device] += 1
    return -1
