"""Replay a program on one GPU: `python validation/one_gpu.py --schedule NAME --devices P ...`, devices as streams."""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

# As many hardware queues as streams, or streams would wait for each other where no event says so. Read at CUDA's start.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import ppsim
from ppsim import Program
from validation import options as asked
from validation.clocks import Clocks
from validation.environment import describe_environment
from validation.failures import ReplayError
from validation.gradients import compare_gradients, own_gradients
from validation.partition import multiprocessor_streams
from validation.runtimes import CudaRuntime, Stamps, record_event
from validation.traces import step_columns, trace_document, write_trace
from validation.walk import Walker

# Spins by the GPU's nanosecond clock, so that its frequency does not matter; and a gate that the host opens.
KERNELS = """
__device__ unsigned long long now() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
    return t;
}
extern "C" __global__ void spin(int nanoseconds) {
    unsigned long long begin = now();
    while (now() - begin < nanoseconds) {}
}
extern "C" __global__ void gate(volatile int* is_open, int milliseconds) {
    unsigned long long begin = now();
    while (*is_open == 0 && now() - begin < milliseconds * 1000000ull) {}
}
"""
GATE_MILLISECONDS = 10_000  # then the step starts even if the host has not enqueued all of it
LONGEST_WAIT = 60.0  # seconds in which a transfer's other end must have been enqueued
MOST_STREAMS = 32  # of torch's pool, which hands out the same ones again after that
LONGEST_SPIN = 2.0  # seconds; the kernel counts nanoseconds in 32 bits


class Fabric:
    """What the virtual devices share: a stream for each ordered pair, the gate, and transfers posted at one end."""

    def __init__(self, latency: float):
        self.latency = latency
        self.spin_kernel = torch.cuda._compile_kernel(KERNELS, "spin")
        self.gate_kernel = torch.cuda._compile_kernel(KERNELS, "gate")
        self.is_open = host_flag()
        self.gate_stream = torch.cuda.Stream()
        self.links: dict[tuple[int, int], torch.cuda.Stream] = {}
        self.lock = threading.Lock()
        self.failed = threading.Event()

    def close_gate(self) -> None:
        """Hold back all that waits for `anchor` until `open_gate`."""
        torch.cuda.synchronize()  # what was made on other streams, such as weights, is there before the step
        self.posted: dict[int, tuple[torch.cuda.Event, torch.Tensor, VirtualDevice, int]] = {}
        self.is_open[0] = 0
        self.closed_at = time.monotonic()
        self.gate_kernel((1, 1, 1), (1, 1, 1), (self.is_open, GATE_MILLISECONDS), stream=self.gate_stream)
        self.anchor = record_event(self.gate_stream)

    def open_gate(self) -> bool:
        """Let the step that was enqueued run; False where the gate had opened by itself before."""
        self.opened_at = time.monotonic()
        self.is_open[0] = 1
        return self.opened_at - self.closed_at < GATE_MILLISECONDS / 1e3

    def spin(self, seconds: float) -> None:
        """Keep one multiprocessor of the current stream busy."""
        stream = torch.cuda.current_stream()
        self.spin_kernel((1, 1, 1), (1, 1, 1), (round(seconds * 1e9),), stream=stream)

    def post(self, tag: int, ends: tuple[int, int], is_send: bool, half: tuple) -> None:
        """One end of a transfer is posted; the second one puts the copy on the link's stream."""
        with self.lock:
            if tag not in self.posted:
                self.posted[tag] = half
                return
            first = self.posted.pop(tag)
            send, receive = (half, first) if is_send else (first, half)
            stream = self.links.setdefault(ends, torch.cuda.Stream())
            with torch.cuda.stream(stream):
                stream.wait_event(send[0])
                stream.wait_event(receive[0])
                start = record_event(stream)
                receive[1].copy_(send[1], non_blocking=True)
                if self.latency:
                    self.spin(self.latency)
                end = record_event(stream)
            for _, _, device, row in (send, receive):
                device.stamps.start[row], device.stamps.end[row] = start, end
            receive[2].deliver(tag, end)


