"""Changes and break-even points: a run before and after, and the cost at which two schedules are equally fast."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from ppsim.analysis.measures import shown_in
from ppsim.base.errors import BuildError, ConfigError
from ppsim.run.timelines import Timeline
from ppsim.studies.points import NOISE

Numbers = dict[str, tuple[float | None, str]]  # name -> (value, unit)

SCAN_POINTS = 48
MOST_STEPS = 100
BUSY = "busy"
IDLE = "idle: "  # what the names of the ledger's rows begin with
_EQUAL = 1e-12  # of the step time: two schedules are equally fast


@dataclass(frozen=True)
class Change:
    """One number before and after, with its unit."""

    name: str
    unit: str
    before: float | None
    after: float | None

    @property
    def difference(self) -> float | None:
        """After - before, 0 where they differ by rounding alone; None where either is not known."""
        if self.before is None or self.after is None:
            return None
        same = abs(self.after - self.before) <= NOISE * max(abs(self.before), abs(self.after))
        return 0.0 if same else self.after - self.before


def run_numbers(run: Timeline, *beside: Timeline) -> Numbers:
    """Return the headline numbers of a run, its busy seconds and its idle seconds by cause: name -> (value, unit).

    The numbers are those that say something about the run, or about one that it is set `beside`.
    """
    numbers: Numbers = {
        measure.name: (measure.number(run), measure.unit)
        for measure in shown_in("what-if")
        if any(map(measure.is_shown_for, (run, *beside)))
    }
    numbers[BUSY] = (float(run.device_busy.sum()), "device-seconds")
    least = NOISE * run.makespan * run.schedule.devices
    for cause, seconds in run.ledger().items():
        total = float(seconds.sum())
        numbers[f"{IDLE}{cause}"] = (total if total > least else 0.0, "device-seconds")
    return numbers


def changes(before: Timeline, after: Timeline) -> list[Change]:
    """Return every headline number and every cause of idle time, before and after."""
    old, new = run_numbers(before, after), run_numbers(after, before)
    return [Change(name, unit, value, new[name][0]) for name, (value, unit) in old.items()]


@dataclass(frozen=True)
class BreakEven:
    """Break-even point of two schedules.

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


def break_even(
    first: str, second: str, step_time: Callable[[str, float], float], low: float, high: float, whole: bool = False
) -> BreakEven:
    """Search the smallest value in [low, high] at which the order of two step times turns.

    `step_time(name, value)` gives seconds. The range is scanned at `SCAN_POINTS` values, denser at the low end, and
    the first turn is then narrowed down to rounding; of two turns between neighbouring values neither is seen. Of a
    `whole` number, such as microbatches, the value is the first one at which the order has turned.

    Raises
    ------
    ConfigError
        An empty range, or twice the same schedule.
    """
    if first == second:
        raise ConfigError(f"{first} is always as fast as itself; name two schedules")
    if not (math.isfinite(low) and math.isfinite(high) and 0 <= low < high):
        raise ConfigError(f"the range {low:g} to {high:g} is empty; give two numbers >= 0, the lower one first")

    def lead(value: float) -> float:
        try:
            return step_time(second, value) - step_time(first, value)
        except BuildError:
            if not whole:
                raise
            return 0.0  # one of them does not allow this number

    def ahead(difference: float) -> str:
        return first if difference >= 0 else second

    tolerance = _EQUAL * max(step_time(first, low), 1e-300)
    points = [low + (high - low) * (index / SCAN_POINTS) ** 3 for index in range(SCAN_POINTS + 1)]
    if whole:
        points = sorted({*map(round, points)})
    last, last_lead = low, 0.0
    for point in points:
        here = lead(point)
        if abs(here) <= tolerance:
            continue  # equally fast here: no turn, unless the order is another one further on
        if here * last_lead < 0:
            if whole:
                value = next(one for one in range(int(last) + 1, int(point) + 1) if lead(one) * last_lead < 0)
            else:
                value = _turn(lead, (last, last_lead), (point, here), tolerance)
            return BreakEven(value, ahead(last_lead), ahead(here), low, high)
        last, last_lead = point, here
    return BreakEven(None, ahead(last_lead), ahead(last_lead), low, high)


def _turn(
    lead: Callable[[float], float], low: tuple[float, float], high: tuple[float, float], tolerance: float
) -> float:
    """Return the value at which `lead` is zero, between two (value, lead) of different sign.

    Step times are piecewise linear in most costs, so that the straight line between the two soon hits; every other step
    halves the range, in case it does not.
    """
    for step in range(MOST_STEPS):
        (left, at_left), (right, at_right) = low, high
        middle = (left + right) / 2 if step % 2 else left + (right - left) * (at_left / (at_left - at_right))
        if not left < middle < right:
            return middle
        here = lead(middle)
        if abs(here) <= tolerance:
            return middle
        if (here > 0) == (at_left > 0):
            low = (middle, here)
        else:
            high = (middle, here)
    return (low[0] + high[0]) / 2
