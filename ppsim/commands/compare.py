"""`ppsim compare`: several schedules with equal work, in one table and on one time axis."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from ppsim.analysis.interval import spread
from ppsim.analysis.memory import fit_of
from ppsim.base.errors import ConfigError
from ppsim.base.tables import aligned, layout_lines, paragraph, texts_once
from ppsim.base.units import first_names, more_lines, percent_text, value_text
from ppsim.commands import options
from ppsim.commands.cells import (
    LEGEND,
    SAME,
    gigabytes,
    launch_fault,
    runs_in,
    set_options,
    step_text,
    usable_text,
    versus,
)
from ppsim.commands.options import draws, takes_case
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


@takes_case(without=("schedule", "family_options"))
@command
@draws
def compare(
    read: Callable[[], Config],
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
    case = read()
    which = [Schedule.from_csv(name) if name.lower().endswith(".csv") else name for name in names]
    comparison = study.compare(case, None if names == ["all"] else which, headroom=fraction)
    runners = functools.cache(functools.partial(_runners, comparison, case))
    if gantt and comparison.timelines:
        comparison.save(gantt, **drawing, lead=_lead(comparison, runners()[1]))
        more = len(comparison.timelines) - len(comparison.drawn)
        say(f"wrote {gantt}{f' ({more} more: name them with --schedules)' * bool(more)}")
    document = {**comparison.to_dict(), "name": case.name}
    answer(document, json, lambda: _answer(comparison, case, *runners(), verbose))
    if not comparison.timelines:
        raise typer.Exit(ANSWER_IS_NO)


def _answer(
    comparison: Comparison, case: Config, changes: Mapping[str, dict[str, Any]], letters: dict[str, str], verbose: bool
) -> str:
    """Return the fastest schedule, a table by rank, and what the table leaves out.

    Unless the schedules were `named`, the table has those that fit and are faster than the config's own; `verbose` adds
    the other rows, the MFU, layout strings, reasons and which order is certain.
    """
    rows, is_whole = comparison.rows(), bool(comparison.named) or verbose
    own = None if comparison.current is None else comparison.current.schedule.name
    now = None if comparison.current is None else comparison.current.iteration_time
    states = _states(comparison)
    over = [row for row in rows if states[row["schedule"]] == "over" and row["schedule"] != own]
    slower = [row for row in rows if now and row["iteration_time"] >= (1 - SAME) * now and row["schedule"] != own]
    left_out = [] if comparison.named else [*over, *slower]
    best = [row for row in rows if row not in left_out]
    shown = rows if verbose else best
    if not shown:
        found = "no schedule fits; -v prints all" if rows else "no schedule can run"
        return "\n".join([found, "", *_refusals(comparison.refused)])
    table = shown if is_whole else [*shown[:MAX_ROWS], *(row for row in shown[MAX_ROWS:] if row["schedule"] == own)]
    is_predicted = spread(comparison.timelines[0]) is not None
    error = order_error("schedules").middle if is_predicted else 1 + SAME
    ranks = _ranks(shown, is_predicted)
    tie = "N=: order not certain" if is_predicted else f"N=: equal within {percent_text(SAME, 0)}"
    cells = [
        {"#": ranks[name], **_cells(row, states[name], own, now, letters[name], verbose)}
        for name, row in ((row["schedule"], row) for row in table)
    ]
    notes = [ASYNCHRONOUS] * any(row["asynchronous"] for row in table)
    tie *= any("=" in one["#"] for one in cells)
    notes += ["; ".join(filter(None, [_interval_line(comparison), tie])), _certainty(comparison) * verbose]
    if not is_whole:
        notes = [
            _left_out("over the memory of a device", [row["schedule"] for row in over]),
            _left_out(f"not faster than {own}", [row["schedule"] for row in slower if row not in over]),
            _left_out("not run", comparison.refused),
            *notes,
        ]
    needs: dict[str, list[str]] = {}  # schedules by the keys of the layout that a framework runs them with
    for name in (row["schedule"] for row in table if letters[row["schedule"]] != "-"):
        keys = {key: value for key, value in changes.get(name, {}).items() if key.startswith("layout.")}
        needs.setdefault(" ".join(set_options(keys)), []).append(name)
    notes += [f"frameworks run {', '.join(names)} with {keys}" for keys, names in needs.items() if keys]
    legend = [LEGEND] * any(one["runs in"] != "-" for one in cells)
    if any(states[row["schedule"]] == "tight" for row in table):
        legend.append(f"tight: more than the {usable_text(case, comparison.headroom)}, but within the device")
    lines = [*paragraph(_verdict(best or rows, states, own, now, letters, error)), "", *_table(cells)]
    lines += [*more_lines(len(shown) - len(table), ""), *launch_fault(case)]
    lines += ["", *(line for note in [*notes, "; ".join(legend)] if note for line in paragraph(note))]
    lines += ["", *_layouts(rows)] if verbose else []
    lines += ["", *_refusals(comparison.refused)] if is_whole else []
    return "\n".join(lines).rstrip("\n")


def _cells(row: dict, state: str, own: str | None, now: float | None, runs: str, verbose: bool) -> dict[str, str]:
    """Return the cells of a schedule by the heads of their columns, except its rank; "" for what does not apply."""
    marks = " (config)" * (row["schedule"] == own) + " (asynchronous)" * row["asynchronous"]
    return {
        "schedule": _short_name(row["schedule"]) + marks,
        "step": step_text(row["iteration_time"]),
        f"vs {_short_name(own or '')}": versus(row["iteration_time"], now) if now else "",
        "bubble": percent_text(row["steady_bubble_fraction" if row["asynchronous"] else "bubble_fraction"]),
        "memory": _peak(row),
        "": "" if state == "fits" else state,
        "mfu": value_text(row["mfu"], "fraction", unknown="") if verbose else "",
        "runs in": runs,
    }


def _table(rows: list[dict[str, str]]) -> list[str]:
    """Return the lines of a table, without the columns that are empty in all rows."""
    heads = [head for head in rows[0] if any(row[head] for row in rows)]
    left = [number for number, head in enumerate(heads) if head in ("schedule", "", "runs in")]
    return aligned([heads, *([row[head] for head in heads] for row in rows)], left, narrow=True)


def _states(comparison: Comparison) -> dict[str, str]:
    return {run.schedule.name: fit_of(run, comparison.headroom) or "fits" for run in comparison.timelines}


def _runners(comparison: Comparison, case: Config) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """Return by schedule the keys that give the config this schedule, and the letters of the frameworks that run it.

    Lists of a file or of priorities have no keys.
    """
    changes, letters = dict[str, dict[str, Any]](), dict[str, str]()
    for schedule in (run.schedule for run in comparison.timelines):
        name = schedule.name
        if "csv" not in case.schedule and not name.lower().endswith((".csv", study.READY)):
            changes[name] = study.changes_to(name, case)
        keys = changes.get(name)
        letters[name] = runs_in(keys["schedule.name"] if keys else schedule, case, keys)
    return changes, letters


def _lead(comparison: Comparison, letters: Mapping[str, str]) -> str:
    """Return the fastest of the schedules drawn that fits, for their page, and the interval."""
    drawn, states = [run.schedule.name for run in comparison.drawn], _states(comparison)
    listed = [row for row in comparison.rows() if row["schedule"] in drawn]
    rows = [row["schedule"] for row in sorted(listed, key=lambda row: row["asynchronous"])]
    fitting = [name for name in rows if states[name] == "fits"]
    running = [name for name in fitting if letters[name] != "-"]
    if not fitting:
        text = "none of these fits the memory" if len(rows) > 1 else "it does not fit the memory"
        return " · ".join(filter(None, [text, _interval_line(comparison)]))
    apart = [row["schedule"] for row in listed if row["asynchronous"]]  # ranked after all others
    which = " synchronous schedule" * bool(apart and fitting[0] not in apart)
    text = f"{_short_name(fitting[0])} is the fastest{which}{' that fits' * (fitting[0] != rows[0])}"
    if running and running[0] != fitting[0]:
        text += f", and {running[0]} the fastest that a framework runs"
    return " · ".join(filter(None, [text, _interval_line(comparison)]))


def _interval_line(comparison: Comparison) -> str:
    found = spread(comparison.timelines[0])
    if found is None:
        return ""
    places = 0 if max(1 - found.low, found.high - 1) >= _WHOLE_PER_CENT else 1
    low, high = (percent_text(end - 1, places, signed=True) for end in (found.low, found.high))
    return f"90 % of real steps lie within {low} to {high} of their prediction"


def _peak(row: dict) -> str:
    if row["peak_memory"] is None:
        return f"{float(np.max(row['peak_activations'])):.3g} activations"
    return gigabytes(float(np.max(row["peak_memory"])))


def _ranks(rows: list[dict], uncertain: bool) -> dict[str, str]:
    """Return the rank of each schedule: `3=` if published pairs cannot tell its step from that of the group's first."""
    apart = order_error("schedules").apart if uncertain else 1 + SAME
    ranks, first = [], 0
    for number, row in enumerate(rows):
        is_slower = row["iteration_time"] >= apart * rows[first]["iteration_time"]
        if is_slower or row["asynchronous"] != rows[first]["asynchronous"]:
            first = number
        ranks.append(first)
    texts = [f"{rank + 1}{'=' if ranks.count(rank) > 1 else ' '}" for rank in ranks]
    return {row["schedule"]: text for row, text in zip(rows, texts, strict=True)}


