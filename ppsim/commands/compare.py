"""`ppsim compare`: several schedules with equal work, in one table and on one time axis."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ppsim.analysis.interval import spread
from ppsim.analysis.memory import fit_of
from ppsim.base.errors import ConfigError
from ppsim.base.tables import aligned, layout_lines, paragraph, texts_once
from ppsim.base.units import first_names, more_lines, percent_text, value_text
from ppsim.commands import cells, options
from ppsim.commands.options import read_config
from ppsim.commands.reporting import ANSWER_IS_NO, OutputOption, answer, command, say
from ppsim.config import Config
from ppsim.costs.spread import order_error
from ppsim.frameworks import frameworks_running
from ppsim.plots.chart_files import SUFFIXES
from ppsim.run.schedules import Schedule
from ppsim.studies import compare as study
from ppsim.studies.compare import Comparison
from ppsim.studies.sweep import ASYNCHRONOUS

_WHOLE_PER_CENT = 0.05  # bounds of an interval that are wider than this have no decimal place
LONGEST_NAME = 30
MAX_NAMED = 4  # schedules before a layout string, or in a line about those left out
MAX_ROWS = 12  # of the table without --verbose, so that it fits one screen
Row = dict[str, Any]  # a row of a comparison; `fit`, `runs in` (letters of frameworks), `keys` (of a config) are added


@command
@options.shared_options(without=("schedule", "family_options"))
def compare(
    flags: dict[str, Any],
    schedules: Annotated[
        str,
        typer.Option(
            metavar="A,B,C",
            help="Names of `ppsim list` (zb-h1+ready: lists as priorities) and schedules' FILE.csv, or all that need "
            "no search.",
        ),
    ] = "all",
    headroom: options.Headroom = None,
    json: options.JsonTarget = None,
    gantt: Annotated[Path | None, OutputOption("Draw these or the fastest", endings=SUFFIXES)] = None,
    verbose: options.Verbose = False,
    *,
    drawing: dict[str, Any],
) -> None:
    """Compare schedules at equal work."""
    names = [name.strip() for name in schedules.split(",") if name.strip()]
    if not names:
        raise ConfigError(f"--schedules {schedules!r} names none; use all, or names such as 1f1b,zb-h1")
    fraction = None if headroom is None else options.read_headroom(headroom)
    files = [name for name in names if name.lower().endswith(".csv")]
    if files and flags["config"] is None and flags["devices"] is None is flags["microbatches"]:
        flags["schedule"] = files[0]  # its lists give the sizes
    job = read_config(**flags)
    chosen = [Schedule.from_csv(name) if name.lower().endswith(".csv") else name for name in names]
    comparison = study.compare(job, None if names == ["all"] else chosen, headroom=fraction)
    rows = functools.cache(functools.partial(_rows, comparison, job))
    if gantt and comparison.timelines:
        comparison.save(gantt, **drawing, lead=_lead(comparison, rows()))
        undrawn = len(comparison.timelines) - len(comparison.drawn)
        say(f"wrote {gantt}{f' ({undrawn} more: name them with --schedules)' * bool(undrawn)}")
    document = {**comparison.to_dict(), "name": job.name}
    answer(document, json, lambda: _answer(comparison, job, rows(), verbose))
    if not comparison.timelines:
        raise typer.Exit(ANSWER_IS_NO)


def _rows(found: Comparison, config: Config) -> list[Row]:
    """Return the rows of a comparison, each with its fit, the frameworks that run it, and its keys of a config.

    Lists of a file or of priorities have no keys.
    """
    rows = []
    for row, run in zip(found.rows(), found.timelines, strict=True):
        name = run.schedule.name
        has_keys = "csv" not in config.schedule and not name.lower().endswith((".csv", study.READY))
        keys = study.changes_to(name, config) if has_keys else None
        runs = cells.runs_in(keys["schedule.name"] if keys else run.schedule, config, keys)
        rows.append({**row, "fit": fit_of(run, found.headroom) or "fits", "runs in": runs, "keys": keys or {}})
    return rows


def _answer(found: Comparison, config: Config, rows: list[Row], verbose: bool) -> str:
    """Return the fastest schedule, a table by rank, and what the table leaves out.

    Unless the schedules were `named`, the table has those that fit and are faster than the config's own; `verbose` adds
    the other rows, the MFU, layout strings, reasons and which order is certain.
    """
    base, base_step = _current(found)
    is_whole, is_predicted = bool(found.named) or verbose, spread(found.timelines[0]) is not None if rows else False
    others = [row for row in rows if row["schedule"] != base]
    over = [row["schedule"] for row in others if row["fit"] == "over"]
    slower = [row["schedule"] for row in others if base_step and row["iteration_time"] >= (1 - cells.SAME) * base_step]
    best = [row for row in rows if found.named or row["schedule"] not in {*over, *slower}]
    shown = rows if verbose else best
    refusals = ["not run:", *texts_once(found.refused.items())] if found.refused else []
    if not shown:
        return "\n".join(["no schedule fits; -v prints all" if rows else "no schedule can run", "", *refusals])
    ranks = _ranks(shown, is_predicted)
    table = [row for place, row in enumerate(shown) if is_whole or place < MAX_ROWS or row["schedule"] == base]
    lines = _table([{"#": ranks[row["schedule"]], **_cells(row, base, base_step, verbose)} for row in table])
    notes = []
    if not is_whole:
        slow = [name for name in slower if name not in over]
        lists = {"over the memory of a device": over, f"not faster than {base}": slow, "not run": found.refused}
        notes += [f"{label}: {_first_names(names)}" for label, names in lists.items() if names]
    notes += [ASYNCHRONOUS] * any(row["asynchronous"] for row in table)
    tie = "order not certain" if is_predicted else f"equal within {percent_text(cells.SAME, 0)}"
    tied = any("=" in ranks[row["schedule"]] for row in table)
    notes += ["; ".join(filter(None, [_interval_line(found), f"N=: {tie}" * tied])), _certainty(found) * verbose]
    needs: dict[str, list[str]] = {}  # schedules by the keys of the layout that a framework runs them with
    for row in [row for row in table if row["runs in"] != "-"]:
        keys = {key: value for key, value in row["keys"].items() if key.startswith("layout.")}
        needs.setdefault(" ".join(cells.set_options(keys)), []).append(row["schedule"])
    notes += [f"frameworks run {', '.join(names)} with {keys}" for keys, names in needs.items() if keys]
    legend = [cells.LEGEND] * any(row["runs in"] != "-" for row in table)
    if any(row["fit"] == "tight" for row in table):
        legend.append(f"tight: more than the {cells.usable_text(config, found.headroom)}, but within the device")
    parts = [
        paragraph(_verdict(best or rows, base, base_step, is_predicted)),
        [*lines, *more_lines(len(shown) - len(table), ""), *cells.launch_fault(config)],
        [line for note in [*notes, "; ".join(legend)] if note for line in paragraph(note)],
        _layouts(rows) if verbose else [],
        refusals if is_whole else [],
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def _current(found: Comparison) -> tuple[str | None, float | None]:
    """Return the name and the step of the run that the others are compared with."""
    run = found.current
    return (None, None) if run is None else (run.schedule.name, run.iteration_time)


def _cells(row: Row, base: str | None, base_step: float | None, verbose: bool) -> dict[str, str]:
    """Return the cells of a schedule by the heads of their columns, except its rank; "" for what does not apply."""
    in_bytes = row["peak_memory"] is not None
    peak = float(np.max(row["peak_memory" if in_bytes else "peak_activations"]))
    marks = " (config)" * (row["schedule"] == base) + " (asynchronous)" * row["asynchronous"]
    return {
        "schedule": _short_name(row["schedule"]) + marks,
        "step": cells.step_text(row["iteration_time"]),
        f"vs {_short_name(base or '')}": cells.versus(row["iteration_time"], base_step) if base_step else "",
        "bubble": percent_text(row["steady_bubble_fraction" if row["asynchronous"] else "bubble_fraction"]),
        "memory": cells.gigabytes(peak) if in_bytes else f"{peak:.3g} activations",
        "": "" if row["fit"] == "fits" else row["fit"],
        "mfu": value_text(row["mfu"], "fraction", unknown="") if verbose else "",
        "runs in": row["runs in"],
    }


def _table(rows: list[dict[str, str]]) -> list[str]:
    """Return the lines of a table, without the columns that are empty in all rows."""
    heads = [head for head in rows[0] if any(row[head] for row in rows)]
    left = [number for number, head in enumerate(heads) if head in ("schedule", "", "runs in")]
    return aligned([heads, *([row[head] for head in heads] for row in rows)], left, narrow=True)


def _lead(found: Comparison, rows: list[Row]) -> str:
    """Return the fastest of the schedules drawn that fits, for their page, and the interval."""
    drawn = [run.schedule.name for run in found.drawn]
    listed = sorted((row for row in rows if row["schedule"] in drawn), key=lambda row: row["asynchronous"])
    fitting = [row for row in listed if row["fit"] == "fits"]
    if not fitting:
        text = "none of these fits the memory" if len(listed) > 1 else "it does not fit the memory"
    else:
        best, running = fitting[0], next((row for row in fitting if row["runs in"] != "-"), None)
        which = " synchronous schedule" * (best["asynchronous"] < listed[-1]["asynchronous"])
        text = f"{_short_name(best['schedule'])} is the fastest{which}"
        text += " that fits" * (best is not listed[0])
        if running is not None and running is not best:
            text += f", and {running['schedule']} the fastest that a framework runs"
    return " · ".join(filter(None, [text, _interval_line(found)]))


def _interval_line(comparison: Comparison) -> str:
    found = spread(comparison.timelines[0])
    if found is None:
        return ""
    places = 0 if max(1 - found.low, found.high - 1) >= _WHOLE_PER_CENT else 1
    low, high = (percent_text(end - 1, places, signed=True) for end in (found.low, found.high))
    return f"90 % of real steps lie within {low} to {high} of their prediction"


def _ranks(rows: list[Row], is_predicted: bool) -> dict[str, str]:
    """Return the rank of each schedule: `3=` if published pairs cannot tell its step from that of the group's first."""
    apart = order_error("schedules").apart if is_predicted else 1 + cells.SAME
    ranks, first = [], 0
    for number, row in enumerate(rows):
        is_slower = row["iteration_time"] >= apart * rows[first]["iteration_time"]
        if is_slower or row["asynchronous"] != rows[first]["asynchronous"]:
            first = number
        ranks.append(first)
    texts = [f"{rank + 1}{'=' if ranks.count(rank) > 1 else ' '}" for rank in ranks]
    return {row["schedule"]: text for row, text in zip(rows, texts, strict=True)}


