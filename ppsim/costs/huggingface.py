"""Reader of Hugging Face configs: the fields of a model's shape from a `config.json`.

Field names and defaults: github.com/huggingface/transformers, src/transformers/models/*/configuration_*.py.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from typing import Any

from ppsim.base.documents import read_json
from ppsim.base.errors import ConfigError, shown
from ppsim.base.files import MAX_CONFIG_BYTES, read_text
from ppsim.base.rules import argument, flag, whole_number
from ppsim.costs.shape import MAX_LAYERS

Source = str | PathLike[str] | Mapping[str, Any]
_SHAPE = {
    "num_layers": "num_hidden_layers", "hidden": "hidden_size", "heads": "num_attention_heads",
    "ffn": "intermediate_size", "vocabulary": "vocab_size",
}  # fmt: skip
SLIDING = "sliding_attention"  # name of a block with a window in `layer_types`
_CHANGES_SHAPE = re.compile(  # names of fields that may change a shape
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
        return argument(f"{self.place}: {name}", value, whole_number(0))

    def flag(self, name: str, default: bool = False) -> bool:
        """Return true or false; null counts as not given."""
        value = self.given(name)
        return default if value is None else argument(f"{self.place}: {name}", value, flag)

    def given(self, name: str) -> Any:
        """Return a field as it is, None without it, and note that it was read."""
        self.read.add(name)
        return self.fields.get(name)


def _count(name: str, default: Any = _MISSING) -> Callable[[_Document], int]:
    """Return the reader of a field that is a whole number."""
    return lambda document: document.count(name, default)


def _flag(name: str, default: bool = False) -> Callable[[_Document], bool]:
    """Return the reader of a field that is true or false."""
    return lambda document: document.flag(name, default)


# A part of an architecture: its fields, each a reader or a value, or a function for rules that a table cannot hold.
_Part = Mapping[str, Any] | Callable[[_Document], dict[str, Any]]


def _fields(document: _Document, parts: Iterable[_Part]) -> dict[str, Any]:
    """Return the fields of a shape that the parts of an architecture give; later parts win."""
    found: dict[str, Any] = {}
    for part in parts:
        given = part(document) if callable(part) else part
        found |= {name: key(document) if callable(key) else key for name, key in given.items()}
    return found


def _read(source: Source) -> _Document:
    if isinstance(source, Mapping):
        return _Document("the config", source)
    if not isinstance(source, str | PathLike):
        raise ConfigError(f"{shown(source)} is not a config; give the path of a config.json, or its content")
    place = os.fspath(os.path.join(source, "config.json") if os.path.isdir(source) else source)
    fields = read_json(read_text(place, most=MAX_CONFIG_BYTES), place, "a config.json")
    if not isinstance(fields, dict):
        raise ConfigError(f"{place}: {shown(fields)} is not a config; a config.json holds an object")
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
    names, approximated = _NAMES.get(kind) if isinstance(kind, str) else None, ""
    if names is None:
        names = _nearest(document)
        lacking = [name for name in _SHAPE.values() if document.fields.get(name) is None]
        if document.fields.get("moe_intermediate_size") and "intermediate_size" in lacking:
            lacking.remove("intermediate_size")
        if not approximate or lacking:
            raise _unknown(document, names, lacking)
        like = ", ".join(names.split())
        approximated = f"model_type {shown(kind)} is not known: its config is read like {like}"
    listed = document.fields.get("layers_block_type")  # Nemotron 3 Ultra gives the blocks, but not how many they are
    counted = {"num_hidden_layers": len(listed)} if isinstance(listed, list) else {}
    document = _Document(document.place, counted | {k: v for k, v in document.fields.items() if v is not None})
    shape: dict[str, Any] = {name: document.count(field) for name, field in _SHAPE.items() if name != "ffn"}
    ffn = document.count("intermediate_size", 0) or document.count("moe_intermediate_size", 0)
    shape["ffn"] = ffn or document.count("intermediate_size")
    shape["tied_embeddings"] = document.flag("tie_word_embeddings")
    shape |= _fields(document, _ARCHITECTURES[names]) | {"approximated": approximated}
    if document.fields.get("max_position_embeddings") is not None:
        shape["sequence"] = document.count("max_position_embeddings")
    return document.place, shape


def _unknown(document: _Document, names: str, lacking: list[str]) -> ConfigError:
    """Return the error for an unknown model_type, with what the nearest one does not understand of its config."""
    kind, like = document.fields.get("model_type"), names.split()[0]
    found = "has no model_type" if kind is None else f"has model_type {shown(kind)}, which is not known"
    try:
        nearest = f"and no {', '.join(lacking)}"
        if not lacking:
            _fields(document, _ARCHITECTURES[names])
            unread = document.fields.keys() - document.read.union(_SHAPE.values())
            left = ", ".join(sorted(name for name in unread if document.fields[name] and _CHANGES_SHAPE.search(name)))
            nearest = f"but --approximate (`approximate: true`) reads it like {like}{left and f', without {left}'}"
    except ConfigError as error:
        nearest = f"and cannot be read like the nearest one, {like}: {str(error).removeprefix(f'{document.place}: ')}"
    return ConfigError(
        f"{document.place}: {found}, {nearest}. The known ones are {', '.join(_NAMES)}. For another architecture "
        f"give the shape fields (num_layers, hidden, heads, vocabulary, sequence, ...) instead"
    )


def _nearest(document: _Document) -> str:
    """Return the known architecture that a config of an unknown one is most like, by the fields that it has."""
    kind = next((kind for field, kind in _MODEL_OF_FIELD.items() if document.fields.get(field)), "llama")
    return _NAMES[kind]


def _windows(document: _Document, windowed: Callable[[int], bool]) -> dict[str, Any]:
    """Return the fields of windowed attention: in the blocks that `layer_types` lists, else those of `windowed`."""
    window, types = document.count("sliding_window", 0), _listed(document, "layer_types")
    local = [types[block] == SLIDING if types else windowed(block) for block in _blocks(document)]
    if not window or not any(local):
        return {}
    period = local.index(False) + 1 if not all(local) else 0
    if local == [not period or (block + 1) % period != 0 for block in _blocks(document)]:
        return {"window": window, "window_period": period}
    routed = "E" if {"num_local_experts", "num_experts", "n_routed_experts"} & {*document.fields} else "-"
    return {"window": window} | _pattern(["W" if one else "*" for one in local], routed * len(local))


def _windows_but_every(period: int) -> Callable[[_Document], dict[str, Any]]:
    """Return the part of windows in all blocks but every `period`-th one, unless `layer_types` lists them."""
    return lambda document: _windows(document, lambda block: (block + 1) % period != 0)


def _gemma3_windows(document: _Document) -> dict[str, Any]:
    return _windows_but_every(document.count("sliding_window_pattern", 6) or 1)(document)


def _qwen_windows(document: _Document) -> dict[str, Any]:
    """Return the windows of a Qwen; `use_sliding_window` applies to blocks from `max_window_layers` on."""
    if not document.flag("use_sliding_window"):
        return {}
    first = document.count("max_window_layers", 28)
    return _windows(document, lambda block: block >= first)


def _check_expert_blocks(document: _Document) -> dict[str, Any]:
    """Return no field; ConfigError unless all blocks have experts, or all after the first `dense_layers`."""
    steps = (document.count(name, 1) for name in ("decoder_sparse_step", "moe_layer_freq"))
    if {*steps} != {1} or document.given("mlp_only_layers"):
        raise ConfigError(
            f"{document.place}: decoder_sparse_step and mlp_only_layers, or moe_layer_freq, mix dense and expert "
            f"blocks in a way that a Model cannot hold; only dense blocks before all expert blocks (dense_layers) are "
            f"known"
        )
    return {}


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
        "prediction_layers": modules,
        "head_size": document.count("head_dim", 0) or document.count("attention_head_dim", 128),
        "state_groups": document.count("n_groups", 0) or document.count("mamba_n_groups", 8),
    }  # fmt: skip
    if "E" not in pattern:
        return found
    width, shared = document.count("moe_intermediate_size"), document.count("moe_shared_expert_intermediate_size", 0)
    experts = {**_experts("n_routed_experts"), "expert_hidden": _count("moe_latent_size", 0)}
    shared = _multiple(document, "moe_shared_expert_intermediate_size", shared, width)
    return found | _fields(document, [experts]) | {"expert_ffn": width, "shared_experts": shared}


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


def _qwen3_next_blocks(document: _Document) -> dict[str, Any]:
    """Return the blocks of Qwen3-Next and Qwen3.5: gated attention in every fourth one, else delta nets; experts."""
    types, interval = _listed(document, "layer_types"), document.count("full_attention_interval", 4) or 1
    full = [word == "full_attention" for word in types] or [(one + 1) % interval == 0 for one in _blocks(document)]
    routed, dense = document.count("num_experts", 0), document.given("mlp_only_layers") or []
    mlps = ["E" if routed and at not in dense else "-" for at in range(len(full))]
    fields = _pattern(["*" if one else "G" for one in full], mlps)
    return fields | _qwen_shared(document) | _fields(document, [_experts("num_experts")]) if routed else fields


def _qwen_shared(document: _Document) -> dict[str, Any]:
    """Return the width of a Qwen's experts, and its gated shared ones."""
    width, shared = document.count("moe_intermediate_size"), document.count("shared_expert_intermediate_size", 0)
    shared = _multiple(document, "shared_expert_intermediate_size", shared, width)
    return {"expert_ffn": width, "shared_experts": shared, "shared_gate": shared > 0}


