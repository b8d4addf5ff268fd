"""Shape: the sizes of a transformer, checked and completed."""

from __future__ import annotations

from dataclasses import dataclass

from ppsim.base.errors import ConfigError
from ppsim.base.rules import changed_fields, check_fields, choice, declared, described, flag, whole_number

LARGEST = 2**40
MOST_LAYERS = 2_000


@described
@dataclass(frozen=True, repr=False)
class Shape:
    """Shape of a decoder-only transformer; 0 stands for a field's default.

    Raises ConfigError with the field, its value and what is legal.
    """

    num_layers: int = declared(
        "transformer blocks", whole_number(1, MOST_LAYERS), example="32", default_text="needed, unless `huggingface`"
    )
    hidden: int = declared(
        "width", whole_number(1, LARGEST), example="4096", default_text="needed, unless `huggingface`"
    )
    heads: int = declared(
        "attention heads", whole_number(1, LARGEST), example="32", default_text="needed, unless `huggingface`"
    )
    vocabulary: int = declared(
        "entries of the vocabulary",
        whole_number(1, LARGEST),
        example="128256",
        default_text="needed, unless `huggingface`",
    )
    sequence: int = declared(
        "tokens of one sequence", whole_number(1, LARGEST), example="8192", default_text="needed, unless `huggingface`"
    )
    key_value_heads: int = declared(
        "fewer than `heads` for grouped-query attention; divides `heads`",
        whole_number(0, LARGEST),
        0,
        example="8",
        default_text="`heads`",
    )
    head_size: int = declared(
        "width of a head; with latent attention its part without rotation",
        whole_number(0, LARGEST),
        0,
        example="128",
        default_text="hidden / heads",
    )
    ffn: int = declared("width of the MLP", whole_number(0, LARGEST), 0, example="14336", default_text="4 hidden")
    gated: bool = declared("three matrices in the MLP (SwiGLU) or two (GELU)", flag, False, example="true")
    tied_embeddings: bool = declared(
        "the head uses the embedding's matrix: counted once, held on both stages", flag, False, example="true"
    )
    attention: str = declared(
        "`flash`, `full`: whether the s x s matrices are held", choice("flash", "full"), "flash", example="full"
    )
    causal: bool = declared(
        "count half of the s x s matrices, what a kernel for causal masks computes; published FLOP formulas count all",
        flag,
        True,
        example="false",
    )
    norm: str = declared("`layernorm`, `rmsnorm`", choice("layernorm", "rmsnorm"), "layernorm", example="rmsnorm")
    positions: str = declared("`rotary`, `learned`", choice("rotary", "learned"), "rotary", example="learned")
    attention_bias: bool = declared("biases of Q, K and V", flag, False, example="true")
    projection_bias: bool = declared("bias of the attention's projection", flag, False, example="true")
    mlp_bias: bool = declared("biases of the MLP", flag, False, example="true")
    head_norm: bool = declared("norms of each head's Q and K", flag, False, example="true")
    dropout: bool = declared("dropout masks are held", flag, False, example="true")
    query_rank: int = declared(
        "rank of the queries of latent attention; 0 leaves them uncompressed",
        whole_number(0, LARGEST),
        0,
        example="1536",
        default_text="0: none",
    )
    key_value_rank: int = declared(
        "rank of keys and values of multi-head latent attention (DeepSeek)",
        whole_number(0, LARGEST),
        0,
        example="512",
        default_text="0: none",
    )
    rotary_head_size: int = declared(
        "part of a head with rotation, of latent attention",
        whole_number(0, LARGEST),
        0,
        example="64",
        default_text="half of `head_size`",
    )
    value_head_size: int = declared(
        "width of a value, of latent attention", whole_number(0, LARGEST), 0, example="128", default_text="`head_size`"
    )
    experts: int = declared("routed experts", whole_number(0, LARGEST), 0, example="256", default_text="0: none")
    experts_per_token: int = declared(
        "routed experts that a token visits",
        whole_number(0, LARGEST),
        0,
        example="8",
        default_text="needed with `experts`",
    )
    shared_experts: int = declared(
        "experts that every token visits", whole_number(0, LARGEST), 0, example="1", default_text="0: none"
    )
    expert_ffn: int = declared("width of one expert", whole_number(0, LARGEST), 0, example="2048", default_text="`ffn`")
    dense_layers: int = declared(
        "first blocks that keep a dense MLP of width `ffn`",
        whole_number(0, LARGEST),
        0,
        example="3",
        default_text="0: none",
    )
    prediction_layers: int = declared(
        "multi-token-prediction modules after the last block (DeepSeek-V3)",
        whole_number(0, MOST_LAYERS),
        0,
        example="1",
        default_text="0: none",
    )

    __repr__ = changed_fields

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
