"""What joins boxes of different devices in a matplotlib Gantt chart: transfers, evictions and the critical path."""

from __future__ import annotations

import contextlib
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
from ppsim.plots.boxes import Boxes
from ppsim.plots.marks import add_lines, add_rectangles

_ALONG = 0.88  # of the height of a box, below its number: where the line of the critical path runs


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
            add_lines(ax, times[chosen], rows[chosen], **style)


def add_evictions(ax: Axes, boxes: Boxes) -> None:
    """Of each evicted activation a line to its host while it moves there, and a line while it moves back."""
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
    """Outline the actions given (indices into `timeline.start`), or the critical path for True; a line joins them."""
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
    """The boxes that the critical path passes, in its order; of a slot drawn as two perhaps the first alone."""
    _, chain = critical_nodes(boxes.timeline)
    rows = np.array([node for node in chain if node < len(boxes.timeline.row_start)])
    mine = np.searchsorted(boxes.row, rows, "right") - 1  # the second row of a timed slot lies in the box of its first
    return mine[np.append(True, np.diff(mine) != 0)]


def _boxes_of(boxes: Boxes, actions: Any) -> np.ndarray:
    """The boxes of actions, in time order; ConfigError for what is no list of them."""
    wanted, count = np.array(actions, object), len(boxes.timeline.start)
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        wanted = np.asarray(actions)
    if wanted.dtype.kind not in "iu" or wanted.ndim != 1 or np.any((wanted < 0) | (wanted >= count)):
        raise ConfigError(f"critical_path must be True or a list of action numbers from 0 to {count - 1}")
    mine = np.flatnonzero(np.isin(boxes.action, wanted))
    return mine[np.lexsort((boxes.end[mine], boxes.start[mine]))]
