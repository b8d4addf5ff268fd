"""Search under a memory limit where activations may be made again: the shorter of both ways to keep the limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ppsim.base.errors import BuildError
from ppsim.costs.table import CostModel
from ppsim.families.idle_time import makespan_of
from ppsim.families.memory_actions import priced, recomputed
from ppsim.families.registry import RegisteredFamily
from ppsim.schedule.columns import ScheduleColumns


def searched_with_r(
    family: RegisteredFamily,
    sizes: tuple[int, int, int | None],
    options: Mapping[str, Any],
    placing: str,
    costs: CostModel | None,
    memory_limit: float | Sequence[float],
) -> ScheduleColumns:
    """The shortest of what a family that searches finds within the limit, and of what it finds without, made to fit.

    What is found without the limit gets R for as few activations as the limit asks for, placed as `placing` says. Where
    a backward is split, what waits for its W cannot be made again, so that whole backwards are searched too.

    Raises
    ------
    BuildError
        Neither way keeps the limit.
    """
    made: list[ScheduleColumns] = []
    refused: list[BuildError] = []
    for change in _searches(family, memory_limit):
        try:
            found = family.columns(*sizes, **{**options, **change})
            fits = change["memory_limit"] is not None
            made.append(found if fits else recomputed(found, "needed", placing, costs, memory_limit))
        except BuildError as error:
            refused.append(error)
    if not made:
        raise refused[-1]
    return min(made, key=lambda one: makespan_of(one, priced(one, costs)))


def _searches(family: RegisteredFamily, limit: Any) -> Iterator[dict[str, Any]]:
    """The options that change from search to search."""
    yield {"memory_limit": limit}
    yield {"memory_limit": None}
    if "split" in family.options:
        yield {"memory_limit": None, "split": False}
