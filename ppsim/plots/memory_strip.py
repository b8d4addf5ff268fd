"""Memory over time below the rows of a matplotlib chart: the fullest device as an area, the others as thin lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from ppsim.analysis.bubbles import makespan
from ppsim.analysis.memory import memory_curves, peak_memory, usable_limit
from ppsim.base.units import ScaledUnit, axis_unit
from ppsim.plots.chart_rows import POINTS
from ppsim.plots.figures import bare_axes, font_points
from ppsim.plots.palette import Theme
from ppsim.plots.scale import round_ticks
from ppsim.timeline import TimelineColumns

_HEADROOM = 1.12  # height of the strip over the limit or the highest peak


@dataclass(frozen=True)
class MemoryStrip:
    """The memory curves of several timelines in one unit, and the usable memory of a device if it is known.

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
        known = [limit for limit in map(usable_limit, timelines) if limit is not None and in_bytes]
        unit = axis_unit(max([highest, *known[:1]]), "bytes" if in_bytes else "activations")
        limit = known[0] * unit.factor if known else None
        scaled = [[(times, levels * unit.factor) for times, levels in every] for every in curves]
        top = max(highest * unit.factor, limit or 0.0) or 1.0
        lengths = [makespan(timeline) for timeline in timelines]
        return cls(
            "memory" if in_bytes else "activations", unit.symbol if in_bytes else "", limit, top, lengths, scaled
        )

    @staticmethod
    def unit_of(timelines: Sequence[TimelineColumns]) -> ScaledUnit:
        """Return the unit of the timelines' peaks and limits: of bytes if all costs know them, else activations."""
        peaks = [peak_memory(timeline) for timeline in timelines]
        if any(peak is None for peak in peaks):
            return ScaledUnit(1.0, "act.")
        limits = [limit for limit in map(usable_limit, timelines) if limit is not None]
        return axis_unit(max([float(peak.max()) for peak in peaks if peak is not None] + limits[:1]), "bytes")

    def amount(self, value: float) -> str:
        """Return an amount with its unit, bytes in three digits."""
        return f"{value:.{3 if self.symbol else 4}g} {self.symbol}".strip()


def draw_memory(
    ax: Axes, strip: MemoryStrip, number: int, theme: Theme, *, others: bool, beside: bool, is_first: bool
) -> None:
    """Draw the strip of one timeline: curves, limit, ticks at 0 and the limit, and the peak in words.

    `others`: devices with less memory than the fullest have thin lines, as their rows are high.
    """
    curves, last = strip.curves[number], strip.lengths[number]
    peaks = [float(levels.max()) for _, levels in curves]
    fullest = int(np.argmax(peaks))
    if others:
        lines = [_steps(*curve, last) for device, curve in enumerate(curves) if device != fullest]
        style: Any = {"colors": theme.memory, "alpha": 0.55, "linewidths": 0.7 * POINTS, "zorder": 2}
        ax.add_collection(LineCollection(lines, **style), autolim=False)
    step = _steps(*curves[fullest], last)
    ax.fill_between(step[:, 0], step[:, 1], color=theme.memory, alpha=0.12, linewidth=0.0, zorder=2.5)
    style = {"colors": theme.memory, "linewidths": 1.3 * POINTS, "zorder": 3}
    ax.add_collection(LineCollection([step], **style), autolim=False)
    ax.set_ylim(0.0, strip.top * _HEADROOM)
    if strip.limit is not None:
        dashes: Any = (0, (5, 2.5))
        ax.axhline(strip.limit, color=theme.limit, linewidth=1.2 * POINTS, linestyle=dashes, zorder=4)
    _dress(ax, strip, theme)
    _write(ax, strip, peaks[fullest], fullest, theme, beside, is_first)


def is_over(peak: float, limit: float | None) -> bool:
    """Return whether a peak is over the usable memory, beyond rounding."""
    return limit is not None and peak > limit * (1 + 1e-9)


def _dress(ax: Axes, strip: MemoryStrip, theme: Theme) -> None:
    """Give the strip round ticks below the limit, which words name, or else ticks at 0, the top and half of it."""
    tall = ax.get_window_extent().height / ax.figure.dpi * 72 / POINTS
    levels = [0.0, strip.top / 2, strip.top] if tall > 60 else [0.0, strip.top]
    if strip.limit is not None:
        levels = round_ticks(0.9 * strip.limit, len(levels)).tolist()
    ax.set_yticks(levels, [strip.amount(level).removesuffix(strip.symbol).strip() for level in levels])
    bare_axes(ax, theme, 10 * POINTS)
    for name, side in ax.spines.items():
        side.set_visible(name == "bottom")
        side.set(color=theme.grid, linewidth=POINTS)


def _write(ax: Axes, strip: MemoryStrip, peak: float, fullest: int, theme: Theme, beside: bool, is_first: bool) -> None:
    """Write the limit once, and the peak with its device; a peak over the limit is bold in its colour."""
    over = is_over(peak, strip.limit)
    peak_text = f"peak {strip.amount(peak)} on device {fullest}"
    style: Any = {"fontsize": font_points(11 * POINTS), "annotation_clip": False, "textcoords": "offset points"}
    strong: Any = {"fontweight": "bold", "color": theme.limit} if over else {"color": theme.quiet}
    right, side = ((1, 7), "left") if beside else ((1, 0), "right")
    if strip.limit is not None and is_first:
        words = f"usable {strip.amount(strip.limit)}"
        level = strip.limit / (strip.top * _HEADROOM)
        up: Any = {"va": "center"} if beside else {"va": "bottom"}
        place = (right[1], 0 if beside else 1)
        ax.annotate(words, (1, level), place, "axes fraction", color=theme.limit, ha=side, **up, **style)
    if beside or over:
        ax.annotate(peak_text, (1, 0), (right[1], 1), "axes fraction", ha=side, va="bottom", **strong, **style)


def _steps(times: np.ndarray, levels: np.ndarray, last: float) -> np.ndarray:
    """Return the points of a step curve from 0 to `last`, float64 (points, 2); `levels[0]` is before the first time."""
    x = np.concatenate([[0.0], np.repeat(times, 2), [last]])
    return np.stack([x, np.repeat(levels, 2)], axis=1)
