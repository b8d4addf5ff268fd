"""Where a rank computes and sends: CPU with gloo, or CUDA streams with NCCL. Both stamp everything that they do."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as StillWaiting
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from validation.failures import LostPeerError, ReplayError

LAYOUTS = ("directed", "pair", "rank")
MOST_WAITING = 10_000  # transfers under way on one rank


class Stamps:
    """Issue, start and end of each row of one rank's list in one step, in seconds of the rank's clock."""

    def __init__(self, rows: int):
        self.issue: list[Any] = [None] * rows
        self.start: list[Any] = [None] * rows
        self.end: list[Any] = [None] * rows


class CpuRuntime:
    """Compute in the main thread; each transfer under way has a thread that waits for it and stamps its end.

    Transfers go through gloo with a tag of their own, so no transfer queues behind another.
    """

    device = torch.device("cpu")

    def __init__(self, control: dist.ProcessGroup, blocking: bool, timeout: float):
        self.control = control
        self.blocking = blocking
        self.timeout = timeout
        self.waiters = ThreadPoolExecutor(MOST_WAITING)

    def begin_step(self, rows: int) -> None:
        """Meet the other ranks and start a new set of stamps."""
        self.stamps = Stamps(rows)
        self.arrived: dict[int, Future] = {}
        self.under_way: list[Future] = []
        self.sending: list[Future] = []
        dist.barrier(group=self.control)
        self.origin = time.monotonic()

    def compute(self, row: int, needs: list[int], work: Callable[[], None]) -> None:
        """Wait for the transfers `needs`, then do `work`."""
        self.stamps.issue[row] = time.monotonic()
        for transfer in [self.arrived[tag] for tag in needs] + self.sending:
            self._wait(transfer)
        self.sending.clear()
        self.stamps.start[row] = time.monotonic()
        work()
        self.stamps.end[row] = time.monotonic()

    def skip(self, row: int) -> None:
        """Stamp an action that has nothing to do."""
        self.stamps.issue[row] = self.stamps.start[row] = self.stamps.end[row] = time.monotonic()

    def send(self, row: int, tag: int, peer: int, tensor: torch.Tensor) -> None:
        """Post a SEND; a blocking one holds up the next compute action."""
        sent = self._post(row, tag, peer, dist.isend, tensor)
        if self.blocking:
            self.sending.append(sent)

    def receive(self, row: int, tag: int, peer: int, buffer: torch.Tensor) -> None:
        """Post a RECV."""
        self.arrived[tag] = self._post(row, tag, peer, dist.irecv, buffer)

    def end_step(self) -> Stamps:
        """Wait until every transfer has ended; the stamps of the step."""
        for transfer in self.under_way:
            self._wait(transfer)
        return self.stamps

    def _post(self, row: int, tag: int, peer: int, post: Callable, tensor: torch.Tensor) -> Future:
        self.stamps.issue[row] = self.stamps.start[row] = time.monotonic()
        try:
            work = post(tensor, peer, tag=tag)
        except RuntimeError as error:
            raise LostPeerError(peer, _first_line(error)) from error
        self.under_way.append(self.waiters.submit(self._stamp_end, self.stamps, row, peer, work, tensor))
        return self.under_way[-1]

    def _stamp_end(self, stamps: Stamps, row: int, peer: int, work: dist.Work, _tensor: torch.Tensor) -> None:
        """Runs in a waiter; the tensor is an argument so that it lives until the transfer has ended."""
        try:
            work.wait(timedelta(seconds=self.timeout))
        except RuntimeError as error:
            raise LostPeerError(peer, _first_line(error)) from error
        stamps.end[row] = time.monotonic()

    def _wait(self, transfer: Future) -> None:
        try:
            transfer.result(1.5 * self.timeout)
        except StillWaiting:
            raise ReplayError(f"a transfer did not end within {self.timeout:g} s") from None


def _first_line(error: Exception) -> str:
    """What the backend says, without its advice."""
    return (str(error).splitlines() or [type(error).__name__])[0].partition(". This is typically")[0]


class CudaRuntime:
    """Compute on one stream, transfers on one stream a queue; events stamp both, and the host never waits in a step.

    `layout` chooses the NCCL communicators: one for each ordered pair of ranks in `pairs`, each pair, or one for all.
    """

    def __init__(
        self,
        control: dist.ProcessGroup,
        rank: int,
        pairs: Sequence[tuple[int, int]],
        layout: str,
        blocking: bool,
        device: torch.device,
    ):
        self.control = control
        self.device, self.rank, self.blocking = device, rank, blocking
        self.compute_stream = torch.cuda.Stream(device)
        self.groups = make_communicators(pairs, layout)
        self.queue_of = {ends: queue_of(ends, layout) for ends in pairs}
        self.streams = {
            queue: torch.cuda.Stream(device)
            for queue in sorted({self.queue_of[ends] for ends in pairs if rank in ends})
        }
        connect(self.groups, pairs, rank, device)

    def begin_step(self, rows: int) -> None:
        """Meet the other ranks, then anchor this rank's events to its clock."""
        self.stamps = Stamps(rows)
        self.arrived: dict[int, torch.cuda.Event] = {}
        self.sending: list[torch.cuda.Event] = []
        self.kept: list[torch.Tensor] = []
        torch.cuda.synchronize(self.device)
        dist.barrier(group=self.control)
        self.anchor = record_event(self.compute_stream)
        self.compute_stream.synchronize()
        self.origin = time.monotonic()

    def compute(self, row: int, needs: list[int], work: Callable[[], None]) -> None:
        """Enqueue `work` behind the transfers `needs`."""
        self.stamps.issue[row] = time.monotonic()
        with torch.cuda.stream(self.compute_stream):
            for event in [self.arrived[tag] for tag in needs] + self.sending:
                self.compute_stream.wait_event(event)
            self.sending.clear()
            self.stamps.start[row] = record_event(self.compute_stream)
            work()
            self.stamps.end[row] = record_event(self.compute_stream)

    def skip(self, row: int) -> None:
        """Stamp an action that has nothing to do."""
        self.stamps.issue[row] = time.monotonic()
        self.stamps.start[row] = self.stamps.end[row] = record_event(self.compute_stream)

    def send(self, row: int, tag: int, peer: int, tensor: torch.Tensor) -> None:
        """Enqueue a SEND behind the compute before it. Its tag is not used: NCCL matches in order."""
        end = self._post(row, peer, (self.rank, peer), dist.isend, tensor)
        if self.blocking:
            self.sending.append(end)

    def receive(self, row: int, tag: int, peer: int, buffer: torch.Tensor) -> None:
        """Enqueue a RECV behind the compute before it."""
        self.arrived[tag] = self._post(row, peer, (peer, self.rank), dist.irecv, buffer)

    def end_step(self) -> Stamps:
        """Wait for the device and turn events into seconds of the rank's clock."""
        torch.cuda.synchronize(self.device)
        for column in (self.stamps.start, self.stamps.end):
            for row, event in enumerate(column):
                if event is not None:
                    column[row] = self.origin + self.anchor.elapsed_time(event) / 1e3
        return self.stamps

    def _post(
        self, row: int, peer: int, ends: tuple[int, int], post: Callable, tensor: torch.Tensor
    ) -> torch.cuda.Event:
        stream = self.streams[self.queue_of[ends]]
        self.stamps.issue[row] = time.monotonic()
        self.kept.append(tensor)
        stream.wait_event(record_event(self.compute_stream))
        with torch.cuda.stream(stream):
            self.stamps.start[row] = record_event(stream)
            post_alone(post, tensor, peer, self.groups[ends])
            self.stamps.end[row] = record_event(stream)
        return self.stamps.end[row]


