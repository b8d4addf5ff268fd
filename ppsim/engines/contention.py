"""The compiled engine's loop if transfers share ports or copies share a switch.

Unlike `ppsim.engines.kernels.run_queues` it follows time, because only time decides which transfer is first at a port.
At each time it first ends everything that ends then. After that, each item (a transfer, copy or barrier) that is ready
joins the lines of its ports: lower sending device first, then program order. Then each item starts that is first in all
its lines and finds every port free. Something that takes no time causes another round at the same time. The operations
on times are those of the event model.
"""

import heapq
from typing import NamedTuple

import numpy as np

from ppsim.base.compiling import kernel
from ppsim.engines.kernels import (
    NEXT,
    RECEIVER,
    ROW_END,
    ROW_START,
    TRANSFER_END,
    TRANSFER_START,
    WAITS,
    BarrierColumns,
    run_stream,
    wait_for_sends,
)
from ppsim.lowering.posts import Posts
from ppsim.plan.resolve import Plan
from ppsim.plan.streams import no_copies

SENDER, TURN = 4, 5  # further columns of `Queues.links`: another device that may wait, and the order of joining lines


class Items(NamedTuple):
    """Everything that runs in addition to the rows, in one numbering: transfers by consuming row, copies, barriers.

    `Queues.links` and the columns of transfers in the table of times have one row per item; `RECEIVER` is the device
    that may wait for a copy, and each device may wait for a barrier.
    """

    # first_copy, first_barrier: number of the first copy, and of the first barrier
    first_copy: int
    first_barrier: int
    # int32 (items, ports on a path): the ports that each goes through, or -1; the line of a switch is a port for one
    # copy
    ports: np.ndarray
    # int32 (posts + items,): the item of each turn: that of a SEND, or after all posts a copy or barrier
    of_turn: np.ndarray
    # int32 (rows, 2): the copy and the barrier that each row waits for, or -1; empty if there are none
    needed: np.ndarray


class Lines(NamedTuple):
    """Lines before ports: how many items each port still takes, the first and the last in line, the next after each."""

    free: np.ndarray
    head: np.ndarray
    tail: np.ndarray
    behind: np.ndarray


class Agenda(NamedTuple):
    """Lists of events, of the turns of items ready for their ports, and of ports where something changed.

    An event is (time, device) where a slot ends or a gather that it waits for, or (time, devices + item).
    """

    events: list
    ready: list
    changed: list


def make_items(plan: Plan, posts: Posts, links: np.ndarray, barriers: BarrierColumns) -> tuple[Items, np.ndarray]:
    """Return the items of a plan and their links, which continue those of its queues."""
    schedule, rows, first_copy = plan.schedule, len(plan.schedule.kind), len(links)
    copies = no_copies(schedule.devices) if plan.copies is None else plan.copies
    first_barrier = first_copy + len(copies.stage)
    count = first_barrier + len(barriers.seconds)
    every, copied = np.arange(count, dtype=np.int32), slice(first_copy, first_barrier)
    table = np.full((count, TURN + 1), -1, np.int32)
    table[:first_copy, :SENDER] = links
    remote = np.flatnonzero(plan.remote)
    table[remote, SENDER] = schedule.device[schedule.source[remote]]
    table[:, TURN] = len(posts.transfer) + every
    table[posts.transfer[posts.is_send], TURN] = np.flatnonzero(posts.is_send)
    table[copied, WAITS] = 1 + (copies.previous >= 0) + (copies.after >= 0)
    table[copied, RECEIVER] = copies.device
    for column, before in enumerate((copies.previous, copies.after), NEXT):
        waiting = np.flatnonzero(before >= 0)
        table[first_copy + before[waiting], column] = first_copy + waiting
    table[first_barrier:, WAITS] = barriers.waits
    table[first_barrier:, NEXT] = np.where(barriers.following >= 0, first_barrier + barriers.following, -1)
    needed = np.full((rows if count > first_copy else 0, 2), -1, np.int32)
    used = np.flatnonzero(copies.user >= 0)
    needed[copies.user[used], 0] = first_copy + used
    if count > first_barrier:
        needed[:, 1] = np.where(barriers.needs >= 0, first_barrier + barriers.needs, -1)
    of_transfer = np.full((rows, 1), -1) if plan.ports is None else plan.ports.of_transfer
    ports = np.full((count, of_transfer.shape[1]), -1, np.int32)
    ports[:rows] = of_transfer
    switches = 0 if plan.ports is None else len(plan.ports.capacity)
    ports[copied, 0] = np.where(copies.line >= 0, switches + copies.line, -1)
    return Items(first_copy, first_barrier, ports, np.append(posts.transfer, every), needed), table


