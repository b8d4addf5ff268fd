"""Reasons in sentences, from ledgers and bounds: what limits a run, and how a second run differs from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ppsim.analysis.ledger import CAUSES
from ppsim.base.units import percent_text, seconds_text, value_text
from ppsim.plots.summary import busiest_device
from ppsim.run.timelines import Timeline


def limiting_factors(run: Timeline) -> Iterator[str]:
    """Yield the largest cause of idle time, the gap to the lower bound, and the busiest device, in sentences."""
    bound, (cause, share) = run.lower_bound(), largest_cause(run)
    if share > 0:
        total = sum(float(seconds.sum()) for seconds in run.ledger().values())
        yield (
            f"devices are idle {percent_text(total / (run.makespan * run.schedule.devices))} of the step; the largest "
            f"cause is {cause} ({percent_text(share)}): {CAUSES[cause]}"
        )
    yield f"the step is {percent_text(bound.gap)} above its lower bound ({bound.which}, {seconds_text(bound.seconds)})"
    heaviest = busiest_device(run)
    if heaviest:
        yield heaviest


def largest_cause(run: Timeline) -> tuple[str, float]:
    """Return the largest cause of idle time, and its share of all devices' time."""
    idle = {cause: float(seconds.sum()) for cause, seconds in run.ledger().items()}
    cause = max(idle, key=lambda name: idle[name])
    return cause, idle[cause] / (run.makespan * run.schedule.devices or 1.0)


def short_reasons(run: Timeline) -> Iterator[str]:
    """Yield the idle time with its largest causes, the gap to the lower bound and the busiest device, in phrases."""
    idle = {cause: float(seconds.sum()) for cause, seconds in run.ledger().items()}
    total = sum(idle.values())
    if total > 0 and run.makespan > 0:
        first, second = sorted(idle, key=lambda cause: -idle[cause])[:2]
        whole = run.makespan * run.schedule.devices
        causes = f"{first} {percent_text(idle[first] / whole)}"
        causes += f", {second} {percent_text(idle[second] / whole)}" if idle[second] > 0 else ""
        yield f"idle {percent_text(total / whole)} of the step: {causes}"
    yield f"{percent_text(run.lower_bound().gap)} above its lower bound"
    if heaviest := busiest_device(run):
        yield heaviest


def seconds_by_cause(run: Timeline) -> dict[str, float]:
    """Return the seconds by cause of idle time, and `computing`, averaged over devices."""
    idle = {cause: float(seconds.sum()) / run.schedule.devices for cause, seconds in run.ledger().items()}
    return idle | {"computing": float(run.device_busy.mean())}


def removed_cause(before: Mapping[str, float], after: Mapping[str, float]) -> str | None:
    """Return the cause in `seconds_by_cause` that shrank most, with its seconds, as text; None if none did."""
    gains = {cause: before[cause] - after[cause] for cause in before}
    cause = max(gains, key=lambda name: gains[name])
    return f"{cause} -{value_text(gains[cause], 'seconds')}" if gains[cause] > 1e-9 * sum(before.values()) else None
