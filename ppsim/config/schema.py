"""The schema of a config file: sections, keys and legal values; all faults are found at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from ppsim.base.documents import Path, known_keys, path_text
from ppsim.base.errors import ConfigError, shown
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
from ppsim.costs.composed import EncoderTower
from ppsim.costs.given import Costs
from ppsim.costs.layout import SHARDINGS, Layout
from ppsim.costs.model import Model
from ppsim.costs.operators import OperatorLaw
from ppsim.costs.packing import SequenceLengths
from ppsim.costs.sheets import Cluster, DeviceSheet, LinkSheet, find_device, find_link
from ppsim.engines.running import ENGINES
from ppsim.families.registry import MAX_DEVICES
from ppsim.lowering.posts import TRANSPORTS
from ppsim.lowering.sharding import AUTO, FULL
from ppsim.plan.dispatch import DISPATCHES
from ppsim.plan.jitter import factor, sigma
from ppsim.plan.streams import OPTIMIZERS
from ppsim.search import find_family, split_stages
from ppsim.search.memory_actions import FIRST_STAGES, NEEDED, PLACINGS

Fault = tuple[Path, str]


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


@dataclass(frozen=True)
class Section:
    """A section of the config: the check or the section of each key, the keys that it needs, and what a text means."""

    keys: Mapping[str, Check | Section]
    required: Collection[str] = ()
    text: Check | None = None

    def checked(self, given: Any, path: Path, faults: list[Fault]) -> dict[str, Any]:
        """Return the checked values of the section at `path`, and add all its faults to `faults`."""
        if not isinstance(given, dict):
            faults.append((path, f"{shown(given)} must be a section of keys: {', '.join(self.keys)}"))
            return {}
        found = {}
        for key, kind in self.keys.items():
            if key in given:
                found[key] = _checked(kind, given[key], (*path, key), faults)
            elif key in self.required:
                faults.append(((*path, key), f"is missing; {_MISSING[key]}"))
        for key in [key for key in given if key not in self.keys]:
            faults.append(((*path, key), self._unknown(key) if isinstance(key, str) else "keys must be text"))
        return found

    def _unknown(self, key: str) -> str:
        sections = {(): DOCUMENT} | {(name,): kind for name, kind in DOCUMENT.keys.items() if isinstance(kind, Section)}
        places = [path_text((*path, key)) for path, section in sections.items() if key in section.keys]
        elsewhere = f"did you mean {' or '.join(places)}?" if places else None
        return f"unknown key; {known_keys(key, [*self.keys], elsewhere)}"


def _checked(kind: Check | Section, value: Any, path: Path, faults: list[Fault]) -> Any:
    """Return the checked value of the key at `path`, or add its faults."""
    if isinstance(kind, Section):
        if kind.text is None or not isinstance(value, str):
            return kind.checked(value, path, faults)
        kind = kind.text
    try:
        return kind(value)
    except ConfigError as error:
        faults.append((path, str(error)))


def _sheet(find: Callable[[str], Any], kind: type, **more: Section) -> Section:
    """Return the section of a device or link, which may be like one that is known; a text is the name of that one."""
    known = _known(find)
    return Section({"like": known, **_declared(kind), **more}, text=lambda name: {"like": known(name)})


MEASURED = "measured"  # as a sigma of jitter: the one of the profile
_HARDWARE = {
    **_declared(Cluster),
    "device": _sheet(find_device, DeviceSheet, operators=Section(_declared(OperatorLaw), text=_file)),
    **dict.fromkeys(("link", "network"), _sheet(find_link, LinkSheet)),
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
    "model": Section(_declared(Model)),
    "layout": Section(_declared(Layout)),
    "costs": Section(_declared(Costs)),
}
_ENCODER = {**_ENCODER, "another": Section(_ENCODER)}
_LENGTHS = {**_declared(SequenceLengths), "file": _file}
_PUBLISHED = {"step": quantity("seconds"), "mfu": fraction, "tokens_per_second": weight, "source": text}
DOCUMENT = Section(
    {
        "name": text,
        "model": Section({"huggingface": _file, "approximate": flag, **_declared(Model)}),
        "hardware": Section(_HARDWARE, required=("device", "link")),
        "layout": Section({**_declared(Layout), "sharding": choice(*SHARDINGS)}),
        "schedule": Section(_SCHEDULE),
        "costs": Section({**_declared(Costs), "profile": _file, "stage_layers": nested(whole_number(1))}),
        "lengths": Section(_LENGTHS, required=("sequences",)),
        "encoder": Section(_ENCODER),
        "jitter": Section(_JITTER),
        "published": Section(_PUBLISHED),
        "batch": whole_number(),
        "transport": choice(*TRANSPORTS),
        "engine": choice(*ENGINES),
        "optimizer": choice(*OPTIMIZERS),
        "dispatch": choice(*DISPATCHES),
        "memory_limit": nested(positive),
        "calibration": _file,
    },
    required=("schedule",),
)


def check_sections(data: dict[str, Any]) -> tuple[dict[str, Any], list[Fault]]:
    """Return the checked values of `data` by key, and every fault as its path and a message.

    A key with a null counts as missing.
    """
    faults: list[Fault] = []
    checked = DOCUMENT.checked(_with_stages(without_nulls(data)), (), faults)
    return ({}, faults) if faults else (checked, faults)


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


_MISSING = {
    "schedule": "a config has a section `schedule` with name, devices and microbatches, or csv; ppsim choose finds one",
    "sequences": "give the sequences of one step, all copies together, such as 512",
    "device": "name a device, such as H100 SXM, or give peak, memory and achieved",
    "link": "name the link inside a node, such as NVLink 4, or give bandwidth and latency",
}