def port_capacity(plan: Plan) -> np.ndarray:
    """Return the number of items that each port takes at once; a line of a switch is a port for one copy."""
    of_transfers = np.empty(0, np.int64) if plan.ports is None else plan.ports.capacity
    return np.append(of_transfers, np.ones(0 if plan.copies is None else plan.copies.lines, np.int64))


@kernel(allocates=True)
def run_in_time_order(rows, queues, gathers, copies, barriers, items, capacity, devices, times):
    """Fill `times` of rows and items; at the end `devices` has the state in which each device has stopped.

    `run_queues` cannot run such a plan: which transfer gets a shared port first depends on the time, and it follows
    dependencies without a clock. `rows` has lengths by row and by item.
    """
    count, now = len(rows.offsets) - 1, 0.0
    times[:, TRANSFER_START:] = np.nan
    lines = Lines(
        capacity.copy(), np.full(len(capacity), -1), np.full(len(capacity), -1), np.full(items.ports.shape, -1)
    )
    agenda = Agenda([(0.0, device) for device in range(count)], [np.int64(0)], [np.int64(0)])
    agenda.ready.clear()
    agenda.changed.clear()
    while True:
        if len(agenda.events) == 0 or agenda.events[0][0] > now:
            arbitrate(now, rows, queues, items, lines, times, agenda)
            if len(agenda.events) == 0:
                return
        now, code = heapq.heappop(agenda.events)
        if code < count:
            advance(code, now, rows, queues, gathers, copies, barriers, items, devices, times, agenda)
        else:
            end_item(code - count, now, rows, queues, gathers, copies, barriers, items, lines, devices, times, agenda)


@kernel(allocates=True)
def end_item(item, now, rows, queues, gathers, copies, barriers, items, lines, devices, times, agenda):
    """End an item: free its ports, prepare the items after it and let the devices that wait for it go on."""
    links = queues.links
    times[item, TRANSFER_END] = now
    for port in items.ports[item]:
        if port >= 0:
            lines.free[port] += 1
            agenda.changed.append(np.int64(port))
    for side in range(NEXT, NEXT + 2):
        if links[item, side] >= 0:
            count_off(np.int64(links[item, side]), now, rows, queues, items, times, agenda)
    if item >= items.first_barrier:
        for device in range(len(devices.waiting_for)):
            resume(np.int64(device), item, now, rows, queues, gathers, copies, barriers, items, devices, times, agenda)
        return
    receiver, sender = np.int64(links[item, RECEIVER]), np.int64(links[item, SENDER])
    links[item, RECEIVER] = -1
    resume(sender, item, now, rows, queues, gathers, copies, barriers, items, devices, times, agenda)
    resume(receiver, item, now, rows, queues, gathers, copies, barriers, items, devices, times, agenda)


@kernel(allocates=True)
def resume(device, item, now, rows, queues, gathers, copies, barriers, items, devices, times, agenda):
    """Let a device go on if it waits for an item; -1 is no device."""
    if device >= 0 and devices.waiting_for[device] == item:
        devices.waiting_for[device] = -1
        advance(device, now, rows, queues, gathers, copies, barriers, items, devices, times, agenda)