def _verdict(
    rows: list[dict], states: dict, own: str | None, now: float | None, letters: dict[str, str], error: float
) -> str:
    """Return the fastest schedule, and the fastest that a framework runs if that is another one.

    A gain of less than the ratio `error` is not certain.
    """

    def change(row: dict) -> str:
        return f" ({versus(row['iteration_time'], now)})" if now else f" ({step_text(row['iteration_time'])})"

    best = [row for row in rows if not row["asynchronous"]] or rows
    state = states[best[0]["schedule"]]
    memory = "" if state == "fits" else f", but its memory is {state}"
    if best[0]["schedule"] == own:
        return (
            f"{_short_name(str(own))}, the config's schedule, is the fastest{memory or ' that fits' * (len(rows) == 1)}"
        )
    running = [row for row in best if letters[row["schedule"]] != "-" and states[row["schedule"]] == "fits"]
    running = [row for row in running if row["schedule"] != own and error * row["iteration_time"] < (now or math.inf)]
    if own and now and best[0]["iteration_time"] >= (1 - SAME) * now:  # it was not among the schedules named
        return _against_own(own, now, best) + memory
    text = f"{_short_name(best[0]['schedule'])} is the fastest{change(best[0])}{memory}"
    if letters[best[0]["schedule"]] != "-":
        return text
    text += "; no framework runs it" + " in this layout" * bool(frameworks_running(best[0]["schedule"], experts=True))
    if not running:
        others = ", nor a faster one that fits at these stages" * (len(rows) > 1)
        return text + others
    fits = "fits and " * any(row["peak_memory"] is not None for row in rows)
    return f"{text}; {running[0]['schedule']}{change(running[0])} {fits}runs in one"


