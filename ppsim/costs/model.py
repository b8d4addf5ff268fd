"""Model: a transformer, state-space or hybrid model whose layers follow from its shape."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.rules import checked_methods
from ppsim.costs.huggingface import read_shape
from ppsim.costs.layers import Layer
from ppsim.costs.shape import Shape, boundary_width
from ppsim.costs.sublayers import block, embedding, head, joined_heads, prediction


@checked_methods
@dataclass(frozen=True, repr=False)
class Model(Shape):
    __doc__ = Shape.__doc__

    approximated: str = field(default="", kw_only=True)  # sentence on how an unknown architecture was read

    @classmethod
    def from_huggingface(
        cls, source: str | PathLike[str] | Mapping[str, Any], *, sequence: int | None = None, approximate: bool = False,
        **changes: Any,
    ) -> Model:  # fmt: skip
        """Return the model of a Hugging Face `config.json`: a path, its folder, or the document as a mapping.

        `sequence` is the length to train on; default: the config's `max_position_embeddings`. `changes` replace fields
        of the result. With `approximate`, an unknown model_type is read as the known one that its fields fit best.
        Raises ConfigError naming a field that is missing or wrong, or an unknown model_type with the known ones.
        """
        place, shape = read_shape(source, approximate)
        if sequence is not None:
            shape["sequence"] = sequence
        elif "sequence" not in shape:
            raise ConfigError(f"{place}: field 'max_position_embeddings' is missing; give it, or sequence")
        try:
            return cls(**(shape | changes))
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from None
        except TypeError:
            unknown = ", ".join(name for name in changes if name not in cls.__dataclass_fields__)
            raise ConfigError(f"{place}: {unknown} is not a field of a {cls.__name__}") from None

    @cached_property
    def layers(self) -> list[Layer]:
        """Embedding, blocks, multi-token-prediction modules, head with final norm and all losses, for one sequence."""
        kinds = [(letters, boundary_width(self, index)) for index, letters in enumerate(self.block_letters)]
        made = {kind: block(self, *kind) for kind in dict.fromkeys(kinds)}
        blocks = [made[kind] for kind in kinds]
        modules = [prediction(self, block(self, self.prediction_letters))] * self.prediction_layers
        return [embedding(self), *blocks, *modules, joined_heads(self) if modules else head(self)]

    @cached_property
    def layers_with_heads(self) -> list[Layer]:
        """Layers if each prediction module has a head of its own; it has the shared matrix, a copy on its stage.

        The heads of modules come before the model's: NVIDIA/Megatron-LM, pull request 5318.
        """
        return [*self.layers[:-1], *[head(self)] * self.prediction_layers, head(self)]

    @cached_property
    def parameters(self) -> int:
        """Parameters of the whole model without multi-token-prediction modules; a tied matrix counts once."""
        total = sum(layer.parameters for layer in [*self.layers[: 1 + self.num_layers], head(self)])
        return total - self.vocabulary * self.hidden * self.tied_embeddings

    @cached_property
    def active_parameters(self) -> int:
        """Parameters that one token visits; equals `parameters` without experts."""
        blocks = self.layers[1 : 1 + self.num_layers]
        unused = self.experts - self.experts_per_token
        return self.parameters - sum(layer.expert_parameters * unused // max(self.experts, 1) for layer in blocks)

    def step_flops(self) -> float:
        """Return model FLOPs of forward and backward of one sequence, with full s x s attention, without recomputation.

        The convention of model FLOP utilisation: Chowdhery et al. 2022 (PaLM), arXiv 2204.02311, appendix B, and
        Korthikanti et al. 2022, arXiv 2205.05198, equation 7. torchtitan logs it (models/utils.py).
        """
        return self._step_flops[0]

    def masked_flops(self) -> float:
        """Return the part of `step_flops` for pairs of tokens that a causal mask leaves out.

        Megatron-LM does not count them: training/training.py, `num_floating_point_operations`, from core 0.12 on.
        """
        return self._step_flops[1]

    @cached_property
    def _step_flops(self) -> tuple[float, float]:
        models = (replace(self, causal=False), self) if self.causal else (self, self)
        layers = ((layer.forward + layer.input_grad + layer.weight_grad for layer in one.layers) for one in models)
        whole, causal = (float(sum(each)) for each in layers)
        return whole, whole - causal
