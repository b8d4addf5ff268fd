"""The compiled engine's loop if transfers share ports or copies share a switch.

Unlike `ppsim.engines.compiled.run_queues` it follows time, because only time decides which transfer is first at a port.
At each time it first ends everything that ends then. After that, each item (see `ppsim.engines.compiled`) that is ready
joins the lines of its ports: lower sending device first, then program order. Then each item starts that is first in all
its lines and finds every port free. Something that takes no time causes another round at the same time. The operations
on times are those of the event model.
"""

import heapq
from typing import NamedTuple

import numpy as np

from ppsim.base.compiling import call_compiled, kernel
from ppsim.engines.compiled import (
    NEXT,
    RECEIVER,
    ROW_END,
    ROW_START,
    TRANSFER_END,
    TRANSFER_START,
    WAITS,
    Devices,
    ItemPosts,
    Items,
    Rows,
    queued_run,
    queued_times,
    wait_for_sends,
)
from ppsim.engines.times import Times
from ppsim.lowering.posts import Posts
from ppsim.plan.resolve import Plan

SENDER, TURN = 4, 5  # further columns of `Items.links`: another device that may wait, and the order of joining lines


class Lines(NamedTuple):
    """Lines before ports; the line of a switch is a port for one copy."""

    ports: np.ndarray  # int32 (items, ports on a path): the ports that each item goes through, or -1
    behind: np.ndarray  # int64, likewise: the item behind it in the line of each port, or -1
    of_turn: np.ndarray  # int32 (posts + items,): the item of each turn; turns are the posts, then the items
    free: np.ndarray  # int64 (ports,): the number of items that a port still takes
    head: np.ndarray  # int64 (ports,): the first item in its line, or -1
    tail: np.ndarray  # int64 (ports,): the last item in its line, or -1


class Agenda(NamedTuple):
    """Lists of events, of the turns of items ready for their ports, and of ports where something changed.

    An event is (time, device) if a slot ends, or (time, devices + item) if an item ends.
    """

    events: list
    ready: list
    changed: list


class Run(NamedTuple):
    """Everything that the loop reads and changes."""

    rows: Rows
    posts: ItemPosts
    items: Items
    lines: Lines
    devices: Devices
    lengths: np.ndarray  # the table of times before anything has run
    times: np.ndarray
    agenda: Agenda


def shares_ports(plan: Plan) -> bool:
    """Return whether transfers share ports or copies share a switch."""
    return plan.ports is not None or (plan.copies is not None and plan.copies.lines > 0)


def run_contended(plan: Plan, posts: Posts) -> Times:
    """Return the times of everything in a plan with shared ports; DeadlockError."""
    run = queued_run(plan, posts)
    items, lines = make_lines(plan, posts, run.items)
    call_compiled(run_in_time_order, run.rows, run.posts, items, lines, run.devices, run.times)
    return queued_times(plan, posts, run._replace(items=items))


def make_lines(plan: Plan, posts: Posts, items: Items) -> tuple[Items, Lines]:
    """Return the items of a plan with `SENDER` and `TURN` in their links, and the empty lines before its ports."""
    schedule, rows, count, copies = plan.schedule, len(plan.schedule.kind), len(items.links), plan.copies
    every, remote = np.arange(count, dtype=np.int32), np.flatnonzero(plan.remote)
    links = np.full((count, TURN + 1), -1, np.int32)
    links[:, :SENDER] = items.links
    links[remote, SENDER] = schedule.device[schedule.source[remote]]
    links[:, TURN] = len(posts.transfer) + every
    links[posts.transfer[posts.is_send], TURN] = np.flatnonzero(posts.is_send)
    of_transfer = np.full((rows, 1), -1) if plan.ports is None else plan.ports.of_transfer
    capacity = np.empty(0, np.int64) if plan.ports is None else plan.ports.capacity
    ports = np.full((count, of_transfer.shape[1]), -1, np.int32)
    ports[:rows] = of_transfer
    if copies is not None:
        own = slice(items.first_barrier - len(copies.line), items.first_barrier)
        ports[own, 0] = np.where(copies.line >= 0, len(capacity) + copies.line, -1)
        capacity = np.append(capacity, np.ones(copies.lines, np.int64))
    nobody = np.full(len(capacity), -1)
    of_turn = np.append(posts.transfer, every)
    lines = Lines(ports, np.full(ports.shape, -1), of_turn, capacity.copy(), nobody, nobody.copy())
    return items._replace(links=links), lines


