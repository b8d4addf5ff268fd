"""Reasons in sentences, from ledgers and bounds: what limits a run, and how a second run differs from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ppsim.analysis.ledger import CAUSES
from ppsim.base.units import percent_text, seconds_text, value_text
from ppsim.costs.derive import DerivedCosts
from ppsim.run.timelines import Timeline

_NOTABLE = 0.02  # report a device only if it is this much busier than the average over devices
PARTS = {"embedding": "the embedding", "block": "blocks", "prediction": "prediction modules", "head": "the head"}


def limiting_factors(run: Timeline) -> Iterator[str]:
    """Yield the largest cause of idle time, the gap to the lower bound, and the busiest device, in sentences."""
    ledger, bound = run.ledger(), run.lower_bound()
    idle = {cause: float(seconds.sum()) for cause, seconds in ledger.items()}
    total = sum(idle.values())
    share = total / (run.makespan * run.schedule.devices) if run.makespan > 0 else 0.0
    if total > 0:
        cause = max(idle, key=lambda name: idle[name])
        yield (
            f"devices are idle {percent_text(share)} of the step; the largest cause is {cause} "
            f"({percent_text(idle[cause] / total, 0)} of it): {CAUSES[cause]}"
        )
    yield f"the step is {percent_text(bound.gap)} above its lower bound ({bound.which}, {seconds_text(bound.seconds)})"
    heaviest = busiest_device(run)
    if heaviest:
        yield heaviest


def busiest_device(run: Timeline) -> str | None:
    """Return a sentence about the device that computes longest and its layers; None if all are equal."""
    busy = run.device_busy
    device = int(busy.argmax())
    more = float(busy[device] / busy.mean()) - 1 if busy.mean() > 0 else 0.0
    if more < _NOTABLE:
        return None
    return f"device {device} computes {percent_text(more)} longer than the mean{_held_by(run, device)}"


def _held_by(run: Timeline, device: int) -> str:
    if not isinstance(run.costs, DerivedCosts):
        return ""
    schedule, held = run.schedule, run.costs.stages(run.schedule.num_stages)
    stages = schedule.holdings[schedule.holdings[:, 0] == device, 1].tolist()
    blocks = sum(held[stage].get("block", 0) for stage in stages)
    others = [PARTS[name] for stage in stages for name in held[stage] if name != "block"]
    each = np.array([one.get("block", 0) for one in held]).sum() / schedule.devices
    return f": it holds {blocks} blocks (mean {each:g})" + (f" and {' and '.join(others)}" if others else "")


def differing_keys(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """Return the keys at which two points differ, as text: the second's value instead of the first's."""
    keys = [key for key in {**first, **second} if first.get(key) != second.get(key)]
    return ", ".join(f"{key}={second.get(key)} instead of {first.get(key)}" for key in keys) or "nothing"


def seconds_by_cause(run: Timeline) -> dict[str, float]:
    """Return the seconds by cause of idle time, and `computing`, averaged over devices."""
    idle = {cause: float(seconds.sum()) / run.schedule.devices for cause, seconds in run.ledger().items()}
    return idle | {"computing": float(run.device_busy.mean())}


def removed_cause(before: Mapping[str, float], after: Mapping[str, float]) -> str | None:
    """Return the cause in `seconds_by_cause` that shrank most, with its seconds, as text; None if none did."""
    gains = {cause: before[cause] - after[cause] for cause in before}
    cause = max(gains, key=lambda name: gains[name])
    return f"{cause} -{value_text(gains[cause], 'seconds')}" if gains[cause] > 1e-9 * sum(before.values()) else None
