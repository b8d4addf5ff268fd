"""OVERLAP_F_B slots of derived costs as Megatron-Core runs them: layer by layer on two streams (`combined_slot`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np

from ppsim.costs.combined_slot import LayerPieces, combined_slot
from ppsim.costs.effects import EFFECTS
from ppsim.costs.layers import Layer, attention_matrices
from ppsim.costs.setup import Setup

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
