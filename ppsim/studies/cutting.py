"""Cutting: the stages of points that choose ranks are sought anew, with their simulated steps as the judge."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import Any

from ppsim.base.compiling import can_compile
from ppsim.base.errors import PpsimError
from ppsim.config import Source
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.layout_string import of_stages
from ppsim.run.partitions import best_stages
from ppsim.studies.crew import Crew, Outcome
from ppsim.studies.points import own_changes, schedule_of
from ppsim.studies.store import Store, key_of

PATIENCE = 4


def cut_anew(
    source: Source, points: Sequence[Mapping[str, Any]], limit: float, executor: Executor, store: Store | None
) -> list[str | None]:
    """The layout string of each point's fastest stages with at most `limit` bytes a device, those it has among them.

    None where the point has no layers to cut, or its worker died.
    """

    def key(changes: Mapping[str, Any]) -> str:
        return key_of({"cut": changes, "limit": limit, "config": source.data}, source.place)

    work = functools.partial(_cut_all, source, limit)
    found = Crew(work, points, executor, store, key).in_order()
    return [one.get("stages") for one in found]


def _cut_all(source: Source, limit: float, points: Sequence[Mapping[str, Any]]) -> list[Outcome]:
    return [{"stages": _cut(source, limit, changes)} for changes in points]


def _cut(source: Source, limit: float, changes: Mapping[str, Any]) -> str | None:
    try:
        config = source.config(own_changes(source, changes))
        schedule, costs = config.lowered(schedule_of(config)), config.costs
        if not isinstance(costs, DerivedCosts):
            return None
        now = of_stages([layer.name for layer in stage] for stage in costs.stage_layers(schedule.num_stages))
        engine = "compiled" if can_compile() else "auto"
        means = {"engine": engine, "patience": PATIENCE, "starts": [now]}
        best = best_stages(costs, schedule, config.transport, config.optimizer, limit, **means)
        return best.megatron_layout(schedule.num_stages)
    except PpsimError:
        return None
