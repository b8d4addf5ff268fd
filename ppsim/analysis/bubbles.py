"""Step time and bubbles of a timeline: the formulas of docs/glossary.md."""

from __future__ import annotations

import numpy as np

from ppsim.base.immutable import kept
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
