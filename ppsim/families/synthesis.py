"""A schedule by search for any placement, costs and memory limit: never longer than the families that fit."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import BuildError, PpsimError
from ppsim.base.progress import track
from ppsim.families.list_scheduling import ROUNDING
from ppsim.families.registry import families, family, require_count
from ppsim.families.search_ahead import SettingSearch
from ppsim.families.synthesis_problem import Lists, Problem, devices_of_stages, limits_of, price, replayed
from ppsim.schedule.columns import ScheduleColumns

if TYPE_CHECKING:
    from ppsim.costs import CostModel

WORK = 4_000_000  # rows that a search without `seconds` and `rounds` schedules, one to three seconds
MOST_ROUNDS = 2**31 - 1
MOVES_A_TRY = 20  # a move is replayed that much faster than lists are scheduled
LEAST_TRIES, MOST_TRIES = 4, 64
USUAL_ROUNDS = 30


@family(
    "auto",
    title="Best found for your costs",
    idea="Search for the shortest step on a given placement (`placement`: one, loop, v, wave, or the device of each "
    "stage) under the costs and a limit on the memory of each device (`memory_limit` in activations or "
    "`memory_limit_bytes`). It starts from every family that fits, from the same orders pulled tighter and from greedy "
    "list scheduling, and goes on by local search in rounds (`rounds`, or as many as fit into `seconds`).",
    constraints="the limit at least what one microbatch holds on a device (1 for equal stages)",
    makespan="<= that of every family on the same placement that fits the limit, where transfers do not queue",
    peak_activations="<= memory_limit",
    source="docs/synthesis.md; list scheduling and local search after Kolisch and Hartmann 2006, "
    "doi 10.1016/j.ejor.2005.01.065",
)
def auto(
    p: int,
    m: int,
    v: int = 1,
    *,
    placement: Any = None,
    costs: CostModel | None = None,
    memory_limit: float | list[float] | None = None,
    memory_limit_bytes: float | list[float] | None = None,
    split: bool = True,
    seconds: float | None = None,
    rounds: int | None = None,
    seed: int = 0,
) -> ScheduleColumns:
    """The shortest schedule found.

    Parameters
    ----------
    p, m, v : int
        Devices, microbatches, stages a device.
    placement : {"one", "loop", "v", "wave"} or list of int, optional
        Default: "one" for one stage a device, else "loop". A list gives the device of each stage.
    costs : Costs or another cost model, optional
        Default: F, I and W of a device share take 1 s each, transfers are free.
    memory_limit : float or list, optional
        Activations in device shares, one number or one a device; default: no limit.
    memory_limit_bytes : float or list, optional
        Bytes of weights, gradients, optimizer state and live activations instead; transfer buffers are not counted.
    split : bool
        Backward as I and W (the default), or as B.
    seconds : float, optional
        Search for so long. How many rounds that makes depends on the machine, and so may the schedule.
    rounds : int, optional
        Of the search; default: as many as take some seconds, none where the schedule is large. It ends earlier where
        the schedule is proven shortest.
    seed : int
        Of the random numbers. The same seed and rounds give the same schedule.
    """
    problem = _problem(p, m, devices_of_stages(_placement(placement, v), p, v), costs, split, memory_limit,
                       memory_limit_bytes)  # fmt: skip
    _check_budget(seconds, rounds, seed)
    fitting = fitting_families(problem, v, costs)
    best = _searched(problem, [problem.replayed(schedule) for _, schedule in fitting], seconds, rounds, seed)
    shortest, schedule = min(fitting, key=lambda pair: pair[0], default=(math.inf, None))
    return schedule if schedule is not None and shortest < best.makespan else best.columns()


def _placement(placement: Any, v: int) -> Any:
    return ("one" if v == 1 else "loop") if placement is None else placement


def _check_budget(seconds: Any, rounds: Any, seed: Any) -> None:
    if seconds is not None and (isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds >= 0):
        raise BuildError(f"seconds={seconds!r:.80} is no time to search; use a number from 0, such as 10")
    if rounds is not None:
        require_count("rounds", rounds, least=0, most=MOST_ROUNDS)
    require_count("seed", seed, least=0, most=MOST_ROUNDS)


def _problem(
    p: int, m: int, device_of: np.ndarray, costs: CostModel | None, split: bool, activations: Any, in_bytes: Any
) -> Problem:
    """The problem under a limit in activations, in bytes, or none."""
    if in_bytes is None:
        limits = limits_of(p, math.inf if activations is None else activations)
        return Problem.of(p, m, device_of, costs, split, limits)
    if activations is not None:
        raise BuildError("memory_limit and memory_limit_bytes are two limits on the same thing; give one of them")
    limits = limits_of(p, in_bytes, "memory_limit_bytes", 80e9)
    table = price(costs, device_of, p, m, split)
    if table.activation_bytes is None:
        raise BuildError(
            "memory_limit_bytes needs costs that say what is held, such as ppsim.Costs(activation_bytes=1e9)"
        )
    held = np.zeros(len(device_of)) if table.state_bytes is None else table.state_bytes.sum(axis=0)
    free = limits - np.bincount(device_of, held, minlength=p)
    unit = table.activation_bytes.max() or 1.0
    problem = Problem.of(p, m, device_of, costs, split, np.full(p, math.inf))
    in_units = Problem(**{**vars(problem), "share": table.activation_bytes / unit, "limits": free / unit})
    in_units.check_limits("memory_limit_bytes, less what weights and optimizer take,", f"times {unit:g} B")
    return in_units


def fitting_families(problem: Problem, v: int, costs: CostModel | None) -> list[tuple[float, ScheduleColumns]]:
    """(makespan, schedule) of every family on the problem's placement that fits its limits."""
    fitting = []
    for schedule in _families_on(problem, v, costs):
        if problem.holds(schedule):
            start, end = replayed(schedule, problem.table)
            fitting.append((float(end.max() - start.min()), schedule))
    return fitting


