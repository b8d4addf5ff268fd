"""The SimPy event model, the reference: a process per device, an event per action and per transfer waited for."""

from collections import defaultdict, deque
from collections.abc import Generator
from math import isnan
from typing import Any

import numpy as np
import simpy

from ppsim.checks.deadlock import deadlock_error
from ppsim.engines.event_resources import LAST, Arrival, PortLines, SideWork, StepEnd
from ppsim.engines.times import Times
from ppsim.lowering.rows import consumers
from ppsim.plan.resolve import Plan, Posts


class EventModel:
    """Devices that run their lists, and links between them.

    A device process runs its rows in order: it makes the posts before the row, waits for the row's transfer, lets the
    row's seconds pass and gives the result to the link. Under `async` the link starts a transfer when its producer
    ends; otherwise a transfer starts when it is first in a queue at both of its ends. If links share ports, it then
    waits in the lines before them. UNSHARDs run one after the other on the gather stream of a device, OFFLOADs and
    RELOADs on its copy engines, and through switches if neighbours share them. The collectives of an output layer cut
    over devices run one after the other on a stream of their sender. Gradient reductions run one after the other on a
    stream of their device; optimizer steps follow them.
    """

    def __init__(self, plan: Plan):
        rows = len(plan.seconds)
        self.plan = plan
        self.env = simpy.Environment()
        self.seconds = _plain(plan.seconds)
        self.transfer_seconds = _plain(plan.transfer_seconds)
        self.fused, self.needs_transfer = _plain(np.append(plan.fused, False)), _plain(plan.remote)
        self.consumer = _plain(consumers(plan.source, plan.remote))
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
        self.arbitrating = False
        self.optimizer = StepEnd(self.env, plan)

    def run(self) -> Times:
        """Return the times of everything in the plan; DeadlockError."""
        posts, devices = self.plan.posts, range(self.plan.schedule.devices)
        processes = [self.run_async(one) if posts is None else self.run_queued(one, posts) for one in devices]
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
        self.arbitrate_later()

    def leave_ports(self, item: int) -> None:
        """Free the ports of a transfer or copy that has ended."""
        self.ports.leave(item)
        self.arbitrate_later()

    def arbitrate_later(self) -> None:
        """Serve ports after everything else of this time has happened."""
        if not self.arbitrating:
            self.arbitrating = True
            arbitration = Arrival(self.env)
            arbitration.callbacks.append(self.arbitrate)
            arbitration.after(0.0, LAST)

    def arbitrate(self, _: simpy.Event) -> None:
        """Start the transfers and copies whose ports are free."""
        self.arbitrating = False
        for item in self.ports.start():
            if item >= self.first_copy:
                self.copies.begin(item - self.first_copy)
            else:
                self.start_transfer(item).callbacks.append(lambda _, item=item: self.leave_queues(item))


def _plain(column: np.ndarray) -> Any:
    """Return a view of a column that reads and writes Python's own numbers, without a stored object per row."""
    return column.data
