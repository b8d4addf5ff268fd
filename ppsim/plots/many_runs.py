"""Charts of many runs: a measure over a swept number, and step time against memory with its Pareto front."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from matplotlib.figure import Figure

from ppsim.analysis.measures import pareto_front
from ppsim.base.units import axis_unit, percent_text
from ppsim.plots.gantt import Chart
from ppsim.plots.marks import figure_of
from ppsim.plots.palette import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_BARS = 12
_LINE = 10  # points; height of a name


def draw_lines(lines: Mapping[str, Sequence[tuple[float, float]]], over: str, title: str, unit: str) -> Figure:
    """Draw a line of (number, value) pairs per name; `over` names the numbers, `title` and `unit` the values."""
    figure, axes = _axes()
    factor, symbol = axis_unit(max(abs(value) for pairs in lines.values() for _, value in pairs), unit)
    for name, pairs in lines.items():
        numbers, values = zip(*sorted(pairs), strict=True)
        axes.plot(numbers, [value * factor for value in values], marker="o", markersize=4, label=name)
    whole = all(float(number).is_integer() for pairs in lines.values() for number, _ in pairs)
    axes.locator_params(axis="x", integer=whole)
    axes.set_xlabel(over)
    axes.set_ylabel(f"{title} ({symbol})")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=8)
    return figure


def draw_front(pairs: Sequence[tuple[float, float]], names: Sequence[str], memory: str, unit: str) -> Figure:
    """Draw (memory, seconds) pairs as points, and a line through their Pareto front; `unit` is that of `memory`."""
    figure, axes = _axes()
    byte, symbol = axis_unit(max(pair[0] for pair in pairs), unit)
    second, time_symbol = axis_unit(max(pair[1] for pair in pairs), "seconds")
    axes.scatter([x * byte for x, _ in pairs], [y * second for _, y in pairs], s=16, color="#9db4d0")
    front = pareto_front(pairs)
    corners = [(pairs[index][0] * byte, pairs[index][1] * second) for index in front]
    axes.plot(*zip(*corners, strict=True), color="#b8432b", marker="o", markersize=5, drawstyle="steps-post")
    axes.set_xlabel(f"{memory} ({symbol})")
    axes.set_ylabel(f"step ({time_symbol})")
    _name_corners(axes, corners, [names[index] for index in front])
    return figure


def _name_corners(axes: Axes, corners: Sequence[tuple[float, float]], names: Sequence[str]) -> None:
    """Name both ends of the front, then the other corners that have space for a name."""
    figure_of(axes).draw_without_rendering()  # lays out the figure, so that names can be measured
    room, taken = axes.get_window_extent(), []
    for number in dict.fromkeys([len(corners) - 1, 0, *range(len(corners))]):
        for offset, side in (((4, 4), "left"), ((-5, -_LINE), "right")):
            style: Any = {"xytext": offset, "ha": side, "textcoords": "offset points", "fontsize": 7}
            name = axes.annotate(names[number], corners[number], **style)
            box = name.get_window_extent()
            if room.x0 <= box.x0 and box.x1 <= room.x1 and not any(map(box.overlaps, taken)):
                taken.append(box)
                break
            name.remove()


def draw_bars(names: Sequence[str], fractions: Sequence[float], notes: Sequence[str], title: str) -> Figure:
    """Draw a bar per name, as long as its fraction; write the fraction in percent and a note at its right."""
    figure = Chart(figsize=(8, 0.8 + 0.3 * len(names)))
    axes = figure.add_subplot()
    axes.axvline(0.0, color=INK, linewidth=0.8)
    axes.barh(range(len(names)), [100 * fraction for fraction in fractions], color="#9db4d0")
    for row, (fraction, note) in enumerate(zip(fractions, notes, strict=True)):
        text = f"{percent_text(fraction, signed=True)}  {note}"
        axes.text(1.01, row, text, transform=axes.get_yaxis_transform(), va="center", fontsize=8)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.locator_params(axis="x", nbins=6)
    axes.set_xlabel(f"{title} (%)")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure


def _axes() -> tuple[Figure, Axes]:
    figure = Chart(figsize=(8, 4.5))
    axes = figure.add_subplot()
    axes.grid(alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes
