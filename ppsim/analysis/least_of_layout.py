"""What a layout takes at least with any synchronous schedule and partition: seconds of a step and bytes of a device."""

from __future__ import annotations

from collections import Counter
from typing import Any

from ppsim.analysis.least import SAFETY
from ppsim.costs.data_parallel import optimizer_seconds, update_seconds
from ppsim.costs.derive import DerivedCosts

SECONDS = ("forward", "backward", "input_grad", "weight_grad", "overlap", "microbatch_scale")  # where given, unknown


def least_of_layout(
    costs: Any, devices: int, microbatches: int, optimizer: str | None, keeps: bool = True
) -> tuple[float, float]:
    """Seconds and bytes that every synchronous schedule and partition takes at least in a layout; 0 where not known.

    All computing and the optimizer step spread evenly over the devices, without a bubble. Likewise the bytes: weights,
    gradients, optimizer state, and one microbatch's activations of every layer, all held when its last forward ends;
    without these where a schedule does not keep (`keeps`) every activation on some device until its backward.
    """
    if not isinstance(costs, DerivedCosts):
        return 0.0, 0.0
    layers = costs.model.layers
    held = _least_bytes(costs, keeps) / devices if not _gives(costs, "_bytes") else 0.0
    if _gives(costs, *SECONDS):
        return 0.0, held * SAFETY
    seconds = sum(count * layer_seconds(costs, layer) for layer, count in Counter(layers).items())
    least = update_seconds if costs.layout.chosen("overlap_data") else optimizer_seconds
    stepping = least(costs.held(layers), costs.layout, costs.cluster) if optimizer else 0.0
    if _gives(costs, "optimizer_step"):
        stepping = 0.0
    return (microbatches * seconds + (stepping or 0.0)) / devices * SAFETY, held * SAFETY


def _least_bytes(costs: DerivedCosts, keeps: bool) -> float:
    """Bytes that the devices of a pipeline hold together, at least."""
    layers, level = costs.model.layers, costs.layout.recompute
    state = sum(costs.layout.state_bytes(costs.held(layers), 0.0))
    if not (keeps and isinstance(level, str)) or costs.layout.recompute_stages is not None:
        return state
    if _gives(costs, "microbatch_scale"):
        return state
    return state + sum(count * costs.activation_bytes(layer, level) for layer, count in Counter(layers).items())


def _gives(costs: DerivedCosts, *endings: str) -> bool:
    return any(name.endswith(endings) for name in costs.given)


def layer_seconds(costs: DerivedCosts, layer: Any) -> float:
    """Least seconds of one layer for one microbatch, forward and backward; a fused slot may hide its collectives."""
    level = costs.layout.recompute if costs.layout.recompute_stages is None else "none"
    if not isinstance(level, str) or costs.layout.recompute_blocks is not None:
        level = "none"
    computing = costs.work(layer).whole + costs.repeated(layer, level)
    if costs.layout.overlap:
        return computing
    exchange = costs.exchange(layer)
    return computing + exchange.forward + exchange.input_grad + exchange.again * (level == "full")
