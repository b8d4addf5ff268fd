"""Marks on the boxes of a matplotlib Gantt chart: numbers, transfers, evictions and the critical path."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patheffects import Normal, withStroke

from ppsim.actions import Kind
from ppsim.analysis.critical_path import critical_nodes
from ppsim.base.errors import ConfigError
from ppsim.plan.host_copies import OFFLOADS, RELOADS
from ppsim.plots import palette
from ppsim.plots.boxes import Boxes, halves
from ppsim.plots.lanes import LaneSpans, Spans, lane_edges
from ppsim.plots.marks import add_lines, add_rectangles, figure_of
from ppsim.plots.scale import every_kth, roomy_rows

DIGIT_POINTS = 4.0  # width of a digit of a label at its usual size
_LABEL_SIZE, _SMALLEST_LABEL, _KTH_LABEL = 6.5, 4.5, 5.0
_DIGIT_HEIGHT = 0.78  # of the size, with a little air
_MOST_LABELS = 5_000
_NARROWEST_COUNTED = 2.0  # points of short boxes of which every k-th number is written


@dataclass(frozen=True)
class _Labels:
    """The labels of the boxes `mine` between the edges `band` of their rows; `part` is the part of their slots."""

    mine: np.ndarray
    part: int
    band: tuple[float, float]
    texts: np.ndarray

    @property
    def wide(self) -> np.ndarray:
        return _widths(self.texts)


def add_labels(ax: Axes, boxes: Boxes, points: float) -> None:
    """Write microbatch numbers, at one size for the whole chart.

    Every box of a device's row gets one, upright if boxes are narrow; or every k-th microbatch if they are narrower
    still; or none.
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
    """Number all boxes of the rows that have space for it, if most have; return these rows (bool)."""
    size = min(_label_size(ax, boxes, labels.band, 0.75) for labels in every)
    if upright:  # as tall as a text is wide
        size = min(_label_size(ax, boxes, labels.band, 0.95 / labels.wide.max()) for labels in every)
    wide = np.concatenate([np.full(len(labels.mine), _DIGIT_HEIGHT) if upright else labels.wide for labels in every])
    spans = np.concatenate([labels.mine for labels in every])
    room = boxes.length[spans] * points - 1.0
    size = float(np.clip(np.quantile(room / wide, 0.05), 0.0, size))
    fits = wide * max(size, _SMALLEST_LABEL) <= room + 1e-9
    whole = roomy_rows(boxes.device[spans], fits, boxes.timeline.schedule.devices)
    if size < _SMALLEST_LABEL and upright:
        return np.zeros_like(whole)
    shown = np.split(whole[boxes.device[spans]] & fits, np.cumsum([len(labels.mine) for labels in every])[:-1])
    for labels, seen in zip(every, shown, strict=True):
        grounds = [boxes.colour(box, labels.part) for box in labels.mine[seen].tolist()]
        inks = map(palette.label_colour, grounds)
        style = {"rotation": 90 if upright else 0, "fontsize": max(size, _SMALLEST_LABEL)}
        _write(ax, boxes, labels.mine[seen], labels.texts[seen], labels.band, inks, **style)
    return whole


def _label_every_kth(ax: Axes, boxes: Boxes, labels: _Labels, points: float, rows: np.ndarray) -> None:
    """Write the numbers of every k-th microbatch in the `rows` (bool), unless boxes are too low or too narrow."""
    mine, schedule = labels.mine, boxes.timeline.schedule
    too_low = _label_size(ax, boxes, labels.band, 0.95) < _KTH_LABEL
    if too_low or np.quantile(boxes.length[mine], 0.25) * points < _NARROWEST_COUNTED:
        return
    whole = schedule.microbatch[boxes.row[mine] + labels.part] // schedule.slices
    middle = (boxes.start[mine] + boxes.length[mine] / 2) * points
    shown = every_kth(boxes.device[mine], middle, labels.wide * _KTH_LABEL + 1.4, whole, rows)
    halo = {"path_effects": [withStroke(linewidth=1.4, foreground="white")], "fontsize": _KTH_LABEL}
    _write(ax, boxes, mine[shown], labels.texts[shown], labels.band, [palette.INK] * len(shown), **halo)


def add_lane_labels(ax: Axes, boxes: Boxes, part: LaneSpans, points: float) -> None:
    """Write the stages on the spans of a lane, if there is space for all of them."""
    edges = lane_edges(part, boxes.lanes)
    size = _label_size(ax, boxes, edges, 0.95)
    texts = np.array([part.label(span) for span in range(len(part))])
    if size >= _SMALLEST_LABEL and np.all(_widths(texts) * size <= part.length * points - 1.0):
        inks = [palette.label_colour(part.colour)] * len(part)
        _write(ax, part, np.arange(len(part)), texts, edges, inks, fontsize=size)


