"""Faults that stop a valid program from running: crossed transfers, queue deadlocks, PyTorch's assumptions."""

from collections.abc import Iterator

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import ConfigError, DeadlockError, ScheduleError, listing, shown
from ppsim.checks.deadlock import require_no_deadlock
from ppsim.checks.faults import validate
from ppsim.checks.program_faults import crossed_transfers
from ppsim.checks.sentences import first_faults, located
from ppsim.lowering.posts import TRANSPORTS
from ppsim.lowering.program import lower_schedule
from ppsim.lowering.rows import has_transfers
from ppsim.lowering.sharding import last_backwards
from ppsim.schedule.columns import ScheduleColumns
from ppsim.schedule.waiting import waiting_message


def check_runnable(schedule: ScheduleColumns, transport: str | None = None, *, pytorch: bool = False) -> None:
    """Raise ScheduleError if the lists are invalid or could not run; a schedule is lowered first.

    `ppsim.Schedule.check` lists the checks. ConfigError for an unknown transport.
    """
    if transport is not None and transport not in TRANSPORTS:
        raise ConfigError(f"transport={shown(transport)} is not known; use one of: {', '.join(TRANSPORTS)}")
    validate(schedule)
    program = schedule if has_transfers(schedule) else lower_schedule(schedule, sharded=pytorch)
    faults = list(crossed_transfers(program))
    if pytorch:
        faults += pytorch_faults(program)
    if transport is not None:
        try:
            require_no_deadlock(program, transport)
        except DeadlockError as deadlock:
            if not faults:
                raise
            faults.append(waiting_message(f"it deadlocks under transport {transport!r}", deadlock.cycle))
    if faults:
        raise ScheduleError(listing(f"program {schedule.name!r} has {len(faults)} faults", faults), faults)


def pytorch_faults(program: ScheduleColumns) -> Iterator[str]:
    """Yield violated assumptions of PyTorch's runtime.

    Source: torch 2.13.0, torch/distributed/pipelining/schedules.py.
    """
    stage, copies = np.unique(program.compute.holdings[:, 1], return_counts=True)
    for held in stage[copies > 1].tolist():
        devices = program.compute.holdings[program.compute.holdings[:, 1] == held, 0].tolist()
        yield f"stage {held} runs on devices {', '.join(map(str, devices))}: PyTorch runs each stage on one device"
    if program.slices > 1:
        yield f"microbatches are cut into {program.slices} slices: PyTorch knows whole microbatches only"
    for kind in (Kind.R, Kind.S, Kind.T, Kind.OFFLOAD, Kind.RELOAD):
        yield from first_faults(
            lambda row, kind=kind: (
                f"{located(program, row)} cannot run: PyTorch's pipeline runtime knows no {kind.name}"
            ),
            np.flatnonzero(program.kind == kind),
        )
    yield from _last_stage_faults(program)
    backwards = last_backwards(program)
    reduced = set(zip(*_device_and_stage(program, program.kind == Kind.REDUCE_GRAD), strict=True))
    for device, held in zip(*_device_and_stage(program, backwards), strict=True):
        if (device, held) not in reduced:
            yield (
                f"{held}REDUCE_GRAD is missing on device {device}: there PyTorch reduces the stage's gradients and "
                f"divides them by the number of microbatches; lower with sharded=True"
            )


def _last_stage_faults(program: ScheduleColumns) -> Iterator[str]:
    """Yield a fault if the last stage's forwards are out of order.

    PyTorch appends a loss at each forward of the last stage and looks it up by microbatch (`_maybe_get_loss`).
    """
    last_stage = program.num_stages - 1
    forwards = program.microbatch[(program.kind == Kind.F) & (program.stage == last_stage)]
    wrong = np.flatnonzero(forwards != np.arange(len(forwards)))
    if len(wrong):
        at = int(wrong[0])
        yield (
            f"{last_stage}F{forwards[at]} is forward number {at} of the last stage: it must run its microbatches in "
            f"the order 0, 1, 2 ..., because PyTorch keeps the losses in the order of these forwards and takes number "
            f"k as the loss of microbatch k, so the backwards would start from the wrong losses"
        )


def _device_and_stage(program: ScheduleColumns, rows: np.ndarray) -> tuple[list[int], list[int]]:
    return program.device[rows].tolist(), program.stage[rows].tolist()
