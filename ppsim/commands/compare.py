"""`ppsim compare`: several schedules on the same work, in one table and on one time axis."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from ppsim.base.errors import ConfigError
from ppsim.base.tables import aligned
from ppsim.base.units import format_quantity, percent_text, seconds_text
from ppsim.commands import charts, options
from ppsim.commands.case import takes_case
from ppsim.commands.reporting import ANSWER_IS_NO, command, print_data, require_suffix, write_json
from ppsim.config import Config
from ppsim.run.schedules import Schedule
from ppsim.studies import compare as study
from ppsim.studies.compare import Comparison

TOO_MUCH, ASYNCHRONOUS = "!", "~"
HEADINGS = (
    "schedule", "stages/device", "step time", "bubble fraction", "bubble ratio", "span bubble", "peak activations",
    "peak memory", "transfers", "weight copies",
)  # fmt: skip
NOTES = (
    "bubble fraction: idle / total; bubble ratio: idle / ideal; span bubble: 1 - max(busy) / span",
    "peaks: fullest device, activations in microbatches through one device share; transfers: by the busiest sender",
)


@takes_case(without=("schedule", "family_options"))
@command
def compare(
    read: Callable[[], Config],
    schedules: Annotated[
        str, typer.Option(metavar="A,B,C", help="Names of `ppsim list` and schedules' FILE.csv, or all.")
    ] = "all",
    json: options.JsonTarget = None,
    gantt: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw all on one time axis: FILE.png, .svg or .pdf.")
    ] = None,
) -> None:
    """Compare schedules at equal work."""
    if gantt:
        require_suffix("--gantt", gantt, charts.STATIC)
    names = [name.strip() for name in schedules.split(",") if name.strip()]
    if not names:
        raise ConfigError(f"--schedules {schedules!r} names none; use all, or names such as 1f1b,zb-h1")
    case = read()
    comparison = _compared(case, names)
    if gantt and comparison.timelines:
        charts.save_comparison(comparison.timelines, gantt)
    if json:
        write_json({**comparison.to_dict(), "name": case.name}, json)
    if json != "-":
        print_data(comparison_text(comparison, _device_memory(case)))
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
    lines = []
    if rows:
        lines = aligned([HEADINGS, *(_cells(row, device_memory) for row in rows)], left=1)
        lines += ["", *_notes(rows, device_memory)]
    if comparison.refused:
        lines += ["", "cannot run at this size:"]
        lines += [f"  {name}: {reason}" for name, reason in comparison.refused.items()]
    return "\n".join(lines)


def _notes(rows: list[dict], device_memory: float | None) -> Iterator[str]:
    yield from NOTES
    if device_memory is not None:
        yield f"{TOO_MUCH} more than the {format_quantity(device_memory, 'bytes')} of one device"
    if any(row["iterations"] > 1 for row in rows):
        yield f"{ASYNCHRONOUS} steps follow each other without a drain: time and bubble of the steady part"


def _cells(row: dict, device_memory: float | None) -> tuple[str, ...]:
    memory, asynchronous = row["peak_memory"], row["iterations"] > 1
    too_much = memory is not None and device_memory is not None and memory > device_memory
    return (
        row["schedule"],
        str(row["stages_per_device"]),
        seconds_text(row["iteration_time"]),
        f"{ASYNCHRONOUS} " * asynchronous + percent_text(row["steady_bubble_fraction"]),
        "-" if asynchronous else percent_text(row["bubble_ratio"]),
        "-" if asynchronous else percent_text(row["span_bubble_fraction"]),
        f"{row['peak_activations']:.4g}",
        "-" if memory is None else f"{TOO_MUCH} " * too_much + format_quantity(memory, "bytes"),
        str(row["transfers"]),
        f"{row['weight_copies']:.3g}",
    )
