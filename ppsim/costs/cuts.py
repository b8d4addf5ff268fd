"""Cuts: of all ways to cut a model's layers into stages the best one, or the best of those that a search meets."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ppsim.costs.partition import ROUNDING, by_cost, even, require_enough

Counts = tuple[int, ...]  # layers of each stage
Judge = Callable[[Counts], Any]  # what orders cuts: the least is the best


def best_cut(
    costs: Sequence[float],
    device_of_stage: Sequence[int],
    judge: Judge,
    most: int,
    most_of_all: int = 0,
    starts: Iterable[Sequence[int]] = (),
    *,
    filled: bool = False,
) -> Counts:
    """The cut that is best in the eyes of a judge.

    Parameters
    ----------
    costs : sequence of float
        Seconds of each layer, in order: embedding, blocks, prediction modules, head.
    device_of_stage : sequence of int
        Which device runs each stage.
    judge : function of the layers of each stage
        Its least value is wanted: the seconds of the step, or how much is too large and then the seconds.
    most : int
        About twice as many cuts are judged.
    most_of_all : int
        So many cuts are all judged.
    starts : sequences of layers of each stage
        Judged too; the answer is no worse.
    filled : bool
        Whether every stage has a layer, as all other methods want it; too few layers are a CostError then, and of
        `starts` those with an empty stage are left out.

    Else a cut may have empty stages, but the first stage has the first layer and the last one the last. Where cuts are
    too many, those come first whose costliest stage is as cheap as can be, which is next to the shortest step where
    microbatches are many; the greedy and the even one, so that none of them is better: with few microbatches the fill
    counts as much, and a costlier costliest stage may make the shorter step; and the `starts`. From the best of them
    moves of one layer from one stage to another are taken while they help (`_moved_by_one`). Equal inputs give equal
    answers, of equally good cuts the first.
    """
    layers, num_stages = len(costs), len(device_of_stage)
    if filled:
        require_enough(layers, num_stages)
    tried = [tuple(counts) for counts in starts if min(counts) or not filled]
    if _number_of_cuts(layers, num_stages, filled) <= most_of_all:
        return min([*tried, *_every_cut(layers, num_stages, filled)], key=judge)
    if layers >= num_stages:
        balanced = by_cost(costs, num_stages)
        tied = as_balanced(costs, balanced, most) or []
        rivals = [by_cost(costs, num_stages, "greedy"), _even_layers(layers, num_stages)]
        tried += map(tuple, [balanced, *tied, *rivals])
    moves = functools.partial(_moved_by_one, costs, device_of_stage, filled)
    return _descent(moves, min(tried, key=judge), judge, most)


def _number_of_cuts(layers: int, num_stages: int, filled: bool) -> int:
    return math.comb(layers - 1 if filled else max(layers + num_stages - 3, 0), num_stages - 1)


def _every_cut(layers: int, num_stages: int, filled: bool) -> Iterator[Counts]:
    choose = itertools.combinations if filled else itertools.combinations_with_replacement
    for ends in choose(range(1, layers), num_stages - 1):
        yield tuple(end - begin for begin, end in itertools.pairwise((0, *ends, layers)))


def _descent(moves: Callable[[Counts], Iterator[Counts]], best: Counts, judge: Judge, most: int) -> Counts:
    left, least = moves(best), judge(best)
    for _ in range(most):
        moved = next(left, None)
        if moved is None:
            break
        if (found := judge(moved)) < least:
            best, least, left = moved, found, moves(moved)
    return best


def _moved_by_one(
    costs: Sequence[float], device_of_stage: Sequence[int], filled: bool, counts: Counts
) -> Iterator[Counts]:
    """The cuts in which one stage has a layer less and another a layer more.

    In turn a move from one device to another, those from the busiest to the least busy first, and one within a device,
    which changes when and for how long the device holds activations but not how busy it is.
    """
    owner, stages = np.asarray(device_of_stage), len(counts)
    work = np.diff(np.append(0.0, np.cumsum(costs))[np.cumsum([0, *counts])])
    load = np.bincount(owner, work)
    least = np.full(stages, int(filled))
    least[[0, -1]] = 1
    less, more = np.nonzero((np.asarray(counts) > least)[:, None] & ~np.eye(stages, dtype=bool))
    within = owner[less] == owner[more]
    order = np.argsort(load[owner[more]] - load[owner[less]], kind="stable")
    between, inside = order[~within[order]], order[within[order]]
    for pair in itertools.chain.from_iterable(itertools.zip_longest(between.tolist(), inside.tolist())):
        if pair is not None:
            moved = list(counts)
            moved[less[pair]] -= 1
            moved[more[pair]] += 1
            yield tuple(moved)


def largest_stage(costs: Sequence[float], counts: Sequence[int]) -> float:
    """The sum of the costliest stage."""
    before = np.concatenate([[0.0], np.cumsum(costs)])
    return float(np.diff(before[np.cumsum([0, *counts])]).max())


def as_balanced(costs: Sequence[float], counts: Sequence[int], most: int) -> list[list[int]] | None:
    """All partitions whose costliest stage is no costlier than that of `counts`; None where they are above `most`."""
    before, limit = np.concatenate([[0.0], np.cumsum(costs)]), largest_stage(costs, counts) * ROUNDING
    # The least and the last layer at which a stage can begin, so that those after it can hold all the rest.
    earliest = [len(costs)]
    for _ in counts:
        earliest.append(int(np.searchsorted(before, before[earliest[-1]] - limit * ROUNDING)))
    found: list[list[int]] = [[]]
    for stage in range(len(counts)):
        after = len(counts) - stage - 1
        found = [
            [*first, end - sum(first)]
            for first in found
            for end in range(max(sum(first) + 1, earliest[after]), len(costs) - after + 1)
            if before[end] - before[sum(first)] <= limit
        ]
        if len(found) > most:
            return None
    return [first for first in found if sum(first) == len(costs)]


def _even_layers(layers: int, num_stages: int) -> list[int]:
    """Layers of each stage where blocks are even: embedding with the first, head with the last."""
    if layers - 2 < num_stages:
        return even(layers, num_stages)
    counts = even(layers - 2, num_stages)
    return [counts[0] + 1, *counts[1:-1], counts[-1] + 1] if num_stages > 1 else [layers]
