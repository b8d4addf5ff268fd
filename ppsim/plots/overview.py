"""Overviews by matplotlib of timelines with too many boxes: busy fractions, with fill and drain enlarged."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize

from ppsim.analysis.bubbles import makespan
from ppsim.base.units import percent_text, time_unit
from ppsim.plots import palette
from ppsim.plots.boxes import Boxes
from ppsim.plots.marks import figure_of
from ppsim.plots.scale import round_ticks
from ppsim.plots.shares import busy_shares, steady_part
from ppsim.timeline import TimelineColumns

BUSY = LinearSegmentedColormap.from_list("busy", palette.BUSY)
_BINS = 1500  # time bins; a third each for fill, steady part and drain
_MAX_ROWS = 1024
_NARROWEST = 0.9  # points; if a quarter of the boxes is narrower, fractions are drawn


def too_narrow(boxes: Boxes, points: float) -> bool:
    """Return whether a quarter of more than 2,000 boxes would be narrower than a pixel or two."""
    lengths = boxes.length[boxes.length > 0]
    return bool(len(lengths) > 2000 and float(np.quantile(lengths, 0.25)) * points < _NARROWEST)


def add_busy_shares(ax: Axes, boxes: Boxes, ends: Sequence[float]) -> None:
    """Draw each device's row as the fraction of its time in which it computes, on one scale from idle to busy.

    The parts of time between the `ends`, from `phases`, get equally many bins. With thousands of devices a row is the
    mean of successive devices.
    """
    devices = boxes.timeline.schedule.devices
    each = -(-devices // _MAX_ROWS)
    first = np.arange(0, devices, each)
    last = np.minimum(first + each, devices) - 1
    edges = np.unique(np.minimum(time_edges(ends), makespan(boxes.timeline)))
    busy = busy_shares(boxes, edges, each)
    top, bottom = boxes.band if boxes.laned and each == 1 else (-0.5, 0.5)
    rows = np.stack([first + top, last + bottom], axis=1).ravel()
    between = np.full((2 * len(first) - 1, busy.shape[1]), np.nan)  # the gaps between rows show the lanes
    between[::2] = busy
    ax.pcolormesh(edges, rows, between, cmap=BUSY, vmin=0.0, vmax=1.0, zorder=2, rasterized=True)
    ax.hlines(
        last[:-1] + 0.5, 0.0, makespan(boxes.timeline), colors="white", linewidths=min(0.9, 300 / len(first)), zorder=3
    )


def time_edges(ends: Sequence[float]) -> np.ndarray:
    """Return the borders of bins of time in seconds, equally many in each part between the `ends`."""
    parts = [np.linspace(first, last, _BINS // (len(ends) - 1)) for first, last in pairwise(ends)]
    return np.unique(np.concatenate(parts))


def phases(timelines: Sequence[TimelineColumns], longest: float) -> list[float]:
    """Return the borders of fill, steady part and drain, seconds; only start and end unless most of the time is steady.

    For several timelines these are the last end of a fill and the first start of a drain, by `steady_part`.
    """
    filled, draining = zip(*map(steady_part, timelines), strict=True)
    begin, end = max(filled), min(draining)
    steady = begin > 0 and end < longest and end - begin > 0.5 * longest
    return [0.0, begin, end, longest] if steady else [0.0, longest]


def enlarge_ends(axes: Sequence[Axes], ends: Sequence[float]) -> None:
    """Give fill and drain most of the width of these axes, which share their time; mark the breaks with lines.

    `ends` come from `phases`; nothing is enlarged if they have no steady part.
    """
    if len(ends) != 4:
        return
    top = axes[0]
    positions = np.array([0.0, 0.36, 0.64, 1.0]) * ends[-1]

    def forward(seconds: Any) -> Any:
        return np.interp(seconds, ends, positions)

    def back(position: Any) -> Any:
        return np.interp(position, positions, ends)

    top.set_xscale("function", functions=(forward, back))
    unit = time_unit(ends[-1])
    ticks = [_ticks_within(first * unit.factor, last * unit.factor) for first, last in pairwise(ends)]
    top.set_xticks(np.concatenate(ticks) / unit.factor)
    top.xaxis.set_major_formatter(lambda seconds, _: f"{seconds * unit.factor:.10g}")
    top.set_xlim(0.0, ends[-1])
    for ax, border, (colour, wide) in product(axes, ends[1:3], (("white", 2.4), (palette.INK, 1.0))):
        ax.axvline(border, color=colour, linewidth=wide, linestyle=(0, (2, 2) if wide < 2 else (1, 0)), zorder=5)
    style: Any = {"transform": top.get_xaxis_transform(), "ha": "center", "va": "top", "fontsize": 6.5, "zorder": 6}
    style["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.85}
    names = ("fill", "steady part, time compressed", "drain" if len(axes) == 1 else "from the first drain on")
    for (first, last), name in zip(pairwise(ends), names, strict=True):
        top.text(back((forward(first) + forward(last)) / 2), 0.985, name, **style)


def _ticks_within(first: float, last: float) -> np.ndarray:
    """Return round ticks of one part of the axis, none near its end."""
    step = round_ticks(last - first, 7)[1]
    ticks = np.arange(np.ceil(first / step), last / step) * step
    return ticks[last - ticks > 0.08 * (last - first)]


def add_busy_scale(axes: Sequence[Axes]) -> None:
    """Replace the legend by the scale of `add_busy_shares`."""
    figure = figure_of(axes[0])
    for legend in figure.legends[:]:
        legend.remove()
    bar = figure.colorbar(
        ScalarMappable(Normalize(0.0, 1.0), BUSY), ax=list(axes), orientation="horizontal", aspect=60, fraction=0.04,
        shrink=0.5, pad=0.02, format=lambda fraction, _: percent_text(fraction, 0),
    )  # fmt: skip
    bar.set_label("part of its time in which a device computes; actions are too narrow to show")
