"""Model: the shape of a transformer and, following from it, each layer's FLOPs, parameters and activation bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from functools import cached_property
from os import PathLike
from typing import Any, ClassVar

from ppsim.base.errors import ConfigError, shown
from ppsim.costs.layers import Layer, block, embedding, head, prediction

LARGEST = 2**40
MOST_LAYERS = 2_000


@dataclass(frozen=True)
class Model:
    """Shape of a decoder-only transformer; 0 stands for a field's default.

    Parameters
    ----------
    num_layers, hidden, heads, vocabulary, sequence : int >= 1
        Transformer blocks; width; attention heads; entries of the vocabulary; tokens of one sequence.
    key_value_heads : int
        Fewer than `heads` for grouped-query attention; divides `heads`. Default: `heads`.
    head_size : int
        Default: hidden / heads.
    ffn : int
        Width of the MLP. Default: 4 x hidden.
    gated : bool
        Whether the MLP has a gate (SwiGLU: three matrices) or is plain (GELU: two).
    tied_embeddings : bool
        Whether the head uses the embedding's matrix: counted once, held on both stages.
    attention : {"flash", "full"}
        `full` holds the s x s matrices, `flash` does not.
    causal : bool
        Count half of the attention matrix, what a kernel for causal masks computes. Published FLOP formulas and model
        FLOP utilisation count all of it.
    norm : {"layernorm", "rmsnorm"}; positions : {"rotary", "learned"}
    attention_bias, projection_bias, mlp_bias, head_norm : bool
        Biases of Q, K and V, of the attention's projection and of the MLP; norms of each head's Q and K.
    dropout : bool
        Whether dropout masks are held.
    query_rank, key_value_rank, rotary_head_size, value_head_size : int
        Multi-head latent attention (DeepSeek): set `key_value_rank` to have it; `head_size` is then the part of a head
        without rotation. `query_rank` 0 leaves the query uncompressed.
    experts, experts_per_token, shared_experts : int
        Mixture of experts: routed experts, how many of them a token visits, and experts that every token visits.
    expert_ffn : int
        Width of one expert. Default: `ffn`.
    dense_layers : int
        First blocks that keep a dense MLP of width `ffn`.
    prediction_layers : int
        Multi-token-prediction modules after the last block (DeepSeek-V3).

    Raises
    ------
    ConfigError
        Names the field, its value and what is legal.
    """

    CHOICES: ClassVar = {
        "attention": ("flash", "full"),
        "norm": ("layernorm", "rmsnorm"),
        "positions": ("rotary", "learned"),
    }

    num_layers: int
    hidden: int
    heads: int
    vocabulary: int
    sequence: int
    key_value_heads: int = 0
    head_size: int = 0
    ffn: int = 0
    gated: bool = False
    tied_embeddings: bool = False
    attention: str = "flash"
    causal: bool = True
    norm: str = "layernorm"
    positions: str = "rotary"
    attention_bias: bool = False
    projection_bias: bool = False
    mlp_bias: bool = False
    head_norm: bool = False
    dropout: bool = False
    query_rank: int = 0
    key_value_rank: int = 0
    rotary_head_size: int = 0
    value_head_size: int = 0
    experts: int = 0
    experts_per_token: int = 0
    shared_experts: int = 0
    expert_ffn: int = 0
    dense_layers: int = 0
    prediction_layers: int = 0

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_field(field, getattr(self, field.name))
        self._complete()
        if self.heads % self.key_value_heads:
            raise ConfigError(
                f"key_value_heads={self.key_value_heads} does not divide heads={self.heads}; use a divisor of it"
            )
        if self.experts_per_token > self.experts:
            raise ConfigError(
                f"experts_per_token={self.experts_per_token} is above experts={self.experts}; use at most that"
            )
        if self.experts and not self.experts_per_token:
            raise ConfigError(f"experts={self.experts} needs experts_per_token from 1 to {self.experts}; it is 0")

    def _complete(self) -> None:
        """Fill in the fields that follow from others."""
        if not self.head_size and self.hidden % self.heads:
            raise ConfigError(
                f"hidden={self.hidden} is not a multiple of heads={self.heads}; change one, or give head_size"
            )
        defaults = {
            "key_value_heads": self.heads,
            "head_size": self.hidden // self.heads,
            "ffn": 4 * self.hidden,
            "expert_ffn": self.ffn or 4 * self.hidden,
        }
        if self.key_value_rank:
            head_size = self.head_size or self.hidden // self.heads
            defaults |= {"rotary_head_size": head_size // 2, "value_head_size": head_size}
        for name, value in defaults.items():
            if not getattr(self, name):
                object.__setattr__(self, name, value)

    @classmethod
    def from_huggingface(
        cls, source: str | PathLike[str] | Mapping[str, Any], *, sequence: int | None = None, **changes: Any
    ) -> Model:
        """The model of a Hugging Face `config.json` (path, its folder, or the document as a mapping).

        `sequence` is the length to train on; default: the config's longest. `changes` replace fields of the result.
        Raises ConfigError naming a field that is missing or an architecture that is not known.
        """
        from ppsim.costs.huggingface import read_model

        return read_model(source, sequence=sequence, **changes)

    @cached_property
    def layers(self) -> list[Layer]:
        """Embedding, blocks, multi-token-prediction modules if any, head with final norm and loss; of one sequence."""
        dense = block(self, routed=False)
        routed = block(self, routed=True) if self.experts else dense
        first_routed = self.dense_layers if self.experts else self.num_layers
        blocks = [dense if index < first_routed else routed for index in range(self.num_layers)]
        modules = [prediction(self, routed)] * self.prediction_layers
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
        whole = self if not self.causal else Model(**{**self._fields(), "causal": False})
        return float(sum(layer.forward + layer.input_grad + layer.weight_grad for layer in whole.layers))

    def _fields(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


def _check_field(field: Field, value: Any) -> None:
    name = field.name
    if name in Model.CHOICES:
        if value not in Model.CHOICES[name]:
            raise ConfigError(f"{name}={shown(value)} is not known; use one of: {', '.join(Model.CHOICES[name])}")
    elif field.type == "bool":
        if not isinstance(value, bool):
            raise ConfigError(f"{name}={shown(value)} must be true or false")
    else:
        least = 1 if field.default is MISSING else 0
        most = MOST_LAYERS if name in ("num_layers", "prediction_layers") else LARGEST
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise ConfigError(f"{name}={shown(value)} must be a whole number from {least} to {most}")
