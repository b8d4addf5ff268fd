"""Reasons in sentences, from ledgers and bounds: what limits a run, and how a second run differs from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ppsim.base.units import percent_text, rounded_text
from ppsim.plots.summary import busiest_device
from ppsim.run.timelines import Timeline


def limiting_factors(run: Timeline) -> Iterator[str]:
    """Yield the idle time with its two largest causes, the gap to the lower bound and the busiest device, briefly."""
    shares = idle_shares(run)
    causes = [f"{cause} {percent_text(share)}" for cause, share in [*shares.items()][:2] if share > 0]
    if causes:
        yield f"idle {percent_text(sum(shares.values()))} of the step: {', '.join(causes)}"
    yield f"step {percent_text(run.lower_bound().gap)} above its lower bound"
    if heaviest := busiest_device(run):
        yield heaviest


def idle_shares(run: Timeline) -> dict[str, float]:
    """Return each cause of idle time with its share of all devices' time, the largest first."""
    idle, whole = run.ledger().by_cause, run.makespan * run.schedule.devices or 1.0
    return {cause: idle[cause] / whole for cause in sorted(idle, key=lambda one: -idle[one])}


def seconds_by_cause(run: Timeline) -> dict[str, float]:
    """Return the seconds by cause of idle time, and `computing`, averaged over devices."""
    idle = {cause: seconds / run.schedule.devices for cause, seconds in run.ledger().by_cause.items()}
    return idle | {"computing": float(run.device_busy.mean())}


def removed_cause(before: Mapping[str, float], after: Mapping[str, float]) -> str | None:
    """Return the cause in `seconds_by_cause` that shrank most, with its seconds, as text; None if none did."""
    gains = {cause: before[cause] - after[cause] for cause in before}
    cause = max(gains, key=lambda name: gains[name])
    return f"{cause} -{rounded_text(gains[cause], 'seconds')}" if gains[cause] > 1e-9 * sum(before.values()) else None
