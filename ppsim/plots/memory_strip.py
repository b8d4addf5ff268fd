"""Memory over time below the rows of a matplotlib chart: the fullest device as an area, the others as lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from ppsim.analysis.memory import memory_curves, peak_memory, usable_limit
from ppsim.base.units import ScaledUnit, axis_unit, three_digits
from ppsim.plots.chart_rows import POINTS
from ppsim.plots.figures import PIXELS, bare_axes, font_points
from ppsim.plots.marks import add_lines, second_of
from ppsim.plots.palette import Theme
from ppsim.plots.scale import number_text
from ppsim.timeline import TimelineColumns

_ACTIVATIONS = ScaledUnit(1.0, "")  # numbers alone: the legend names them
SHORT = "act."  # the same where a unit is needed
_HEADROOM = 1.12  # height of the strip over the limit or the highest peak
_CUT = 1.5  # of the limit: if peaks are higher, and others lower, the strip ends there
_SHORT = 3.0  # pixels: if a step of a curve is shorter, the curve is the highest level around each pixel
_APART = 13.0  # pixels between two ticks
LIMIT: dict[str, Any] = {"linewidth": 1.2 * POINTS, "linestyle": (0, (5, 2.5))}
OVER = 2.6  # pixels: width of the line over a limit


@dataclass(frozen=True)
class MemoryStrip:
    """The memory curves of several timelines in one unit, and the limit of a device if it is known.

    `top` is the highest level shown. `curves` has the times and levels of each timeline's devices; `levels[0]` comes
    before the first time.
    """

    name: str
    symbol: str
    limit: float | None
    top: float
    curves: list[list[tuple[np.ndarray, np.ndarray]]]

    @classmethod
    def of(cls, timelines: Sequence[TimelineColumns], memory: bool | str) -> MemoryStrip:
        """Return the strip in bytes if `memory` is "bytes", or True and all costs know them, else in activations."""
        unit = _ACTIVATIONS if memory == "activations" else cls.unit_of(timelines)
        in_bytes = unit is not _ACTIVATIONS
        known = [limit for one in timelines if (limit := usable_limit(one, in_bytes)) is not None]
        limit = known[0] * unit.factor if known else None
        curves = [[(times, levels * unit.factor) for times, levels in memory_curves(timeline, in_bytes)]
                  for timeline in timelines]  # fmt: skip
        peaks = [max(float(levels.max()) for _, levels in every) for every in curves]
        top, cut = max(limit or 0.0, *peaks) or 1.0, _CUT * (limit or np.inf)
        top = min(top, cut) if min(peaks) <= cut else top
        return cls("memory" if in_bytes else "activations", unit.symbol, limit, top, curves)

    @staticmethod
    def unit_of(timelines: Sequence[TimelineColumns]) -> ScaledUnit:
        """Return the unit of the timelines' peaks and limits: of bytes if all costs know them, else activations."""
        peaks = [peak_memory(timeline) for timeline in timelines]
        if any(peak is None for peak in peaks):
            return _ACTIVATIONS
        limits = [limit for limit in map(usable_limit, timelines) if limit is not None]
        return axis_unit(max([float(peak.max()) for peak in peaks if peak is not None] + limits[:1]), "bytes")

    @property
    def lowest(self) -> float:
        """Pixels of height that ticks at 0 and at the limit or the highest peak need."""
        return float(np.ceil(_APART * _HEADROOM * self.top / (self.limit or self.top)))

    def label(self, level: float) -> str:
        """Return a level with the unit."""
        return f"{level_text(level)} {self.symbol or SHORT}"

    def fullest(self, number: int) -> int:
        """Return the device of a timeline with the highest peak, the first of equal ones."""
        peaks = np.array([float(levels.max()) for _, levels in self.curves[number]])
        return int(np.argmax(peaks >= peaks.max() * (1 - 1e-9)))


