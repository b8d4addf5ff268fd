"""The compiled engine's loop if transfers share ports or copies share a switch.

Unlike `ppsim.engines.kernels.run_queues` it follows time, because only time decides which transfer is first at a port.
At each time it first ends everything that ends then. After that, each transfer that is ready joins the lines of its
ports: lower sending device first, then program order. Then each transfer starts that is first in all its lines and
finds every port free. Copies that are ready join the line of their switch at the same time. Something that takes no
time causes another round at the same time. The operations on times are those of the event model.
"""

import heapq
from typing import NamedTuple

import numpy as np

from ppsim.base.compiling import kernel
from ppsim.engines.kernels import (
    NEXT_OF_RECV,
    NEXT_OF_SEND,
    RECEIVER,
    ROW_END,
    ROW_START,
    TRANSFER_END,
    TRANSFER_START,
    WAITS,
    open_barrier,
    post_gathers,
    wait_for_sends,
)
from ppsim.lowering.posts import Posts
from ppsim.plan.streams import Ports


class PortColumns(NamedTuple):
    """Ports of each transfer, transfers that each port carries at once, and by transfer its SEND, an index of posts."""

    of_transfer: np.ndarray
    capacity: np.ndarray
    send_post: np.ndarray


class Lines(NamedTuple):
    """Lines before ports: the transfers that still fit, the first and the last in line, the next after each."""

    free: np.ndarray
    head: np.ndarray
    tail: np.ndarray
    following: np.ndarray


class Agenda(NamedTuple):
    """Lists of events, of SENDs whose transfers are ready for their ports, and of ports where something changed.

    Likewise copies that are ready for their switch, and the lines before switches where something changed.
    """

    events: list
    ready: list
    changed: list
    ready_copies: list
    changed_lines: list


def port_columns(ports: Ports | None, posts: Posts, rows: int) -> PortColumns:
    """Return the ports, and the SEND of each transfer; with `ports` None only switches are shared."""
    if ports is None:
        ports = Ports(np.full((rows, 1), -1, np.int32), np.empty(0, np.int64))
    of_transfer = np.pad(ports.of_transfer, ((0, posts.syncs), (0, 0)), constant_values=-1)
    send_post = np.zeros(len(of_transfer), np.int64)
    send_post[posts.transfer[posts.is_send]] = np.flatnonzero(posts.is_send)
    return PortColumns(of_transfer, ports.capacity, send_post)


@kernel(allocates=True)
def run_in_time_order(rows, queues, gathers, copies, barriers, ports, devices, times):
    """Fill `times`; at the end `devices` has the state in which each device has stopped. `rows` has lengths by row.

    `run_queues` cannot run such a plan: which transfer gets a shared port first depends on the time, and it follows
    dependencies without a clock.
    """
    count, port_count = len(rows.offsets) - 1, len(ports.capacity)
    times[:, TRANSFER_START:] = np.nan
    following = np.full(ports.of_transfer.shape, -1, np.int64)
    lines = Lines(
        ports.capacity.copy(), np.full(port_count, -1, np.int64), np.full(port_count, -1, np.int64), following
    )
    switches = len(copies.free)
    waiting_copies = Lines(
        copies.free,
        np.full(switches, -1, np.int64),
        np.full(switches, -1, np.int64),
        np.full(len(copies.end), -1, np.int64),
    )
    # An event is (time, device) where a slot ends, or a gather that it waits for, (time, count + transfer),
    # (time, count + rows + copy), or (time, count + rows + copies + barrier).
    agenda = Agenda(
        [(0.0, device) for device in range(count)], [np.int64(0)], [np.int64(0)], [np.int64(0)], [np.int64(0)]
    )
    agenda.ready.clear()
    agenda.changed.clear()
    agenda.ready_copies.clear()
    agenda.changed_lines.clear()
    now = 0.0
    while True:
        if len(agenda.events) == 0 or agenda.events[0][0] > now:
            arbitrate(now, rows, queues, ports, times, lines, agenda)
            arbitrate_copies(now, rows, copies, waiting_copies, agenda)
            if len(agenda.events) == 0:
                return
        now, code = heapq.heappop(agenda.events)
        if code < count:
            advance(code, now, rows, queues, ports, gathers, copies, barriers, times, devices, agenda)
        elif code < count + len(rows.lengths.waits):
            end_transfer(
                code - count, now, rows, queues, ports, gathers, copies, barriers, times, devices, lines, agenda
            )
        elif code < count + len(rows.lengths.waits) + len(copies.end):
            copy = code - count - len(rows.lengths.waits)
            end_copy(copy, now, rows, queues, ports, gathers, copies, barriers, times, devices, agenda)
        else:
            barrier = code - count - len(rows.lengths.waits) - len(copies.end)
            end_barrier(barrier, now, rows, queues, ports, gathers, copies, barriers, times, devices, agenda)


