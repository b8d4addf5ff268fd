"""The figure of a Gantt chart by matplotlib: title, numbers, rows, memory, axis and legend, and their places."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ppsim.analysis.bubbles import makespan
from ppsim.base.immutable import as_class
from ppsim.plots import marks, scale
from ppsim.plots.boxes import Boxes, axis_of, device_labels
from ppsim.plots.chart_rows import POINTS, ChartRows, width_of_digit
from ppsim.plots.figures import (
    PIXELS,
    bare_axes,
    checked_width,
    font_points,
    joined_lines,
    text_width,
    time_axis,
    wrapped,
)
from ppsim.plots.legend import AXIS_NAME, TITLE, Legend, Texts, Writer, write_title
from ppsim.plots.marks import ChartLines
from ppsim.plots.memory_strip import SHORT, MemoryStrip, draw_memory
from ppsim.plots.palette import GREY, Theme
from ppsim.plots.pixels import is_mixed, mixing_scale
from ppsim.plots.scale import AT_BOUND, LOWEST_DETAIL

MAX_TICKS, PEAK_ACTIVATIONS = 10, "peak activations"
_MARGIN, _SUBTITLE = 14, 11  # reference pixels, as all sizes below
_SIZES = (11, 11, 14), (13, 12, 18)  # in a column, on a page: of names and numbers, and between two numbers
_WIDE = 600  # narrower figures have no margins and no microbatch numbers
_HIGHEST, _HIGHEST_OF_COLUMN, _DIVIDED = 21.6, 13.5, 1.3  # of the boxes of a row
_HIGHEST_OF_FEW, _FEW_ROWS = 40, 86.4  # of the boxes of a row, and of all rows, if a lone schedule has few devices
_ALL_ROWS, _FEWEST_ROWS = 420, (150, 190)  # height of the rows of one timeline, and of each of many in a column, a page
_PAGE, _LOWEST_ROWS = 1180, 48  # height of all timelines, without memory, on a page; minimum height of the rows of one
_WORDS, _SPARE = 18, 6  # pixels: a line of words above the rows; from the last one to several timelines
_ABOVE, _BETWEEN, _AXIS = 24, 14, 34  # pixels: numbers, between two schedules, the axis
_SPACES_OF_COLUMN = 20, 9, 28  # of the same
_STRIP, _STRIP_OF_MANY, _STRIP_OF_COLUMN = 72, 32, 18  # pixels: memory of one schedule, of several, in a column
_TICK = 16  # pixels from the name of the last row to the first tick of memory


@dataclass(frozen=True)
class ChartBlock:
    """A timeline of a chart: its boxes, name, and numbers: step, difference to the base, idle fraction, peak.

    `is_over`: the peak is over the usable memory.
    """

    boxes: Boxes
    name: str
    numbers: tuple[str, str, str, str]
    is_over: bool

    @cached_property
    def labels(self) -> list[str]:
        """Names of the rows."""
        return device_labels(self.boxes.timeline)


@dataclass(frozen=True)
class _FigureLayout:
    """Places in reference pixels."""

    width: float
    margin: float  # left end of all
    # left, right: ends of the rows
    left: float
    right: float
    columns: dict[int, float]  # right ends of the columns of numbers, by the number's index in `ChartBlock.numbers`
    beside: float  # left end of the columns
    below: float  # from the line of a name down to its numbers; 0 if they share a line
    memory: float  # height of the memory strip
    # heights of the words above a timeline's rows, of what is between two timelines, and of the axis
    above: float
    between: float
    axis: float

    @property
    def room(self) -> float:
        """Width of the rows, and of a line of words."""
        return self.right - self.left


def prepare_rows(ax: Axes, boxes: Boxes, labels: Sequence[str], theme: Theme, row: float) -> None:
    """Give each device a row, device 0 on top, and label those at 1, 2, 4 ... steps."""
    devices = len(labels)
    ax.set_ylim(devices - 0.5, -0.5)
    named = scale.named_devices(devices, row)
    top, bottom, _ = marks.row_edges(ax, boxes)
    ax.set_yticks(np.array(named) + (top + bottom) / 2, [labels[device] for device in named])
    bare_axes(ax, theme, 11 * POINTS)
    ax.spines[:].set_visible(False)


def _lay_out(
    blocks: Sequence[ChartBlock], heads: Sequence[str], width: float, strip: MemoryStrip | None
) -> _FigureLayout:
    """Return the layout of a figure of a width in pixels."""
    is_wide, several = width >= _WIDE, len(blocks) > 1
    size, *_ = _SIZES[width >= _WIDE]
    names = max(text_width(block.name, size, True) for block in blocks) + 14 if several else 0.0
    upright = max(text_width(label, 11) for block in blocks for label in block.labels[-1:] + block.labels[:1])
    upright += AXIS_NAME * bool(axis_of(blocks[0].labels))
    high = 0.0
    if strip is not None:
        peaks = [float(max(curve.max() for _, curve in curves)) for curves in strip.curves]
        upright = max(upright, *(text_width(strip.label(one), 11) for one in (strip.limit or strip.top, *peaks)))
        of_column = min(max(_STRIP_OF_COLUMN, strip.lowest), _STRIP_OF_MANY)
        high = of_column if not is_wide else _STRIP_OF_MANY if several else _STRIP
    left, right = (_MARGIN, width - _MARGIN) if is_wide else (4.0, width - 9)
    rows = left + upright + 8
    wide = _widths(blocks, heads, width)
    shown, below = [at for at in wide if wide[at]], 16.0 * several * (names > right - rows - sum(wide.values()))
    is_over = any(block.is_over for block in blocks)  # what is over its limit keeps its peak
    while len(shown) > 1 and sum(wide[at] for at in shown) > right - rows - names * (not below):
        shown.pop(-2 if is_over and len(shown) > 2 else -1)
    columns = {at: right - sum(wide[later] for later in shown if later > at) for at in shown}
    beside = right - sum(wide[at] for at in shown)
    above, between, axis = (_ABOVE, _BETWEEN, _AXIS) if is_wide else _SPACES_OF_COLUMN
    return _FigureLayout(width, left, rows, right, columns, beside, below, high, above + below, between, axis)


def _row_heights(every: Sequence[Boxes], width: float) -> list[float]:
    """Return the height in pixels of the rows of each chart of a figure of this width in pixels."""
    of_page = max(_PAGE / len(every) - _ABOVE - _BETWEEN, _LOWEST_ROWS)
    limit, found = max(_ALL_ROWS / len(every), min(_FEWEST_ROWS[width >= _WIDE], of_page)), list[float]()
    divided = _DIVIDED if any(boxes.divided for boxes in every) else 1.0
    for boxes in every:
        devices = boxes.timeline.schedule.devices
        row = (_HIGHEST if width >= _WIDE else _HIGHEST_OF_COLUMN) * divided
        if width >= _WIDE and len(every) == 1:
            row = max(row, min(_HIGHEST_OF_FEW, _FEW_ROWS / devices))
        found.append(min(row / (1.0 - boxes.apart), max(limit / devices, 2.0 * min(devices, 200) / devices)))
    return found


def _widths(blocks: Sequence[ChartBlock], heads: Sequence[str], width: float) -> dict[int, float]:
    """Return the widths of the columns of numbers, with their headings above them."""
    found, (_, size, apart) = dict[int, float](), _SIZES[width >= _WIDE]
    for at, head in enumerate(heads):
        value = max(text_width(text, size, text != AT_BOUND) for text in (one.numbers[at] for one in blocks))
        found[at] = max(text_width(head, _SUBTITLE), value) + apart if value else 0.0
    return found


def compose(
    blocks: Sequence[ChartBlock], heads: Sequence[str], texts: Texts, width: float | None, longest: float,
    theme: Theme, *, memory: bool | str, labels: bool, lines: ChartLines, slow: Collection[int],
) -> list[Axes]:  # fmt: skip
    """Return the axes of the rows of a new figure with all blocks, an axis and a legend."""
    pixels = checked_width(width) * PIXELS
    if pixels < _WIDE:
        blocks, heads = [_in_words(block, heads, len(blocks) == 1) for block in blocks], [""] * len(heads)
    strip = MemoryStrip.of([block.boxes.timeline for block in blocks], memory) if memory else None
    layout = _lay_out(blocks, heads, pixels, strip)
    second, wanted = layout.room / (longest or 1.0), lines
    lines, every = wanted.drawn(_in_equal_rows([block.boxes for block in blocks], pixels), second)
    heights = _row_heights(every, pixels)
    paths = lines.paths(every, heights, second)
    legend = Legend(
        every, theme, lines, memory=strip, second=second, rows=heights, slow=bool(slow), paths=paths,
        without_transfers=wanted.transfers and not lines.transfers, until=longest, is_wide=pixels >= _WIDE,
        labels=labels,
    )  # fmt: skip
    several, digit = len(blocks) > 1, width_of_digit()
    numbered = labels and pixels >= _WIDE
    single = [(boxes, row) for boxes, row in zip(every, heights, strict=True) if not is_mixed(boxes, second)]
    those = [one for one in single if numbered and marks.has_numbers(*one, second, digit)]
    lettered = theme is GREY and all(marks.has_numbers(*one, second, digit, True) for one in those)
    if those:
        is_sliced = those[0][0].sliced
        words = "numbers are microbatch.slice" if is_sliced else "numbers are microbatches"
        texts = texts._replace(notes=[*texts.notes, words])
    texts, notes, head = _header(layout, texts, any(heads), not several)
    rows = [len(block.labels) * row for row, block in zip(heights, blocks, strict=True)]
    air = max(8.0, _TICK - min(heights) / 2 - layout.memory / 9)  # above memory
    tall = sum(rows) + len(blocks) * (layout.above + layout.between + (layout.memory + air if memory else 0))
    spare = _SPARE * several
    writer = Writer(pixels, head + spare + tall + layout.axis + legend.height(layout.room) + 6, theme)
    of_all = f" of {', '.join(block.name for block in blocks)}" * several
    words = (" ".join(text.split("\n")) for text in (texts.title, texts.lead) if text)
    writer.figure.alt = f"Gantt chart{of_all}: {'. '.join(words)}"
    if texts.title:
        write_title(writer, texts, layout.left, notes)
    for at, x in layout.columns.items() if any(heads) else ():
        writer.write(x, head - 3, heads[at], ha="right", color=theme.quiet)
    found, y = [], head + spare
    writer.name_axis(axis_of(blocks[0].labels), layout.margin, y + layout.above + rows[0] / 2, rows[0])
    for number, (block, boxes, high) in enumerate(zip(blocks, every, rows, strict=True)):
        y += layout.above
        _write_numbers(writer, layout, block, y, several)
        ax = writer.axes(layout.left, y, layout.room, high)
        time_axis(ax, longest, MAX_TICKS if pixels >= _WIDE else 8)
        prepare_rows(ax, boxes, block.labels, theme, heights[number])
        ChartRows(ax, boxes, theme, labels, numbered, lettered, lines.add_to(ax, boxes, theme, paths[number]))
        for tick, label in zip(ax.get_yticks(), ax.get_yticklabels(), strict=True) if number == 0 else ():
            if round(float(tick)) in slow:
                label.set(color=theme.text, fontweight="bold")
        _mark_end(ax, makespan(boxes.timeline), longest, theme, high)
        found.append(ax)
        y += high
        if strip is not None:
            area = writer.axes(layout.left, y + air, layout.room, layout.memory, sharex=ax)
            draw_memory(area, strip, number, makespan(boxes.timeline), theme, heights[number] >= LOWEST_DETAIL)
            y += air + layout.memory
        y += layout.between
    ends = [makespan(boxes.timeline) for boxes in every]
    _add_axis(writer, layout, y, longest, [end for end in ends if end <= longest * (1 + 1e-9)])
    legend.draw(writer, layout.left, y + layout.axis, layout.room)
    return found


def _in_words(block: ChartBlock, heads: Sequence[str], is_alone: bool) -> ChartBlock:
    """Return a block whose numbers need no headings, which take a line of a column, such as `10.4 % idle`."""
    step, differs, idle, peak = block.numbers
    versus = f" {heads[1]}" * (is_alone and differs not in ("", AT_BOUND))
    peak += f" {SHORT}" * (heads[3] == PEAK_ACTIVATIONS)
    word = "peak " * (" of " not in peak)
    steady = " steady" * heads[0].startswith("steady")
    return replace(block, numbers=(step + steady, differs + versus, f"{idle} {heads[2]}", word + peak))


def _in_equal_rows(every: Sequence[Boxes], pixels: float) -> list[Boxes]:
    """Return the boxes of all charts of a figure of this width; rows have space for the same major lanes."""
    lanes = frozenset[str]().union(*(boxes.major_lanes for boxes in every))
    every = [as_class(Boxes, boxes, reserved=lanes) for boxes in every]
    shown = [boxes.in_rows(row) for boxes, row in zip(every, _row_heights(every, pixels), strict=True)]
    narrowest, mixing = min(boxes.median for boxes in every), max(map(mixing_scale, shown))
    alike = {"narrowest": narrowest, "mixing": mixing, "sliced": all(one.timeline.schedule.slices > 1 for one in every)}
    return [as_class(Boxes, boxes, **alike) for boxes in shown]


def _header(layout: _FigureLayout, texts: Texts, headed: bool, alone: bool) -> tuple[Texts, list[str], float]:
    """Return the texts and notes in lines, and the height of all lines above the first timeline.

    The headings of the numbers, if they are `headed`, and the numbers of one timeline `alone` are beside the last lines
    of the texts if they fit. Notes have no lines if fewer are needed with them beside the title.
    """
    numbers = headed + alone
    title, words = wrapped(texts.title, layout.room, _SUBTITLE, True), " · ".join(texts.notes if texts.title else ())
    lead = joined_lines(texts.lead.split() if title else (), " ", layout.room, _SUBTITLE)
    rooms = (layout.room, layout.beside - layout.left)[: 1 + headed]  # of notes below the title
    below, *narrow = (joined_lines(words.split(" · ") if words else (), " · ", room, _SUBTITLE) for room in rooms)
    titles = [text_width(line, TITLE, True) for line in title]
    beside = [*titles[:-1], *(wide + 12 + text_width(words, _SUBTITLE) for wide in titles[-1:])]
    found = list[tuple[int, list[str]]]()
    for notes, wide in (*((notes, titles) for notes in narrow), (below, titles), ([], beside)):
        wide = [*wide, *(text_width(line, _SUBTITLE) for line in (*notes, *lead))]
        is_heading = max(len(notes) * (notes not in narrow), len(lead)) > 1  # the rest of words would read as one
        most = min(numbers, len(wide)) * (not is_heading)
        shared = next(some for some in range(most, -1, -1)
                      if max([0.0, *wide[len(wide) - some :]]) <= layout.beside - layout.left)  # fmt: skip
        if max([0.0, *wide]) <= layout.room or notes:
            found.append((len(wide) + numbers - shared, notes))
    lines, notes = min(found, key=lambda one: one[0])
    head = _WORDS * (lines - alone) + (3.0 if headed else 5.0)  # numbers are on the line of the notes
    return texts._replace(lead="\n".join(lead), title="\n".join(title)), notes, head


def _write_numbers(writer: Writer, layout: _FigureLayout, block: ChartBlock, y: float, named: bool) -> None:
    """Write a block's step, difference, idle time and peak above its rows at y, and its name if it is `named`."""
    theme, base, values = writer.theme, y - (9 if writer.wide >= _WIDE else 7), block.numbers
    most, value, apart = _SIZES[writer.wide >= _WIDE]
    if named:
        beside = layout.columns[0] - layout.left - text_width(values[0], value, True) - apart
        room = layout.room if layout.below else beside
        size = max(min(most, most * room / max(text_width(block.name, most, True), 1)), 6)
        writer.write(layout.left, base - layout.below, block.name, size, fontweight="bold")
    bold: Any = {"fontweight": "bold"}
    over: Any = {**bold, "color": theme.limit} if block.is_over else {}
    is_quiet = values[1] in ("base", "=", AT_BOUND)
    styles = (bold, {"color": theme.quiet} if is_quiet else bold, {}, over)
    for at, x in layout.columns.items():
        writer.write(x, base, values[at], value, ha="right", **styles[at])


