"""What if: a run before and after a change, and the value of a cost at which two schedules are equally fast."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ppsim.errors import ConfigError
from ppsim.timeline import Timeline

SCAN_POINTS = 48
HALVINGS = 80


@dataclass(frozen=True)
class Change:
    """One number before and after, with its unit."""

    name: str
    unit: str
    before: float | None
    after: float | None

    @property
    def difference(self) -> float | None:
        """After - before; None where either is not known."""
        return None if self.before is None or self.after is None else self.after - self.before


def run_numbers(run: Timeline) -> dict[str, tuple[float | None, str]]:
    """The headline numbers of a run and its idle seconds by cause, as name -> (value, unit)."""
    numbers: dict[str, tuple[float | None, str]] = {
        "makespan": (run.makespan, "seconds"),
        "span": (run.span, "seconds"),
        "bubble_fraction": (run.bubble_fraction, "fraction"),
        "bubble_ratio": (run.bubble_ratio, "fraction"),
        "span_bubble_fraction": (run.span_bubble_fraction, "fraction"),
        "peak_activations": (float(run.peak_activations.max()), "microbatches"),
        "peak_memory": (None if run.peak_memory is None else float(run.peak_memory.max()), "bytes"),
    }
    for cause, seconds in run.ledger().items():
        numbers[f"idle: {cause}"] = (float(seconds.sum()), "device-seconds")
    return numbers


def changes(before: Timeline, after: Timeline) -> list[Change]:
    """Every headline number and every cause of idle time, before and after."""
    old, new = run_numbers(before), run_numbers(after)
    return [Change(name, unit, value, new[name][0]) for name, (value, unit) in old.items()]


@dataclass(frozen=True)
class BreakEven:
    """Where two schedules are equally fast.

    Attributes
    ----------
    value : float or None
        The smallest value of the cost at which the faster one changes; None where one is never slower in the range.
    faster_below, faster_above : str
        The schedule that is faster (or as fast) below the value and above it; equal where `value` is None.
    low, high : float
        The range that was searched.
    """

    value: float | None
    faster_below: str
    faster_above: str
    low: float
    high: float


def break_even(first: str, second: str, step_time: Callable[[str, float], float], low: float, high: float) -> BreakEven:
    """Search the smallest value in [low, high] at which the order of two step times turns.

    `step_time(name, value)` gives seconds. A step time is piecewise linear in a cost, so that the range is scanned at
    `SCAN_POINTS` values, denser towards the low end, and the first turn halved down to rounding.
    """
    if not (math.isfinite(low) and math.isfinite(high) and 0 <= low < high):
        raise ConfigError(f"the range {low:g} to {high:g} is empty; give two numbers >= 0, the lower one first")

    def lead(value: float) -> float:
        return step_time(second, value) - step_time(first, value)

    def ahead(difference: float) -> str:
        return first if difference >= 0 else second

    tolerance = 1e-12 * max(step_time(first, low), step_time(second, low), 1e-300)
    points = [low + (high - low) * (index / SCAN_POINTS) ** 3 for index in range(SCAN_POINTS + 1)]
    last, last_lead = points[0], lead(points[0])
    for point in points[1:]:
        here = lead(point)
        if abs(last_lead) <= tolerance and abs(here) > tolerance:
            last_lead = math.copysign(0.0, -here)
        if here * last_lead < 0 and abs(here) > tolerance:
            value = _halved(lead, last, point, last_lead > 0)
            return BreakEven(value, ahead(last_lead), ahead(here), low, high)
        if abs(here) > tolerance:
            last, last_lead = point, here
    return BreakEven(None, ahead(last_lead), ahead(last_lead), low, high)


def _halved(lead: Callable[[float], float], low: float, high: float, positive_at_low: bool) -> float:
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if (lead(middle) >= 0) == positive_at_low:
            low = middle
        else:
            high = middle
    return (low + high) / 2
