"""The elements of a matplotlib Gantt chart: axes, boxes, numbers, lanes, lines, idle time and legend."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
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
from matplotlib.patheffects import Normal, withStroke

from ppsim.actions import Kind
from ppsim.analysis.bubbles import device_idle, iteration_time, makespan
from ppsim.analysis.critical_path import critical_nodes
from ppsim.base.errors import ConfigError
from ppsim.base.units import percent_text, seconds_text, time_unit
from ppsim.plan.host_copies import OFFLOADS, RELOADS
from ppsim.plots import palette
from ppsim.plots.boxes import Boxes, halves, legend_entries
from ppsim.plots.lanes import LANE_GROUND, STEPS, LaneSpans, Spans, lane_edges
from ppsim.plots.scale import every_kth, roomy_rows, round_ticks

_LANES = 1.3  # relative height of a row that contains lanes
_TALLEST = 40.0  # inches of one chart: 6,000 pixels; few programs show pictures higher than 32,767 pixels
_MAX_VECTOR_BOXES = 20_000  # more are drawn as pixels in SVG and PDF too
DIGIT_POINTS = 4.0  # width of a digit at _LABEL_SIZE
_LABEL_SIZE, _SMALLEST_LABEL, _KTH_LABEL = 6.5, 4.5, 5.0  # points
_DIGIT_HEIGHT = 0.78  # fraction of the label size, with a margin
_MAX_LABELS = 5_000
_NARROWEST_COUNTED = 2.0  # points; if short boxes are narrower, not even every k-th number is written
_ALONG = 0.88  # fraction of a box's height, below its number, at which the line of the critical path runs


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


def time_axis(ax: Axes, last: float, max_ticks: int) -> str:
    """Show time from 0 to `last` seconds with at most `max_ticks` round ticks; return the symbol of their unit."""
    unit = time_unit(last)
    ax.set_xlim(0.0, last if last > 0 else 1.0)
    ax.set_xticks(round_ticks(last * unit.factor, max_ticks) / unit.factor)
    ax.xaxis.set_major_formatter(lambda seconds, _: f"{seconds * unit.factor:.10g}")
    return unit.symbol


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
    """Draw one PolyCollection per kind over a pale band per device, and actions of zero length as ticks."""
    _add_ground(ax, boxes, boxes.band, palette.IDLE)
    long = boxes.length > 0
    edge = float(np.clip(np.median(boxes.length[long]) * points / 10, 0.0, 0.6)) if long.any() else 0.0
    for kind, mine, band in boxes.parts(long):
        add_rectangles(
            ax, boxes.device[mine], boxes.start[mine], boxes.end[mine], band,
            facecolors=to_rgba_array(boxes.colours[kind])[boxes.shade[mine] if boxes.shades > 1 else slice(None)],
            edgecolors="white" if edge >= 0.12 else "none", linewidths=edge if edge >= 0.12 else 0.0,
            rasterized=len(boxes) > _MAX_VECTOR_BOXES, zorder=2,
        )  # fmt: skip
    instants = np.flatnonzero(~long)
    if len(instants):
        times = np.stack([boxes.start[instants]] * 2, axis=1)
        rows = boxes.device[instants, None] + np.array(boxes.band)
        colours = [palette.COLOURS[Kind(kind)] for kind in boxes.kind[instants]]
        add_lines(ax, times, rows, colors=colours, linewidths=0.8)


def _add_ground(ax: Axes, boxes: Boxes, edges: tuple[float, float], colour: str) -> None:
    """Draw a band per device behind everything else; its visible part is idle time, hatched."""
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
    for lane in boxes.lanes:
        edges = lane_edges(lane, boxes.lanes)
        if lane.sort != STEPS:
            _add_ground(ax, boxes, edges, LANE_GROUND)
        add_rectangles(
            ax, lane.device, lane.start, lane.end, edges, facecolors=lane.colour,
            edgecolors="white" if np.median(lane.length) * points > 5 else "none", linewidths=0.4,
            rasterized=len(lane) > _MAX_VECTOR_BOXES, zorder=2.5,
        )  # fmt: skip


@dataclass(frozen=True)
class _Labels:
    """The labels of the boxes `mine`, centred in the `band` of their rows; `part` is 1 for the second part of slots."""

    mine: np.ndarray
    part: int
    band: tuple[float, float]
    texts: np.ndarray

    @property
    def widths(self) -> np.ndarray:
        return _widths(self.texts)


def add_labels(ax: Axes, boxes: Boxes, points: float) -> None:
    """Write microbatch numbers, at one size for the whole chart.

    Every box gets a number, upright if boxes are narrow. In rows whose boxes are narrower still, every k-th microbatch
    gets one, or none does.
    """
    drawn = np.flatnonzero(boxes.length > 0)
    bands = [(drawn[~boxes.slot[drawn]], 0, boxes.band)]
    bands += [(drawn[boxes.slot[drawn]], part, half) for part, half in enumerate(halves(boxes.band))]
    every = [
        _Labels(mine, part, band, np.array([boxes.number(row) for row in (boxes.row[mine] + part).tolist()]))
        for mine, part, band in bands
        if len(mine)
    ]
    rows = np.zeros(boxes.timeline.schedule.devices, bool)
    for upright in (False, True) if every else ():
        if not rows.any():
            rows = _label_rows(ax, boxes, every, points, upright)
    for labels in every:
        _label_every_kth(ax, boxes, labels, points, ~rows)


def _label_rows(ax: Axes, boxes: Boxes, every: list[_Labels], points: float, upright: bool) -> np.ndarray:
    """Number all boxes of the rows that have space for all numbers, if most rows have; return these rows (bool)."""
    size = min(_label_size(ax, boxes, labels.band, 0.75) for labels in every)
    if upright:  # a turned label is as tall as its text is wide
        size = min(_label_size(ax, boxes, labels.band, 0.95 / labels.widths.max()) for labels in every)
    widths = np.concatenate(
        [np.full(len(labels.mine), _DIGIT_HEIGHT) if upright else labels.widths for labels in every]
    )
    spans = np.concatenate([labels.mine for labels in every])
    room = boxes.length[spans] * points - 1.0
    size = float(np.clip(np.quantile(room / widths, 0.05), 0.0, size))
    fits = widths * max(size, _SMALLEST_LABEL) <= room + 1e-9
    numbered = roomy_rows(boxes.device[spans], fits, boxes.timeline.schedule.devices)
    if size < _SMALLEST_LABEL and upright:
        return np.zeros_like(numbered)
    shown = np.split(numbered[boxes.device[spans]] & fits, np.cumsum([len(labels.mine) for labels in every])[:-1])
    for labels, seen in zip(every, shown, strict=True):
        grounds = [boxes.colour(box, labels.part) for box in labels.mine[seen].tolist()]
        inks = map(palette.label_colour, grounds)
        style = {"rotation": 90 if upright else 0, "fontsize": max(size, _SMALLEST_LABEL)}
        _write(ax, boxes, labels.mine[seen], labels.texts[seen], labels.band, inks, **style)
    return numbered


def _label_every_kth(ax: Axes, boxes: Boxes, labels: _Labels, points: float, rows: np.ndarray) -> None:
    """Write the numbers of every k-th microbatch in the `rows` (bool), unless boxes are too low or too narrow."""
    mine, schedule = labels.mine, boxes.timeline.schedule
    too_low = _label_size(ax, boxes, labels.band, 0.95) < _KTH_LABEL
    if too_low or np.quantile(boxes.length[mine], 0.25) * points < _NARROWEST_COUNTED:
        return
    microbatch = schedule.microbatch[boxes.row[mine] + labels.part] // schedule.slices
    middle = (boxes.start[mine] + boxes.length[mine] / 2) * points
    shown = every_kth(boxes.device[mine], middle, labels.widths * _KTH_LABEL + 1.4, microbatch, rows)
    halo = {"path_effects": [withStroke(linewidth=1.4, foreground="white")], "fontsize": _KTH_LABEL}
    _write(ax, boxes, mine[shown], labels.texts[shown], labels.band, [palette.INK] * len(shown), **halo)


def add_lane_labels(ax: Axes, boxes: Boxes, lane: LaneSpans, points: float) -> None:
    """Write the stages on the spans of a lane, if there is space for all of them."""
    edges = lane_edges(lane, boxes.lanes)
    size = _label_size(ax, boxes, edges, 0.95)
    texts = np.array([lane.label(span) for span in range(len(lane))])
    if size >= _SMALLEST_LABEL and np.all(_widths(texts) * size <= lane.length * points - 1.0):
        inks = [palette.label_colour(lane.colour)] * len(lane)
        _write(ax, lane, np.arange(len(lane)), texts, edges, inks, fontsize=size)


def _label_size(ax: Axes, boxes: Boxes, edges: tuple[float, float], fraction: float) -> float:
    """Return the size in points of labels that fill this fraction of the height between `edges` of a device's row."""
    row = ax.get_window_extent().height / figure_of(ax).dpi * 72 / boxes.timeline.schedule.devices
    return min(_LABEL_SIZE, row * (edges[1] - edges[0]) * fraction)


