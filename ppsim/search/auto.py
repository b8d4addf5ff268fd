"""A schedule by search for any placement, costs and memory limit: never longer than the families that fit."""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import Any

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import BuildError, PpsimError, error_at
from ppsim.base.host import note_failure
from ppsim.base.progress import track
from ppsim.base.rules import argument, nested, number
from ppsim.base.units import first_names, of_number, parse_quantity, percent_text, seconds_text
from ppsim.costs.table import CostModel
from ppsim.families.registry import families, family, require_count
from ppsim.plan.holding import limits_of, static_bytes
from ppsim.schedule.columns import ScheduleColumns
from ppsim.search.list_scheduling import ROUNDING
from ppsim.search.local_search import LocalSearch, search_until, usual_rounds
from ppsim.search.problem import Problem, TimedLists, devices_of_stages

MAX_ROUNDS = 2**31 - 1
MAX_NAMED = 4  # maximum number of devices in a text
_SECONDS = number(lambda value: value >= 0, "is not a time to search; use a number from 0, such as 10")
# Families that are not tried: slow to build, or they move activations.
NO_STARTS = ("naive", "zb-auto", "bpipe", "ripipe", "mario", "pipe-offload")


@family(
    "auto",
    title="Best found for your costs",
    idea="Search for the shortest step on a given placement (`placement`: one, loop, v, wave, or the device of each "
    "stage) under the costs and a limit on the memory of each device (`memory_limit` in activations or "
    "`memory_limit_bytes`). It starts from every family that fits, from the same orders pulled tighter and from greedy "
    "list scheduling, and goes on by local search in rounds (`rounds`, or as many as fit into `seconds`).",
    constraints="the limit at least what one microbatch holds on a device (1 for equal stages)",
    makespan="<= {that of every family on the same placement that fits the limit, where transfers do not queue}",
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
    """Return the shortest schedule found.

    Parameters
    ----------
    p, m, v : int
        Devices, microbatches, stages per device.
    placement : {"one", "loop", "v", "wave"} or list of int, optional
        Default: "one" for one stage per device, else "loop". A list gives the device of each stage.
    costs : Costs or another cost model, optional
        Default: F, I and W of a device share take 1 s each, transfers are free.
    memory_limit : float or list, optional
        Activations in device shares, one number or one per device; default: no limit.
    memory_limit_bytes : float or list, optional
        Bytes of weights, gradients, optimizer state and live activations instead; transfer buffers are not counted.
    split : bool
        Backward as I and W (the default), or as B.
    seconds : float, optional
        Time of the search in rounds, which get longer. Their number depends on the machine, and so may the schedule.
    rounds : int, optional
        Rounds of the search; default: the number that takes some seconds, none if the schedule is large. The search
        ends earlier if the schedule is proven shortest.
    seed : int
        Seed of the random numbers. The same seed and rounds give the same schedule.
    """
    if placement is None:
        placement = "one" if v == 1 else "loop"
    device_of = devices_of_stages(placement, p, v)
    problem = _problem(p, m, device_of, costs, split, memory_limit, memory_limit_bytes)
    if seconds is not None:
        argument("seconds", seconds, _SECONDS, BuildError)
    if rounds is not None:
        require_count("rounds", rounds, least=0, most=MAX_ROUNDS)
    require_count("seed", seed, least=0, most=MAX_ROUNDS)
    fitting = fitting_families(problem, v, costs)
    shortest, schedule = min(fitting, key=lambda pair: pair[0], default=(math.inf, None))
    if schedule is not None and problem.is_optimal(shortest):
        return schedule.named("auto", found_text(problem, schedule, shortest, f"It is {schedule.name}"))
    bases = [problem.lists_of(schedule) for _, schedule in fitting]
    found, steps = _searched(problem, bases, seconds, rounds, seed)
    candidates = [lists.columns() for lists in found]
    makespan, best = min(zip(map(problem.seconds_of, candidates), candidates, strict=True), key=lambda pair: pair[0])
    beginning = "greedy lists" if schedule is None else f"{schedule.name} ({seconds_text(shortest)}) and greedy lists"
    origin = f"Found from {beginning}" + (f", {steps}" if steps else "")
    if schedule is not None and shortest <= makespan:
        origin, makespan, best = f"It is {schedule.name}; the search found none shorter", shortest, schedule
    return best.named("auto", found_text(problem, best, makespan, origin))


def found_text(problem: Problem, schedule: ScheduleColumns, makespan: float, origin: str) -> str:
    """Return a text: the origin of a schedule, its distance to the bound, and changes that might shorten it."""
    full = np.flatnonzero(problem.peaks(schedule) + problem.held[: problem.stages].min() > problem.limits + ROUNDING)
    named = first_names([str(device) for device in full], MAX_NAMED)
    memory = f"more memory on {of_number(len(full), 'device')} {named}" if named else ""
    if problem.is_optimal(makespan):
        rest = f"{memory}, another placement" if memory else "another placement"
        return f"{origin}: {seconds_text(makespan)}, proven shortest. What is left to change: {rest}, other costs."
    if problem.microbatches_differ:
        gap = "searched with microbatches of the average cost and judged with their own"
    else:
        bound = problem.lower_bound
        gap = f"{percent_text(makespan / bound - 1.0)} above the bound of {seconds_text(bound)}"
    effort = f"more rounds or seconds of search{f', and {memory}' if memory else ''}"
    return f"{origin}: {seconds_text(makespan)}, {gap}. What might shorten it: {effort}."


def _problem(
    p: int, m: int, device_of: np.ndarray, costs: CostModel | None, split: bool, activations: Any, in_bytes: Any
) -> Problem:
    """Return the problem under a limit in activations, in bytes, or none."""
    if in_bytes is None:
        return Problem.of(p, m, device_of, costs, split, limits_of(p, math.inf if activations is None else activations))
    if activations is not None:
        raise BuildError("memory_limit and memory_limit_bytes limit the same amount; give one of them")
    with error_at("memory_limit_bytes: "):
        amounts = nested(lambda one: parse_quantity(one, "bytes") if isinstance(one, str) else one)(in_bytes)
    limits = limits_of(p, amounts, "memory_limit_bytes", 80e9)
    problem = Problem.of(p, m, device_of, costs, split, np.full(p, math.inf))
    if problem.costs.activation_bytes is None:
        raise BuildError("memory_limit_bytes needs costs with bytes of activations: ppsim.Costs(activation_bytes=1e9)")
    unit = float(problem.costs.activation_bytes.max()) or 1.0
    static = static_bytes(problem.one_microbatch, problem.costs)
    weights = np.zeros(p) if static is None else static.sum(axis=0)
    problem = replace(problem, unit=unit, limits=(limits - weights) / unit)
    problem.check_limits(weights)
    return problem


def fitting_families(problem: Problem, v: int, costs: CostModel | None) -> list[tuple[float, ScheduleColumns]]:
    """Return (makespan, schedule) of the families on the problem's placement that fit its limits.

    The first one that is proven shortest ends the list.
    """
    fitting = []
    for candidate in sorted(families().values(), key=lambda one: one.searches):  # those that search take longest
        has_other_stages = candidate.fixed_stages and candidate.stages_per_device != v
        is_excluded = {"slices", "placement"} & set(candidate.options) or candidate.name in NO_STARTS
        if is_excluded or candidate.asynchronous or has_other_stages:
            continue
        try:
            options = {"costs": costs} if candidate.searches else {}
            schedule = candidate.columns(problem.devices, problem.m, v, **options)
        except PpsimError:  # the family does not exist in these sizes
            continue
        if _is_on(schedule, problem) and problem.fits(schedule):
            fitting.append((problem.seconds_of(schedule), schedule))
            if problem.is_optimal(fitting[-1][0]):
                break
    return fitting


def _is_on(schedule: ScheduleColumns, problem: Problem) -> bool:
    """Return whether the lists hold only whole F, B, I and W, on the problem's devices, and W only if it splits B."""
    others = len(schedule.evicted) or np.any(schedule.kind > Kind.W)
    same = schedule.num_stages == problem.stages and schedule.slices == 1 and not others
    if not same or not np.array_equal(problem.device_of[schedule.stage], schedule.device):
        return False
    return problem.split or not np.any(schedule.kind == Kind.W)


def _searched(
    problem: Problem, bases: list[TimedLists], seconds: float | None, rounds: int | None, seed: int
) -> tuple[list[TimedLists], str]:
    """Return the best lists of the search, and the text of its steps; Ctrl-C ends it with the best lists so far.

    A search treats microbatches as equal. If they differ, other good lists follow the best ones.
    """
    began = time.monotonic()
    search = LocalSearch(problem, bases, seed)
    try:
        if seconds is not None:
            search_until(search, began + seconds)
        else:
            planned = usual_rounds(problem) if rounds is None else rounds
            for _ in track(range(planned), planned, "search"):
                if problem.is_optimal(search.best.length):
                    break
                search.advance()
    except KeyboardInterrupt:
        note_failure()  # a store must not keep half a search
    steps = f"{search.rounds} round{'s' * (search.rounds > 1)} of search" if search.rounds else ""
    return [search.best, *(search.others if problem.microbatches_differ else [])], steps
