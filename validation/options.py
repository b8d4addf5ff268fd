"""What a replay is asked to do: the flags, the programs they name, and checks that need no other rank."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist

import ppsim
from ppsim import Program, Schedule
from validation.actions import COMPUTE, SENDS, actions_of, holders, next_stage
from validation.failures import ReplayError
from validation.runtimes import LAYOUTS
from validation.stages import Shape

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}
SLEEP = {"forward": 0.02, "backward": 0.04}  # seconds, where --compute sleep is given no times


class Parser(argparse.ArgumentParser):
    """A parser whose errors are printed by rank 0 alone."""

    def error(self, message: str) -> NoReturn:
        """Print what is wrong and end with status 2."""
        if os.environ.get("RANK", "0") == "0":
            print(f"replay: {message}; see --help", file=sys.stderr, flush=True)
        sys.exit(2)


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """The flags of every replay; validation/README.md explains each."""
    parser = Parser(prog="replay.py", description=description)
    parser.add_argument(
        "programs", nargs="*", metavar="PROGRAM.csv", help="one row of actions per device, with or without transfers"
    )
    parser.add_argument("--schedule", action="append", default=[], metavar="NAME", help="build this one; repeatable")
    parser.add_argument("--microbatches", type=int, default=8)
    parser.add_argument("--stages-per-device", type=int, help="default: what each family uses")
    parser.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", help="option of the schedule family; repeatable"
    )
    parser.add_argument("--compute", choices=("sleep", "mlp", "transformer"), default="mlp")
    for name in ("forward", "backward", "input-grad", "weight-grad"):
        parser.add_argument(f"--{name}", type=float, metavar="SECONDS", help="of a device share, with --compute sleep")
    parser.add_argument("--layers", type=int, help="blocks of the whole model (default: one per stage)")
    for name, value in (("hidden", 16), ("heads", 4), ("sequence", 4), ("batch", 2)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--dtype", choices=tuple(DTYPES), default="float64")
    parser.add_argument("--steps", type=int, default=4, help="measured steps")
    parser.add_argument("--warm-up", type=int, default=2, help="steps run before and dropped")
    parser.add_argument("--check-gradients", action="store_true", help="compare with a single process's step")
    parser.add_argument("--out", metavar="FILE", help="trace to write; {name} in it stands for the schedule's name")
    return parser


def make_rank_parser(description: str | None) -> argparse.ArgumentParser:
    """The flags of a replay whose devices are processes of their own."""
    parser = make_parser(description)
    parser.add_argument("--backend", choices=("gloo", "nccl"), default="gloo")
    parser.add_argument(
        "--layout", choices=LAYOUTS, default="directed",
        help="NCCL communicators: one per ordered pair of ranks, one per pair, or one for all",
    )  # fmt: skip
    parser.add_argument("--one-after-another", action="store_true", help="on gloo too: programs do not take turns")
    parser.add_argument("--blocking", action="store_true", help="the next compute action waits for each send")
    parser.add_argument("--timeout", type=float, default=30.0, help="seconds after which a silent peer is given up")
    return parser


def check_numbers(options: argparse.Namespace) -> None:
    """ReplayError for a size that no replay can have."""
    least = dict.fromkeys(("microbatches", "hidden", "heads", "sequence", "batch", "steps"), 1) | {"warm_up": 0}
    for name, lowest in least.items():
        if getattr(options, name) < lowest:
            raise ReplayError(f"--{name.replace('_', '-')} {getattr(options, name)} must be at least {lowest}")
    if options.layers is not None and options.layers < 1:
        raise ReplayError(f"--layers {options.layers} must be at least 1")
    if options.compute == "transformer" and options.hidden % options.heads:
        raise ReplayError(f"--hidden {options.hidden} is not a multiple of --heads {options.heads}")


def load_programs(options: argparse.Namespace, world: int) -> list[Program]:
    """The programs to replay, read, or built and lowered; ReplayError when one is for another number of devices."""
    if not options.programs and not options.schedule:
        raise ReplayError("nothing to replay; name a PROGRAM.csv or a --schedule, such as --schedule 1f1b")
    schedules = [ppsim.Schedule.from_csv(path, name=Path(path).stem) for path in options.programs]
    for name in options.schedule:
        family: dict[str, Any] = dict(_option(text) for text in options.option)
        schedules.append(
            ppsim.build(
                name,
                devices=world,
                microbatches=options.microbatches,
                stages_per_device=options.stages_per_device,
                **family,
            )
        )
    names = [schedule.name for schedule in schedules]
    if options.out and len(names) > 1 and "{name}" not in options.out:
        raise ReplayError(f"--out {options.out}: several programs need several files; write {{name}} in it")
    for path in [_named(options.out, name) for name in names] if options.out else []:
        if any(os.path.exists(path) and os.path.samefile(path, program) for program in options.programs):
            raise ReplayError(f"--out {path}: would replace a program that this call reads; give another name")
    if twice := [name for name in names if names.count(name) > 1]:
        raise ReplayError(f"{twice[0]} is named twice; give each program a name of its own")
    return [_lowered(schedule, options, world) for schedule in schedules]


def _lowered(schedule: Schedule, options: argparse.Namespace, world: int) -> Program:
    if schedule.devices != world:
        raise ReplayError(
            f"{schedule.name} is for {schedule.devices} devices, but torchrun started {world} process(es); "
            f"use torchrun --nproc-per-node {schedule.devices}"
        )
    if schedule.slices > 1 or schedule.iterations > 1 or len(schedule.evicted):
        what = "slices of sequences" if schedule.slices > 1 else "steps without a flush or activations kept elsewhere"
        raise ReplayError(f"{schedule.name} has {what}, which the harness cannot run; use another schedule")
    schedule.validate()
    transfers = any("SEND" in text for order in schedule.orders() for text in order)
    program = schedule if isinstance(schedule, Program) and transfers else ppsim.lower(schedule)
    if options.backend != "gloo":
        # A program that deadlocks on these communicators would hang the devices; the simulator says so before.
        ppsim.simulate(program, transport="blocking" if options.blocking else options.layout)
    return program


def _option(text: str) -> tuple[str, object]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ReplayError(f"--option {text!r} has no value; write NAME=VALUE, such as grouping=torch")
    return name, int(value) if value.removeprefix("-").isdecimal() else value


def used_pairs(programs: Sequence[Program]) -> list[tuple[int, int]]:
    """The (sender, receiver) pairs between which any of the programs transfers, in order."""
    pairs = set()
    for program in programs:
        device_of = holders(program)
        for device, order in enumerate(program.orders()):
            sends = (action for action in actions_of(order) if action.kind in SENDS)
            pairs |= {(device, device_of[next_stage(kind, stage), microbatch]) for kind, stage, microbatch in sends}
    return sorted(pairs)


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


def sleep_costs(options: argparse.Namespace) -> ppsim.Costs | None:
    """The costs that `--compute sleep` plays, or None for real compute."""
    given = {name: getattr(options, name) for name in ("forward", "backward", "input_grad", "weight_grad")}
    given = {name: value for name, value in given.items() if value is not None}
    if options.compute != "sleep":
        if given:
            raise ReplayError(f"--{next(iter(given)).replace('_', '-')} goes with --compute sleep")
        return None
    given.setdefault("forward", SLEEP["forward"])
    if len(given) == 1:
        given["backward"] = SLEEP["backward"]
    return ppsim.Costs(**given)


def sleep_seconds(costs: ppsim.Costs, program: Program) -> dict[str, float]:
    """Seconds of F, B, I and W of one stage at equal work."""
    first_stage = costs.table(program.schedule).seconds[:, 0].tolist()
    return dict(zip(COMPUTE, first_stage, strict=False))


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
        if not path or Path(path).is_dir():
            raise ReplayError(f"--out {path!r} is no file; give one, such as --out 'traces/{{name}}.json'")
        folder = Path(path).resolve().parent
        if not folder.is_dir() or not os.access(folder, os.W_OK):
            raise ReplayError(f"--out {path}: {folder} is not a folder that can be written to")


def out_path(options: argparse.Namespace, program: Program) -> str | None:
    """The trace file of one program."""
    return options.out and _named(options.out, program.name)


def _named(out: str, name: str) -> str:
    """The trace file of a program of this name."""
    return out.replace("{name}", name)