def _families_on(problem: Problem, v: int, costs: CostModel | None) -> Iterator[ScheduleColumns]:
    p, m = problem.devices, problem.m
    for known in families().values():
        takes_v = known.stages_per_device == v if known.fixed_stages else True
        if known.name in ("auto", "naive") or known.asynchronous or not takes_v:
            continue
        try:
            schedule = known.columns(p, m, v, **({"costs": costs} if "costs" in known.options else {}))
        except PpsimError:  # not of these sizes
            continue
        if _is_on(schedule, problem):
            yield schedule


def _is_on(schedule: ScheduleColumns, problem: Problem) -> bool:
    """Whether whole microbatches run, each on the problem's devices, with the problem's kinds of backward."""
    same = schedule.num_stages == problem.stages and schedule.slices == 1 and not len(schedule.evicted)
    if not same or not np.array_equal(problem.device_of[schedule.stage], schedule.device):
        return False
    return problem.split or not np.any(schedule.kind == Kind.W)


def _searched(problem: Problem, bases: list[Lists], seconds: float | None, rounds: int | None, seed: int) -> Lists:
    """The best lists after the search; Ctrl-C ends it with the best so far.

    A round changes settings of list scheduling some times, then moves single actions of the best lists; every other
    round the moves begin at another good one, so that the search leaves what it cannot improve.
    """
    began, rows = time.monotonic(), problem.list_offsets[-1]
    tries = int(min(max(WORK // 4 // rows, LEAST_TRIES), MOST_TRIES))
    search = SettingSearch(problem, seed)
    search.start(tries)
    best = _shortest([*bases, search.best])
    planned = int(min(WORK // (rows * tries), USUAL_ROUNDS)) if rounds is None else rounds
    turns = itertools.count() if seconds is not None else track(range(planned), planned, "search")
    heat, least = float(problem.lengths.max()), search.least_makespan
    try:
        for turn in turns:
            out_of_time = seconds is not None and time.monotonic() - began >= seconds
            if out_of_time or best.makespan <= least * (1 + ROUNDING):
                break
            search.advance(tries)
            others = sorted([*bases, search.best], key=_makespan)
            base = others[turn // 2 % len(others)] if turn % 2 else _shortest([best, search.best])
            found = problem.improved(base, tries * MOVES_A_TRY, heat / (1 + turn % 4), seed + turn)
            best = _shortest([best, base, found])
    except KeyboardInterrupt:
        pass
    return best


def _makespan(lists: Lists) -> float:
    return lists.makespan


def _shortest(candidates: list[Lists]) -> Lists:
    """The shortest of the lists; the earliest of equals."""
    return min(candidates, key=_makespan)
