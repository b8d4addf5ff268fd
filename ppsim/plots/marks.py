"""Lines upon the rows of a matplotlib chart: transfers, evictions and the critical path."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from ppsim.actions import Kind
from ppsim.analysis.critical_path import critical_nodes
from ppsim.base.errors import ConfigError
from ppsim.plan.host_copies import OFFLOADS, RELOADS
from ppsim.plots.boxes import Boxes
from ppsim.plots.chart_rows import POINTS
from ppsim.plots.figures import PIXELS
from ppsim.plots.lanes import part_of_row
from ppsim.plots.palette import Theme
from ppsim.plots.scale import path_widths

_COVERED, _FAR_COVERED = 0.15, 0.04  # part of the rows that lines between them may hide; lines across other rows
DASHES: dict[str, Any] = {"forward": "solid", "backward": (0, (3, 1.5))}


def row_edges(boxes: Boxes) -> tuple[float, float]:
    """Return top and bottom of the actions, downwards from the middle of a row of height 1; a tenth is its gap."""
    top, bottom = part_of_row(boxes.band)
    return 0.9 * top - 0.5, 0.9 * bottom - 0.5


def _thinned(ax: Axes, rows: np.ndarray, width: float, covered: float = _COVERED) -> float:
    """Return the points of lines between rows, (lines, 2): fewer than `width` if many lines would hide the rows."""
    crossed = float(np.abs(np.diff(rows, axis=1)).sum()) / abs(float(np.diff(ax.get_ylim())[0]))  # lines through a row
    return min(width, covered * ax.get_window_extent().width / ax.figure.dpi * 72 / max(crossed, 1.0))


def add_lines(ax: Axes, times: np.ndarray, rows: np.ndarray, **style: Any) -> None:
    """Draw a line from the first to the second time and row of each entry of (lines, 2)."""
    segments: Any = np.stack([times, rows], axis=2)
    ax.add_collection(LineCollection(segments, **{"zorder": 3, **style}), autolim=False)


def add_transfers(ax: Axes, boxes: Boxes, theme: Theme) -> None:
    """Draw each transfer as a line from the sender, when it starts, to the receiver; those of backwards are dashed."""
    timeline, (top, bottom) = boxes.timeline, row_edges(boxes)
    plan, schedule = timeline.plan, timeline.schedule
    consumer = np.flatnonzero(plan.remote)
    origin = float(timeline.device_start.min())
    times = np.stack([timeline.transfer_start[consumer], timeline.transfer_end[consumer]], axis=1) - origin
    sender, receiver = schedule.device[plan.source[consumer]], schedule.device[consumer]
    down = receiver > sender
    rows = np.stack([sender + np.where(down, bottom, top), receiver + np.where(down, top, bottom)], axis=1)
    forward, far = schedule.kind[consumer] == Kind.F, np.abs(receiver - sender) > 1
    near_width, far_width = _thinned(ax, rows, 0.5), _thinned(ax, rows[far], 0.5, _FAR_COVERED)
    for name, mine in (("forward", forward), ("backward", ~forward)):
        for group, wide in ((~far, near_width), (far, min(near_width, far_width))):
            if (chosen := mine & group).any():
                style: Any = {"colors": theme.text, "linewidths": wide, "linestyles": DASHES[name]}
                add_lines(ax, times[chosen], rows[chosen], **style)


def add_evictions(ax: Axes, boxes: Boxes, theme: Theme) -> None:
    """Draw each move of an evicted activation as a line, out to the other device or back."""
    timeline, copies = boxes.timeline, boxes.timeline.plan.copies
    if copies is None or not np.any(copies.host >= 0):
        return
    origin, style = float(timeline.device_start.min()), {"color": theme.text, "zorder": 3.5}
    for way, arrow in ((OFFLOADS, "v"), (RELOADS, "^")):
        mine = np.flatnonzero((copies.host >= 0) & (copies.way == way))
        times = np.stack([timeline.copy_start[mine], timeline.copy_end[mine]], axis=1) - origin
        ends = np.stack([copies.device[mine], copies.host[mine]], axis=1).astype(np.float64)
        rows = ends if way == OFFLOADS else ends[:, ::-1]
        wide = _thinned(ax, rows, 0.7)
        add_lines(ax, times, rows, linestyles=(0, (2, 1.5)), linewidths=wide, **style)
        ax.scatter(times[:, 1], rows[:, 1], s=7 * (wide / 0.7) ** 2, marker=arrow, linewidths=0.0, **style)


def add_critical_path(ax: Axes, boxes: Boxes, actions: Any, theme: Theme) -> None:
    """Draw a line along the lower edge of the `actions` (indices into `timeline.start`); True finds the critical path.

    The line is joined between rows, and has a halo. It is thinner where it changes rows after few pixels.
    """
    mine = _boxes_of_path(boxes) if actions is True else _boxes_of_actions(boxes, actions)
    if not len(mine):
        return
    begin, end = boxes.start[mine], boxes.end[mine]
    lower = np.repeat(boxes.device[mine] + row_edges(boxes)[1] + 0.04, 2)
    times = np.stack([begin, end], axis=1).ravel()
    first = np.flatnonzero(np.append(True, np.diff(boxes.device[mine]) != 0))  # boxes that begin a stay in a row
    stay = np.append(end[first[1:] - 1], end[-1]) - begin[first]
    left, right = ax.get_xlim()
    second = ax.get_window_extent().width / ax.figure.dpi * PIXELS / (right - left)
    room = np.repeat(np.repeat(stay, np.diff(np.append(first, len(mine)))) * second, 2)
    path, halo = path_widths(np.minimum(room[:-1], room[1:]))
    for wide, colour in ((halo, theme.halo), (path, theme.critical)):
        style: Any = {"colors": colour, "linewidths": wide * POINTS, "capstyle": "round", "gid": "critical path"}
        add_lines(ax, np.stack([times[:-1], times[1:]], 1), np.stack([lower[:-1], lower[1:]], 1), zorder=6, **style)


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
