"""Between which seconds a real step of a simulated run is to be expected."""

from __future__ import annotations

import numpy as np

from ppsim.actions import Kind
from ppsim.analysis.steady import iteration_time
from ppsim.base.units import seconds_text
from ppsim.costs.profile import Profile
from ppsim.costs.spread import Spread
from ppsim.costs.step_spread import StepSpread
from ppsim.timeline import TimelineColumns

INTERVAL = (
    "[low, high] between which a real step lies at 90 %, from published runs (derived costs) or from left-out runs "
    "(a profile); null for given costs"
)


def spread(timeline: TimelineColumns) -> Spread | StepSpread | None:
    """How far real steps lie from this one: as published runs of its class do, or as the traces of a calibration do.

    None where the times of computation were given.
    """
    costs, schedule = timeline.costs, timeline.schedule
    if isinstance(costs, Profile):
        splits = bool(np.isin(schedule.kind, (Kind.I, Kind.W)).any())
        return costs.steps if splits or costs.steps is None else costs.steps.of_whole_backward()
    of = getattr(costs, "spread", None)
    return None if of is None else of(schedule.devices)


def step_interval(timeline: TimelineColumns) -> tuple[float, float] | None:
    """(low, high) seconds of the step at 90 %: `iteration_time` times the ends of the spread; None without one."""
    found = spread(timeline)
    return None if found is None else (iteration_time(timeline) * found.low, iteration_time(timeline) * found.high)


def interval_text(timeline: TimelineColumns) -> str | None:
    """The interval and where it comes from, as one line; None without one."""
    found, interval = spread(timeline), step_interval(timeline)
    if found is None or interval is None:
        return None
    low, high = (seconds_text(seconds, 3) for seconds in interval)
    return f"step at 90 %: {low} to {high} ({found.sentence})"
