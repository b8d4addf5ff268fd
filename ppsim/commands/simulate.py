"""`ppsim simulate`: run one schedule, print its measures, draw it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from ppsim.base.errors import ConfigError
from ppsim.base.files import write_atomically
from ppsim.commands import options
from ppsim.commands.options import JsonTarget, Verbose, takes_case
from ppsim.commands.reporting import (
    OutputOption,
    answer,
    check_endings,
    command,
    print_data,
    say,
    takes_colours,
    write_files,
)
from ppsim.config import Config
from ppsim.interop.result import bubbles_csv, timeline_csv
from ppsim.plots.chart_files import PICTURES, SUFFIXES, save_figure
from ppsim.run.schedules import Schedule, lower
from ppsim.schedule.orders import outside_lists

TRACES = (".pftrace", ".json")


@takes_case()
@command
def simulate(
    read: Callable[[], Config],
    json: JsonTarget = None,
    gantt: Annotated[Path | None, OutputOption("Draw a Gantt chart: FILE.png, .svg, .pdf or .html.")] = None,
    memory: options.Memory = False,
    critical_path: options.CriticalPath = False,
    theme: options.Theme = None,
    transfers: Annotated[bool, typer.Option("--transfers", help="Draw each transfer in --gantt.")] = False,
    width: Annotated[
        float | None,
        typer.Option(metavar="N", help="Inches of FILE.png, .svg and .pdf, or columns of --text. [default: as needed]"),
    ] = None,
    title: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="Title of --gantt. [default: name, schedule, sizes, makespan, bubble]"),
    ] = None,
    trace: Annotated[
        Path | None, OutputOption("Write a trace for ui.perfetto.dev: FILE.pftrace, or .json (three times as large).")
    ] = None,
    csv: Annotated[
        Path | None, OutputOption("Write the schedule: one row of actions per device, as PyTorch reads it.")
    ] = None,
    program: Annotated[Path | None, OutputOption("Write the schedule with its SEND and RECV, as --csv does.")] = None,
    sharded: Annotated[
        bool,
        typer.Option("--sharded", help="UNSHARD, RESHARD and REDUCE_GRAD in --program too; PyTorch needs the last."),
    ] = False,
    table: Annotated[
        Path | None, OutputOption("Write start and end of every action, one row an action.", metavar="FILE.csv")
    ] = None,
    bubbles: Annotated[
        Path | None,
        OutputOption("Write start, length and free memory of every bubble, one row a bubble.", metavar="FILE.csv"),
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="Draw the Gantt chart in the terminal.")] = False,
    ledger: Annotated[
        bool, typer.Option("--ledger", help="Print idle time by device and cause; with --json, add it to the document.")
    ] = False,
    ledger_chart: Annotated[
        Path | None, OutputOption("Draw idle time by device and cause: FILE.png, .svg or .pdf.")
    ] = None,
    verbose: Verbose = False,
    costs: Annotated[bool, typer.Option("--costs", help="Print the costs, their origins and assumptions too.")] = False,
) -> None:
    """Simulate a schedule; print its step time, memory and idle time."""
    check_endings(("--gantt", gantt, SUFFIXES), ("--trace", trace, TRACES), ("--ledger-chart", ledger_chart, PICTURES))
    check_endings(("--table", table, (".csv",)))
    asked = {"--critical-path": critical_path, "--transfers": transfers, "--title": title, "--theme": theme}
    options.check_drawing(gantt, asked)
    static = bool(gantt and gantt.suffix.lower() in PICTURES)
    _check_width(width, static, text)
    if sharded and not program:
        raise ConfigError("--sharded says what --program FILE writes; give --program too")
    if text and json == "-":
        raise ConfigError("--text and --json - both print to stdout; choose one, or give --json a file")
    case = read()
    built = case.build()
    timeline = case.simulate(built)
    lists = timeline.schedule if case.dispatch == "ready" else Schedule.of(built.unlowered)
    drawing = {"memory": memory, "critical_path": critical_path, "transfers": transfers, "title": title}
    drawing |= {"width": width if static else None, "theme": theme}
    write_files(
        (gantt, lambda path: timeline.save(path, **drawing)),
        (ledger_chart, lambda path: save_figure(timeline.plot_ledger, path)),
        (trace, timeline.to_perfetto),
        (csv, lists.to_csv),
        (program, lambda path: lower(lists, sharded=sharded, **(case.window if sharded else {})).to_csv(path)),
        (table, lambda path: write_atomically(path, timeline_csv(timeline))),
        (bubbles, lambda path: write_atomically(path, bubbles_csv(timeline.bubbles()))),
    )
    if csv and (lost := outside_lists(lists)):
        say(f"{csv} holds lists of actions only, and not that {lists.name} has {' and '.join(lost)}")
    columns = None if width is None else int(width)
    drawn = timeline.to_text(color=takes_colours(), width=columns) if text else ""
    chart = drawn and f"\n{drawn.partition(chr(10))[2]}"  # the summary above has what its heading says
    own = {"name": case.name} | ({"ledger": timeline.ledger().to_dict()} if ledger and json else {})
    below = "\n" + timeline.ledger().table() if ledger else ""
    answer(timeline.to_dict() | own if json else {}, json, lambda: timeline.summary(verbose, costs) + below)
    if chart:
        print_data(chart, takes_colours())


def _check_width(width: float | None, static: bool, text: bool) -> None:
    """Raise ConfigError unless --width has one meaning, inches or an integer number of columns."""
    if width is None:
        return
    if static == text:
        raise ConfigError(
            f"--width {width:g} counts inches of --gantt FILE.png, .svg or .pdf, or columns of --text; give one of them"
        )
    if text and not width.is_integer():
        raise ConfigError(f"--width {width:g}: must be a whole number of columns")
