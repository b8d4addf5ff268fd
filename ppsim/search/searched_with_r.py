"""Search under a memory limit where activations may be made again: the shortest of several ways to keep the limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import BuildError
from ppsim.costs.given import Costs
from ppsim.costs.table import CostModel, CostTable
from ppsim.families.registry import RegisteredFamily
from ppsim.schedule.columns import ScheduleColumns
from ppsim.search.idle_time import makespan_of
from ppsim.search.memory_actions import priced, recomputed
from ppsim.search.problem import limits_of

PARTS = (0.5, 1.0)  # of the stages, the first, whose activations live longest


def searched_with_r(
    family: RegisteredFamily,
    sizes: tuple[int, int, int | None],
    options: Mapping[str, Any],
    placing: str,
    costs: CostModel | None,
    memory_limit: float | Sequence[float],
) -> ScheduleColumns:
    """The shortest of what a family that searches finds within the limit, and of what it finds beyond it, made to fit.

    Beyond the limit it searches without one, and under costs with which the first half of the stages, or all, hold only
    their inputs and make the rest again. What is found gets R for as few activations as the limit asks for, placed as
    `placing` says. Where a backward is split, what waits for its W cannot be made again, so that whole backwards are
    searched too. `seconds` among the options are for all searches together.

    Raises
    ------
    BuildError
        No way keeps the limit.
    """
    costs = Costs(forward=1.0, input_grad=1.0, weight_grad=1.0) if costs is None else costs
    made: list[ScheduleColumns] = []
    refused: list[BuildError] = []
    changes = list(_changes(family, sizes, {**options, "costs": costs}, memory_limit))
    for change in changes:
        share = {"seconds": options["seconds"] / len(changes)} if options.get("seconds") else {}
        try:
            found = family.columns(*sizes, **{**options, **share, **change})
            fits = change is changes[0]
            made.append(found if fits else recomputed(found, "needed", placing, costs, memory_limit))
        except BuildError as error:
            refused.append(error)
    if not made:
        raise refused[-1]
    return min(made, key=lambda one: makespan_of(one, priced(one, costs)))


def _changes(
    family: RegisteredFamily, sizes: tuple[int, int, int | None], options: Mapping[str, Any], limit: Any
) -> Iterator[dict[str, Any]]:
    """The options that change from search to search; the first one keeps the limit without R."""
    yield {"memory_limit": limit}
    splits = [{}, {"split": False}] if "split" in family.options else [{}]
    for split in splits:
        yield {"memory_limit": None} | split
    if "costs" not in family.options:
        return
    briefly = {"rounds": 0, "seconds": None} if "rounds" in family.options else {}
    try:
        placed = family.columns(*sizes, **{**options, **briefly, "memory_limit": None})
    except BuildError:  # which the searches say themselves
        return
    for part in PARTS:
        again = MadeAgain(options["costs"], part)
        left = limits_of(placed.devices, limit) - again.held_by_r(placed)
        for split in splits if left.min() > 0 else ():
            yield {"memory_limit": left.tolist(), "costs": again} | split


@dataclass(frozen=True)
class MadeAgain:
    """Costs with which the first part of the stages hold their inputs alone, and their backwards take an R longer."""

    costs: CostModel
    part: float

    def table(self, schedule: ScheduleColumns) -> CostTable:
        """The costs of this schedule; errors as the model's own."""
        table = self.costs.table(schedule)
        again = table.seconds[Kind.F] if table.recompute_seconds is None else table.recompute_seconds
        seconds = table.seconds.copy()
        seconds[[Kind.B, Kind.I]] += np.where(self._chosen(schedule), again, 0.0)
        return replace(
            table, seconds=seconds, overlap=None, stage_share=table.stage_share - self._again(schedule, table)
        )

    def held_by_r(self, schedule: ScheduleColumns) -> np.ndarray:
        """The most that one R makes on each device, float64 (devices,)."""
        device, stage = schedule.holdings.T
        most = np.zeros(schedule.devices)
        np.maximum.at(most, device, self._again(schedule, self.costs.table(schedule))[stage])
        return most

    def _chosen(self, schedule: ScheduleColumns) -> np.ndarray:
        return np.arange(schedule.num_stages) < self.part * schedule.num_stages

    def _again(self, schedule: ScheduleColumns, table: CostTable) -> np.ndarray:
        """What R makes, float64 (stages,)."""
        stored = 0.0 if table.input_fraction is None else table.input_fraction
        return table.stage_share * np.where(self._chosen(schedule), 1.0 - stored, 0.0)
