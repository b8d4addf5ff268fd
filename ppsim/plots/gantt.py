"""Gantt charts by matplotlib, for papers and reports: PNG, SVG and PDF."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from ppsim.analysis.bubbles import makespan
from ppsim.analysis.memory import activations_over_time, memory_over_time, peak_memory, static_memory
from ppsim.base.errors import ConfigError, shown
from ppsim.base.rules import is_number
from ppsim.base.units import axis_unit
from ppsim.plots import marks, overview
from ppsim.plots.boxes import Boxes, headline, make_boxes, without_repeated_names
from ppsim.plots.lanes import STEPS
from ppsim.timeline import TimelineColumns

MAX_WIDTH = 200.0  # inches
_NARROW, _WIDE = 7.0, 15.0  # limits of the default width in inches: two columns of a paper, a wide screen
_MEMORY_HEIGHT = 1.5  # inches
_OUTLIER = 2.0  # a timeline longer than this times the second longest is cut
_MAX_TICKS = 12  # on the time axis
_TITLE_MARGINS, _TITLE_LINE = 0.5, 0.15  # inches: left and right of a title together; height of a title line
_AROUND = 0.55  # inches above and below the rows, without the legend
_FULLEST, _OTHERS, _TOO_MUCH = "#2853a3", "#9a9fa6", "#c64027"
_MAX_CURVES = 16  # more devices are drawn as one area from the emptiest to the fullest
_LABEL_HEIGHT = 0.2  # of a label of two lines, as a fraction of the axis
FONTS: Any = {
    "font.size": 8.0,
    "axes.titlesize": 8.5,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "ppsim",
    "text.usetex": False,  # LaTeX would read names as its commands, if the user had turned it on
}


class _RoundedLayout(ConstrainedLayoutEngine):
    """Layout by matplotlib's solver, rounded because its last digits differ between runs."""

    def execute(self, fig: Figure) -> None:
        """Lay out the figure."""
        super().execute(fig)
        for axes in fig.axes:
            left, bottom, width, height = np.round(axes.get_position(original=True).bounds, 9).tolist()
            axes.set_position((left, bottom, width, height), which="original")
            axes.set_in_layout(True)  # set_position has removed the axes from the layout


class Chart(Figure):
    """A figure that notebooks show without pyplot; the same chart always gives the same bytes."""

    def __init__(self, **options: Any):
        super().__init__(layout=_RoundedLayout(), **options)

    def _repr_png_(self) -> bytes:
        return rendered(self, "png", 120)


def draw(
    timeline: TimelineColumns,
    *,
    ax: Axes | None = None,
    width: float | None = None,
    memory: bool | str = False,
    transfers: bool = False,
    title: str | None = None,
    labels: bool | str = "auto",
    critical_path: Any = None,
    until: float | None = None,
) -> Figure:
    """Draw a Gantt chart as a matplotlib figure: a row per device from top to bottom, colour by kind, idle time pale.

    A box is an action, labelled with its microbatch if that fits. If actions are narrower than a pixel, each row shows
    the fraction of its time in which the device computes instead, with fill and drain enlarged. Weight gathers run
    along the top edge of a row, gradient reductions along its bottom edge; optimizer steps are among the actions.

    `timeline` is what to draw; the other options are those of `ppsim.Timeline.plot`. `savefig` writes the figure.

    Raises
    ------
    ConfigError
        For an invalid width or option.
    """
    _check(width, memory, labels, timeline)
    for name, value, kind, legal in (
        ("ax", ax, Axes, "matplotlib Axes"),
        ("transfers", transfers, bool, "True or False"),
        ("title", title, str, "text"),
    ):
        if value is not None and not isinstance(value, kind):
            raise ConfigError(f"{name}={shown(value)} must be {legal}")
    if until is not None and not (is_number(until) and 0 < until < float("inf")):
        raise ConfigError(f"until={shown(until)} is no end of the time axis; use seconds above 0")
    if ax is not None and memory:
        raise ConfigError("memory=... needs a figure of its own; leave ax out, or memory")
    boxes = make_boxes(timeline)
    critical = critical_path is not None and critical_path is not False
    with matplotlib.rc_context({} if ax is not None else FONTS):
        axes = [ax] if ax is not None else _new_axes([boxes], width, [_MEMORY_HEIGHT] * bool(memory))
        if memory:
            _draw_memory(axes[1], timeline, memory)
        longest = makespan(timeline) if until is None else until
        _draw_blocks(axes, [boxes], [title], labels, longest, transfers=transfers, critical=critical)
        if len(timeline.schedule.evicted):
            marks.add_evictions(axes[0], boxes)
        if transfers:
            marks.add_transfers(axes[0], boxes)
        if critical:
            marks.add_critical_path(axes[0], boxes, critical_path)
    return marks.figure_of(axes[0])


