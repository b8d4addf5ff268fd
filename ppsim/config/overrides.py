"""Changes of a config's plain values by dotted keys: `--set`, `Config.changed`, the points of a sweep."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from os import PathLike
from typing import Any

from ppsim.base.errors import ConfigError, shown
from ppsim.base.yaml_text import DEEPEST, read_yaml
from ppsim.search import split_stages


def overridden(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`data` with the values of dotted keys replaced, None taking one away; ConfigError for what is no key."""
    data = dict(data)
    for key, value in changes.items():
        data = _overridden(data, key, _value(key, value))
    return data


def with_stages(changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """The changes; one to `interleaved-1f1b:4` is one of the name and one of the stages per device."""
    name, stages = changes.get("schedule.name"), changes.get("schedule.stages_per_device")
    if not isinstance(name, str) or ":" not in name or stages is not None:
        return changes
    family_name, stages = split_stages(name)
    return {**changes, "schedule.name": family_name, "schedule.stages_per_device": stages}


def _overridden(data: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """`data` with the plain value at a dotted key replaced; sections on the way are made."""
    if not isinstance(key, str):
        raise ConfigError(f"override {shown(key)}: write keys as text with dots, such as schedule.name")
    if key.count(".") >= DEEPEST:
        raise ConfigError(f"override {shown(key)}: nested deeper than {DEEPEST} levels")
    first, _, rest = key.partition(".")
    if not first or (not rest and key.endswith(".")):
        raise ConfigError(f"override {shown(key)}: write keys with dots between them, such as schedule.name")
    if not rest:
        return {**data, first: value}
    below = data.get(first)
    if below is None or (isinstance(below, str) and first in ("device", "link", "network")):
        below = {} if below is None else {"like": below}
    if not isinstance(below, dict):
        raise ConfigError(f"override {shown(key)}: {first} is {shown(below)}, not a section with keys")
    number = int(rest) if key.startswith("slow_devices.") and rest.isdecimal() else None
    if number is not None:  # devices are numbers in the file, not text
        return {**data, first: {**below, number: value}}
    return {**data, first: _overridden(below, rest, value)}


def _value(key: str, value: Any) -> Any:
    """The plain value given for a key: text is YAML; the name of a file, which may hold " #" or ": ", is not."""
    if isinstance(value, PathLike):
        return os.fspath(value)
    return _read_value(key, value) if isinstance(value, str) else value


@functools.lru_cache(4096)  # a sweep gives the same few texts again and again
def _read_value(key: str, text: str) -> Any:
    return read_yaml(text, f"override {shown(key)}").value