def draw_memory(ax: Axes, strip: MemoryStrip, number: int, last: float, theme: Theme, others: bool) -> None:
    """Draw the strip of a timeline of `last` seconds: the fullest device, the `others` thin, and the limit.

    What is over the limit has its colour, and a stronger line.
    """
    style = {"linewidth": 0.0, "zorder": 2}
    every = [_steps(*curve, last, _SHORT / second_of(ax)) for curve in strip.curves[number]]
    step = every.pop(strip.fullest(number))
    if others:
        pale = min(0.45, 4 / max(len(every), 1))  # many would be a weave, brighter than the area
        add_lines(ax, every, colors=theme.edge, linewidths=0.7 * POINTS, alpha=pale, zorder=2.5)
    drawn = [(step, theme.memory, 1.3, 3.0)]
    ax.fill_between(step[:, 0], 0.0, step[:, 1], color=theme.memory, alpha=0.12, **style)
    if strip.limit is not None:
        if is_over(float(step[:, 1].max()), strip.limit):
            above = np.stack([step[:, 0], np.where(step[:, 1] > strip.limit, step[:, 1], np.nan)], axis=1)
            drawn.append((above, theme.limit, OVER, 3.5))
            if (beyond := step[step[:, 1] > strip.top * _HEADROOM, 0]).size:  # the column of peaks has its level
                words: Any = {"ha": "center", "va": "top", "color": theme.limit, "fontsize": font_points(14 * POINTS)}
                ax.text(float(beyond.mean()), strip.top * _HEADROOM, "↑", **words)
        ax.axhline(strip.limit, color=theme.limit, zorder=2.8, **LIMIT)  # behind a line that is close to it
    for points, colour, wide, order in drawn:
        add_lines(ax, [points], colors=colour, linewidths=wide * POINTS, zorder=order)
    ax.set_ylim(0.0, strip.top * _HEADROOM)
    _dress(ax, strip, float(step[:, 1].max()), theme)


def level_text(level: float) -> str:
    """Return a level in the strip's unit; it has three digits, or is a whole number with commas."""
    return number_text(float(three_digits(level).replace(",", "")))


def is_over(peak: float, limit: float | None) -> bool:
    """Return whether a peak is over the usable memory, beyond rounding."""
    return limit is not None and peak > limit * (1 + 1e-9)


def _dress(ax: Axes, strip: MemoryStrip, peak: float, theme: Theme) -> None:
    """Give the strip ticks at the limit or the highest peak of all, and where they have space at 0, half and a peak."""
    tall, highest = ax.get_window_extent().height / ax.figure.dpi * PIXELS, strip.limit or strip.top
    apart, shown = _APART * strip.top * _HEADROOM / tall, float(level_text(highest).replace(",", ""))
    of_half, of_all = (len(number_text(level).partition(".")[2]) for level in (shown / 2, shown))  # decimals
    has_half = of_half <= of_all and tall > 60 and highest > 2 * apart
    ticks = (0.0, highest > apart), (highest / 2, has_half), (highest, True)
    levels = [
        level for level, has_space in (*ticks, (peak, apart < peak - highest <= strip.top - highest)) if has_space
    ]
    ax.set_yticks(levels, [*map(level_text, levels[:-1]), strip.label(levels[-1])])
    bare_axes(ax, theme, 11 * POINTS)
    ax.spines[["left", "right", "top"]].set_visible(False)
    ax.spines["bottom"].set(color=theme.grid, linewidth=POINTS)


def _steps(times: np.ndarray, levels: np.ndarray, last: float, window: float) -> np.ndarray:
    """Return the points of a step curve from 0 to `last`, float64 (points, 2).

    `levels[0]` is before the first time. If a step is shorter than the window, points are the highest level in it.
    """
    at_once = (np.diff(times) == 0) & (levels[1:-1] <= np.maximum(levels[:-2], levels[2:]))
    times, levels = times[~np.append(at_once, False)], levels[~np.concatenate([[False], at_once, [False]])]
    times, levels = times[np.diff(levels) != 0], levels[np.append(True, np.diff(levels) != 0)]
    if not np.any(np.diff(times) < window):
        x = np.concatenate([[0.0], np.repeat(times, 2), [last]])
        return np.stack([x, np.repeat(levels, 2)], axis=1)
    x = np.linspace(0.0, last, max(round(12 * last / window), 2))
    first, after = (np.searchsorted(times, x + part * window, "right") for part in (-0.5, 0.5))
    bounds = np.stack([first, after + 1], axis=1).ravel()
    return np.stack([x, np.maximum.reduceat(np.append(levels, levels[-1]), bounds)[::2]], axis=1)