@kernel(allocates=True)
def end_copy(copy, now, rows, queues, ports, gathers, copies, barriers, times, devices, agenda):
    """End a copy: free its switch, prepare the copies after it and wake the device that waits for it."""
    copies.end[copy] = now
    if copies.line[copy] >= 0:
        copies.free[copies.line[copy]] = True
        agenda.changed_lines.append(np.int64(copies.line[copy]))
    for follower in (copies.next_of_engine[copy], copies.reload[copy]):
        if follower >= 0:
            count_off_copy(follower, now, rows, copies, agenda)
    device = np.int64(copies.device[copy])
    if devices.waiting_for[device] == -2 - copy:
        devices.waiting_for[device] = -1
        advance(device, now, rows, queues, ports, gathers, copies, barriers, times, devices, agenda)


@kernel(allocates=True)
def count_off_copy(copy, now, rows, copies, agenda):
    """Count one more thing that a copy waits for; after the last it starts, or is ready for its switch."""
    copies.waits[copy] -= 1
    if copies.waits[copy] > 0:
        return
    if copies.line[copy] >= 0:
        heapq.heappush(agenda.ready_copies, np.int64(copy))
    else:
        start_copy(copy, now, rows, copies, agenda)


@kernel(allocates=True)
def start_copy(copy, now, rows, copies, agenda):
    """Start a copy."""
    copies.start[copy] = now
    push(agenda.events, now + copies.seconds[copy], len(rows.offsets) - 1 + len(rows.lengths.waits) + copy)


@kernel(allocates=True)
def arbitrate_copies(now, rows, copies, lines, agenda):
    """Let ready copies join the lines of their switches, then start the first of each line whose switch is free."""
    while len(agenda.ready_copies) > 0:
        copy = heapq.heappop(agenda.ready_copies)
        line = copies.line[copy]
        if lines.head[line] < 0:
            lines.head[line] = copy
        else:
            lines.following[lines.tail[line]] = copy
        lines.tail[line] = copy
        agenda.changed_lines.append(np.int64(line))
    while len(agenda.changed_lines) > 0:
        line = agenda.changed_lines.pop()
        copy = lines.head[line]
        if lines.free[line] and copy >= 0:
            lines.free[line] = False
            lines.head[line] = lines.following[copy]
            start_copy(copy, now, rows, copies, agenda)


@kernel(allocates=True)
def end_transfer(number, now, rows, queues, ports, gathers, copies, barriers, times, devices, lines, agenda):
    """End a transfer: free its ports, prepare the transfers after it and wake the devices that wait for it."""
    times[number, TRANSFER_END] = now
    queues.links[number, RECEIVER] = -1
    for port in ports.of_transfer[number]:
        if port >= 0:
            lines.free[port] += 1
            agenda.changed.append(np.int64(port))
    for side in (NEXT_OF_SEND, NEXT_OF_RECV):
        follower = queues.links[number, side]
        if follower >= 0:
            count_off_transfer(np.int64(follower), now, rows, queues, ports, times, agenda)
    if number >= len(rows.source):
        return  # a sync, which no device waits for
    for holder in (rows.device[rows.source[number]], rows.device[number]):
        if devices.waiting_for[holder] == number:
            devices.waiting_for[holder] = -1
            advance(np.int64(holder), now, rows, queues, ports, gathers, copies, barriers, times, devices, agenda)


@kernel(allocates=True)
def end_barrier(number, now, rows, queues, ports, gathers, copies, barriers, times, devices, agenda):
    """End a barrier: wake the devices that wait for it, and count it off the barrier after it."""
    barriers.end[number] = now
    count_off_barrier(np.int64(barriers.following[number]), now, rows, copies, barriers, agenda)
    for device in range(len(devices.waiting_at)):
        if devices.waiting_at[device] == number:
            devices.waiting_at[device] = -1
            advance(np.int64(device), now, rows, queues, ports, gathers, copies, barriers, times, devices, agenda)


