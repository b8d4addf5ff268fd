"""Model: a transformer whose layers follow from its shape, and the reader of Hugging Face configs.

Field names and defaults of configs: github.com/huggingface/transformers, src/transformers/models/*/configuration_*.py.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from typing import Any

from ppsim.base.documents import read_json
from ppsim.base.errors import ConfigError, shown
from ppsim.base.files import MAX_CONFIG_BYTES, read_text
from ppsim.base.rules import checked_methods
from ppsim.costs.layers import Layer, block, embedding, head, prediction
from ppsim.costs.shape import MAX_LAYERS, Shape


@checked_methods
@dataclass(frozen=True, repr=False)
class Model(Shape):
    __doc__ = Shape.__doc__

    @classmethod
    def from_huggingface(
        cls, source: str | PathLike[str] | Mapping[str, Any], *, sequence: int | None = None, **changes: Any
    ) -> Model:
        """Return the model of a Hugging Face `config.json`: a path, its folder, or the document as a mapping.

        `sequence` is the length to train on; default: the config's `max_position_embeddings`. `changes` replace fields
        of the result. Raises ConfigError naming a field that is missing or wrong, or an unknown model_type with the
        known ones.
        """
        document = _read(source)
        kind = document.fields.get("model_type")
        if not isinstance(kind, str) or kind not in _FAMILIES:
            missing = "has no model_type" if kind is None else f"has model_type {shown(kind)}, which is not known"
            lacking = [field for field in _SHAPE.values() if field not in document.fields]
            missing += f", and no {', '.join(lacking)}" if lacking else ""
            raise ConfigError(
                f"{document.place}: {missing}; the known ones are {', '.join(_FAMILIES)}. For another architecture "
                f"give the shape fields (num_layers, hidden, heads, vocabulary, sequence, ...) instead"
            )
        shape: dict[str, Any] = {name: document.count(field) for name, field in _SHAPE.items()}
        shape["sequence"] = sequence if sequence is not None else document.count("max_position_embeddings")
        shape["tied_embeddings"] = document.flag("tie_word_embeddings")
        shape |= _FAMILIES[kind](document)
        try:
            return cls(**(shape | changes))
        except ConfigError as error:
            raise ConfigError(f"{document.place}: {error}") from None
        except TypeError:
            unknown = ", ".join(name for name in changes if name not in cls.__dataclass_fields__)
            raise ConfigError(f"{document.place}: {unknown} is no field of a {cls.__name__}") from None

    @cached_property
    def layers(self) -> list[Layer]:
        """Embedding, blocks, multi-token-prediction modules if any, head with final norm and loss, for one sequence."""
        blocks_by_kind: dict[tuple[bool, bool], Layer] = {}

        def block_at(index: int) -> Layer:
            windowed = bool(self.window) and not (self.window_period and (index + 1) % self.window_period == 0)
            kind = (bool(self.experts) and index >= self.dense_layers, windowed)
            if kind not in blocks_by_kind:
                blocks_by_kind[kind] = block(self, *kind)
            return blocks_by_kind[kind]

        blocks = [block_at(index) for index in range(self.num_layers)]
        predictions = [prediction(self, block_at(self.num_layers))] if self.prediction_layers else []
        return [embedding(self), *blocks, *predictions * self.prediction_layers, head(self)]

    @cached_property
    def parameters(self) -> int:
        """Parameters of the whole model without multi-token-prediction modules; a tied matrix counts once."""
        total = sum(layer.parameters for layer in self.layers if layer.name != "prediction")
        return total - self.vocabulary * self.hidden * self.tied_embeddings

    @cached_property
    def active_parameters(self) -> int:
        """Parameters that one token visits; equals `parameters` without experts."""
        blocks = self.layers[1 : 1 + self.num_layers]
        unused = self.experts - self.experts_per_token
        return self.parameters - sum(layer.expert_parameters * unused // max(self.experts, 1) for layer in blocks)

    def step_flops(self) -> float:
        """Return model FLOPs of forward and backward of one sequence, attention in full, without recomputation.

        The convention of model FLOP utilisation: Chowdhery et al. 2022 (PaLM), arXiv 2204.02311, appendix B, and
        Korthikanti et al. 2022, arXiv 2205.05198, equation 7.
        """
        return self._step_flops

    @cached_property
    def _step_flops(self) -> float:
        whole = replace(self, causal=False) if self.causal else self
        return float(sum(layer.forward + layer.input_grad + layer.weight_grad for layer in whole.layers))


_SHAPE = {
    "num_layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "ffn": "intermediate_size",
    "vocabulary": "vocab_size",
}
SLIDING = "sliding_attention"  # stands for a block with a window in `layer_types`
_MISSING = object()


class _Document:
    """Fields of a config; reading a missing field, or one of another type, raises a ConfigError that names it."""

    def __init__(self, place: str, fields: Mapping[str, Any]):
        self.place = place
        self.fields = fields

    def count(self, name: str, default: Any = _MISSING) -> int:
        """Return an integer >= 0; null counts as not given."""
        value = self.fields.get(name)
        if value is None:
            if default is _MISSING:
                kind = shown(self.fields.get("model_type"))
                raise ConfigError(f"{self.place}: field {name!r} is missing; a config of model_type {kind} needs it")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise ConfigError(f"{self.place}: {name}={shown(value)} must be a whole number of at least 0")
        return value

    def flag(self, name: str, default: bool = False) -> bool:
        """Return true or false; null counts as not given."""
        value = self.fields.get(name)
        if value is not None and not isinstance(value, bool):
            raise ConfigError(f"{self.place}: {name}={shown(value)} must be true or false")
        return default if value is None else value


def _read(source: str | PathLike[str] | Mapping[str, Any]) -> _Document:
    if isinstance(source, Mapping):
        return _Document("the config", source)
    if not isinstance(source, str | PathLike):
        raise ConfigError(f"{shown(source)} is no config; give the path of a config.json, or its content as a mapping")
    path = os.path.join(source, "config.json") if os.path.isdir(source) else source
    place = os.fspath(path)
    fields = read_json(read_text(path, most=MAX_CONFIG_BYTES), place, "a config.json")
    if not isinstance(fields, dict):
        raise ConfigError(f"{place}: {shown(fields)} is no config; a config.json holds an object")
    return _Document(place, fields)


def _grouped_gated(document: _Document) -> dict[str, Any]:
    """Return the fields that Llama-like models share: RMS norms, grouped-query attention, a gated MLP."""
    return {
        "norm": "rmsnorm",
        "gated": True,
        "key_value_heads": document.count("num_key_value_heads", 0),
        "head_size": document.count("head_dim", 0),
    }


def _windows(document: _Document, windowed: Callable[[int], bool]) -> dict[str, Any]:
    """Return the fields of windowed attention: in blocks of `layer_types`, or else those that `windowed` accepts."""
    window = document.count("sliding_window", 0)
    blocks = range(min(document.count("num_hidden_layers"), MAX_LAYERS))  # a Shape rejects more
    types = document.fields.get("layer_types") or []
    if not isinstance(types, list) or len(types) not in (0, len(blocks)):
        raise ConfigError(
            f"{document.place}: layer_types={shown(types)} must list one word for each of the {len(blocks)} blocks"
        )
    local = [types[block] == SLIDING if types else windowed(block) for block in blocks]
    if not window or not any(local):
        return {}
    period = local.index(False) + 1 if not all(local) else 0
    if local != [not period or (block + 1) % period != 0 for block in blocks]:
        raise ConfigError(
            f"{document.place}: windows of attention in {local.count(True)} of {len(blocks)} blocks, in an order that "
            f"a Model cannot hold; known are windows in all, and in all but the last of every so many (window_period)"
        )
    return {"window": window, "window_period": period}


def _mistral(document: _Document) -> dict[str, Any]:
    return _grouped_gated(document) | _windows(document, lambda block: True)


def _gemma(document: _Document) -> dict[str, Any]:
    tied = {"tied_embeddings": document.flag("tie_word_embeddings", True)}
    return _grouped_gated(document) | tied | {"attention_bias": document.flag("attention_bias")}


def _gemma2(document: _Document) -> dict[str, Any]:
    return _gemma(document) | _windows(document, lambda block: (block + 1) % 2 != 0)


def _gemma3(document: _Document) -> dict[str, Any]:
    period = document.count("sliding_window_pattern", 6) or 1
    return _gemma(document) | {"head_norm": True} | _windows(document, lambda block: (block + 1) % period != 0)


def _llama(document: _Document) -> dict[str, Any]:
    bias = document.flag("attention_bias")
    biases = {"attention_bias": bias, "projection_bias": bias, "mlp_bias": document.flag("mlp_bias")}
    return _grouped_gated(document) | biases


def _local_experts(document: _Document) -> dict[str, Any]:
    counts = {"experts": "num_local_experts", "experts_per_token": "num_experts_per_tok"}
    return {name: document.count(field) for name, field in counts.items()}


def _mixtral(document: _Document) -> dict[str, Any]:
    return _mistral(document) | _local_experts(document)


def _gpt_oss(document: _Document) -> dict[str, Any]:
    """Return the fields of GPT OSS; without `layer_types` every other block has the window."""
    bias = document.flag("attention_bias", True)
    biases = {"attention_bias": bias, "projection_bias": bias, "mlp_bias": True}
    windows = _windows(document, lambda block: (block + 1) % 2 != 0)
    return _grouped_gated(document) | _local_experts(document) | windows | biases | {"clamped": True}


def _qwen(document: _Document) -> dict[str, Any]:
    """Return the fields that Qwens share; `use_sliding_window` applies to blocks from `max_window_layers` on."""
    if not document.flag("use_sliding_window"):
        return _grouped_gated(document)
    first = document.count("max_window_layers", 28)
    return _grouped_gated(document) | _windows(document, lambda block: block >= first)


def _qwen2(document: _Document) -> dict[str, Any]:
    return _qwen(document) | {"attention_bias": True}


def _qwen2_moe(document: _Document) -> dict[str, Any]:
    width, shared = document.count("moe_intermediate_size"), document.count("shared_expert_intermediate_size")
    if not width or shared % width:
        raise ConfigError(
            f"{document.place}: shared_expert_intermediate_size={shared} must be a multiple of "
            f"moe_intermediate_size={width}"
        )
    return _qwen2(document) | _qwen_experts(document, width) | {"shared_experts": shared // width}


def _qwen3(document: _Document) -> dict[str, Any]:
    return _qwen(document) | {"head_norm": True, "attention_bias": document.flag("attention_bias")}


def _qwen3_moe(document: _Document) -> dict[str, Any]:
    return _qwen3(document) | _qwen_experts(document, document.count("moe_intermediate_size"))


def _qwen_experts(document: _Document, width: int) -> dict[str, Any]:
    if document.count("decoder_sparse_step", 1) != 1 or document.fields.get("mlp_only_layers"):
        raise ConfigError(
            f"{document.place}: decoder_sparse_step and mlp_only_layers mix dense and expert blocks in a way that a "
            f"Model cannot hold; only dense blocks before all expert blocks (dense_layers) are known"
        )
    counts = {"experts": "num_experts", "experts_per_token": "num_experts_per_tok"}
    return {name: document.count(field) for name, field in counts.items()} | {"expert_ffn": width}


def _gpt_neox(document: _Document) -> dict[str, Any]:
    bias = document.flag("attention_bias", True)
    parallel = document.flag("use_parallel_residual", True)
    biases = {"attention_bias": bias, "projection_bias": bias, "mlp_bias": True}
    return {"norm": "layernorm", "parallel_block": parallel, **biases}


def _deepseek_experts(document: _Document) -> dict[str, Any]:
    if document.count("moe_layer_freq", 1) != 1:
        raise ConfigError(
            f"{document.place}: moe_layer_freq={document.fields['moe_layer_freq']} is not known; only 1 is"
        )
    return {
        "experts": document.count("n_routed_experts"),
        "experts_per_token": document.count("num_experts_per_tok"),
        "shared_experts": document.count("n_shared_experts", 0),
        "expert_ffn": document.count("moe_intermediate_size"),
        "dense_layers": document.count("first_k_dense_replace", 0),
    }


def _deepseek(document: _Document) -> dict[str, Any]:
    return _llama(document) | _deepseek_experts(document)


def _deepseek_latent(document: _Document) -> dict[str, Any]:
    return _deepseek_experts(document) | {
        "norm": "rmsnorm",
        "gated": True,
        "head_size": document.count("qk_nope_head_dim"),
        "query_rank": document.count("q_lora_rank", 0),
        "key_value_rank": document.count("kv_lora_rank"),
        "rotary_head_size": document.count("qk_rope_head_dim"),
        "value_head_size": document.count("v_head_dim"),
        "prediction_layers": document.count("num_nextn_predict_layers", 0),
    }


_FAMILIES: Mapping[str, Callable[[_Document], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "mixtral": _mixtral,
    "gpt_oss": _gpt_oss,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "gemma": _gemma,
    "gemma2": _gemma2,
    "gemma3_text": _gemma3,
    "gpt_neox": _gpt_neox,
    "deepseek": _deepseek,
    "deepseek_v2": _deepseek_latent,
    "deepseek_v3": _deepseek_latent,
}
