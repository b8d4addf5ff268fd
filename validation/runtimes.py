"""Where a rank computes and sends: CPU with gloo, or CUDA streams with NCCL. Both stamp everything that they do."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist

LAYOUTS = ("directed", "pair", "rank")


class Stamps:
    """Issue, start and end of each row of one rank's list in one step, in seconds of the rank's clock."""

    def __init__(self, rows: int):
        self.issue, self.start, self.end = ([None] * rows for _ in range(3))


class CpuRuntime:
    """Compute in the main thread; each peer has a thread that waits for its transfers and stamps their ends.

    Transfers go through gloo with a tag of their own, so any posting order matches.
    """

    device = torch.device("cpu")

    def __init__(self, control: dist.ProcessGroup, blocking: bool, timeout: float):
        self.control = control
        self.blocking = blocking
        self.timeout = timeout
        self.watchers: dict[tuple[str, int], queue.SimpleQueue] = {}
        self.failure: BaseException | None = None

    def begin_step(self, rows: int) -> None:
        """Meet the other ranks and start a new set of stamps."""
        self.stamps = Stamps(rows)
        self.arrived: dict[int, threading.Event] = {}
        self.sending: list[threading.Event] = []
        dist.barrier(group=self.control)
        self.origin = time.monotonic()

    def compute(self, row: int, needs: list[int], work: Callable[[], None]) -> None:
        """Wait for the transfers `needs`, then do `work`."""
        self.stamps.issue[row] = time.monotonic()
        for event in [self.arrived[tag] for tag in needs] + self.sending:
            self._wait(event)
        self.sending.clear()
        self.stamps.start[row] = time.monotonic()
        work()
        self.stamps.end[row] = time.monotonic()

    def send(self, row: int, tag: int, peer: int, tensor: torch.Tensor) -> None:
        """Post a SEND; a blocking one holds up the next compute action."""
        done = self._watch(row, "send", peer, dist.isend(tensor, peer, tag=tag), tensor)
        if self.blocking:
            self.sending.append(done)

    def receive(self, row: int, tag: int, peer: int, buffer: torch.Tensor) -> None:
        """Post a RECV."""
        self.arrived[tag] = self._watch(row, "receive", peer, dist.irecv(buffer, peer, tag=tag), buffer)

    def end_step(self) -> Stamps:
        """Wait until every transfer has ended; the stamps of the step."""
        for pending in self.watchers.values():
            emptied = threading.Event()
            pending.put((None, emptied, None, None))
            self._wait(emptied)
        return self.stamps

    def _watch(self, row: int, direction: str, peer: int, work: dist.Work, tensor: torch.Tensor) -> threading.Event:
        self.stamps.issue[row] = self.stamps.start[row] = time.monotonic()
        key = direction, peer
        if key not in self.watchers:
            self.watchers[key] = queue.SimpleQueue()
            threading.Thread(target=self._stamp_ends, args=(self.watchers[key], peer), daemon=True).start()
        done = threading.Event()
        # The tensor travels along so that it lives until the transfer has ended.
        self.watchers[key].put((work, done, (self.stamps, row), tensor))
        return done

    def _stamp_ends(self, pending: queue.SimpleQueue, peer: int) -> None:
        while True:
            work, done, place, _ = pending.get()
            try:
                if work is not None:
                    work.wait(timedelta(seconds=self.timeout))
                    stamps, row = place
                    stamps.end[row] = time.monotonic()
            except Exception as error:
                self.failure = self.failure or ConnectionError(f"the connection to rank {peer} failed: {error}")
            done.set()

    def _wait(self, event: threading.Event) -> None:
        event.wait(self.timeout + 5)
        if self.failure is not None:
            raise self.failure
        if not event.is_set():
            raise TimeoutError(f"a transfer did not end within {self.timeout:g} s")


class CudaRuntime:
    """Compute on one stream, transfers on one stream a queue; events stamp both, and the host never waits in a step.

    `layout` chooses the NCCL communicators: one for each ordered pair of ranks, each pair, or one for all.
    """

    def __init__(
        self, control: dist.ProcessGroup, rank: int, world: int, layout: str, blocking: bool, device: torch.device
    ):
        self.control = control
        self.device, self.layout, self.rank, self.blocking = device, layout, rank, blocking
        self.compute_stream = torch.cuda.Stream(device)
        self.groups = _communicators(world, layout)
        self.streams: dict[tuple[int, int, bool], torch.cuda.Stream] = {}

    def begin_step(self, rows: int) -> None:
        """Meet the other ranks, then anchor this rank's events to its clock."""
        self.stamps = Stamps(rows)
        self.arrived: dict[int, torch.cuda.Event] = {}
        self.sending: list[torch.cuda.Event] = []
        self.kept: list[torch.Tensor] = []
        torch.cuda.synchronize(self.device)
        dist.barrier(group=self.control)
        torch.cuda.synchronize(self.device)
        self.anchor = record_event(self.compute_stream)
        self.compute_stream.synchronize()
        self.origin = time.monotonic()

    def compute(self, row: int, needs: list[int], work: Callable[[], None]) -> None:
        """Enqueue `work` behind the transfers `needs`."""
        self.stamps.issue[row] = time.monotonic()
        with torch.cuda.stream(self.compute_stream):
            for event in [self.arrived[tag] for tag in needs] + self.sending:
                self.compute_stream.waitrecord_event(event)
            self.sending.clear()
            self.stamps.start[row] = record_event(self.compute_stream)
            work()
            self.stamps.end[row] = record_event(self.compute_stream)

    def send(self, row: int, tag: int, peer: int, tensor: torch.Tensor) -> None:
        """Enqueue a SEND behind the compute before it."""
        end = self._post(row, peer, True, dist.isend, tensor)
        if self.blocking:
            self.sending.append(end)

    def receive(self, row: int, tag: int, peer: int, buffer: torch.Tensor) -> None:
        """Enqueue a RECV behind the compute before it."""
        self.arrived[tag] = self._post(row, peer, False, dist.irecv, buffer)

    def end_step(self) -> Stamps:
        """Wait for the device and turn events into seconds of the rank's clock."""
        torch.cuda.synchronize(self.device)
        for column in (self.stamps.start, self.stamps.end):
            for row, event in enumerate(column):
                if event is not None:
                    column[row] = self.origin + self.anchor.elapsed_time(event) / 1e3
        return self.stamps

    def _post(self, row: int, peer: int, is_send: bool, post: Callable, tensor: torch.Tensor) -> torch.cuda.Event:
        ends = (self.rank, peer) if is_send else (peer, self.rank)
        group, stream = self.groups[ends], self._stream(peer, is_send)
        self.stamps.issue[row] = time.monotonic()
        self.kept.append(tensor)
        stream.waitrecord_event(record_event(self.compute_stream))
        with torch.cuda.stream(stream):
            self.stamps.start[row] = record_event(stream)
            post(tensor, peer, group=group).wait()
            self.stamps.end[row] = record_event(stream)
        return self.stamps.end[row]

    def _stream(self, peer: int, is_send: bool) -> torch.cuda.Stream:
        key = {"directed": (peer, int(is_send)), "pair": (peer, 0), "rank": (0, 0)}[self.layout]
        return self.streams.setdefault((*key, False), torch.cuda.Stream(self.device))


def record_event(stream: torch.cuda.Stream) -> torch.cuda.Event:
    """A timing event at the end of what the stream has to do so far."""
    event = torch.cuda.Event(enable_timing=True)
    event.record(stream)
    return event


def _communicators(world: int, layout: str) -> dict[tuple[int, int], dist.ProcessGroup | None]:
    """The process group of each ordered pair; every rank makes all of them, in the same order, as NCCL asks."""
    groups: dict[tuple[int, int], dist.ProcessGroup | None] = {}
    for low in range(world):
        for high in range(low + 1, world):
            if layout == "rank":
                groups[low, high] = groups[high, low] = None
            elif layout == "pair":
                groups[low, high] = groups[high, low] = dist.new_group([low, high])
            else:
                groups[low, high], groups[high, low] = dist.new_group([low, high]), dist.new_group([low, high])
    return groups
