"""The steady part of a run: what an iteration costs when iterations follow each other without a drain."""

from __future__ import annotations

import numpy as np

from ppsim.actions import Kind
from ppsim.analysis.bubbles import bubble_fraction, makespan
from ppsim.timeline import TimelineColumns


def steady_windows(timeline: TimelineColumns) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The steady window of each device: seconds in all, seconds in compute actions, and forwards in it.

    It reaches from the end of the device's first backward to the start of its last forward, so that the device neither
    fills nor drains in it, and it holds as many backwards as forwards where these alternate. All zero where nothing
    stands between.
    """
    schedule, seconds = timeline.schedule, timeline.plan.seconds
    length, busy, forwards = np.zeros((3, schedule.devices))
    for device in range(schedule.devices):
        rows = schedule.rows(device)
        kind = schedule.kind[rows]
        backwards = np.flatnonzero((kind == Kind.B) | (kind == Kind.I))
        forward = np.flatnonzero(kind == Kind.F)
        within = forward[(forward > backwards[0]) & (forward < forward[-1])]
        if len(within):
            first, last = rows.start + int(backwards[0]), rows.start + int(forward[-1])
            length[device] = timeline.row_start[last] - timeline.row_end[first]
            busy[device] = seconds[first + 1 : last].sum()
            forwards[device] = len(within)
    return length, busy, forwards


def steady_bubble_fraction(timeline: TimelineColumns) -> float:
    """Idle part of the steady windows; of a schedule that drains after each iteration its bubble fraction."""
    length, busy, _ = steady_windows(timeline)
    if timeline.schedule.iterations == 1 or not length.sum() > 0:
        return bubble_fraction(timeline)
    return max(1.0 - float(busy.sum() / length.sum()), 0.0)


def iteration_time(timeline: TimelineColumns) -> float:
    """Seconds from one iteration to the next: the slowest device's in its steady window, or the makespan."""
    schedule = timeline.schedule
    length, _, forwards = steady_windows(timeline)
    if schedule.iterations == 1 or not length.sum() > 0:
        return makespan(timeline) / schedule.iterations
    all_forwards = np.add.reduceat(schedule.kind == Kind.F, schedule.offsets[:-1], dtype=np.int64)
    steady = forwards > 0
    return float((length[steady] / forwards[steady] * all_forwards[steady]).max()) / schedule.iterations
