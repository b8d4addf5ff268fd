"""The schema of a config file: sections, keys and legal values; pydantic collects all faults at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from ppsim.base.documents import Fault, Path, checked_by, fault_of, known_keys, path_text
from ppsim.base.errors import ConfigError, error_at, shown
from ppsim.base.rules import (
    Check,
    choice,
    declarations,
    flag,
    fraction,
    nested,
    positive,
    quantity,
    rule,
    seed,
    share,
    text,
    weight,
    whole_number,
)
from ppsim.costs.given import Costs
from ppsim.costs.layout import SHARDINGS, Layout
from ppsim.costs.model import Model
from ppsim.costs.operators import OperatorLaw
from ppsim.costs.packing import SequenceLengths
from ppsim.costs.sheets import Cluster, DeviceSheet, LinkSheet, find_device, find_link
from ppsim.costs.tower_costs import EncoderTower
from ppsim.engines.running import ENGINES
from ppsim.families.registry import MAX_DEVICES
from ppsim.lowering.posts import TRANSPORTS
from ppsim.lowering.sharding import AUTO, FULL
from ppsim.plan.dispatch import DISPATCHES
from ppsim.plan.jitter import factor, sigma
from ppsim.plan.streams import OPTIMIZERS
from ppsim.search import find_family, split_stages
from ppsim.search.memory_actions import FIRST_STAGES, NEEDED, PLACINGS


class FileName(str):
    """The name of a file in the checked values of a config; no other value has this type."""


def _file(value: Any) -> FileName:
    return FileName(text(value))


FILE_KEYS = (
    "calibration", "schedule.csv", "costs.profile", "model.huggingface", "lengths.file", "hardware.device.operators",
)  # fmt: skip


def named_files(checked: Any, above: Path = ()) -> dict[Path, FileName]:
    """Return the files that the checked values of a config name, by the paths of their keys."""
    if isinstance(checked, FileName):
        return {above: checked}
    pairs = checked.items() if isinstance(checked, dict) else ()
    return {path: name for key, value in pairs for path, name in named_files(value, (*above, key)).items()}


def in_folder(checked: Any, folder: str) -> Any:
    """Return the checked values with the files that they name in this folder, unless their paths are absolute."""
    if isinstance(checked, FileName):
        return os.path.join(folder, checked)
    return {key: in_folder(value, folder) for key, value in checked.items()} if isinstance(checked, dict) else checked


def _known(find: Callable[[str], Any]) -> Check:
    return lambda value: find(text(value)).name


def _family(name: str) -> Any:
    family_name, stages = split_stages(name)
    if stages is not None:
        raise ConfigError(
            f"{shown(name)} names {stages} stages per device and stages_per_device another number; give it once"
        )
    return find_family(family_name)


def _declared(kind: type) -> dict[str, Check]:
    """Return the check of each field of a dataclass of `ppsim.costs`; a quantity may be text with its unit."""
    checks = {}
    for item in declarations(kind):
        unit, depth = item.metadata.get("unit"), item.metadata.get("depth", 1 if kind is Costs else 0)
        depth = 1 if "lists" in item.metadata else depth
        check = item.metadata["check"]
        checks[item.name] = nested(quantity(unit, check is positive), depth) if unit else check or nested(share)
    return checks


def _options(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"{shown(value)} must be a section of the schedule's options, such as {{group_size: 8}}")
    return value


def _stages(more: str = "") -> Check:
    """Return the check of the stages that recompute or offload; `more` is one further legal word."""

    def is_legal(value: Any) -> bool:
        return isinstance(value, str) and (value in ("all", more or "all") or FIRST_STAGES.fullmatch(value) is not None)

    return rule(is_legal, f"must be all, first:1 for one stage of each device{f', or {more}' if more else ''}")


def _slow_devices(value: Any) -> dict[int, float]:
    if not isinstance(value, dict) or not all(type(device) is int for device in value):
        raise ConfigError(f"{shown(value)} must map devices to factors, such as {{3: 1.2}}")
    return {device: factor(given) for device, given in value.items()}


def _slow_links(value: Any) -> dict[tuple[int, int], float]:
    links = value if isinstance(value, list) else [value]
    factors = {}
    for link in links:
        between = link.get("between") if isinstance(link, dict) and link.keys() == {"between", "factor"} else None
        if not isinstance(between, list) or len(between) != 2 or not all(type(device) is int for device in between):
            raise ConfigError(f"{shown(link)} must be a link such as {{between: [0, 1], factor: 2}}")
        factors[between[0], between[1]] = factor(link["factor"])
    return factors


def _section(title: str, fields: Mapping[str, Any], required: Collection[str] = ()) -> type[BaseModel]:
    """Return a pydantic model of a section: each field is a check or a nested section, and unknown keys are faults."""
    typed = {key: kind if isinstance(kind, type) else checked_by(kind) for key, kind in fields.items()}
    entries: dict[str, Any] = {key: (kind, ... if key in required else None) for key, kind in typed.items()}
    return create_model(title, __config__=ConfigDict(extra="forbid", strict=True, protected_namespaces=()), **entries)


def _operators(value: Any) -> FileName | dict[str, Any]:
    """Return the checked path of a file of `ppsim calibrate --operators`, or the checked numbers of a law."""
    checks = _declared(OperatorLaw)
    if not isinstance(value, dict):
        return _file(value)
    if unknown := [key for key in value if key not in checks]:
        raise ConfigError(f"{shown(unknown[0])} is not known; the keys here are: {', '.join(checks)}")
    checked = {}
    for key, given in value.items():
        with error_at(f"{key}: "):
            checked[key] = checks[key](given)
    return checked


MEASURED = "measured"  # as a sigma of jitter: the one of the profile
_HARDWARE = {
    **_declared(Cluster),
    "device": _section("Device", {"like": _known(find_device), **_declared(DeviceSheet), "operators": _operators}),
    **{key: _section(key.title(), {"like": _known(find_link), **_declared(LinkSheet)}) for key in ("link", "network")},
    "gpus": whole_number(),
}
_SCHEDULE = {
    **dict.fromkeys(("microbatches", "stages_per_device", "slices"), whole_number()),
    "devices": whole_number(most=MAX_DEVICES),
    "name": _known(_family),
    "csv": _file,
    "options": _options,
    "recompute": _stages(NEEDED),
    "recompute_placing": choice(*PLACINGS),
    "offload": _stages(),
    "max_active_stages": whole_number(),
    "look_ahead": lambda value: (choice(FULL, AUTO) if isinstance(value, str) else nested(whole_number()))(value),
}
_JITTER = {
    **dict.fromkeys(("transfers", "devices", "links"), sigma),
    "actions": lambda value: value if value == MEASURED else sigma(value),
    "slow_devices": _slow_devices,
    "slow_links": _slow_links,
    "seed": seed,
}
_ENCODER: dict[str, Any] = {
    **_declared(EncoderTower),
    "images": positive,
    "merge": whole_number(),
    "model": _section("EncoderModel", _declared(Model)),
    "layout": _section("EncoderLayout", _declared(Layout)),
    "costs": _section("EncoderCosts", _declared(Costs)),
}
_ENCODER |= {"another": _section("AnotherEncoder", _ENCODER)}
_LENGTHS = {**_declared(SequenceLengths), "file": _file}
_PUBLISHED = {"step": quantity("seconds"), "mfu": fraction, "tokens_per_second": weight, "source": text}
DOCUMENT = _section(
    "Document",
    {
        "name": text,
        "model": _section("Model", {"huggingface": _file, "approximate": flag, **_declared(Model)}),
        "hardware": _section("Hardware", _HARDWARE, required=("device", "link")),
        "layout": _section("Layout", {**_declared(Layout), "sharding": choice(*SHARDINGS)}),
        "schedule": _section("Schedule", _SCHEDULE),
        "costs": _section("Costs", {**_declared(Costs), "profile": _file, "stage_layers": nested(whole_number(1))}),
        "lengths": _section("SequenceLengths", _LENGTHS, required=("sequences",)),
        "encoder": _section("EncoderTower", _ENCODER),
        "jitter": _section("Jitter", _JITTER),
        "published": _section("Published", _PUBLISHED),
        "batch": whole_number(),
        "transport": choice(*TRANSPORTS),
        "engine": choice(*ENGINES),
        "optimizer": choice(*OPTIMIZERS),
        "dispatch": choice(*DISPATCHES),
        "memory_limit": nested(positive, per="device"),
        "calibration": _file,
    },
    required=("schedule",),
)
_SHEETS = ("device", "link", "network")


def check_sections(data: dict[str, Any]) -> tuple[dict[str, Any], list[Fault]]:
    """Return the checked values of `data` by key, and every fault as its path and a message.

    A key with a null counts as missing.
    """
    data = _with_stages(without_nulls(data))
    try:
        return DOCUMENT.model_validate(_with_sheets(data)).model_dump(exclude_unset=True), []
    except ValidationError as error:
        return {}, [_fault(item, data) for item in error.errors(include_url=False)]


def without_nulls(value: Any) -> Any:
    """Return plain values without the keys whose value is None."""
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list | tuple) else value


SHARDING_KEYS = tuple(SHARDINGS["none"])


def with_sharding_keys(data: dict[str, Any]) -> dict[str, Any]:
    """Return `data` with the keys that `layout.sharding` sets; unchanged if it contradicts others or is wrong."""
    section = data.get("layout")
    kind = section.get("sharding") if isinstance(section, dict) else None
    if not isinstance(section, dict) or not isinstance(kind, str) or kind not in SHARDINGS or sharding_fault(section):
        return data
    others = {key: one for key, one in section.items() if key != "sharding"}
    return {**data, "layout": {**others, **SHARDINGS[kind]}}


def sharding_fault(section: Mapping[str, Any]) -> str | None:
    """Return the fault of a section `layout` between `sharding` and the keys that it sets, or None."""
    given = [key for key in SHARDING_KEYS if section.get(key) is not None]
    if section.get("sharding") is not None and given:
        return f"sets {', '.join(SHARDING_KEYS)}; leave out sharding, or {', '.join(given)}"
    copies = section.get("replicas")
    if section.get("sharding") == "hybrid" and copies in (None, 1):
        return "hybrid needs replicas above 1: the groups that hold all weights, such as the nodes of the job"
    return None


def network_fault(gpus: int, gpus_per_node: int | None, network: Any) -> str | None:
    """Return the fault of a section `hardware` without a network if its GPUs need several nodes, or None."""
    node = gpus_per_node or Cluster.gpus_per_node
    if network is not None or gpus <= node:
        return None
    return (
        f"hardware.network is missing: {gpus} GPUs need several nodes of {node} (gpus_per_node); such as InfiniBand NDR"
    )


def _with_stages(data: dict[str, Any]) -> dict[str, Any]:
    """Return `data` with a name such as `interleaved-1f1b:4` as name and stages per device, unless they differ."""
    section = data.get("schedule")
    if not isinstance(section, dict) or not isinstance(section.get("name"), str):
        return data
    try:
        name, stages = split_stages(section["name"])
    except ConfigError:
        return data  # the check of the name reports the fault
    if stages is None or section.get("stages_per_device", stages) != stages:
        return data
    return {**data, "schedule": {**section, "name": name, "stages_per_device": stages}}


def _with_sheets(data: dict[str, Any]) -> dict[str, Any]:
    """Return `data` with a device or link given as a name written as `{like: name}`."""
    hardware = data.get("hardware")
    if not isinstance(hardware, dict):
        return data
    sheets = {key: {"like": hardware[key]} for key in _SHEETS if isinstance(hardware.get(key), str)}
    return {**data, "hardware": {**hardware, **sheets}}


def _fault(item: Any, data: dict[str, Any]) -> Fault:
    (path, message), kind = fault_of(item), item["type"]
    if path[2:] == ("like",) and isinstance(data[str(path[0])][path[1]], str):
        return path[:-1], message
    if kind == "extra_forbidden":
        key, sections = str(path[-1]), [(), *((name,) for name in DOCUMENT.model_fields)]
        places = [path_text((*section, key)) for section in sections if key in _keys_at(section)]
        elsewhere = f"did you mean {' or '.join(places)}?" if places else None
        return path, f"unknown key; {known_keys(key, _keys_at(path[:-1]), elsewhere)}"
    if kind == "missing":
        return path, f"{message}; {_NEEDED[str(path[-1])]}"
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        keys = _keys_at(path)
        return path, f"{shown(item['input'])} must be a section of keys" + (f": {', '.join(keys)}" if keys else "")
    return path, message


_NEEDED = {
    "schedule": "a config has a section `schedule` with name, devices and microbatches, or csv; ppsim choose finds one",
    "sequences": "give the sequences of one step, all copies together, such as 512",
    "device": "name a device, such as H100 SXM, or give peak, memory and achieved",
    "link": "name the link inside a node, such as NVLink 4, or give bandwidth and latency",
}


def _keys_at(path: Path) -> list[str]:
    section: Any = DOCUMENT
    for key in path:
        entry = section.model_fields.get(key) if section else None
        kind = entry.annotation if entry else None
        section = kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
    return list(section.model_fields) if section else []