def _widths(texts: np.ndarray) -> np.ndarray:
    """Return the widths of labels, relative to their size."""
    return np.char.str_len(texts) * DIGIT_POINTS / _LABEL_SIZE


def _write(
    ax: Axes, spans: Spans, shown: np.ndarray, texts: np.ndarray, edges: tuple[float, float], inks: Iterable[str],
    **style: Any,
) -> None:  # fmt: skip
    """Write a text in the middle of each span in `shown`; write none if there are too many."""
    if len(shown) > _MAX_LABELS:
        return
    middles = spans.start[shown] + spans.length[shown] / 2
    rows = spans.device[shown] + sum(edges) / 2
    style |= {"ha": "center", "va": "center" if style.get("rotation") else "center_baseline", "zorder": 4}
    for x, y, text, ink in zip(middles.tolist(), rows.tolist(), texts.tolist(), inks, strict=True):
        ax.text(x, y, text, color=ink, clip_on=True, **style)


def add_transfers(ax: Axes, boxes: Boxes) -> None:
    """Draw each transfer as a line, from the sender when it starts to the receiver when it ends."""
    timeline, (top, bottom) = boxes.timeline, boxes.band
    plan, schedule = timeline.plan, timeline.schedule
    consumer = np.flatnonzero(plan.remote)
    origin = float(timeline.device_start.min())
    times = np.stack([timeline.transfer_start[consumer], timeline.transfer_end[consumer]], axis=1) - origin
    rows = np.stack([schedule.device[plan.source[consumer]], schedule.device[consumer]], axis=1).astype(np.float64)
    # Long lines, such as from the last device to the first, are behind the boxes: no line crosses a label.
    far = np.abs(rows[:, 0] - rows[:, 1]) > 1
    rows += np.where(rows[:, ::-1] > rows, bottom, top)
    forward = schedule.kind[consumer] == Kind.F
    for same_way, colour in ((forward, palette.TRANSFER_FORWARD), (~forward, palette.TRANSFER_BACKWARD)):
        for chosen, layer in ((same_way & ~far, 3), (same_way & far, 1.5)):
            if not chosen.any():
                continue
            style: Any = {"colors": colour, "linewidths": 0.6, "alpha": 0.9, "capstyle": "round", "zorder": layer}
            add_lines(ax, times[chosen], rows[chosen], **style)


