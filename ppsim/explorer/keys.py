"""The config's keys that the page may change: each with a readable name, its unit, its known values and its meaning."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ppsim.base.rules import OneOf, declarations, flag
from ppsim.config import config_source
from ppsim.config.schema import check_sections, named_files
from ppsim.costs import Layout, Model
from ppsim.costs.given import Costs
from ppsim.costs.layers import RECOMPUTE
from ppsim.costs.sheets import DEVICES, LINKS, Cluster, DeviceSheet, LinkSheet
from ppsim.frameworks import FACTS
from ppsim.plan.streams import OPTIMIZERS

SLOW_DEVICES = "jitter.slow_devices"
SECTIONS, SINGLE_KEYS = ("layout", "hardware", "costs", "model"), ("optimizer", "batch", SLOW_DEVICES)
# Values to choose from, of keys that also take others.
_KNOWN = {
    "layout.recompute": RECOMPUTE,
    "layout.framework": tuple(FACTS),
    "layout.overlap": (True, False, "two-stream"),
    "layout.partition": ("even", "balanced", "greedy", "optimal"),
    "hardware.device": tuple(DEVICES),
    "hardware.link": tuple(LINKS),
    "hardware.network": tuple(LINKS),
}
_NAMES = {
    "layout.tensor": "tensor parallelism", "layout.context": "context parallelism", "layout.data": "data parallelism",
    "layout.expert": "expert parallelism", "model.num_layers": "layers", "model.hidden": "hidden size",
    "model.ffn": "feed-forward size", "model.heads": "attention heads", "model.sequence": "sequence length",
    "model.vocabulary": "vocabulary size", "batch": "batch size", "hardware.gpus": "GPUs",
    "layout.sharded": "weights sharded", "layout.sharded_by": "weights gathered by", "layout.fused": "fused operations",
    "layout.overlap": "slots hide collectives", "optimizer": "optimizer step", SLOW_DEVICES: "slower devices",
}  # fmt: skip
_WORDS = {"gpus": "GPUs", "gpu": "GPU", "fp8": "FP8", "cuda": "CUDA"}
_UNITS = {"seconds": "s", "bytes": "B", "bytes per second": "B/s"}
_COUNTS = {
    "model.sequence": "tokens", "model.vocabulary": "tokens", "layout.microbatch_size": "sequences",
    "batch": "sequences",
    "layout.tensor": "GPUs", "layout.context": "GPUs", "layout.expert": "GPUs", "layout.data": "GPUs",
}  # fmt: skip


def may_change(key: str) -> bool:
    """Return whether the page may set a dotted key."""
    return key in SINGLE_KEYS or ("." in key and key.partition(".")[0] in SECTIONS)


def keys_of(path: str) -> list[dict[str, Any]]:
    """Return the config's keys that the page may change, and all layout keys.

    Each has `key`, `value`, `name`, `unit`, `meaning`, `legal` (all legal values, or null), `known` (some of them), and
    whether the file itself has it, as `set`.
    """
    data = config_source(path).data
    layout = data.get("layout", {})
    files = {".".join(map(str, path)) for path in named_files(check_sections(dict(data))[0])}
    found = {}
    if "layout" in data or "model" in data:
        found = {f"layout.{item.name}": layout.get(item.name, item.default) for item in declarations(Layout)}
    own = {key: value for key, value in _flat(data) if may_change(key) and key not in files}
    found |= own
    found |= {"optimizer": None} if "optimizer" not in data else {}
    slow = data.get("jitter", {}).get("slow_devices") or {}
    found[SLOW_DEVICES] = ", ".join(f"{device}: {factor}" for device, factor in slow.items()) or None
    return [{**_row(key, value), "set": key in own} for key, value in found.items()]


_ABOUT = {
    f"{section}.{item.name}": item.metadata
    for section, kind in {
        "layout": Layout, "model": Model, "costs": Costs, "hardware": Cluster, "hardware.device": DeviceSheet,
        "hardware.link": LinkSheet, "hardware.network": LinkSheet,
    }.items()
    for item in declarations(kind)
}  # fmt: skip


def _row(key: str, value: Any) -> dict[str, Any]:
    about = _ABOUT.get(key, {})
    check, known = about.get("check"), list(_KNOWN.get(key, ()))
    legal = [True, False] if check is flag else list(check.choices) if isinstance(check, OneOf) else None
    legal = list(OPTIMIZERS) if key == "optimizer" else legal
    words, unit = key.partition(".")[2].replace(".", "_").split("_"), str(about.get("unit") or "")
    return {
        "key": key,
        "value": value if value is None or isinstance(value, bool | int | float | str) else json.dumps(value),
        "name": _NAMES.get(key, " ".join(_WORDS.get(word, word) for word in words)),
        "unit": _COUNTS.get(key, _UNITS.get(unit, unit)),
        "meaning": _MEANINGS.get(key, about.get("what", "")),
        "default": about.get("default_text", "").replace("`", ""),
        "legal": legal,
        "known": known,
    }


_MEANINGS = {
    "optimizer": "the optimizer step: " + ", ".join(OPTIMIZERS),
    "batch": "sequences of a step, over all data-parallel copies",
    "hardware.gpus": "GPUs of the run, for a check",
    SLOW_DEVICES: "device 3 takes 1.5 times as long with 3: 1.5; commas between several",
    "hardware.device": "name of the GPU, as `ppsim hardware` lists it",
}


def _flat(section: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of a config with its dotted key."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
