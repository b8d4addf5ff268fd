"""What causal attention makes of the slices of a sequence: a later slice attends to more tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ppsim.base.errors import ConfigError, CostError, shown
from ppsim.base.rules import nested, share, weight
from ppsim.costs.layers import Layer

CAUSAL = "causal"  # as slice costs: by the attention of the model
_weights = nested(weight)


def check_slice_costs(value: Any) -> Any:
    """Relative times of slices, `{attention: part}`, or `causal`; ConfigError otherwise."""
    if isinstance(value, str) and value == CAUSAL:
        return value
    if isinstance(value, Mapping):
        if value.keys() != {"attention"}:
            raise ConfigError(f"{shown(dict(value))} must give attention, such as {{attention: 0.2}}")
        return {"attention": share(value["attention"])}
    factors = _weights(list(value) if isinstance(value, tuple) else value)
    if not isinstance(factors, list) or not sum(factors) > 0:
        raise ConfigError(f"{shown(value)} must be a list with a positive sum, one value a slice")
    return factors


def attention_part(layers: Sequence[Layer]) -> float:
    """Part of a microbatch's computation, forward and backward, in attention over tokens: its F once, its I twice."""
    whole = sum(layer.forward + layer.input_grad + layer.weight_grad for layer in layers)
    return 3.0 * sum(layer.attention_core for layer in layers) / whole if whole else 0.0


def causal_slice_costs(slices: int, attention: float) -> list[float]:
    """Relative times of equally long slices of a sequence, for `Costs(slice_costs=...)`; they sum to 1.

    Slice i of n attends to its own half square and to the i slices before it, (2i+1)/n^2 of the causal triangle; all
    else is linear in tokens (arXiv 2504.14519, section 4.2, where exchanging context evens the slices).

    Parameters
    ----------
    slices : int
        Slices of a sequence, at least 1.
    attention : float
        Part of a whole microbatch's time in the attention core, 0 to 1.

    Raises CostError where a value is not legal.
    """
    if isinstance(slices, bool) or not isinstance(slices, int) or slices < 1:
        raise CostError(f"slices={shown(slices)} must be a whole number of at least 1")
    if isinstance(attention, bool) or not isinstance(attention, int | float) or not 0 <= attention <= 1:
        raise CostError(f"attention={shown(attention)} must be a part of the time from 0 to 1")
    return [(1 - attention) / slices + attention * (2 * i + 1) / slices**2 for i in range(slices)]
