"""`ppsim validate FILE.csv`: every fault of a schedule or program."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ppsim.commands.reporting import DONE, command, exit_status, print_data, say
from ppsim.errors import ConfigError, PpsimError
from ppsim.schedule import Program, Schedule


@command
def validate(
    files: Annotated[list[Path], typer.Argument(metavar="FILE.csv...", help="One row of actions a device, no header.")],
    slices: Annotated[str, typer.Option(help="Pieces that each microbatch is cut into along the sequence.")] = "1",
) -> None:
    """Check schedule files; show every fault."""
    pieces = _whole_number("--slices", slices)
    statuses = [_validate_file(file, pieces) for file in files]
    raise typer.Exit(max(statuses))


def _whole_number(option: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text[:10]) > 0):
        raise ConfigError(f"{option} {text}: must be a whole number of at least 1")
    return int(text[:10])


def _validate_file(file: Path, slices: int) -> int:
    """Report one file and return its exit status."""
    try:
        schedule = Schedule.from_csv(file, slices=slices)
        schedule.validate()
    except PpsimError as error:
        say(f"ppsim: {error}" if str(file) in str(error) else f"ppsim: {file}: {error}")
        return exit_status(error)
    what = "program" if isinstance(schedule, Program) else "schedule"
    print_data(
        f"{file}: a valid {what}: {schedule.devices} devices, {schedule.num_stages} stages, "
        f"{schedule.microbatches // slices} microbatches, {len(schedule)} actions"
    )
    return DONE
