"""Lines upon the rows of a matplotlib chart: transfers and the critical path."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection

from ppsim.actions import Kind
from ppsim.analysis.bubbles import makespan
from ppsim.analysis.critical_path import critical_nodes
from ppsim.base.errors import ConfigError
from ppsim.base.immutable import as_class, distinct
from ppsim.base.progress import say
from ppsim.plots import scale
from ppsim.plots.areas import NO_PATH
from ppsim.plots.boxes import Boxes
from ppsim.plots.chart_rows import POINTS
from ppsim.plots.figures import PIXELS
from ppsim.plots.lanes import part_of_row
from ppsim.plots.palette import TITLES, Theme
from ppsim.plots.pixels import gap_of_rows, is_mixed
from ppsim.plots.scale import APART, APART_FOR_LINES, LOWEST_MARK, NARROW_TURN, NARROWEST_MARK

DASHES: dict[str, Any] = {"forward": "solid", "backward": (0, (3, 1.5))}
Path = tuple[np.ndarray, np.ndarray]  # its lines, and those with rows between their ends, float64 (lines, 2, 2)
_JUMP: Any = 0, (1.2, 2.4)  # dashes, with round ends, of a path over the rows between its devices


@dataclass(frozen=True)
class ChartLines:
    """Lines upon the rows of a chart.

    `critical` is True for the critical path, or a list of actions. `waited`: only the transfers that an idle device
    waits for.
    """

    transfers: bool = False
    critical: Any = None
    waited: bool = False

    @property
    def has_path(self) -> bool:
        """True if a path is drawn."""
        return self.critical is not None and self.critical is not False

    def drawn(self, every: Sequence[Boxes], second: float) -> tuple[ChartLines, list[Boxes]]:
        """Return the lines that charts have space for, and the charts with the space between rows that lines need."""
        if not self.transfers:
            return self, list(every)
        if all(boxes.plain or boxes.median * second < NARROWEST_MARK for boxes in every):
            say("transfers are not drawn: actions are too narrow, or rows too low")
            return replace(self, transfers=False), list(every)
        apart = [makespan(one.timeline) * second * len(one.offsets) / (one.timeline.plan.remote.sum() or 1)
                 for one in every]  # fmt: skip
        spread = [boxes if boxes.plain else as_class(Boxes, boxes, apart=APART_FOR_LINES) for boxes in every]
        return replace(self, waited=bool(min(apart) < scale.CROWDED)), spread

    def paths(self, every: Sequence[Boxes], rows: Sequence[float], second: float) -> list[Path]:
        """Return the path of each chart in rows of `rows` pixels, without lines if none is drawn."""
        return [_path_lines(boxes, self.critical, second, row) if self.has_path else (NO_PATH, NO_PATH)
                for boxes, row in zip(every, rows, strict=True)]  # fmt: skip

    def add_to(self, ax: Axes, boxes: Boxes, theme: Theme, path: Path) -> np.ndarray:
        """Draw the transfers and the path of one chart, whose lines (lines, 2, 2) are returned."""
        if self.transfers:
            add_transfers(ax, boxes, theme, self.waited)
        return add_critical_path(ax, boxes, path, theme) if self.has_path else NO_PATH


NO_LINES = ChartLines()


def row_height(ax: Axes, boxes: Boxes) -> float:
    """Return the height in pixels of a row that fills axes with its neighbours."""
    return ax.get_window_extent().height / ax.figure.dpi * PIXELS / boxes.timeline.schedule.devices


def row_edges(ax: Axes, boxes: Boxes) -> tuple[float, float, float]:
    """Return top and bottom of the actions, downwards from the middle of a row of height 1, and the gap below a row."""
    return _edges(boxes, second_of(ax), row_height(ax, boxes))


def second_of(ax: Axes) -> float:
    """Return the pixels of a second."""
    left, right = ax.get_xlim()
    return ax.get_window_extent().width / ax.figure.dpi * PIXELS / (right - left)


def marked_kinds(boxes: Boxes, second: float, row: float, until: float) -> dict[str, Kind]:
    """Return a kind whose boxes show marks of each sort, as for `legend_entries`, in rows of `row` pixels."""
    found, mixes = dict[str, Kind](), is_mixed(boxes, second)
    is_high = _height(boxes, second, row) >= LOWEST_MARK * (1 + boxes.slot)
    has_mark = boxes.has_marks(second) & is_high & (not mixes)
    drawn = (boxes.start < until) & (boxes.length > 0)
    is_full = scale.mark_length(boxes.local, boxes.locals, boxes.length * second) == 1.0
    later, inner = boxes.local > 0, (boxes.local > 0) & (boxes.local < boxes.locals - 1)  # the last has a full mark
    sorts = {"stage": later, "reverse": boxes.reverse, "longer": inner & ~is_full, "full": inner & is_full}
    marks = {sort: marked & has_mark for sort, marked in sorts.items()} | {"bare": later & ~has_mark & (not mixes)}
    for sort, marked in marks.items():
        if seen := {*distinct(boxes.kinds_of_parts(0)[drawn & marked]).tolist()}:
            found[sort] = next(kind for kind in TITLES if kind in seen)
    return found


def has_numbers(boxes: Boxes, row: float, second: float, digit: float, lettered: bool = False) -> bool:
    """Return whether boxes have numbers in rows of `row` pixels, as `Boxes.numbers`, after letters if `lettered`."""
    found = boxes.numbers(second, _height(boxes, second, row), digit, lettered).values()
    return any(size.any() and (letter or not lettered) for size, letter in found)


def _height(boxes: Boxes, second: float, row: float) -> float:
    """Return the height in pixels of the boxes of rows of `row` pixels."""
    top, bottom, _ = _edges(boxes, second, row)
    return (bottom - top) * row


def _edges(boxes: Boxes, second: float, row: float) -> tuple[float, float, float]:
    """Return the edges of rows of `row` pixels, as `row_edges`."""
    gap = gap_of_rows(boxes, second, row) / row
    top, bottom = (part * (1.0 - gap) - 0.5 for part in part_of_row(boxes.band))
    return top, bottom, gap


def add_lines(ax: Axes, segments: Any, **style: Any) -> None:
    """Draw lines, (lines, 2, 2) points each."""
    ax.add_collection(LineCollection(segments, **{"zorder": 3, **style}), autolim=False)


def add_transfers(ax: Axes, boxes: Boxes, theme: Theme, waited: bool) -> None:
    """Draw each transfer as a line from sender to receiver, dashed if it is one of a backward.

    If rows lie between both, only a short line next to each is drawn. `waited`: only transfers that an idle device
    waits for.
    """
    timeline, plan, schedule = boxes.timeline, boxes.timeline.plan, boxes.timeline.schedule
    if boxes.plain or boxes.median * second_of(ax) < NARROWEST_MARK:
        return
    consumer = np.flatnonzero(plan.remote)
    if waited:
        least = 1e-9 * makespan(timeline)
        rows = boxes.row[_waits(boxes) > least]
        at_end = timeline.transfer_end[consumer] >= timeline.row_start[consumer] - least
        consumer = consumer[at_end & np.isin(consumer, rows)]
    origin = float(timeline.device_start.min())
    times = np.stack([timeline.transfer_start[consumer], timeline.transfer_end[consumer]], axis=1) - origin
    sender, receiver = schedule.device[plan.source[consumer]], schedule.device[consumer]
    (top, bottom, _), down = row_edges(ax, boxes), receiver > sender
    rows = np.stack([sender + np.where(down, bottom, top), receiver + np.where(down, top, bottom)], axis=1)
    forward = schedule.kind[consumer] == Kind.F
    for name, mine in (("forward", forward), ("backward", ~forward)):
        if mine.any():
            style: Any = {"colors": theme.quiet, "linewidths": 0.5, "linestyles": DASHES[name]}
            lines = np.stack([times[mine], rows[mine]], axis=2)
            stub = (lines[:, 1] - lines[:, 0]) * np.minimum((1.0 + top - bottom) / np.abs(np.diff(rows[mine])), 1.0)
            far = np.abs(stub[:, 1]) < np.abs(lines[:, 1, 1] - lines[:, 0, 1]) - 1e-9
            ends = np.stack([lines[:, 1] - stub, lines[:, 1]], axis=1)[far]
            begins = np.stack([lines[:, 0], lines[:, 0] + stub], axis=1)
            add_lines(ax, np.concatenate([begins, ends]), zorder=1.9, **style)  # behind the rows


def add_critical_path(ax: Axes, boxes: Boxes, parts: Path, theme: Theme) -> np.ndarray:
    """Draw the parts of a path with a halo, and return them."""
    (lines, jumps), (path, halo) = parts, _path_widths(boxes, second_of(ax), row_height(ax, boxes))
    every = np.concatenate([lines, jumps])
    for wide, colour, dashes in ((halo, theme.halo, "solid"), (path, theme.critical, _JUMP)):
        style: Any = {"colors": colour, "linewidths": wide * POINTS, "capstyle": "round", "gid": "critical path"}
        style |= {"linestyles": ["solid"] * len(lines) + [dashes] * len(jumps)}
        style["snap"] = False  # else short pieces would jump by a pixel
        add_lines(ax, every, zorder=6, **style)
    return every


def _path_widths(boxes: Boxes, second: float, row: float) -> tuple[float, float]:
    """Return the widths of a path and its halo, thin ones for low boxes, and upon boxes whose marks it would cover."""
    top, bottom, gap = _edges(boxes, second, row)
    has_both = boxes.locals > 1 and 0.5 - gap - bottom > 1e-9  # marks above it, lanes below
    return scale.path_widths(0.0 if has_both else row * (bottom - top) / (1 - APART))


def _path_lines(boxes: Boxes, actions: Any, second: float, high: float) -> Path:
    """Return the path of `actions` (indices into `timeline.start`; True: the critical path) in rows of `high` pixels.

    The path lies below the boxes; if the row has lanes there, upon their lower edge. Upright lines join its rows; in
    low rows there is only a line from turn to turn. If turns are few pixels apart, one upright line replaces them.
    """
    device, begin, end = _spans_of_path(boxes) if actions is True else _spans_of_actions(boxes, actions)
    if not len(device):
        return NO_PATH, NO_PATH
    _, bottom, gap = _edges(boxes, second, high)
    path, halo = _path_widths(boxes, second, high)
    first = np.flatnonzero(np.append(True, np.diff(device) != 0))  # spans that begin a stay in a row
    way = np.sign(np.diff(device[first].astype(int)))
    is_turn = np.concatenate([[True], way[1:] != way[:-1], [False]])[: len(first)]  # stays at which the path turns
    if high < LOWEST_MARK:  # a staircase of such rows would be a rope
        last = np.append(first[1:], len(device)) - 1
        kept = is_turn | ((end[last] - begin[first]) * second > halo)
        kept[-1] = True
        device, begin, end = device[first[kept]], begin[first[kept]], end[last[kept]]
        first, is_turn = np.arange(len(device)), is_turn[kept]
    turns = np.append(first[is_turn], len(device) - 1)
    is_short = np.diff(begin[turns]) * second < NARROW_TURN
    if high >= LOWEST_MARK:  # upright lines at the end or begin of boxes that are on the path, in idle time beside them
        into, up = first[1:], device[first[1:]] < device[first[1:] - 1]
        x, row = np.where(up, end[into - 1], begin[into]), np.where(up, device[into - 1], device[into])
        idle = np.array([_idle_beside(boxes, *one) for one in zip(x, row, up, strict=True)])
        corner = x + np.where(up, 1, -1) * np.where(idle * second > halo, 0.9 * path / second, idle / 2)
        begin[into], end[into - 1] = corner, corner
    below = 0.5 - gap - bottom  # of lanes
    lower = device + bottom + (0.2 * below - halo / 2 / high if below > 1e-9 else min(gap / 2, halo / 2 / high))
    points = np.stack([np.stack([begin, end], axis=1).ravel(), np.repeat(lower, 2)], axis=1)
    drawn, steps, jumps = np.ones(len(points) - 1, bool), [NO_PATH], [NO_PATH]
    changes = np.flatnonzero(np.diff(np.pad(is_short.astype(int), 1)))
    for one, other in zip(turns[changes[::2]].tolist(), turns[changes[1::2]].tolist(), strict=True):
        drawn[2 * one : 2 * other] = False
        (left, right), rows = begin[[one, other]], lower[one : other + 1]
        times = np.array([[2 * left, left + right], [left + right, left + right], [left + right, 2 * right]])
        step = np.stack([times / 2, [rows[[0, 0]], [rows.min(), rows.max()], rows[[-1, -1]]]], axis=2)
        passes = len(np.unique(rows)) <= np.ptp(rows)  # rows that the path does not use
        steps.append(step[:: 1 + passes])
        jumps.append(step[1 : 1 + passes])
    lines = np.stack([points[:-1], points[1:]], axis=1)[drawn]
    is_jump = (lines[:, 0, 0] == lines[:, 1, 0]) & (np.ptp(lines[:, :, 1], axis=1) > 1.5)
    return np.concatenate([lines[~is_jump], *steps]), np.concatenate([lines[is_jump], *jumps])


def _idle_beside(boxes: Boxes, time: float, device: int, after: bool) -> float:
    """Return the seconds for which a device is idle after a time at which a box of it ends, or before one begins."""
    first, last = boxes.offsets[device : device + 2].tolist()
    if after:
        later = first + int(np.searchsorted(boxes.end[first:last], time * (1 + 1e-9), "right"))
        return float(boxes.start[later] if later < last else makespan(boxes.timeline)) - time
    earlier = first + int(np.searchsorted(boxes.start[first:last], time * (1 - 1e-9)))
    return time - float(boxes.end[earlier - 1] if earlier > first else 0.0)


def _waits(boxes: Boxes) -> np.ndarray:
    """Return the seconds that each box's device was idle before it."""
    before = np.append(0.0, boxes.end[:-1])
    before[boxes.offsets[:-1][np.diff(boxes.offsets) > 0]] = 0.0
    return np.maximum(boxes.start - before, 0.0)


def _spans_of_path(boxes: Boxes) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return device, begin and end of all on the critical path that belongs to one device and takes time."""
    (graph, chain), schedule = critical_nodes(boxes.timeline), boxes.timeline.schedule
    transfers = np.full(len(schedule.device), -1)
    device = np.concatenate([schedule.device, transfers, graph.stream_device])[chain]
    begin, end = (seconds[chain] - float(boxes.timeline.device_start.min()) for seconds in (graph.start, graph.end))
    own = (device >= 0) & (end > begin)
    return device[own], begin[own], end[own]


def _spans_of_actions(boxes: Boxes, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return device, begin and end of the given actions, in time order; ConfigError if that is no list of actions."""
    wanted, count = np.array(actions, object), len(boxes.timeline.start)
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        wanted = np.asarray(actions)
    if wanted.dtype.kind not in "iu" or wanted.ndim != 1 or np.any((wanted < 0) | (wanted >= count)):
        raise ConfigError(f"critical_path must be True or a list of action numbers from 0 to {count - 1}")
    mine = np.flatnonzero(np.isin(boxes.action, wanted))
    mine = mine[np.lexsort((boxes.end[mine], boxes.start[mine]))]
    return boxes.device[mine], boxes.start[mine], boxes.end[mine]
