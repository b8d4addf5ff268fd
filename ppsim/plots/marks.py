"""The layers of a matplotlib Gantt chart: boxes, shares, labels, transfers, outlines and the legend."""

from __future__ import annotations

import contextlib
import textwrap
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ppsim.actions import Kind, is_backward
from ppsim.analysis.bubbles import device_idle, makespan
from ppsim.analysis.critical_path import critical_path
from ppsim.base.errors import ConfigError
from ppsim.base.units import percent_text, seconds_text, time_unit
from ppsim.plots import palette
from ppsim.plots.beside import LANE_GROUND, STEPS, Beside, Spans, lane
from ppsim.plots.boxes import Boxes, halves, legend_entries
from ppsim.plots.scale import round_ticks
from ppsim.plots.shares import kind_shares
from ppsim.timeline import TimelineColumns

BUSY = LinearSegmentedColormap.from_list("busy", ["#ccd2cb", "#a9b6c4", "#5d83c4", "#16305f"])
_BINS = 500  # of time in each of fill, steady part and drain
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
    edge = float(np.clip(np.median(boxes.length[long]) * points / 10, 0.0, 0.6)) if long.any() else 0.0
    for kind, mine, band in boxes.parts(long):
        _add_rectangles(
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
        _add_lines(ax, times, rows, colors=colours, linewidths=0.8)


def _add_ground(ax: Axes, boxes: Boxes, edges: tuple[float, float], colour: str) -> None:
    """A band a device, behind everything else; what of it is seen is idle, and hatched."""
    devices = np.arange(boxes.timeline.schedule.devices)
    ends = np.full(len(devices), makespan(boxes.timeline))
    hatched = {"hatch": "////", "edgecolors": palette.IDLE_HATCH} if colour == palette.IDLE else {"edgecolors": "none"}
    _add_rectangles(ax, devices, 0.0 * ends, ends, edges, facecolors=colour, linewidths=0.0, zorder=1, **hatched)


def add_idle_shares(ax: Axes, boxes: Boxes) -> None:
    """Each row ends with the idle part of its time, in percent of the makespan."""
    idle = device_idle(boxes.timeline) / (makespan(boxes.timeline) or 1.0)
    style: Any = {"transform": ax.get_yaxis_transform(), "ha": "left", "fontsize": 6.5, "color": palette.INK}
    rows = [int(row) for row in ax.get_yticks() if 0 <= row < len(idle)]
    for row in rows:
        ax.text(1.005, row, f"{percent_text(float(idle[row]))}{' idle' * (row == rows[0])}", va="center", **style)


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
    ax.add_collection(LineCollection(segments, **{"zorder": 3, **style}), autolim=False)


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


def add_busy_shares(ax: Axes, boxes: Boxes) -> None:
    """Each device's row as the part of its time in which it computes, on one scale from idle to busy."""
    ends, devices = phases(boxes.timeline), boxes.timeline.schedule.devices
    edges = np.unique(np.concatenate([np.linspace(first, last, _BINS) for first, last in pairwise(ends)]))
    busy = kind_shares(boxes, edges).sum(axis=2)
    top, bottom = boxes.band if boxes.laned else (-0.5, 0.5)
    rows = (np.arange(devices)[:, None] + np.array([top, bottom])).ravel()
    between = np.full((2 * devices - 1, busy.shape[1]), np.nan)  # where gathers and reductions have their lanes
    between[::2] = busy
    ax.pcolormesh(edges, rows, between, cmap=BUSY, vmin=0.0, vmax=1.0, zorder=2, rasterized=True)
    ax.hlines(np.arange(devices - 1) + 0.5, 0.0, ends[-1], colors="white", linewidths=0.9, zorder=3)


def phases(timeline: TimelineColumns) -> list[float]:
    """Borders of fill, steady part and drain, seconds from the first start; the whole where nothing is steady.

    The fill ends when every device has begun its first backward, the drain begins when some device has ended its last
    forward.
    """
    schedule, origin = timeline.schedule, float(timeline.device_start.min())
    length = makespan(timeline)
    first_backward, last_forward = 0.0, length
    for device in range(schedule.devices):
        rows = schedule.rows(device)
        kind = schedule.kind[rows]
        backward, forward = np.flatnonzero(is_backward(kind)), np.flatnonzero(kind == Kind.F)
        if len(backward) and len(forward):
            first_backward = max(first_backward, float(timeline.row_start[rows][backward[0]]) - origin)
            last_forward = min(last_forward, float(timeline.row_end[rows][forward[-1]]) - origin)
    steady = last_forward - first_backward
    return [0.0, first_backward, last_forward, length] if steady > 0.5 * length else [0.0, length]


def enlarge_ends(ax: Axes, timeline: TimelineColumns) -> bool:
    """Give fill and drain most of the width where the steady part would take nearly all; lines mark the breaks."""
    ends = phases(timeline)
    if len(ends) != 4 or ends[1] <= 0 or ends[3] <= ends[2]:
        return False
    places = np.array([0.0, 0.36, 0.64, 1.0]) * ends[-1]

    def forward(seconds: Any) -> Any:
        return np.interp(seconds, ends, places)

    def back(place: Any) -> Any:
        return np.interp(place, places, ends)

    ax.set_xscale("function", functions=(forward, back))
    unit = time_unit(ends[-1])
    ticks = [np.linspace(first, last, 4)[:-1] for first, last in pairwise(ends)]
    ax.set_xticks(np.append(np.concatenate(ticks), ends[-1]))
    ax.xaxis.set_major_formatter(lambda seconds, _: f"{seconds * unit.factor:.4g}")
    ax.set_xlim(0.0, ends[-1])
    for border in ends[1:3]:
        ax.axvline(border, color=palette.INK, linewidth=1.0, linestyle=(0, (2, 2)), zorder=5)
    style: Any = {"transform": ax.get_xaxis_transform(), "ha": "center", "va": "top", "fontsize": 6.5, "zorder": 6}
    style["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.85}
    for (first, last), name in zip(pairwise(ends), ("fill", "steady part, time compressed", "drain"), strict=True):
        ax.text(back((forward(first) + forward(last)) / 2), 0.985, name, **style)
    return True


def add_busy_scale(axes: Sequence[Axes]) -> None:
    """The scale of `add_busy_shares` in the legend's place."""
    figure = figure_of(axes[0])
    for legend in figure.legends[:]:
        legend.remove()
    bar = figure.colorbar(
        ScalarMappable(Normalize(0.0, 1.0), BUSY), ax=list(axes), orientation="horizontal", aspect=60, fraction=0.04,
        pad=0.02, format=lambda part, _: percent_text(part, 0),
    )  # fmt: skip
    bar.set_label("part of its time in which a device computes; actions are too narrow to show")


def add_ends(axes: Sequence[Axes], every: Sequence[Boxes], longest: float) -> None:
    """Where each timeline of a comparison ends, how far that is from the first one, and which one is cut."""
    first = makespan(every[0].timeline)
    for ax, boxes in zip(axes, every, strict=True):
        ax.grid(axis="x", color="#d9dcd9", linewidth=0.5, zorder=0)
        ax.set_axisbelow(True)
        end, middle = makespan(boxes.timeline), (boxes.timeline.schedule.devices - 1) / 2
        if end > longest:
            style: Any = {"color": "white", "fontsize": 7.0, "ha": "right", "va": "center", "zorder": 7}
            box = {"facecolor": palette.INK, "edgecolor": "none", "pad": 2.5}
            ax.text(longest, middle, f"cut here: goes on to {seconds_text(end)}", bbox=box, **style)
            continue
        ax.axvline(end, color=palette.INK, linewidth=0.9, zorder=5)
        if boxes is not every[0] and first > 0:
            difference = percent_text(end / first - 1.0, signed=True)
            side: Any = {"ha": "left"} if end < 0.92 * longest else {"ha": "right"}
            box = {"facecolor": "white", "edgecolor": "none", "pad": 1.0, "alpha": 0.85}
            space = "  " if side["ha"] == "left" else ""
            ax.text(end, middle, f"{space}{difference}", fontsize=7.5, va="center", zorder=6, bbox=box, **side)


def add_labels(ax: Axes, boxes: Boxes, points: float) -> None:
    """Microbatch numbers, at one size for the whole chart: in every box of a device's row, or in none of the row."""
    drawn = np.flatnonzero(boxes.length > 0)
    bands = [(drawn[~boxes.slot[drawn]], 0, boxes.band)]
    bands += [(drawn[boxes.slot[drawn]], part, half) for part, half in enumerate(halves(boxes.band))]
    bands = [(mine, part, band) for mine, part, band in bands if len(mine)]
    if not bands:
        return
    size = min(_label_size(ax, boxes, band, 0.75) for _, _, band in bands)
    texts = [_numbers(boxes, mine, part) for mine, part, _ in bands]
    wide = np.concatenate([_widths(labels) for labels in texts])
    spans = np.concatenate([mine for mine, _, _ in bands])
    room = boxes.length[spans] * points - 1.0
    size = float(np.clip(np.quantile(room / wide, 0.05), 0.0, size))
    fits = wide * max(size, _SMALLEST_LABEL) <= room
    count = np.bincount(boxes.device[spans], minlength=boxes.timeline.schedule.devices)
    whole = np.bincount(boxes.device[spans], fits, len(count)) >= _MOST_OF_A_ROW * count
    if size < _SMALLEST_LABEL and not whole.any():
        return
    size = max(size, _SMALLEST_LABEL)
    for (mine, part, band), labels in zip(bands, texts, strict=True):
        shown = whole[boxes.device[mine]] & (_widths(labels) * size <= boxes.length[mine] * points - 1.0)
        chosen = [text for text, seen in zip(labels, shown, strict=True) if seen]
        grounds = [boxes.colour(box, part) for box in mine[shown].tolist()]
        _write(ax, boxes, mine[shown], chosen, band, size, grounds)


def _numbers(boxes: Boxes, mine: np.ndarray, part: int) -> list[str]:
    """The microbatch of each box; of a slot that of its first or second part."""
    return [str(number) for number in boxes.timeline.schedule.microbatch[boxes.row[mine] + part].tolist()]


def add_transfers(ax: Axes, boxes: Boxes) -> None:
    """A line a transfer, from the sender when it starts to the receiver when it ends."""
    timeline, (top, bottom) = boxes.timeline, boxes.band
    plan, schedule = timeline.plan, timeline.schedule
    consumer = np.flatnonzero(plan.remote)
    origin = float(timeline.device_start.min())
    times = np.stack([timeline.transfer_start[consumer], timeline.transfer_end[consumer]], axis=1) - origin
    rows = np.stack([schedule.device[plan.source[consumer]], schedule.device[consumer]], axis=1).astype(np.float64)
    far = np.abs(rows[:, 0] - rows[:, 1]) > 1  # such as round the loop: behind the boxes, so that no label is crossed
    rows += np.where(rows[:, ::-1] > rows, bottom, top)
    forward = schedule.kind[consumer] == Kind.F
    for same_way, colour in ((forward, palette.TRANSFER_FORWARD), (~forward, palette.TRANSFER_BACKWARD)):
        for chosen, layer in ((same_way & ~far, 3), (same_way & far, 1.5)):
            if not chosen.any():
                continue
            style: Any = {"colors": colour, "linewidths": 0.6, "alpha": 0.9, "capstyle": "round", "zorder": layer}
            _add_lines(ax, times[chosen], rows[chosen], **style)


def add_outline(ax: Axes, boxes: Boxes, actions: Any) -> None:
    """Outline the actions given (indices into `timeline.start`), or the critical path for True; a line joins them."""
    if actions is True:
        actions = critical_path(boxes.timeline)
    wanted, count = np.array(actions, object), len(boxes.timeline.start)
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        wanted = np.asarray(actions)
    if wanted.dtype.kind not in "iu" or wanted.ndim != 1 or np.any((wanted < 0) | (wanted >= count)):
        raise ConfigError(f"critical_path must be True or a list of action numbers from 0 to {count - 1}")
    mine = np.flatnonzero(np.isin(boxes.action, wanted))
    mine = mine[np.lexsort((boxes.end[mine], boxes.start[mine]))]
    _add_rectangles(
        ax, boxes.device[mine], boxes.start[mine], boxes.end[mine], boxes.band, facecolors="none",
        edgecolors=palette.CRITICAL, linewidths=1.1, zorder=6,
    )  # fmt: skip
    _add_lines(
        ax, np.stack([boxes.end[mine[:-1]], boxes.start[mine[1:]]], axis=1),
        np.stack([boxes.device[mine[:-1]], boxes.device[mine[1:]]], axis=1).astype(np.float64),
        colors=palette.CRITICAL, linewidths=1.1, zorder=6,
    )  # fmt: skip


def add_legend(ax: Axes, every: Sequence[Boxes], transfers: bool, critical: bool) -> Legend:
    """Kinds, idle time and what else is drawn, outside the data."""
    handles: list[Any] = [_swatch(colour, text) for colour, text in legend_entries(every)]
    names = [text for _, text in legend_entries(every)]
    if transfers:
        for colour, name in ((palette.TRANSFER_FORWARD, "forward"), (palette.TRANSFER_BACKWARD, "backward")):
            handles.append(Line2D([], [], color=colour, linewidth=0.8))
            names.append(f"{name} transfer")
    if critical:
        handles.append(Patch(facecolor="none", edgecolor=palette.CRITICAL, linewidth=1.1))
        names.append("critical path")
    return _place_legend(figure_of(ax), handles, names)


def _swatch(colour: str, text: str) -> Any:
    """The picture of a legend's entry: idle time hatched, an OVERLAP_F_B slot in the colours of its parts."""
    if text == palette.IDLE_TITLE:
        return Patch(facecolor=colour, edgecolor=palette.IDLE_HATCH, linewidth=0.0, hatch="//////")
    if text == palette.TITLES[Kind.OVERLAP_F_B]:
        return tuple(Patch(facecolor=palette.COLOURS[part]) for part in (Kind.F, Kind.B))
    return Patch(facecolor=colour)


def _place_legend(figure: Figure, handles: list[Any], names: list[str]) -> Legend:
    """Below the charts, in as many columns as the figure is wide; text of one column that is too wide is wrapped."""
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
