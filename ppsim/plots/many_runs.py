"""Charts of many runs: a measure over a swept number, and step time against memory with its Pareto front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from matplotlib.transforms import Bbox

from ppsim.actions import Kind
from ppsim.analysis.measures import pareto_front
from ppsim.base.units import axis_unit, percent_text
from ppsim.plots.figures import PAGE, Chart, checked_width, figure_of, font_points, plain_axes, settings, wrapped
from ppsim.plots.palette import LIGHT, Theme, theme_of
from ppsim.plots.scale import number_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_BARS, MAX_DIRECT = 12, 6  # bars of a chart; lines that are named at their ends
_LINE, _SMALL = 10, 7.0  # points: height of a name, and its size
_KINDS = (Kind.F, Kind.I, Kind.W, Kind.B, Kind.T, Kind.S, Kind.R, Kind.OVERLAP_F_B)
_MARKERS = "osD^vP*X"


def draw_lines(
    lines: Mapping[str, Sequence[tuple[float, float]]], over: str, title: str, unit: str,
    width: float | None = None, theme: str = "light",
) -> Figure:  # fmt: skip
    """Draw a line of (number, value) pairs per name; `over` names the numbers, `title` and `unit` the values.

    Numbers that double each time have a logarithmic axis. Up to `MAX_DIRECT` lines are named at their ends. `width` is
    that of the figure in inches, `theme` "light", "dark" or "grey". Raises ConfigError for others.
    """
    with matplotlib.rc_context(settings()):
        colours = theme_of(theme)
        figure, axes = _axes(width, colours)
        factor, symbol = axis_unit(max(abs(value) for pairs in lines.values() for _, value in pairs), unit)
        ends = []
        for place, (name, pairs) in enumerate(lines.items()):
            numbers, values = zip(*sorted(pairs), strict=True)
            scaled = [value * factor for value in values]
            colour, marker = colours.kinds[_KINDS[place % len(_KINDS)]], _MARKERS[place % len(_MARKERS)]
            axes.plot(numbers, scaled, color=colour, marker=marker, markersize=3.5, linewidth=1.1, label=name)
            ends.append((numbers[-1], scaled[-1], name))
        _number_axis(axes, sorted({number for pairs in lines.values() for number, _ in pairs}))
        axes.set_xlabel(over.rpartition(".")[2].replace("_", " "))
        axes.set_ylabel(f"{title} ({symbol})")
        if len(lines) <= MAX_DIRECT:
            _name_ends(axes, ends, colours.text)
        else:
            small: Any = {"fontsize": font_points(_SMALL), "labelcolor": colours.text}
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, **small)
    return figure


def _number_axis(axes: Axes, numbers: Sequence[float]) -> None:
    """Give a logarithmic axis to numbers that double each time, whole ticks to whole numbers."""
    doubles = len(numbers) > 2 and numbers[0] > 0 and all(abs(b / a - 2) < 1e-9 for a, b in pairwise(numbers))
    if doubles:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_locator(FixedLocator(numbers))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(FuncFormatter(lambda number, _: number_text(number)))
    else:
        axes.locator_params(axis="x", integer=all(float(number).is_integer() for number in numbers))


def _name_ends(axes: Axes, ends: Sequence[tuple[float, float, str]], ink: str) -> None:
    """Write the name of each line at its right end; names that would meet move apart."""
    style: Any = {"textcoords": "offset points", "fontsize": font_points(_SMALL), "va": "center"}
    figure_of(axes).draw_without_rendering()  # lays out the figure, so that places are final
    places = [float(axes.transData.transform((x, y))[1]) for x, y, _ in ends]
    apart = font_points(_SMALL) * 1.25 * figure_of(axes).dpi / 72
    reached = -float("inf")
    for number in sorted(range(len(ends)), key=lambda place: places[place]):
        x, y, name = ends[number]
        reached = max(places[number], reached + apart)
        shift = (reached - places[number]) / figure_of(axes).dpi * 72
        axes.annotate(name, (x, y), (6, shift), color=ink, annotation_clip=False, **style)


def draw_front(
    pairs: Sequence[tuple[float, float]], names: Sequence[str], memory: str, unit: str,
    width: float | None = None, theme: str = "light",
) -> Figure:  # fmt: skip
    """Draw (memory, seconds) pairs as points, and a line through their Pareto front; `unit` is that of `memory`.

    `width` is that of the figure in inches, `theme` "light", "dark" or "grey". Raises ConfigError for others.
    """
    with matplotlib.rc_context(settings()):
        colours = theme_of(theme)
        figure, axes = _axes(width, colours)
        byte, symbol = axis_unit(max(pair[0] for pair in pairs), unit)
        second, time_symbol = axis_unit(max(pair[1] for pair in pairs), "seconds")
        points = [(x * byte, y * second) for x, y in pairs]
        front = pareto_front(pairs)
        others = [point for number, point in enumerate(points) if number not in front]
        axes.scatter([x for x, _ in others], [y for _, y in others], s=14, color=colours.edge, linewidths=0, zorder=3)
        axes.margins(0.05, 0.09)
        corners = [points[index] for index in front]
        style: Any = {"color": colours.kinds[Kind.F], "marker": "o", "markersize": 4, "linewidth": 1.1}
        axes.plot(*zip(*corners, strict=True), drawstyle="steps-post", label="Pareto front", **style)
        axes.set_xlabel(wrapped(f"{memory} ({symbol})", figure.get_figwidth()))
        axes.set_ylabel(f"step time ({time_symbol})")
        place: Any = {"loc": "lower left", "bbox_to_anchor": (0.0, 1.0), "borderaxespad": 0.0, "borderpad": 0.2}
        axes.legend(frameon=False, fontsize=font_points(_SMALL), labelcolor=colours.text, **place)
        _name_points(axes, points, names, front, colours)
    return figure


def _name_points(
    axes: Axes, points: Sequence[tuple[float, float]], names: Sequence[str], front: Sequence[int], theme: Theme
) -> None:
    """Name both ends of the front, then what has space for a name: its corners, and other points if they are few."""
    figure_of(axes).draw_without_rendering()  # lays out the figure, so that names can be measured
    room, point = axes.get_window_extent(), figure_of(axes).dpi / 72
    taken = [
        Bbox.from_bounds(x - 2 * point, y - 2 * point, 4 * point, 4 * point)
        for x, y in axes.transData.transform(points).tolist()
    ]
    others = range(len(points)) if len(points) <= MAX_BARS else ()
    for number in dict.fromkeys([front[-1], front[0], *front, *others]):
        ink = theme.text if number in front else theme.quiet
        for offset, side in (((4, 4), "left"), ((-5, -_LINE), "right"), ((4, -_LINE), "left")):
            style: Any = {"ha": side, "textcoords": "offset points", "fontsize": font_points(_SMALL), "color": ink}
            name = axes.annotate(names[number], points[number], offset, **style)
            box = name.get_window_extent()
            if room.x0 <= box.x0 and box.x1 <= room.x1 and not any(map(box.overlaps, taken)):
                taken.append(box)
                break
            name.remove()


def draw_bars(names: Sequence[str], fractions: Sequence[float], notes: Sequence[str], title: str) -> Figure:
    """Draw a bar per name, as long as its fraction; write the fraction in percent and a note at its right."""
    with matplotlib.rc_context(settings()):
        figure = Chart(figsize=(PAGE, 0.8 + 0.24 * len(names)))
        axes = figure.add_subplot()
        axes.axvline(0.0, color=LIGHT.text, linewidth=0.8)
        axes.barh(range(len(names)), [100 * fraction for fraction in fractions], color=LIGHT.kinds[Kind.F])
        small = font_points(_SMALL)
        for row, (fraction, note) in enumerate(zip(fractions, notes, strict=True)):
            text = f"{percent_text(fraction, signed=True).replace('-', '−')}  {note}"
            axes.text(1.01, row, text, transform=axes.get_yaxis_transform(), va="center", fontsize=small)
        axes.set_yticks(range(len(names)), names, fontsize=small)
        axes.invert_yaxis()
        axes.locator_params(axis="x", nbins=6)
        axes.set_xlabel(f"{title} (%)", fontsize=small)
        axes.tick_params(axis="x", labelsize=small)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    return figure


def _axes(width: float | None, theme: Theme) -> tuple[Figure, Axes]:
    """Return a figure for a column or a page of a paper, and its axes."""
    wide = checked_width(width)
    figure = Chart(figsize=(wide, max(0.55 * wide, 2.1) if wide < 5 else 0.45 * wide), facecolor=theme.paper)
    axes = figure.add_subplot()
    plain_axes(axes, theme, 8.0 if wide > 5 else _SMALL)
    return figure, axes
