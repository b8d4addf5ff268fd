"""The legend of a matplotlib Gantt chart: lines of swatches with words, only of what the chart draws."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from ppsim.actions import Kind
from ppsim.analysis.bubbles import makespan
from ppsim.analysis.memory import HEADROOM
from ppsim.plots.areas import NO_PATH, PRESENT, Area, areas
from ppsim.plots.boxes import Boxes, LegendEntry, legend_entries
from ppsim.plots.chart_rows import POINTS, area_names
from ppsim.plots.figures import PIXELS, Chart, font_points, text_width
from ppsim.plots.lanes import STEPS
from ppsim.plots.marks import DASHES, NO_LINES, ChartLines, Path, marked_kinds
from ppsim.plots.memory_strip import LIMIT, OVER, MemoryStrip, is_over, level_text
from ppsim.plots.palette import Theme
from ppsim.plots.pixels import is_mixed
from ppsim.plots.scale import LOWEST_DETAIL

TITLE, AXIS_NAME = 14, 13  # pixels, as all sizes below
_SHORTER = {
    "gradient": "grad.",
    "second": "2nd",
    " of the device": "",
    " of the fullest device": ", fullest device",
    "; thin: others": "",
    "more than usable": "over usable",
}  # in a column
_GROUPS = {"slot": "kind", "plain": "kind", "idle": "kind", "reverse": "stage", "steps": "lane"}  # by sort of entries
_SHORT = re.compile("|".join(_SHORTER))
_LARGE = 0.01  # fraction of a chart: a mix of colours that fills as much has a name in the rows or the legend
_LINE, _WIDE, _SWATCH, _SPACE, _SIZE = (16, 18), 500, 12, 12, 11  # lines of legends narrower than 500 are low


class Texts(NamedTuple):
    """Words above a chart: its title, what it shows in a line of its own, and notes in a quiet colour."""

    title: str
    lead: str
    notes: Sequence[str]


class Writer:
    """A figure of a size in pixels, whose text and axes have places in pixels from its left and upper edge."""

    def __init__(self, wide: float, high: float, theme: Theme):
        self.wide, self.high, self.theme = wide, high, theme
        self.figure = Chart(solved=False, figsize=(wide / PIXELS, high / PIXELS), facecolor=theme.paper)

    def write(self, x: float, y: float, text: str, size: float = _SIZE, **style: Any) -> Any:
        """Write a text whose base line is at y."""
        style = {"color": self.theme.text, "va": "baseline", "fontsize": font_points(size * POINTS), **style}
        return self.figure.text(x / self.wide, 1 - y / self.high, text, parse_math=False, **style)

    def name_axis(self, name: str, left: float, middle: float, high: float = np.inf) -> None:
        """Write the name of an upright axis, at most `high`, before its labels; `AXIS_NAME` is its width."""
        size = min(_SIZE, _SIZE * high / (text_width(name, _SIZE) or 1.0))
        style = {"color": self.theme.quiet, "rotation": 90}
        self.write(left + AXIS_NAME - 2, middle, name, size, **style, va="center", ha="right")

    def axes(self, left: float, top: float, width: float, height: float, **style: Any) -> Axes:
        """Add axes."""
        place = left / self.wide, 1 - (top + height) / self.high, width / self.wide, height / self.high
        return self.figure.add_axes(place, **style)


def write_title(writer: Writer, texts: Texts, margin: float, lines: Sequence[str]) -> None:
    """Write the title, smaller if it is too wide, its notes in `lines` below it or beside it, and then the lead."""
    room, notes, title = writer.wide - margin - 14, " · ".join(texts.notes), texts.title.splitlines()
    widest = max(text_width(line, TITLE, True) for line in title)
    size = max(min(TITLE if writer.wide >= 600 else 12, TITLE * room / max(widest, 1)), 6)
    if not lines:
        writer.write(margin + text_width(texts.title, size, True) + 12, 18, notes, color=writer.theme.quiet)
    for at, line in enumerate([*title, *lines, *texts.lead.splitlines()]):
        is_quiet = len(title) <= at < len(title) + len(lines)
        style: Any = {"size": size, "fontweight": "bold"} if at < len(title) else {}
        writer.write(margin, 18 + 18 * at, line, color=writer.theme.quiet if is_quiet else writer.theme.text, **style)


@dataclass(frozen=True)
class _Line:
    """An entry for a line: its words and its style."""

    sort: str
    text: str
    style: dict[str, Any]


class Legend:
    """The entries of a legend and their places."""

    def __init__(
        self, every: Sequence[Boxes], theme: Theme, lines: ChartLines = NO_LINES, *, memory: MemoryStrip | None = None,
        second: float = 0.0, rows: Sequence[float] = (), slow: bool = False,
        without_transfers: bool = False, until: float = np.inf, is_wide: bool = True, paths: Sequence[Path] = (),
        labels: bool = True,
    ):  # fmt: skip
        self.theme = theme
        marked = dict[str, Kind]()
        for boxes, row in reversed([*zip(every, rows, strict=True)]):
            marked |= marked_kinds(boxes, second, row, until)
        entries = legend_entries(every, marked, until)
        steps = [lane for boxes in every for lane in boxes.lanes if lane.sort == STEPS]
        wide = max((lane.length.max() * second for lane in steps), default=np.inf)
        if wide <= 1:
            short = {"sort": "low", "text": "optimizer step shorter than a pixel"}
            entries = [replace(one, **short) if one.lane == STEPS else one for one in entries]
        self.entries: list[LegendEntry | _Line] = [one for one in entries if one.sort != "low"]
        remarks = [one.text for one in entries if one.sort == "low"]  # what is left out
        lined = [np.concatenate(path) for path in paths] or [NO_PATH] * len(every)
        mixed = [one for one in zip(every, rows, lined, strict=True) if is_mixed(one[0], second)]
        named = {area.words for boxes, row, path in mixed * labels for area, *_ in area_names(boxes, second, row, path)}
        mixes = {
            words: area for words, area in _large_mixes([boxes for boxes, *_ in mixed]).items() if words not in named
        }
        for words, area in mixes.items():
            self._add("mix", words, color=area.colour(theme), linewidth=_SWATCH * POINTS)
        waited = " that a device waits for" * lines.waited
        for name, dashes in DASHES.items() if lines.transfers else ():
            self._add("transfers", f"transfer of a {name}{waited}", color=theme.quiet, linewidth=0.5, linestyle=dashes)
        if lines.has_path:
            dashed = "; dashed: past other devices" * any(len(jumps) for _, jumps in paths)
            self._add("path", f"critical path{dashed}", color=theme.critical, linewidth=2.2 * POINTS)
        if memory:
            devices = sorted({*map(memory.fullest, range(len(memory.curves)))})
            own = f" ({', '.join(map(str, devices))})" * (len(devices) <= 4)
            thin = "; thin: others" * (max(rows) >= LOWEST_DETAIL and max(map(len, memory.curves)) > 1)
            words = f"{memory.name} of the fullest device{own}{thin}"
            self._add("memory", words, color=theme.memory, linewidth=1.3 * POINTS)
        if memory and memory.limit is not None:
            limit, over = ("usable", "more than usable") if memory.symbol else ("limit", "over the limit")
            device = f" of {level_text(memory.limit / (1 - HEADROOM))}" * bool(memory.symbol)
            words = f"{limit} {level_text(memory.limit)}{device} {memory.symbol or memory.name}"
            self._add("memory", words, color=theme.limit, **LIMIT)
            if is_over(max(float(levels.max()) for curves in memory.curves for _, levels in curves), memory.limit):
                self._add("memory", over, color=theme.limit, linewidth=OVER * POINTS)
        remarks += ["bold number: slowest device"] if slow else []
        remarks += ["transfers not drawn: actions too narrow"] if without_transfers else []
        remarks += ["later stages have no marks: actions too narrow"] * ("bare" in marked and "stage" not in marked)
        remarks += ["narrow actions mix their colours"] * (len(mixed) > 0 and not (named or mixes))
        self.entries += [LegendEntry("mixed", text) for text in remarks]
        if not is_wide:
            self.entries = [replace(one, text=_SHORT.sub(lambda word: _SHORTER[word[0]], one.text))
                            for one in self.entries]  # fmt: skip

    def _add(self, group: str, text: str, **style: Any) -> None:
        self.entries.append(_Line(group, text, style))

    def _places(self, width: float) -> list[tuple[float, int]]:
        """Return the left end and line of each entry, in lines of at most `width`, which part no group that fits."""
        x, line, found = 0.0, 0, []
        for _, entries in groupby(self.entries, lambda entry: _GROUPS.get(entry.sort, entry.sort)):
            every = [_indent(entry) + text_width(entry.text, _SIZE) + _SPACE for entry in entries]
            for at, wide in enumerate(every):
                whole = sum(every) if at == 0 and sum(every) <= width + _SPACE else wide
                if x and x + whole > width + _SPACE:
                    x, line = 0.0, line + 1
                found.append((x, line))
                x += wide
        return found

    def height(self, width: float) -> float:
        """Return the height in pixels of a legend of this width."""
        return _LINE[width >= _WIDE] * (1 + max((line for _, line in self._places(width)), default=0))

    def draw(self, writer: Writer, left: float, top: float, width: float) -> None:
        """Draw the legend into a figure, from a place in pixels from its left and upper edge."""
        for entry, (x, line) in zip(self.entries, self._places(width), strict=True):
            y = top + line * _LINE[width >= _WIDE]
            for part in self._swatch(entry, left + x, y, writer.high):
                part.set_transform(writer.figure.dpi_scale_trans)
                writer.figure.add_artist(part)
            quiet: Any = {} if _indent(entry) else {"color": self.theme.quiet}
            writer.write(left + x + _indent(entry), y + 10, entry.text, gid="legend", **quiet)

    def _swatch(self, entry: LegendEntry | _Line, x: float, y: float, high: float) -> list[Artist]:
        """Return the symbol of an entry, in inches of the figure."""
        if isinstance(entry, _Line):
            ends = np.array([x, x + _SWATCH]) / PIXELS
            return [Line2D(ends, [(high - y - 6) / PIXELS] * 2, solid_capstyle="butt", **entry.style)]
        places = [
            (x + left, high - y - top - tall, wide, tall) for left, top, wide, tall, _ in entry.swatch(self.theme)
        ]
        colours = [colour for *_, colour in entry.swatch(self.theme)]
        sizes = np.array(places).reshape(-1, 4) / PIXELS
        return [Rectangle((left, low), wide, tall, facecolor=colour, edgecolor="none")
                for (left, low, wide, tall), colour in zip(sizes, colours, strict=True)]  # fmt: skip

    def add_to(self, ax: Axes) -> None:
        """Add the legend below axes of another figure, as a legend of these axes."""
        handles: list[Any] = []
        for entry in self.entries:
            if isinstance(entry, _Line):
                handles.append(Line2D([], [], **entry.style))
            else:
                own = next((colour for *_, colour in entry.swatch(self.theme)), "none")
                handles.append(Rectangle((0, 0), 1, 1, facecolor=own, edgecolor="none"))
        words = [entry.text for entry in self.entries]
        style: Any = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.18), "frameon": False, "fontsize": "small"}
        ax.legend(handles, words, ncols=4, **style)


def _large_mixes(every: Sequence[Boxes]) -> dict[str, Area]:
    """Return by name an area of each mix of colours that fills much of a chart."""
    sizes, found = dict[str, float](), dict[str, Area]()
    for boxes in every:
        whole = makespan(boxes.timeline) * boxes.timeline.schedule.devices
        for area in areas(boxes):
            if sum(part >= PRESENT for part in area.parts.values()) > 1:
                found.setdefault(area.words, area)
                sizes[area.words] = sizes.get(area.words, 0.0) + area.size / whole
    return {words: found[words] for words in found if sizes[words] >= _LARGE}


def _indent(entry: LegendEntry | _Line) -> float:
    """Return the pixels from an entry's left end to its words; entries of words alone have no symbol."""
    return 0.0 if entry.sort == "mixed" else _SWATCH + 6
