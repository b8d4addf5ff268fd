"""The SimPy event model, the reference: one process a device, one event an action, and one a message waited for."""

from collections import defaultdict, deque
from collections.abc import Generator
from heapq import heappush
from math import isnan
from typing import Any

import numpy as np
import simpy
from simpy.events import NORMAL, EventPriority

from ppsim.checks.deadlock import deadlock_error
from ppsim.engines.event_barriers import BarrierStreams
from ppsim.engines.event_copies import CopyStreams
from ppsim.engines.event_ending import Ending
from ppsim.engines.port_lines import PortLines
from ppsim.engines.times import Times
from ppsim.lowering.rows import consumers
from ppsim.plan.resolve import Plan, Posts

LAST = 2  # a priority behind SimPy's own: after everything else that happens at the same time


class Clock(simpy.Environment):
    """An environment that can set an event for a moment; `now + (moment - now)` may differ from it in the last bit."""

    def at(self, moment: float, event: simpy.Event) -> None:
        """Let the event happen at `moment`, which is to come."""
        event._ok, event._value = True, None
        heappush(self._queue, (moment, NORMAL, next(self._eid), event))


class Arrival(simpy.Event):
    """The end of a transfer or gather. Made by whoever comes first, set off by its link, waited for by its user."""

    def after(self, seconds: float, priority: int = NORMAL) -> None:
        """Let the event happen `seconds` from now; at equal times the lower priority goes first."""
        self._ok = True
        self._value = None
        self.env.schedule(self, EventPriority(priority), seconds)


class GatherStreams:
    """The UNSHARDs of each device, which run one after the other once they are posted."""

    def __init__(self, env: simpy.Environment, plan: Plan):
        self.env = env
        self.unposted: list[deque[tuple[int, int]]] = [deque() for _ in range(plan.schedule.devices)]
        self.streams: list[deque[int]] = [deque() for _ in range(plan.schedule.devices)]
        self.seconds: list[float] = []
        self.gathered: list[Arrival] = []
        self.of_row: dict[int, Arrival] = {}
        gathers = plan.gathers
        if gathers is not None:
            self.seconds = gathers.seconds.tolist()
            self.gathered = [Arrival(env) for _ in self.seconds]
            self.of_row = dict(zip(gathers.user.tolist(), self.gathered, strict=True))
            for number, (device, before) in enumerate(zip(gathers.device, gathers.before.tolist(), strict=True)):
                self.unposted[device].append((before, number))
        self.start, self.end = [0.0] * len(self.seconds), [0.0] * len(self.seconds)

    def needed(self, row: int, end: int) -> list[Arrival]:
        """What the slot of rows `row` to `end` waits for."""
        return [self.of_row[part] for part in range(row, end) if part in self.of_row]

    def post(self, device: int, row: int) -> None:
        """Put the gathers that stand before a row on the stream of its device."""
        unposted, stream = self.unposted[device], self.streams[device]
        while unposted and unposted[0][0] <= row:
            stream.append(unposted.popleft()[1])
            if len(stream) == 1:
                self._run_first(stream)

    def _run_first(self, stream: deque[int]) -> None:
        number = stream[0]
        self.start[number] = self.env.now
        self.end[number] = self.env.now + self.seconds[number]
        self.gathered[number].callbacks.append(lambda _: self._leave(stream))
        self.gathered[number].after(self.seconds[number])

    def _leave(self, stream: deque[int]) -> None:
        stream.popleft()
        if stream:
            self._run_first(stream)