def draw_comparison(
    timelines: Sequence[TimelineColumns],
    *,
    width: float | None = None,
    titles: Sequence[str] | None = None,
    labels: bool | str = "auto",
    group: int | None = None,
) -> Figure:
    """Draw several Gantt charts on one time axis, one block per timeline, in the order given.

    Each block shows its step time relative to the first timeline of its group.

    `width`, `titles` and `labels` are options of `Comparison.plot`; `group` is the number of timelines in a group, such
    as 2 for pairs (default: all).

    Raises
    ------
    ConfigError
        For no timelines, a number of titles other than that of timelines, or a group below 1.
    """
    if not timelines:
        raise ConfigError("draw_comparison needs at least one timeline, got none")
    if titles is not None and len(titles) != len(timelines):
        raise ConfigError(f"titles lists {len(titles)} texts for {len(timelines)} timelines; give one each")
    if group is not None and not (type(group) is int and group > 0):
        raise ConfigError(f"group={shown(group)} must be a whole number of at least 1, such as 2 for pairs")
    for timeline in timelines:
        _check(width, False, labels, timeline)
    every = [make_boxes(timeline) for timeline in timelines]
    with matplotlib.rc_context(FONTS):
        axes = _new_axes(every, width)
        if titles is None:
            titles = [headline(timeline) for timeline in without_repeated_names(timelines)]
        _draw_blocks(axes, every, titles, labels, _shown_seconds(every), group or len(every))
    return marks.figure_of(axes[0])


def rendered(figure: Figure, form: str, dpi: float = 150) -> bytes:
    """Return the figure as a file of the format "png", "svg" or "pdf", without the date."""
    buffer = io.BytesIO()
    dateless = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[form]
    with matplotlib.rc_context(FONTS):
        figure.savefig(buffer, format=form, dpi=dpi, metadata=dateless)
    return buffer.getvalue()


def _check(width: Any, memory: Any, labels: Any, timeline: TimelineColumns) -> None:
    if width is not None and not (type(width) in (int, float) and 1 <= width <= MAX_WIDTH):
        raise ConfigError(f"width={shown(width)} is not a figure width; use a number of inches from 1 to {MAX_WIDTH:g}")
    if not isinstance(labels, bool) and not (isinstance(labels, str) and labels == "auto"):
        raise ConfigError(f"labels={shown(labels)} is not known; use 'auto', True or False")
    if not isinstance(memory, bool) and not (isinstance(memory, str) and memory in ("activations", "bytes")):
        raise ConfigError(f"memory={shown(memory)} is not known; use True, False, 'activations' or 'bytes'")
    if memory == "bytes" and peak_memory(timeline) is None:
        raise ConfigError(
            "memory='bytes' needs costs that say what is held (activation_bytes and weight_bytes); "
            "use memory='activations'"
        )


def _width(boxes: Boxes) -> float:
    """Return the width in inches, from `_NARROW` to `_WIDE`, at which the labels of most boxes fit."""
    lengths = boxes.length[boxes.length > 0]
    if not len(lengths):
        return _NARROW
    digits = len(str(int(boxes.microbatch.max())))
    per_box = (digits * marks.DIGIT_POINTS + 3) / 72
    short = np.quantile(lengths, 0.1)
    wanted = makespan(boxes.timeline) * per_box / max(short, np.finfo(float).tiny) + 0.9
    return float(np.clip(wanted, _NARROW, _WIDE))


