"""Reader of Hugging Face configs: the fields of a model's shape from a `config.json`.

Field names and defaults: github.com/huggingface/transformers, src/transformers/models/*/configuration_*.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from typing import Any

from ppsim.base.documents import read_json
from ppsim.base.errors import ConfigError, shown
from ppsim.base.files import MAX_CONFIG_BYTES, read_text
from ppsim.costs.shape import MAX_LAYERS

Source = str | PathLike[str] | Mapping[str, Any]
_SHAPE = {
    "num_layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
    "ffn": "intermediate_size", "vocabulary": "vocab_size",
}  # fmt: skip
SLIDING = "sliding_attention"  # stands for a block with a window in `layer_types`
_SHAPING = re.compile(
    "num_|_num|size|_dim$|rank|layer|expert|head|block|gate|window|residual|share|attn|index|compress"
)
_MISSING = object()


class _Document:
    """Fields of a config; reading a missing field, or one of another type, raises a ConfigError that names it."""

    def __init__(self, place: str, fields: Mapping[str, Any]):
        self.place = place
        self.fields = fields
        self.read: set[str] = set()

    def count(self, name: str, default: Any = _MISSING) -> int:
        """Return an integer >= 0; null counts as not given."""
        value = self.given(name)
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
        value = self.given(name)
        if value is not None and not isinstance(value, bool):
            raise ConfigError(f"{self.place}: {name}={shown(value)} must be true or false")
        return default if value is None else value

    def given(self, name: str) -> Any:
        """Return a field as it is, None without it, and note that it was read."""
        self.read.add(name)
        return self.fields.get(name)


_Family = Callable[[_Document], dict[str, Any]]


def _read(source: Source) -> _Document:
    if isinstance(source, Mapping):
        return _Document("the config", source)
    if not isinstance(source, str | PathLike):
        raise ConfigError(f"{shown(source)} is no config; give the path of a config.json, or its content as a mapping")
    place = os.fspath(os.path.join(source, "config.json") if os.path.isdir(source) else source)
    fields = read_json(read_text(place, most=MAX_CONFIG_BYTES), place, "a config.json")
    if not isinstance(fields, dict):
        raise ConfigError(f"{place}: {shown(fields)} is no config; a config.json holds an object")
    return _Document(place, fields)


def read_shape(
    source: str | PathLike[str] | Mapping[str, Any], approximate: bool = False
) -> tuple[str, dict[str, Any]]:
    """Return the name of a config and its model's fields; ConfigError for a field that is missing or wrong.

    An unknown model_type is an error that names what the config lacks; with `approximate` it is read as the family that
    its fields fit best, and the field `approximated` says so. A config with parts for several modalities is read by its
    part for text.
    """
    document = _read(source)
    if isinstance(document.fields.get("text_config"), Mapping):
        text = document.fields["text_config"]
        outer = {name: document.fields.get(name) for name in ("model_type", "tie_word_embeddings")}
        document = _Document(document.place, outer | text)
    kind = document.fields.get("model_type")
    family, approximated = _FAMILIES.get(kind) if isinstance(kind, str) else None, ""
    if family is None:
        family = _nearest(document)
        lacking = [name for name in _SHAPE.values() if document.fields.get(name) is None]
        if document.fields.get("moe_intermediate_size") and "intermediate_size" in lacking:
            lacking.remove("intermediate_size")
        if not approximate or lacking:
            raise _unknown(document, family, lacking)
        like = ", ".join(_NAMES[family].split())
        approximated = f"model_type {shown(kind)} is not known: its config is read like {like}"
    listed = document.fields.get("layers_block_type")  # Nemotron 3 Ultra gives the blocks, but not how many they are
    counted = {"num_hidden_layers": len(listed)} if isinstance(listed, list) else {}
    document = _Document(document.place, counted | {k: v for k, v in document.fields.items() if v is not None})
    shape: dict[str, Any] = {name: document.count(field) for name, field in _SHAPE.items() if name != "ffn"}
    ffn = document.count("intermediate_size", 0) or document.count("moe_intermediate_size", 0)
    shape["ffn"] = ffn or document.count("intermediate_size")
    shape["tied_embeddings"] = document.flag("tie_word_embeddings")
    shape |= family(document) | {"approximated": approximated}
    if document.fields.get("max_position_embeddings") is not None:
        shape["sequence"] = document.count("max_position_embeddings")
    return document.place, shape


def _unknown(document: _Document, family: _Family, lacking: list[str]) -> ConfigError:
    """Return the error for an unknown model_type, with what the nearest family does not understand of its config."""
    kind, like = document.fields.get("model_type"), _NAMES[family].split()[0]
    found = "has no model_type" if kind is None else f"has model_type {shown(kind)}, which is not known"
    try:
        nearest = f"and no {', '.join(lacking)}"
        if not lacking:
            family(document)
            unread = document.fields.keys() - document.read.union(_SHAPE.values())
            left = ", ".join(sorted(name for name in unread if document.fields[name] and _SHAPING.search(name)))
            nearest = f"but --approximate (`approximate: true`) reads it like {like}{left and f', without {left}'}"
    except ConfigError as error:
        nearest = f"and cannot be read like the nearest one, {like}: {str(error).removeprefix(f'{document.place}: ')}"
    return ConfigError(
        f"{document.place}: {found}, {nearest}. The known ones are {', '.join(_FAMILIES)}. For another architecture "
        f"give the shape fields (num_layers, hidden, heads, vocabulary, sequence, ...) instead"
    )


def _nearest(document: _Document) -> _Family:
    """Return the family whose own fields a config of an unknown architecture has."""
    for field, family in _TELLING.items():
        if document.fields.get(field):
            return family
    return _llama


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
    window, types = document.count("sliding_window", 0), _listed(document, "layer_types")
    local = [types[block] == SLIDING if types else windowed(block) for block in _blocks(document)]
    if not window or not any(local):
        return {}
    period = local.index(False) + 1 if not all(local) else 0
    if local == [not period or (block + 1) % period != 0 for block in _blocks(document)]:
        return {"window": window, "window_period": period}
    routed = "E" if {"num_local_experts", "num_experts", "n_routed_experts"} & {*document.fields} else "-"
    return {"window": window} | _pattern(["W" if one else "*" for one in local], routed * len(local))


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


def _mixtral(document: _Document) -> dict[str, Any]:
    return _mistral(document) | _experts_of(document, "num_local_experts")


def _gpt_oss(document: _Document) -> dict[str, Any]:
    """Return the fields of GPT OSS; without `layer_types` every other block has the window."""
    bias = document.flag("attention_bias", True)
    biases = {"attention_bias": bias, "projection_bias": bias, "mlp_bias": True}
    windows = _windows(document, lambda block: (block + 1) % 2 != 0)
    return _grouped_gated(document) | _experts_of(document, "num_local_experts") | windows | biases | {"clamped": True}


def _qwen(document: _Document) -> dict[str, Any]:
    """Return the fields that Qwens share; `use_sliding_window` applies to blocks from `max_window_layers` on."""
    if not document.flag("use_sliding_window"):
        return _grouped_gated(document)
    first = document.count("max_window_layers", 28)
    return _grouped_gated(document) | _windows(document, lambda block: block >= first)


def _qwen2(document: _Document) -> dict[str, Any]:
    return _qwen(document) | {"attention_bias": True}


def _qwen2_moe(document: _Document) -> dict[str, Any]:
    return _qwen2(document) | _qwen_experts(document) | _qwen_shared(document)


def _qwen3(document: _Document) -> dict[str, Any]:
    return _qwen(document) | {"head_norm": True, "attention_bias": document.flag("attention_bias")}


def _qwen3_moe(document: _Document) -> dict[str, Any]:
    return _qwen3(document) | _qwen_experts(document)


def _qwen_experts(document: _Document) -> dict[str, Any]:
    if document.count("decoder_sparse_step", 1) != 1 or document.given("mlp_only_layers"):
        raise ConfigError(
            f"{document.place}: decoder_sparse_step and mlp_only_layers mix dense and expert blocks in a way that a "
            f"Model cannot hold; only dense blocks before all expert blocks (dense_layers) are known"
        )
    return _experts_of(document, "num_experts") | {"expert_ffn": document.count("moe_intermediate_size")}


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
    return _experts_of(document, "n_routed_experts") | {
        "shared_experts": document.count("n_shared_experts", 0),
        "expert_ffn": document.count("moe_intermediate_size"),
        "dense_layers": document.count("first_k_dense_replace", 0),
    }


def _deepseek(document: _Document) -> dict[str, Any]:
    return _llama(document) | _deepseek_experts(document)


def _latent(document: _Document) -> dict[str, Any]:
    """Return the fields of multi-head latent attention with a gated MLP."""
    return {
        "norm": "rmsnorm",
        "gated": True,
        "head_size": document.count("qk_nope_head_dim"),
        "query_rank": document.count("q_lora_rank", 0),
        "key_value_rank": document.count("kv_lora_rank"),
        "rotary_head_size": document.count("qk_rope_head_dim"),
        "value_head_size": document.count("v_head_dim"),
    }


def _deepseek_latent(document: _Document) -> dict[str, Any]:
    predictions = {"prediction_layers": document.count("num_nextn_predict_layers", 0)}
    return _deepseek_experts(document) | _latent(document) | predictions


def _blocks(document: _Document) -> range:
    return range(min(document.count("num_hidden_layers"), MAX_LAYERS))  # a Shape rejects more


def _listed(document: _Document, name: str) -> list[Any]:
    """Return a field that lists one value per block; empty if it is not given."""
    found, blocks = document.given(name) or [], len(_blocks(document))
    if not isinstance(found, list) or len(found) not in (0, blocks):
        raise ConfigError(f"{document.place}: {name}={shown(found)} must list one word for each of the {blocks} blocks")
    return found


def _section(document: _Document, name: str) -> _Document:
    """Return a nested object of a config, such as `linear_attn_config`."""
    found = document.given(name)
    if not isinstance(found, Mapping):
        raise ConfigError(f"{document.place}: field {name!r} is missing, or no object: {shown(found)}")
    return _Document(f"{document.place}: {name}", found)


def _pattern(mixers: Iterable[str], mlps: Iterable[str]) -> dict[str, Any]:
    """Return the pattern of blocks with a mixer and an MLP each."""
    return {"pattern": "".join(f"[{one}{other}]" for one, other in zip(mixers, mlps, strict=True))}


def _nemotron_h(document: _Document) -> dict[str, Any]:
    """Return the fields of Nemotron-H and Nemotron 3: one sublayer per block, squared ReLU without a gate."""
    pattern, modules = _letters(document, ""), document.count("num_nextn_predict_layers", 0)
    if not pattern:
        raise ConfigError(
            f"{document.place}: needs hybrid_override_pattern, such as 'M-M*-', or layers_block_type with the words "
            f"{', '.join(_SUBLAYERS)}"
        )
    found = {
        "pattern": "/".join([pattern, *[_letters(document, "mtp_") or "*E"] * modules]), "num_layers": len(pattern),
        "prediction_layers": modules, "norm": "rmsnorm", "positions": "rotary",
        "key_value_heads": document.count("num_key_value_heads", 8),
        "head_size": document.count("head_dim", 0) or document.count("attention_head_dim", 128),
        "state_heads": document.count("mamba_num_heads", 128), "state_head_size": document.count("mamba_head_dim", 64),
        "state_size": document.count("ssm_state_size", 128),
        "state_groups": document.count("n_groups", 0) or document.count("mamba_n_groups", 8),
        "conv_size": document.count("conv_kernel", 4),
    }  # fmt: skip
    if "E" not in pattern:
        return found
    width, shared = document.count("moe_intermediate_size"), document.count("moe_shared_expert_intermediate_size", 0)
    return found | _experts_of(document, "n_routed_experts") | {
        "expert_ffn": width, "expert_hidden": document.count("moe_latent_size", 0),
        "shared_experts": _multiple(document, "moe_shared_expert_intermediate_size", shared, width),
    }  # fmt: skip


_SUBLAYERS = {"mamba": "M", "linear_attention": "M", "attention": "*", "full_attention": "*", "mlp": "-", "moe": "E"}


def _letters(document: _Document, prefix: str) -> str:
    """Return the letters of the sublayers that a Nemotron config lists by words, or as a pattern; empty without."""
    pattern, listed = (document.given(prefix + name) for name in ("hybrid_override_pattern", "layers_block_type"))
    if isinstance(listed, list) and all(isinstance(word, str) and word in _SUBLAYERS for word in listed):
        return "".join(_SUBLAYERS[word] for word in listed)
    return pattern if isinstance(pattern, str) else ""


def _multiple(document: _Document, name: str, whole: int, width: int) -> int:
    """Return how many experts of a width the shared experts make; ConfigError unless it is an integer."""
    if not width or whole % width:
        raise ConfigError(f"{document.place}: {name}={whole} must be a multiple of moe_intermediate_size={width}")
    return whole // width


def _experts_of(document: _Document, name: str, visited: str = "num_experts_per_tok") -> dict[str, Any]:
    return {"experts": document.count(name), "experts_per_token": document.count(visited)}


def _qwen3_next(document: _Document) -> dict[str, Any]:
    """Return the fields of Qwen3-Next and Qwen3.5: gated delta nets, gated attention in every fourth block, experts."""
    types, interval = _listed(document, "layer_types"), document.count("full_attention_interval", 4) or 1
    full = [word == "full_attention" for word in types] or [(one + 1) % interval == 0 for one in _blocks(document)]
    routed, dense = document.count("num_experts", 0), document.given("mlp_only_layers") or []
    mlps = ["E" if routed and at not in dense else "-" for at in range(len(full))]
    fields = _grouped_gated(document) | _pattern(["*" if one else "G" for one in full], mlps) | {
        "head_norm": True, "attention_gate": True, "prediction_layers": document.count("mtp_num_hidden_layers", 0),
        "state_heads": document.count("linear_num_value_heads", 32),
        "state_head_size": document.count("linear_value_head_dim", 128),
        "state_size": document.count("linear_key_head_dim", 128),
        "state_groups": document.count("linear_num_key_heads", 16),
        "conv_size": document.count("linear_conv_kernel_dim", 4),
    }  # fmt: skip
    return fields | _qwen_shared(document) | _experts_of(document, "num_experts") if routed else fields


def _qwen_shared(document: _Document) -> dict[str, Any]:
    """Return the width of a Qwen's experts, and its gated shared ones."""
    width, shared = document.count("moe_intermediate_size"), document.count("shared_expert_intermediate_size", 0)
    shared = _multiple(document, "shared_expert_intermediate_size", shared, width)
    return {"expert_ffn": width, "shared_experts": shared, "shared_gate": shared > 0}


