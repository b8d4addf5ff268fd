"""What a command was asked to simulate: a config file, changes to it, and flags, as one checked Config."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ppsim.base.errors import ConfigError

if TYPE_CHECKING:
    from ppsim.config import Config

PATHS = {
    "schedule": "schedule.name",
    "devices": "schedule.devices",
    "microbatches": "schedule.microbatches",
    "stages_per_device": "schedule.stages_per_device",
    "forward": "costs.forward",
    "backward": "costs.backward",
    "input_grad": "costs.input_grad",
    "weight_grad": "costs.weight_grad",
    "overlap": "costs.overlap",
    "latency": "costs.latency",
    "transport": "transport",
    "engine": "engine",
}


def read_case(
    config: Path | None, settings: Iterable[str] | None, options: Iterable[str] | None, **flags: Any
) -> Config:
    """The config with `--set` changes and flags applied; without a file the flags make the whole of it.

    `flags` are keys of `PATHS`; None is a flag that was not given. Raises ConfigError.
    """
    from ppsim.config import load_config, make_config

    changes = {PATHS[name]: value for name, value in flags.items() if value is not None}
    changes |= {f"schedule.options.{key}": value for key, value in _pairs("--option", options)}
    if str(flags.get("schedule") or "").lower().endswith(".csv"):
        changes["schedule.csv"] = os.path.abspath(changes.pop("schedule.name"))
    changes |= settings_of(settings)
    if config is not None:
        return load_config(config, overrides=changes)
    _require_flags(changes)
    try:
        return make_config({"name": Path(str(flags["schedule"])).stem}, place="flags", overrides=changes)
    except ConfigError as error:
        raise ConfigError("; ".join(map(_of_flag, error.faults))) from None


def _of_flag(fault: str) -> str:
    """A fault with the flag in it instead of the key that the flag stands for."""
    for name, path in PATHS.items():
        if fault.startswith(f"{path}: "):
            return f"--{name.replace('_', '-')}: {fault.removeprefix(f'{path}: ')}"
    return fault


def settings_of(settings: Iterable[str] | None) -> dict[str, Any]:
    """`--set` options as dotted keys with their values; ConfigError for one that is no KEY=VALUE."""
    return dict(_pairs("--set", settings))


def _pairs(option: str, texts: Iterable[str] | None) -> list[tuple[str, str]]:
    """KEY=VALUE texts as pairs."""
    pairs = []
    for text in texts or ():
        key, sign, value = text.partition("=")
        if not (sign and key.strip() and value.strip()):
            raise ConfigError(f"{option} {text!r}: write KEY=VALUE, such as {option} {_EXAMPLES[option]}")
        pairs.append((key.strip(), value.strip()))
    return pairs


_EXAMPLES = {"--set": "schedule.microbatches=64", "--option": "group_size=8"}


def _require_flags(changes: dict[str, Any]) -> None:
    """Without a config the flags must say what runs."""
    if "schedule.csv" in changes:
        return
    missing = [flag for flag, key in _NEEDED.items() if key not in changes]
    if missing:
        raise ConfigError(
            f"nothing to simulate without {', '.join(missing)}: give a config file, or flags such as "
            "--schedule 1f1b --devices 4 --microbatches 8"
        )


_NEEDED = {"--schedule": "schedule.name", "--devices": "schedule.devices", "--microbatches": "schedule.microbatches"}
