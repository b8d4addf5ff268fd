"""Between which seconds a real step of a simulated run is to be expected."""

from __future__ import annotations

import numpy as np

from ppsim.actions import Kind
from ppsim.analysis.bubbles import iteration_time
from ppsim.base.units import counted, seconds_text
from ppsim.costs.profile import Profile
from ppsim.costs.spread import Spread, StepSpread, order_of_schedules
from ppsim.timeline import TimelineColumns

INTERVAL = (
    "[low, high] between which a real step lies at 90 %, from published runs (derived costs) or from left-out runs "
    "(a profile); null for given costs"
)

QUANTILES = "seconds of a real step: 5 in 100 are expected below P5, 50 below P50, 95 below P95; null as interval is"


def spread(timeline: TimelineColumns) -> Spread | StepSpread | None:
    """How far real steps lie from this one: as published runs of its class do, or as the traces of a calibration do.

    None where the times of computation were given.
    """
    costs, schedule = timeline.costs, timeline.schedule
    if isinstance(costs, Profile):
        splits = bool(np.isin(schedule.kind, (Kind.I, Kind.W)).any())
        return costs.steps if splits or costs.steps is None else costs.steps.without_halves()
    of = getattr(costs, "spread", None)
    return None if of is None else of(schedule.devices)


def step_interval(timeline: TimelineColumns) -> tuple[float, float] | None:
    """(low, high) seconds of the step at 90 %: `iteration_time` times the ends of the spread; None without one."""
    found = spread(timeline)
    return None if found is None else (iteration_time(timeline) * found.low, iteration_time(timeline) * found.high)


def step_quantiles(timeline: TimelineColumns) -> dict[str, float] | None:
    """P5, P50 and P95 of a real step in seconds; None without a spread."""
    found, step = spread(timeline), iteration_time(timeline)
    return None if found is None else {"P5": step * found.low, "P50": step * found.middle, "P95": step * found.high}


def surely_faster(one: TimelineColumns, other: TimelineColumns) -> bool:
    """Whether a real step of `one` is shorter than one of `other` at 90 %, both of the same model on the same machine.

    Intervals of a profile are each schedule's own error: they must not meet. Those of derived costs are mostly the
    model's and the machine's, which both share: the steps must lie further apart than published pairs lie from their
    predicted ratio. False where no spread is known.
    """
    first, second = spread(one), spread(other)
    if first is None or second is None:
        return False
    if isinstance(first, StepSpread):
        return iteration_time(one) * first.high < iteration_time(other) * second.low
    return iteration_time(one) * order_of_schedules()[0] < iteration_time(other)


def interval_text(timeline: TimelineColumns) -> str | None:
    """The interval and where it comes from, as one line; None without one."""
    found, interval = spread(timeline), step_interval(timeline)
    if found is None or interval is None:
        return None
    low, high = (seconds_text(seconds, 3) for seconds in interval)
    costs, elsewhere = timeline.costs, ""
    if isinstance(costs, Profile) and costs.devices != timeline.schedule.devices:
        elsewhere = f"; these were of {counted(costs.devices, 'device')}"
    return f"step at 90 %: {low} to {high} ({found.sentence}{elsewhere})"


def short_interval(timeline: TimelineColumns) -> str:
    """The interval in a few characters, such as ` (90 %: 4.2 s to 5.7 s)`; nothing without one."""
    return interval_ends(step_interval(timeline))


def interval_ends(interval: tuple[float, float] | None) -> str:
    """Both ends, as ` (90 %: 4.2 s to 5.7 s)`; nothing without them."""
    if interval is None:
        return ""
    return f" (90 %: {seconds_text(interval[0], 3)} to {seconds_text(interval[1], 3)})"
