"""Partition: how many consecutive layers each stage gets, evenly or by the cost of the layers."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from ppsim.base.errors import ConfigError, CostError, shown
from ppsim.costs import layout_string
from ppsim.costs.layout_string import LayoutString

ROUNDING = 1 + 1e-12
MOST_LAYERS = 4_000  # `optimal` holds a matrix of layers x layers
METHODS = ("even", "by_cost(greedy)", "by_cost(optimal)")
BY_COST = ("greedy", "optimal")  # the short names of methods that look at what layers cost
_SHORT = {"even": "even", "greedy": "greedy", "optimal": "optimal"} | {f"by_cost({name})": name for name in BY_COST}


def method(value: Any) -> str | tuple[int, ...] | LayoutString:
    """The short name of a method (even, greedy, optimal), listed counts as a tuple, or what a layout string says.

    Raises ConfigError for anything else.
    """
    if isinstance(value, LayoutString):
        return value
    if isinstance(value, list | tuple) and value and all(type(count) is int and count >= 0 for count in value):
        return tuple(value)
    if isinstance(value, str) and value.replace(" ", "") in _SHORT:
        return _SHORT[value.replace(" ", "")]
    if isinstance(value, str) and layout_string.looks_like_one(value):
        return layout_string.parse(value)
    raise ConfigError(
        f"{shown(value)} is no partition; use one of: {', '.join(METHODS)}, list each stage's blocks as in [5, 4], or "
        f"write a layout string such as 'Et*5|t*4L'"
    )


def even(num_layers: int, num_stages: int, first: int | None = None, last: int | None = None) -> list[int]:
    """Layers of each stage: the quotient, and one more for each of the first stages while the remainder lasts.

    `first` and `last`, where given, are the layers of the first and of the last stage; the rest is spread over the
    others. Raises CostError where there are fewer layers than stages to fill.
    """
    if first is None and last is None:
        require_enough(num_layers, num_stages)
        quotient, remainder = divmod(num_layers, num_stages)
        return [quotient + (stage < remainder) for stage in range(num_stages)]
    front, back = ([count] if count is not None else [] for count in (first, last))
    rest, stages = num_layers - sum(front + back), num_stages - len(front + back)
    if stages < 1 or rest < stages:
        raise CostError(
            f"first_stage_layers={first} and last_stage_layers={last} leave {rest} of {num_layers} layers for {stages} "
            f"of {num_stages} stages; leave at least one layer for each, or list the layers of each stage"
        )
    return [*front, *even(rest, stages), *back]


def by_cost(costs: Sequence[float], num_stages: int, method: str = "optimal") -> list[int]:
    """Layers of each stage, balanced by the cost of the layers.

    Parameters
    ----------
    costs : sequence of float
        One finite number >= 0 a layer, in order.
    num_stages : int
        Stages to fill, each with at least one layer.
    method : {"optimal", "greedy"}
        `greedy` closes a stage when its running sum reaches total/num_stages and enough layers remain for the stages
        after it. `optimal` makes the costliest stage as cheap as possible (linear partition) and, among those, the
        stages as equal as possible (least sum of squares).

    Raises
    ------
    CostError
        Fewer layers than stages, a cost that is no finite number >= 0, or an unknown method.
    """
    column = np.asarray(costs, np.float64)
    if column.ndim != 1 or not (np.isfinite(column) & (column >= 0)).all():
        raise CostError(f"costs={costs!r:.80} must list one finite number of at least 0 for each layer")
    require_enough(len(column), num_stages)
    if method == "greedy":
        return _greedy(column, num_stages)
    if method == "optimal":
        if len(column) > MOST_LAYERS:
            raise CostError(f"{len(column)} layers are too many for method='optimal' ({MOST_LAYERS}); use 'greedy'")
        return _optimal(column, num_stages)
    raise CostError(f"method={method!r} is not known; use 'optimal' or 'greedy'")


def explicit(counts: Sequence[int], num_layers: int, num_stages: int) -> list[int]:
    """`counts` checked: one whole number >= 0 a stage that together make `num_layers`; CostError otherwise."""
    if len(counts) != num_stages:
        raise CostError(
            f"the partition lists {len(counts)} stages, but the schedule has {num_stages}; list {num_stages} numbers, "
            f"or say even"
        )
    if any(isinstance(count, bool) or not isinstance(count, int) or count < 0 for count in counts):
        raise CostError(f"the partition {list(counts)!r:.80} must list whole numbers of layers of at least 0")
    if sum(counts) != num_layers:
        raise CostError(f"the partition lists {sum(counts)} layers, but the model has {num_layers}")
    return list(counts)


def cut(layers: Sequence[Any], counts: Sequence[int]) -> list[list[Any]]:
    """The layers of each stage, `counts` of them one after the other."""
    rest = iter(layers)
    return [list(itertools.islice(rest, count)) for count in counts]


def require_enough(num_layers: int, num_stages: int) -> None:
    """Refuse fewer layers than stages."""
    if num_stages < 1:
        raise CostError(f"num_stages={num_stages} is too small; use at least 1")
    if num_layers < num_stages:
        raise CostError(
            f"{num_layers} layers cannot fill {num_stages} stages of at least one layer each; use at most {num_layers} "
            f"stages"
        )


def _greedy(costs: np.ndarray, num_stages: int) -> list[int]:
    total, counts, first, running = costs.sum(), [], 0, 0.0
    for layer, cost in enumerate(costs.tolist()):
        running += cost
        remaining = len(costs) - layer - 1
        stages_after = num_stages - len(counts) - 1
        reached = running * num_stages >= total and remaining >= stages_after
        if stages_after and (reached or remaining == stages_after):
            counts.append(layer + 1 - first)
            first, running = layer + 1, 0.0
    return [*counts, len(costs) - first]


def _optimal(costs: np.ndarray, num_stages: int) -> list[int]:
    """Two passes of dynamic programming over (stages, layers): the least largest sum, then the least sum of squares."""
    layers = len(costs)
    before = np.concatenate([[0.0], np.cumsum(costs)])
    sums = before[None, :] - before[:, None]  # [first, end] of a stage
    sums[np.tril_indices(layers + 1)] = np.inf
    largest = sums[0]
    for _ in range(num_stages - 1):
        largest = np.maximum(largest[:, None], sums).min(axis=0)
    allowed = np.where(sums <= largest[layers] * ROUNDING, sums**2, np.inf)
    squares, choices = allowed[0], []
    for _ in range(num_stages - 1):
        candidates = squares[:, None] + allowed
        choices.append(candidates.argmin(axis=0))
        squares = candidates.min(axis=0)
    counts, end = [], layers
    for choice in reversed(choices):
        counts.append(end - int(choice[end]))
        end = int(choice[end])
    return [end, *reversed(counts)]
