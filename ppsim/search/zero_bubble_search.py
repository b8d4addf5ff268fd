"""Zero bubble by search: ZB-1p, ZB-2p and ZB-auto, the search of `auto` for the span under a memory limit."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import numpy as np

from ppsim.base.errors import BuildError
from ppsim.costs.table import CostModel
from ppsim.families.registry import family, find_family, require_choice
from ppsim.plan.holding import limits_of
from ppsim.schedule.columns import ScheduleColumns
from ppsim.search.local_search import search_briefly
from ppsim.search.problem import Problem

OBJECTIVES = ("span", "makespan")
HAND_WRITTEN = ("1f1b", "eager-1f1b", "gpipe", "zb-h1", "zb-h2")
_METHOD = (
    "A short search by list scheduling and moves of single actions (docs/synthesis.md) starts from the hand-written "
    "schedules that fit, under the given costs (each stage's own times and the transfers; default F = I = W); the best "
    'span is kept, at equal span the best makespan (`objective="makespan"`: the other way round).'
)
_MAKESPAN = "<= {that of 1f1b, zb-h1 and zb-h2 where they fit the limit, by the chosen measure}"
_SOURCE = "Qi et al. 2023, Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 3 (the idea; the method is ours)"


@family(
    "zb-1p",
    group="zero bubble",
    title="Zero bubble ZB-1p",
    idea="The zero-bubble schedule that a search finds within the activations of 1F1B, p on each device. " + _METHOD,
    makespan=_MAKESPAN,
    peak_activations="<= p",
    source=_SOURCE,
)
def zb_1p(p: int, m: int, v: int, *, costs: CostModel | None = None, objective: str = "span") -> ScheduleColumns:
    """Return the best schedule found within p activations."""
    return _best(p, m, np.full(p, float(p)), costs, objective)


@family(
    "zb-2p",
    group="zero bubble",
    title="Zero bubble ZB-2p",
    idea="The zero-bubble schedule that a search finds within twice the activations of 1F1B, 2p on each device. "
    + _METHOD,
    makespan=_MAKESPAN,
    peak_activations="<= 2p",
    source=_SOURCE,
)
def zb_2p(p: int, m: int, v: int, *, costs: CostModel | None = None, objective: str = "span") -> ScheduleColumns:
    """Return the best schedule found within 2p activations."""
    return _best(p, m, np.full(p, 2.0 * p), costs, objective)


@family(
    "zb-auto",
    group="zero bubble",
    title="Zero bubble by search (ZB-auto)",
    idea="The zero-bubble schedule that a search finds within `memory_limit` activations (microbatches through one "
    "device share; a number or one per device; default p), also below p, where the idle time grows slowly. " + _METHOD,
    constraints="memory_limit at least what one microbatch holds on a device (1 for equal stages)",
    makespan=_MAKESPAN,
    peak_activations="<= memory_limit",
    source=_SOURCE,
)
def zb_auto(
    p: int,
    m: int,
    v: int,
    *,
    memory_limit: float | list[float] | None = None,
    costs: CostModel | None = None,
    objective: str = "span",
) -> ScheduleColumns:
    """Return the best schedule found within the limit."""
    return _best(p, m, limits_of(p, p if memory_limit is None else memory_limit), costs, objective)


def _best(p: int, m: int, limits: np.ndarray, costs: CostModel | None, objective: str) -> ScheduleColumns:
    require_choice("objective", objective, OBJECTIVES)
    problem = replace(Problem.of(p, m, np.arange(p), costs, True, limits), objective=objective)
    bases = []
    for name in HAND_WRITTEN:
        with suppress(BuildError):  # too few microbatches
            if problem.fits(schedule := find_family(name).columns(p, m)):
                bases.append(problem.lists_of(schedule))
    return search_briefly(problem, bases).columns()
