"""Step time, bubbles and throughput of a timeline: the formulas of docs/glossary.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ppsim.actions import Kind
from ppsim.analysis.memory import activations_over_time, memory_over_time, static_memory
from ppsim.base.arrays import SizedColumns
from ppsim.base.immutable import EqualColumns, kept
from ppsim.base.short_repr import short_repr
from ppsim.plan.streams import POST_VALIDATED
from ppsim.timeline import TimelineColumns


@kept
def makespan(run: TimelineColumns) -> float:
    """Last end - first start over all devices, seconds."""
    return float(run.device_end.max() - run.device_start.min())


def span(run: TimelineColumns) -> float:
    """Largest (last end - first start) of one device, seconds."""
    return float((run.device_end - run.device_start).max())


def device_idle(run: TimelineColumns) -> np.ndarray:
    """Makespan - busy of each device, seconds."""
    return np.maximum(makespan(run) - run.device_busy, 0.0)


def bubble_fraction(run: TimelineColumns) -> float:
    """1 - sum(busy) / (devices x makespan): idle / total."""
    return _rest(float(run.device_busy.sum()), run.schedule.devices * makespan(run))


def bubble_ratio(run: TimelineColumns) -> float:
    """sum(idle) / sum(busy): idle / ideal, the measure of Megatron-LM and Llama 3; 0 where no action takes time."""
    busy = float(run.device_busy.sum())
    return max(run.schedule.devices * makespan(run) - busy, 0.0) / busy if busy > 0 else 0.0


def span_bubble_fraction(run: TimelineColumns) -> float:
    """1 - largest busy / span; for equal devices the rate of the zero-bubble papers."""
    return _rest(float(run.device_busy.max()), span(run))


def _rest(part: float, whole: float) -> float:
    """1 - part / whole, never below 0 by rounding; 0 of an empty whole."""
    return max(1.0 - part / whole, 0.0) if whole > 0 else 0.0


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


def tokens_per_second(timeline: TimelineColumns) -> float | None:
    """Tokens of one step over its seconds, all data-parallel copies together; None where no model is known."""
    workload = timeline.table.workload
    return None if workload is None else _per_second(timeline, workload.tokens)


def model_flop_utilisation(timeline: TimelineColumns) -> float | None:
    """Model FLOPs of one step over what all GPUs could do in its seconds at their dense peak; None without a model.

    Attention counts in full and nothing recomputed counts: Chowdhery et al. 2022 (PaLM), arXiv 2204.02311, appendix B.
    """
    workload = timeline.table.workload
    return None if workload is None else _per_second(timeline, workload.flops) / (workload.gpus * workload.peak)


def _per_second(timeline: TimelineColumns, per_microbatch: float) -> float:
    schedule = timeline.schedule
    microbatches = schedule.microbatches / (schedule.slices * schedule.iterations)
    seconds = iteration_time(timeline)
    return microbatches * per_microbatch / seconds if seconds > 0 else float("inf")


@dataclass(frozen=True, eq=False)
class Bubbles(SizedColumns, EqualColumns):
    """The idle times between compute actions, device by device in time order; `seconds` sum to `device_idle`.

    Attributes
    ----------
    device : int32
    start, seconds : float64
        Fill, gaps and drain, from the first start to the last end of all devices.
    activations : float64
        Most live activations in it, in microbatches of one device share.
    free_memory : float64, bytes
        Memory of the device less the most that is held in the bubble; nan where either is not known.
    """

    device: np.ndarray
    start: np.ndarray
    seconds: np.ndarray
    activations: np.ndarray
    free_memory: np.ndarray

    __repr__ = short_repr


def bubble_list(run: TimelineColumns) -> Bubbles:
    """The bubbles of a run; what is shorter than rounding is none."""
    begin, end = float(run.device_start.min()), float(run.device_end.max())
    parts = [_of_device(run, device, begin, end) for device in range(run.schedule.devices)]
    devices = np.repeat(np.arange(len(parts), dtype=np.int32), [part.shape[1] for part in parts])
    start, seconds, activations, free = np.concatenate(parts, axis=1)
    return Bubbles(devices, start, seconds, activations, free)


def _of_device(run: TimelineColumns, device: int, begin: float, end: float) -> np.ndarray:
    """Start, seconds, activations and free memory of each bubble of a device (4, bubbles)."""
    rows = run.schedule.rows(device)
    own = ~run.plan.fused[rows]
    first = np.append(begin, run.row_end[rows][np.append(own[1:], True)])
    last = np.append(run.row_start[rows][own], end)
    there = last - first > 1e-12 * (end - begin)
    first, last = first[there], last[there]
    activations = _most(0.0, *activations_over_time(run, device), first, last)
    free, workload, static = np.full_like(first, np.nan), run.table.workload, static_memory(run)
    if workload is not None and static is not None and run.table.activation_bytes is not None:
        free = workload.memory - _most(static[:, device].sum(), *memory_over_time(run, device), first, last)
    return np.stack([first, last - first, activations, free])


def _most(before: float, times: np.ndarray, levels: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """The highest level of a step curve, `before` where it begins, from each of `first` to before each of `last`."""
    times, levels = np.append(-np.inf, times), np.append(before, levels)
    begin = np.searchsorted(times, first, "right") - 1
    end = np.maximum(np.searchsorted(times, last, "left"), begin + 1)
    return np.array([levels[one:other].max() for one, other in zip(begin, end, strict=True)])
