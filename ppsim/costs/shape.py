"""Shape: sizes of a transformer, checked and completed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ppsim.base.errors import ConfigError, shown
from ppsim.base.rules import check_fields, choice, declared, described, flag, rule, whole_number

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
@dataclass(frozen=True)
class Shape:
    """Shape of a decoder-only transformer; 0 means a field's default.

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
    tied_embeddings: bool = _flag(
        "the head uses the embedding's matrix: counted once, held by each device that has either"
    )
    attention: str = declared(
        "`flash`, the device's best kernel; `flash-2`, `flash-1`, older; `triton`, Triton's of 2023; `sdpa`, PyTorch's "
        "own, priced as `flash-2`; `full`: s x s are held",
        choice("flash", "flash-2", "sdpa", "flash-1", "triton", "full"), "flash", example="full",
    )  # fmt: skip
    causal: bool = _flag("count half of the s x s matrices, as kernels do; published FLOP formulas count all", True)
    window: int = _size("tokens that a query attends to at most", "128", "0: all")
    window_period: int = _size("every n-th block has no window", "2", "0: all blocks have it")
    parallel_block: bool = _flag("attention and MLP read the same input and are added together (GPT-J, PaLM)")
    norm: str = _word("layernorm", "rmsnorm")
    positions: str = _word("rotary", "learned")
    attention_bias: bool = _flag("biases of Q, K and V")
    projection_bias: bool = _flag("bias of the attention's projection")
    mlp_bias: bool = _flag("biases of the MLP, of routed experts too")
    clamped: bool = _flag("the input of the MLP's activation is clamped (GPT OSS)")
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
    shared_gate: bool = _flag("a gate of the token scales the shared experts' output (Qwen)")
    expert_hidden: int = _size("width of tokens in routed experts (Nemotron 3 Super)", "1024", "`hidden`")
    attention_gate: bool = _flag("attention's output is scaled by a gate, as wide as it is (Qwen3-Next, Kimi K3)")
    full_gate: bool = _flag("the gate of Kimi delta attention's output is one matrix, not two of low rank (Kimi K3)")
    index_heads: int = _size("heads of the indexer of DeepSeek's sparse attention", "64")
    index_head_size: int = _size("width of these heads", "128", "needed with `index_heads`")
    index_tokens: int = _size(
        "tokens that a query attends to, chosen by the indexer", "2048", "needed with `index_heads`"
    )
    pattern: str = declared(
        "sublayers of the blocks in Megatron-LM's letters, `[*E]` for a block of two; a bar ends a stage, unless "
        "`layout.partition` is not `even`; `/` begins a prediction module",
        rule(lambda value: isinstance(value, str), "must be text, such as 'M-M-M*-'"), "", example="'M-M*-'",
        default_text="attention, and MLP or experts",
    )  # fmt: skip
    state_heads: int = _size("heads of a Mamba-2 layer, or value heads of a delta net", "128")
    state_head_size: int = _size("width of such a head", "64")
    state_size: int = _size("size of the state of a channel: the width of a key", "128")
    state_groups: int = _size("groups of heads that share keys and queries: the key heads of a delta net", "8", "1")
    conv_size: int = _size("tokens that the convolution before the scan reads", "4", "4")
    prediction_layers: int = _size(
        "multi-token-prediction modules after the last block (DeepSeek-V3)", "1", most=MAX_LAYERS
    )
    residual_streams: int = _size(
        "residual streams, mixed around each sublayer, all sent between stages (mHC)", "4", "1"
    )
    residual_block: int = _size(
        "blocks that share a residual; a stage sends the residuals of all earlier blocks (Kimi K3)",
        "12",
        "0: one residual",
    )

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
        if self.index_heads and not (self.index_head_size and self.index_tokens and self.key_value_rank):
            raise ConfigError(
                f"index_heads={self.index_heads} needs index_head_size, index_tokens and key_value_rank above 0, such "
                f"as 128, 2048 and 512"
            )
        if self.residual_block and self.residual_streams > 1:
            raise ConfigError(
                f"residual_block={self.residual_block} and residual_streams={self.residual_streams} exclude each "
                f"other; use one of them"
            )
        if self.pattern:
            self._check_pattern()

    @cached_property
    def stage_patterns(self) -> list[list[str]]:
        """Letters of the sublayers of each block, for each stage that `pattern` names."""
        return [split_blocks(stage) for stage in self.pattern.split("/")[0].split("|")]

    @cached_property
    def block_letters(self) -> list[str]:
        """Letters of the sublayers of each block: attention, scan, MLP or experts (`ppsim.costs.sublayers`)."""
        if self.pattern:
            return [letters for stage in self.stage_patterns for letters in stage]
        period, every = self.window_period, range(self.num_layers)
        windowed = [bool(self.window) and not (period and (index + 1) % period == 0) for index in every]
        routed = [bool(self.experts) and index >= self.dense_layers for index in every]
        return [
            ("W" if near else "*") + ("E" if expert else "-") for near, expert in zip(windowed, routed, strict=True)
        ]

    @property
    def has_scans(self) -> bool:
        """True if some block has a state that passes from token to token."""
        return any(letter in "MGK" for letter in self.pattern)

    @property
    def prediction_letters(self) -> str:
        """Letters of the sublayers of a prediction module's block."""
        after = self.pattern.split("/")[1:]
        if after:
            return "".join(split_blocks(after[0]))
        return "*" + ("E" if self.experts else "-") if self.pattern else self.block_letters[-1]

    def _check_pattern(self) -> None:
        """Raise ConfigError unless the pattern has the blocks that `num_layers` counts, and their sizes are known."""
        blocks = self.block_letters
        if len(blocks) != self.num_layers:
            raise ConfigError(
                f"pattern={shown(self.pattern)} has {len(blocks)} blocks, but num_layers={self.num_layers}; "
                f"use num_layers={len(blocks)}"
            )
        modules = self.pattern.split("/")[1:]
        if len({*modules}) > 1 or (modules and len(modules) != self.prediction_layers):
            raise ConfigError(
                f"pattern={shown(self.pattern)} has {len(modules)} prediction modules after /, but they must be equal, "
                f"and prediction_layers={self.prediction_layers} of them"
            )
        used = {*"".join(blocks), *"".join(modules)}
        needs = [*((letter, "state_heads", "state_head_size", "state_size") for letter in "MGK"), ("W", "window"),
                 ("E", "experts"), ("+", "key_value_rank"), ("D", "index_heads")]  # fmt: skip
        for letter, *names in needs:
            if letter in used and (lacking := [name for name in names if not getattr(self, name)]):
                raise ConfigError(f"{letter} in pattern={shown(self.pattern)} needs {', '.join(lacking)} above 0")

    def _complete(self) -> None:
        """Set the fields that follow from others."""
        if not self.head_size and self.hidden % self.heads:
            raise ConfigError(
                f"hidden={self.hidden} is not a multiple of heads={self.heads}; change one, or give head_size"
            )
        defaults = {
            "state_groups": 1,
            "conv_size": 4,
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


def split_blocks(pattern: str) -> list[str]:
    """Return the letters of each block of a part of a pattern without | and /; ConfigError for other text."""
    blocks = _BLOCK.findall(pattern)
    if "".join(blocks) != pattern:
        raise ConfigError(
            f"pattern={shown(pattern)} must consist of the letters {LETTERS}, or [ ] around a block of several, | "
            f"between stages and / before a prediction module, such as 'M-M-|M*E'"
        )
    return [letters.strip("[]") for letters in blocks]


LETTERS = "M G K * + D W - E"
_LETTER = f"[{re.escape(LETTERS.replace(' ', ''))}]"
_BLOCK = re.compile(rf"{_LETTER}|\[{_LETTER}+\]")


def boundary_width(model: Shape, blocks: int, modules: int = 0, heads: int = 0) -> int:
    """Return the number of hidden states that cross the stage boundary after these blocks, modules and heads.

    All residual streams cross it: Xie et al. 2025, arXiv 2512.24880, and Megatron-LM, transformer_block.py. The final
    norm, before the prediction modules, joins them. Kimi K3 sends the residual of each `residual_block` blocks:
    Primus, kimi_k3_block.py, `attn_res_num_blocks_before`. The output of each prediction module crosses in addition to
    the last block's, until a head of its own uses it: Megatron-LM, multi_token_prediction.py, and pull request 5318.
    """
    if modules or (model.prediction_layers and blocks == model.num_layers):
        return max(1 + modules - heads, 1)
    return 1 + -(-blocks // model.residual_block) if model.residual_block else model.residual_streams or 1