class VirtualDevice(CudaRuntime):
    """One device of the pipeline, as a compute stream of the one GPU."""

    device = torch.device("cuda")

    def __init__(self, rank: int, fabric: Fabric, stream: torch.cuda.Stream):
        self.rank, self.blocking = rank, False
        self.compute_stream, self.fabric = stream, fabric

    def begin_step(self, rows: int) -> None:
        """Start a new set of stamps behind the gate."""
        self.stamps = Stamps(rows)
        self.arrived: dict[int, torch.cuda.Event] = {}
        self.on_way: dict[int, threading.Event] = {}
        self.sending: list[torch.cuda.Event] = []
        self.kept: list[torch.Tensor] = []
        self.anchor = self.fabric.anchor
        self.compute_stream.wait_event(self.anchor)
        self.origin = self.fabric.closed_at  # until `end_step` knows when the gate opened

    def compute(self, row: int, needs: list[int], work: Callable[[], None]) -> None:
        """Enqueue `work` behind the transfers `needs`, once the host has put those on their links."""
        for tag in needs:
            self._await_posting(self.on_way[tag])
        super().compute(row, needs, work)

    def send(self, row: int, tag: int, peer: int, tensor: torch.Tensor) -> None:
        """Post a SEND behind the compute before it."""
        self._post_half(row, tag, (self.rank, peer), True, tensor)

    def receive(self, row: int, tag: int, peer: int, buffer: torch.Tensor) -> None:
        """Post a RECV behind the compute before it."""
        self.on_way[tag] = threading.Event()
        self._post_half(row, tag, (peer, self.rank), False, buffer)

    def end_step(self) -> Stamps:
        """The stamps of the step, which began when the gate opened."""
        self.origin = self.fabric.opened_at
        return super().end_step()

    def deliver(self, tag: int, end: torch.cuda.Event) -> None:
        """The link knows when the transfer will end."""
        self.arrived[tag] = end
        self.on_way[tag].set()

    def _await_posting(self, posted: threading.Event) -> None:
        until = time.monotonic() + LONGEST_WAIT
        while not posted.wait(0.1):
            if self.fabric.failed.is_set():
                raise ReplayError("another device failed")
            if time.monotonic() > until:
                raise ReplayError(f"device {self.rank} waits for a transfer that nobody enqueues")

    def _post_half(self, row: int, tag: int, ends: tuple[int, int], is_send: bool, tensor: torch.Tensor) -> None:
        self.stamps.issue[row] = time.monotonic()
        self.kept.append(tensor)
        self.fabric.post(tag, ends, is_send, (record_event(self.compute_stream), tensor, self, row))


def host_flag() -> torch.Tensor:
    """A number in host memory that kernels can read."""
    return torch.zeros(1, dtype=torch.int32, pin_memory=True)


