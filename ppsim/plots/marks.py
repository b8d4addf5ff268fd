"""The layers of a matplotlib Gantt chart: boxes, shares, labels, transfers, outlines and the legend."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgba_array
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ppsim.actions import Kind
from ppsim.analysis.bubbles import makespan
from ppsim.analysis.critical_path import critical_path
from ppsim.base.errors import ConfigError
from ppsim.base.units import time_unit
from ppsim.plots import palette
from ppsim.plots.beside import LANE_GROUND, STEPS, Beside, Spans, lane
from ppsim.plots.boxes import Boxes, legend_entries
from ppsim.plots.scale import round_ticks
from ppsim.plots.shares import share_codes, share_colours, share_edges

DIGIT_POINTS = 4.0  # width of a digit of a label at its usual size
_LABEL_SIZE, _SMALLEST_LABEL = 6.5, 4.5
_LANES = 1.3  # times the height of a row where gathers or reductions have lanes in it
_NARROWEST = 0.8  # points; where a quarter of the boxes is narrower, shares are drawn
_MOST_VECTOR_BOXES = 20_000  # more are drawn as pixels in SVG and PDF too
_MOST_LABELS = 5_000
_MOST_OF_A_ROW = 0.9  # of a device's boxes of one kind must have room for their labels, or none of them is labelled


def height(boxes: Boxes) -> float:
    """Inches for the rows of all devices."""
    devices = boxes.timeline.schedule.devices
    return max(devices * min(0.27, max(0.11, 5.0 / devices)), 0.6) * (_LANES if boxes.laned else 1.0)


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


def too_narrow(boxes: Boxes, points: float) -> bool:
    """Whether many boxes would be narrower than a pixel or two."""
    lengths = boxes.length[boxes.length > 0]
    return bool(len(lengths) > 2000 and float(np.quantile(lengths, 0.25)) * points < _NARROWEST)


def add_boxes(ax: Axes, boxes: Boxes, points: float) -> None:
    """One PolyCollection a kind over a pale band a device; actions of zero length become ticks."""
    _add_ground(ax, boxes, boxes.band, palette.IDLE)
    long = boxes.length > 0
    edge = float(np.clip(np.median(boxes.length[long]) * points / 12, 0.0, 0.6)) if long.any() else 0.0
    for kind in boxes.kinds:
        mine = np.flatnonzero((boxes.kind == kind) & long)
        if len(mine):
            _add_rectangles(
                ax, boxes.device[mine], boxes.start[mine], boxes.end[mine], boxes.band,
                facecolors=to_rgba_array(boxes.colours[kind])[boxes.shade[mine] if boxes.shades > 1 else slice(None)],
                edgecolors="white" if edge >= 0.2 else "none", linewidths=edge if edge >= 0.2 else 0.0,
                rasterized=len(boxes) > _MOST_VECTOR_BOXES, zorder=2,
            )  # fmt: skip
    instants = np.flatnonzero(~long)
    if len(instants):
        times = np.stack([boxes.start[instants]] * 2, axis=1)
        rows = boxes.device[instants, None] + np.array(boxes.band)
        colours = [palette.COLOURS[Kind(kind)] for kind in boxes.kind[instants]]
        _add_lines(ax, times, rows, colors=colours, linewidths=0.8)


def _add_ground(ax: Axes, boxes: Boxes, edges: tuple[float, float], colour: str) -> None:
    """A pale band a device, behind everything else; what of it is seen is idle."""
    devices = np.arange(boxes.timeline.schedule.devices)
    ends = np.full(len(devices), makespan(boxes.timeline))
    _add_rectangles(ax, devices, 0.0 * ends, ends, edges, facecolors=colour, edgecolors="none", zorder=1)


def _add_rectangles(
    ax: Axes, device: np.ndarray, start: np.ndarray, end: np.ndarray, edges: tuple[float, float], **style: Any
) -> None:
    """A rectangle a span; `edges` are its top and bottom within the device's row."""
    x = np.stack([start, end, end, start], axis=1)
    y = device[:, None] + np.array(edges)[[0, 0, 1, 1]]
    corners: Any = np.stack([x, y], axis=2)
    ax.add_collection(PolyCollection(corners, **style), autolim=False)


def _add_lines(ax: Axes, times: np.ndarray, rows: np.ndarray, **style: Any) -> None:
    """A line from the first to the second time and row of each line of (lines, 2)."""
    segments: Any = np.stack([times, rows], axis=2)
    ax.add_collection(LineCollection(segments, zorder=3, **style), autolim=False)