def _mark_end(ax: Axes, end: float, longest: float, theme: Theme, high: float) -> None:
    """Draw a line at the end of the step over all rows; the rows of a cut timeline end in arrows."""
    if end > longest * (1 + 1e-9):
        for row in ax.get_yticks():  # beside the rows; their numbers have the end
            style: Any = {"fontsize": font_points(11 * POINTS), "va": "center", "color": theme.text}
            style |= {"xycoords": ax.get_yaxis_transform(), "textcoords": "offset points", "annotation_clip": False}
            ax.annotate("→", (1, row), (2, 0), **style)
        return
    beyond = 3 / (high or 1)
    ax.plot(
        [end, end], [-beyond, 1 + beyond], transform=ax.get_xaxis_transform(), color=theme.text,
        linewidth=1.5 * POINTS, clip_on=False, zorder=7, solid_capstyle="butt",
    )  # fmt: skip


def _add_axis(writer: Writer, layout: _FigureLayout, y: float, longest: float, ends: Sequence[float]) -> None:
    """Add the axis of time below all rows, which end at y, with a triangle at the end of each step."""
    theme = writer.theme
    ax = writer.axes(layout.left, y - 1, layout.room, 1, facecolor="none")
    ax.set_yticks([])
    style: Any = {"color": theme.text, "linewidths": 0.0, "clip_on": False, "zorder": 7}
    ax.scatter(ends, [1.0] * len(ends), s=8, marker="v", transform=ax.get_xaxis_transform(), **style)
    time_axis(ax, longest, MAX_TICKS if layout.width >= _WIDE else 8)
    ax.spines[["left", "right", "top"]].set_visible(False)
    ax.spines["bottom"].set(color=theme.edge, linewidth=POINTS)
    ax.tick_params(
        axis="x", length=4 * POINTS, width=POINTS, color=theme.edge, pad=4 * POINTS, labelcolor=theme.quiet,
        labelsize=font_points(11 * POINTS),
    )  # fmt: skip
