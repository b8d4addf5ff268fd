"""The SimPy event model, the reference: a process per device, an event per action and per transfer waited for."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Sequence
from heapq import heappush
from math import isnan
from typing import Any

import numpy as np
import simpy
from simpy.events import NORMAL, EventPriority

from ppsim.checks.deadlock import deadlock_error
from ppsim.engines.times import Times
from ppsim.lowering.rows import consumers
from ppsim.plan.resolve import Plan, Posts
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


class LastOfTime:
    """Calls a function once, after everything else of a time has happened, however often the time requests it."""

    def __init__(self, env: simpy.Environment):
        self.env, self.requested = env, False

    def request(self, call: Callable[[], None]) -> None:
        """Let `call` follow everything else of this time."""
        if not self.requested:
            self.requested = True
            last = Arrival(self.env)
            last.callbacks.append(lambda _: self._serve(call))
            last.after(0.0, LAST)

    def _serve(self, call: Callable[[], None]) -> None:
        self.requested = False
        call()


class EventModel:
    """Devices that run their lists, and links between them.

    A device process runs its rows in order. For each row it makes the posts before it, waits for its transfer, lets its
    seconds pass and gives the result to the link. Under `async` the link starts a transfer when its producer
    ends; otherwise a transfer starts when it is first in a queue at both of its ends. If links share ports, it then
    waits in the lines before them. UNSHARDs run one after the other on the gather stream of a device, OFFLOADs and
    RELOADs on its copy engines, and through switches if neighbours share them. The collectives of an output layer cut
    over devices run one after the other on a stream of their sender. Gradient reductions run one after the other on a
    stream of their device; optimizer steps follow them.
    """

    def __init__(self, plan: Plan):
        rows = len(plan.seconds)
        self.plan = plan
        self.env = simpy.Environment(0.0)
        self.seconds = _plain(plan.seconds)
        self.transfer_seconds = _plain(plan.transfer_seconds)
        self.fused, self.needs_transfer = _plain(np.append(plan.fused, False)), _plain(plan.remote)
        self.consumer = _plain(consumers(plan.schedule))
        self.arrivals: dict[int, Arrival] = {}
        self.ended = np.zeros(rows, bool)
        self.times = np.full((4, rows), np.nan)
        self.start, self.end, self.transfer_start, self.transfer_end = map(_plain, self.times)
        self.position = plan.schedule.offsets[:-1].tolist()
        self.posted = [0] * plan.schedule.devices
        self.queues: defaultdict[int, deque[int]] = defaultdict(deque)
        self.ends_first = bytearray(rows)
        self.queues_of: tuple[list[Any], list[Any]] = ([None] * rows, [None] * rows)  # of RECVs, of SENDs
        self.gathers, self.reductions, self.copies = (
            SideWork.of_stream(self.env, plan, stream) for stream in (plan.gathers, plan.reductions, plan.copies)
        )
        self.barriers = SideWork.of_barriers(self.env, plan)
        self.ports, self.first_copy = PortLines(plan, rows), rows
        if plan.copies is not None:
            self.copies.in_line = {*np.flatnonzero(plan.copies.line >= 0).tolist()}
            self.copies.join = lambda copy: self.join_lines(rows + copy)
            self.copies.leave = lambda copy: self.leave_ports(rows + copy)
        self.last = LastOfTime(self.env)
        self.optimizer = StepEnd(self.env, plan)

    def run(self) -> Times:
        """Return the times of everything in the plan; DeadlockError."""
        posts, devices = self.plan.posts, range(self.plan.schedule.devices)
        processes = [self.run_async(d) if posts is None else self.run_queued(d, posts) for d in devices]
        self.optimizer.follow(list(map(self.env.process, processes)), self.reductions.ended)
        self.env.run()
        self.copies.join = self.copies.leave = None  # a model that refers to itself would stay until collected
        if self.position != self.plan.schedule.offsets[1:].tolist():
            # Without posts all transfers that have started end before a deadlock.
            arrived = self.ended if self.plan.posts is not None else ~np.isnan(self.times[3])
            plan, state = self.plan, (np.array(self.position), np.array(self.posted), arrived)
            raise deadlock_error(plan.schedule, plan.transport, posts, plan.fused, *state)
        self.times.flags.writeable = False  # so that the timeline need not copy the four views
        streams = self.gathers, self.reductions, self.optimizer, self.copies, self.barriers
        return Times(*self.times, *(np.array(times) for stream in streams for times in (stream.start, stream.end)))

    def run_async(self, device: int) -> Generator[simpy.Event]:
        """Run the list of a device under `async`: a process without queues, 3 to 5 times as fast as with them."""
        row, last = self.position[device], int(self.plan.schedule.offsets[device + 1])
        while row < last:
            end = row + 2 if self.fused[row + 1] else row + 1
            for part in range(row, end):
                if self.needs_transfer[part] and not self.transfer_end[part] <= self.env.now:
                    yield self.later_arrival(part)
            yield from self.compute(device, row, end)
            for part in range(row, end):
                consumer = self.consumer[part]
                if consumer >= 0:
                    self.send(consumer)
            row = end
            self.position[device] = row

    def run_queued(self, device: int, posts: Posts) -> Generator[simpy.Event]:
        """Run the list of a device whose SENDs and RECVs queue: a process."""
        mine = slice(*posts.offsets[device : device + 2].tolist())
        columns = [column[mine].tolist() for column in (posts.before, posts.transfer, posts.is_send, posts.queue)]
        unposted = deque(zip(*columns, strict=True))
        row, last = self.position[device], int(self.plan.schedule.offsets[device + 1])
        sending: list[int] = []
        streams = [stream for stream in (self.gathers, self.copies, self.barriers) if stream.of_row]
        while True:
            self.barriers.post(device, row)
            posting = self.make_posts(device, row, unposted, sending)
            if row == last:
                self.env.process(posting)  # optimizer steps do not wait for it
                return
            yield from posting
            end = row + 2 if self.fused[row + 1] else row + 1
            for number in (*sending, *filter(self.needs_transfer.__getitem__, range(row, end))):
                if not self.ended[number]:
                    yield self.arrival(number)
            sending.clear()
            for stream in streams:
                for ended in stream.needed(row, end):
                    if ended.callbacks is not None:
                        yield ended
            yield from self.compute(device, row, end)
            row = end
            self.position[device] = row

    def make_posts(
        self, device: int, row: int, unposted: deque[tuple[int, int, bool, int]], sending: list[int]
    ) -> Generator[simpy.Event]:
        """Make the posts of a device before a row, with the host's seconds for each; note the SENDs that block."""
        while unposted and unposted[0][0] <= row:
            _, number, is_send, queue = unposted.popleft()
            of_host = self.plan.message_overhead
            if of_host and not is_send:
                yield self.env.timeout(of_host)
            self.join_queue(number, is_send, queue)
            self.posted[device] += 1
            if of_host and is_send:
                yield self.env.timeout(of_host)
            if self.plan.blocking and is_send:
                sending.append(number)
        self.gathers.post(device, row)
        self.copies.post(device, row)

    def compute(self, device: int, row: int, end: int) -> Generator[simpy.Event]:
        """Let the seconds of the slot of rows `row` to `end` pass, then post the reductions after it."""
        env = self.env
        now = env.now
        yield env.timeout(self.seconds[row])
        for part in range(row, end):
            self.start[part] = now
            self.end[part] = env.now
        self.reductions.post(device, end)

    def arrival(self, transfer: int) -> Arrival:
        """Return the event that ends a transfer."""
        if transfer not in self.arrivals:
            self.arrivals[transfer] = Arrival(self.env)
        return self.arrivals[transfer]

    def send(self, transfer: int) -> None:
        """Start a transfer that does not queue: its end is an event only if a device waits for it."""
        now, seconds = self.env.now, self.transfer_seconds[transfer]
        self.transfer_start[transfer], self.transfer_end[transfer] = now, now + seconds
        if transfer in self.arrivals:
            self.arrivals.pop(transfer).after(seconds)

    def later_arrival(self, transfer: int) -> Arrival:
        """Return the event that ends a transfer that does not queue and has not ended."""
        if isnan(self.transfer_end[transfer]):
            return self.arrival(transfer)
        arrival = Arrival(self.env)
        arrival.at(self.transfer_end[transfer])
        return arrival

    def start_transfer(self, transfer: int) -> Arrival:
        """Start a transfer that is first in its queues."""
        now, seconds = self.env.now, self.transfer_seconds[transfer]
        self.transfer_start[transfer], self.transfer_end[transfer] = now, now + seconds
        arrival = self.arrival(transfer)
        arrival.after(seconds)
        return arrival

    def join_queue(self, transfer: int, is_send: bool, name: int) -> None:
        """Post one end of a transfer: it waits in a queue until all before it have ended."""
        queue = self.queues_of[is_send][transfer] = self.queues[name]
        queue.append(transfer)
        if len(queue) == 1:
            self.become_first(transfer)

    def become_first(self, transfer: int) -> None:
        """Note that one end of a transfer is first in its queue; it starts when both are."""
        self.ends_first[transfer] += 1
        if self.ends_first[transfer] == 2:
            if self.ports.ports_of.get(transfer):
                self.join_lines(transfer)
            else:
                self.start_transfer(transfer).callbacks.append(lambda _: self.leave_queues(transfer))

    def leave_queues(self, transfer: int) -> None:
        """End a transfer: the next one in each of its queues becomes the first."""
        self.ended[transfer] = True
        del self.arrivals[transfer]
        for queues in reversed(self.queues_of):
            queue = queues[transfer]
            queue.popleft()
            if queue:
                self.become_first(queue[0])
        if self.ports.ports_of.get(transfer):
            self.leave_ports(transfer)

    def join_lines(self, item: int) -> None:
        """Let a transfer or copy join the lines of its ports after everything else of this time has happened."""
        self.ports.ready.append(item)
        self.last.request(self.arbitrate)

    def leave_ports(self, item: int) -> None:
        """Free the ports of a transfer or copy that has ended."""
        self.ports.leave(item)
        self.last.request(self.arbitrate)

    def arbitrate(self) -> None:
        """Start the transfers and copies whose ports are free."""
        for item in self.ports.start():
            if item >= self.first_copy:
                self.copies.begin(item - self.first_copy)
            else:
                self.start_transfer(item).callbacks.append(lambda _, item=item: self.leave_queues(item))


def _plain(column: np.ndarray) -> Any:
    """Return a view of a column that reads and writes Python's own numbers, without a stored object per row."""
    return column.data


# Work that overlaps the rows, the lines before ports, and the end of a step


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
            self._note_input(unposted.popleft()[1])

    def _note_input(self, item: int) -> None:
        """Note one more input of an item; after the last one it starts, or joins its line."""
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
            self._note_input(follower)
        if item in self.in_line and self.leave:
            self.leave(item)


class PortLines:
    """The lines before ports: first come, first served, without overtaking.

    Items are transfers, numbered by consuming row, and then copies. Items that become ready at one time join together,
    in the order of `turn`, each in the lines of all its ports. An item starts when it is first in all its lines and
    each of its ports is free. It occupies the ports until it ends. So no two can wait for each other.
    """

    def __init__(self, plan: Plan, first_copy: int):
        ports, copies, posts = plan.ports, plan.copies, plan.posts
        self.ports_of: dict[int, list[int]] = {}
        self.free: list[int] = []
        self.turn: dict[int, int] = {}
        if ports is not None and posts is not None:
            self.ports_of = {
                transfer: [port for port in path if port >= 0]
                for transfer, path in enumerate(ports.of_transfer.tolist())
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
