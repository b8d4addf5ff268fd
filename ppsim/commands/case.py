"""What a command was asked to simulate: a config file, changes to it, and flags, as one checked Config."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.commands import options
from ppsim.commands.reporting import check_targets
from ppsim.config import Config, load_config, make_config

# Flag -> the key of the config that it stands for, and its declaration.
FLAGS: dict[str, tuple[str, Any]] = {
    "schedule": ("schedule.name", options.ScheduleName), "devices": ("schedule.devices", options.Devices),
    "microbatches": ("schedule.microbatches", options.Microbatches),
    "stages_per_device": ("schedule.stages_per_device", options.StagesPerDevice),
    "forward": ("costs.forward", options.Forward), "backward": ("costs.backward", options.Backward),
    "input_grad": ("costs.input_grad", options.InputGrad), "weight_grad": ("costs.weight_grad", options.WeightGrad),
    "overlap": ("costs.overlap", options.Overlap), "latency": ("costs.latency", options.Latency),
    "transport": ("transport", options.Transport), "engine": ("engine", options.Engine),
}  # fmt: skip


OPTIONS: dict[str, Any] = {
    "config": options.ConfigFile,
    "settings": options.Settings,
    "family_options": options.FamilyOptions,
    **{flag: option for flag, (_, option) in FLAGS.items()},
}


def takes_case(without: Collection[str] = ()) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options that say what to simulate, those of `OPTIONS` but the ones in `without`.

    They take the place of the command's first parameter, which is then a function that returns the checked Config.
    Without a config and without --schedule the schedule is 1F1B.
    """
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=option)
        for name, option in OPTIONS.items()
        if name not in without
    ]

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(**given: Any) -> None:
            asked = {parameter.name: given.pop(parameter.name) for parameter in shared}
            if "schedule" in without and asked["config"] is None:
                asked["schedule"] = "1f1b"

            def read() -> Config:
                check_targets(given, read=[asked["config"]])
                return read_case(**asked)

            function(read, **given)

        _, *own = inspect.signature(function, eval_str=True).parameters.values()
        parameters = [*shared, *(one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own)]
        vars(run)["__signature__"] = inspect.Signature(parameters)
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return decorate


def read_case(
    config: Path | None,
    settings: Iterable[str] | None = None,
    family_options: Iterable[str] | None = None,
    **flags: str | None,
) -> Config:
    """The config with `--set` changes and flags applied; without a file the flags make the whole of it.

    `flags` are keys of `FLAGS`; None is a flag that was not given. Raises ConfigError.
    """
    changes: dict[str, Any] = {FLAGS[name][0]: value for name, value in flags.items() if value is not None}
    changes |= {f"schedule.options.{key}": value for key, value in _pairs("--option", family_options)}
    if str(flags.get("schedule") or "").lower().endswith(".csv"):
        changes["schedule.csv"] = Path(os.path.abspath(changes.pop("schedule.name")))
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
    for name, (path, _) in FLAGS.items():
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