def run_step(walkers: list[Walker], fabric: Fabric) -> tuple[list[dict], bool]:
    """Enqueue one step of all devices behind the gate, one host thread a device, then let it run.

    The columns of each device, and whether all was enqueued before the step began.
    """
    fabric.close_gate()
    failures: list[Exception] = []

    def walk(walker: Walker) -> None:
        try:
            walker.enqueue_step()
        except Exception as error:
            failures.append(error)
            fabric.failed.set()

    threads = [threading.Thread(target=walk, args=(walker,)) for walker in walkers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    in_time = fabric.open_gate()
    torch.cuda.synchronize()
    if failures:
        raise failures[0]
    return [step_columns(walker.runtime.end_step(), fabric.opened_at, 0.0) for walker in walkers], in_time


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    """The flags of replay.py, and those of one GPU."""
    parser = asked.make_parser(__doc__)
    parser.prog = "one_gpu.py"
    parser.add_argument("--devices", type=int, required=True, help="virtual devices")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds added to each copy")
    parser.set_defaults(backend="streams", layout="directed", blocking=False)
    return parser.parse_args(arguments)


def replay_all(options: argparse.Namespace) -> list[str]:
    """Replay each program and write its trace; a sentence for each that says what was done."""
    programs = asked.load_programs(options, options.devices)
    fabric = Fabric(options.latency)
    if options.compute == "sleep":
        streams: list[torch.cuda.Stream] = [torch.cuda.Stream() for _ in range(options.devices)]
    else:
        streams = multiprocessor_streams(options.devices)
    return [replay(program, options, fabric, streams) for program in programs]


def replay(program: Program, options: argparse.Namespace, fabric: Fabric, streams: list[torch.cuda.Stream]) -> str:
    """Run the steps of one program and write its trace; a sentence that says what was done."""
    shape, costs = asked.make_shape(options, program), asked.sleep_costs(options)
    seconds = costs and asked.sleep_seconds(costs, program)
    pad = seconds and {kind: _spin(fabric, value) for kind, value in seconds.items()}
    walkers = [
        Walker(program, rank, shape, VirtualDevice(rank, fabric, stream), pad) for rank, stream in enumerate(streams)
    ]
    steps = []
    for number in range(options.warm_up + options.steps):
        columns, in_time = run_step(walkers, fabric)
        if number < options.warm_up:
            continue
        if not in_time:
            raise ReplayError(
                f"the host took more than {GATE_MILLISECONDS / 1e3:g} s to enqueue a step; use fewer microbatches"
            )
        steps.append(columns)
    said = f"replayed {program.name}: {options.steps} steps on {options.devices} streams of one GPU"
    if options.check_gradients:
        fault = compare_gradients(program, [own_gradients(walker) for walker in walkers], shape)
        if fault:
            raise ReplayError(fault)
        said += ", gradients equal a single process's"
    if path := asked.out_path(options, program):
        gathered = [[step[rank] for step in steps] for rank in range(options.devices)]
        clocks = [Clocks(0.0, 0.0, 0.0, "one GPU")] * options.devices
        environment = describe_environment(torch.device("cuda"))
        bytes_sent = shape.buffer(torch.device("cpu")).nbytes
        write_trace(path, trace_document(program, gathered, clocks, bytes_sent, environment, options))
        said += f"; trace in {path}"
    return said


def _spin(fabric: Fabric, seconds: float) -> Callable[[Callable], None]:
    if seconds > LONGEST_SPIN:
        raise ReplayError(f"an action of {seconds:g} s is too long to spin; use at most {LONGEST_SPIN:g} s")

    def padded(act: Callable[[], None]) -> None:
        act()
        fabric.spin(seconds)

    return padded


def check_call(options: argparse.Namespace) -> None:
    """All that can be wrong with the call; ReplayError or PpsimError says it."""
    if options.devices < 1:
        raise ReplayError(f"--devices {options.devices} must be at least 1")
    if not 0 <= options.latency <= LONGEST_SPIN:
        raise ReplayError(f"--latency {options.latency:g} must be from 0 to {LONGEST_SPIN:g} seconds")
    asked.check_numbers(options)
    asked.check_out(options.out)
    asked.sleep_costs(options)
    streams = 1 + options.devices + len(asked.used_pairs(asked.load_programs(options, options.devices)))
    if streams > MOST_STREAMS:
        raise ReplayError(f"the programs need {streams} streams and torch has {MOST_STREAMS}; use fewer devices")
    if not torch.cuda.is_available():
        raise ReplayError("one_gpu.py needs a CUDA device; on CPUs use torchrun validation/replay.py")


def main(arguments: list[str] | None = None) -> int:
    """Entry point; exit status 0 done, 1 broken off, 2 wrong call."""
    options = parse_arguments(arguments)
    try:
        check_call(options)
    except (ReplayError, ppsim.PpsimError) as error:
        print(f"replay: {error}", file=sys.stderr)
        return 2
    try:
        print(*replay_all(options), sep="\n", flush=True)
    except (ReplayError, ppsim.PpsimError, OSError, RuntimeError) as error:
        print(f"replay: broken off: {(str(error).splitlines() or [type(error).__name__])[0]}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
