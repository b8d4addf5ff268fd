"""Gantt charts by matplotlib, for papers and reports: one or several timelines on one linear axis of time."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ppsim.analysis.bounds import lower_bound
from ppsim.analysis.bubbles import iteration_time, makespan, steady_bubble_fraction
from ppsim.analysis.interval import short_interval
from ppsim.analysis.memory import fit_of, fullest_device, peak_memory
from ppsim.base.errors import ConfigError, shown
from ppsim.base.rules import is_number
from ppsim.base.units import counted, percent_text, seconds_text, three_digits, time_unit
from ppsim.plots import marks
from ppsim.plots.boxes import Boxes, block_names, common_title, costs_text, device_labels, make_boxes, title_text
from ppsim.plots.chart_rows import ChartRows
from ppsim.plots.figures import checked_width, figure_of, follows_page, settings, time_axis
from ppsim.plots.gantt_figure import MAX_TICKS, PEAK_ACTIVATIONS, ChartBlock, compose, prepare_rows
from ppsim.plots.legend import Legend, Texts
from ppsim.plots.marks import ChartLines
from ppsim.plots.memory_strip import MemoryStrip, is_over
from ppsim.plots.palette import GREY, Theme, theme_of
from ppsim.plots.scale import AT_BOUND, SAME, number_text, shown_length, time_text
from ppsim.timeline import TimelineColumns

_LONGEST = 24  # characters of a base in the heading of differences
_BOUNDED = 100_000  # rows; the lower bound of more takes seconds


@follows_page
def draw(
    timelines: TimelineColumns | Sequence[TimelineColumns], *, ax: Axes | None = None, width: float | None = None,
    memory: bool | str = False, transfers: bool = False, title: str | None = None, titles: Sequence[str] | None = None,
    labels: bool | str = "auto", critical_path: Any = None, until: float | None = None, theme: str = "light",
    group: int | None = None, base: int = 0, note: str = "", lead: str = "", slow: Collection[int] = (),
) -> Figure:  # fmt: skip
    """Draw Gantt charts of timelines as a matplotlib figure, one below the other on one time axis.

    A chart has a row per device, a colour per kind, and idle time in one pale tone. A pixel shows the mean of its
    actions' colours, so that actions of any length have one encoding. Boxes with space show their microbatches. Weight
    gathers run along the top edge of a row, gradient reductions along its bottom edge.

    Each of several charts shows its step time relative to the timeline with number `base` in its group. `group` is the
    number of timelines in a group, such as 2 for pairs (default: all); `note` follows the title, `lead` is below it;
    devices of the first timeline that are `slow` have bold numbers. The other options are those of
    `ppsim.Timeline.plot` and, for several, of `Comparison.plot`.

    Raises
    ------
    ConfigError
        For no timelines, a number of titles other than that of timelines, or an invalid option.
    """
    runs = [timelines] if isinstance(timelines, TimelineColumns) else list(timelines)
    colours = _checked(runs, titles, width, memory, labels, theme, group)
    checks = ("ax", ax, Axes, "matplotlib Axes"), ("transfers", transfers, bool, "True or False")
    for name, value, kind, legal in (*checks, ("title", title, str, "text")):
        if value is not None and not isinstance(value, kind):
            raise ConfigError(f"{name}={shown(value)} must be {legal}")
    if until is not None and not (is_number(until) and 0 < until < float("inf")):
        raise ConfigError(f"until={shown(until)} is not an end of the time axis; use seconds above 0")
    if ax is not None and memory:
        raise ConfigError("memory=... needs a figure of its own; leave ax out, or memory")
    every, lines = [make_boxes(run) for run in runs], ChartLines(transfers, critical_path)
    longest = float(until) if until is not None else shown_length([makespan(run) for run in runs])
    if title is None:
        title = title_text(runs[0]) if len(runs) == 1 else common_title(runs)
        if until is not None and longest < (end := max(map(makespan, runs))):
            title += f", first {seconds_text(longest)} of {seconds_text(end, 3)}"
    with matplotlib.rc_context(settings()):
        if ax is not None:
            return figure_of(_draw_into(ax, every[0], title, bool(labels), longest, colours, lines))
        blocks, heads = _blocks(every, titles, group, base)
        notes = _single_note(every[0]) if len(runs) == 1 else [*filter(None, [note]), costs_text(every)]
        for slices in sorted({run.schedule.slices for run in runs} - {1} if len(runs) > 1 else ()):
            names = ", ".join(block.name for block in blocks if block.boxes.timeline.schedule.slices == slices)
            notes.append(f"{names}: {slices} slices per microbatch")
        notes += [f"=: less than {percent_text(SAME, 0)} apart"] * any("=" in block.numbers for block in blocks)
        texts = Texts(title, lead, notes)
        rows = compose(
            blocks, heads, texts, width, longest, colours, memory=memory, labels=bool(labels), lines=lines, slow=slow,
        )  # fmt: skip
    return figure_of(rows[0])


def _checked(
    runs: Sequence[TimelineColumns], titles: Any, width: Any, memory: Any, labels: Any, theme: Any, group: Any
) -> Theme:
    """Return the theme; raise ConfigError for an invalid option."""
    if not runs:
        raise ConfigError("a chart needs at least one timeline, got none")
    if titles is not None and len(titles) != len(runs):
        raise ConfigError(f"titles lists {len(titles)} texts for {len(runs)} timelines; give one each")
    if group is not None and not (type(group) is int and group > 0):
        raise ConfigError(f"group={shown(group)} must be a whole number of at least 1, such as 2 for pairs")
    checked_width(width)
    if not isinstance(labels, bool) and not (isinstance(labels, str) and labels == "auto"):
        raise ConfigError(f"labels={shown(labels)} is not known; use 'auto', True or False")
    if not isinstance(memory, bool) and not (isinstance(memory, str) and memory in ("activations", "bytes")):
        raise ConfigError(f"memory={shown(memory)} is not known; use True, False, 'activations' or 'bytes'")
    if memory == "bytes" and any(peak_memory(timeline) is None for timeline in runs):
        raise ConfigError(
            "memory='bytes' needs costs that say what is held (activation_bytes and weight_bytes); "
            "use memory='activations'"
        )
    return theme_of(theme)


def _blocks(
    every: Sequence[Boxes], titles: Sequence[str] | None, group: int | None, base: int
) -> tuple[list[ChartBlock], tuple[str, ...]]:
    """Return the blocks, each with its numbers against the base of its group, and the headings of the numbers.

    A single timeline is compared with its lower bound.
    """
    timelines = [boxes.timeline for boxes in every]
    names = [name.replace("->", "→") for name in (block_names(timelines) if titles is None else titles)]
    unit, blocks, bases = time_unit(max(map(iteration_time, timelines))), [], dict[str, None]()
    # Alike in all rows, and enough for the shortest step.
    digits = max(len(time_text(iteration_time(run) * unit.factor).partition(".")[2]) for run in timelines)
    peak_head, peaks = _peaks(timelines)
    for number, (boxes, name, (peak, over)) in enumerate(zip(every, names, peaks, strict=True)):
        run, first = boxes.timeline, number - number % (group or len(every))
        base_of = min(first + base, len(timelines) - 1)
        bases[names[base_of]] = None
        step = f"{iteration_time(run) * unit.factor:,.{digits}f} {unit.symbol}"
        change = iteration_time(run) / (iteration_time(timelines[base_of]) or np.inf) - 1.0
        differs = "base" if number == base_of else percent_text(change, signed=True).replace("-", "−")
        if abs(change) < SAME and run.schedule.name != timelines[base_of].schedule.name:
            differs = "="  # as the table of `compare` says
        idle = percent_text(steady_bubble_fraction(run))
        if filled := _filled_seconds(run):
            after = steady_bubble_fraction(run) - filled / (run.schedule.devices * makespan(run))
            idle = f"{idle.removesuffix(' %')} → {percent_text(after)}"
        differs = _bound_text(run) if len(every) == 1 else differs
        blocks.append(ChartBlock(boxes, name, (step, differs, idle, peak), over))
    versus = "vs bound"
    if len(every) > 1:
        alike = {name.rpartition(", ")[2] if group else name for name in bases}  # such as "measured" of each run
        versus = "vs first" if len(alike) > 1 else f"vs {name if len(name := alike.pop()) <= _LONGEST else 'base'}"
    steady = "steady " * any(run.schedule.iterations > 1 for run in timelines)  # step and idle of that part
    return blocks, (f"{steady}step", versus, f"{steady}idle", peak_head)


def _peaks(timelines: Sequence[TimelineColumns]) -> tuple[str, list[tuple[str, bool]]]:
    """Return a heading, the peak of each with its usable memory and unit, and whether it is over this memory."""
    found, unit = [], MemoryStrip.unit_of(timelines)
    for run in timelines:
        _, peak, limit = fullest_device(run, unit.symbol != "")
        sizes = [size * unit.factor for size in (peak, limit) if size is not None]
        texts = [three_digits(size) if unit.symbol else number_text(round(size, 2)) for size in sizes]
        over, fit = is_over(peak, limit), "tight" if fit_of(run) == "tight" else "over"
        found.append((" ".join(filter(None, (" of ".join(texts), unit.symbol, fit * over))), over))
    return "peak" if unit.symbol else PEAK_ACTIVATIONS, found


def _filled_seconds(run: TimelineColumns) -> float:
    """Return the device time of the pieces of work in idle time."""
    return 0.0 if run.fills is None else float((run.fills.end - run.fills.start).sum())


def _single_note(boxes: Boxes) -> list[str]:
    """Return the 90 % interval of a step, how many pieces of work fill how much of the idle time, and the costs."""
    run = boxes.timeline
    interval, filled = short_interval(run).strip(" ()"), _filled_seconds(run)
    parts = [interval.replace("90 %", "90 % of real steps", 1)]
    if filled and run.fills is not None:
        of_idle = percent_text(filled / (steady_bubble_fraction(run) * run.schedule.devices * makespan(run)), 0)
        parts.append(f"{counted(len(run.fills), 'piece')} of work in {of_idle} of the idle time")
    return [*filter(None, parts), costs_text([boxes])]


def _bound_text(run: TimelineColumns) -> str:
    """Return how far the makespan is above its lower bound; empty if that is not known."""
    if run.engine == "measured" or run.schedule.iterations > 1 or len(run.row_start) > _BOUNDED:
        return ""
    gap = lower_bound(run).gap
    return percent_text(gap, signed=True) if gap >= 5e-4 else AT_BOUND


def _draw_into(
    ax: Axes, boxes: Boxes, title: str, labels: bool, longest: float, theme: Theme, lines: ChartLines
) -> Axes:
    """Draw the rows into given axes, with a title, an axis and a legend."""
    time_axis(ax, longest, MAX_TICKS)
    row = marks.row_height(ax, boxes)
    second = marks.second_of(ax)
    lines, (boxes,) = lines.drawn([boxes.in_rows(row)], second)
    prepare_rows(ax, boxes, device_labels(boxes.timeline), theme, row)
    ax.tick_params(axis="x", length=2.5, labelbottom=True)
    ax.set_ylabel("device")
    ax.set_xlabel("time")
    ax.set_title(title, loc="left", parse_math=False)
    paths = lines.paths([boxes], [row], second)
    ChartRows(ax, boxes, theme, labels, labels, theme is GREY, lines.add_to(ax, boxes, theme, *paths))
    Legend([boxes], theme, lines, second=second, rows=[row], paths=paths).add_to(ax)
    return ax
