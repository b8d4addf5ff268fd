"""Parts of the event model in addition to rows and transfers: gathers, copies, barriers, ports, the end of a step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator
from heapq import heappush
from typing import Any

import numpy as np
import simpy
from simpy.events import NORMAL, EventPriority

from ppsim.plan.resolve import Plan
from ppsim.plan.streams import POST_VALIDATED, SideStream

LAST = 2  # a priority after SimPy's own: after everything else that happens at the same time


class Arrival(simpy.Event):
    """An event at a known time, such as the end of a transfer: the first part of the model that needs it creates it."""

    def at(self, time: float) -> None:
        """Let the event happen at `time`, not in the past; `now + (time - now)` may differ from it in the last bit."""
        self._ok, self._value = True, None
        heappush(self.env._queue, (time, NORMAL, next(self.env._eid), self))

    def after(self, seconds: float, priority: int = NORMAL) -> None:
        """Let the event happen `seconds` from now; at equal times the lower priority goes first."""
        self._ok, self._value = True, None
        self.env.schedule(self, EventPriority(priority), seconds)


class _Awaited:
    """Work that overlaps the rows of devices; `of_row` has the event that a row waits for."""

    of_row: dict[int, Any]

    def needed(self, row: int, end: int) -> list[Any]:
        """Return the events that the slot of rows `row` to `end` waits for."""
        return [self.of_row[part] for part in range(row, end) if part in self.of_row]


class StreamProcesses(_Awaited):
    """The UNSHARDs of each device, its gradient reductions or its copies: one process for each.

    Each waits for the one before it of its device and way, a RELOAD also for an OFFLOAD, then for its switch, a port:
    `join` puts it in line, and its event in `turns` happens when it may start; `leave` frees the switch.
    """

    def __init__(
        self,
        env: simpy.Environment,
        plan: Plan,
        stream: SideStream | None,
        join: Callable[[int], None] | None = None,
        leave: Callable[[int], None] | None = None,
    ):
        self.env, self.join, self.leave = env, join, leave
        # by device: the first row after each post, and its number
        self.unposted: list[deque[tuple[int, int]]] = [deque() for _ in range(plan.schedule.devices)]
        self.seconds: list[float] = []
        self.ended: list[simpy.Event] = []
        self.needed_first: list[list[int]] = []
        self.of_row: dict[int, simpy.Event] = {}
        self.turns: dict[int, simpy.Event] = {}
        if stream is not None:
            for number, (device, before) in enumerate(zip(stream.device, stream.before.tolist(), strict=True)):
                self.unposted[device].append((before, number))
            self.seconds = stream.seconds.tolist()
            self.ended = [env.event() for _ in self.seconds]
            waits = zip(stream.previous.tolist(), stream.after.tolist(), strict=True)
            self.needed_first = [[other for other in both if other >= 0] for both in waits]
            of_row = zip(stream.user.tolist(), self.ended, strict=True)
            self.of_row = {user: ended for user, ended in of_row if user >= 0}
            self.turns = {number: env.event() for number in np.flatnonzero(stream.line >= 0).tolist()}
        self.start, self.end = [0.0] * len(self.seconds), [0.0] * len(self.seconds)

    def post(self, device: int, row: int) -> None:
        """Begin what is posted before a row of a device."""
        unposted = self.unposted[device]
        while unposted and unposted[0][0] <= row:
            self.env.process(self.run(unposted.popleft()[1]))

    def run(self, number: int) -> Generator[simpy.Event]:
        """Run one item: a process."""
        for other in self.needed_first[number]:
            if self.ended[other].callbacks is not None:
                yield self.ended[other]
        if number in self.turns and self.join:
            self.join(number)
            yield self.turns[number]
        self.start[number] = self.env.now
        yield self.env.timeout(self.seconds[number])
        self.end[number] = self.env.now
        self.ended[number].succeed()
        if number in self.turns and self.leave:
            self.leave(number)


class BarrierStreams(_Awaited):
    """The barriers of a plan: each begins when its rows and the one before it have ended, and rows wait for its end."""

    def __init__(self, env: simpy.Environment, plan: Plan):
        self.env = env
        self.feeds: dict[int, int] = {}
        self.of_row: dict[int, simpy.Event] = {}
        self.seconds: list[float] = []
        self.next_row = plan.schedule.offsets[:-1].tolist()  # the first row of each device that has not been counted
        barriers = plan.barriers
        if barriers is not None and plan.barrier_seconds is not None:
            self.seconds = plan.barrier_seconds.tolist()
            self.following = barriers.following.tolist()
            self.waits = (barriers.first[1:] - barriers.first[:-1]).tolist()
            for one in filter(lambda one: one >= 0, self.following):
                self.waits[one] += 1
            self.passed = [env.event() for _ in self.seconds]
            self.feeds = dict(zip(barriers.producer.tolist(), barriers.of_producer.tolist(), strict=True))
            self.of_row = {row: self.passed[one] for row, one in enumerate(barriers.needs.tolist()) if one >= 0}
        self.start, self.end = [0.0] * len(self.seconds), [0.0] * len(self.seconds)

    def post(self, device: int, row: int) -> None:
        """Count the rows of a device below `row`, which have ended; the last row of a barrier begins it."""
        for ended in range(self.next_row[device], row):
            barrier = self.feeds.get(ended, -1)
            if barrier >= 0:
                self._count_off(barrier)
        self.next_row[device] = row

    def _count_off(self, barrier: int) -> None:
        """Count one more end that a barrier waits for; the last one begins it."""
        self.waits[barrier] -= 1
        if self.waits[barrier] == 0:
            self.start[barrier] = self.env.now
            self.end[barrier] = self.env.now + self.seconds[barrier]
            self.env.process(self._pass(barrier))

    def _pass(self, barrier: int) -> Generator[simpy.Event]:
        yield self.env.timeout(self.seconds[barrier])
        self.passed[barrier].succeed()
        if self.following[barrier] >= 0:
            self._count_off(self.following[barrier])


class PortLines:
    """The lines before ports: first come, first served, without overtaking.

    Items (transfers by consuming row, and copies, whose numbers follow those of all transfers) that become ready at one
    time join together in the order of `turn`, each in the lines of all its ports. An item starts when it is first in
    all its lines and each of its ports is free, and occupies them until it ends. So no two can wait for each other.
    """

    def __init__(self, plan: Plan, first_copy: int):
        ports, copies, posts = plan.ports, plan.copies, plan.posts
        self.ports_of: dict[int, list[int]] = {}
        self.free: list[int] = []
        self.turn: dict[int, int] = {}
        if ports is not None and posts is not None:
            self.ports_of = {
                row: [port for port in own if port >= 0] for row, own in enumerate(ports.of_transfer.tolist())
            }
            self.free = ports.capacity.tolist()
            sends = np.flatnonzero(posts.is_send)  # lower sender first, then program order
            self.turn = dict(zip(posts.transfer[sends].tolist(), sends.tolist(), strict=True))
        for copy, line in enumerate(() if copies is None else copies.line.tolist()):
            self.ports_of[first_copy + copy] = [len(self.free) + line] if line >= 0 else []
        self.free += [1] * (0 if copies is None else copies.lines)
        self.lines: list[deque[int]] = [deque() for _ in self.free]
        self.ready: list[int] = []
        self.changed: list[int] = []

    def leave(self, item: int) -> None:
        """Free the ports of an item that has ended."""
        for port in self.ports_of[item]:
            self.free[port] += 1
            self.changed.append(port)

    def start(self) -> list[int]:
        """Let ready items join their lines, and return those that start."""
        for item in sorted(self.ready, key=lambda item: self.turn.get(item, item)):
            for port in self.ports_of[item]:
                self.lines[port].append(item)
                self.changed.append(port)
        self.ready.clear()
        started = []
        while self.changed:
            line = self.lines[self.changed.pop()]
            ports = self.ports_of[line[0]] if line else []
            if line and all(self.free[port] and self.lines[port][0] == line[0] for port in ports):
                started.append(line[0])
                for port in ports:
                    self.lines[port].popleft()
                    self.free[port] -= 1
                    self.changed.append(port)
        return started


class StepEnd:
    """The optimizer steps, one per device.

    Each waits until its device has done all its actions and reductions, under "sync" until all devices have. Source of
    the other, "post-validated": arXiv 2401.10241, section 4.
    """

    def __init__(self, env: simpy.Environment, plan: Plan):
        self.env, self.plan = env, plan
        self.seconds = [] if plan.optimizer_seconds is None else plan.optimizer_seconds.tolist()
        self.start, self.end = [0.0] * len(self.seconds), [0.0] * len(self.seconds)

    def follow(self, devices: list[simpy.Process], reduced: list[simpy.Event]) -> None:
        """Begin the steps that follow the processes of the devices and the ends of all reductions, device by device."""
        everything, reductions = self.env.all_of([*devices, *reduced]), self.plan.reductions
        for device in range(len(self.seconds)):
            ready = everything
            if self.plan.optimizer == POST_VALIDATED:
                own = slice(0) if reductions is None else slice(*reductions.offsets[device : device + 2])
                ready = self.env.all_of([devices[device], *reduced[own]])
            self.env.process(self.step(device, ready))

    def step(self, device: int, gradients_ready: simpy.Event) -> Generator[simpy.Event]:
        """Run the optimizer step of a device: a process."""
        yield gradients_ready
        self.start[device] = self.env.now
        yield self.env.timeout(self.seconds[device])
        self.end[device] = self.env.now