@kernel(allocates=True)
def advance(device, now, rows, queues, gathers, copies, barriers, items, devices, times, agenda):
    """End the slot that a device runs, if any, make the posts after it, and start the next slot if that can start."""
    row, last = devices.position[device], rows.offsets[device + 1]
    if devices.running_until[device] >= 0:
        times[row : devices.running_until[device], ROW_END] = now
        for part in range(row, devices.running_until[device]):
            if len(barriers.feeds) > 0 and barriers.feeds[part] >= 0:
                count_off(items.first_barrier + barriers.feeds[part], now, rows, queues, items, times, agenda)
        row = devices.running_until[device]
        devices.position[device], devices.running_until[device] = row, -1
    post = devices.next_post[device]
    while post < queues.offsets[device + 1] and queues.before[post] <= row:
        count_off(np.int64(queues.transfer[post]), now, rows, queues, items, times, agenda)
        post += 1
    devices.next_post[device] = post
    run_stream(device, row, now, gathers)
    while copies.next[device] < copies.offsets[device + 1] and copies.before[copies.next[device]] <= row:
        count_off(items.first_copy + copies.next[device], now, rows, queues, items, times, agenda)
        copies.next[device] += 1
    if row == last:
        return
    stop = row + 2 if row + 1 < last and rows.fused[row + 1] else row + 1
    missing, gathered = -1, now
    if rows.blocking:
        missing = wait_for_sends(device, post, queues, times, devices)
    for part in range(row, stop):
        if missing < 0 and queues.links[part, RECEIVER] >= 0:
            missing = part
        if len(items.needed) > 0:
            for item in items.needed[part]:
                if missing < 0 and item >= 0 and np.isnan(times[item, TRANSFER_END]):
                    missing = item
        if len(gathers.of_row) > 0 and gathers.of_row[part] >= 0:
            gathered = max(gathered, gathers.end[gathers.of_row[part]])
    if missing >= 0:
        devices.waiting_for[device] = missing
    elif gathered > now:
        heapq.heappush(agenda.events, (gathered, device))
    else:
        times[row:stop, ROW_START] = now
        devices.running_until[device] = stop
        heapq.heappush(agenda.events, (now + rows.lengths.seconds[row], device))


@kernel(allocates=True)
def count_off(item, now, rows, queues, items, times, agenda):
    """Count one more thing that an item waits for; after the last it starts, or is ready for its ports."""
    queues.links[item, WAITS] -= 1
    if queues.links[item, WAITS] > 0:
        return
    if items.ports[item].max() >= 0:
        heapq.heappush(agenda.ready, np.int64(queues.links[item, TURN]))
    else:
        start_item(item, now, rows, times, agenda)


@kernel(allocates=True)
def start_item(item, now, rows, times, agenda):
    """Start an item, and put its end on the agenda."""
    times[item, TRANSFER_START] = now
    heapq.heappush(agenda.events, (now + rows.lengths.waits[item], len(rows.offsets) - 1 + item))


@kernel(allocates=True)
def arbitrate(now, rows, queues, items, lines, times, agenda):
    """Let ready items join the lines of their ports, all at once, then start those that can start."""
    ports, (free, head, tail, behind) = items.ports, lines
    while len(agenda.ready) > 0:
        item = np.int64(items.of_turn[heapq.heappop(agenda.ready)])
        for port in ports[item]:
            if port >= 0:
                if head[port] < 0:
                    head[port] = item
                else:
                    behind[tail[port], np.argmax(ports[tail[port]] == port)] = item
                tail[port] = item
                agenda.changed.append(np.int64(port))
    while len(agenda.changed) > 0:
        item = head[agenda.changed.pop()]
        if item < 0 or not may_leave(item, ports, free, head):
            continue
        start_item(item, now, rows, times, agenda)
        for column in range(ports.shape[1]):
            port = ports[item, column]
            if port >= 0:
                free[port] -= 1
                head[port] = behind[item, column]
                agenda.changed.append(np.int64(port))


@kernel(allocates=True)
def may_leave(item, ports, free, head):
    """Return if an item is first in the lines of all its ports and each port is free."""
    for port in ports[item]:  # noqa: SIM110 - Numba compiles no generator expression in all()
        if port >= 0 and (free[port] == 0 or head[port] != item):
            return False
    return True
