"""The compiled engine's loop where transfers share ports: it follows time, because who goes first depends on it.

At each moment all that ends is handled first, with what it makes ready; then what is ready joins the lines of its
ports, lower sending device first, then program order; then starts what heads all its lines and finds a place at each.
What takes no time makes another round at the same moment. The operations on times are those of the event model.

The functions share tuples of columns:
    rows      offsets, device_of, seconds, fused, source, remote, transfer_seconds, blocking
    posts     offsets, transfer, is_send, before, waits, next_of_send, next_of_recv
    ports     ports of each transfer, capacity of each port, SEND of each transfer (an index of posts)
    gathers   as `kernels.walk_and_post` takes them
    times     start and end of each row, start and end of each row's transfer
    state     of each device: row, posts made, transfer that it waits for, end of the slot that it runs (or -1),
              SENDs looked at and the latest end of them, gathers posted and the end of the last
    lines     of each port: free places, first and last of its line; and who stands behind each transfer
    agenda    lists of events, of SENDs whose transfers are ready for their ports, of ports where something changed
"""

import heapq

import numpy as np

from ppsim.base.compiling import compiled
from ppsim.engines.kernels import wait_for_sends


@compiled
def run_in_time_order(rows, posts, ports, gathers, position, posted, times):
    """Fill `times`; a transfer that has not ended has nan as its end, and `position` tells where devices stand."""
    devices, count = len(rows[0]) - 1, len(ports[1])
    times[2][:] = np.nan
    times[3][:] = np.nan
    state = (
        position, posted, np.full(devices, -1, np.int64), np.full(devices, -1, np.int64), posts[0][:-1].copy(),
        np.zeros(devices, np.float64), gathers[0][:-1].copy(), np.zeros(devices, np.float64),
    )  # fmt: skip
    behind = np.full(ports[0].shape, -1, np.int64)
    lines = (ports[1].copy(), np.full(count, -1, np.int64), np.full(count, -1, np.int64), behind)
    # An event is (time, device) where a slot ends or a gather that the device waits for, or (time, devices + transfer).
    agenda = ([(0.0, device) for device in range(devices)], [np.int64(0)], [np.int64(0)])
    agenda[1].clear()
    agenda[2].clear()
    now = 0.0
    while True:
        if len(agenda[0]) == 0 or agenda[0][0][0] > now:
            arbitrate(now, rows, posts, ports, times, lines, agenda)
            if len(agenda[0]) == 0:
                return
        now, code = heapq.heappop(agenda[0])
        if code < devices:
            advance(code, now, rows, posts, ports, gathers, times, state, agenda)
        else:
            end_transfer(code - devices, now, rows, posts, ports, gathers, times, state, lines, agenda)


@compiled
def end_transfer(number, now, rows, posts, ports, gathers, times, state, lines, agenda):
    """Give the places of a transfer back, let those behind it in its queues come closer and who waits for it go on."""
    _, device_of, _, _, source, _, _, _ = rows
    _, _, _, _, _, next_of_send, next_of_recv = posts
    times[3][number] = now
    for port in ports[0][number]:
        if port >= 0:
            lines[0][port] += 1
            agenda[2].append(np.int64(port))
    for follower in (next_of_send[number], next_of_recv[number]):
        if follower >= 0:
            come_closer(follower, now, rows, posts, ports, times, agenda)
    waiting_for = state[2]
    for holder in (device_of[source[number]], device_of[number]):
        if waiting_for[holder] == number:
            waiting_for[holder] = -1
            advance(np.int64(holder), now, rows, posts, ports, gathers, times, state, agenda)