@kernel(allocates=True)
def run_in_time_order(rows, posts, items, lines, devices, times):
    """Fill `times` of rows and items; at the end `devices` has the state in which each device has stopped."""
    count, now = len(rows.offsets) - 1, 0.0
    lengths = times.copy()
    times[:, TRANSFER_START:] = np.nan
    agenda = Agenda([(0.0, device) for device in range(count)], [np.int64(0)], [np.int64(0)])
    agenda.ready.clear()
    agenda.changed.clear()
    run = Run(rows, posts, items, lines, devices, lengths, times, agenda)
    while True:
        if len(agenda.events) == 0 or agenda.events[0][0] > now:
            arbitrate(now, run)
            if len(agenda.events) == 0:
                return
        now, code = heapq.heappop(agenda.events)
        if code < count:
            advance(code, now, run)
        else:
            end_item(code - count, now, run)


@kernel(allocates=True)
def end_item(item, now, run):
    """End an item: free its ports, prepare the items after it and let the devices that wait for it go on."""
    links = run.items.links
    run.times[item, TRANSFER_END] = now
    for port in run.lines.ports[item]:
        if port >= 0:
            run.lines.free[port] += 1
            run.agenda.changed.append(np.int64(port))
    for side in range(NEXT, NEXT + 2):
        if links[item, side] >= 0:
            note_input(np.int64(links[item, side]), now, run)
    if item >= run.items.first_barrier:
        for device in range(len(run.devices.waiting_for)):
            resume(np.int64(device), item, now, run)
        return
    receiver, sender = np.int64(links[item, RECEIVER]), np.int64(links[item, SENDER])
    links[item, RECEIVER] = -1
    resume(sender, item, now, run)
    resume(receiver, item, now, run)


@kernel(allocates=True)
def resume(device, item, now, run):
    """Let a device go on if it waits for an item; -1 is no device."""
    if device >= 0 and run.devices.waiting_for[device] == item:
        run.devices.waiting_for[device] = -1
        advance(device, now, run)


@kernel(allocates=True)
def advance(device, now, run):
    """End the slot that a device runs, if any, make the posts after it, and start the next slot if that can start."""
    rows, posts, items, _, devices, lengths, times, agenda = run
    row, last = devices.position[device], rows.offsets[device + 1]
    if devices.running_until[device] >= 0:
        times[row : devices.running_until[device], ROW_END] = now
        row = devices.running_until[device]
        devices.position[device], devices.running_until[device] = row, -1
    post = devices.next_post[device]
    while post < posts.offsets[device + 1] and posts.before[post] <= row:
        note_input(np.int64(posts.item[post]), now, run)
        post += 1
    devices.next_post[device] = post
    if row == last:
        return
    stop, missing = row + 2 if row + 1 < last and rows.fused[row + 1] else row + 1, -1
    if rows.blocking:
        missing = wait_for_sends(device, post, posts, items, times, devices)
    for part in range(row, stop):
        if missing < 0 and items.links[part, RECEIVER] >= 0:
            missing = part
        if len(items.needed) > 0:
            for item in items.needed[part]:
                if missing < 0 and item >= 0 and np.isnan(times[item, TRANSFER_END]):
                    missing = item
    if missing >= 0:
        devices.waiting_for[device] = missing
    else:
        times[row:stop, ROW_START] = now
        devices.running_until[device] = stop
        heapq.heappush(agenda.events, (now + lengths[row, ROW_END], device))


@kernel(allocates=True)
def note_input(item, now, run):
    """Note one more input of an item; after the last one it starts, or is ready for its ports."""
    links = run.items.links
    links[item, WAITS] -= 1
    if links[item, WAITS] > 0:
        return
    if run.lines.ports[item].max() >= 0:
        heapq.heappush(run.agenda.ready, np.int64(links[item, TURN]))
    else:
        start_item(item, now, run)


@kernel(allocates=True)
def start_item(item, now, run):
    """Start an item, and put its end on the agenda."""
    run.times[item, TRANSFER_START] = now
    heapq.heappush(run.agenda.events, (now + run.lengths[item, TRANSFER_END], len(run.rows.offsets) - 1 + item))


@kernel(allocates=True)
def arbitrate(now, run):
    """Let ready items join the lines of their ports, all at once, then start those that can start."""
    agenda, (ports, behind, of_turn, free, head, tail) = run.agenda, run.lines
    while len(agenda.ready) > 0:
        item = np.int64(of_turn[heapq.heappop(agenda.ready)])
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
        start_item(item, now, run)
        for column in range(ports.shape[1]):
            port = ports[item, column]
            if port >= 0:
                free[port] -= 1
                head[port] = behind[item, column]
                agenda.changed.append(np.int64(port))


@kernel(allocates=True)
def may_leave(item, ports, free, head):
    """Return whether an item is first in the lines of all its ports and each port is free."""
    for port in ports[item]:  # noqa: SIM110 - Numba compiles no generator expression in all()
        if port >= 0 and (free[port] == 0 or head[port] != item):
            return False
    return True
