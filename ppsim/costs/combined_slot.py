"""The slot of combined 1F1B: an F and a B beside each other, piece by piece, on two streams.

Source: NVIDIA Megatron-LM, megatron/core/models/common/model_chunk_schedule_plan.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import zip_longest

import numpy as np

from ppsim.base.errors import CostError, shown
from ppsim.base.rules import is_number
from ppsim.costs.effects import EFFECTS
from ppsim.costs.given import Costs
from ppsim.costs.layers import Layer, attention_matrices
from ppsim.costs.setup import Setup

COMPUTE, EXCHANGE = 0, 1
FORWARD, BACKWARD, WEIGHTS = range(3)
AS_FORWARD = math.nan  # a piece of the backward that is not given
Piece = tuple[int, int, float]  # stream; pass, within which pieces follow each other; seconds


@dataclass(frozen=True)
class LayerPieces:
    """Seconds of one layer's pieces for one microbatch; CostError where one is not a finite number from 0 on.

    Attributes
    ----------
    attention, mlp : float
        Computation of the forward: attention with router, experts.
    dispatch, combine : float
        Tokens to their experts and back, once in each pass.
    attention_input_grad, mlp_input_grad, attention_weight_grad, mlp_weight_grad : float, optional
        Computation of the backward; each as long as its forward unless given.
    """

    attention: float
    mlp: float
    dispatch: float = 0.0
    combine: float = 0.0
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
        """Seconds of F, its pieces one after the other."""
        return self.attention + self.dispatch + self.mlp + self.combine

    @property
    def input_grad(self) -> float:
        """Seconds of I, its pieces one after the other."""
        return self.attention_input_grad + self.dispatch + self.mlp_input_grad + self.combine

    @property
    def weight_grad(self) -> float:
        """Seconds of W."""
        return self.attention_weight_grad + self.mlp_weight_grad


def combined_slot(
    forward: Sequence[LayerPieces],
    backward: Sequence[LayerPieces],
    *,
    delayed_weights: bool = False,
    early_release: bool = False,
    one_queue: bool = False,
) -> float:
    """Seconds of a slot in which one stage's F and one stage's B run layer by layer beside each other.

    Each stream runs its pieces in the order of issue; a piece waits for the piece before it of its own pass. The
    forward's layer i meets the backward's layer L-1-i; layers that the other pass lacks run alone.

    Parameters
    ----------
    forward, backward : sequence of LayerPieces
        The layers of both stages, each in the order of the model.
    delayed_weights : bool
        Weight gradients are pieces of their own, which nothing waits for; else part of their input gradients.
    early_release : bool
        The backward of attention runs before the forward of the experts.
    one_queue : bool
        The device has one hardware queue (CUDA_DEVICE_MAX_CONNECTIONS=1): nothing runs beside anything.
    """
    free, ended = [0.0, 0.0], [0.0, 0.0, 0.0]
    for ahead, behind in zip_longest(forward, reversed(backward), fillvalue=LayerPieces(0.0, 0.0)):
        for stream, of, seconds in _issued(ahead, behind, delayed_weights, early_release):
            if seconds:
                queue = COMPUTE if one_queue else stream
                free[queue] = ended[of] = max(free[queue], ended[BACKWARD if of == WEIGHTS else of]) + seconds
    return max(free)


def _issued(ahead: LayerPieces, behind: LayerPieces, delayed_weights: bool, early_release: bool) -> list[Piece]:
    """The pieces of a layer's forward `ahead` and of a layer's backward `behind`, in the order of issue."""
    mlp_backward, mlp_weights = _split(behind.mlp_input_grad, behind.mlp_weight_grad, delayed_weights)
    backward, weights = _split(behind.attention_input_grad, behind.attention_weight_grad, delayed_weights)
    attention_backward = (COMPUTE, BACKWARD, backward)
    experts = [(COMPUTE, FORWARD, ahead.mlp), (EXCHANGE, FORWARD, ahead.combine)]
    return [
        (EXCHANGE, BACKWARD, behind.combine),
        (COMPUTE, FORWARD, ahead.attention),
        (COMPUTE, BACKWARD, mlp_backward),
        (EXCHANGE, FORWARD, ahead.dispatch),
        (COMPUTE, WEIGHTS, mlp_weights),
        (EXCHANGE, BACKWARD, behind.dispatch),
        *([attention_backward, *experts] if early_release else [*experts, attention_backward]),
        (COMPUTE, WEIGHTS, weights),
    ]


def _split(input_grad: float, weight_grad: float, delayed_weights: bool) -> tuple[float, float]:
    """Seconds of a backward piece, and of its weight gradients where they are a piece of their own."""
    return (input_grad, weight_grad) if delayed_weights else (input_grad + weight_grad, 0.0)


def combined_costs(
    stages: Sequence[Sequence[LayerPieces]],
    *,
    delayed_weights: bool = False,
    early_release: bool = False,
    one_queue: bool = False,
) -> Costs:
    """Costs of a schedule with fused slots from the pieces of every stage's layers, each slot by `combined_slot`.

    An F or a backward alone takes all its pieces one after the other. Raises CostError where there is no stage.
    """
    if not stages:
        raise CostError("stages=[] must list the layers of at least one stage")
    policy = {"delayed_weights": delayed_weights, "early_release": early_release, "one_queue": one_queue}
    return Costs(
        forward=[sum(layer.forward for layer in stage) for stage in stages],
        input_grad=[sum(layer.input_grad for layer in stage) for stage in stages],
        weight_grad=[sum(layer.weight_grad for layer in stage) for stage in stages],
        overlap=[[combined_slot(forward, backward, **policy) for backward in stages] for forward in stages],
        per="stage",
    )


TWO_STREAM = "two-stream"
_EXPERTS = next(effect for effect in EFFECTS if effect.key == "layout.expert")


def two_stream_slots(setup: Setup, stages: Sequence[Sequence[tuple[Layer, Mapping[str, float]]]]) -> np.ndarray:
    """Seconds of a slot by [stage of F, stage of B].

    `stages` are the layers of each stage with their seconds: forward, input_grad, weight_grad and the collectives in
    forward and input_grad.
    """
    pieces = [tuple(layer_pieces(setup, *layer) for layer in stage) for stage in stages]
    slot = cache(combined_slot)  # most stages are alike
    return np.array([[slot(forward, backward) for backward in pieces] for forward in pieces])


def layer_pieces(setup: Setup, layer: Layer, seconds: Mapping[str, float]) -> LayerPieces:
    """The pieces of a layer for one microbatch.

    Computation is cut by FLOPs into attention and the rest, which is all of an embedding or a head. Tokens go to their
    experts and back as pieces of their own; other collectives stay with the attention, in the compute stream.
    """
    assert _EXPERTS.action is not None  # noqa: S101 - it has one
    way = _EXPERTS.action(setup, layer)[0] / 2
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
        attention=forward[0] + max(seconds["forward_collectives"] - 2 * way, 0.0),
        mlp=forward[1],
        dispatch=way,
        combine=way,
        attention_input_grad=inputs[0] + max(seconds["input_grad_collectives"] - 2 * way, 0.0),
        mlp_input_grad=inputs[1],
        attention_weight_grad=weights[0],
        mlp_weight_grad=weights[1],
    )