def _verdict(rows: list[Row], base: str | None, base_step: float | None, is_predicted: bool) -> str:
    """Return the fastest schedule, and the fastest that a framework runs if that is another one and surely gains."""

    def change(row: Row) -> str:
        step = row["iteration_time"]
        return f" ({cells.versus(step, base_step) if base_step else cells.step_text(step)})"

    error = order_error("schedules").middle if is_predicted else 1 + cells.SAME
    ranked = [row for row in rows if not row["asynchronous"]] or rows
    best, name = ranked[0], _short_name(ranked[0]["schedule"])
    memory = "" if best["fit"] == "fits" else f", but its memory is {best['fit']}"
    if best["schedule"] == base:
        return f"{name}, the config's schedule, is the fastest{memory or ' that fits' * (len(rows) == 1)}"
    if base and base_step and best["iteration_time"] >= (1 - cells.SAME) * base_step:  # which was not among those named
        difference = best["iteration_time"] / base_step - 1
        relation = "as long as" if difference < cells.SAME else f"{percent_text(difference, 0)} longer than"
        verb = "takes" if len(ranked) == 1 else "is the fastest of these and takes"
        return f"{name} {verb} {relation} {_short_name(base)} (config){memory}"
    text = f"{name} is the fastest{change(best)}{memory}"
    if best["runs in"] != "-":
        return text
    text += "; no framework runs it" + " in this layout" * bool(frameworks_running(best["schedule"], experts=True))
    running = [row for row in ranked if row["runs in"] != "-" and row["fit"] == "fits" and row["schedule"] != base]
    running = [row for row in running if error * row["iteration_time"] < (base_step or math.inf)]
    if not running:
        return text + ", nor a faster one that fits at these stages" * (len(rows) > 1)
    fits = "fits and " * any(row["peak_memory"] is not None for row in rows)
    return f"{text}; {running[0]['schedule']}{change(running[0])} {fits}runs in one"


def _first_names(names: Collection[str]) -> str:
    return first_names([*map(_short_name, names)], MAX_NAMED)


def _short_name(name: str) -> str:
    """Return the schedule's name; shorten a long path from the left."""
    return name if len(name) <= LONGEST_NAME else f"...{name[3 - LONGEST_NAME :]}"


def _certainty(found: Comparison) -> str:
    """Return which schedules may be as fast as the first; empty without an interval."""
    same = found.as_fast()
    if same is None or len(found.timelines) == 1:
        return ""
    some = f"may be as fast as the first: {first_names(same, MAX_NAMED)}"
    return some if same else "certain: all others are slower than the first"


def _layouts(rows: list[Row]) -> list[str]:
    """Return lines with each layout string once, after the names of its schedules."""
    names_by_string: dict[str, list[str]] = {}
    for row in rows:
        if row["layout_string"]:
            names_by_string.setdefault(row["layout_string"], []).append(row["schedule"])
    lines = []
    for text, names in names_by_string.items():
        whose = f" of {_first_names(names)}" if len(names_by_string) > 1 else ""
        lines += layout_lines(text, f"layout string{whose}")
    return lines
