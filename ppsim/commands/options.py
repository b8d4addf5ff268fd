"""The options that several commands share, with their help texts."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any

import typer

from ppsim.base.errors import ConfigError, shown
from ppsim.base.units import parse_fraction
from ppsim.studies.frameworks import RUNS


def file_option(text: str, *names: str, metavar: str = "FILE") -> Any:
    """A file that a command reads or writes, `text` saying which; by default it is called as its parameter."""
    return typer.Option(*names, metavar=metavar, help=text)


ConfigFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="CONFIG.yaml", help="Configuration file; instead of one, give the flags.", show_default=False
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Change one value of the config, such as schedule.microbatches=64. Repeatable.",
    ),
]
FamilyOptions = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="KEY=VALUE", help="An option of the family, such as group_size=8. Repeatable."),
]
Framework = Annotated[
    str | None, typer.Option(help=f"Try only schedules that it runs: {', '.join(RUNS)}. [default: all]")
]
Headroom = Annotated[
    str | None,
    typer.Option(metavar="PART", help="Keep to what leaves this part of the memory free, such as 0.1 or 10%."),
]
JsonTarget = Annotated[str | None, file_option("Write one JSON document; `-` prints it instead of the text.", "--json")]


def read_headroom(text: str | None) -> float:
    """The value of --headroom, a part from 0 to below 1, 0 where it is not given; ConfigError otherwise."""
    if text is None:
        return 0.0
    with contextlib.suppress(ConfigError):
        value = parse_fraction(text)
        if value < 1:
            return value
    raise ConfigError(f"--headroom {shown(text)} must be a part of the memory from 0 to below 1, such as 0.1 or 10%")
