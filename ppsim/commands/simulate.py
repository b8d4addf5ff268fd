"""`ppsim simulate`: run one schedule, print its measures, draw it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer

from ppsim.base.errors import ConfigError
from ppsim.base.files import write_atomically
from ppsim.commands.options import JsonTarget, Verbose, takes_case
from ppsim.commands.reporting import OutputOption, answer, check_endings, command, print_data, say, takes_colours
from ppsim.config import Config
from ppsim.interop.result import bubbles_csv, timeline_csv
from ppsim.plots.chart_files import PICTURES, SUFFIXES, save_figure
from ppsim.run.schedules import Schedule, lower
from ppsim.schedule.orders import outside_lists

TRACES = (".pftrace", ".json")

GanttFile = Annotated[Path | None, OutputOption("Draw a Gantt chart: FILE.png, .svg, .pdf or .html.")]
Memory = Annotated[bool, typer.Option("--memory", help="Draw memory over time under the chart; .html always does.")]
CriticalPath = Annotated[
    bool, typer.Option("--critical-path", help="Show the chain that sets the makespan in --gantt.")
]
Transfers = Annotated[bool, typer.Option("--transfers", help="Draw each transfer in --gantt.")]
Width = Annotated[
    float | None,
    typer.Option(metavar="N", help="Inches of FILE.png, .svg and .pdf, or columns of --text. [default: as needed]"),
]
Title = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="Title of --gantt. [default: name, schedule, sizes, makespan, bubble]"),
]
TraceFile = Annotated[
    Path | None,
    OutputOption("Write a trace for ui.perfetto.dev: FILE.pftrace, or .json (three times as large)."),
]
ScheduleFile = Annotated[
    Path | None, OutputOption("Write the schedule: one row of actions per device, as PyTorch reads it.")
]
ProgramFile = Annotated[Path | None, OutputOption("Write the schedule with its SEND and RECV, as --csv does.")]
Sharded = Annotated[
    bool,
    typer.Option("--sharded", help="UNSHARD, RESHARD and REDUCE_GRAD in --program too; PyTorch needs the last."),
]
TableFile = Annotated[
    Path | None, OutputOption("Write start and end of every action, one row an action.", metavar="FILE.csv")
]
BubblesFile = Annotated[
    Path | None,
    OutputOption("Write start, length and free memory of every bubble, one row a bubble.", metavar="FILE.csv"),
]
Text = Annotated[bool, typer.Option("--text", help="Draw the Gantt chart in the terminal.")]
ShowCosts = Annotated[bool, typer.Option("--costs", help="Print the costs, their origins and assumptions too.")]
Ledger = Annotated[
    bool, typer.Option("--ledger", help="Print idle time by device and cause; with --json, add it to the document.")
]
LedgerChart = Annotated[Path | None, OutputOption("Draw idle time by device and cause: FILE.png, .svg or .pdf.")]


@takes_case()
@command
def simulate(
    read: Callable[[], Config],
    json: JsonTarget = None,
    gantt: GanttFile = None,
    memory: Memory = False,
    critical_path: CriticalPath = False,
    transfers: Transfers = False,
    width: Width = None,
    title: Title = None,
    trace: TraceFile = None,
    csv: ScheduleFile = None,
    program: ProgramFile = None,
    sharded: Sharded = False,
    table: TableFile = None,
    bubbles: BubblesFile = None,
    text: Text = False,
    ledger: Ledger = False,
    ledger_chart: LedgerChart = None,
    verbose: Verbose = False,
    costs: ShowCosts = False,
) -> None:
    """Simulate a schedule; print its step time, memory and idle time."""
    check_endings(("--gantt", gantt, SUFFIXES), ("--trace", trace, TRACES), ("--ledger-chart", ledger_chart, PICTURES))
    check_endings(("--table", table, (".csv",)))
    _check_drawing(gantt, {"--critical-path": critical_path, "--transfers": transfers, "--title": title is not None})
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
    drawing |= {"width": width if static else None}
    _write_files(
        [
            (gantt, lambda path: timeline.save(path, **drawing)),
            (ledger_chart, lambda path: save_figure(timeline.plot_ledger, path)),
            (trace, timeline.to_perfetto),
            (csv, lists.to_csv),
            (program, lambda path: lower(lists, sharded=sharded, **(case.window if sharded else {})).to_csv(path)),
            (table, lambda path: write_atomically(path, timeline_csv(timeline))),
            (bubbles, lambda path: write_atomically(path, bubbles_csv(timeline.bubbles()))),
        ]
    )
    if csv and (lost := outside_lists(lists)):
        say(f"{csv} holds lists of actions only, and not that {lists.name} has {' and '.join(lost)}")
    columns = None if width is None else int(width)
    chart = "\n" + timeline.to_text(color=takes_colours(), width=columns) if text else ""
    own = {"name": case.name} | ({"ledger": timeline.ledger().to_dict()} if ledger and json else {})
    below = "\n" + timeline.ledger().table() if ledger else ""
    answer(timeline.to_dict() | own if json else {}, json, lambda: timeline.summary(verbose, costs) + below)
    if chart:
        print_data(chart, takes_colours())


def _check_drawing(gantt: Path | None, options: Mapping[str, bool]) -> None:
    for option, is_given in options.items():
        if is_given and not gantt:
            raise ConfigError(f"{option} says how to draw; it needs --gantt FILE")


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


def _write_files(files: list[tuple[Path | None, Callable[[Path], None]]]) -> None:
    """Write all files before the first message, so that an error about a file is the only output."""
    wanted = [(path, write) for path, write in files if path]
    for path, write in wanted:
        write(path)
    for path, _ in wanted:
        say(f"wrote {path}")
