"""`ppsim export CONFIG`: the script that launches a config in a framework."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ppsim.base.files import write_atomically
from ppsim.commands.options import JsonTarget
from ppsim.commands.reporting import OutputOption, answer, command, write_files
from ppsim.config import load_config
from ppsim.launch import FRAMEWORKS, own_framework, to_launch


@command
def export(
    config: Annotated[
        Path, typer.Argument(metavar="CONFIG.yaml", help="A config with a model, such as choose writes.")
    ],
    framework: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help=f"{', '.join(FRAMEWORKS)}, or NAME VERSION. [default: the config's, or Megatron-LM]"
        ),
    ] = None,
    output: Annotated[Path | None, OutputOption("Write the script.", "--output", "-o", metavar="TRAIN.sh")] = None,
    json: JsonTarget = None,
) -> None:
    """Print the whole script that launches a config: bash for Megatron-LM and torchtitan, YAML for Primus."""
    job = load_config(config)
    name = framework or own_framework(job) or next(iter(FRAMEWORKS))
    text = to_launch(job, name)
    write_files((output, lambda path: write_atomically(path, text)))
    if json or not output:
        answer({"schema": "ppsim.export/1", "framework": name, "script": text}, json, lambda: text)
