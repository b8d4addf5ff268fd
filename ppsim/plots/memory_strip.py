"""Memory over time below the rows of a matplotlib chart: the fullest device as an area, the emptiest as a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke

from ppsim.analysis.bubbles import makespan
from ppsim.analysis.memory import memory_curves, peak_memory, usable_limit
from ppsim.base.units import ScaledUnit, axis_unit, three_digits
from ppsim.plots.chart_rows import POINTS
from ppsim.plots.figures import PIXELS, bare_axes, font_points, text_width
from ppsim.plots.marks import add_lines, second_of
from ppsim.plots.palette import Theme
from ppsim.timeline import TimelineColumns

_ALIKE = 0.95  # of the highest peak: an emptiest device with a higher one is not drawn
_HEADROOM = 1.12  # height of the strip over the limit or the highest peak
_SHORT = 3.0  # pixels: several shorter steps of a curve are a band from the lowest to the highest level around them
_APART = 13.0  # pixels between two ticks


@dataclass(frozen=True)
class MemoryStrip:
    """The memory curves of several timelines in one unit, and the limit of a device if it is known.

    `curves` has the times and levels of each timeline's devices; `levels[0]` comes before the first time.
    """

    name: str
    symbol: str
    limit: float | None
    top: float
    lengths: list[float]
    curves: list[list[tuple[np.ndarray, np.ndarray]]]

    @classmethod
    def of(cls, timelines: Sequence[TimelineColumns], memory: bool | str) -> MemoryStrip:
        """Return the strip in bytes if `memory` is "bytes", or True and all costs know them, else in activations."""
        in_bytes = memory == "bytes" or (memory is True and cls.unit_of(timelines).symbol != "act.")
        curves = [memory_curves(timeline, in_bytes) for timeline in timelines]
        highest = max(float(levels.max()) for every in curves for _, levels in every)
        known = [limit for one in timelines if (limit := usable_limit(one, in_bytes)) is not None]
        unit = axis_unit(max([highest, *known[:1]]), "bytes" if in_bytes else "activations")
        limit = known[0] * unit.factor if known else None
        scaled = [[(times, levels * unit.factor) for times, levels in every] for every in curves]
        top = max(highest * unit.factor, limit or 0.0) or 1.0
        lengths = [makespan(timeline) for timeline in timelines]
        name, symbol = ("memory", unit.symbol) if in_bytes else ("activations", "")
        return cls(name, symbol, limit, top, lengths, scaled)

    @staticmethod
    def unit_of(timelines: Sequence[TimelineColumns]) -> ScaledUnit:
        """Return the unit of the timelines' peaks and limits: of bytes if all costs know them, else activations."""
        peaks = [peak_memory(timeline) for timeline in timelines]
        if any(peak is None for peak in peaks):
            return ScaledUnit(1.0, "act.")
        limits = [limit for limit in map(usable_limit, timelines) if limit is not None]
        return axis_unit(max([float(peak.max()) for peak in peaks if peak is not None] + limits[:1]), "bytes")

    def fullest(self, number: int) -> tuple[int, float]:
        """Return the device with the highest peak of a timeline, and this peak."""
        peaks = [float(levels.max()) for _, levels in self.curves[number]]
        return int(np.argmax(peaks)), max(peaks)

    def emptiest(self, number: int) -> int | None:
        """Return the device with the lowest peak of a timeline; None if all peaks are about equal."""
        peaks = [float(levels.max()) for _, levels in self.curves[number]]
        return int(np.argmin(peaks)) if min(peaks) < _ALIKE * max(peaks) else None

    def caption(self, number: int) -> str:
        """Return the name of a timeline's strip, with its unit and its fullest device."""
        unit = f", {self.symbol}" if self.symbol else ""
        return f"{self.name}{unit}; fullest: device {self.fullest(number)[0]}"

    def amount(self, value: float) -> str:
        """Return an amount with its unit, bytes in three digits."""
        return f"{three_digits(value)} {self.symbol}" if self.symbol else f"{value:.4g}"


