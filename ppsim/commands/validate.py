"""`ppsim validate FILE.csv`: every fault of a schedule or program, and whether a transport or PyTorch can run it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from ppsim.base.errors import ConfigError, PpsimError
from ppsim.commands.reporting import DONE, command, exit_status, print_data, say
from ppsim.plan.resolve import TRANSPORTS
from ppsim.run.schedules import Program, Schedule


@command
def validate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE.csv", help="One row of actions a device, no header.")],
    slices: Annotated[
        str, typer.Option(metavar="K", help="Pieces that each microbatch is cut into along the sequence.")
    ] = "1",
    transport: Annotated[
        str | None,
        typer.Option(metavar="NAME", help=f"Also: nothing deadlocks under it. One of: {', '.join(TRANSPORTS)}."),
    ] = None,
    pytorch: Annotated[
        bool, typer.Option("--pytorch", help="Also: what PyTorch's pipeline runtime needs and does not check.")
    ] = False,
) -> None:
    """Check schedule files; show every fault."""
    pieces = _whole_number("--slices", slices)
    if transport is not None and transport not in TRANSPORTS:
        raise ConfigError(f"--transport: {transport!r} is not known; use one of: {', '.join(TRANSPORTS)}")

    def check(schedule: Schedule) -> None:
        schedule.validate()
        if transport or pytorch:
            schedule.check(transport, pytorch=pytorch)

    passed = "".join([f", runs under {transport}" if transport else "", ", fit for PyTorch" if pytorch else ""])
    raise typer.Exit(max(_validate_file(file, pieces, check, passed) for file in files))


def _whole_number(option: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:10]) > 0):
        raise ConfigError(f"{option} {text}: must be a whole number of at least 1")
    return int(text[:10])


def _validate_file(file: Path, slices: int, check: Callable[[Schedule], None], passed: str) -> int:
    """Report one file and return its exit status."""
    try:
        schedule = Schedule.from_csv(file, slices=slices)
        check(schedule)
    except PpsimError as error:
        say(f"ppsim: {error}" if str(file) in str(error) else f"ppsim: {file}: {error}")
        return exit_status(error)
    what = "program" if isinstance(schedule, Program) else "schedule"
    print_data(
        f"{file}: a valid {what}: {schedule.devices} devices, {schedule.num_stages} stages, "
        f"{schedule.microbatches // slices} microbatches, {len(schedule)} actions{passed}"
    )
    return DONE
