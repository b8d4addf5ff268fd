"""Step time, bubbles and throughput of a timeline: the formulas of docs/glossary.md."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ppsim.actions import Kind, is_backward
from ppsim.analysis.memory import activations_over_time, memory_over_time, static_memory
from ppsim.base.immutable import EqualColumns, SizedColumns, cached_on
from ppsim.base.rules import declared, described
from ppsim.plan.streams import POST_VALIDATED
from ppsim.timeline import TimelineColumns


@cached_on
def makespan(run: TimelineColumns) -> float:
    """Return last end - first start over all devices, seconds."""
    return float(run.device_end.max() - run.device_start.min())


def span(run: TimelineColumns) -> float:
    """Return the largest (last end - first start) of one device, seconds."""
    return float((run.device_end - run.device_start).max())


def device_idle(run: TimelineColumns) -> np.ndarray:
    """Return makespan - busy of each device, seconds."""
    return np.maximum(makespan(run) - run.device_busy, 0.0)


def bubble_fraction(run: TimelineColumns) -> float:
    """Return 1 - sum(busy) / (devices x makespan): idle / total."""
    return _remaining_fraction(float(run.device_busy.sum()), run.schedule.devices * makespan(run))


def bubble_ratio(run: TimelineColumns) -> float:
    """Return sum(idle) / sum(busy): idle / ideal, as Megatron-LM and Llama 3 measure it; 0 if no action takes time."""
    busy = float(run.device_busy.sum())
    return max(run.schedule.devices * makespan(run) - busy, 0.0) / busy if busy > 0 else 0.0


def span_bubble_fraction(run: TimelineColumns) -> float:
    """Return 1 - largest busy / span; for equal devices it is the bubble rate of the zero-bubble papers."""
    return _remaining_fraction(float(run.device_busy.max()), span(run))


def _remaining_fraction(part: float, whole: float) -> float:
    """Return 1 - part / whole, never below 0 by rounding; 0 if the whole is 0."""
    return max(1.0 - part / whole, 0.0) if whole > 0 else 0.0


def iteration_time(run: TimelineColumns) -> float:
    """Return the seconds from one iteration to the next; the makespan if the schedule drains after each iteration.

    With post-validated optimizer steps it is the span: no device waits for another device's step, so each device starts
    its next iteration when its own step has ended (Qi et al. 2023, arXiv 2401.10241, section 4).

    For an asynchronous schedule it is the longest of three paces of the slowest device:

    - Computing: its steady window, whose computation overlaps the reductions.
    - Streams: an iteration gathers the weights and reduces the gradients of each stage of the device once. It is
      therefore at least as long as the work of either stream.
    - Versions: with v versions of the weights, an iteration's version is free again v iterations later, when the
      gradients of that iteration are reduced. v iterations are at least as long as the time from the first use of a
      stage's weights in an iteration to the end of their reduction; with one version a reduction is never hidden
      (Narayanan et al. 2021, PipeDream-2BW, arXiv 2006.09503, section 3.1).
    """
    if run.schedule.iterations == 1:
        return span(run) if run.plan.optimizer == POST_VALIDATED else makespan(run)
    return max(_computing_pace(run), _stream_pace(run), _version_pace(run))


def steady_bubble_fraction(run: TimelineColumns) -> float:
    """Return the idle fraction of the steady windows; the bubble fraction if the schedule drains after each iteration.

    If gathers or reductions set the pace of iterations, it is the fraction of `iteration_time` without computing.
    """
    schedule = run.schedule
    if schedule.iterations == 1:
        return bubble_fraction(run)
    length, busy, _ = steady_windows(run)
    if not length.sum() > 0:
        return bubble_fraction(run)
    if (pace := iteration_time(run)) > _computing_pace(run):
        return max(1.0 - float(run.device_busy.sum()) / (schedule.devices * schedule.iterations * pace), 0.0)
    return max(1.0 - float(busy.sum() / length.sum()), 0.0)


def steady_windows(run: TimelineColumns) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the steady window of each device: its seconds, its seconds in compute actions, and its forwards.

    The window lasts from the end of the device's first backward to the start of its last forward. The device neither
    fills nor drains in it. If forwards and backwards alternate, the window has equal numbers of both. All three are 0
    if no forward is in the window.
    """
    schedule, seconds = run.schedule, run.plan.seconds
    length, busy, forwards = np.zeros((3, schedule.devices))
    for device in range(schedule.devices):
        rows = schedule.rows(device)
        backward = np.flatnonzero(is_backward(schedule.kind[rows]))
        forward = np.flatnonzero(schedule.kind[rows] == Kind.F)
        within = forward[(forward > backward[0]) & (forward < forward[-1])]
        if len(within):
            first, last = rows.start + int(backward[0]), rows.start + int(forward[-1])
            length[device] = run.row_start[last] - run.row_end[first]
            busy[device] = seconds[first + 1 : last].sum()
            forwards[device] = len(within)
    return length, busy, forwards


def _computing_pace(run: TimelineColumns) -> float:
    """Return the seconds of an iteration in the slowest device's steady window; without one, makespan / iterations."""
    schedule = run.schedule
    length, _, forwards = steady_windows(run)
    if not length.sum() > 0:
        return makespan(run) / schedule.iterations
    steady = forwards > 0
    all_forwards = np.add.reduceat(schedule.kind == Kind.F, schedule.offsets[:-1], dtype=np.int64)
    return float((length[steady] / forwards[steady] * all_forwards[steady]).max()) / schedule.iterations


