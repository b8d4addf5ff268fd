"""Assumptions behind a simulated run, one readable sentence each."""

from __future__ import annotations

from ppsim.costs.profile import Profile
from ppsim.timeline import TimelineColumns


def assumptions(timeline: TimelineColumns) -> list[str]:
    """Return what the costs assume about this schedule; empty if they state nothing."""
    costs = timeline.costs
    if isinstance(costs, Profile):
        return costs.assumptions(timeline.schedule)
    return list(getattr(costs, "assumptions", []))