@kernel(allocates=True)
def advance(device, now, rows, queues, ports, gathers, copies, barriers, times, devices, agenda):
    """End the slot that a device runs, if any, make the posts after it, and start the next slot if that can start."""
    row, last = devices.position[device], rows.offsets[device + 1]
    if devices.running_until[device] >= 0:
        times[row : devices.running_until[device], ROW_END] = now
        if len(barriers.feeds) > 0:
            for part in range(row, devices.running_until[device]):
                count_off_barrier(np.int64(barriers.feeds[part]), now, rows, copies, barriers, agenda)
        row = devices.running_until[device]
        devices.position[device], devices.running_until[device] = row, -1
    post = queues.offsets[device] + devices.posted[device]
    while post < queues.offsets[device + 1] and queues.before[post] <= row:
        count_off_transfer(np.int64(queues.transfer[post]), now, rows, queues, ports, times, agenda)
        post += 1
    devices.posted[device] = post - queues.offsets[device]
    post_gathers(device, row, now, gathers, devices)
    copy = devices.next_copy[device]
    while copy < copies.offsets[device + 1] and copies.before[copy] <= row:
        count_off_copy(np.int64(copy), now, rows, copies, agenda)
        copy += 1
    devices.next_copy[device] = copy
    if row == last:
        return
    stop = row + 2 if row + 1 < last and rows.fused[row + 1] else row + 1
    missing = -1
    if rows.blocking:
        missing = wait_for_sends(device, post, queues, times, devices)
    gathered = now
    for part in range(row, stop):
        if missing == -1 and queues.links[part, RECEIVER] >= 0:
            missing = part
        if len(gathers.of_row) > 0 and gathers.of_row[part] >= 0:
            gathered = max(gathered, gathers.end[gathers.of_row[part]])
        copy = np.int64(copies.of_row[part]) if len(copies.of_row) > 0 else np.int64(-1)
        if missing == -1 and copy >= 0 and np.isnan(copies.end[copy]):
            missing = -2 - copy
        if len(barriers.needs) > 0 and barriers.needs[part] >= 0:
            gathered = max(gathered, barriers.end[barriers.needs[part]])
    if missing != -1:
        devices.waiting_for[device] = missing
    elif np.isinf(gathered):
        devices.waiting_at[device] = open_barrier(row, stop, barriers)
    elif gathered > now:
        push(agenda.events, gathered, device)
    else:
        times[row:stop, ROW_START] = now
        devices.running_until[device] = stop
        push(agenda.events, now + rows.lengths.seconds[row], device)


@kernel(allocates=True)
def count_off_barrier(barrier, now, rows, copies, barriers, agenda):
    """Count one more end that a barrier waits for, -1 for no barrier; after the last it begins."""
    if barrier >= 0:
        barriers.start[barrier] = now
        barriers.waits[barrier] -= 1
        if barriers.waits[barrier] == 0:
            first = len(rows.offsets) - 1 + len(rows.lengths.waits) + len(copies.end)
            push(agenda.events, now + barriers.seconds[barrier], first + barrier)


@kernel(allocates=True)
def count_off_transfer(number, now, rows, queues, ports, times, agenda):
    """Count one more thing that a transfer waits for; after the last it starts, or is ready for its ports."""
    queues.links[number, WAITS] -= 1
    if queues.links[number, WAITS] > 0:
        return
    if ports.of_transfer[number].max() >= 0:
        heapq.heappush(agenda.ready, np.int64(ports.send_post[number]))
    else:
        start_transfer(number, now, rows, times, agenda)


@kernel(allocates=True)
def start_transfer(number, now, rows, times, agenda):
    """Start a transfer."""
    times[number, TRANSFER_START] = now
    push(agenda.events, now + rows.lengths.waits[number], len(rows.offsets) - 1 + number)


@kernel(allocates=True)
def push(events, time, code):
    """Put an event on the agenda."""
    heapq.heappush(events, (time, code))


@kernel(allocates=True)
def arbitrate(now, rows, queues, ports, times, lines, agenda):
    """Let ready transfers join the lines of their ports, all at once, then start those that can start."""
    of_transfer = ports.of_transfer
    free, head, tail, following = lines
    while len(agenda.ready) > 0:
        number = queues.transfer[heapq.heappop(agenda.ready)]
        for port in of_transfer[number]:
            if port >= 0:
                if head[port] < 0:
                    head[port] = number
                else:
                    following[tail[port], np.argmax(of_transfer[tail[port]] == port)] = number
                tail[port] = number
                agenda.changed.append(np.int64(port))
    while len(agenda.changed) > 0:
        number = head[agenda.changed.pop()]
        if number < 0 or not may_leave(number, of_transfer, free, head):
            continue
        start_transfer(number, now, rows, times, agenda)
        for column in range(of_transfer.shape[1]):
            port = of_transfer[number, column]
            if port >= 0:
                free[port] -= 1
                head[port] = following[number, column]
                agenda.changed.append(np.int64(port))


@kernel(allocates=True)
def may_leave(number, of_transfer, free, head):
    """Return if a transfer is first in the lines of all its ports and each port is free."""
    for port in of_transfer[number]:  # noqa: SIM110 - Numba compiles no generator expression in all()
        if port >= 0 and (free[port] == 0 or head[port] != number):
            return False
    return True