def _stream_pace(run: TimelineColumns) -> float:
    """Return the seconds that the busiest stream of gathers or reductions needs for one iteration."""
    devices, streams = run.schedule.devices, (run.plan.gathers, run.plan.reductions)
    needed = [np.bincount(work.device, work.seconds, minlength=devices).max() for work in streams if work is not None]
    return float(max(needed, default=0.0)) / run.schedule.iterations


def _version_pace(run: TimelineColumns) -> float:
    """Return the shortest iteration, in seconds, that the reuse of weight versions allows; 0 if nothing is reduced.

    It is measured in the middle iteration, which neither fills nor drains.
    """
    schedule, reductions = run.schedule, run.plan.reductions
    if reductions is None:
        return 0.0
    middle = schedule.iteration == schedule.iterations // 2
    first_use = np.full((schedule.devices, schedule.num_stages), np.inf)
    np.minimum.at(first_use, (schedule.device[middle], schedule.stage[middle]), run.row_start[middle])
    chosen = np.flatnonzero(middle[reductions.before - 1])
    device, after = reductions.device[chosen], reductions.before[chosen] - 1
    held = run.row_end[after] - first_use[device, reductions.stage[chosen]] + reductions.seconds[chosen]
    return float((held / schedule.weight_versions[device]).max())


def tokens_per_second(run: TimelineColumns) -> float | None:
    """Return the tokens of one step / its seconds, over all data-parallel copies; None without a model."""
    workload = run.table.workload
    return None if workload is None else _per_second(run, workload.tokens)


def model_flop_utilisation(run: TimelineColumns) -> float | None:
    """Return the model FLOPs of one step / (its seconds x the dense peak of all GPUs); None without a model.

    The whole s x s matrix of attention counts, recomputation does not: PaLM, arXiv 2204.02311, appendix B.
    """
    workload = run.table.workload
    return None if workload is None else _per_second(run, workload.flops) / (workload.gpus * workload.peak)


def causal_flop_utilisation(run: TimelineColumns) -> float | None:
    """Return `model_flop_utilisation` without the pairs of tokens that a causal mask leaves out; None without a model.

    Megatron-LM, training/training.py, `num_floating_point_operations`, from core 0.12 on.
    """
    workload, whole = run.table.workload, model_flop_utilisation(run)
    if workload is None or whole is None:
        return None
    return whole * (1 - workload.masked_flops / workload.flops) if workload.flops else whole


def _per_second(run: TimelineColumns, per_microbatch: float) -> float:
    schedule = run.schedule
    microbatches = schedule.microbatches_of_a_step
    seconds = iteration_time(run)
    return microbatches * per_microbatch / seconds if seconds > 0 else float("inf")


@described
@dataclass(frozen=True, eq=False)
class Bubbles(SizedColumns, EqualColumns):
    """The idle times between compute actions, device by device in time order; `seconds` sum to `device_idle`.

    They are fill, gaps and drain, from the first start to the last end of all devices.
    """

    device: np.ndarray = declared("int32")
    start: np.ndarray = declared("float64, seconds")
    seconds: np.ndarray = declared("float64")
    activations: np.ndarray = declared("maximum live activations in the bubble, in microbatches of one device share")
    free_memory: np.ndarray = declared("bytes: memory of the device - most memory held; nan if either is unknown")


def bubble_list(run: TimelineColumns) -> Bubbles:
    """Return the bubbles of a run, without idle times that are only rounding."""
    begin, end = float(run.device_start.min()), float(run.device_end.max())
    parts = [_bubbles_of(run, device, begin, end) for device in range(run.schedule.devices)]
    devices = np.repeat(np.arange(len(parts), dtype=np.int32), [part.shape[1] for part in parts])
    return Bubbles(devices, *np.concatenate(parts, axis=1))


def _bubbles_of(run: TimelineColumns, device: int, begin: float, end: float) -> np.ndarray:
    """Return start, seconds, activations and free memory of each bubble of a device, float64 (4, bubbles)."""
    first, last = idle_spans(run, device, begin, end)
    activations = largest_level(0.0, *activations_over_time(run, device), first, last)
    free, workload, static = np.full_like(first, np.nan), run.table.workload, static_memory(run)
    if workload is not None and static is not None and run.table.activation_bytes is not None:
        held = largest_level(static[:, device].sum(), *memory_over_time(run, device), first, last)
        free = workload.memory - held
    return np.stack([first, last - first, activations, free])


def idle_spans(run: TimelineColumns, device: int, begin: float, end: float) -> tuple[np.ndarray, np.ndarray]:
    """Return start and end of the times between two seconds in which a device runs no compute action.

    Spans that are only rounding errors are left out.
    """
    rows = run.schedule.rows(device)
    starts_alone = ~run.plan.fused[rows]
    first = np.append(begin, run.row_end[rows][np.append(starts_alone[1:], True)])
    last = np.append(run.row_start[rows][starts_alone], end)
    idle = last - first > 1e-12 * (end - begin)
    return first[idle], last[idle]


def largest_level(
    before: float, times: np.ndarray, levels: np.ndarray, first: np.ndarray, last: np.ndarray
) -> np.ndarray:
    """Return the largest level of a step curve from each of `first` to before each of `last`.

    The level is `before` until the first of the times.
    """
    times, levels = np.append(-np.inf, times), np.append(before, levels)
    begin = np.searchsorted(times, first, "right") - 1
    end = np.maximum(np.searchsorted(times, last, "left"), begin + 1)
    return np.array([levels[start:stop].max() for start, stop in zip(begin, end, strict=True)])