def _kimi_linear(document: _Document) -> dict[str, Any]:
    """Return the fields of Kimi Linear and K3: Kimi delta attention, latent attention in listed blocks, experts."""
    linear, first = _section(document, "linear_attn_config"), document.count("first_k_dense_replace", 0)
    full, size = linear.fields.get("full_attn_layers"), linear.count("head_dim")
    if not isinstance(full, list):
        raise ConfigError(f"{linear.place}: full_attn_layers={shown(full)} must list blocks, counted from 1")
    blocks = _blocks(document)
    return (
        _latent(document)
        | _experts_of(document, "num_experts", "num_experts_per_token")
        | _pattern(["+" if at + 1 in full else "K" for at in blocks], ["-" if at < first else "E" for at in blocks])
        | {
            "shared_experts": document.count("num_shared_experts", 0),
            "expert_ffn": document.count("moe_intermediate_size"), "state_heads": linear.count("num_heads"),
            "expert_hidden": document.count("routed_expert_hidden_size", 0),
            "residual_block": document.count("attn_res_block_size", 0),
            "attention_gate": document.flag("mla_use_output_gate"), "full_gate": linear.flag("use_full_rank_gate"),
            "state_groups": linear.count("num_heads"), "state_head_size": size, "state_size": size,
            "conv_size": linear.count("short_conv_kernel_size", 4),
        }
    )  # fmt: skip


