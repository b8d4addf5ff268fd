"""Axes, boxes and idle time of a matplotlib Gantt chart."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgba_array
from matplotlib.figure import Figure

from ppsim.actions import Kind
from ppsim.analysis.bubbles import device_idle, iteration_time, makespan
from ppsim.base.units import percent_text, seconds_text, time_unit
from ppsim.plots import palette
from ppsim.plots.beside import LANE_GROUND, STEPS, lane
from ppsim.plots.boxes import Boxes
from ppsim.plots.scale import round_ticks

_LANES = 1.3  # times the height of a row where gathers or reductions have lanes in it
_TALLEST = 40.0  # inches of one chart: 6,000 pixels; few programs show a picture of more than 32,767
_MOST_VECTOR_BOXES = 20_000  # more are drawn as pixels in SVG and PDF too


def height(boxes: Boxes) -> float:
    """Inches for the rows of all devices, which are thin where there are hundreds."""
    devices = boxes.timeline.schedule.devices
    rows = max(devices * min(0.27, max(0.11, 5.0 / devices)), 0.6) * (_LANES if boxes.laned else 1.0)
    return min(rows, _TALLEST)


def device_axis(ax: Axes, devices: int) -> None:
    """A row a device, device 0 on top; at most 24 of them are named."""
    ax.set_ylim(devices - 0.5, -0.5)
    ax.set_yticks(range(0, devices, 1 if devices <= 24 else 2 ** int(np.ceil(np.log2(devices / 24)))))
    ax.set_ylabel("device")
    ax.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)


def time_axis(ax: Axes, last: float, most: int) -> str:
    """Time from 0 to `last` seconds with at most `most` round ticks; returns the symbol of their unit."""
    unit = time_unit(last)
    ax.set_xlim(0.0, last if last > 0 else 1.0)
    ax.set_xticks(round_ticks(last * unit.factor, most) / unit.factor)
    ax.xaxis.set_major_formatter(lambda seconds, _: f"{seconds * unit.factor:.10g}")
    return unit.symbol


def settle(ax: Axes) -> None:
    """Lay the figure out, so that what follows can measure its axes."""
    figure_of(ax).draw_without_rendering()


def figure_of(ax: Axes) -> Figure:
    """The whole figure that `ax` stands in."""
    figure = ax.figure
    while not isinstance(figure, Figure):
        figure = figure.figure
    return figure


def points_per_second(ax: Axes) -> float:
    """Points (1/72 inch) that a second takes."""
    first, last = ax.get_xlim()
    return ax.get_window_extent().width / figure_of(ax).dpi * 72 / (last - first)


def add_boxes(ax: Axes, boxes: Boxes, points: float) -> None:
    """One PolyCollection a kind over a pale band a device; actions of zero length become ticks."""
    _add_ground(ax, boxes, boxes.band, palette.IDLE)
    long = boxes.length > 0
    edge = float(np.clip(np.median(boxes.length[long]) * points / 10, 0.0, 0.6)) if long.any() else 0.0
    for kind, mine, band in boxes.parts(long):
        add_rectangles(
            ax, boxes.device[mine], boxes.start[mine], boxes.end[mine], band,
            facecolors=to_rgba_array(boxes.colours[kind])[boxes.shade[mine] if boxes.shades > 1 else slice(None)],
            edgecolors="white" if edge >= 0.12 else "none", linewidths=edge if edge >= 0.12 else 0.0,
            rasterized=len(boxes) > _MOST_VECTOR_BOXES, zorder=2,
        )  # fmt: skip
    instants = np.flatnonzero(~long)
    if len(instants):
        times = np.stack([boxes.start[instants]] * 2, axis=1)
        rows = boxes.device[instants, None] + np.array(boxes.band)
        colours = [palette.COLOURS[Kind(kind)] for kind in boxes.kind[instants]]
        add_lines(ax, times, rows, colors=colours, linewidths=0.8)


def _add_ground(ax: Axes, boxes: Boxes, edges: tuple[float, float], colour: str) -> None:
    """A band a device, behind everything else; what of it is seen is idle, and hatched."""
    devices = np.arange(boxes.timeline.schedule.devices)
    ends = np.full(len(devices), makespan(boxes.timeline))
    hatched = {"hatch": "////", "edgecolors": palette.IDLE_HATCH} if colour == palette.IDLE else {"edgecolors": "none"}
    add_rectangles(ax, devices, 0.0 * ends, ends, edges, facecolors=colour, linewidths=0.0, zorder=1, **hatched)


def add_idle_shares(ax: Axes, boxes: Boxes) -> None:
    """Each row ends with the idle part of its time, in percent of the makespan."""
    idle = device_idle(boxes.timeline) / (makespan(boxes.timeline) or 1.0)
    style: Any = {"transform": ax.get_yaxis_transform(), "ha": "left", "fontsize": 6.5, "color": palette.INK}
    rows = [int(row) for row in ax.get_yticks() if 0 <= row < len(idle)]
    for row in rows:
        ax.text(1.005, row, f"{percent_text(float(idle[row]))}{' idle' * (row == rows[0])}", va="center", **style)


def add_rectangles(
    ax: Axes, device: np.ndarray, start: np.ndarray, end: np.ndarray, edges: tuple[float, float], **style: Any
) -> None:
    """A rectangle a span; `edges` are its top and bottom within the device's row."""
    x = np.stack([start, end, end, start], axis=1)
    y = device[:, None] + np.array(edges)[[0, 0, 1, 1]]
    corners: Any = np.stack([x, y], axis=2)
    ax.add_collection(PolyCollection(corners, **style), autolim=False)


