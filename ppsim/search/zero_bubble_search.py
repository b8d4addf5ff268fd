"""Zero bubble by search: the best of greedy schedules and hand-written forms under a memory limit and true costs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ppsim.families.registry import family, require_choice
from ppsim.families.zero_bubble import zero_bubble_lists
from ppsim.schedule.columns import ScheduleColumns
from ppsim.search.list_scheduling import ALWAYS, BACKWARD, FIRST, FORWARD, NEVER, OTHER, ROUNDING, Rules
from ppsim.search.problem import Lists, Problem, limits_of

if TYPE_CHECKING:
    from ppsim.costs import CostModel


@dataclass(frozen=True)
class Policy:
    """Switches of the greedy choice.

    Attributes
    ----------
    prefer : int
        What runs where both an F and an I could; OTHER is the kind that did not run last.
    hold : int
        Whether an F gives way to an I that would arrive while it runs: never, only to the device's first I, always.
    short_gaps : bool
        Whether a W goes into a gap known to be shorter than it.
    ahead : 0, 1 or 2
        Device r runs at most ahead x (p-r-1) + 1 microbatches ahead of its I; 0: the memory alone decides.
    make_room : bool
        Whether a W goes before an I when an F waits for memory.
    """

    prefer: int
    hold: int
    short_gaps: bool
    ahead: int
    make_room: bool


# Ordered by what each adds to those before it, over even and uneven stages, latencies and limits of p/4 to m.
POLICIES = (
    Policy(OTHER, FIRST, False, 0, True),
    Policy(OTHER, NEVER, True, 0, True),
    Policy(FORWARD, NEVER, False, 1, True),
    Policy(BACKWARD, FIRST, True, 0, False),
    Policy(OTHER, ALWAYS, False, 0, True),
    Policy(FORWARD, NEVER, True, 1, True),
    Policy(BACKWARD, FIRST, False, 2, True),
    Policy(OTHER, FIRST, True, 0, True),
    Policy(OTHER, ALWAYS, False, 1, True),
    Policy(FORWARD, NEVER, False, 2, True),
    Policy(FORWARD, NEVER, True, 1, False),
    Policy(BACKWARD, NEVER, False, 0, True),
)
MANY_ROWS = 50_000  # from there on policies are compared on fewer microbatches first,
FULL = 4  # and so many of them run on all
OBJECTIVES = ("span", "makespan")
_METHOD = (
    "Greedy list scheduling with twelve settings of its switches, compared with the hand-written forms under the given "
    "costs (each stage's own times and the transfers; default F = I = W); the best span is kept, at equal span the "
    'best makespan (`objective="makespan"`: the other way round).'
)
_MAKESPAN = "<= {that of 1f1b, zb-h1 and zb-h2 where they fit the limit, by the chosen measure}"
_SOURCE = "Qi et al. 2023, Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 3 (the idea; the method is ours)"


@family(
    "zb-1p",
    title="Zero bubble ZB-1p",
    idea="The zero-bubble schedule that a search finds within the activations of 1F1B, p on each device. " + _METHOD,
    makespan=_MAKESPAN,
    peak_activations="<= p",
    source=_SOURCE,
)
def zb_1p(p: int, m: int, v: int, *, costs: CostModel | None = None, objective: str = "span") -> ScheduleColumns:
    """The best schedule found within p activations."""
    return _best(p, m, np.full(p, float(p)), costs, objective)


@family(
    "zb-2p",
    title="Zero bubble ZB-2p",
    idea="The zero-bubble schedule that a search finds within twice the activations of 1F1B, 2p on each device. "
    + _METHOD,
    makespan=_MAKESPAN,
    peak_activations="<= 2p",
    source=_SOURCE,
)
def zb_2p(p: int, m: int, v: int, *, costs: CostModel | None = None, objective: str = "span") -> ScheduleColumns:
    """The best schedule found within 2p activations."""
    return _best(p, m, np.full(p, 2.0 * p), costs, objective)


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
) -> ScheduleColumns:
    """The best schedule found within the limit."""
    return _best(p, m, limits_of(p, p if memory_limit is None else memory_limit), costs, objective)


def _best(p: int, m: int, limits: np.ndarray, costs: CostModel | None, objective: str) -> ScheduleColumns:
    require_choice("objective", objective, OBJECTIVES)
    problem = replace(Problem.of(p, m, np.arange(p), costs, True, limits), runs=len(POLICIES))
    by_hand = [problem.replayed(form) for form in _hand_forms(problem) if problem.holds(form)]
    searched = [_run(problem, policy) for policy in _promising(problem, objective)]
    return _choose(by_hand, [*by_hand, *searched], objective).columns()


def _run(problem: Problem, policy: Policy) -> Lists:
    ahead = policy.ahead * (problem.devices - 1 - np.arange(problem.devices)) + 1 if policy.ahead else None
    rules = Rules(policy.prefer, policy.hold, policy.short_gaps, policy.make_room)
    return problem.greedy(rules, most_ahead=ahead)


def _promising(problem: Problem, objective: str) -> list[Policy]:
    """All policies, or for many rows those that are best on fewer microbatches."""
    trial = replace(problem, m=min(problem.m, 2 * problem.devices))
    if problem.rows <= MANY_ROWS or trial.m == problem.m:
        return list(POLICIES)
    keys = [_measures(_run(trial, policy), objective) for policy in POLICIES]
    return [POLICIES[i] for i in sorted(range(len(keys)), key=keys.__getitem__)[:FULL]]


def _hand_forms(problem: Problem) -> Iterator[ScheduleColumns]:
    """ZB-H1, ZB-H2, 1F1B, eager 1F1B and GPipe with their backward split, whole and clipped to what the limits hold.

    A device that starts `warmup` F before its first pair and its W `delay` I late holds warmup + 1 + delay
    microbatches, never more than there are.
    """
    p, m = problem.devices, problem.m
    all_of_them = m + 2 * p  # more than any form asks for
    most = [
        all_of_them if limit >= share * m else int(limit / share + ROUNDING)
        for limit, share in zip(problem.limits.tolist(), problem.share.tolist(), strict=True)
    ]
    lowest = np.minimum.accumulate(most).tolist()  # a device that warms up longer than the one before it never starts
    for pace, at_least, delay in ((1, 0, 1), (2, 0, 2), (1, 0, 0), (2, 0, 0), (0, m, 0)):
        wanted = [max(pace * (p - r - 1), at_least) for r in range(p)]
        warmups = [min(wanted[r], lowest[r] - 1) for r in range(p)]
        delays = [min(delay * r, most[r] - 1 - warmups[r]) for r in range(p)]
        yield _form(p, m, warmups, delays)
        if warmups != wanted or delays != [delay * r for r in range(p)]:
            yield _form(p, m, wanted, [delay * r for r in range(p)])


def _form(p: int, m: int, warmups: list[int], delays: list[int]) -> ScheduleColumns:
    return ScheduleColumns.from_blocks(zero_bubble_lists(p, m, warmups.__getitem__, delays.__getitem__))


def _choose(by_hand: list[Lists], candidates: list[Lists], objective: str) -> Lists:
    """The best by the objective among the candidates that no hand-written form beats in span or makespan.

    Where one form has the better span and another the better makespan, no candidate may pass; then the best of all.
    """
    keys = [_measures(lists, objective) for lists in candidates]
    bound = [
        min((_measures(form, objective)[i] for form in by_hand), default=math.inf) * (1 + ROUNDING) for i in (0, 1)
    ]
    passing = [i for i, key in enumerate(keys) if key[0] <= bound[0] and key[1] <= bound[1]]
    return candidates[_least(keys, passing or list(range(len(keys))))]


def _measures(lists: Lists, objective: str) -> tuple[float, float]:
    span, makespan = lists.span, lists.makespan
    return (span, makespan) if objective == "span" else (makespan, span)


def _least(keys: list[tuple[float, float]], among: list[int]) -> int:
    """Index of the least pair, first entries equal within rounding; the earliest of equals."""
    limit = min(keys[i][0] for i in among) * (1 + ROUNDING)
    return min((i for i in among if keys[i][0] <= limit), key=lambda i: keys[i][1])
