"""OVERLAP_F_B slots as Megatron-Core runs them: an F and a B overlap layer by layer on two streams.

Source: NVIDIA Megatron-LM, megatron/core/models/common/model_chunk_schedule_plan.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import zip_longest
from typing import Any

import numpy as np

from ppsim.base.errors import CostError, shown
from ppsim.base.rules import is_number
from ppsim.costs.collectives import expert_parallel
from ppsim.costs.given import Costs
from ppsim.costs.layers import Layer
from ppsim.costs.setup import Setup
from ppsim.costs.sublayers import attention_matrices

TWO_STREAM = "two-stream"
COMPUTE, EXCHANGE = 0, 1
FORWARD, BACKWARD, WEIGHTS = range(3)
AS_FORWARD = math.nan  # stands for a component of the backward that is not given
Component = tuple[int, int, float]  # stream; pass, whose components follow each other; seconds


@dataclass(frozen=True)
class LayerPieces:
    """Seconds of one layer's components for one microbatch; CostError if one is not a finite number of at least 0."""

    # attention, mlp: computation of the forward: attention with router, experts
    attention: float
    mlp: float
    # dispatch, combine: exchange of tokens with their experts, there and back, once in each pass
    dispatch: float = 0.0
    combine: float = 0.0
    # attention_input_grad, mlp_input_grad, attention_weight_grad, mlp_weight_grad: computation of the backward; each
    # defaults to its forward
    attention_input_grad: float = AS_FORWARD
    mlp_input_grad: float = AS_FORWARD
    attention_weight_grad: float = AS_FORWARD
    mlp_weight_grad: float = AS_FORWARD

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if value is AS_FORWARD and field.default is AS_FORWARD:
                object.__setattr__(self, field.name, self.mlp if field.name.startswith("mlp") else self.attention)
            elif not is_number(value) or not 0 <= value < math.inf:
                raise CostError(f"{field.name}={shown(value)} must be a finite number of seconds of at least 0")

    @property
    def forward(self) -> float:
        """Seconds of F, its components one after the other."""
        return self.attention + self.dispatch + self.mlp + self.combine

    @property
    def input_grad(self) -> float:
        """Seconds of I, its components one after the other."""
        return self.attention_input_grad + self.dispatch + self.mlp_input_grad + self.combine

    @property
    def weight_grad(self) -> float:
        """Seconds of W."""
        return self.attention_weight_grad + self.mlp_weight_grad


def combined_slot(
    forward: Sequence[LayerPieces], backward: Sequence[LayerPieces], *, delayed_weights: bool = False
) -> float:
    """Return the seconds of a slot in which one stage's F and one stage's B overlap layer by layer.

    Each stream runs its components in the order of issue; a component waits for the previous one of its own pass. The
    forward's layer i meets the backward's layer L-1-i; layers that the other pass lacks run alone.

    Parameters
    ----------
    forward, backward : sequence of LayerPieces
        The layers of both stages, each in the order of the model.
    delayed_weights : bool
        Weight gradients are separate components, which nothing waits for; else part of their input gradients.
    """
    free, ended = [0.0, 0.0], [0.0, 0.0, 0.0]
    for layers in zip_longest(forward, reversed(backward), fillvalue=LayerPieces(0.0, 0.0)):
        for stream, in_pass, seconds in _issued(*layers, delayed_weights):
            if seconds:
                waits_for = BACKWARD if in_pass == WEIGHTS else in_pass
                free[stream] = ended[in_pass] = max(free[stream], ended[waits_for]) + seconds
    return max(free)


def _issued(forward: LayerPieces, backward: LayerPieces, delayed_weights: bool) -> list[Component]:
    """Return the components of a layer's forward and of a layer's backward, in the order of issue."""
    mlp_backward, mlp_weights = _split(backward.mlp_input_grad, backward.mlp_weight_grad, delayed_weights)
    attention, weights = _split(backward.attention_input_grad, backward.attention_weight_grad, delayed_weights)
    return [
        (EXCHANGE, BACKWARD, backward.combine), (COMPUTE, FORWARD, forward.attention),
        (COMPUTE, BACKWARD, mlp_backward), (EXCHANGE, FORWARD, forward.dispatch),
        (COMPUTE, WEIGHTS, mlp_weights), (EXCHANGE, BACKWARD, backward.dispatch),
        (COMPUTE, FORWARD, forward.mlp), (EXCHANGE, FORWARD, forward.combine),
        (COMPUTE, BACKWARD, attention), (COMPUTE, WEIGHTS, weights),
    ]  # fmt: skip


def _split(input_grad: float, weight_grad: float, delayed_weights: bool) -> tuple[float, float]:
    """Return the seconds of a backward component, and of its weight gradients if they are a separate component."""
    return (input_grad, weight_grad) if delayed_weights else (input_grad + weight_grad, 0.0)


def combined_costs(stages: Sequence[Sequence[LayerPieces]], *, delayed_weights: bool = False) -> Costs:
    """Return costs of a schedule with fused slots from the components of every stage's layers, by `combined_slot`.

    An F or a backward alone runs all its components one after the other. Raises CostError if there is no stage.
    """
    if not stages:
        raise CostError("stages=[] must list the layers of at least one stage")
    return Costs(
        forward=[sum(layer.forward for layer in stage) for stage in stages],
        input_grad=[sum(layer.input_grad for layer in stage) for stage in stages],
        weight_grad=[sum(layer.weight_grad for layer in stage) for stage in stages],
        overlap=[[combined_slot(one, other, delayed_weights=delayed_weights) for other in stages] for one in stages],
        per="stage",
    )


def by_pair(stages: Sequence[Hashable], seconds: Callable[[Any, Any], float]) -> np.ndarray:
    """Return the seconds of each slot by [stage of F, stage of B]; equal stages, which are most, share them."""
    distinct = [*dict.fromkeys(stages)]
    number = [distinct.index(stage) for stage in stages]
    return np.array([[seconds(forward, backward) for backward in distinct] for forward in distinct])[
        np.ix_(number, number)
    ]


def layer_pieces(setup: Setup, layer: Layer, seconds: Mapping[str, float]) -> LayerPieces:
    """Return the components of a layer for one microbatch.

    Computation is split by FLOPs into attention and the rest; an embedding or a head has only the rest. Dispatch and
    combine are components of their own; other collectives stay with the attention, in the compute stream.
    """
    dispatch = expert_parallel(setup, layer)[0] / 2
    matrices = setup.model.sequence * sum(matrix.flops for matrix in attention_matrices(setup.model))
    core = layer.attention_core
    attention = matrices if layer.recomputable else 0.0

    def cut(name: str, flops: float, part: float) -> tuple[float, float]:
        share = min(part / flops, 1.0) if flops else 0.0
        return share * seconds[name], (1.0 - share) * seconds[name]

    forward = cut("forward", layer.forward, attention + core)
    inputs = cut("input_grad", layer.input_grad, attention + 2 * core)
    weights = cut("weight_grad", layer.weight_grad, attention)
    return LayerPieces(
        attention=forward[0] + max(seconds["forward_collectives"] - 2 * dispatch, 0.0), mlp=forward[1],
        dispatch=dispatch, combine=dispatch, mlp_input_grad=inputs[1],
        attention_input_grad=inputs[0] + max(seconds["input_grad_collectives"] - 2 * dispatch, 0.0),
        attention_weight_grad=weights[0], mlp_weight_grad=weights[1],
    )  # fmt: skip