def _new_axes(every: Sequence[Boxes], width: float | None, below: Sequence[float] = ()) -> list[Axes]:
    """Return the axes of a new figure with one time axis: one per timeline, then others of heights `below`, inches."""
    gap = 0.25 if len(every) > 1 else 0.0
    heights = [*(marks.height(boxes) + gap for boxes in every), *below]
    inches = max(map(_width, every)) if width is None else float(width)
    figure = Chart(figsize=(inches, sum(heights) + _AROUND))
    return list(figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0])


def _draw_blocks(
    axes: Sequence[Axes], every: Sequence[Boxes], titles: Sequence[str | None], labels: bool | str, longest: float,
    group: int = 1, **legend: bool,
) -> None:  # fmt: skip
    """Draw a block of rows per timeline on one time axis; its label is below the last of `axes`."""
    blocks = list(zip(axes, every, strict=False))
    differences = [
        marks.relative_step_text(boxes, every[number - number % group]) for number, boxes in enumerate(every)
    ]
    for (ax, boxes), title, differs in zip(blocks, titles, differences, strict=True):
        marks.device_axis(ax, boxes.timeline.schedule.devices)
        ax.tick_params(axis="x", length=2.5, labelbottom=ax is axes[-1])
        axes[-1].set_xlabel(f"time ({marks.time_axis(ax, longest, _MAX_TICKS)})")
        difference = f"; step {differs}" if differs and marks.ends_late(boxes, longest) else ""
        _add_title(ax, (headline(boxes.timeline) if title is None else title) + difference)
    _add_legend(axes[0], every, **legend)
    marks.figure_of(axes[0]).draw_without_rendering()  # lays out the figure, so that axes can be measured
    rows, ends = [ax for ax, _ in blocks], overview.phases([boxes.timeline for boxes in every], longest)
    boxes_fit = not any(overview.too_narrow(boxes, marks.points_per_second(ax)) for ax, boxes in blocks)
    for ax, boxes in blocks:
        if boxes_fit:
            _fill(ax, boxes, labels)
        else:
            overview.add_busy_shares(ax, boxes, ends)
        marks.add_lanes(ax, boxes, marks.points_per_second(ax))
        marks.add_idle_shares(ax, boxes)
    if not boxes_fit:
        overview.add_busy_scale(axes)
        overview.enlarge_ends(rows, ends)
    if len(every) > 1:
        marks.add_ends(rows, every, differences, longest)


def _shown_seconds(every: Sequence[Boxes]) -> float:
    """Return the length of the time axis in seconds: that of the longest timeline, unless it is an outlier."""
    lengths = sorted(makespan(boxes.timeline) for boxes in every)
    return lengths[-2] * 1.15 if len(lengths) > 2 and lengths[-1] > _OUTLIER * lengths[-2] else lengths[-1]


def _add_title(ax: Axes, title: str) -> None:
    """Set a title; in a `Chart`, wrap it if it is too wide and make the figure higher."""
    written, figure = ax.set_title(title, loc="left", parse_math=False), marks.figure_of(ax)
    wide, room = written.get_window_extent().width, figure.bbox.width - _TITLE_MARGINS * figure.dpi
    if isinstance(figure, Chart) and wide > room > 0:
        lines = textwrap.wrap(title, max(int(len(title) * room / wide), 12))
        written.set_text("\n".join(lines))
        figure.set_figheight(figure.get_figheight() + (len(lines) - 1) * _TITLE_LINE)


def _add_legend(ax: Axes, every: Sequence[Boxes], transfers: bool = False, critical: bool = False) -> None:
    """Add the legend below all axes; make a `Chart` higher for it."""
    legend, figure = marks.add_legend(ax, every, transfers, critical), marks.figure_of(ax)
    if isinstance(figure, Chart):
        figure.set_figheight(figure.get_figheight() + legend.get_window_extent().height / figure.dpi)


def _fill(ax: Axes, boxes: Boxes, labels: bool | str) -> None:
    """Draw the boxes with their labels."""
    points = marks.points_per_second(ax)
    marks.add_boxes(ax, boxes, points)
    if not labels:
        return
    marks.add_labels(ax, boxes, points)
    several = boxes.timeline.schedule.num_stages > boxes.timeline.schedule.devices
    for lane in boxes.lanes:
        if several or lane.sort == STEPS:
            marks.add_lane_labels(ax, boxes, lane, points)


