"""Shape: sizes of a transformer, checked and completed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.rules import check_fields, choice, declared, described, flag, whole_number
from ppsim.base.short_repr import short_repr

LARGEST = 2**40
MAX_LAYERS = 2_000


def _needed(what: str, example: str, most: int = LARGEST) -> Any:
    return declared(what, whole_number(1, most), example=example, default_text="needed, unless `huggingface`")


def _size(what: str, example: str, default: str = "0: none", most: int = LARGEST) -> Any:
    return declared(what, whole_number(0, most), 0, example=example, default_text=default)


def _flag(what: str, default: bool = False) -> Any:
    return declared(what, flag, default, example=str(not default).lower())


def _word(default: str, other: str) -> Any:
    return declared(f"`{default}`, `{other}`", choice(default, other), default, example=other)


@described
@dataclass(frozen=True, repr=False)
class Shape:
    """Shape of a decoder-only transformer; 0 stands for a field's default.

    Raises ConfigError with the field, its value and what is legal.
    """

    num_layers: int = _needed("transformer blocks", "32", MAX_LAYERS)
    hidden: int = _needed("width", "4096")
    heads: int = _needed("attention heads", "32")
    vocabulary: int = _needed("entries of the vocabulary", "128256")
    sequence: int = _needed("tokens of one sequence", "8192")
    key_value_heads: int = _size("fewer than `heads` for grouped-query attention; divides `heads`", "8", "`heads`")
    head_size: int = _size("width of a head; with latent attention its part without rotation", "128", "hidden / heads")
    ffn: int = _size("width of the MLP", "14336", "4 hidden")
    gated: bool = _flag("three matrices in the MLP (SwiGLU) or two (GELU)")
    tied_embeddings: bool = _flag("the head uses the embedding's matrix: counted once, held on both stages")
    attention: str = declared(
        "`flash`, the best kernel of the device; `flash-2`, `flash-1`, older ones; `full`: the s x s matrices are held",
        choice("flash", "flash-2", "flash-1", "full"), "flash", example="full",
    )  # fmt: skip
    causal: bool = _flag("count half of the s x s matrices, as kernels do; published FLOP formulas count all", True)
    window: int = _size("tokens that a query attends to at most", "128", "0: all")
    window_period: int = _size("of so many blocks in a row the last one has no window", "2", "0: all blocks have it")
    parallel_block: bool = _flag("attention and MLP read the same input and are added together (GPT-J, PaLM)")
    norm: str = _word("layernorm", "rmsnorm")
    positions: str = _word("rotary", "learned")
    attention_bias: bool = _flag("biases of Q, K and V")
    projection_bias: bool = _flag("bias of the attention's projection")
    mlp_bias: bool = _flag("biases of the MLP, of routed experts too")
    clamped: bool = _flag("what enters the MLP's activation is clamped first (GPT OSS)")
    head_norm: bool = _flag("norms of each head's Q and K")
    dropout: bool = _flag("dropout masks are held")
    query_rank: int = _size("rank of the queries of latent attention; 0 leaves them uncompressed", "1536")
    key_value_rank: int = _size("rank of keys and values of multi-head latent attention (DeepSeek)", "512")
    rotary_head_size: int = _size("part of a head with rotation, of latent attention", "64", "half of `head_size`")
    value_head_size: int = _size("width of a value, of latent attention", "128", "`head_size`")
    experts: int = _size("routed experts", "256")
    experts_per_token: int = _size("routed experts that a token visits", "8", "needed with `experts`")
    shared_experts: int = _size("experts that every token visits", "1")
    expert_ffn: int = _size("width of one expert", "2048", "`ffn`")
    dense_layers: int = _size("first blocks that keep a dense MLP of width `ffn`", "3")
    prediction_layers: int = _size(
        "multi-token-prediction modules after the last block (DeepSeek-V3)", "1", most=MAX_LAYERS
    )

    __repr__ = short_repr

    def __post_init__(self) -> None:
        check_fields(self)
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
        """Set the fields that follow from others."""
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
