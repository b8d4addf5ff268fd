"""`ppsim sweep`: runs of every combination of values, as a table, a document and charts."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from ppsim.base.files import write_atomically
from ppsim.commands import options
from ppsim.commands.options import read_source, settings_of, takes_case
from ppsim.commands.reporting import ANSWER_IS_NO, OutputOption, answer, check_endings, command, say
from ppsim.config import ConfigSource
from ppsim.plots.chart_files import PICTURES, save_figure
from ppsim.studies import sweep as study
from ppsim.studies.sweep import Sweep

TABLES = (".csv", ".md", ".tex")


@takes_case(reader=read_source)
@command
def sweep(
    read: Callable[[], ConfigSource],
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUES",
            help="Values of a key: a,b,c or 8:128:x2 (each twice the last) or 0:1ms:5 (5 values). Repeatable.",
        ),
    ] = None,
    store: options.StoreFile = None,
    workers: options.Workers = None,
    dask: options.Dask = None,
    slurm: options.Slurm = None,
    table: Annotated[Path | None, OutputOption("Write the table: FILE.csv, .md (Markdown) or .tex (LaTeX).")] = None,
    chart: Annotated[
        Path | None, OutputOption("Draw a line a schedule over a swept number: FILE.png, .svg or .pdf.")
    ] = None,
    front: Annotated[Path | None, OutputOption("Draw step against memory with its Pareto front.")] = None,
    measure: Annotated[
        str, typer.Option(metavar="NAME", help="What --chart draws, a name of docs/glossary.md.")
    ] = "iteration_time",
    json: options.JsonTarget = None,
) -> None:
    """Simulate every combination of values; impossible ones are listed with the rule that refuses them."""
    check_endings(("--table", table, TABLES), ("--chart", chart, PICTURES), ("--front", front, PICTURES))
    values = {key: study.parse_values(text, key) for key, text in settings_of(over, "--over").items()}
    source = read()
    with options.executor_of(workers, dask, slurm, store) as executor:
        found = study.sweep(source, values, executor=executor, workers=workers, store=store)
    _write(found, table, chart, front, measure)
    answer(found.to_dict(), json, found.summary)
    if options.report_left_out(found.left_out) or all(point.refused is not None for point in found.points):
        raise typer.Exit(ANSWER_IS_NO)


def _write(found: Sweep, table: Path | None, chart: Path | None, front: Path | None, measure: str) -> None:
    if table:
        write_atomically(table, _table_text(found, table.suffix))
        say(f"wrote {table}")
    for path, draw in ((chart, lambda: found.plot(measure)), (front, found.plot_front)):
        if path:
            save_figure(draw, path)
            say(f"wrote {path}")


def _table_text(found: Sweep, ending: str) -> str:
    """Return the table as CSV with all digits, Markdown or LaTeX, by the suffix of the file."""
    if ending == ".tex":
        return found.to_latex()
    if ending == ".csv":
        text, rows = io.StringIO(), found.rows()
        cells = ([("" if value is None else str(value)) for value in row.values()] for row in rows)
        csv.writer(text, lineterminator="\n").writerows([[*rows[0]], *cells])
        return text.getvalue()
    rows = found.table()
    lines = [f"| {' | '.join(cell.replace('|', '&#124;').replace(chr(10), ' ') for cell in row)} |" for row in rows]
    return "\n".join([lines[0], f"|{'---|' * len(rows[0])}", *lines[1:]]) + "\n"
