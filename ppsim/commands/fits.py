"""`ppsim fits`: whether a config's peak memory stays within its devices, and if not, what would."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from ppsim.analysis.memory import Memory
from ppsim.base.errors import ConfigError, shown
from ppsim.base.units import parse_fraction, percent_text, value_text
from ppsim.commands.case import read_case
from ppsim.commands.options import Headroom, JsonTarget, Settings
from ppsim.commands.reporting import ANSWER_IS_NO, answer, command
from ppsim.studies.fits import Fitting, what_fits

SCHEMA = "ppsim.fits/1"


@command
def fits(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.yaml", help="Configuration with a model and hardware.")],
    headroom: Headroom = "10%",
    settings: Settings = None,
    json: JsonTarget = None,
) -> None:
    """Say whether a config fits its devices; if not, what would, and exit with status 1.

    Of the recompute levels and of fewer microbatches the first that fits is named, of other schedules the fastest.
    """
    part = read_headroom(headroom)
    case = read_case(config, settings)
    memory = case.simulate().memory()
    does = memory.fits(part)
    found = [] if does else what_fits(case, part)
    found_out = (memory, part, does, found)
    answer(_document(*found_out), json, lambda: memory.summary() + "\n" + "\n".join(_verdict(*found_out)))
    if not does:
        raise typer.Exit(ANSWER_IS_NO)


def read_headroom(text: str) -> float:
    """The value of --headroom, a part from 0 to below 1; ConfigError otherwise."""
    with contextlib.suppress(ConfigError):
        value = parse_fraction(text)
        if value < 1:
            return value
    raise ConfigError(f"--headroom {shown(text)} must be a part of the memory from 0 to below 1, such as 0.1 or 10%")


def _verdict(memory: Memory, part: float, does: bool, found: list[Fitting]) -> Iterator[str]:
    spare = float(memory.spare(part).min())
    device = int(memory.spare(part).argmin())
    room = f"with {percent_text(part)} of the memory kept free"
    if does:
        yield f"fits {room}: {value_text(spare, 'bytes')} left on device {device}, the fullest"
        return
    yield f"does not fit {room}: device {device} is {value_text(-spare, 'bytes')} over"
    for fitting in found:
        changes = ", ".join(f"{key}={value}" for key, value in fitting.changes.items() if value is not None)
        yield (
            f"  fits with --set {changes}: step {value_text(fitting.run.iteration_time, 'seconds')}, "
            f"{value_text(fitting.spare, 'bytes')} left"
        )
    if not found:
        yield "  no recompute level, fewer microbatches or other schedule alone makes it fit"


def _document(memory: Memory, part: float, does: bool, found: list[Fitting]) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "fits": does,
        "headroom": part,
        "spare": memory.spare(part).tolist(),
        "memory": memory.to_dict(),
        "fits_with": [
            {"changes": dict(one.changes), "iteration_time": one.run.iteration_time, "spare": one.spare}
            for one in found
        ],
        "units": {
            "headroom": "fraction of a device's memory", "spare": "bytes per device", "memory": "bytes per device",
            "memory.moment": "seconds", "iteration_time": "seconds",
        },
    }  # fmt: skip
