"""Families with R in idle time (RiPipe, Mario), and searches within a memory limit that R helps to keep."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import BuildError
from ppsim.costs.table import CostModel, CostTable
from ppsim.engines.running import makespan_of
from ppsim.families.interleaved import interleaved_one_forward_one_backward
from ppsim.families.one_forward_one_backward import one_forward_one_backward
from ppsim.families.registry import RegisteredFamily, family, require_choice
from ppsim.plan.holding import Holding
from ppsim.plan.lengths import seconds_by_kind
from ppsim.schedule.columns import ScheduleColumns
from ppsim.search.memory_actions import NEEDED, add_memory_actions, add_recomputes, price_schedule
from ppsim.search.problem import DEFAULT_COSTS, limits_of

RECOMPUTED_FRACTIONS = (0.5, 1.0)  # fractions of the stages, from stage 0 on: their activations live longest


@family(
    "ripipe",
    group="memory",
    title="Interleaved 1F1B with R in idle time (RiPipe)",
    idea="Interleaved 1F1B in which R is an action of its own. In mode `in-bubble` only what goes beyond p v live "
    "stages is recomputed, as far as possible in idle time. In mode `in-advance` all stages are recomputed "
    "but where a backward directly follows its forward, and R moves ahead into idle time, so that it does not wait for "
    "the gradient. What is idle follows from `costs`.",
    constraints="those of interleaved-1f1b",
    makespan="<= {interleaved-1f1b's with backwards longer by what they recompute|"
    "(mv+p-1)(f+b+f) for c = 0, m mod p = 0}",
    peak_activations="<= p{ (p v stages)}",
    source="Ascend/MindSpeed, docs/en/features/recompute_independent_pipelining.md and "
    "mindspeed/core/pipeline_parallel/ripipe_schedules.py: --recompute-in-bubble, --recompute-in-advance",
)
def ripipe(p: int, m: int, v: int = 2, *, mode: str = "in-bubble", costs: CostModel | None = None) -> ScheduleColumns:
    """Return interleaved 1F1B with R moved ahead."""
    require_choice("mode", mode, ("in-bubble", "in-advance"))
    plain = ScheduleColumns.from_blocks(interleaved_one_forward_one_backward(p, m, v), name="ripipe")
    stages = NEEDED if mode == "in-bubble" else "all"
    return add_recomputes(plain, stages, "idle", costs, float(p))


@family(
    "mario",
    group="memory",
    title="1F1B with R in idle time and forwards pulled ahead (Mario)",
    idea="1F1B that recomputes every stage but where a backward directly follows its forward. R runs before the "
    "gradient arrives, and further ahead where the device is idle; forwards go ahead into idle time as far as the "
    "memory that recomputing freed holds them: no device holds more than in 1F1B without it. What is idle follows from "
    "`costs`.",
    makespan="<= {1F1B's with backwards longer by a forward|(m+p-1)(F+B+F) + 2c floor((p-1)(m+p-1)/p)}",
    peak_activations="<= min(m, p-r)",
    source="Liu et al. 2025, Mario: Near Zero-cost Activation Checkpointing in Pipeline Parallelism, doi "
    "10.1145/3710848.3710878",
)
def mario(p: int, m: int, v: int, *, costs: CostModel | None = None) -> ScheduleColumns:
    """Return 1F1B with R and F moved ahead."""
    plain = ScheduleColumns.from_blocks(one_forward_one_backward(p, m, v), name="mario")
    return add_recomputes(plain, "all", "idle+forwards", costs)


def build_with_memory_actions(
    family: RegisteredFamily,
    sizes: tuple[int, int, int | None],
    options: Mapping[str, Any],
    actions: Mapping[str, Any],
    costs: CostModel | None,
    memory_limit: float | Sequence[float] | None,
) -> ScheduleColumns:
    """Return a family's schedule with the R, or OFFLOAD and RELOAD, of `actions`, the keywords in `MEMORY_ACTIONS`.

    If only activations that do not fit within `memory_limit` are to be recomputed, and the family searches within a
    limit, the search takes R into account.
    """
    only_needed_r = actions.get("recompute") == NEEDED and actions.get("offload") is None
    if only_needed_r and "memory_limit" in family.options and memory_limit is not None:
        placing = actions.get("recompute_placing") or "backward"
        return _search_with_r(family, sizes, options, placing, costs, memory_limit)
    columns = family.columns(*sizes, **options)
    return add_memory_actions(columns, **actions, costs=costs, memory_limit=memory_limit)


def _search_with_r(
    family: RegisteredFamily,
    sizes: tuple[int, int, int | None],
    options: Mapping[str, Any],
    placing: str,
    costs: CostModel | None,
    memory_limit: float | Sequence[float],
) -> ScheduleColumns:
    """Return the shortest schedule of several searches, all within the limit.

    The first search keeps the limit without R. The others search without a limit, or under costs of stages that
    recompute; their results get R for as few activations as the limit requires, placed according to `placing`. If
    backwards are split, an activation that waits for its W cannot be recomputed; so whole backwards are searched too.
    All searches share the `seconds` of the options.

    Raises
    ------
    BuildError
        No search keeps the limit.
    """
    costs = DEFAULT_COSTS if costs is None else costs
    found: list[ScheduleColumns] = []
    rejected: list[BuildError] = []
    changes = list(_searches(family, sizes, {**options, "costs": costs}, memory_limit))
    for change in changes:
        share = {"seconds": options["seconds"] / len(changes)} if options.get("seconds") else {}
        try:
            schedule = family.columns(*sizes, **{**options, **share, **change})
            fits = change is changes[0]
            found.append(schedule if fits else add_recomputes(schedule, NEEDED, placing, costs, memory_limit))
        except BuildError as error:
            rejected.append(error)
    if not found:
        raise rejected[-1]
    return min(found, key=lambda schedule: makespan_of(schedule, price_schedule(schedule, costs)))


def _searches(
    family: RegisteredFamily, sizes: tuple[int, int, int | None], options: Mapping[str, Any], limit: Any
) -> Iterator[dict[str, Any]]:
    """Yield the options that each search changes; the first search keeps the limit without R."""
    yield {"memory_limit": limit}
    splits = [{}, {"split": False}] if "split" in family.options else [{}]
    for split in splits:
        yield {"memory_limit": None} | split
    if "costs" not in family.options:
        return
    briefly = {"rounds": 0, "seconds": None} if "rounds" in family.options else {}
    try:
        placed = family.columns(*sizes, **{**options, **briefly, "memory_limit": None})
    except BuildError:  # the searches raise it too
        return
    for fraction in RECOMPUTED_FRACTIONS:
        costs = RecomputingCosts(options["costs"], fraction)
        left = limits_of(placed.devices, limit) - costs.restored_by_one_r(placed)
        for split in splits if left.min() > 0 else ():
            yield {"memory_limit": left.tolist(), "costs": costs} | split


@dataclass(frozen=True)
class RecomputingCosts:
    """Costs of a schedule without R whose first stages recompute: they hold stored inputs, and R makes B and I longer.

    `fraction` of the stages recompute.
    """

    costs: CostModel
    fraction: float

    def table(self, schedule: ScheduleColumns) -> CostTable:
        """Return the costs of this schedule; errors as those of the cost model."""
        table = self.costs.table(schedule)
        seconds = table.seconds.copy()
        seconds[[Kind.B, Kind.I]] += np.where(self._recomputes(schedule), seconds_by_kind(schedule, table)[Kind.R], 0.0)
        return replace(
            table, seconds=seconds, overlap=None, stage_share=table.stage_share - self._restored_by_r(schedule, table)
        )

    def restored_by_one_r(self, schedule: ScheduleColumns) -> np.ndarray:
        """Return the largest amount that one R restores on each device, in device shares, float64 (devices,)."""
        device, stage = schedule.holdings.T
        largest = np.zeros(schedule.devices)
        np.maximum.at(largest, device, self._restored_by_r(schedule, self.costs.table(schedule))[stage])
        return largest

    def _recomputes(self, schedule: ScheduleColumns) -> np.ndarray:
        return np.arange(schedule.num_stages) < self.fraction * schedule.num_stages

    def _restored_by_r(self, schedule: ScheduleColumns, table: CostTable) -> np.ndarray:
        """Return the amount that an R of each stage restores, in device shares, float64 (stages,)."""
        restored = Holding(schedule, table, table.stage_share).adds[Kind.R]
        return np.where(self._recomputes(schedule), restored, 0.0)
