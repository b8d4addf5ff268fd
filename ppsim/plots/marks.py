"""Axes, boxes, idle time and legend of a matplotlib Gantt chart."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgba_array
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ppsim.actions import Kind
from ppsim.analysis.bubbles import device_idle, iteration_time, makespan
from ppsim.base.units import percent_text, seconds_text, time_unit
from ppsim.plots import palette
from ppsim.plots.boxes import Boxes, legend_entries
from ppsim.plots.lanes import LANE_GROUND, STEPS, lane_edges
from ppsim.plots.scale import round_ticks

_LANES = 1.3  # times the height of a row where gathers or reductions have lanes in it
_TALLEST = 40.0  # inches of one chart: 6,000 pixels; few programs show a picture of more than 32,767
_MOST_VECTOR_BOXES = 20_000  # more are drawn as pixels in SVG and PDF too


def height(boxes: Boxes) -> float:
    """Return the height in inches of the rows of all devices; hundreds of rows are thin."""
    devices = boxes.timeline.schedule.devices
    rows = max(devices * min(0.27, max(0.11, 5.0 / devices)), 0.6) * (_LANES if boxes.laned else 1.0)
    return min(rows, _TALLEST)


def device_axis(ax: Axes, devices: int) -> None:
    """Give each device a row, device 0 on top, and name at most 24 of them."""
    ax.set_ylim(devices - 0.5, -0.5)
    ax.set_yticks(range(0, devices, 1 if devices <= 24 else 2 ** int(np.ceil(np.log2(devices / 24)))))
    ax.set_ylabel("device")
    ax.tick_params(axis="y", length=0)
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)


def time_axis(ax: Axes, last: float, most: int) -> str:
    """Show time from 0 to `last` seconds with at most `most` round ticks; return the symbol of their unit."""
    unit = time_unit(last)
    ax.set_xlim(0.0, last if last > 0 else 1.0)
    ax.set_xticks(round_ticks(last * unit.factor, most) / unit.factor)
    ax.xaxis.set_major_formatter(lambda seconds, _: f"{seconds * unit.factor:.10g}")
    return unit.symbol


def lay_out(ax: Axes) -> None:
    """Lay out the figure, so that its axes can be measured."""
    figure_of(ax).draw_without_rendering()


def figure_of(ax: Axes) -> Figure:
    """Return the whole figure that contains `ax`."""
    figure = ax.figure
    while not isinstance(figure, Figure):
        figure = figure.figure
    return figure


def points_per_second(ax: Axes) -> float:
    """Return the width of a second in points (1/72 inch)."""
    first, last = ax.get_xlim()
    return ax.get_window_extent().width / figure_of(ax).dpi * 72 / (last - first)


def add_boxes(ax: Axes, boxes: Boxes, points: float) -> None:
    """Draw one PolyCollection per kind over a pale band per device; actions of zero length become ticks."""
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
    """Draw a hatched band per device behind everything else; the visible part of it is idle time."""
    devices = np.arange(boxes.timeline.schedule.devices)
    ends = np.full(len(devices), makespan(boxes.timeline))
    hatched = {"hatch": "////", "edgecolors": palette.IDLE_HATCH} if colour == palette.IDLE else {"edgecolors": "none"}
    add_rectangles(ax, devices, 0.0 * ends, ends, edges, facecolors=colour, linewidths=0.0, zorder=1, **hatched)


def add_idle_shares(ax: Axes, boxes: Boxes) -> None:
    """Write at the end of each row its idle time, in percent of the makespan."""
    idle = device_idle(boxes.timeline) / (makespan(boxes.timeline) or 1.0)
    style: Any = {"transform": ax.get_yaxis_transform(), "ha": "left", "fontsize": 6.5, "color": palette.INK}
    rows = [int(row) for row in ax.get_yticks() if 0 <= row < len(idle)]
    for row in rows:
        ax.text(1.005, row, f"{percent_text(float(idle[row]))}{' idle' * (row == rows[0])}", va="center", **style)


def add_rectangles(
    ax: Axes, device: np.ndarray, start: np.ndarray, end: np.ndarray, edges: tuple[float, float], **style: Any
) -> None:
    """Draw a rectangle per span; `edges` are its top and bottom within the device's row."""
    x = np.stack([start, end, end, start], axis=1)
    y = device[:, None] + np.array(edges)[[0, 0, 1, 1]]
    corners: Any = np.stack([x, y], axis=2)
    ax.add_collection(PolyCollection(corners, **style), autolim=False)


def add_lines(ax: Axes, times: np.ndarray, rows: np.ndarray, **style: Any) -> None:
    """Draw a line from the first to the second time and row of each entry of (lines, 2)."""
    segments: Any = np.stack([times, rows], axis=2)
    ax.add_collection(LineCollection(segments, **{"zorder": 3, **style}), autolim=False)


