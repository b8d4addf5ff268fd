"""Parts of the event model in addition to rows and transfers: gathers, copies, barriers, ports, the end of a step."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from heapq import heappush

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


class SideWork:
    """Work that overlaps the rows of devices: UNSHARDs, gradient reductions, copies or barriers.

    An item starts when its posts are made and the items before it have ended. If it goes through a switch, a port,
    `join` then puts it in line, and the owner of the line calls `begin`; `leave` frees the switch.
    """

    def __init__(
        self,
        env: simpy.Environment,
        plan: Plan,
        seconds: np.ndarray | None = None,
        *,
        posts: Iterable[tuple[int, int, int]] = (),  # device, next row and item, in program order
        follows: Iterable[tuple[int, int]] = (),  # an item, and one that waits for its end
        users: Iterable[tuple[int, int]] = (),  # a row, and the item whose end it waits for
    ):
        self.env, self.seconds = env, [] if seconds is None else seconds.tolist()
        self.unposted: list[deque[tuple[int, int]]] = [deque() for _ in range(plan.schedule.devices)]
        self.waits = [0] * len(self.seconds)
        self.followers: list[list[int]] = [[] for _ in self.seconds]
        for device, before, item in posts:
            self.unposted[device].append((before, item))
            self.waits[item] += 1
        for item, follower in follows:
            self.followers[item].append(follower)
            self.waits[follower] += 1
        self.ended = [Arrival(env) for _ in self.seconds]
        self.of_row = {row: self.ended[item] for row, item in users}
        self.in_line: set[int] = set()
        self.join: Callable[[int], None] | None = None
        self.leave: Callable[[int], None] | None = None
        self.start, self.end = [0.0] * len(self.seconds), [0.0] * len(self.seconds)

    @classmethod
    def of_stream(cls, env: simpy.Environment, plan: Plan, stream: SideStream | None) -> SideWork:
        """Return the UNSHARDs, reductions or copies of a plan."""
        if stream is None:
            return cls(env, plan)
        items = range(len(stream.seconds))
        awaited = (zip(before.tolist(), items, strict=True) for before in (stream.previous, stream.after))
        return cls(
            env, plan, stream.seconds,
            posts=zip(stream.device.tolist(), stream.before.tolist(), items, strict=True),
            follows=((before, item) for pairs in awaited for before, item in pairs if before >= 0),
            users=((row, item) for row, item in zip(stream.user.tolist(), items, strict=True) if row >= 0),
        )  # fmt: skip

    @classmethod
    def of_barriers(cls, env: simpy.Environment, plan: Plan) -> SideWork:
        """Return the barriers of a plan; the end of each row that a barrier needs is a post."""
        barriers = plan.barriers
        if barriers is None:
            return cls(env, plan)
        device, fed = (
            plan.schedule.device.tolist(),
            zip(barriers.producer.tolist(), barriers.of_producer.tolist(), strict=True),
        )
        return cls(
            env, plan, barriers.seconds,
            posts=((device[row], row + 1, barrier) for row, barrier in sorted(fed)),
            follows=((barrier, barrier + 1) for barrier in barriers.followed.tolist()),
            users=((row, barrier) for row, barrier in enumerate(barriers.needs.tolist()) if barrier >= 0),
        )  # fmt: skip

    def needed(self, row: int, end: int) -> list[Arrival]:
        """Return the events that the slot of rows `row` to `end` waits for."""
        return [self.of_row[part] for part in range(row, end) if part in self.of_row]

    def post(self, device: int, row: int) -> None:
        """Make the posts of a device before a row."""
        unposted = self.unposted[device]
        while unposted and unposted[0][0] <= row:
            self._count_off(unposted.popleft()[1])

    def _count_off(self, item: int) -> None:
        """Count one more thing that an item waits for; after the last it starts, or joins its line."""
        self.waits[item] -= 1
        if self.waits[item] == 0:
            if item in self.in_line and self.join:
                self.join(item)
            else:
                self.begin(item)

    def begin(self, item: int) -> None:
        """Start an item."""
        self.start[item] = self.env.now
        self.ended[item].callbacks.append(lambda _: self._finish(item))
        self.ended[item].after(self.seconds[item])

    def _finish(self, item: int) -> None:
        self.end[item] = self.env.now
        for follower in self.followers[item]:
            self._count_off(follower)
        if item in self.in_line and self.leave:
            self.leave(item)


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
            self.ports_of = {at: [one for one in own if one >= 0] for at, own in enumerate(ports.of_transfer.tolist())}
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

    def follow(self, devices: Sequence[simpy.Process], reduced: Sequence[simpy.Event]) -> None:
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