def _against_own(own: str, now: float, rows: list[dict]) -> str:
    """Return the shortest of these rows with its step relative to the config's."""
    name, difference = _short_name(rows[0]["schedule"]), rows[0]["iteration_time"] / now - 1
    longer = "as long as" if difference < SAME else f"{percent_text(difference, 0)} longer than"
    verb = "takes" if len(rows) == 1 else "is the fastest of these and takes"
    return f"{name} {verb} {longer} {_short_name(own)} (config)"


def _left_out(label: str, names: Collection[str]) -> str:
    return f"{label}: {first_names([*map(_short_name, names)], MAX_NAMED)}" if names else ""


def _short_name(name: str) -> str:
    """Return the schedule's name; shorten a long path from the left."""
    return name if len(name) <= LONGEST_NAME else f"...{name[3 - LONGEST_NAME :]}"


def _certainty(comparison: Comparison) -> str:
    """Return which schedules may be as fast as the first; empty without an interval."""
    same = comparison.as_fast()
    if same is None or len(comparison.timelines) == 1:
        return ""
    some = f"may be as fast as the first: {first_names(same, MAX_NAMED)}"
    return some if same else "certain: all others are slower than the first"


def _layouts(rows: list[dict]) -> list[str]:
    """Return lines with each layout string once, after the names of its schedules."""
    names_by_string: dict[str, list[str]] = {}
    for row in rows:
        if row["layout_string"]:
            names_by_string.setdefault(row["layout_string"], []).append(_short_name(row["schedule"]))
    lines = []
    for text, names in names_by_string.items():
        whose = f" of {first_names(names, MAX_NAMED)}" if len(names_by_string) > 1 else ""
        lines += layout_lines(text, f"layout string{whose}")
    return lines


def _refusals(refused: Mapping[str, str]) -> list[str]:
    return ["not run:", *texts_once(refused.items())] if refused else []