def add_evictions(ax: Axes, boxes: Boxes) -> None:
    """Draw each move of an evicted activation as a line, out to the other device or back."""
    timeline, copies = boxes.timeline, boxes.timeline.plan.copies
    if copies is None or not np.any(copies.host >= 0):
        return
    origin, style = float(timeline.device_start.min()), {"color": palette.INK, "zorder": 3.5}
    for way, arrow in ((OFFLOADS, "v"), (RELOADS, "^")):
        mine = np.flatnonzero((copies.host >= 0) & (copies.way == way))
        times = np.stack([timeline.copy_start[mine], timeline.copy_end[mine]], axis=1) - origin
        ends = np.stack([copies.device[mine], copies.host[mine]], axis=1).astype(np.float64)
        rows = ends if way == OFFLOADS else ends[:, ::-1]
        add_lines(ax, times, rows, linestyles=(0, (2, 1.5)), linewidths=0.9, **style)
        ax.scatter(times[:, 1], rows[:, 1], s=11, marker=arrow, linewidths=0.0, **style)


def add_critical_path(ax: Axes, boxes: Boxes, actions: Any) -> None:
    """Outline and join `actions` (indices into `timeline.start`), or the actions of the critical path for True."""
    mine = _boxes_of_path(boxes) if actions is True else _boxes_of_actions(boxes, actions)
    add_rectangles(
        ax, boxes.device[mine], boxes.start[mine], boxes.end[mine], boxes.band, facecolors="none",
        edgecolors=palette.CRITICAL, linewidths=0.9, zorder=6,
    )  # fmt: skip
    top, bottom = boxes.band
    row = boxes.device[mine] + top + _ALONG * (bottom - top)
    corners = np.stack([boxes.start[mine], row, boxes.end[mine], row], axis=1).reshape(-1, 2, 2)
    through = [np.concatenate([here, there[:1]]) for here, there in pairwise(corners)]
    if through:
        through[-1] = np.concatenate([through[-1], corners[-1, 1:]])
    casing = [withStroke(linewidth=3.2, foreground="white"), Normal()]
    style: Any = {"colors": palette.CRITICAL, "linewidths": 1.6, "zorder": 6.5, "path_effects": casing}
    ax.add_collection(LineCollection(through, joinstyle="round", **style), autolim=False)