class EventModel:
    """Devices that walk their lists, and links between them.

    A device process takes its rows in order: it makes the posts that stand before the row, waits for the row's
    transfer, lets the row's seconds pass and hands the result to the link. Under `async` the link starts a transfer
    when its producer ends; otherwise a transfer starts when it heads a queue at both of its ends. Where links share
    ports, it then stands in the lines before them. UNSHARDs run one after the other on the gather stream of a device,
    OFFLOADs and RELOADs on its copy engines, and through switches where neighbours share them. The
    collectives of an output layer cut over devices run one after the other on a stream of their sender.
    `Ending` runs the gradient reductions and optimizer steps.
    """

    def __init__(self, plan: Plan):
        rows = len(plan.seconds)
        self.plan = plan
        self.env = Clock()
        self.seconds, self.transfer_seconds = _plain(plan.seconds), _plain(plan.transfer_seconds)
        self.fused, self.needs_transfer = _plain(np.append(plan.fused, False)), _plain(plan.remote)
        self.consumer = _plain(consumers(plan.source, plan.remote))
        self.arrivals: dict[int, Arrival] = {}
        self.ended = np.zeros(rows, bool)
        self.times = np.full((4, rows), np.nan)
        self.start, self.end, self.transfer_start, self.transfer_end = map(_plain, self.times)
        self.position = plan.schedule.offsets[:-1].tolist()
        self.posted = [0] * plan.schedule.devices
        self.queues: defaultdict[int, deque[int]] = defaultdict(deque)
        self.ends_headed = bytearray(rows)
        self.queues_of: tuple[list[Any], list[Any]] = ([None] * rows, [None] * rows)  # of RECVs, of SENDs
        self.gathers = GatherStreams(self.env, plan)
        self.copies = CopyStreams(self.env, plan, self.arbitrate_later)
        self.barriers = BarrierStreams(self.env, plan)
        self.ports = None if plan.ports is None else PortLines(plan.ports, _turns(plan.posts))
        self.arbitrating = False
        self.ending = Ending(self.env, plan)
        self.awaited = self.ending.completed

    def run(self) -> Times:
        """The times of all that the plan holds; DeadlockError."""
        posts, devices = self.plan.posts, range(self.plan.schedule.devices)
        self.ending.follow(
            [self.env.process(self.walk(one) if posts is None else self.walk_and_post(one, posts)) for one in devices]
        )
        self.env.run()
        del self.copies.arbitrate  # a model that held itself would stay until Python's garbage collector comes
        if self.position != self.plan.schedule.offsets[1:].tolist():
            plan, state = self.plan, (np.array(self.position), np.array(self.posted), self._arrived())
            raise deadlock_error(plan.schedule, plan.transport, posts, plan.fused, *state)
        self.times.flags.writeable = False  # so that the timeline need not copy its windows on the block
        row_start, row_end, transfer_start, transfer_end = self.times
        return Times(
            row_start,
            row_end,
            transfer_start,
            transfer_end,
            np.array(self.gathers.start),
            np.array(self.gathers.end),
            np.array(self.ending.reduce_start),
            np.array(self.ending.reduce_end),
            np.array(self.ending.step_start),
            np.array(self.ending.step_end),
            np.array(self.copies.start),
            np.array(self.copies.end),
            np.array(self.barriers.start),
            np.array(self.barriers.end),
        )

    def walk(self, device: int) -> Generator[simpy.Event]:
        """The life of a device under `async`."""
        row, last = self.position[device], int(self.plan.schedule.offsets[device + 1])
        while row < last:
            end = row + 2 if self.fused[row + 1] else row + 1
            for part in range(row, end):
                if self.needs_transfer[part] and not self.transfer_end[part] <= self.env.now:
                    yield self.awaited_arrival(part)
            yield from self.compute(row, end)
            for part in range(row, end):
                consumer = self.consumer[part]
                if consumer >= 0:
                    self.send(consumer)
            row = end
            self.position[device] = row

    def walk_and_post(self, device: int, posts: Posts) -> Generator[simpy.Event]:
        """The life of a device whose SENDs and RECVs queue."""
        mine = slice(*posts.offsets[device : device + 2].tolist())
        columns = (posts.before, posts.transfer, posts.is_send, posts.queue)
        unposted = deque(zip(*(column[mine].tolist() for column in columns), strict=True))
        row, last = self.position[device], int(self.plan.schedule.offsets[device + 1])
        sending: list[int] = []
        streams = [stream for stream in (self.gathers, self.copies, self.barriers) if stream.of_row]
        while True:
            while unposted and unposted[0][0] <= row:
                _, number, is_send, queue = unposted.popleft()
                self.join_queue(number, is_send, queue)
                self.posted[device] += 1
                if self.plan.blocking and is_send:
                    sending.append(number)
            for stream in streams:
                stream.post(device, row)
            if row == last:
                return
            end = row + 2 if self.fused[row + 1] else row + 1
            for number in (*sending, *filter(self.needs_transfer.__getitem__, range(row, end))):
                if not self.ended[number]:
                    yield self.arrival(number)
            sending.clear()
            for stream in streams:
                for ended in stream.needed(row, end):
                    if ended.callbacks is not None:
                        yield ended
            yield from self.compute(row, end)
            row = end
            self.position[device] = row

    def compute(self, row: int, end: int) -> Generator[simpy.Event]:
        """Let the slot of rows `row` to `end` pass."""
        env = self.env
        now = env.now
        yield env.timeout(self.seconds[row])
        for part in range(row, end):
            self.start[part] = now
            self.end[part] = env.now
        if self.awaited:
            for part in range(row, end):
                if part in self.awaited:
                    self.awaited[part].succeed()

    def arrival(self, transfer: int) -> Arrival:
        """The event that ends a transfer."""
        if transfer not in self.arrivals:
            self.arrivals[transfer] = Arrival(self.env)
        return self.arrivals[transfer]

    def send(self, transfer: int) -> None:
        """Put a transfer that nothing holds up on its link now: its end is an event only if someone waits for it."""
        now, seconds = self.env.now, self.transfer_seconds[transfer]
        self.transfer_start[transfer], self.transfer_end[transfer] = now, now + seconds
        if transfer in self.arrivals:
            self.arrivals.pop(transfer).after(seconds)

    def awaited_arrival(self, transfer: int) -> Arrival:
        """The event that ends a transfer which nothing holds up and which is still to end."""
        if isnan(self.transfer_end[transfer]):
            return self.arrival(transfer)
        arrival = Arrival(self.env)
        self.env.at(self.transfer_end[transfer], arrival)
        return arrival

    def start_transfer(self, transfer: int) -> Arrival:
        """Put a transfer on its link now."""
        now, seconds = self.env.now, self.transfer_seconds[transfer]
        self.transfer_start[transfer], self.transfer_end[transfer] = now, now + seconds
        arrival = self.arrival(transfer)
        arrival.after(seconds)
        return arrival

    def join_queue(self, transfer: int, is_send: bool, name: int) -> None:
        """Post one end of a transfer: it stands in a queue until all before it have ended."""
        queue = self.queues_of[is_send][transfer] = self.queues[name]
        queue.append(transfer)
        if len(queue) == 1:
            self.head_queue(transfer)

    def head_queue(self, transfer: int) -> None:
        """One end of a transfer has come to the head of its queue; it starts when both have."""
        self.ends_headed[transfer] += 1
        if self.ends_headed[transfer] == 2:
            if self.ports is None or not self.ports.ports_of[transfer]:
                self.start_transfer(transfer).callbacks.append(lambda _: self.leave_queues(transfer))
            else:
                self.ports.ready.append(transfer)
                self.arbitrate_later()

    def leave_queues(self, transfer: int) -> None:
        """A transfer has ended: the next in each of its queues comes to the head."""
        self.ended[transfer] = True
        del self.arrivals[transfer]
        for queues in reversed(self.queues_of):
            queue = queues[transfer]
            queue.popleft()
            if queue:
                self.head_queue(queue[0])
        if self.ports is not None and self.ports.ports_of[transfer]:
            self.ports.leave(transfer)
            self.arbitrate_later()

    def arbitrate_later(self) -> None:
        """Look at ports and switches once everything else of this moment has happened."""
        if not self.arbitrating:
            self.arbitrating = True
            arbitration = Arrival(self.env)
            arbitration.callbacks.append(self.arbitrate)
            arbitration.after(0.0, LAST)

    def arbitrate(self, _: simpy.Event) -> None:
        """Start what the ports let through."""
        self.arbitrating = False
        for transfer in self.ports.start() if self.ports else ():
            self.start_transfer(transfer).callbacks.append(lambda _, transfer=transfer: self.leave_queues(transfer))
        self.copies.start_first()

    def _arrived(self) -> np.ndarray:
        """Transfers that have ended at a standstill; without posts nothing is on its way then."""
        return self.ended if self.plan.posts is not None else ~np.isnan(self.times[3])


def _plain(column: np.ndarray) -> Any:
    """A column that gives and takes Python's own numbers, without an object kept for each row."""
    return column.data


def _turns(posts: Posts | None) -> dict[int, int]:
    """Who joins a line first at equal times, by transfer: the lower sender, then its program order."""
    if posts is None:
        return {}
    sends = np.flatnonzero(posts.is_send)
    return dict(zip(posts.transfer[sends].tolist(), sends.tolist(), strict=True))
