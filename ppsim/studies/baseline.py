"""The baseline of the CI gate: measures of a list of configs in a readable JSON file."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

from ppsim.analysis.measures import guarded
from ppsim.base.documents import check_schema, document_error, read_json
from ppsim.base.errors import ConfigError, shown
from ppsim.base.files import read_text, write_atomically
from ppsim.base.rules import is_number
from ppsim.studies.what_if import BUSY, IDLE, Numbers

SCHEMA = "ppsim.baseline/1"
Baseline = dict[str, dict[str, float | None]]


def explains(name: str) -> bool:
    """Whether a number is no measure, but says why measures moved."""
    return name == BUSY or name.startswith(IDLE)


def config_key(path: str | os.PathLike[str], baseline: str | os.PathLike[str] | None) -> str:
    """The name of a config in a baseline: its path from the baseline's folder, with forward slashes."""
    start = os.path.dirname(os.path.realpath(baseline)) if baseline else os.getcwd()
    return os.path.relpath(os.path.realpath(path), start).replace(os.sep, "/")


def write_baseline(path: str | os.PathLike[str], configs: Mapping[str, Numbers]) -> None:
    """Write a baseline: readable JSON, sorted, units named; whole or not at all.

    Raises ConfigError for a number that is not finite: nothing could be held to it.
    """
    for config, numbers in configs.items():
        for name, (value, _) in numbers.items():
            if value is not None and not _is_finite(value):
                raise ConfigError(f"{config}: {name} is {shown(value)}, not a finite number; no baseline can hold it")
    document = {
        "schema": SCHEMA,
        "units": {name: unit for numbers in configs.values() for name, (_, unit) in numbers.items()},
        "configs": {
            config: {name: value for name, (value, _) in numbers.items()} for config, numbers in configs.items()
        },
    }
    write_atomically(path, json.dumps(document, indent=2, sort_keys=True, allow_nan=False) + "\n")


def read_baseline(path: str | os.PathLike[str]) -> Baseline:
    """Read a baseline; ConfigError naming the file, and every fault with its place, for anything else."""
    place, what = str(path), "a baseline"
    document = read_json(read_text(path), place, what, each=_without_doubles)
    check_schema(document, SCHEMA, place, f"{what}, as --update writes")
    configs = document.get("configs")
    if not isinstance(configs, dict):
        raise ConfigError(f"{place}: 'configs' is missing or no mapping; write the baseline again with --update")
    if faults := [f"configs.{config}{fault}" for config, numbers in configs.items() for fault in _faults(numbers)]:
        raise document_error(faults, place, f"{what}; write it again with --update")
    return configs


def _faults(numbers: Any) -> Iterator[str]:
    """What is wrong with one config's measures."""
    if not isinstance(numbers, dict):
        yield " is no mapping of measures"
        return
    if missing := [name for name in guarded() if name not in numbers]:
        yield f" has no {', '.join(missing)}"
    for name, value in numbers.items():
        if name not in guarded() and not explains(name):
            yield f".{name} is no measure; measures are {', '.join(guarded())}, '{BUSY}' and '{IDLE}...'"
        elif value is not None and not _is_finite(value):
            yield f".{name} is {shown(value)}, not a finite number"


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    document = dict(pairs)
    if len(document) < len(pairs):
        keys = [key for key, _ in pairs]
        double = next(key for key in keys if keys.count(key) > 1)
        raise ConfigError(f"{double!r} appears twice")
    return document


def _is_finite(value: Any) -> bool:
    return is_number(value) and math.isfinite(value)
