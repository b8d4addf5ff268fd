"""The shape of a config file: its sections, keys legal values; pydantic collects all faults at once."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError, create_model

from ppsim.base.errors import ConfigError, shown
from ppsim.base.units import parse_quantity
from ppsim.base.yaml_text import Path
from ppsim.costs.collectives import ALL_REDUCES
from ppsim.costs.hardware import find_device, find_link
from ppsim.costs.layers import RECOMPUTE
from ppsim.costs.model import Model
from ppsim.costs.partition import method as partition_method
from ppsim.engines.running import ENGINES
from ppsim.families.registry import find_family
from ppsim.plan.resolve import TRANSPORTS
from ppsim.plan.streams import OPTIMIZERS

Fault = tuple[Path, str]
Check = Callable[[Any], Any]


def _checked(check: Check) -> Any:
    """A field type whose value is what `check` returns; its ConfigError becomes a fault of the field."""

    def validate(value: Any) -> Any:
        try:
            return check(value)
        except ConfigError as error:
            raise ValueError(str(error)) from None

    return Annotated[Any, BeforeValidator(validate)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _count(least: int = 1) -> Check:
    def check(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise ConfigError(f"{shown(value)} must be a whole number of at least {least}")
        return value

    return check


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigError(f"{shown(value)} must be true or false")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(f"{shown(value)} must be text")
    return value


def _choice(*choices: str) -> Check:
    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            near = difflib.get_close_matches(str(value), choices, n=1)
            hint = f"did you mean {near[0]}? " if near else ""
            raise ConfigError(f"{shown(value)} is not known; {hint}use one of: {', '.join(choices)}")
        return value

    return check


def _quantity(unit: str) -> Check:
    return lambda value: parse_quantity(value, unit)


def _fraction(value: Any) -> float:
    if not _is_number(value) or not 0 < value <= 1:
        raise ConfigError(f"{shown(value)} must be a number above 0 and at most 1")
    return float(value)


def _nested(parse: Check, depth: int = 1) -> Check:
    """A value, or a list of values (of lists, `depth` deep), each checked by `parse`."""

    def check(value: Any, left: int = depth) -> Any:
        if isinstance(value, list) and left:
            if not value:
                raise ConfigError("[] is empty; list one value a stage, or give one value")
            return [check(item, left - 1) for item in value]
        return parse(value)

    return check


def _quantities(unit: str, depth: int = 1) -> Check:
    return _nested(lambda value: parse_quantity(value, unit), depth)


def _share(value: Any) -> float:
    if not _is_number(value) or not 0 <= value <= 1:
        raise ConfigError(f"{shown(value)} must be a number from 0 to 1")
    return float(value)


def _weight(value: Any) -> float:
    if not _is_number(value) or not 0 <= value < float("inf"):
        raise ConfigError(f"{shown(value)} must be a finite number of at least 0")
    return float(value)


def _recompute(value: Any) -> str | tuple[str, ...]:
    levels: tuple[Any, ...] = tuple(value) if isinstance(value, list) and value else (value,)
    for level in levels:
        if not isinstance(level, str) or level not in RECOMPUTE:
            raise ConfigError(f"{shown(level)} is not known; use one of: {', '.join(RECOMPUTE)}, or list one a stage")
    return levels if isinstance(value, list) else value


def _known(find: Callable[[str], Any]) -> Check:
    def check(value: Any) -> str:
        return find(_text(value)).name

    return check


def _options(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ConfigError(f"{shown(value)} must be a section of the schedule's options, such as {{group_size: 8}}")
    return value


def _whole_numbers(value: Any) -> tuple[int, ...]:
    if not isinstance(value, list) or not value or not all(type(item) is int and item >= 0 for item in value):
        raise ConfigError(f"{shown(value)} must list whole numbers of at least 0, such as [0, 0, 1, 1]")
    return tuple(value)


def _sigma(value: Any) -> float:
    if not _is_number(value) or not 0 <= value <= 3:
        raise ConfigError(f"{shown(value)} must be a relative spread from 0 to 3, such as 0.05 for about 5 %")
    return float(value)


def _sigma_or_measured(value: Any) -> float | str:
    return value if value == MEASURED else _sigma(value)


def _factor(value: Any) -> float:
    if not _is_number(value) or not 0 < value < float("inf"):
        raise ConfigError(f"factor {shown(value)} must be a number above 0; 1.2 is 20 % slower")
    return float(value)


def _slow_devices(value: Any) -> dict[int, float]:
    if not isinstance(value, dict) or not all(type(device) is int for device in value):
        raise ConfigError(f"{shown(value)} must map devices to factors, such as {{3: 1.2}}")
    return {device: _factor(factor) for device, factor in value.items()}


def _slow_links(value: Any) -> dict[tuple[int, int], float]:
    links = value if isinstance(value, list) else [value]
    factors = {}
    for link in links:
        between = link.get("between") if isinstance(link, dict) and link.keys() == {"between", "factor"} else None
        if not isinstance(between, list) or len(between) != 2 or not all(type(device) is int for device in between):
            raise ConfigError(f"{shown(link)} must be a link such as {{between: [0, 1], factor: 2}}")
        factors[between[0], between[1]] = _factor(link["factor"])
    return factors


def _section(title: str, fields: Mapping[str, Any], required: Collection[str] = ()) -> type[BaseModel]:
    """A section whose keys are `fields`, each a check or the section below it. Unknown keys are faults."""
    typed = {key: kind if isinstance(kind, type) else _checked(kind) for key, kind in fields.items()}
    entries: dict[str, Any] = {key: (kind, ... if key in required else None) for key, kind in typed.items()}
    return create_model(title, __config__=ConfigDict(extra="forbid", strict=True, protected_namespaces=()), **entries)


def _model_check(field: dataclasses.Field) -> Check:
    if field.type == "bool":
        return _flag
    if field.name in Model.CHOICES:
        return _choice(*Model.CHOICES[field.name])
    return _count(1 if field.default is dataclasses.MISSING else 0)


MEASURED = "measured"  # as a sigma of jitter: the profile's
_SECONDS, _BYTES, _BANDWIDTH = _quantities("seconds"), _quantities("bytes"), _quantity("bytes per second")

_DEVICE = {
    "like": _known(find_device),
    "name": _text,
    "peak": _quantity("FLOP/s"),
    "memory": _quantity("bytes"),
    "memory_bandwidth": _BANDWIDTH,
    "achieved": _fraction,
    **dict.fromkeys(("source", "achieved_source"), _text),
}
_LINK = {
    "like": _known(find_link),
    "name": _text,
    "bandwidth": _BANDWIDTH,
    "latency": _quantity("seconds"),
    **dict.fromkeys(("source", "latency_source"), _text),
}
_HARDWARE = {
    "device": _section("Device", _DEVICE),
    "link": _section("Link", _LINK),
    "network": _section("Network", _LINK),
    **dict.fromkeys(("gpus_per_node", "cards_per_node", "gpus"), _count()),
    "node_of_device": _whole_numbers,
    "all_reduce": _choice(*ALL_REDUCES),
}
_LAYOUT = {
    **dict.fromkeys(("tensor", "context", "expert", "data", "microbatch_size"), _count()),
    **dict.fromkeys(("sequence_parallel", "distributed_optimizer", "sharded", "overlap"), _flag),
    "partition": partition_method,
    "recompute": _recompute,
    **dict.fromkeys(("recompute_stages", "first_stage_layers", "last_stage_layers"), _count(0)),
}
_MODEL = {"huggingface": _text, **{field.name: _model_check(field) for field in dataclasses.fields(Model)}}
_SCHEDULE = {
    **dict.fromkeys(("devices", "microbatches", "stages_per_device", "slices"), _count()),
    "name": _known(find_family),
    "csv": _text,
    "options": _options,
}
_COSTS = {
    **dict.fromkeys(("forward", "backward", "input_grad", "weight_grad"), _SECONDS),
    **dict.fromkeys(("unshard", "reduce_grad", "optimizer_step"), _SECONDS),
    **dict.fromkeys(
        ("activation_bytes", "weight_bytes", "gradient_bytes", "optimizer_bytes", "transfer_bytes"), _BYTES
    ),
    "overlap": _quantities("seconds", 2),
    "latency": _quantity("seconds"),
    "bandwidth": _BANDWIDTH,
    "per": _choice("device", "stage"),
    "weight_grad_fraction_of_activation": _nested(_share),
    "slice_costs": _nested(_weight),
    "profile": _text,
}
_JITTER = {
    **dict.fromkeys(("transfers", "devices", "links"), _sigma),
    "actions": _sigma_or_measured,
    "slow_devices": _slow_devices,
    "slow_links": _slow_links,
    "seed": _count(0),
}
_PUBLISHED = {"step": _quantity("seconds"), "mfu": _fraction, "tokens_per_second": _weight, "source": _text}
DOCUMENT = _section(
    "Document",
    {
        "name": _text,
        "model": _section("Model", _MODEL),
        "hardware": _section("Hardware", _HARDWARE, required=("device", "link")),
        "layout": _section("Layout", _LAYOUT),
        "schedule": _section("Schedule", _SCHEDULE),
        "costs": _section("Costs", _COSTS),
        "jitter": _section("Jitter", _JITTER),
        "published": _section("Published", _PUBLISHED),
        "transport": _choice(*TRANSPORTS),
        "engine": _choice(*ENGINES),
        "optimizer": _choice(*OPTIMIZERS),
    },
    required=("schedule",),
)
_SHEETS = ("device", "link", "network")


def check(data: dict[str, Any]) -> tuple[dict[str, Any], list[Fault]]:
    """The keys that `data` holds with their checked values, and every fault found: its path and what is wrong there.

    A null counts as a key that is not there.
    """
    data = _without_nulls(data)
    try:
        return DOCUMENT.model_validate(_with_sheets(data)).model_dump(exclude_unset=True), []
    except ValidationError as error:
        return {}, [_fault(item, data) for item in error.errors(include_url=False)]


def _without_nulls(data: dict[Any, Any]) -> dict[Any, Any]:
    return {
        key: _without_nulls(value) if isinstance(value, dict) else value
        for key, value in data.items()
        if value is not None
    }


def _with_sheets(data: dict[str, Any]) -> dict[str, Any]:
    """A device or link given as a name stands for `{like: name}`."""
    hardware = data.get("hardware")
    if not isinstance(hardware, dict):
        return data
    sheets = {key: {"like": hardware[key]} for key in _SHEETS if isinstance(hardware.get(key), str)}
    return {**data, "hardware": {**hardware, **sheets}}


def _fault(item: Any, data: dict[str, Any]) -> Fault:
    path, kind = tuple(item["loc"]), item["type"]
    if kind == "value_error":
        message = str(item["ctx"]["error"])
        named = path[-1] == "like" and len(path) == 3 and not _is_mapping(data, path[:-1])
        return (path[:-1] if named else path), message
    if kind == "extra_forbidden":
        return path, f"unknown key; {_known_keys(path)}"
    if kind == "missing":
        return path, "is missing; " + _MISSING.get(path[-1], "give it")
    if kind in ("model_type", "model_attributes_type", "dict_type"):
        keys = _keys_at(path)
        return path, f"{shown(item['input'])} must be a section of keys" + (f": {', '.join(keys)}" if keys else "")
    if kind == "invalid_key":
        return path, "keys must be text"
    return path, f"{shown(item['input'])} is not allowed here: {item['msg']}"


_MISSING = {
    "schedule": "a config has a section `schedule` with name, devices and microbatches, or with csv",
    "device": "name a device, such as H100 SXM, or give peak, memory and achieved",
    "link": "name the link inside a node, such as NVLink 4, or give bandwidth and latency",
}


def _is_mapping(data: Any, path: Path) -> bool:
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return isinstance(data, dict)


def _keys_at(path: Path) -> list[str]:
    section: Any = DOCUMENT
    for key in path:
        entry = section.model_fields.get(key) if section else None
        kind = entry.annotation if entry else None
        section = kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
    return list(section.model_fields) if section else []


def _known_keys(path: Path) -> str:
    known = _keys_at(path[:-1])
    near = difflib.get_close_matches(str(path[-1]), known, n=1, cutoff=0.6)
    return f"did you mean {near[0]}?" if near else f"the keys here are: {', '.join(known)}"
