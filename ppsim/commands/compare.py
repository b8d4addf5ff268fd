"""`ppsim compare`: several schedules on the same work, in one table and on one time axis."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from ppsim.analysis.measures import Measure, shown_in
from ppsim.base.errors import ConfigError
from ppsim.base.tables import aligned
from ppsim.base.units import value_text
from ppsim.commands import charts, options
from ppsim.commands.case import takes_case
from ppsim.commands.reporting import ANSWER_IS_NO, answer, check_endings, command
from ppsim.config import Config
from ppsim.plots.boxes import headline, sizes_text
from ppsim.run.schedules import Schedule
from ppsim.studies import compare as study
from ppsim.studies.compare import Comparison, asynchronous

TOO_MUCH = "!"
HEADING = "asynchronous: steps follow each other without a drain, on old weights; time and bubble of the steady part"


@takes_case(without=("schedule", "family_options"))
@command
def compare(
    read: Callable[[], Config],
    schedules: Annotated[
        str,
        typer.Option(
            metavar="A,B,C",
            help="Names of `ppsim list` (zb-h1+ready: lists as priorities) and schedules' FILE.csv, or all.",
        ),
    ] = "all",
    json: options.JsonTarget = None,
    gantt: Annotated[
        Path | None, options.file_option("Draw all on one time axis: FILE.png, .svg, .pdf or .html.")
    ] = None,
) -> None:
    """Compare schedules at equal work."""
    check_endings(("--gantt", gantt, charts.GANTT))
    names = [name.strip() for name in schedules.split(",") if name.strip()]
    if not names:
        raise ConfigError(f"--schedules {schedules!r} names none; use all, or names such as 1f1b,zb-h1")
    case = read()
    comparison = _compared(case, names)
    if gantt and comparison.timelines:
        charts.save_comparison(comparison.timelines, gantt, titles=_titles(comparison, gantt.suffix.lower() == ".html"))
    document = {**comparison.to_dict(), "name": case.name}
    answer(document, json, lambda: comparison_text(comparison, _device_memory(case)))
    if not comparison.timelines:
        raise typer.Exit(ANSWER_IS_NO)


def _compared(case: Config, names: list[str]) -> Comparison:
    section = dict(case.schedule)
    if "csv" in section:
        own = case.build()
        section |= {"devices": own.devices, "microbatches": own.microbatches // own.slices}
    which = [Schedule.from_csv(name) if name.lower().endswith(".csv") else name for name in names]
    return study.compare(
        None if names == ["all"] else which,
        devices=section["devices"],
        microbatches=section["microbatches"],
        stages_per_device=section.get("stages_per_device"),
        costs=case.costs,
        options={section["name"]: section.get("options", {})} if "name" in section else None,
        run=case.simulate,
    )


def _device_memory(case: Config) -> float | None:
    """Bytes of one device, where the costs know the hardware."""
    cluster = getattr(case.costs, "cluster", None)
    return None if cluster is None else cluster.device.memory


def comparison_text(comparison: Comparison, device_memory: float | None = None) -> str:
    """The table, its notes, and a line for each schedule that cannot run.

    `device_memory` is in bytes; larger peaks are marked.
    """
    rows = comparison.rows()
    parts = [_table(rows, asynchronous, device_memory) for asynchronous in (False, True)]
    parts.append(_notes(device_memory) if rows else [])
    if comparison.refused:
        reasons = [f"  {name}: {reason}" for name, reason in comparison.refused.items()]
        parts.append(["cannot run at this size:", *reasons])
    return "\n\n".join("\n".join(part) for part in parts if part)


def _table(ranked: list[dict], asynchronous: bool, device_memory: float | None) -> list[str]:
    """The rows of one kind of schedules, with the measures that say something of one step of them."""
    kind = "asynchronous" if asynchronous else "synchronous"
    measures = [measure for measure in shown_in("table") if measure.schedules in ("all", kind)]
    rows = [
        (row["schedule"], *_cells(row, measures, device_memory))
        for row in ranked
        if row["asynchronous"] == asynchronous
    ]
    if not rows:
        return []
    return [HEADING] * asynchronous + aligned([("schedule", *(measure.title for measure in measures)), *rows], left=1)


def _notes(device_memory: float | None) -> list[str]:
    notes = [f"{measure.title}: {measure.meaning}" for measure in shown_in("table") if measure.formula]
    notes.append("peaks, transfers of a step and weight copies: of the device with most; activations in microbatches")
    if device_memory is not None:
        notes.append(f"{TOO_MUCH} more than the {value_text(device_memory, 'bytes')} of one device")
    return notes


def _cells(row: dict, measures: list[Measure], device_memory: float | None) -> Iterator[str]:
    for measure in measures:
        value = row[measure.name]
        too_much = measure.name == "peak_memory" and value is not None and value > (device_memory or math.inf)
        yield f"{TOO_MUCH} " * too_much + value_text(value, measure.unit)


def _titles(comparison: Comparison, measured: bool) -> list[str]:
    """What stands above each chart, which may show its measures itself; asynchronous schedules are marked."""
    return [
        "asynchronous: " * asynchronous(run) + (sizes_text(run.schedule) if measured else headline(run))
        for run in comparison.timelines
    ]