@compiled
def advance(device, now, rows, posts, ports, gathers, times, state, agenda):
    """End the slot that a device runs, if any, make the posts behind it, and start the next slot if that can start."""
    offsets, _, seconds, fused, _, remote, _, blocking = rows
    post_offsets, transfer, is_send, before, _, _, _ = posts
    row_start, row_end, _, transfer_end = times
    position, posted, waiting_for, stop_of, sends_done, sent_at, _, _ = state
    row, last = position[device], offsets[device + 1]
    if stop_of[device] >= 0:
        row_end[row : stop_of[device]] = now
        row = stop_of[device]
        position[device], stop_of[device] = row, -1
    post = post_offsets[device] + posted[device]
    while post < post_offsets[device + 1] and before[post] <= row:
        come_closer(transfer[post], now, rows, posts, ports, times, agenda)
        post += 1
    posted[device] = post - post_offsets[device]
    post_gathers(device, row, now, gathers, state)
    if row == last:
        return
    stop = row + 2 if row + 1 < last and fused[row + 1] else row + 1
    missing = -1
    if blocking:
        missing = wait_for_sends(device, post, transfer, is_send, transfer_end, sends_done, sent_at)
    gathered = now
    for part in range(row, stop):
        if remote[part] and missing < 0 and np.isnan(transfer_end[part]):
            missing = part
        if len(gathers[5]) > 0 and gathers[5][part] >= 0:
            gathered = max(gathered, gathers[4][gathers[5][part]])
    if missing >= 0:
        waiting_for[device] = missing
    elif gathered > now:
        heapq.heappush(agenda[0], (gathered, device))
    else:
        row_start[row:stop] = now
        stop_of[device] = stop
        heapq.heappush(agenda[0], (now + seconds[row], device))


@compiled
def post_gathers(device, row, now, gathers, state):
    """Put the gathers that stand before a row on the device's stream: their times follow at once."""
    offsets, before, seconds, start, end, _ = gathers
    _, _, _, _, _, _, following, stream_free = state
    while following[device] < offsets[device + 1] and before[following[device]] <= row:
        gather = following[device]
        start[gather] = max(now, stream_free[device])
        end[gather] = stream_free[device] = start[gather] + seconds[gather]
        following[device] += 1


@compiled
def come_closer(number, now, rows, posts, ports, times, agenda):
    """One more of what a transfer waits for has come: after the last it is ready for its ports, if there are any."""
    waits = posts[4]
    waits[number] -= 1
    if waits[number] > 0:
        return
    if ports[0][number].max() >= 0:
        heapq.heappush(agenda[1], np.int64(ports[2][number]))
    else:
        start_transfer(number, now, rows, times, agenda)


@compiled
def start_transfer(number, now, rows, times, agenda):
    """Put a transfer on its way."""
    times[2][number] = now
    heapq.heappush(agenda[0], (now + rows[6][number], np.int64(len(rows[0]) - 1 + number)))


@compiled
def arbitrate(now, rows, posts, ports, times, lines, agenda):
    """Let what is ready join the lines of its ports, all at once, then start what can start."""
    of_transfer = ports[0]
    free, head, tail, behind = lines
    _, ready, changed = agenda
    while len(ready) > 0:
        number = posts[1][heapq.heappop(ready)]
        for port in of_transfer[number]:
            if port >= 0:
                if head[port] < 0:
                    head[port] = number
                else:
                    behind[tail[port], np.argmax(of_transfer[tail[port]] == port)] = number
                tail[port] = number
                changed.append(np.int64(port))
    while len(changed) > 0:
        number = head[changed.pop()]
        if number < 0 or not may_start(number, of_transfer, free, head):
            continue
        start_transfer(number, now, rows, times, agenda)
        for column in range(of_transfer.shape[1]):
            port = of_transfer[number, column]
            if port >= 0:
                free[port] -= 1
                head[port] = behind[number, column]
                changed.append(np.int64(port))


@compiled
def may_start(number, of_transfer, free, head):
    """Whether a transfer heads the lines of all its ports and each has a free place."""
    for port in of_transfer[number]:  # noqa: SIM110 - Numba compiles no generator expression in all()
        if port >= 0 and (free[port] == 0 or head[port] != number):
            return False
    return True