def _kimi_blocks(document: _Document) -> dict[str, Any]:
    """Return the blocks of Kimi Linear and K3: Kimi delta attention, and latent attention in listed ones."""
    linear, first = _section(document, "linear_attn_config"), document.count("first_k_dense_replace", 0)
    full, size = linear.fields.get("full_attn_layers"), linear.count("head_dim")
    if not isinstance(full, list):
        raise ConfigError(f"{linear.place}: full_attn_layers={shown(full)} must list blocks, counted from 1")
    blocks, heads = _blocks(document), linear.count("num_heads")
    pattern = _pattern(["+" if at + 1 in full else "K" for at in blocks], ["-" if at < first else "E" for at in blocks])
    state = {"state_heads": heads, "state_groups": heads, "state_head_size": size, "state_size": size}
    conv = linear.count("short_conv_kernel_size", 4)
    return pattern | state | {"full_gate": linear.flag("use_full_rank_gate"), "conv_size": conv}


def _llama4_blocks(document: _Document) -> dict[str, Any]:
    """Return the blocks of Llama 4, of which some have experts."""
    step, listed = document.count("interleave_moe_layer_step", 1) or 1, document.given("moe_layers")
    routed = listed if isinstance(listed, list) and listed else [at for at in _blocks(document) if (at + 1) % step == 0]
    return _pattern("*" * len(_blocks(document)), ["E" if at in routed else "-" for at in _blocks(document)])


