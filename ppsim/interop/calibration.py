"""Fits a cost profile to measured traces, with robust statistics throughout."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ppsim.actions import Kind
from ppsim.costs.profile import KINDS, Profile
from ppsim.errors import CostError
from ppsim.interop.replays import Trace

SIGMA = 1.4826  # median absolute deviation -> standard deviation of a normal distribution


def calibrate(traces: Sequence[Trace]) -> Profile:
    """A profile of all traces together.

    Action times are medians over microbatches and steps, less the overhead that every action pays; latency and
    bandwidth come from a Theil-Sen line through the transfers of each size. CostError where the traces do not belong
    together or hold no complete action.
    """
    if not traces:
        raise CostError("no traces to calibrate on; name at least one trace file")
    devices = {trace.program.devices for trace in traces}
    if len(devices) > 1:
        raise CostError(f"the traces ran on {sorted(devices)} devices; calibrate on one number of devices at a time")
    overhead = max(0.0, _median(np.concatenate([_gaps(trace) for trace in traces])))
    samples = _action_samples(traces)
    if not samples:
        raise CostError("the traces hold no complete compute action; record them again")
    parts = max(trace.program.num_stages for trace in traces)
    seconds, interval = {}, {}
    for kind in KINDS:
        if kind in samples:
            seconds[kind], interval[kind] = _per_part(samples[kind], parts)
    latency, bandwidth, links = _links(traces)
    return Profile(
        devices=devices.pop(),
        seconds=seconds,
        interval=interval,
        overhead=overhead,
        latency=latency,
        bandwidth=bandwidth,
        links=links,
        transfer_bytes=float(np.median([trace.transfer_bytes for trace in traces])),
        jitter=_jitter(samples),
        overlap_slowdown=_overlap_slowdown(traces),
        residual=_residual(samples, seconds, parts),
        fitted=[run_name(trace) for trace in traces],
        source=traces[0].device_name,
    )


def run_name(trace: Trace) -> str:
    """Schedule and size of a run, as a profile lists it."""
    return f"{trace.program.name} p={trace.program.devices} m={trace.program.microbatches}"


# A sample group is (number of stages, stage) -> all measured seconds of a kind.
Samples = dict[str, dict[tuple[int, int], np.ndarray]]


def _action_samples(traces: Sequence[Trace]) -> Samples:
    samples: dict[str, dict[tuple[int, int], list[np.ndarray]]] = {}
    for trace in traces:
        program = trace.program
        seconds = trace.end - trace.start
        for kind in (Kind.F, Kind.B, Kind.I, Kind.W):
            for stage in range(program.num_stages):
                rows = np.flatnonzero((program.kind == kind) & (program.stage == stage))
                values = seconds[:, rows].ravel()
                values = values[np.isfinite(values)]
                if len(values):
                    samples.setdefault(kind.name, {}).setdefault((program.num_stages, stage), []).append(values)
    return {kind: {key: np.concatenate(parts) for key, parts in groups.items()} for kind, groups in samples.items()}


def _per_part(groups: dict[tuple[int, int], np.ndarray], parts: int) -> tuple[list[float], list[tuple[float, float]]]:
    """Median seconds of each part of the model and its confidence interval, over runs with any number of stages."""
    middle = np.full((len(groups), parts), np.nan)
    spread = np.full((len(groups), parts), np.nan)
    for row, ((stages, stage), values) in enumerate(groups.items()):
        first, last = stage * parts / stages, (stage + 1) * parts / stages
        inside = (np.arange(parts) + 1 > first + 1e-9) & (np.arange(parts) < last - 1e-9)
        share = stages / parts
        middle[row, inside] = np.median(values) * share
        # McGill, Tukey and Larsen 1978, Variations of Box Plots: 95 % interval of a median.
        quartiles = np.percentile(values, [25, 75])
        spread[row, inside] = 1.57 * (quartiles[1] - quartiles[0]) / math.sqrt(len(values)) * share
    if np.isnan(middle).all(axis=0).any():
        raise CostError("some stages have no complete measurement of a kind that others have; record the trace again")
    seconds, half = np.nanmedian(middle, axis=0), np.nanmedian(spread, axis=0)
    return seconds.tolist(), [(float(s - h), float(s + h)) for s, h in zip(seconds, half, strict=True)]


def _gaps(trace: Trace) -> np.ndarray:
    """Seconds between the moment when an action could have started and its start."""
    compute, schedule = trace.compute, trace.program.schedule
    arrival = np.full((len(trace.end), len(compute)), -np.inf)
    consumer, _, receive = trace.transfers
    arrival[:, consumer] = trace.end[:, receive]
    previous_end = np.roll(trace.end[:, compute], 1, axis=1)
    ready = np.maximum(previous_end, arrival)
    gaps = trace.start[:, compute] - ready
    gaps[:, schedule.offsets[:-1]] = np.nan
    return gaps[np.isfinite(gaps)]


def _links(traces: Sequence[Trace]) -> tuple[float, float, dict[str, float]]:
    """Latency, bandwidth over all links, and seconds of a transfer on each link."""
    sizes, times = [], []
    by_link: dict[str, list[np.ndarray]] = {}
    for trace in traces:
        consumer, _, _ = trace.transfers
        schedule = trace.program.schedule
        sender, receiver = schedule.device[schedule.source[consumer]], schedule.device[consumer]
        for step in range(len(trace.end)):
            begin, arrived = trace.transfer_times(step)
            seconds = np.maximum(arrived - begin, 0.0)
            known = np.isfinite(seconds)
            sizes.append(np.full(known.sum(), trace.transfer_bytes))
            times.append(seconds[known])
            for pair in set(zip(sender[known].tolist(), receiver[known].tolist(), strict=True)):
                chosen = known & (sender == pair[0]) & (receiver == pair[1])
                by_link.setdefault(f"{pair[0]}-{pair[1]}", []).append(seconds[chosen])
    size, seconds = np.concatenate(sizes), np.concatenate(times)
    latency, per_byte = _line(size, seconds)
    links = {pair: _median(np.concatenate(values)) for pair, values in sorted(by_link.items())} if per_byte == 0 else {}
    return latency, math.inf if per_byte <= 0 else 1.0 / per_byte, links


def _line(size: np.ndarray, seconds: np.ndarray) -> tuple[float, float]:
    """Theil-Sen line through the median time of each size: seconds at no bytes, seconds per byte."""
    if not len(size):
        return 0.0, 0.0
    distinct = np.unique(size)
    medians = np.array([np.median(seconds[size == value]) for value in distinct])
    if len(distinct) == 1:
        return float(medians[0]), 0.0
    low, high = np.triu_indices(len(distinct), 1)
    slope = float(np.median((medians[high] - medians[low]) / (distinct[high] - distinct[low])))
    slope = max(slope, 0.0)
    return max(float(np.median(medians - slope * distinct)), 0.0), slope


def _jitter(samples: Samples) -> float:
    logs = [
        np.log(values[values > 0] / np.median(values[values > 0]))
        for groups in samples.values()
        for values in groups.values()
        if (values > 0).any()
    ]
    return SIGMA * _median(np.abs(np.concatenate(logs))) if logs else 0.0


def _overlap_slowdown(traces: Sequence[Trace]) -> float:
    """Median over kinds and stages of (seconds with a transfer under way on the device / seconds without)."""
    ratios = []
    for trace in traces:
        under_way = np.array([_under_way(trace, step) for step in range(len(trace.end))])
        seconds = (trace.end - trace.start)[:, trace.compute]
        schedule = trace.program.schedule
        for key in np.unique(np.stack([schedule.kind, schedule.stage]), axis=1).T:
            rows = (schedule.kind == key[0]) & (schedule.stage == key[1])
            values, busy = seconds[:, rows].ravel(), under_way[:, rows].ravel()
            with_transfer = values[busy & np.isfinite(values)]
            without = values[~busy & np.isfinite(values)]
            if len(with_transfer) > 2 and len(without) > 2 and np.median(without) > 0:
                ratios.append(np.median(with_transfer) / np.median(without))
    return float(np.median(ratios)) if ratios else 1.0


def _under_way(trace: Trace, step: int) -> np.ndarray:
    """For each compute row whether a transfer of its device overlapped it by more than half."""
    schedule = trace.program.schedule
    consumer, _, _ = trace.transfers
    begin, arrived = trace.transfer_times(step)
    start, end = trace.start[step, trace.compute], trace.end[step, trace.compute]
    overlapped = np.zeros(len(start))
    for device in range(schedule.devices):
        rows = slice(int(schedule.offsets[device]), int(schedule.offsets[device + 1]))
        own = (schedule.device[consumer] == device) | (schedule.device[schedule.source[consumer]] == device)
        for first, last in zip(begin[own], arrived[own], strict=True):
            overlapped[rows] += np.maximum(np.minimum(end[rows], last) - np.maximum(start[rows], first), 0.0)
    return overlapped > 0.5 * np.maximum(end - start, 1e-12)


def _residual(samples: Samples, seconds: dict[str, list[float]], parts: int) -> float:
    errors = []
    for kind, groups in samples.items():
        edges = np.concatenate([[0.0], np.cumsum(seconds[kind])])
        for (stages, stage), values in groups.items():
            fitted = np.diff(np.interp(np.array([stage, stage + 1]) * parts / stages, np.arange(parts + 1), edges))[0]
            errors.append(np.abs(values - fitted) / np.maximum(values, 1e-12))
    return _median(np.concatenate(errors))


def _median(values: np.ndarray) -> float:
    return float(np.median(values)) if len(values) else 0.0