def add_lines(ax: Axes, times: np.ndarray, rows: np.ndarray, **style: Any) -> None:
    """A line from the first to the second time and row of each line of (lines, 2)."""
    segments: Any = np.stack([times, rows], axis=2)
    ax.add_collection(LineCollection(segments, **{"zorder": 3, **style}), autolim=False)


def add_beside(ax: Axes, boxes: Boxes, points: float) -> None:
    """Gathers and reductions on their lanes and optimizer steps among the actions."""
    for part in boxes.beside:
        edges = lane(part, boxes.beside)
        if part.sort != STEPS:
            _add_ground(ax, boxes, edges, LANE_GROUND)
        add_rectangles(
            ax, part.device, part.start, part.end, edges, facecolors=part.colour,
            edgecolors="white" if np.median(part.length) * points > 5 else "none", linewidths=0.4,
            rasterized=len(part) > _MOST_VECTOR_BOXES, zorder=2.5,
        )  # fmt: skip


def add_ends(axes: Sequence[Axes], every: Sequence[Boxes], differences: Sequence[str], longest: float) -> None:
    """Where each timeline of a comparison ends, by how much its step differs where that has room, and which is cut."""
    for ax, boxes, differs in zip(axes, every, differences, strict=True):
        ax.grid(axis="x", color="#d9dcd9", linewidth=0.5, zorder=0)
        ax.set_axisbelow(True)
        end, middle = makespan(boxes.timeline), (boxes.timeline.schedule.devices - 1) / 2
        if end > longest:
            _add_cut(ax, longest, end)
            continue
        ax.axvline(end, color=palette.INK, linewidth=0.9, zorder=5)
        if not ends_late(boxes, longest):
            style: Any = {"textcoords": "offset points", "fontsize": 7.5, "va": "center", "zorder": 6}
            ax.annotate(differs, (end, middle), (5, 0), **style)


def ends_late(boxes: Boxes, longest: float) -> bool:
    """Whether there is no room for a number beside the end of a timeline, or it is cut."""
    return makespan(boxes.timeline) > 0.92 * longest


def difference(boxes: Boxes, first: Boxes) -> str:
    """By what part a step differs from that of the first timeline of its group; nothing for that one itself."""
    step = iteration_time(first.timeline)
    if boxes is first or not step > 0:
        return ""
    return percent_text(iteration_time(boxes.timeline) / step - 1.0, signed=True)


def _add_cut(ax: Axes, at: float, end: float) -> None:
    """A torn edge at the end of the axis, and above it where the timeline goes on to."""
    rows = np.linspace(*ax.get_ylim(), 4 * len(ax.get_yticks()) + 1)
    tear = at * (1.0 - 0.006 * (np.arange(len(rows)) % 2))
    ax.fill_betweenx(rows, tear, at * 1.01, color="white", linewidth=0.0, zorder=6)
    ax.plot(tear, rows, color=palette.INK, linewidth=1.0, zorder=7)
    words = f"cut here: goes on to {seconds_text(end)}"
    ax.annotate(words, (1, 1), (0, 4), "axes fraction", "offset points", ha="right", fontsize=7.5, fontweight="bold")
