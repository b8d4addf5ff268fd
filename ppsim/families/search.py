"""Zero bubble by search: the best of greedy schedules and hand-written forms under a memory limit and true costs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import BuildError, shown
from ppsim.costs import CostModel
from ppsim.costs.check import check_table
from ppsim.families.registry import family, require_choice
from ppsim.families.search_greedy import POLICIES, ROUNDING, Greedy, Progress, StageTimes, replay
from ppsim.families.zero_bubble import zero_bubble_lists
from ppsim.schedule.blocks import Block
from ppsim.schedule.columns import ScheduleColumns

OBJECTIVES = ("span", "makespan")
_METHOD = (
    "Greedy list scheduling with twelve settings of its switches, compared with the hand-written forms under the given "
    "costs (each stage's own times and the transfers; default F = I = W); the best span is kept, at equal span the "
    'best makespan (`objective="makespan"`: the other way round).'
)
_MAKESPAN = "<= that of 1f1b, zb-h1 and zb-h2 where they fit the limit, by the chosen measure"
_SOURCE = "Qi et al. 2023, Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 3 (the idea; the method is ours)"


@family(
    "zb-1p",
    title="Zero bubble ZB-1p",
    idea="The zero-bubble schedule that a search finds within the activations of 1F1B, p on each device. " + _METHOD,
    makespan=_MAKESPAN,
    peak_activations="<= p",
    source=_SOURCE,
)
def zb_1p(p: int, m: int, v: int, *, costs: CostModel | None = None, objective: str = "span") -> list[Block]:
    """The best schedule found within p activations."""
    return _best(p, m, [float(p)] * p, costs, objective)


@family(
    "zb-2p",
    title="Zero bubble ZB-2p",
    idea="The zero-bubble schedule that a search finds within twice the activations of 1F1B, 2p on each device. "
    + _METHOD,
    makespan=_MAKESPAN,
    peak_activations="<= 2p",
    source=_SOURCE,
)
def zb_2p(p: int, m: int, v: int, *, costs: CostModel | None = None, objective: str = "span") -> list[Block]:
    """The best schedule found within 2p activations."""
    return _best(p, m, [2.0 * p] * p, costs, objective)


@family(
    "zb-auto",
    title="Zero bubble by search (ZB-auto)",
    idea="The zero-bubble schedule that a search finds within `memory_limit` activations (microbatches through one "
    "device share; one number or one a device; default p), also below p, where the idle time grows slowly. " + _METHOD,
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
) -> list[Block]:
    """The best schedule found within the limit."""
    return _best(p, m, _limits(p, p if memory_limit is None else memory_limit), costs, objective)


def _limits(p: int, memory_limit: Any) -> list[float]:
    """One limit a device; BuildError where it is no number above 0 (inf allowed), or a list of another length."""
    try:
        column = np.array(memory_limit)
    except ValueError:  # rows of unequal length
        column = np.array(None)
    if column.dtype.kind not in "iuf" or column.shape not in ((), (p,)) or not np.all(column > 0):
        raise BuildError(
            f"memory_limit={memory_limit!r:.80} is no limit for {p} devices; use a number of activations above 0, such "
            f"as {p}, or a list of {p} such numbers, one a device"
        )
    return np.broadcast_to(column, (p,)).astype(float).tolist()


def _best(p: int, m: int, limits: list[float], costs: CostModel | None, objective: str) -> list[Block]:
    require_choice("objective", objective, OBJECTIVES)
    times = _stage_times(p, m, costs)
    for device, (limit, share) in enumerate(zip(limits, times.share, strict=True)):
        if limit < share - ROUNDING:
            raise BuildError(
                f"memory_limit={limit:g} on device {device}: one microbatch holds {share:g} activations there from its "
                f"F to its W, so nothing fits; use at least {max(times.share):g}"
            )
    by_hand = [replay(blocks, times, m) for blocks in _hand_forms(p, m, limits, times) if _fits(blocks, limits, times)]
    searched = [Greedy(times, m, limits, policy).run() for policy in POLICIES]
    return _choose(by_hand, [*by_hand, *searched], objective).blocks()


def _stage_times(p: int, m: int, costs: CostModel | None) -> StageTimes:
    if costs is None:
        return StageTimes.equal(p)
    if isinstance(costs, type) or not callable(getattr(costs, "table", None)):
        raise BuildError(f"costs={shown(costs)} does not price a schedule; use ppsim.Costs(...) or another cost model")
    shape = ScheduleColumns.from_blocks(zero_bubble_lists(p, m, lambda r: p - r - 1, lambda r: r))
    table = costs.table(shape)
    check_table(table, shape)
    return StageTimes.from_table(table)


def _hand_forms(p: int, m: int, limits: list[float], times: StageTimes) -> Iterator[list[Block]]:
    """ZB-H1, ZB-H2, 1F1B, eager 1F1B and GPipe with their backward split, each clipped to what the limits let it hold.

    A device that starts `warmup` F before its first pair and its W `delay` I late holds warmup + 1 + delay
    microbatches.
    """
    all_of_them = m + 2 * p  # more than any form asks for
    most = [
        all_of_them if limit >= share * all_of_them else int(limit / share + ROUNDING)
        for limit, share in zip(limits, times.share, strict=True)
    ]
    lowest = np.minimum.accumulate(most).tolist()  # a device that warms up longer than the one before it never starts
    for pace, at_least, delay in ((1, 0, 1), (2, 0, 2), (1, 0, 0), (2, 0, 0), (0, m, 0)):
        warmups = [min(max(pace * (p - r - 1), at_least), lowest[r] - 1) for r in range(p)]
        delays = [min(delay * r, most[r] - 1 - warmups[r]) for r in range(p)]
        yield list(zero_bubble_lists(p, m, warmups.__getitem__, delays.__getitem__))


def _fits(blocks: list[Block], limits: list[float], times: StageTimes) -> bool:
    """Whether lists hold no more than the limits."""
    for block, limit, share, kept in zip(blocks, limits, times.share, times.kept, strict=True):
        change = np.select([block.kind == Kind.F, block.kind == Kind.I], [1.0, kept - 1.0], -kept)
        if np.cumsum(change).max() * share > limit + ROUNDING:
            return False
    return True


def _choose(by_hand: list[Progress], candidates: list[Progress], objective: str) -> Progress:
    """The best by the objective among the candidates that no hand-written form beats in span or makespan.

    Where one form has the better span and another the better makespan, no candidate may pass; then the best of all.
    """

    def measures(progress: Progress) -> tuple[float, float]:
        span, makespan = progress.span, progress.makespan
        return (span, makespan) if objective == "span" else (makespan, span)

    keys = [measures(progress) for progress in candidates]
    bound = [min((measures(form)[i] for form in by_hand), default=math.inf) * (1 + ROUNDING) for i in (0, 1)]
    passing = [i for i, key in enumerate(keys) if key[0] <= bound[0] and key[1] <= bound[1]]
    return candidates[_least(keys, passing or list(range(len(keys))))]


def _least(keys: list[tuple[float, float]], among: list[int]) -> int:
    """Index of the least pair, first entries equal within rounding; the earliest of equals."""
    limit = min(keys[i][0] for i in among) * (1 + ROUNDING)
    return min((i for i in among if keys[i][0] <= limit), key=lambda i: keys[i][1])
