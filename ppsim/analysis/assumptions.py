"""Assumptions behind a simulated run, one readable sentence each; and given keys that change nothing in it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from typing import Any

from ppsim.base.errors import PpsimError, shown
from ppsim.base.immutable import equal
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.given import Costs
from ppsim.costs.profile import Profile
from ppsim.costs.table import CostModel, CostTable
from ppsim.plan.holding import ActivationMemory, backward_bytes, logits_bytes, static_bytes
from ppsim.plan.lengths import collective_fraction, structure, transfer_bytes
from ppsim.plan.resolve import repriced
from ppsim.plan.streams import make_ports
from ppsim.timeline import TimelineColumns

# What a key needs to change something.
_NEEDS = json.loads(files("ppsim.analysis").joinpath("needs.json").read_text(encoding="utf-8"))
NEEDS = {key: need for need, keys in _NEEDS.items() for key in keys}


def assumptions(timeline: TimelineColumns) -> list[str]:
    """Return the assumptions of the costs about this schedule, and the keys that change nothing in this run."""
    costs = timeline.costs
    if isinstance(costs, Profile):
        return costs.assumptions(timeline.schedule)
    return [*getattr(costs, "assumptions", []), *unused_keys(timeline)]


def unused_keys(timeline: TimelineColumns) -> Iterator[str]:
    """Yield a sentence for each key of the costs without which the run would be the same."""
    costs, plan, now = timeline.costs, timeline.plan, None
    if plan.optimizer_seconds is not None and not plan.optimizer_seconds.any():
        yield f"optimizer: {plan.optimizer} changes nothing here: it needs costs.optimizer_step"
    if plan.noise is not None and not _has_noise(timeline):
        yield "jitter changes nothing here: it needs a spread above 0, or a factor other than 1, of what this run has"
    if not isinstance(costs, Costs | DerivedCosts):
        return
    for key, value, other in costs.without_each():
        try:
            other = _with_stages_of(other, costs)
            now = _inputs_of_run(timeline, costs, timeline.table) if now is None else now
            if not equal(now, _inputs_of_run(timeline, other, other.table(timeline.schedule))):
                continue
        except PpsimError:
            continue  # the others need the key
        needs = f": it needs {NEEDS[key]}" if key in NEEDS else ""
        yield f"{key}: {shown(value)} changes nothing here{needs}"


def _has_noise(timeline: TimelineColumns) -> bool:
    plan, smooth = timeline.plan, repriced(timeline.plan, timeline.table)
    names = ("seconds", "transfer_seconds", "gathers", "reductions", "copies", "barriers", "optimizer_seconds")
    return not all(equal(getattr(plan, name), getattr(smooth, name)) for name in names)


def _with_stages_of(other: CostModel, costs: CostModel) -> CostModel:
    """Return other costs with the stages of `costs`, which a search may have chosen."""
    stages = costs.layers_of_stages if isinstance(costs, DerivedCosts) else None
    return other.with_stages(stages) if stages and isinstance(other, DerivedCosts) else other


def _inputs_of_run(timeline: TimelineColumns, costs: CostModel, table: CostTable) -> tuple[Any, ...]:
    """Return all values that a run takes from costs: lengths, structure, spread, known memory, sizes of the work."""
    schedule, plan = timeline.schedule, timeline.plan
    spread = costs.spread(schedule.devices) if isinstance(costs, DerivedCosts) else None
    table, run_table = (_without_idle_columns(timeline, one) for one in (table, timeline.table))
    if structure(table) != structure(run_table):
        return (structure(table),)
    other, static = repriced(plan, table), static_bytes(schedule, table)
    held, memory = table.activation_bytes, ()
    if held is not None and static is not None:
        sent = transfer_bytes(schedule, table, plan.source[plan.remote])
        backward, logits = backward_bytes(table), logits_bytes(schedule, table)
        memory = static, ActivationMemory(schedule, table, held).changes(), sent, backward, logits
    return (
        structure(table), spread, other.seconds, other.transfer_seconds, other.gathers, other.reductions, other.copies,
        other.barriers, other.optimizer_seconds, other.ports, table.workload,
        collective_fraction(schedule, table), ActivationMemory(schedule, table, table.stage_share).changes(), memory,
    )  # fmt: skip


def _without_idle_columns(timeline: TimelineColumns, table: CostTable) -> CostTable:
    """Return a table without the columns of slots, gathers and ports, if the run has none."""
    ports = make_ports(timeline.schedule, table)
    idle = {
        "overlap": not timeline.schedule.joined.any(),
        "unshard_seconds": timeline.plan.gathers is None,
        "port_capacity": ports is None or not (ports.of_transfer >= 0).any(),
    }
    return replace(table, **{name: None for name, is_idle in idle.items() if is_idle})