def _experts(name: str, visited: str = "num_experts_per_tok") -> dict[str, Any]:
    """Return the part that counts experts; transformers 5 writes `num_experts` of a Qwen as `num_local_experts`."""
    return {
        "experts": lambda document: document.count("num_local_experts", None) or document.count(name),
        "experts_per_token": _count(visited),
    }


def _biases(attention: Any, mlp: Any) -> dict[str, Any]:
    return {"attention_bias": attention, "projection_bias": attention, "mlp_bias": mlp}


# RMS norms, grouped-query attention and a gated MLP, which Llama-like models share.
_GROUPED = {
    "norm": "rmsnorm", "gated": True, "key_value_heads": _count("num_key_value_heads", 0),
    "head_size": _count("head_dim", 0),
}  # fmt: skip
_HEAD_NORM, _BIAS = {"head_norm": True}, {"attention_bias": _flag("attention_bias")}
_EXPERT_FFN = {"expert_ffn": _count("moe_intermediate_size")}
_PREDICTIONS = {"prediction_layers": _count("num_nextn_predict_layers", 0)}
_LLAMA = (_GROUPED, _biases(_flag("attention_bias"), _flag("mlp_bias")))
_MISTRAL = (_GROUPED, lambda document: _windows(document, lambda block: True))
_GEMMA = (_GROUPED, _BIAS, {"tied_embeddings": _flag("tie_word_embeddings", True)})
_QWEN2 = (_GROUPED, _qwen_windows, {"attention_bias": True})
_QWEN3 = (_GROUPED, _qwen_windows, _HEAD_NORM, _BIAS)
_QWEN_EXPERTS = (_check_expert_blocks, _experts("num_experts"), _EXPERT_FFN)
_DEEPSEEK_EXPERTS = (
    _check_expert_blocks, _experts("n_routed_experts"), _EXPERT_FFN,
    {"shared_experts": _count("n_shared_experts", 0), "dense_layers": _count("first_k_dense_replace", 0)},
)  # fmt: skip
_LATENT = {  # multi-head latent attention with a gated MLP
    "norm": "rmsnorm", "gated": True, "head_size": _count("qk_nope_head_dim"),
    "query_rank": _count("q_lora_rank", 0), "key_value_rank": _count("kv_lora_rank"),
    "rotary_head_size": _count("qk_rope_head_dim"), "value_head_size": _count("v_head_dim"),
}  # fmt: skip
_DEEPSEEK_LATENT = (*_DEEPSEEK_EXPERTS, _LATENT, _PREDICTIONS)
_ARCHITECTURES: Mapping[str, Sequence[_Part]] = {  # by the names in `model_type`
    "llama": _LLAMA,
    "mistral mistral3": _MISTRAL,
    "mixtral": (*_MISTRAL, _experts("num_local_experts")),
    "gpt_oss": (
        _GROUPED, _experts("num_local_experts"), _windows_but_every(2), _biases(_flag("attention_bias", True), True),
        {"clamped": True},
    ),
    "qwen2": _QWEN2,
    "qwen2_moe": (*_QWEN2, *_QWEN_EXPERTS, _qwen_shared),
    "qwen3 qwen3_vl qwen3_vl_text": _QWEN3,
    "qwen3_moe qwen3_vl_moe qwen3_vl_moe_text": (*_QWEN3, *_QWEN_EXPERTS),
    "qwen3_next qwen3_5 qwen3_5_text qwen3_5_moe qwen3_5_moe_text": (
        _GROUPED, _HEAD_NORM, _qwen3_next_blocks,
        {
            "attention_gate": True, "prediction_layers": _count("mtp_num_hidden_layers", 0),
            "state_heads": _count("linear_num_value_heads", 32), "state_size": _count("linear_key_head_dim", 128),
            "state_head_size": _count("linear_value_head_dim", 128),
            "state_groups": _count("linear_num_key_heads", 16), "conv_size": _count("linear_conv_kernel_dim", 4),
        },
    ),
    "gemma": _GEMMA,
    "gemma2": (*_GEMMA, _windows_but_every(2)),
    "gemma3 gemma3_text": (*_GEMMA, _HEAD_NORM, _gemma3_windows),
    "gpt_neox": (
        {"norm": "layernorm", "parallel_block": _flag("use_parallel_residual", True)},
        _biases(_flag("attention_bias", True), True),
    ),
    "deepseek": (*_LLAMA, *_DEEPSEEK_EXPERTS),
    "deepseek_v2 deepseek_v3 kimi_k2": _DEEPSEEK_LATENT,
    "deepseek_v32 glm_moe_dsa": (
        *_DEEPSEEK_LATENT,
        {
            "index_heads": _count("index_n_heads"), "index_head_size": _count("index_head_dim"),
            "index_tokens": _count("index_topk"),
        },
    ),
    "kimi_linear kimi_k3": (
        _LATENT, _experts("num_experts", "num_experts_per_token"), _EXPERT_FFN, _kimi_blocks,
        {
            "shared_experts": _count("num_shared_experts", 0),
            "expert_hidden": _count("routed_expert_hidden_size", 0),
            "residual_block": _count("attn_res_block_size", 0), "attention_gate": _flag("mla_use_output_gate"),
        },
    ),
    "nemotron_h": (
        _nemotron_h,
        {
            "norm": "rmsnorm", "positions": "rotary", "key_value_heads": _count("num_key_value_heads", 8),
            "state_heads": _count("mamba_num_heads", 128), "state_head_size": _count("mamba_head_dim", 64),
            "state_size": _count("ssm_state_size", 128), "conv_size": _count("conv_kernel", 4),
        },
    ),
    "glm4_moe": (_GROUPED, *_DEEPSEEK_EXPERTS, _BIAS, {"head_norm": _flag("use_qk_norm")}, _PREDICTIONS),
    "minimax_m2": (
        _GROUPED, _experts("num_local_experts"), _HEAD_NORM, {"expert_ffn": _count("intermediate_size")},
    ),
    "olmo3": (_GROUPED, _windows_but_every(4), _HEAD_NORM, _BIAS),
    "llama4 llama4_text": (
        _GROUPED, _experts("num_local_experts"), _llama4_blocks,
        {
            "ffn": _count("intermediate_size_mlp"), "expert_ffn": _count("intermediate_size"), "shared_experts": 1,
        },
    ),
}  # fmt: skip
_NAMES = {name: names for names in _ARCHITECTURES for name in names.split()}
_MODEL_OF_FIELD = {  # a field that only such a model has -> its model_type; the first one that a config has counts
    "linear_attn_config": "kimi_linear",
    "hybrid_override_pattern": "nemotron_h",
    "linear_num_value_heads": "qwen3_next",
    "index_topk": "deepseek_v32",
    "kv_lora_rank": "deepseek_v2",
    "n_routed_experts": "deepseek",
    "num_experts": "qwen3_moe",
    "num_local_experts": "mixtral",
}
