"""Overviews of timelines with too many boxes: the fraction of time that a device spends in each kind."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from ppsim.actions import Kind, is_backward
from ppsim.analysis.bubbles import makespan
from ppsim.plots import palette
from ppsim.plots.boxes import Boxes
from ppsim.plots.lanes import LANE_GROUND
from ppsim.timeline import TimelineColumns

PERIODS_PER_BIN = 4  # repeats of the steady part, so that successive bins have the same mix of kinds
MAX_BINS, LINES = 1600, 12  # bins of time; lines of pixels per device


def kind_shares(boxes: Boxes, edges: np.ndarray) -> np.ndarray:
    """Return the fraction of each time bin that each device spends in each kind, float64 (devices, bins, kinds).

    `edges` are the borders of the bins in seconds from the first start; the last bin ends at the makespan at the
    latest. The rest up to 1 is idle time.
    """
    return np.stack(list(_shares_by_device(boxes, edges)))


def busy_shares(boxes: Boxes, edges: np.ndarray, each: int) -> np.ndarray:
    """Return the busy fraction of each time bin, float64 (rows, bins); a row is the mean of `each` devices."""
    devices = boxes.timeline.schedule.devices
    first = np.arange(0, devices, each)
    busy = np.zeros((len(first), len(edges) - 1))
    for device, shares in enumerate(_shares_by_device(boxes, edges)):
        busy[device // each] += shares.sum(axis=1)
    return busy / np.diff(np.append(first, devices))[:, None]


def _shares_by_device(boxes: Boxes, edges: np.ndarray) -> Iterator[np.ndarray]:
    """Yield per device the fraction of each time bin in each kind, float64 (bins, len(boxes.kinds))."""
    widths = np.diff(np.minimum(edges, max(makespan(boxes.timeline), float(edges[-2]) + 1e-300)))
    for first, end_of_rows in pairwise(boxes.offsets.tolist()):
        start, end, kind = (column[first:end_of_rows] for column in (boxes.start, boxes.end, boxes.kind))
        shares = np.zeros((len(edges) - 1, len(boxes.kinds)))
        for column, wanted in enumerate(boxes.kinds):
            mine = kind == wanted
            times = np.stack([start[mine], end[mine]], axis=1).ravel()
            lengths = np.stack([np.zeros(mine.sum()), end[mine] - start[mine]], axis=1).ravel()
            if len(times):
                shares[:, column] = np.diff(np.interp(edges, times, np.cumsum(lengths))) / widths
        yield shares


def bin_seconds(boxes: Boxes) -> float:
    """Return the seconds of a time bin: `PERIODS_PER_BIN` times the usual period of the device in the middle."""
    device = boxes.timeline.schedule.devices // 2
    rows = slice(int(boxes.offsets[device]), int(boxes.offsets[device + 1]))
    kind = boxes.kind[rows]
    gaps = np.diff(boxes.start[rows][kind == np.bincount(kind).argmax()])
    gaps = gaps[gaps > 0]
    period = float(np.median(gaps)) if len(gaps) else makespan(boxes.timeline) or 1.0
    return PERIODS_PER_BIN * period


def share_edges(boxes: Boxes, max_bins: int = MAX_BINS) -> np.ndarray:
    """Return the borders of equal time bins in seconds from the first start; the last may end after the makespan."""
    step, length = bin_seconds(boxes), makespan(boxes.timeline) or 1.0
    step *= np.ceil(length / step / max_bins)
    return np.arange(int(np.ceil(length / step * (1 - 1e-12))) + 1) * step


def share_codes(boxes: Boxes, edges: np.ndarray, lines: int = LINES) -> np.ndarray:
    """Return the index in `share_colours` of each pixel of the stacked shares, uint8 (devices * lines, bins).

    The first kind is at the bottom, idle time on top; lanes get separate lines.
    """
    tops = np.cumsum(kind_shares(boxes, edges), axis=2)
    centres = 1.0 - (np.arange(lines) + 0.5) / lines
    codes = (centres[None, :, None, None] > tops[:, None, :, :]).sum(axis=3).astype(np.uint8)
    lane = np.full_like(codes[:, :1], len(boxes.kinds) + 1)
    top, bottom = boxes.band
    above, below = (round(lines * boxes.laned * (0.5 + edge) / (bottom - top)) for edge in (top, -bottom))
    return np.concatenate([lane.repeat(above, 1), codes, lane.repeat(below, 1)], axis=1).reshape(-1, len(edges) - 1)


def share_colours(boxes: Boxes) -> list[str]:
    """Return the colours (#rrggbb) of `share_codes`: kinds, idle time, an empty lane."""
    return [*(palette.COLOURS[kind] for kind in boxes.kinds), palette.IDLE, LANE_GROUND]


def steady_part(timeline: TimelineColumns) -> tuple[float, float]:
    """Return when the fill ends and the drain begins, in seconds from the first start.

    The fill ends when every device has begun its first backward; the drain begins when a device ends its last forward.
    """
    schedule, origin = timeline.schedule, float(timeline.device_start.min())
    first_backward, last_forward = 0.0, makespan(timeline)
    for device in range(schedule.devices):
        rows = schedule.rows(device)
        kind = schedule.kind[rows]
        backward, forward = np.flatnonzero(is_backward(kind)), np.flatnonzero(kind == Kind.F)
        if len(backward) and len(forward):
            first_backward = max(first_backward, float(timeline.row_start[rows][backward[0]]) - origin)
            last_forward = min(last_forward, float(timeline.row_end[rows][forward[-1]]) - origin)
    return first_backward, last_forward
