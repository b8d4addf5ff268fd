"""The machine of a config: device and link sheets, known ones changed or the user's own, in nodes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import MISSING, fields, replace
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.base.yaml_text import Path
from ppsim.costs.operator_fit import read_operators
from ppsim.costs.operators import OperatorLaw
from ppsim.costs.sheets import Cluster, DeviceSheet, LinkSheet, find_device, find_link

Attempt = Callable[[Path, Callable[[], Any]], Any]


def cluster_of(section: dict[str, Any] | None, place: str, attempt: Attempt) -> Cluster | None:
    """The machine that a checked section `hardware` of the config at `place` describes; None where it is faulty.

    `attempt` makes a part of it, and keeps the fault at its path.
    """
    if section is None:
        return None
    device = attempt(("hardware", "device"), lambda: _device(section["device"], place))
    links = [
        attempt(("hardware", key), lambda sheet=section[key]: _sheet(LinkSheet, find_link, sheet))
        for key in ("link", "network")
        if key in section
    ]
    if device is None or None in links:
        return None
    nodes = ("gpus_per_node", "node_of_device", "cards_per_node", "all_reduce", "contention")
    keys = (*nodes, "host_bandwidth", "host_latency")
    others = {key: section[key] for key in keys if key in section}
    return Cluster(device, links[0], links[-1], **others)


def _device(section: dict[str, Any], place: str) -> DeviceSheet:
    """A device's sheet; its `operators` change the law of the known one, or are measured ones in its place."""
    operators = section.get("operators")
    if operators is None:
        return _sheet(DeviceSheet, find_device, section)
    known = find_device(section["like"]) if "like" in section else None
    law = known.operators if known else None
    if isinstance(operators, str):
        measured = read_operators(os.path.join(os.path.dirname(place), operators))
        bandwidth = section.get("memory_bandwidth", known and known.memory_bandwidth) or measured.bandwidth
        section = {**section, "memory_bandwidth": bandwidth}
        operators = measured.relative_to(section.get("peak", known.peak if known else measured.peak), bandwidth)
    if law is None and (missing := [name for name in needed(OperatorLaw) if name not in operators]):
        raise ConfigError(f"operators gives no {', '.join(missing)}; give {', '.join(needed(OperatorLaw))}, or like")
    made = replace(law, **{"source": "given", **operators}) if law else OperatorLaw(**operators)
    return _sheet(DeviceSheet, find_device, {**section, "operators": made})


def _sheet(kind: Any, find: Callable[[str], Any], section: dict[str, Any]) -> Any:
    """A known sheet, changed or not, or a whole one of the user's own."""
    changes = {key: value for key, value in section.items() if key != "like"}
    if "like" in section:
        sheet = find(section["like"])
        apart = {f"{name}_source": name for name in changes if f"{name}_source" in kind.__dataclass_fields__}
        if "source" not in changes:
            others = changes.keys() - {"name", *apart, *apart.values()}
            changes |= {"source": f"given: {', '.join(sorted(others))}; else {sheet.source}"} if others else {}
        return replace(sheet, **dict.fromkeys(apart, "given") | changes)
    missing = [name for name in needed(kind) if name not in changes]
    if missing:
        raise ConfigError(f"gives no {', '.join(missing)}; give {', '.join(needed(kind))}, or like: a known one")
    return kind(**{"name": "the user's own", **changes})


def needed(kind: Any) -> list[str]:
    """Fields without a default; a name is not asked for."""
    return [item.name for item in fields(kind) if item.default is MISSING and item.name != "name"]