def _llama4(document: _Document) -> dict[str, Any]:
    """Return the fields of Llama 4: experts in some blocks, of `intermediate_size`, and a shared one."""
    step, listed = document.count("interleave_moe_layer_step", 1) or 1, document.given("moe_layers")
    routed = listed if isinstance(listed, list) and listed else [at for at in _blocks(document) if (at + 1) % step == 0]
    width = document.count("intermediate_size")
    return (
        _grouped_gated(document)
        | _experts_of(document, "num_local_experts")
        | _pattern("*" * len(_blocks(document)), ["E" if at in routed else "-" for at in _blocks(document)])
        | {"ffn": document.count("intermediate_size_mlp"), "expert_ffn": width, "shared_experts": 1}
    )


def _glm4_moe(document: _Document) -> dict[str, Any]:
    return _grouped_gated(document) | _deepseek_experts(document) | {
        "attention_bias": document.flag("attention_bias"), "head_norm": document.flag("use_qk_norm"),
        "prediction_layers": document.count("num_nextn_predict_layers", 0),
    }  # fmt: skip


def _minimax_m2(document: _Document) -> dict[str, Any]:
    width = document.count("intermediate_size")
    return (
        _grouped_gated(document) | _experts_of(document, "num_local_experts") | {"head_norm": True, "expert_ffn": width}
    )