def add_lanes(ax: Axes, boxes: Boxes, points: float) -> None:
    """Draw gathers, reductions, copies and collectives on their lanes, and optimizer steps among the actions."""
    for part in boxes.lanes:
        edges = lane_edges(part, boxes.lanes)
        if part.sort != STEPS:
            _add_ground(ax, boxes, edges, LANE_GROUND)
        add_rectangles(
            ax, part.device, part.start, part.end, edges, facecolors=part.colour,
            edgecolors="white" if np.median(part.length) * points > 5 else "none", linewidths=0.4,
            rasterized=len(part) > _MOST_VECTOR_BOXES, zorder=2.5,
        )  # fmt: skip


def add_ends(axes: Sequence[Axes], every: Sequence[Boxes], differences: Sequence[str], longest: float) -> None:
    """Mark the end of each timeline of a comparison, with the difference of its step if there is space, or its cut."""
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
    """Return whether a timeline is cut, or ends so late that no number fits after it."""
    return makespan(boxes.timeline) > 0.92 * longest


def relative_step_text(boxes: Boxes, first: Boxes) -> str:
    """Return the step time relative to the first timeline of the group, as text; empty for the first itself."""
    step = iteration_time(first.timeline)
    if boxes is first or not step > 0:
        return ""
    return percent_text(iteration_time(boxes.timeline) / step - 1.0, signed=True)


def _add_cut(ax: Axes, at: float, end: float) -> None:
    """Draw a torn edge at the end of the axis, and write above it when the timeline ends."""
    rows = np.linspace(*ax.get_ylim(), 4 * len(ax.get_yticks()) + 1)
    tear = at * (1.0 - 0.006 * (np.arange(len(rows)) % 2))
    ax.fill_betweenx(rows, tear, at * 1.01, color="white", linewidth=0.0, zorder=6)
    ax.plot(tear, rows, color=palette.INK, linewidth=1.0, zorder=7)
    words = f"cut here: goes on to {seconds_text(end)}"
    ax.annotate(words, (1, 1), (0, 4), "axes fraction", "offset points", ha="right", fontsize=7.5, fontweight="bold")


def add_legend(ax: Axes, every: Sequence[Boxes], transfers: bool, critical: bool) -> Legend:
    """Add the legend of kinds, idle time, lanes and lines, outside the data."""
    handles: list[Any] = [_swatch(colour, text) for colour, text in legend_entries(every)]
    names = [text for _, text in legend_entries(every)]
    if transfers:
        for colour, name in ((palette.TRANSFER_FORWARD, "forward"), (palette.TRANSFER_BACKWARD, "backward")):
            handles.append(Line2D([], [], color=colour, linewidth=0.8))
            names.append(f"{name} transfer")
    if any(len(boxes.timeline.schedule.evicted) for boxes in every):
        handles.append(Line2D([], [], color=palette.INK, linestyle=(0, (2, 1.5)), marker="v", markersize=3.5))
        names.append("evicted to another device, and back")
    if critical:
        handles.append(Line2D([], [], color=palette.CRITICAL, linewidth=1.6))
        names.append("critical path")
    return place_legend(figure_of(ax), handles, names)


def _swatch(colour: str, text: str) -> Any:
    """Return the picture of a legend's entry: idle time hatched, an OVERLAP_F_B slot in the colours of its parts."""
    if text == palette.IDLE_TITLE:
        return Patch(facecolor=colour, edgecolor=palette.IDLE_HATCH, linewidth=0.0, hatch="//////")
    if text == palette.TITLES[Kind.OVERLAP_F_B]:
        return tuple(Patch(facecolor=palette.COLOURS[part]) for part in (Kind.F, Kind.B))
    return Patch(facecolor=colour)


def place_legend(figure: Figure, handles: list[Any], names: list[str]) -> Legend:
    """Place a legend below the charts, in as many columns as fit; wrap the text of a single column that is too wide."""
    room = figure.bbox.width - 0.1 * figure.dpi
    columns = len(handles)
    legend = _legend(figure, handles, names, columns)
    while (wide := legend.get_window_extent().width) > room and columns > 1:
        legend.remove()
        columns -= 1
        legend = _legend(figure, handles, names, columns)
    if wide > room:
        texts = legend.get_texts()
        letters = max(int(max(len(text.get_text()) for text in texts) * room / wide) - 4, 8)
        for text in texts:
            text.set_text(textwrap.fill(text.get_text(), letters))
    return legend


def _legend(figure: Figure, handles: list[Any], names: list[str], columns: int) -> Legend:
    return figure.legend(
        handles, names, loc="outside lower center", ncols=columns, frameon=False, fontsize=7, handlelength=1.4,
        columnspacing=1.4, handler_map={tuple: HandlerTuple(ndivide=None, pad=0.0)},
    )  # fmt: skip
