"""The keys of a config that the page may change, with their values and what they mean; none of them names a file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from ppsim.base.rules import declarations
from ppsim.config import source_of
from ppsim.costs import Layout, Model
from ppsim.plan.streams import OPTIMIZERS

_MODEL = {f"model.{item.name}" for item in declarations(Model)}


def may_change(key: str) -> bool:
    """Whether the page may set a dotted key."""
    given = key.startswith(("layout.", "hardware.", "costs.")) and key != "costs.profile"
    return given or key in _MODEL or key in ("optimizer", "batch")


def keys_of(path: str) -> list[dict[str, Any]]:
    """Each key that a config has and the page may change, and all of its layout: key, value, legal values, meaning."""
    data = source_of(path).data
    layout = data.get("layout", {})
    about = {f"model.{item.name}": item for item in declarations(Model)}
    found = [
        _row(f"layout.{item.name}", layout.get(item.name, item.default), item.metadata["what"])
        for item in (declarations(Layout) if "layout" in data or "model" in data else ())
    ]
    for key, value in _flat(data):
        if may_change(key) and not key.startswith("layout."):
            found.append(_row(key, value, about[key].metadata["what"] if key in about else ""))
    if "optimizer" not in data:
        found.append(_row("optimizer", None, "the optimizer step: " + ", ".join(OPTIMIZERS)))
    return found


def _row(key: str, value: Any, meaning: str) -> dict[str, Any]:
    plain = value if value is None or isinstance(value, bool | int | float | str) else json.dumps(value)
    legal = [True, False] if isinstance(value, bool) else list(OPTIMIZERS) if key == "optimizer" else None
    return {"key": key, "value": plain, "legal": legal, "meaning": meaning}


def _flat(section: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a config with its dotted key."""
    for key, value in section.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{key}.")
        else:
            yield f"{before}{key}", value
