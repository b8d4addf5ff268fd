"""The steady part of a run: what an iteration costs when iterations follow each other without a drain."""

from __future__ import annotations

import numpy as np

from ppsim.actions import Kind
from ppsim.analysis.bubbles import bubble_fraction, makespan, span
from ppsim.plan.streams import POST_VALIDATED
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
    """Idle part of the steady windows; of a schedule that drains after each iteration its bubble fraction.

    Where gathers or reductions set the pace of iterations, the part of `iteration_time` without computing.
    """
    schedule = timeline.schedule
    length, busy, _ = steady_windows(timeline)
    if schedule.iterations == 1 or not length.sum() > 0:
        return bubble_fraction(timeline)
    if (pace := iteration_time(timeline)) > _computing_pace(timeline):
        return max(1.0 - float(timeline.device_busy.sum()) / (schedule.devices * schedule.iterations * pace), 0.0)
    return max(1.0 - float(busy.sum() / length.sum()), 0.0)


def iteration_time(timeline: TimelineColumns) -> float:
    """Seconds from one iteration to the next; of a schedule that drains after each iteration the makespan.

    With post-validated optimizer steps the span: no device waits for another's step, so the next iteration can follow
    on each device when its own has ended (Qi et al. 2023, arXiv 2401.10241, section 4).

    Of an asynchronous schedule the longest of three paces, each of the slowest device. Computing: its steady window,
    in which reductions hide. Streams: an iteration gathers weights and reduces the gradients of each of the device's
    stages once, so that it is no shorter than either stream needs. Versions: with v versions of the weights, the one
    that an iteration uses is free again v iterations later, when the gradients of that iteration are reduced, so that
    v iterations are no shorter than from the first use of a stage's weights in an iteration to the end of their
    reduction: with one version a reduction is never hidden. (Versions: Narayanan et al. 2021, PipeDream-2BW, arXiv
    2006.09503, section 3.1.)
    """
    if timeline.schedule.iterations == 1:
        return span(timeline) if timeline.plan.optimizer == POST_VALIDATED else makespan(timeline)
    return max(_computing_pace(timeline), _stream_pace(timeline), _version_pace(timeline))


def _computing_pace(timeline: TimelineColumns) -> float:
    """Seconds of an iteration in the slowest device's steady window; a part of the makespan where there is none."""
    schedule = timeline.schedule
    length, _, forwards = steady_windows(timeline)
    if not length.sum() > 0:
        return makespan(timeline) / schedule.iterations
    steady = forwards > 0
    all_forwards = np.add.reduceat(schedule.kind == Kind.F, schedule.offsets[:-1], dtype=np.int64)
    return float((length[steady] / forwards[steady] * all_forwards[steady]).max()) / schedule.iterations


def _stream_pace(timeline: TimelineColumns) -> float:
    """Seconds that the busiest stream of gathers or reductions needs for one iteration."""
    devices, streams = timeline.schedule.devices, (timeline.plan.gathers, timeline.plan.reductions)
    needed = [np.bincount(one.device, one.seconds, minlength=devices).max() for one in streams if one is not None]
    return float(max(needed, default=0.0)) / timeline.schedule.iterations


def _version_pace(timeline: TimelineColumns) -> float:
    """Seconds of an iteration that the reuse of each device's weight versions allows; 0 where nothing is reduced.

    Read off the middle iteration, which neither fills nor drains.
    """
    schedule, reductions = timeline.schedule, timeline.plan.reductions
    if reductions is None:
        return 0.0
    middle = schedule.iteration == schedule.iterations // 2
    used_from = np.full((schedule.devices, schedule.num_stages), np.inf)
    np.minimum.at(used_from, (schedule.device[middle], schedule.stage[middle]), timeline.row_start[middle])
    one = np.flatnonzero(middle[reductions.after])
    device, after = reductions.device[one], reductions.after[one]
    held = timeline.row_end[after] - used_from[device, reductions.stage[one]] + reductions.seconds[one]
    return float((held / schedule.weight_versions[device]).max())
