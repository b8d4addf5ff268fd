"""Gantt charts by matplotlib, for papers and reports: one or several timelines on one linear axis of time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ppsim.analysis.bounds import lower_bound
from ppsim.analysis.bubbles import iteration_time, makespan, steady_bubble_fraction
from ppsim.analysis.interval import short_interval
from ppsim.analysis.memory import peak_activations, peak_memory, usable_limit
from ppsim.base.errors import ConfigError, shown
from ppsim.base.rules import is_number
from ppsim.base.units import counted, percent_text, three_digits, time_unit
from ppsim.plots import marks, scale
from ppsim.plots.boxes import (
    Boxes,
    block_names,
    busy_text,
    common_title,
    costs_text,
    device_labels,
    make_boxes,
    title_text,
)
from ppsim.plots.chart_rows import POINTS, ChartRows
from ppsim.plots.figures import PIXELS, Chart, bare_axes, checked_width, figure_of, font_points, settings, time_axis
from ppsim.plots.legend import Legend, Writer, text_width
from ppsim.plots.memory_strip import MemoryStrip, draw_memory, is_over
from ppsim.plots.page_data import UNMARKED, Marks
from ppsim.plots.palette import GREY, Theme, theme_of
from ppsim.timeline import TimelineColumns

_MARGIN, _TITLE, _SUBTITLE = 14, 14, 11  # pixels of the rules, as all sizes below
_BESIDE = 700  # narrower figures have names and numbers above the rows
_HIGHEST, _HIGHEST_OF_COLUMN, _DIVIDED = 21.6, 13.5, 1.3  # of the boxes of a row
_ALL_ROWS, _FEWEST_ROWS = 420, 150  # height of the rows of one timeline, and of each of many
_BESIDE_WORDS, _LONGEST_HEADING = 172, 150  # pixels: words at the right of the rows, the heading of differences
_OUTLIER, _GAP = 3.0, 2.0  # a timeline over this times the median is cut, if it is this times the next shorter one
_MAX_TICKS = 10
_BOUNDED = 32_768  # rows; the lower bound of more takes seconds


@dataclass(frozen=True)
class _Block:
    """A timeline of a chart: its boxes, name, and numbers: step, difference to the base, idle fraction, peak.

    `is_over`: the peak is over the usable memory.
    """

    boxes: Boxes
    name: str
    numbers: tuple[str, str, str, str]
    is_over: bool

    @property
    def devices(self) -> int:
        return self.boxes.timeline.schedule.devices

    @cached_property
    def labels(self) -> list[str]:
        return device_labels(self.boxes.timeline)


@dataclass(frozen=True)
class _FigureLayout:
    """Places in pixels of the rules: width, ends of the rows; `beside`: names are left of the rows, numbers right.

    `places` are the right ends of the columns of numbers, `heads` their headings: step, difference, idle, peak.
    """

    width: float
    left: float
    right: float
    beside: bool
    places: tuple[float, ...]
    heads: tuple[str, ...]
    rows: tuple[float, ...]
    memory: float


def draw(
    timeline: TimelineColumns,
    *,
    ax: Axes | None = None,
    width: float | None = None,
    memory: bool | str = False,
    transfers: bool = False,
    title: str | None = None,
    labels: bool | str = "auto",
    critical_path: Any = None,
    until: float | None = None,
    theme: str = "light",
) -> Figure:
    """Draw a Gantt chart as a matplotlib figure: a row per device, colour by kind, idle time in one pale tone.

    A pixel shows the mean of its actions' colours, so that actions of any length have one encoding. Boxes with space
    show their microbatches. Weight gathers run along the top edge of a row, gradient reductions along its bottom edge.

    `timeline` is what to draw; the other options are those of `ppsim.Timeline.plot`. `savefig` writes the figure.

    Raises
    ------
    ConfigError
        For an invalid width or option.
    """
    colours = _checked(width, memory, labels, theme, [timeline])
    for name, value, kind, legal in (
        ("ax", ax, Axes, "matplotlib Axes"),
        ("transfers", transfers, bool, "True or False"),
        ("title", title, str, "text"),
    ):
        if value is not None and not isinstance(value, kind):
            raise ConfigError(f"{name}={shown(value)} must be {legal}")
    if until is not None and not (is_number(until) and 0 < until < float("inf")):
        raise ConfigError(f"until={shown(until)} is no end of the time axis; use seconds above 0")
    if ax is not None and memory:
        raise ConfigError("memory=... needs a figure of its own; leave ax out, or memory")
    boxes = make_boxes(timeline)
    boxes = replace(boxes, apart=scale.APART_FOR_LINES) if transfers else boxes
    longest = makespan(timeline) if until is None else float(until)
    shown_lines = {"transfers": transfers, "critical": critical_path is not None and critical_path is not False}
    with matplotlib.rc_context(settings()):
        if ax is not None:
            rows = _draw_into(ax, boxes, title, bool(labels), longest, colours, shown_lines)
        else:
            heading = title_text(timeline) if title is None else title
            rows = _compose(
                _blocks([boxes], None, None), heading, width, longest, colours, memory=memory, labels=bool(labels),
                lines=shown_lines, notes=_single_note(boxes),
            )[0]  # fmt: skip
        boxes = boxes.in_rows(_row_height(rows, boxes))
        if transfers:
            marks.add_transfers(rows, boxes, colours)
        if shown_lines["critical"]:
            marks.add_critical_path(rows, boxes, critical_path, colours)
    return figure_of(rows)


def draw_comparison(
    timelines: Sequence[TimelineColumns],
    *,
    width: float | None = None,
    titles: Sequence[str] | None = None,
    labels: bool | str = "auto",
    memory: bool | str = False,
    critical_path: bool = False,
    group: int | None = None,
    base: int = 0,
    theme: str = "light",
    note: str = "",
    slow: Marks = UNMARKED,
) -> Figure:
    """Draw several Gantt charts on one time axis, one block per timeline, in the order given.

    Each block shows its step time relative to the timeline with number `base` in its group.

    `group` is the number of timelines in a group, such as 2 for pairs (default: all); `note` follows the title;
    `slow` marks parts of the first timeline, which is measured, against the second. `Comparison.plot` has the others.

    Raises
    ------
    ConfigError
        For no timelines, a number of titles other than that of timelines, or a group below 1.
    """
    if not timelines:
        raise ConfigError("draw_comparison needs at least one timeline, got none")
    if titles is not None and len(titles) != len(timelines):
        raise ConfigError(f"titles lists {len(titles)} texts for {len(timelines)} timelines; give one each")
    if group is not None and not (type(group) is int and group > 0):
        raise ConfigError(f"group={shown(group)} must be a whole number of at least 1, such as 2 for pairs")
    colours = _checked(width, memory, labels, theme, timelines)
    every = [make_boxes(timeline) for timeline in timelines]
    with matplotlib.rc_context(settings()):
        blocks = _blocks(every, titles, group, base)
        rows = _compose(
            blocks, common_title(timelines), width, _shown_seconds(every), colours, memory=memory, labels=bool(labels),
            notes=[note or costs_text(every)], lines={"slow": slow, "critical": critical_path},
        )  # fmt: skip
        drawn = [boxes.in_rows(_row_height(axes, boxes)) for axes, boxes in zip(rows, every, strict=True)]
        if slow is not UNMARKED:
            marks.add_slow(rows[0], drawn[0], drawn[1], slow, colours)
        for axes, boxes in zip(rows, drawn, strict=True) if critical_path else ():
            marks.add_critical_path(axes, boxes, True, colours)
    return figure_of(rows[0])


def _checked(width: Any, memory: Any, labels: Any, theme: Any, timelines: Sequence[TimelineColumns]) -> Theme:
    """Return the theme; raise ConfigError for an invalid option."""
    checked_width(width)
    if not isinstance(labels, bool) and not (isinstance(labels, str) and labels == "auto"):
        raise ConfigError(f"labels={shown(labels)} is not known; use 'auto', True or False")
    if not isinstance(memory, bool) and not (isinstance(memory, str) and memory in ("activations", "bytes")):
        raise ConfigError(f"memory={shown(memory)} is not known; use True, False, 'activations' or 'bytes'")
    if memory == "bytes" and any(peak_memory(timeline) is None for timeline in timelines):
        raise ConfigError(
            "memory='bytes' needs costs that say what is held (activation_bytes and weight_bytes); "
            "use memory='activations'"
        )
    return theme_of(theme)


def _blocks(every: Sequence[Boxes], titles: Sequence[str] | None, group: int | None, base: int = 0) -> list[_Block]:
    """Return the blocks, each with its numbers against the base of its group; one alone against its lower bound."""
    timelines = [boxes.timeline for boxes in every]
    names = block_names(timelines) if titles is None else list(titles)
    longest = max(map(iteration_time, timelines))
    unit, blocks = time_unit(longest), []
    places = max(2 - math.floor(math.log10(longest * unit.factor)), 1) if longest > 0 else 1
    peaks = _peaks(timelines)
    for number, (boxes, name) in enumerate(zip(every, names, strict=True)):
        run, first = boxes.timeline, number - number % (group or len(every))
        against = timelines[min(first + base, len(timelines) - 1)]
        step = f"{iteration_time(run) * unit.factor:,.{places}f} {unit.symbol}"
        differs = _bound_text(run) if len(every) == 1 else "base" if run is against else _difference(run, against)
        idle = percent_text(steady_bubble_fraction(run))
        if filled := _filled_seconds(run):
            after = steady_bubble_fraction(run) - filled / (run.schedule.devices * makespan(run))
            idle = f"{idle.removesuffix(' %')} → {percent_text(after)}"
        blocks.append(_Block(boxes, name, (step, differs, idle, peaks[number][0]), peaks[number][1]))
    return blocks


def _peaks(timelines: Sequence[TimelineColumns]) -> list[tuple[str, bool]]:
    """Return the peak of each timeline, of its usable memory if that is known, and whether it is over it."""
    found, unit = [], MemoryStrip.unit_of(timelines)
    for run in timelines:
        held, limit = peak_memory(run), usable_limit(run)
        if unit.symbol == "act." or held is None:
            found.append((f"{float(peak_activations(run).max()):.4g}", False))
            continue
        peak = float(held.max())
        words = [three_digits(size * unit.factor) for size in (peak, limit) if size is not None]
        found.append((" of ".join(words), is_over(peak, limit)))
    return found


def _filled_seconds(run: TimelineColumns) -> float:
    """Return the device time of the pieces of work in idle time."""
    return 0.0 if run.fills is None else float((run.fills.end - run.fills.start).sum())


def _single_note(boxes: Boxes) -> list[str]:
    """Return the 90 % interval of a step, how many pieces of work fill how much of the idle time, and the costs."""
    run = boxes.timeline
    parts, filled = [short_interval(run).strip(" ()")], _filled_seconds(run)
    if filled and run.fills is not None:
        of_idle = percent_text(filled / (steady_bubble_fraction(run) * run.schedule.devices * makespan(run)), 0)
        parts.append(f"{counted(len(run.fills), 'piece')} of work in {of_idle} of the idle time")
    return [*filter(None, parts), costs_text([boxes])]


def _difference(run: TimelineColumns, base: TimelineColumns) -> str:
    """Return the step time relative to the base, with a true minus."""
    before = iteration_time(base)
    return percent_text(iteration_time(run) / before - 1.0, signed=True).replace("-", "−") if before > 0 else ""


def _bound_text(run: TimelineColumns) -> str:
    """Return how far the makespan is above its lower bound; empty for measured runs, several iterations, many rows."""
    if run.engine == "measured" or run.schedule.iterations > 1 or len(run.row_start) > _BOUNDED:
        return ""
    gap = lower_bound(run).gap
    return "at bound" if gap < 5e-4 else percent_text(gap, signed=True)


def _shown_seconds(every: Sequence[Boxes]) -> float:
    """Return the length of the time axis in seconds: that of the longest timeline, or of those below outliers.

    If the longest is over `_OUTLIER` times the median, those above the widest gap are cut.
    """
    lengths = sorted(makespan(boxes.timeline) for boxes in every)
    upper = lengths[(len(lengths) - 1) // 2 :]
    usual, longer = max(pairwise(upper), key=lambda pair: pair[1] / (pair[0] or 1.0), default=(0.0, 0.0))
    is_cut = upper[-1] > _OUTLIER * upper[0] and longer > _GAP * usual > 0
    return usual * 1.05 if is_cut else upper[-1]


def _draw_into(
    ax: Axes, boxes: Boxes, title: str | None, labels: bool, longest: float, theme: Theme, lines: dict[str, Any]
) -> Axes:
    """Draw the rows into given axes, with a title, an axis and a legend."""
    boxes = boxes.in_rows(_row_height(ax, boxes))
    _prepare(ax, boxes, device_labels(boxes.timeline), theme)
    ax.tick_params(axis="x", length=2.5, labelbottom=True)
    ax.set_ylabel("device")
    ax.set_xlabel(f"time ({time_axis(ax, longest, _MAX_TICKS).symbol})")
    ax.set_title(title_text(boxes.timeline) if title is None else title, loc="left", parse_math=False)
    ChartRows(ax, boxes, theme, labels)
    Legend([boxes], theme, mixed=marks.is_mixed(boxes, marks.second_of(ax)), **lines).add_to(ax)
    return ax


def _row_height(ax: Axes, boxes: Boxes) -> float:
    """Return the height in pixels of a row that fills axes with its neighbours."""
    return ax.get_window_extent().height / ax.figure.dpi * PIXELS / boxes.timeline.schedule.devices


def _prepare(ax: Axes, boxes: Boxes, labels: Sequence[str], theme: Theme, row: float = 0.0) -> None:
    """Give each device a row, device 0 on top, and label devices at 1, 2, 4 ... steps beside their boxes."""
    devices = len(labels)
    ax.set_ylim(devices - 0.5, -0.5)
    every = scale.device_steps(row) if row else 1 if devices <= 24 else 2 ** int(np.ceil(np.log2(devices / 24)))
    ax.set_yticks(np.arange(0, devices, every) + sum(marks.row_edges(boxes)) / 2, labels[::every])
    bare_axes(ax, theme, 11 * POINTS)
    for side in ax.spines.values():
        side.set_visible(False)


def _lay_out(blocks: Sequence[_Block], width: float, memory: bool) -> _FigureLayout:
    """Return the layout of a figure of a width in pixels."""
    every = [block.boxes for block in blocks]
    widest = max(text_width(block.name, 13) for block in blocks) * 1.1
    digits = max(text_width(label, 11) for block in blocks for label in block.labels[-1:] + block.labels[:1])
    digits = max(digits, text_width("88.88", 10)) if memory else digits
    beside = width >= _BESIDE and widest <= 0.2 * width
    names = max(widest, text_width("activations", 11) if memory else 0) + 14 if beside and len(blocks) > 1 else 0
    if beside and len(blocks) == 1:
        names = text_width("activations", 11) + 14 if memory else 0
    highest = _HIGHEST if width >= _BESIDE else _HIGHEST_OF_COLUMN
    room = max(_ALL_ROWS / len(blocks), _FEWEST_ROWS)
    tall = [highest * (_DIVIDED if boxes.divided else 1.0) / (1.0 - boxes.apart) for boxes in every]
    usual = [block.devices * row for row, block in zip(tall, blocks, strict=True)]
    limits = [max(room, 2.0 * min(block.devices, 200)) for block in blocks]
    left = _MARGIN + names + digits + 8 if width >= _BESIDE else digits + 8
    right, heads = width - _MARGIN if width >= _BESIDE else width - 9, ("step", _against(blocks), "idle")
    places: tuple[float, ...] = (right - 158, right - 88, right)
    if beside:
        heads += () if memory else (f"peak, {MemoryStrip.unit_of([one.timeline for one in every]).symbol}",)
        wide = [
            max(text_width(head, _SUBTITLE), *(text_width(block.numbers[at], 12) * 1.12 for block in blocks)) + 16
            if head
            else 0.0
            for at, head in enumerate(heads)
        ]
        places = tuple(right - sum(wide[at + 1 :]) for at in range(len(wide)))
        right -= max(sum(wide), _BESIDE_WORDS) + 14
    strip = (72 if len(blocks) == 1 else 28) if memory else 0
    rows = tuple(map(min, usual, limits))
    return _FigureLayout(width, left, right, beside, places, heads, rows, strip)


def _against(blocks: Sequence[_Block]) -> str:
    """Return the heading of the differences, which names the base; empty if there are none."""
    if len(blocks) == 1:
        return "vs bound" if blocks[0].numbers[1] else ""
    bases = [block.name for block in blocks if block.numbers[1] == "base"]
    name = bases[0] if len(bases) == 1 else "first"
    while text_width(f"vs {name}", _SUBTITLE) > _LONGEST_HEADING:
        name = name.removesuffix("…")[:-1] + "…"
    return f"vs {name}"


def _compose(
    blocks: Sequence[_Block], title: str, width: float | None, longest: float, theme: Theme, *,
    memory: bool | str, labels: bool, lines: dict[str, Any], notes: list[str],
) -> list[Axes]:  # fmt: skip
    """Return the axes of the rows of a new figure with all blocks, an axis and a legend."""
    pixels = checked_width(width) * PIXELS
    layout = _lay_out(blocks, pixels, bool(memory))
    strip = MemoryStrip.of([block.boxes.timeline for block in blocks], memory) if memory else None
    heights = [rows / block.devices for rows, block in zip(layout.rows, blocks, strict=True)]
    blocks = [replace(block, boxes=block.boxes.in_rows(row)) for row, block in zip(heights, blocks, strict=True)]
    every = [block.boxes for block in blocks]
    mixed = any(marks.is_mixed(boxes, (layout.right - layout.left) / longest) for boxes in every)
    legend = Legend(every, theme, memory=strip, mixed=mixed, **lines)
    is_narrow = pixels < _BESIDE
    head = (24 if title else 4) + (18 if layout.beside else 0)
    above, between = 0 if layout.beside else 22, 14
    tall = sum(layout.rows) + len(blocks) * (above + between + (layout.memory + 8 if memory else 0))
    axis, lined = 34 if layout.beside else 46, legend.height(pixels - 2 * (0 if is_narrow else _MARGIN))
    height = head + tall + axis + lined + 6
    figure = Chart(solved=False, figsize=(pixels / PIXELS, height / PIXELS), facecolor=theme.paper)
    writer = Writer(figure, theme)
    if title:
        _write_title(writer, title, pixels, notes)
    for place, text in zip(layout.places, layout.heads, strict=True) if layout.beside else ():
        writer.write(place, head - 6, text, color=theme.quiet, ha="right")
    found, y = [], float(head)
    for number, (block, rows) in enumerate(zip(blocks, layout.rows, strict=True)):
        _write_numbers(writer, layout, block, y, len(blocks) > 1)
        if mixed and theme is GREY and layout.beside:  # a mixture of greys may look like one of its kinds
            writer.write(layout.places[-1], y + 32, busy_text(block.boxes), color=theme.quiet, ha="right")
        y += above
        ax = writer.axes(layout.left, y, layout.right - layout.left, rows)
        _prepare(ax, block.boxes, block.labels, theme, heights[number])
        time_axis(ax, longest, _MAX_TICKS if pixels >= _BESIDE else 8)
        ChartRows(ax, block.boxes, theme, labels and not is_narrow)
        marks.add_evictions(ax, block.boxes, theme)
        _mark_end(ax, block, longest, theme, layout)
        found.append(ax)
        y += rows + 8
        if strip is not None:
            area = writer.axes(layout.left, y, layout.right - layout.left, layout.memory, sharex=ax)
            draw_memory(
                area, strip, number, theme, others=not block.boxes.plain, beside=layout.beside, is_first=number == 0
            )
            if layout.beside:
                writer.write(_MARGIN, y + layout.memory / 2, strip.name, color=theme.quiet, va="center")
            y += layout.memory + 8
        y += between - 8
    _add_axis(writer, layout, (head, y), longest, every, theme)
    legend.draw(figure, 0 if is_narrow else _MARGIN, y + axis, pixels)
    return found


def _write_title(writer: Writer, title: str, width: float, notes: list[str]) -> None:
    """Write the title, smaller if it is too wide, and after it as many notes as fit."""
    size = _TITLE if width >= _BESIDE else 12
    room = width - 2 * _MARGIN
    size = max(min(size, size * room / max(text_width(title, size) * 1.08, 1)), 6)
    left = _MARGIN if width >= _BESIDE else 0
    writer.write(left, 18, title, size, fontweight="bold")
    wide = text_width(title, size) * 1.12
    while notes and left + wide + text_width(" · ".join(notes), _SUBTITLE) + 24 > width:
        notes = notes[:-1]
    writer.write(left + wide + 12, 18, " · ".join(notes), color=writer.theme.quiet)


def _write_numbers(writer: Writer, layout: _FigureLayout, block: _Block, y: float, named: bool) -> None:
    """Write a block's name, and its step, difference, idle time and peak; narrow figures have them above the rows."""
    theme, size = writer.theme, 13 if layout.beside else 12
    base = y + 15
    places = layout.places if block.numbers[1] else (layout.places[1], *layout.places[1:])
    if named:
        left = _MARGIN if layout.beside else layout.left
        room = places[0] - 60 - left if not layout.beside else layout.left
        size = max(min(size, size * room / max(text_width(block.name, size) * 1.12, 1)), 6)
        writer.write(left, base, block.name, size, fontweight="bold")
    step, differs, idle, peak = block.numbers
    bold: Any = {"fontweight": "bold"} if layout.beside else {}
    quiet: Any = {"color": theme.quiet}
    over: Any = {"fontweight": "bold", "color": theme.limit} if block.is_over else {}
    styles = (bold, quiet if differs in ("base", "") else bold, {} if layout.beside else quiet, over)
    words = (step, differs, idle if layout.beside else f"{idle} idle", peak)
    for x, text, style in zip(places, words, styles, strict=False):
        writer.write(x, base, text, 12, ha="right", **style)