def _boxes_of_path(boxes: Boxes) -> np.ndarray:
    """Return the boxes on the critical path, in its order; the second of a slot's two boxes may be missing."""
    _, chain = critical_nodes(boxes.timeline)
    rows = np.array([node for node in chain if node < len(boxes.timeline.row_start)])
    mine = np.searchsorted(boxes.row, rows, "right") - 1  # one box shows both rows of a timed slot
    return mine[np.append(True, np.diff(mine) != 0)]


def _boxes_of_actions(boxes: Boxes, actions: Any) -> np.ndarray:
    """Return the boxes of the given actions, in time order; ConfigError if `actions` is not a list of them."""
    wanted, count = np.array(actions, object), len(boxes.timeline.start)
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        wanted = np.asarray(actions)
    if wanted.dtype.kind not in "iu" or wanted.ndim != 1 or np.any((wanted < 0) | (wanted >= count)):
        raise ConfigError(f"critical_path must be True or a list of action numbers from 0 to {count - 1}")
    mine = np.flatnonzero(np.isin(boxes.action, wanted))
    return mine[np.lexsort((boxes.end[mine], boxes.start[mine]))]


def add_ends(axes: Sequence[Axes], every: Sequence[Boxes], differences: Sequence[str], longest: float) -> None:
    """Mark the end of each timeline of a comparison with its step difference, if there is space; mark cut timelines."""
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
    """Return whether a timeline is cut, or ends so near the right edge that no number fits after it."""
    return makespan(boxes.timeline) > 0.92 * longest


def relative_step_text(boxes: Boxes, first: Boxes) -> str:
    """Return the step time relative to the first timeline of the group, as text; empty for the first itself."""
    step = iteration_time(first.timeline)
    if boxes is first or not step > 0:
        return ""
    return percent_text(iteration_time(boxes.timeline) / step - 1.0, signed=True)


def _add_cut(ax: Axes, at: float, end: float) -> None:
    """Draw a torn edge at the right end of the axis; write above it at what time the timeline ends."""
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
    """Return the symbol of a legend entry: idle time is hatched, a slot has the colours of its two parts."""
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