def add_beside(ax: Axes, boxes: Boxes, points: float, labels: bool) -> None:
    """Gathers and reductions on their lanes and optimizer steps among the actions, labelled where that fits."""
    several = boxes.timeline.schedule.num_stages > boxes.timeline.schedule.devices
    for part in boxes.beside:
        edges = lane(part, boxes.beside)
        if part.sort != STEPS:
            _add_ground(ax, boxes, edges, LANE_GROUND)
        _add_rectangles(
            ax, part.device, part.start, part.end, edges, facecolors=part.colour,
            edgecolors="white" if np.median(part.length) * points > 5 else "none", linewidths=0.4,
            rasterized=len(part) > _MOST_VECTOR_BOXES, zorder=2.5,
        )  # fmt: skip
        if labels and (several or part.sort == STEPS):
            _add_beside_labels(ax, boxes, part, points)


def _add_beside_labels(ax: Axes, boxes: Boxes, part: Beside, points: float) -> None:
    """The stages on their spans where there is room for all of them."""
    edges = lane(part, boxes.beside)
    size = _label_size(ax, boxes, edges, 0.95)
    texts = [part.label(span) for span in range(len(part))]
    if size >= _SMALLEST_LABEL and np.all(_widths(texts) * size <= part.length * points - 1.0):
        _write(ax, part, np.arange(len(part)), texts, edges, size, [part.colour] * len(part))


def _label_size(ax: Axes, boxes: Boxes, edges: tuple[float, float], part: float) -> float:
    """Size of labels that fill `part` of the height between `edges` of a device's row, in points."""
    row = ax.get_window_extent().height / figure_of(ax).dpi * 72 / boxes.timeline.schedule.devices
    return min(_LABEL_SIZE, row * (edges[1] - edges[0]) * part)


def _widths(texts: list[str]) -> np.ndarray:
    """Widths of labels a point of their size."""
    return np.array([len(text) for text in texts]) * DIGIT_POINTS / _LABEL_SIZE


def _write(
    ax: Axes, spans: Spans, shown: np.ndarray, texts: list[str], edges: tuple[float, float], size: float,
    grounds: list[str],
) -> None:  # fmt: skip
    """A text in the middle of each span in `shown`, black or white as its ground needs it; none where too many."""
    if len(shown) > _MOST_LABELS:
        return
    middles = spans.start[shown] + spans.length[shown] / 2
    rows = spans.device[shown] + sum(edges) / 2
    for x, y, text, ground in zip(middles.tolist(), rows.tolist(), texts, grounds, strict=True):
        ax.text(
            x, y, text, fontsize=size, color=palette.label_colour(ground), ha="center", va="center_baseline", zorder=4,
            clip_on=True,
        )  # fmt: skip


def add_shares(ax: Axes, boxes: Boxes) -> None:
    """Each device's row as stacked shares of its time: how much goes to each kind, idle time on top."""
    length, devices, last = makespan(boxes.timeline), boxes.timeline.schedule.devices, ax.get_xlim()[1]
    edges = share_edges(boxes)
    colours = np.array([palette.channels(colour) for colour in share_colours(boxes)], np.uint8)
    ax.imshow(
        colours[share_codes(boxes, edges)], extent=(0.0, float(edges[-1]), devices - 0.5, -0.5), aspect="auto",
        interpolation="nearest", zorder=2, origin="upper",
    )  # fmt: skip
    ax.set_xlim(0.0, last)
    ax.hlines(np.arange(devices - 1) + 0.5, 0.0, length, colors="white", linewidths=0.9, zorder=3)


def add_share_note(ax: Axes) -> None:
    """Say what the rows show where they show shares."""
    ax.set_xlabel(f"{ax.get_xlabel()}; actions are too narrow to show: a row is the part of its time in each kind")