def record_event(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """A timing event at the end of what the stream has to do so far."""
    event = torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return event


def queue_of(ends: tuple[int, int], layout: str) -> tuple[int, ...]:
    """What names the queue of transfers from `ends[0]` to `ends[1]`: those of one name wait for each other."""
    return {"directed": ends, "pair": (min(ends), max(ends)), "rank": ()}[layout]


def make_communicators(
    pairs: Sequence[tuple[int, int]], layout: str
) -> dict[tuple[int, int], dist.ProcessGroup | None]:
    """The process group of each ordered pair (None: the default one).

    Every rank makes all of them in the same order, also those that it is no member of, as torch asks.
    """
    by_queue: dict[tuple[int, ...], Any] = {(): None}
    for ends in pairs:
        queue = queue_of(ends, layout)
        if queue not in by_queue:
            by_queue[queue] = dist.new_group(sorted(ends), backend="nccl")
    return {ends: by_queue[queue_of(ends, layout)] for ends in pairs}


def connect(
    groups: dict[tuple[int, int], dist.ProcessGroup | None],
    pairs: Sequence[tuple[int, int]],
    rank: int,
    device: torch.device,
) -> None:
    """Send one number over each pair, one pair after the other.

    A communicator's first transfer sets it up and holds the host until the peer joins; inside a step that could be a
    deadlock that the program itself does not have.
    """
    number = torch.zeros(1, device=device)
    if None in groups.values():
        dist.all_reduce(number)  # the first use of a communicator of all ranks must be one of all ranks
    for ends in pairs:
        if rank in ends:
            post, peer = (dist.isend, ends[1]) if rank == ends[0] else (dist.irecv, ends[0])
            post_alone(post, number, peer, groups[ends])
            torch.cuda.synchronize(device)


def post_alone(post: Callable, tensor: torch.Tensor, peer: int, group: dist.ProcessGroup | None) -> None:
    """Post one transfer; the current stream continues when it has ended.

    As a batch of one it runs on the group's own communicator, in order with the others there. Alone, torch may give it
    a communicator of the two ranks instead, depending on how the group was initialised.
    """
    for work in dist.batch_isend_irecv([dist.P2POp(post, tensor, peer, group)]):
        work.wait()
