"""Between which seconds a real step of a simulated run is to be expected."""

from __future__ import annotations

from ppsim.analysis.steady import iteration_time
from ppsim.base.units import seconds_text
from ppsim.costs.spread import Spread
from ppsim.timeline import TimelineColumns


def spread(timeline: TimelineColumns) -> Spread | None:
    """The spread of published runs of this one's class; None where no time of computation was derived."""
    of = getattr(timeline.costs, "spread", None)
    return None if of is None else of(timeline.schedule.devices)


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
    far = f", {found.doublings:.1f} doublings beyond them" if found.doublings >= 0.05 else ""
    return (
        f"step at 90 %: {low} to {high} (derived costs: spread of {found.runs} published runs of its class, "
        f"{found.group}{far})"
    )
