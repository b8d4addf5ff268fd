"""Replay a program on real devices: `torchrun --nproc-per-node P validation/replay.py --schedule NAME ...`."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import torch.distributed as dist

import ppsim
from ppsim.actions import Kind
from ppsim.lowering import has_transfers
from ppsim.schedule import Program
from validation.clocks import measure_clocks
from validation.environment import describe_environment
from validation.gradients import gradient_fault
from validation.runtimes import LAYOUTS, CpuRuntime, CudaRuntime
from validation.stages import Shape, sleep_out
from validation.traces import step_columns, trace_document, write_trace
from validation.walk import Walker

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}


class ReplayError(Exception):
    """The replay cannot run as asked, or broke off; the message is for the person who started it."""


def make_parser() -> argparse.ArgumentParser:
    """The command line; see validation/README.md for each flag in use."""
    parser = argparse.ArgumentParser(prog="replay.py", description=__doc__)
    parser.add_argument(
        "program", nargs="?", help="CSV file with one row of actions per device, with or without transfers"
    )
    parser.add_argument("--schedule", help="build this schedule instead of reading a file")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--stages-per-device", type=int)
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="option of the schedule family"
    )
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument(
        "--layout",
        choices=LAYOUTS,
        default="directed",
        help="NCCL communicators: one per ordered pair, per pair, or one",
    )
    parser.add_argument("--blocking", action="store_true", help="the next compute action waits for each send")
    parser.add_argument("--compute", choices=("sleep", "mlp", "transformer"), default="mlp")
    for name in ("forward", "backward", "input-grad", "weight-grad"):
        parser.add_argument(
            f"--{name}", type=float, help="seconds per microbatch and device share, with --compute sleep"
        )
    parser.add_argument("--layers", type=int, help="blocks of the whole model (default: one per stage)")
    for name, value in (("hidden", 16), ("heads", 4), ("sequence", 4), ("batch", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="float64")
    parser.add_argument("--steps", type=int, default=4, help="measured steps")
    parser.add_argument("--warm-up", type=int, default=2, help="steps run before and dropped")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds after which a silent peer is given up")
    parser.add_argument("--check-gradients", action="store_true", help="compare with a single process's step")
    parser.add_argument("--out", help="trace file to write (JSON)")
    return parser


def load_program(options: argparse.Namespace, world: int) -> Program:
    """The program to replay: read, or built and lowered; ReplayError when it is for another number of devices."""
    if bool(options.program) == bool(options.schedule):
        raise ReplayError("name either a PROGRAM.csv or a --schedule")
    if options.program:
        schedule = ppsim.Schedule.from_csv(options.program)
    else:
        schedule = ppsim.build(
            options.schedule,
            devices=world,
            microbatches=options.microbatches,
            stages_per_device=options.stages_per_device,
            **dict(_option(text) for text in options.option),
        )
    if schedule.devices != world:
        raise ReplayError(
            f"the program is for {schedule.devices} devices, but torchrun started {world} process(es); "
            f"use torchrun --nproc-per-node {schedule.devices}"
        )
    if schedule.slices > 1:
        raise ReplayError(
            f"{schedule.name} cuts sequences into slices, which the harness cannot run; use another schedule"
        )
    schedule.validate()
    if isinstance(schedule, Program) and has_transfers(schedule):
        return schedule
    return ppsim.lower(schedule)


def _option(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ReplayError(f"--option {text!r} has no value; write NAME=VALUE, such as grouping=torch")
    return name, int(value) if value.lstrip("-").isdigit() else value


def make_shape(options: argparse.Namespace, program: Program) -> Shape:
    """The model to replay; with `--compute sleep` a tiny one, whose time is padded."""
    return Shape(
        block="transformer" if options.compute == "transformer" else "mlp",
        layers=options.layers or program.num_stages,
        hidden=options.hidden,
        heads=options.heads,
        sequence=options.sequence,
        batch=options.batch,
        dtype=DTYPES[options.dtype],
    )


def sleep_seconds(options: argparse.Namespace, program: Program) -> dict[Kind, float] | None:
    """Seconds of F, B, I and W of one stage at equal work, or None for real compute."""
    if options.compute != "sleep":
        return None
    given = {name: getattr(options, name) for name in ("forward", "backward", "input_grad", "weight_grad")}
    table = ppsim.Costs(**given).table(program.schedule)
    return {kind: float(table.seconds[kind, 0]) for kind in (Kind.F, Kind.B, Kind.I, Kind.W)}


def make_runtime(
    options: argparse.Namespace, control: dist.ProcessGroup, rank: int, world: int
) -> CpuRuntime | CudaRuntime:
    """The runtime of the backend; ReplayError where this machine does not have it."""
    if options.backend == "gloo":
        return CpuRuntime(control, options.blocking, options.timeout)
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", rank)))
    torch.cuda.set_device(device)
    return CudaRuntime(control, rank, world, options.layout, options.blocking, device)


def check_backend(backend: str) -> None:
    """ReplayError where the backend is missing or has fewer devices than ranks."""
    if backend == "gloo":
        if not dist.is_gloo_available():
            raise ReplayError("this build of torch has no gloo backend; use --backend nccl on GPUs")
        return
    if not dist.is_nccl_available() or not torch.cuda.is_available():
        raise ReplayError("--backend nccl needs CUDA devices and a torch built with NCCL; use --backend gloo on CPUs")
    local = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    if local > torch.cuda.device_count():
        raise ReplayError(
            f"{local} ranks share {torch.cuda.device_count()} GPU(s) here, and NCCL refuses two ranks on one GPU; "
            f"use validation/one_gpu.py, which plays all devices as streams of one GPU"
        )


def check_out(path: str | None) -> None:
    """ReplayError where the trace could not be written; better told before the run than after."""
    if path is not None:
        folder = Path(path).resolve().parent
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise ReplayError(f"--out {path}: {folder} is not a folder that can be written to")


def replay(options: argparse.Namespace, rank: int, world: int) -> str:
    """Run the steps and write the trace (rank 0); a sentence that says what was done."""
    program = load_program(options, world)
    shape = make_shape(options, program)
    control = dist.new_group(backend="gloo", timeout=timedelta(seconds=options.timeout))
    clocks = measure_clocks(control, rank, world)
    runtime = make_runtime(options, control, rank, world)
    seconds = sleep_seconds(options, program)
    pad = None if seconds is None else {kind: sleep_out(value) for kind, value in seconds.items()}
    walker = Walker(program, rank, shape, runtime, pad)
    steps = []
    for number in range(options.warm_up + options.steps):
        origin, stamps = walker.step()
        if number >= options.warm_up:
            steps.append(step_columns(stamps, origin, clocks.offset))
    fault = gradient_fault(program, walker, shape, control, rank) if options.check_gradients else None
    if fault:
        raise ReplayError(fault)
    gathered = [None] * world if rank == 0 else None
    dist.gather_object(steps, gathered, group=control)
    all_clocks = [None] * world if rank == 0 else None
    dist.gather_object((clocks.offset, clocks.hop, clocks.method), all_clocks, group=control)
    said = f"replayed {program.name}: {options.steps} steps on {world} rank(s)"
    if options.check_gradients:
        said += ", gradients equal a single process's"
    if rank == 0 and options.out:
        bytes_sent = shape.buffer(torch.device("cpu")).nbytes
        document = trace_document(
            program, gathered, all_clocks, bytes_sent, describe_environment(runtime.device), options
        )
        write_trace(options.out, document)
        said += f", trace in {options.out}"
    return said


def main(arguments: list[str] | None = None) -> int:
    """Entry point under torchrun; exit status 0 done, 1 broken off, 2 wrong call."""
    options = make_parser().parse_args(arguments)
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))

    def say(text: str) -> None:
        if rank == 0:
            print(f"replay: {text}", file=sys.stderr, flush=True)

    def stopped(*_: object) -> None:
        say("stopped: another rank has died or the launcher was interrupted; torchrun's last lines name the rank")
        os._exit(1)

    signal.signal(signal.SIGTERM, stopped)
    try:
        check_backend(options.backend)
        check_out(options.out)
        load_program(options, world)
    except (ReplayError, ppsim.PpsimError) as error:
        say(str(error))
        return 2
    torch.set_num_threads(1)
    if "RANK" not in os.environ:
        os.environ.update(RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    try:
        dist.init_process_group(options.backend, timeout=timedelta(seconds=options.timeout))
        said = replay(options, rank, world)
    except (ReplayError, ppsim.PpsimError, OSError, RuntimeError, TimeoutError) as error:
        say(f"broken off: {str(error).splitlines()[0] if str(error) else type(error).__name__}")
        sys.stderr.flush()
        os._exit(1)
    if rank == 0:
        print(said)
    dist.barrier()
    dist.destroy_process_group()
    return 0


if __name__ == "__main__":
    sys.exit(main())