def draw_memory(ax: Axes, strip: MemoryStrip, number: int, theme: Theme) -> None:
    """Draw the strip of one timeline: the fullest device, the emptiest if it has less, and the limit, named once.

    What is over the limit has its colour, and a stronger line.
    """
    curves, last = strip.curves[number], strip.lengths[number]
    fullest, peak = strip.fullest(number)
    window = _SHORT / second_of(ax)
    emptiest, style, drawn = strip.emptiest(number), {"linewidth": 0.0, "zorder": 2}, []
    for device, colour, wide in ((fullest, theme.memory, 1.3), (emptiest, theme.edge, 1.0)):
        if device is not None:
            points, lowest = _envelope(*curves[device], last, window)
            drawn.append((points, colour, wide, 1.7 + wide))
            if np.any(lowest < points[:, 1]):
                ax.fill_between(points[:, 0], lowest, points[:, 1], color=colour, alpha=0.3, **style)
    step = drawn[0][0]
    ax.fill_between(step[:, 0], 0.0, step[:, 1], color=theme.memory, alpha=0.12, **style)
    if strip.limit is not None:
        if is_over(peak, strip.limit):
            over: Any = np.maximum(step[:, 1], strip.limit)
            ax.fill_between(step[:, 0], strip.limit, over, color=theme.limit, alpha=0.3, **style)
            above = np.stack([step[:, 0], np.where(over > strip.limit, over, np.nan)], axis=1)
            drawn.append((above, theme.limit, 2.6, 3.5))
        dashes: Any = (0, (5, 2.5))
        ax.axhline(strip.limit, color=theme.limit, linewidth=1.2 * POINTS, linestyle=dashes, zorder=4)
    for points, colour, wide, order in drawn:
        add_lines(ax, [points], colors=colour, linewidths=wide * POINTS, zorder=order)
    ax.set_ylim(0.0, strip.top * _HEADROOM)
    _dress(ax, strip, theme)
    if strip.limit is not None and number == 0:
        _name_limit(ax, strip, number, theme)


def is_over(peak: float, limit: float | None) -> bool:
    """Return whether a peak is over the usable memory, beyond rounding."""
    return limit is not None and peak > limit * (1 + 1e-9)


def _dress(ax: Axes, strip: MemoryStrip, theme: Theme) -> None:
    """Give the strip ticks at 0, the limit and a peak over it, or the highest peak, and at half if there is space."""
    tall, highest = ax.get_window_extent().height / ax.figure.dpi * PIXELS, strip.limit or strip.top
    levels = [0.0, *([highest / 2] if tall > 60 else []), highest]
    levels += [strip.top] if (strip.top - highest) * tall > _APART * strip.top * _HEADROOM else []
    ax.set_yticks(levels, [f"{level:.3g}" for level in levels])
    bare_axes(ax, theme, 11 * POINTS)
    ax.spines[["left", "right", "top"]].set_visible(False)
    ax.spines["bottom"].set(color=theme.grid, linewidth=POINTS)


def _name_limit(ax: Axes, strip: MemoryStrip, number: int, theme: Theme) -> None:
    """Write the limit's name within the strip: above its line, or below it where memory is over it."""
    size, (times, levels) = ax.get_window_extent(), strip.curves[number][strip.fullest(number)[0]]
    limit = strip.limit or 0.0
    words = f"{'usable' if strip.symbol else 'limit'} {strip.amount(limit)}"
    first = ax.get_xlim()[1] * (1 - text_width(words, 11) / (size.width / ax.figure.dpi * PIXELS))
    is_covered = float(levels[np.searchsorted(times, first, "right") :].max()) > limit
    style: Any = {"xytext": (-2, -1.5 if is_covered else 1), "ha": "right", "va": "top" if is_covered else "bottom"}
    style |= {"path_effects": [withStroke(linewidth=4 * POINTS, foreground=theme.paper)], "color": theme.limit}
    style |= {"fontsize": font_points(11 * POINTS), "annotation_clip": False, "textcoords": "offset points"}
    ax.annotate(words, (1, limit / (strip.top * _HEADROOM)), xycoords="axes fraction", **style)


def _envelope(times: np.ndarray, levels: np.ndarray, last: float, window: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the points of a step curve from 0 to `last`, float64 (points, 2), and the lowest level at each.

    `levels[0]` is before the first time. If steps are shorter than the window, points are those of the highest level
    in a window around them.
    """
    at_once = (np.diff(times) == 0) & (levels[1:-1] <= np.maximum(levels[:-2], levels[2:]))
    times, levels = times[~np.append(at_once, False)], levels[~np.concatenate([[False], at_once, [False]])]
    times, levels = times[np.diff(levels) != 0], levels[np.append(True, np.diff(levels) != 0)]
    short = np.concatenate([[False], np.diff(times) < window, [False, False]])[: len(levels) + 1]
    dips = np.concatenate([[False], levels[1:-1] < np.minimum(levels[:-2], levels[2:]), [False, False]])[: len(short)]
    short &= ~dips | np.append(False, short[:-1]) | np.append(short[1:], False)
    if not short.any():
        x = np.concatenate([[0.0], np.repeat(times, 2), [last]])
        return np.stack([x, np.repeat(levels, 2)], axis=1), np.repeat(levels, 2)
    x = np.linspace(0.0, last, max(round(12 * last / window), 2))
    first, at, after = (np.searchsorted(times, x + part * window, "right") for part in (-0.5, 0.0, 0.5))
    bounds = np.stack([first, after + 1], axis=1).ravel()
    padded = np.append(levels, levels[-1])
    has_short, high, low = (
        pick.reduceat(values, bounds)[::2]
        for pick, values in ((np.logical_or, short), (np.maximum, padded), (np.minimum, padded))
    )
    return np.stack([x, np.where(has_short, high, levels[at])], axis=1), np.where(has_short, low, levels[at])