def _draw_memory(ax: Axes, timeline: TimelineColumns, memory: bool | str) -> None:
    """Draw memory over time: bytes if `memory` is "bytes", or is True and the costs know them, else live activations.

    The fullest device has a colour and a label; the others are grey, many of them as one area. If the memory of a
    device is known, a line shows it, and a peak above it is red.
    """
    in_bytes = memory == "bytes" or (memory is True and peak_memory(timeline) is not None)
    curves, starts = _curves(timeline, in_bytes)
    peaks = np.array([levels.max(initial=0.0) for _, levels in curves])
    capacity = timeline.table.workload.memory if in_bytes and timeline.table.workload else None
    highest = max(float(peaks.max()), capacity or 0.0)
    factor, symbol = axis_unit(highest, "bytes" if in_bytes else "microbatches")
    origin = float(timeline.device_start.min())
    from_start = [
        (times - origin, np.append(first, levels) * factor)
        for (times, levels), first in zip(curves, starts, strict=True)
    ]
    fullest, too_much = int(peaks.argmax()), capacity is not None and float(peaks.max()) > capacity
    others = [curve for device, curve in enumerate(from_start) if device != fullest]
    colour = _TOO_MUCH if too_much else _FULLEST
    if len(from_start) > _MAX_CURVES:
        edges = overview.time_edges(overview.phases([timeline], makespan(timeline)))
        low, high = _extremes(others, edges)
        ax.fill_between(edges[:-1], low, high, step="post", color=_OTHERS, alpha=0.45, linewidth=0.0, zorder=2)
    else:
        steps = [_steps(*curve, makespan(timeline)) for curve in others]
        ax.add_collection(LineCollection(steps, colors=_OTHERS, linewidths=0.6, zorder=2), autolim=False)
    step = _steps(*from_start[fullest], makespan(timeline))
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
    """Return the times and levels of each device, and the level before its first time."""
    devices, static = timeline.schedule.devices, static_memory(timeline)
    curve_of = memory_over_time if in_bytes else activations_over_time
    starts = static.sum(axis=0) if in_bytes and static is not None else np.zeros(devices)
    return [curve_of(timeline, device) for device in range(devices)], starts


def _steps(times: np.ndarray, levels: np.ndarray, last: float) -> np.ndarray:
    """Return the points of a step curve from 0 to `last`, float64 (points, 2); `levels[0]` is before the first time."""
    x = np.concatenate([[0.0], np.repeat(times, 2), [last]])
    return np.stack([x, np.repeat(levels, 2)], axis=1)


def _extremes(curves: Sequence[tuple[np.ndarray, np.ndarray]], edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the minimum and maximum of step curves, given as in `_steps`, per time bin; float64 (bins,) each."""
    low, high = np.full(len(edges) - 1, np.inf), np.full(len(edges) - 1, -np.inf)
    for times, levels in curves:
        first, last = np.searchsorted(times, edges[:-1], side="right"), np.searchsorted(times, edges[1:])
        begin, within, parts = levels[first], np.append(levels[1:], 0.0), np.stack([first, last], axis=1).ravel()
        changes = last > first
        low = np.minimum(low, np.minimum(begin, np.where(changes, np.minimum.reduceat(within, parts)[::2], begin)))
        high = np.maximum(high, np.maximum(begin, np.where(changes, np.maximum.reduceat(within, parts)[::2], begin)))
    return low, high


def _write_at_the_right(ax: Axes, labels: list[tuple[float, str, str]]) -> None:
    """Write one or two labels (level, text, colour); if two are close, write one below its level and one above."""
    labels = sorted(labels)
    close = labels[-1][0] - labels[0][0] < _LABEL_HEIGHT * ax.get_ylim()[1]
    sides = ("top", "bottom") if close and len(labels) > 1 else ("center", "center")
    for (level, text, colour), side in zip(labels, sides, strict=False):
        ax.text(1.005, level, text, transform=ax.get_yaxis_transform(), va=side, fontsize=6.5, color=colour)
