"""Every bubble of a timeline: when it is, how long, and what memory is free in it, for those who fill bubbles."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ppsim.analysis.occupancy import occupancy
from ppsim.base.immutable import EqualColumns
from ppsim.base.lists import Counted
from ppsim.timeline import TimelineColumns


@dataclass(frozen=True, eq=False)
class Bubbles(Counted, EqualColumns):
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
    held = occupancy(run)
    activations = _most(0.0, *held.activations_over_time(device), first, last)
    free, workload = np.full_like(first, np.nan), run.table.workload
    if workload is not None and held.static_memory is not None and run.table.activation_bytes is not None:
        always = held.static_memory[:, device].sum()
        free = workload.memory - _most(always, *held.memory_over_time(device), first, last)
    return np.stack([first, last - first, activations, free])


def _most(before: float, times: np.ndarray, levels: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """The highest level of a step curve, `before` where it begins, from each of `first` to before each of `last`."""
    times, levels = np.append(-np.inf, times), np.append(before, levels)
    begin = np.searchsorted(times, first, "right") - 1
    end = np.maximum(np.searchsorted(times, last, "left"), begin + 1)
    return np.array([levels[one:other].max() for one, other in zip(begin, end, strict=True)])
