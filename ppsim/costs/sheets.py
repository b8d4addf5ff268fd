"""The data sheets that ship with ppsim, each number with its source: devices and links by name."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from ppsim.base.errors import ConfigError, shown
from ppsim.costs.hardware import DeviceSheet, LinkSheet
from ppsim.costs.operators import FITTED, OperatorLaw

_SHEETS = json.loads(Path(__file__).with_name("sheets.json").read_text(encoding="utf-8"))


def _law(like: str | None = None, **numbers: Any) -> OperatorLaw:
    """The law of a sheet: what it says itself, the rest as in the law that it is like."""
    said = {**_SHEETS["laws"].get(like, {}), **numbers}
    return OperatorLaw(**{name: FITTED.get(value, value) for name, value in said.items()})


DEVICES: Mapping[str, DeviceSheet] = {
    sheet["name"]: DeviceSheet(**{**sheet, "operators": _law(**sheet["operators"])}) for sheet in _SHEETS["devices"]
}
LINKS: Mapping[str, LinkSheet] = {sheet["name"]: LinkSheet(**sheet) for sheet in _SHEETS["links"]}

Sheet = TypeVar("Sheet", DeviceSheet, LinkSheet)


def find_device(name: str) -> DeviceSheet:
    """The sheet called `name`, upper and lower case alike; ConfigError with the nearest names otherwise."""
    return _find("device", name, DEVICES)


def find_link(name: str) -> LinkSheet:
    """The sheet called `name`, upper and lower case alike; ConfigError with the nearest names otherwise."""
    return _find("link", name, LINKS)


def _find(word: str, name: str, sheets: Mapping[str, Sheet]) -> Sheet:
    known = {key.lower(): sheet for key, sheet in sheets.items()}
    known |= {key.split()[0].lower(): sheet for key, sheet in sheets.items() if word == "device"}
    wanted = str(name).lower().strip()
    if wanted in known:
        return known[wanted]
    near = dict.fromkeys(known[key].name for key in difflib.get_close_matches(wanted, known, n=2))
    hint = f"did you mean {' or '.join(near)}?" if near else f"the known ones are: {', '.join(sheets)}"
    raise ConfigError(f"unknown {word} {shown(name)}; {hint}")