def _mark_end(ax: Axes, block: _Block, longest: float, theme: Theme, layout: _FigureLayout) -> None:
    """Draw a line at the end of the step over all rows; a cut timeline gets an arrow and its end instead."""
    end = makespan(block.boxes.timeline)
    if end > longest * (1 + 1e-9):
        unit = time_unit(longest)
        style: Any = {"fontsize": font_points(11 * POINTS), "ha": "right", "va": "bottom", "color": theme.text}
        style["bbox"] = {"facecolor": theme.paper, "edgecolor": "none", "pad": 1}  # over the end of the rows above
        words = f"→ {end * unit.factor:,.1f} {unit.symbol}"
        ax.annotate(words, (1, 1), (0, 1), "axes fraction", "offset points", annotation_clip=False, **style)
        return
    beyond = 3 / (layout.rows[0] or 1)
    ax.plot(
        [end, end], [-beyond, 1 + beyond], transform=ax.get_xaxis_transform(), color=theme.text,
        linewidth=1.5 * POINTS, clip_on=False, zorder=7, solid_capstyle="butt",
    )  # fmt: skip


def _add_axis(
    writer: Writer, layout: _FigureLayout, rows: tuple[float, float], longest: float, every: Sequence[Boxes],
    theme: Theme,
) -> None:  # fmt: skip
    """Add the axis of time below all rows, which begin and end at `rows`, with a triangle at the end of each step."""
    top, y = rows
    ax = writer.axes(layout.left, y - 1, layout.right - layout.left, 1, facecolor="none")
    ax.set_yticks([])
    unit = time_axis(ax, longest, _MAX_TICKS if layout.width >= _BESIDE else 8)
    for name, side in ax.spines.items():
        side.set_visible(name == "bottom")
        side.set(color=theme.edge, linewidth=POINTS)
    ax.tick_params(
        axis="x", length=4 * POINTS, width=POINTS, color=theme.edge, pad=4 * POINTS, labelcolor=theme.quiet,
        labelsize=font_points(11 * POINTS),
    )  # fmt: skip
    if layout.beside:  # lines through all rows and between them
        style: Any = {"transform": ax.get_xaxis_transform(), "clip_on": False, "color": theme.grid, "linewidth": 0.5}
        ax.vlines(ax.get_xticks(), 0.0, y - top, **style)
        ax.set_zorder(-1)
    ends = sorted({makespan(boxes.timeline) for boxes in every})
    ends = [end for end in ends if end <= longest * (1 + 1e-9)]
    ax.plot(
        ends, [4.0] * len(ends), "v", color=theme.text, markersize=7 * POINTS, clip_on=False, zorder=8,
        transform=ax.get_xaxis_transform(), markeredgewidth=0,
    )  # fmt: skip
    steps = max(boxes.timeline.schedule.iterations for boxes in every)
    words = f"time ({unit.symbol}); ▼ end of {f'{steps} steps' if steps > 1 else 'step'}"
    if layout.beside:
        writer.write(layout.right + 14, y + 18, words, color=theme.quiet)
    else:
        ax.set_xlabel(words, color=theme.quiet, fontsize=font_points(11 * POINTS), labelpad=2)