def _label_size(ax: Axes, boxes: Boxes, edges: tuple[float, float], part: float) -> float:
    """Return the size in points of labels that fill `part` of the height between `edges` of a device's row."""
    row = ax.get_window_extent().height / figure_of(ax).dpi * 72 / boxes.timeline.schedule.devices
    return min(_LABEL_SIZE, row * (edges[1] - edges[0]) * part)


def _widths(texts: np.ndarray) -> np.ndarray:
    """Return the widths of labels per point of their size."""
    return np.char.str_len(texts) * DIGIT_POINTS / _LABEL_SIZE


def _write(
    ax: Axes, spans: Spans, shown: np.ndarray, texts: np.ndarray, edges: tuple[float, float], inks: Iterable[str],
    **style: Any,
) -> None:  # fmt: skip
    """Write a text in the middle of each span in `shown`; none if there are too many."""
    if len(shown) > _MOST_LABELS:
        return
    middles = spans.start[shown] + spans.length[shown] / 2
    rows = spans.device[shown] + sum(edges) / 2
    style |= {"ha": "center", "va": "center" if style.get("rotation") else "center_baseline", "zorder": 4}
    for x, y, text, ink in zip(middles.tolist(), rows.tolist(), texts.tolist(), inks, strict=True):
        ax.text(x, y, text, color=ink, clip_on=True, **style)


_ALONG = 0.88  # fraction of a box's height, below its number, at which the line of the critical path runs


def add_transfers(ax: Axes, boxes: Boxes) -> None:
    """Draw each transfer as a line, from the sender when it starts to the receiver when it ends."""
    timeline, (top, bottom) = boxes.timeline, boxes.band
    plan, schedule = timeline.plan, timeline.schedule
    consumer = np.flatnonzero(plan.remote)
    origin = float(timeline.device_start.min())
    times = np.stack([timeline.transfer_start[consumer], timeline.transfer_end[consumer]], axis=1) - origin
    rows = np.stack([schedule.device[plan.source[consumer]], schedule.device[consumer]], axis=1).astype(np.float64)
    far = (
        np.abs(rows[:, 0] - rows[:, 1]) > 1
    )  # such as around the loop: behind the boxes, so that no line crosses a label
    rows += np.where(rows[:, ::-1] > rows, bottom, top)
    forward = schedule.kind[consumer] == Kind.F
    for same_way, colour in ((forward, palette.TRANSFER_FORWARD), (~forward, palette.TRANSFER_BACKWARD)):
        for chosen, layer in ((same_way & ~far, 3), (same_way & far, 1.5)):
            if not chosen.any():
                continue
            style: Any = {"colors": colour, "linewidths": 0.6, "alpha": 0.9, "capstyle": "round", "zorder": layer}
            add_lines(ax, times[chosen], rows[chosen], **style)


def add_evictions(ax: Axes, boxes: Boxes) -> None:
    """Draw each move of an evicted activation as a line: out to the other device, and back."""
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
    """Outline the given actions (indices into `timeline.start`), or the critical path for True; join them by a line."""
    mine = _boxes_of_path(boxes) if actions is True else _boxes_of(boxes, actions)
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
    """Return the boxes on the critical path, in its order; of a slot drawn as two boxes perhaps only the first."""
    _, chain = critical_nodes(boxes.timeline)
    rows = np.array([node for node in chain if node < len(boxes.timeline.row_start)])
    mine = np.searchsorted(boxes.row, rows, "right") - 1  # the second row of a timed slot lies in the box of its first
    return mine[np.append(True, np.diff(mine) != 0)]


def _boxes_of(boxes: Boxes, actions: Any) -> np.ndarray:
    """Return the boxes of the given actions, in time order; ConfigError if `actions` is not a list of them."""
    wanted, count = np.array(actions, object), len(boxes.timeline.start)
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        wanted = np.asarray(actions)
    if wanted.dtype.kind not in "iu" or wanted.ndim != 1 or np.any((wanted < 0) | (wanted >= count)):
        raise ConfigError(f"critical_path must be True or a list of action numbers from 0 to {count - 1}")
    mine = np.flatnonzero(np.isin(boxes.action, wanted))
    return mine[np.lexsort((boxes.end[mine], boxes.start[mine]))]
