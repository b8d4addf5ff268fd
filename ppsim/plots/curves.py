"""Memory over time under a Gantt chart: a step curve per device, the fullest device named, and the capacity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.collections import LineCollection
from matplotlib.ticker import MaxNLocator

from ppsim.analysis.bubbles import makespan
from ppsim.analysis.memory import activations_over_time, memory_over_time, peak_memory, static_memory
from ppsim.base.units import axis_unit
from ppsim.plots.overview import phases, time_edges
from ppsim.timeline import TimelineColumns

if TYPE_CHECKING:
    from matplotlib.axes import Axes


_FULLEST, _OTHERS, _TOO_MUCH = "#2853a3", "#9a9fa6", "#c64027"
_MOST_CURVES = 16  # more devices than that are one area from the emptiest to the fullest
_CLOSE = 0.2  # of the axis: the height of a label of two lines


def draw_memory(ax: Axes, timeline: TimelineColumns, memory: bool | str) -> None:
    """Draw bytes if `memory` is "bytes", or is True and the costs know them; live activations otherwise.

    The fullest device is in colour and named; the others are grey, many devices as one area. A line shows a device's
    memory, if it is known; a peak above it is red.
    """
    in_bytes = memory == "bytes" or (memory is True and peak_memory(timeline) is not None)
    curves, starts = _curves(timeline, in_bytes)
    peaks = np.array([levels.max(initial=0.0) for _, levels in curves])
    capacity = timeline.table.workload.memory if in_bytes and timeline.table.workload else None
    highest = max(float(peaks.max()), capacity or 0.0)
    factor, symbol = axis_unit(highest, "bytes" if in_bytes else "microbatches")
    origin = float(timeline.device_start.min())
    held = [
        (times - origin, np.append(first, levels) * factor)
        for (times, levels), first in zip(curves, starts, strict=True)
    ]
    fullest, too_much = int(peaks.argmax()), capacity is not None and float(peaks.max()) > capacity
    others = [curve for device, curve in enumerate(held) if device != fullest]
    colour = _TOO_MUCH if too_much else _FULLEST
    if len(held) > _MOST_CURVES:
        edges = time_edges(phases([timeline], makespan(timeline)))
        least, most = _extremes(others, edges)
        ax.fill_between(edges[:-1], least, most, step="post", color=_OTHERS, alpha=0.45, linewidth=0.0, zorder=2)
    else:
        steps = [_steps(*curve, makespan(timeline)) for curve in others]
        ax.add_collection(LineCollection(steps, colors=_OTHERS, linewidths=0.6, zorder=2), autolim=False)
    step = _steps(*held[fullest], makespan(timeline))
    ax.add_collection(LineCollection([step], colors=colour, linewidths=1.4, zorder=3), autolim=False)
    ax.set_ylim(0.0, highest * factor * 1.08 if highest > 0 else 1.0)
    ax.set_ylabel(f"memory ({symbol})" if in_bytes else "live activations\n(microbatches,\none device share)")
    ax.yaxis.set_major_locator(MaxNLocator(5, integer=not in_bytes))
    unit = f" {symbol}" if in_bytes else ""
    ax.tick_params(length=2.5)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    labels = [(peaks[fullest] * factor, f"device {fullest}: {peaks[fullest] * factor:.4g}{unit}", colour)]
    if capacity is not None:
        ax.axhline(capacity * factor, color="#222222", linewidth=0.9, linestyle=(0, (4, 2)), zorder=4)
        words = "does not fit" if too_much else "one device"
        labels.append((capacity * factor, f"{capacity * factor:.4g} {symbol}\n{words}", "#222222"))
    _write_at_the_right(ax, labels)


def _curves(timeline: TimelineColumns, in_bytes: bool) -> tuple[list[tuple[np.ndarray, np.ndarray]], np.ndarray]:
    """Return times and levels of each device, and the level at which each starts."""
    devices, static = timeline.schedule.devices, static_memory(timeline)
    curve_of = memory_over_time if in_bytes else activations_over_time
    starts = static.sum(axis=0) if in_bytes and static is not None else np.zeros(devices)
    return [curve_of(timeline, device) for device in range(devices)], starts


def _steps(times: np.ndarray, levels: np.ndarray, last: float) -> np.ndarray:
    """Return the points of a step curve from 0 to `last`, float64 (points, 2); `levels[0]` is before the first time."""
    x = np.concatenate([[0.0], np.repeat(times, 2), [last]])
    return np.stack([x, np.repeat(levels, 2)], axis=1)


def _extremes(curves: Sequence[tuple[np.ndarray, np.ndarray]], edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return minimum and maximum of all step curves (as for `_steps`) in each bin of time, float64 (bins,) each."""
    least, most = np.full(len(edges) - 1, np.inf), np.full(len(edges) - 1, -np.inf)
    for times, levels in curves:
        first, last = np.searchsorted(times, edges[:-1], side="right"), np.searchsorted(times, edges[1:])
        begin, within, parts = levels[first], np.append(levels[1:], 0.0), np.stack([first, last], axis=1).ravel()
        changes = last > first
        least = np.minimum(least, np.minimum(begin, np.where(changes, np.minimum.reduceat(within, parts)[::2], begin)))
        most = np.maximum(most, np.maximum(begin, np.where(changes, np.maximum.reduceat(within, parts)[::2], begin)))
    return least, most


def _write_at_the_right(ax: Axes, labels: list[tuple[float, str, str]]) -> None:
    """Write one or two labels (level, text, colour); if two are too close, one goes below its level and one above."""
    labels = sorted(labels)
    close = labels[-1][0] - labels[0][0] < _CLOSE * ax.get_ylim()[1]
    sides = ("top", "bottom") if close and len(labels) > 1 else ("center", "center")
    for (level, text, colour), side in zip(labels, sides, strict=False):
        ax.text(1.005, level, text, transform=ax.get_yaxis_transform(), va=side, fontsize=6.5, color=colour)
