"""The options that several commands share, with their help texts.

Numbers are taken as text: the config's checks say more of a wrong one than the parser of the command line would.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
ScheduleName = Annotated[
    str | None,
    typer.Option("--schedule", metavar="NAME", help="Schedule family (see `ppsim list`), or a schedule's FILE.csv."),
]
Devices = Annotated[str | None, typer.Option("--devices", metavar="P", help="Pipeline devices.")]
Microbatches = Annotated[str | None, typer.Option("--microbatches", metavar="M", help="Microbatches of one step.")]
StagesPerDevice = Annotated[
    str | None, typer.Option("--stages-per-device", metavar="V", help="Default: what the schedule family uses.")
]
FamilyOptions = Annotated[
    list[str] | None,
    typer.Option("--option", metavar="KEY=VALUE", help="An option of the family, such as group_size=8. Repeatable."),
]
Forward = Annotated[
    str | None, typer.Option(metavar="SECONDS", help="F of a device share, one microbatch. [default: 1]")
]
Backward = Annotated[str | None, typer.Option(metavar="SECONDS", help="B, the full backward. [default: 2]")]
InputGrad = Annotated[str | None, typer.Option(metavar="SECONDS", help="I. [default: half of the backward]")]
WeightGrad = Annotated[str | None, typer.Option(metavar="SECONDS", help="W. [default: half of the backward]")]
Overlap = Annotated[
    str | None,
    typer.Option(metavar="SECONDS", help="One fused F and B slot. [default: its parts run one after the other]"),
]
Latency = Annotated[str | None, typer.Option(metavar="SECONDS", help="Of one transfer. [default: 0]")]
Transport = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="async, directed, pair, rank or blocking. [default: the config's, or async]"),
]
Engine = Annotated[
    str | None, typer.Option(metavar="NAME", help="auto, event or compiled. [default: the config's, or auto]")
]
Dispatch = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="list, or ready: a device starts the first action of its list that is ready and has room. [default: list]",
    ),
]
JsonTarget = Annotated[
    str | None,
    typer.Option("--json", metavar="FILE", help="Write one JSON document; `-` prints it instead of the text."),
]
