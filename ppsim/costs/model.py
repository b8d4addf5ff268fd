"""Model: a transformer and, following from its shape, each layer's FLOPs, parameters and activation bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from typing import Any

from ppsim.costs.huggingface import read_model
from ppsim.costs.layers import Layer, block, embedding, head, prediction
from ppsim.costs.shape import Shape


@dataclass(frozen=True, repr=False)
class Model(Shape):
    __doc__ = Shape.__doc__

    @classmethod
    def from_huggingface(
        cls, source: str | PathLike[str] | Mapping[str, Any], *, sequence: int | None = None, **changes: Any
    ) -> Model:
        """The model of a Hugging Face `config.json` (path, its folder, or the document as a mapping).

        `sequence` is the length to train on; default: the config's longest. `changes` replace fields of the result.
        Raises ConfigError naming a field that is missing or an architecture that is not known.
        """
        return read_model(cls, source, sequence=sequence, **changes)

    @cached_property
    def layers(self) -> list[Layer]:
        """Embedding, blocks, multi-token-prediction modules if any, head with final norm and loss; of one sequence."""
        made: dict[tuple[bool, bool], Layer] = {}

        def kind(index: int) -> Layer:
            windowed = bool(self.window) and not (self.window_period and (index + 1) % self.window_period == 0)
            which = (bool(self.experts) and index >= self.dense_layers, windowed)
            if which not in made:
                made[which] = block(self, *which)
            return made[which]

        blocks = [kind(index) for index in range(self.num_layers)]
        modules = [prediction(self, kind(self.num_layers))] * self.prediction_layers if self.prediction_layers else []
        return [embedding(self), *blocks, *modules, head(self)]

    @cached_property
    def parameters(self) -> int:
        """Parameters of the whole model; a tied matrix counts once, multi-token-prediction modules are left out."""
        total = sum(layer.parameters for layer in self.layers if layer.name != "prediction")
        return total - self.vocabulary * self.hidden * self.tied_embeddings

    @cached_property
    def active_parameters(self) -> int:
        """Parameters that one token visits; equals `parameters` without experts."""
        blocks = self.layers[1 : 1 + self.num_layers]
        unused = self.experts - self.experts_per_token
        return self.parameters - sum(layer.expert_parameters * unused // max(self.experts, 1) for layer in blocks)

    def step_flops(self) -> float:
        """Model FLOPs of forward and backward of one sequence, attention in full, nothing recomputed.

        The convention of model FLOP utilisation: Chowdhery et al. 2022 (PaLM), arXiv 2204.02311, appendix B, and
        Korthikanti et al. 2022, arXiv 2205.05198, equation 7.
        """
        return self._step_flops

    @cached_property
    def _step_flops(self) -> float:
        whole = replace(self, causal=False) if self.causal else self
        return float(sum(layer.forward + layer.input_grad + layer.weight_grad for layer in whole.layers))
