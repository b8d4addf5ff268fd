"""Replay programs on real devices: `torchrun --nproc-per-node P validation/replay.py --schedule NAME ...`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # a signal while torch loads waits for the Watch, which says it in one sentence
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist
from torch.distributed.rendezvous import rendezvous

import ppsim
from ppsim import Program
from validation import options as asked
from validation.clocks import Clocks, measure_clocks
from validation.environment import describe_environment
from validation.failures import ReplayError, Watch
from validation.gradients import gradient_fault
from validation.runtimes import CpuRuntime, CudaRuntime
from validation.stages import sleep_out
from validation.traces import step_columns, trace_document, write_trace
from validation.verdict import verdict
from validation.walk import Walker


def make_runtime(
    options: argparse.Namespace, control: dist.ProcessGroup, rank: int, programs: list[Program]
) -> CpuRuntime | CudaRuntime:
    """The runtime of the backend."""
    if options.backend == "gloo":
        return CpuRuntime(control, options.blocking, options.timeout)
    return CudaRuntime(control, rank, asked.used_pairs(programs), options.layout, options.blocking, cuda_device())


def cuda_device() -> torch.device:
    """The GPU of this rank; torchrun numbers the ranks of a host."""
    return torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))


def replay_all(options: argparse.Namespace, rank: int, world: int) -> list[str]:
    """Replay each program and write its trace (rank 0); a sentence for each that says what was done."""
    programs = asked.load_programs(options, world)
    control: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=options.timeout))
    runtime = make_runtime(options, control, rank, programs)
    # On processors that others use too, programs take turns step by step: what disturbs one disturbs all alike.
    turns = options.backend == "gloo" and not options.one_after_another
    groups = [programs] if turns else [[program] for program in programs]
    return [said for group in groups for said in replay(group, options, runtime, rank, world)]


def replay(
    programs: list[Program], options: argparse.Namespace, runtime: CpuRuntime | CudaRuntime, rank: int, world: int
) -> list[str]:
    """Run the steps of programs in turn, one step of each a round, and report each."""
    walkers = [make_walker(program, options, runtime, rank) for program in programs]
    before = measure_clocks(runtime.control, rank, world)
    rounds = [[walker.step() for walker in walkers] for _ in range(options.warm_up + options.steps)]
    clocks = before.joined(measure_clocks(runtime.control, rank, world))
    measured = zip(*rounds[options.warm_up :], strict=True)
    return [
        report(walker, list(steps), clocks, options, rank, world)
        for walker, steps in zip(walkers, measured, strict=True)
    ]


def make_walker(program: Program, options: argparse.Namespace, runtime: CpuRuntime | CudaRuntime, rank: int) -> Walker:
    """One rank's walker through a program, with its actions padded where the call says so."""
    costs = asked.sleep_costs(options)
    pad = costs and {kind: sleep_out(value) for kind, value in asked.sleep_seconds(costs, program).items()}
    return Walker(program, rank, asked.make_shape(options, program), runtime, pad)


def report(walker: Walker, measured: list, clocks: Clocks, options: argparse.Namespace, rank: int, world: int) -> str:
    """Check what was measured of a program and write its trace (rank 0); a sentence that says what was done."""
    program, shape, runtime, costs = walker.program, walker.shape, walker.runtime, asked.sleep_costs(options)
    said = f"replayed {program.name}: {options.steps} steps on {world} rank(s)"
    if options.check_gradients:
        if fault := gradient_fault(program, walker, shape, runtime.control, rank):
            raise ReplayError(fault)
        said += ", gradients equal a single process's"
    steps = [step_columns(stamps, origin, clocks.offset) for origin, stamps in measured]
    gathered = _gathered((steps, clocks), runtime.control, rank, world)
    if gathered is None:
        return said
    all_clocks: list[Clocks] = [item[1] for item in gathered]
    document = trace_document(
        program,
        [item[0] for item in gathered],
        all_clocks,
        shape.buffer(torch.device("cpu")).nbytes,
        describe_environment(runtime.device),
        options,
    )
    if costs:
        said += f"; {verdict(document, costs).sentence}"
    if path := asked.out_path(options, program):
        write_trace(path, document)
        said += f"; trace in {path}"
    return said


def _gathered(item: object, control: dist.ProcessGroup, rank: int, world: int) -> list | None:
    """What every rank has to say, on rank 0; None elsewhere."""
    everything = [None] * world if rank == 0 else None
    dist.gather_object(item, everything, group=control)
    return everything


def check_call(options: argparse.Namespace, world: int) -> None:
    """All that can be wrong with the call and be seen by one rank alone; ReplayError or PpsimError says it."""
    if "RANK" not in os.environ and world == 1 and options.programs + options.schedule:
        devices = [ppsim.Schedule.from_csv(path).devices for path in options.programs]
        if any(count > 1 for count in devices):
            raise ReplayError(
                f"the program is for {max(devices)} devices; start it with torchrun --nproc-per-node {max(devices)}"
            )
    asked.check_numbers(options)
    if not 0 < options.timeout <= 3600:
        raise ReplayError(f"--timeout {options.timeout:g} must be a number of seconds above 0 and at most 3600")
    asked.check_backend(options.backend)
    asked.check_out(options.out)
    asked.sleep_costs(options)
    asked.load_programs(options, world)


def start(options: argparse.Namespace, rank: int, world: int) -> Any:
    """Join the other ranks; the store that all of them share."""
    if "RANK" not in os.environ:
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    timeout = timedelta(seconds=options.timeout)
    store = next(iter(rendezvous("env://", rank, world, timeout=timeout)))[0]
    device = None
    if options.backend == "nccl":
        device = cuda_device()
        torch.cuda.set_device(device)
    dist.init_process_group(
        options.backend, store=store, rank=rank, world_size=world, timeout=timeout, device_id=device
    )
    return store


def main(arguments: list[str] | None = None) -> int:
    """Entry point under torchrun; exit status 0 done, 1 broken off, 2 wrong call."""
    options = asked.make_rank_parser(__doc__).parse_args(arguments)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    watch = Watch(rank, world, patience=options.timeout / 4)
    try:
        check_call(options, world)
    except (ReplayError, ppsim.PpsimError) as error:
        watch.say(str(error))
        return 2
    watch.start()
    torch.set_num_threads(1)
    try:
        watch.store = start(options, rank, world)
        said = replay_all(options, rank, world)
        if rank == 0:
            print(*said, sep="\n", flush=True)
        dist.barrier()
        dist.destroy_process_group()
    except Exception as error:  # whatever it is, rank 0 says it and no rank is left behind
        watch.fail(error)
    return 0


if __name__ == "__main__":
    sys.exit(main())
