"""The command line: one Typer application over the modules of ppsim/commands."""

from __future__ import annotations

from typing import Annotated

import typer

from ppsim import __version__
from ppsim.commands.calibrate import calibrate
from ppsim.commands.check import check
from ppsim.commands.compare import compare
from ppsim.commands.evaluate import evaluate
from ppsim.commands.families import list_families
from ppsim.commands.fits import fits
from ppsim.commands.hardware import hardware
from ppsim.commands.optimum import optimum
from ppsim.commands.simulate import simulate
from ppsim.commands.validate import validate
from ppsim.commands.what_if import what_if

app = typer.Typer(
    name="ppsim",
    help="Simulate pipeline-parallel training schedules: step time, bubbles, memory, Gantt charts.",
    epilog="Exit status: 0 done, 1 the answer is no (invalid schedule, deadlock), 2 the call was wrong.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help and errors: rich starts slowly and wraps messages in boxes
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command("simulate")(simulate)
app.command("compare")(compare)
app.command("what-if", short_help="Change a config, or find a break-even point.")(what_if)
app.command("fits", short_help="Say whether a config fits its devices.")(fits)
app.command("check", short_help="Hold configs to a baseline and to limits.")(check)
app.command("optimum", short_help="Prove the shortest schedule of a tiny case.")(optimum)
app.command("calibrate")(calibrate)
app.command("evaluate", short_help="Compare predicted with measured step times.")(evaluate)
app.command("list")(list_families)
app.command("validate")(validate)
app.command("hardware")(hardware)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ppsim {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Simulate pipeline-parallel training schedules: step time, bubbles, memory, Gantt charts."""


def main() -> None:
    """Run the command line; the process ends with its exit status."""
    app(prog_name="ppsim")
