"""Replay a program on one GPU: `python validation/one_gpu.py --schedule NAME --devices P ...`, devices as streams."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

# As many hardware queues as streams, or streams would wait for each other where no event says so. Read at CUDA's start.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import ppsim
from validation import replay
from validation.environment import describe_environment
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
LONGEST_SPIN = 2.0  # seconds; the kernel counts nanoseconds in 32 bits


class Fabric:
    """What the virtual devices share: a stream for each ordered pair, the gate, and transfers posted at one end."""

    def __init__(self, latency: float):
        self.latency = latency
        self.spin_kernel = torch.cuda._compile_kernel(KERNELS, "spin")
        self.gate_kernel = torch.cuda._compile_kernel(KERNELS, "gate")
        self.is_open = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self.gate_stream = torch.cuda.Stream()
        self.links: dict[tuple[int, int], torch.cuda.Stream] = {}
        self.lock = threading.Lock()

    def close_gate(self) -> None:
        """Hold back all that waits for `anchor` until `open_gate`."""
        self.posted: dict[int, tuple[torch.cuda.Event, torch.Tensor, Stamps, int]] = {}
        self.is_open[0] = 0
        self.gate_kernel((1, 1, 1), (1, 1, 1), (self.is_open, GATE_MILLISECONDS), stream=self.gate_stream)
        self.anchor = record_event(self.gate_stream)

    def open_gate(self) -> None:
        """Let the step that was enqueued run."""
        self.is_open[0] = 1

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

    def __init__(self, rank: int, fabric: Fabric, stream: torch.cuda.Stream):
        self.device, self.rank, self.blocking = torch.device("cuda"), rank, False
        self.compute_stream, self.fabric = stream, fabric

    def begin_step(self, rows: int) -> None:
        """Start a new set of stamps behind the gate."""
        self.stamps = Stamps(rows)
        self.arrived: dict[int, torch.cuda.Event] = {}
        self.on_way = {}
        self.sending: list[torch.cuda.Event] = []
        self.kept: list[torch.Tensor] = []
        self.anchor = self.fabric.anchor
        self.compute_stream.wait_event(self.anchor)
        self.origin = 0.0

    def compute(self, row: int, needs: list[int], work: Callable[[], None]) -> None:
        """Enqueue `work` behind the transfers `needs`, once the host has put those on their links."""
        for tag in needs:
            if not self.on_way[tag].wait(60):
                raise TimeoutError(
                    f"device {self.rank} waits for a transfer that nobody enqueues: the program deadlocks"
                )
        super().compute(row, needs, work)

    def send(self, row: int, tag: int, peer: int, tensor: torch.Tensor) -> None:
        """Post a SEND behind the compute before it."""
        self._post_half(row, tag, (self.rank, peer), True, tensor)

    def receive(self, row: int, tag: int, peer: int, buffer: torch.Tensor) -> None:
        """Post a RECV behind the compute before it."""
        self.on_way[tag] = threading.Event()
        self._post_half(row, tag, (peer, self.rank), False, buffer)

    def deliver(self, tag: int, end: torch.cuda.Event) -> None:
        """The link knows when the transfer will end."""
        self.arrived[tag] = end
        self.on_way[tag].set()

    def _post_half(self, row: int, tag: int, ends: tuple[int, int], is_send: bool, tensor: torch.Tensor) -> None:
        self.kept.append(tensor)
        self.fabric.post(tag, ends, is_send, (record_event(self.compute_stream), tensor, self, row))


def run_step(walkers: list[Walker], fabric: Fabric) -> list[dict]:
    """Enqueue one step of all devices behind the gate, one host thread a device, then let it run."""
    fabric.close_gate()
    answers: list = [None] * len(walkers)

    def walk(number: int) -> None:
        try:
            answers[number] = walkers[number].enqueue_step()
        except Exception as error:
            answers[number] = error

    threads = [threading.Thread(target=walk, args=(number,)) for number in range(len(walkers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fabric.open_gate()
    torch.cuda.synchronize()
    for answer in answers:
        if isinstance(answer, Exception):
            raise replay.ReplayError(str(answer))
    return [
        step_columns(walker.runtime.end_step(), origin, 0.0) for walker, origin in zip(walkers, answers, strict=True)
    ]


def parse_arguments() -> argparse.Namespace:
    """The flags of replay.py, and those of one GPU."""
    parser = replay.make_parser()
    parser.description = __doc__
    parser.add_argument("--devices", type=int, required=True, help="virtual devices")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds added to each copy")
    options = parser.parse_args()
    options.backend = "streams"
    return options


def measure(options: argparse.Namespace) -> str:
    """Run the steps and write the trace; a sentence that says what was done."""
    program = replay.load_program(options, options.devices)
    shape = replay.make_shape(options, program)
    fabric = Fabric(options.latency)
    seconds = replay.sleep_seconds(options, program)
    streams = multiprocessor_streams(options.devices) if seconds is None else None
    walkers = []
    for rank in range(options.devices):
        stream = streams[rank] if streams else torch.cuda.Stream()
        pad = None if seconds is None else {kind: _spin(fabric, value) for kind, value in seconds.items()}
        walkers.append(Walker(program, rank, shape, VirtualDevice(rank, fabric, stream), pad))
    for _ in range(options.warm_up):
        run_step(walkers, fabric)
    steps = [run_step(walkers, fabric) for _ in range(options.steps)]
    said = f"replayed {program.name}: {options.steps} steps on {options.devices} streams of one GPU"
    if options.check_gradients:
        fault = compare_gradients(program, [own_gradients(walker) for walker in walkers], shape)
        if fault:
            raise replay.ReplayError(fault)
        said += ", gradients equal a single process's"
    if options.out:
        gathered = [[step[rank] for step in steps] for rank in range(options.devices)]
        clocks = [(0.0, 0.0, "one GPU")] * options.devices
        environment = describe_environment(torch.device("cuda"))
        bytes_sent = shape.buffer(torch.device("cuda")).nbytes
        write_trace(options.out, trace_document(program, gathered, clocks, bytes_sent, environment, options))
        said += f", trace in {options.out}"
    return said


def _spin(fabric: Fabric, seconds: float) -> Callable[[Callable], None]:
    if seconds > LONGEST_SPIN:
        raise replay.ReplayError(f"an action of {seconds:g} s is too long to spin; use at most {LONGEST_SPIN:g} s")

    def padded(act: Callable[[], None]) -> None:
        act()
        fabric.spin(seconds)

    return padded


def main() -> int:
    """Entry point; exit status 0 done, 1 broken off, 2 wrong call."""
    options = parse_arguments()
    try:
        if not torch.cuda.is_available():
            raise replay.ReplayError("one_gpu.py needs a CUDA device; use torchrun validation/replay.py on CPUs")
        replay.check_out(options.out)
        print(measure(options))
    except (replay.ReplayError, ppsim.PpsimError) as error:
        print(f"replay: {error}", file=sys.stderr)
        return 2
    except (OSError, RuntimeError) as error:
        print(f"replay: broken off: {str(error).splitlines()[0]}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
