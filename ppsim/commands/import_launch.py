"""`ppsim import FRAMEWORK FILE`: what a user already runs, as a config."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from ppsim.base.errors import ConfigError
from ppsim.base.files import MAX_CONFIG_BYTES, read_text, write_atomically
from ppsim.base.units import counted
from ppsim.commands.options import JsonTarget
from ppsim.commands.reporting import ANSWER_IS_NO, OutputOption, answer, command, say
from ppsim.launch import read_launch
from ppsim.launch.reading import HARDWARE, Reading
from ppsim.studies import config_yaml

SCHEMA = "ppsim.import/1"


@command
def import_launch(
    framework: Annotated[str, typer.Argument(metavar="FRAMEWORK", help="megatron or torchtitan.")],
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="The launch script, a file of its flags, or torchtitan's TOML.")
    ],
    output: Annotated[Path | None, OutputOption("Write the config.", "--output", "-o", metavar="JOB.yaml")] = None,
    gpus: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="GPUs of the job, if the file does not say.")
    ] = None,
    device: Annotated[str | None, typer.Option(metavar="NAME", help=f"[default: {HARDWARE['device']}]")] = None,
    link: Annotated[str | None, typer.Option(metavar="NAME", help=f"In a node. [default: {HARDWARE['link']}]")] = None,
    network: Annotated[
        str | None, typer.Option(metavar="NAME", help=f"Between nodes. [default: {HARDWARE['network']}]")
    ] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with status 1 if a flag is unknown.")] = False,
    json: JsonTarget = None,
) -> None:
    """Turn a launch script into a config: flags that matter are read, others are named."""
    text = read_text(file, most=MAX_CONFIG_BYTES)
    given = {"device": device, "link": link, "network": network}
    hardware = {key: value for key, value in given.items() if value is not None}
    try:
        reading = read_launch(framework, text, gpus=gpus)
        config = reading.config(hardware, place=str(file))
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}" if str(file) not in str(error) else str(error)) from None
    config.simulate()  # a config that cannot run is an error now, not at its first use
    if "hardware" not in reading.data and not device:
        reading.assumed.append(f"device {HARDWARE['device']} (--device)")
    yaml = config_yaml(config)
    if output:
        write_atomically(output, yaml)
    for line in _findings(reading):
        say(line)
    document = {
        "schema": SCHEMA, "framework": reading.framework, "version": reading.version, "config": yaml,
        "read": reading.read, "left_out": reading.left_out, "assumed": reading.assumed, "unknown": reading.unknown,
        "conditional_lines": reading.conditional,
    }  # fmt: skip
    answer(document, json, lambda: _page(config, reading, output, yaml))
    if strict and (reading.unknown or reading.conditional):
        raise typer.Exit(ANSWER_IS_NO)


def _findings(reading: Reading) -> Iterator[str]:
    yield from (f"assumed  {one}" for one in reading.assumed)
    yield from (f"UNKNOWN  {one}" for one in reading.unknown)
    if reading.conditional:
        yield f"UNKNOWN  lines {', '.join(map(str, reading.conditional))}: not read, they depend on a condition"


def _page(config: Any, reading: Reading, output: Path | None, yaml: str) -> str:
    if output is None:
        return yaml
    layout, schedule = config.costs.layout, config.build()
    sizes = f"TP {layout.tensor}, CP {layout.context}, PP {schedule.devices}, DP {layout.data}"
    lines = [
        f"{output}: {sizes}, {schedule.name}, {counted(schedule.microbatches_of_a_step, 'microbatch')}; "
        f"from {reading.framework}",
        f"read      {counted(len(reading.read), 'flag')}",
        f"left out  {' '.join(reading.left_out) or 'nothing'}",
        f"next      ppsim advise {output}",
    ]
    return "\n".join(lines)
