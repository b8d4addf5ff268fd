"""Microbatches of different cost, given or drawn, and the slices of a microbatch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ppsim.base.documents import as_python
from ppsim.base.errors import ConfigError, CostError, shown
from ppsim.base.rules import Check, argument, choice, nested, number, seed, share, weight, whole_number
from ppsim.base.units import counted
from ppsim.costs.layers import Layer

CAUSAL = "causal"  # slice costs that follow from the attention of the model
_weights = nested(weight)


def check_slice_costs(value: Any) -> Any:
    """Return legal slice costs: relative times, `{attention: part}`, or `causal`; raise ConfigError for others."""
    if isinstance(value, str) and value == CAUSAL:
        return value
    if isinstance(value, Mapping):
        if value.keys() != {"attention"}:
            raise ConfigError(f"{shown(dict(value))} must give attention, such as {{attention: 0.2}}")
        return {"attention": share(value["attention"])}
    factors = _weights(as_python(value, "slice_costs"))
    if not isinstance(factors, list) or not sum(factors) > 0:
        raise ConfigError(f"{shown(value)} must be a list with a positive sum, one value per slice")
    return factors


def attention_fraction(layers: Sequence[Layer]) -> float:
    """Return the fraction of a microbatch's computation in the attention core: F counts once, I twice."""
    whole = sum(layer.forward + layer.input_grad + layer.weight_grad for layer in layers)
    return 3.0 * sum(layer.attention_core for layer in layers) / whole if whole else 0.0


def causal_slice_costs(slices: int, attention: float) -> list[float]:
    """Return relative times of equally long slices of a sequence, for `Costs(slice_costs=...)`; they sum to 1.

    Slice i of n attends to its own half square and to the i slices before it, (2i+1)/n^2 of the causal triangle; the
    rest is linear in tokens (arXiv 2504.14519, section 4.2, in which exchanged context makes slices equal).

    Parameters
    ----------
    slices : int
        Slices of a sequence, at least 1.
    attention : float
        Part of a whole microbatch's time in the attention core, 0 to 1.

    Raises CostError if a value is illegal.
    """
    argument("slices", slices, whole_number(), CostError)
    argument("attention", attention, share, CostError)
    return [(1 - attention) / slices + attention * (2 * i + 1) / slices**2 for i in range(slices)]


DISTRIBUTION = "lognormal"
ORDERS = ("given", "longest-first", "zigzag")
_EXAMPLE = "{distribution: lognormal, spread: 0.3, seed: 0}"
_SPREAD = number(lambda value: 0 <= value <= 3, "must be a relative spread from 0 to 3, such as 0.3")
_MAX = 1e100  # products with costs, which have the same limit, stay finite
_factors: Check = nested(number(lambda value: 0 <= value <= _MAX, f"must be a factor from 0 to {_MAX:g}"), 2)


def check_microbatch_scale(value: Any) -> Any:
    """Return legal factors, one per microbatch or a list of them per stage, or how to draw them; else ConfigError."""
    if isinstance(value, Mapping):
        return _checked_draw(value)
    value = as_python(value, "microbatch_scale")
    if not isinstance(value, list):
        raise ConfigError(
            f"{shown(value)} must list one factor per microbatch, list such a list for each stage, or say how to draw "
            f"them, such as {_EXAMPLE}"
        )
    factors = _factors(value)
    rows = [row for row in factors if isinstance(row, list)]
    if rows and (len(rows) < len(factors) or len({len(row) for row in rows}) > 1):
        raise ConfigError(f"{shown(value)} must list one factor per microbatch for every stage, all equally many")
    return factors


def _checked_draw(value: Mapping[str, Any]) -> dict[str, Any]:
    unknown = [key for key in value if key not in ("distribution", "spread", "seed")]
    if unknown or "spread" not in value:
        wrong = f"names {shown(unknown[0])}" if unknown else "gives no spread"
        raise ConfigError(f"{shown(dict(value))} {wrong}; write such as {_EXAMPLE}")
    name = argument("distribution", value.get("distribution", DISTRIBUTION), choice(DISTRIBUTION))
    return {"distribution": name, "spread": _SPREAD(value["spread"]), "seed": seed(value.get("seed", 0))}


def microbatch_factors(scale: Any, order: str, work: np.ndarray, microbatches: int) -> np.ndarray:
    """Return the factors by [stage, microbatch], float64, in the requested order.

    Parameters
    ----------
    scale : list or mapping
        Result of `check_microbatch_scale`.
    order : str, one of `ORDERS`
        Order by the seconds of a whole microbatch. Zigzag is the longest, the shortest, the second longest, the second
        shortest ..., so that any two neighbours together take about equally long.
    work : float64 (stages,)
        Seconds of F and backward of a microbatch of factor 1 on each stage.
    microbatches : int
        Microbatches of one step.

    Raises CostError if lists do not have one factor per microbatch, or one list per stage.
    """
    drawn = isinstance(scale, Mapping)
    table = np.atleast_2d(_drawn(scale, microbatches) if drawn else np.asarray(scale, np.float64))
    if table.shape[1] != microbatches or table.shape[0] not in (1, len(work)):
        raise CostError(
            f"microbatch_scale lists {table.shape[1]} factors for {counted(len(table), 'stage')}, but the schedule has "
            f"{microbatches} microbatches and {len(work)} stages; list {microbatches} factors, once or for each stage"
        )
    table = np.broadcast_to(table, (len(work), microbatches))
    return table[:, _ordered(work @ table if work.any() else table.sum(axis=0), order)]


def _drawn(how: Mapping[str, Any], microbatches: int) -> np.ndarray:
    """Return one factor per microbatch, scaled so that the total work stays equal."""
    drawn = np.exp(how["spread"] * np.random.default_rng(how["seed"]).standard_normal(microbatches))
    return drawn * (microbatches / drawn.sum())


def _ordered(seconds: np.ndarray, order: str) -> np.ndarray:
    """Return the microbatches in the requested order; equally long ones keep their order."""
    if order == "given":
        return np.arange(len(seconds))
    longest = np.argsort(-seconds, kind="stable")
    if order == "zigzag":
        return np.stack([longest, longest[::-1]], axis=1).ravel()[: len(seconds)]
    return longest