def add_labels(ax: Axes, boxes: Boxes, points: float) -> None:
    """Microbatch numbers, at one size for the whole chart, in the boxes that have room for them.

    Where many of a device's boxes of one kind have none, none of them is labelled: half a row of numbers misleads.
    """
    size = _label_size(ax, boxes, boxes.band, 0.75)
    drawn = np.flatnonzero(boxes.length > 0)
    if size < _SMALLEST_LABEL or not len(drawn):
        return
    texts = np.array([boxes.short_label(box) for box in drawn.tolist()])
    wide, room = _widths(texts.tolist()), boxes.length[drawn] * points - 1.0
    size = float(np.clip(np.quantile(room / wide, 0.05), _SMALLEST_LABEL, size))
    _, row = np.unique(np.stack([boxes.device[drawn], boxes.kind[drawn]]), axis=1, return_inverse=True)
    fits = wide * size <= room
    fits &= (np.bincount(row, fits) >= _MOST_OF_A_ROW * np.bincount(row))[row]
    shown = drawn[fits]
    grounds = [boxes.colour(box) for box in shown.tolist()]
    _write(ax, boxes, shown, texts[fits].tolist(), boxes.band, size, grounds)


def add_transfers(ax: Axes, boxes: Boxes) -> None:
    """A line a transfer, from the sender when it starts to the receiver when it ends."""
    timeline, (top, bottom) = boxes.timeline, boxes.band
    plan, schedule = timeline.plan, timeline.schedule
    consumer = np.flatnonzero(plan.remote)
    origin = float(timeline.device_start.min())
    times = np.stack([timeline.transfer_start[consumer], timeline.transfer_end[consumer]], axis=1) - origin
    rows = np.stack([schedule.device[plan.source[consumer]], schedule.device[consumer]], axis=1).astype(np.float64)
    rows += np.where(rows[:, ::-1] > rows, bottom, top)
    forward = schedule.kind[consumer] == Kind.F
    for chosen, colour in ((forward, palette.TRANSFER_FORWARD), (~forward, palette.TRANSFER_BACKWARD)):
        _add_lines(ax, times[chosen], rows[chosen], colors=colour, linewidths=0.6, alpha=0.9, capstyle="round")


def add_outline(ax: Axes, boxes: Boxes, actions: Any) -> None:
    """Outline the actions given (indices into `timeline.start`), or the critical path for True."""
    if actions is True:
        actions = critical_path(boxes.timeline)
    wanted, count = np.array(actions, object), len(boxes.timeline.start)
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        wanted = np.asarray(actions)
    if wanted.dtype.kind not in "iu" or wanted.ndim != 1 or np.any((wanted < 0) | (wanted >= count)):
        raise ConfigError(f"critical_path must be True or a list of action numbers from 0 to {count - 1}")
    mine = np.flatnonzero(np.isin(boxes.action, wanted))
    _add_rectangles(
        ax, boxes.device[mine], boxes.start[mine], boxes.end[mine], boxes.band, facecolors="none",
        edgecolors=palette.CRITICAL, linewidths=1.1, zorder=6,
    )  # fmt: skip


def add_legend(ax: Axes, every: Sequence[Boxes], transfers: bool, critical: bool) -> Legend:
    """Kinds, idle time and what else is drawn, outside the data."""
    handles: list[Any] = [
        Patch(facecolor=colour, edgecolor="#bbbbbb", linewidth=0.5 * (text == palette.IDLE_TITLE), label=text)
        for colour, text in legend_entries(every)
    ]
    if transfers:
        for colour, name in ((palette.TRANSFER_FORWARD, "forward"), (palette.TRANSFER_BACKWARD, "backward")):
            handles.append(Line2D([], [], color=colour, linewidth=0.8, label=f"{name} transfer"))
    if critical:
        handles.append(Patch(facecolor="none", edgecolor=palette.CRITICAL, linewidth=1.1, label="critical path"))
    return _place_legend(figure_of(ax), handles)


def _place_legend(figure: Figure, handles: list[Any]) -> Legend:
    """Below the charts, in as many columns as the figure is wide; text of one column that is too wide is wrapped."""
    room = figure.bbox.width - 0.1 * figure.dpi
    columns = len(handles)
    legend = _legend(figure, handles, columns)
    while (wide := legend.get_window_extent().width) > room and columns > 1:
        legend.remove()
        columns -= 1
        legend = _legend(figure, handles, columns)
    if wide > room:
        texts = legend.get_texts()
        letters = max(int(max(len(text.get_text()) for text in texts) * room / wide) - 4, 8)
        for text in texts:
            text.set_text(textwrap.fill(text.get_text(), letters))
    return legend


def _legend(figure: Figure, handles: list[Any], columns: int) -> Legend:
    return figure.legend(
        handles=handles, loc="outside lower center", ncols=columns, frameon=False, fontsize=7, handlelength=1.2,
        columnspacing=1.4,
    )  # fmt: skip