def _olmo3(document: _Document) -> dict[str, Any]:
    windows = _windows(document, lambda block: (block + 1) % 4 != 0)
    return _grouped_gated(document) | windows | {"head_norm": True, "attention_bias": document.flag("attention_bias")}


def _deepseek_sparse(document: _Document) -> dict[str, Any]:
    fields = {"index_heads": "index_n_heads", "index_head_size": "index_head_dim", "index_tokens": "index_topk"}
    return _deepseek_latent(document) | {name: document.count(field) for name, field in fields.items()}


_NAMES: Mapping[_Family, str] = {
    _llama: "llama", _mistral: "mistral mistral3", _mixtral: "mixtral", _gpt_oss: "gpt_oss", _qwen2: "qwen2",
    _qwen2_moe: "qwen2_moe", _qwen3: "qwen3 qwen3_vl qwen3_vl_text",
    _qwen3_moe: "qwen3_moe qwen3_vl_moe qwen3_vl_moe_text",
    _qwen3_next: "qwen3_next qwen3_5 qwen3_5_text qwen3_5_moe qwen3_5_moe_text", _gemma: "gemma", _gemma2: "gemma2",
    _gemma3: "gemma3 gemma3_text", _gpt_neox: "gpt_neox", _deepseek: "deepseek",
    _deepseek_latent: "deepseek_v2 deepseek_v3 kimi_k2", _deepseek_sparse: "deepseek_v32 glm_moe_dsa",
    _kimi_linear: "kimi_linear kimi_k3", _nemotron_h: "nemotron_h", _glm4_moe: "glm4_moe", _minimax_m2: "minimax_m2",
    _olmo3: "olmo3", _llama4: "llama4 llama4_text",
}  # fmt: skip
_FAMILIES = {name: family for family, names in _NAMES.items() for name in names.split()}
_TELLING = {
    "linear_attn_config": _kimi_linear,
    "hybrid_override_pattern": _nemotron_h,
    "linear_num_value_heads": _qwen3_next,
    "index_topk": _deepseek_sparse,
    "kv_lora_rank": _deepseek_latent,
    "n_routed_experts": _deepseek,
    "num_experts": _qwen3_moe,
    "num_local_experts": _mixtral,
}
