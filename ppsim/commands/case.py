"""What a command was asked to simulate: a config file, changes to it, and flags, as one checked Config."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from ppsim.base.errors import ConfigError
from ppsim.commands import options
from ppsim.commands.reporting import check_targets
from ppsim.config import Config, Source, load_config, make_config, source_of

# Flag -> the key of the config that it stands for, and its declaration.
FLAGS: dict[str, tuple[str, Any]] = {
    "schedule": ("schedule.name", options.ScheduleName), "devices": ("schedule.devices", options.Devices),
    "microbatches": ("schedule.microbatches", options.Microbatches),
    "stages_per_device": ("schedule.stages_per_device", options.StagesPerDevice),
    "forward": ("costs.forward", options.Forward), "backward": ("costs.backward", options.Backward),
    "input_grad": ("costs.input_grad", options.InputGrad), "weight_grad": ("costs.weight_grad", options.WeightGrad),
    "overlap": ("costs.overlap", options.Overlap), "latency": ("costs.latency", options.Latency),
    "transport": ("transport", options.Transport), "engine": ("engine", options.Engine),
    "dispatch": ("dispatch", options.Dispatch),
}  # fmt: skip


OPTIONS: dict[str, Any] = {
    "config": options.ConfigFile,
    "settings": options.Settings,
    "family_options": options.FamilyOptions,
    **{flag: option for flag, (_, option) in FLAGS.items()},
}


def takes_case(
    without: Collection[str] = (), checked: bool = True
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options that say what to simulate, those of `OPTIONS` but the ones in `without`.

    They take the place of the command's first parameter, which is then a function that returns the checked Config, or
    the Source of one that is not `checked` yet and may lack keys.
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

            def read() -> Any:
                check_targets(given, read=[asked["config"]])
                return (read_case if checked else read_source)(**asked)

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
    changes = _changes(settings, family_options, flags, config)
    if config is not None:
        return load_config(config, overrides=changes)
    _require_flags(changes)
    try:
        return make_config({"name": Path(str(flags["schedule"])).stem}, place="flags", overrides=changes)
    except ConfigError as error:
        raise ConfigError("; ".join(map(_of_flag, error.faults))) from None


def read_source(
    config: Path | None,
    settings: Iterable[str] | None = None,
    family_options: Iterable[str] | None = None,
    **flags: str | None,
) -> Source:
    """As `read_case`, not checked yet: what it lacks may come later. Raises ConfigError where a file cannot be read."""
    changes = _changes(settings, family_options, flags, config)
    return (Source({}, "flags") if config is None else source_of(config)).changed(changes)


def _changes(
    settings: Iterable[str] | None,
    family_options: Iterable[str] | None,
    flags: Mapping[str, str | None],
    config: Path | None,
) -> dict[str, Any]:
    """Flags and settings as dotted keys; a CSV file takes away what a config says of its own schedule."""
    changes: dict[str, Any] = {FLAGS[name][0]: value for name, value in flags.items() if value is not None}
    changes |= {f"schedule.options.{key}": value for key, value in _pairs("--option", family_options)}
    if str(flags.get("schedule") or "").lower().endswith(".csv"):
        changes["schedule.csv"] = Path(os.path.abspath(changes.pop("schedule.name")))
        if config is not None:
            held = source_of(config).data.get("schedule")
            own = ("name", "devices", "microbatches", "stages_per_device", "options")
            away = {f"schedule.{key}": None for key in own if isinstance(held, dict) and key in held}
            changes = away | changes
    return changes | settings_of(settings)


def _of_flag(fault: str) -> str:
    """A fault with the flag in it instead of the key that the flag stands for."""
    for name, (path, _) in FLAGS.items():
        if fault.startswith(f"{path}: "):
            return f"--{name.replace('_', '-')}: {fault.removeprefix(f'{path}: ')}"
    return fault


def settings_of(settings: Iterable[str] | None, option: str = "--set") -> dict[str, Any]:
    """`--set` options, or another's, as keys with their values; ConfigError for one that is no KEY=VALUE."""
    return dict(_pairs(option, settings))


def _pairs(option: str, texts: Iterable[str] | None) -> list[tuple[str, str]]:
    """KEY=VALUE texts as pairs."""
    pairs = []
    for text in texts or ():
        key, sign, value = text.partition("=")
        if not (sign and key.strip() and value.strip()):
            raise ConfigError(f"{option} {text!r}: write KEY=VALUE, such as {option} {_EXAMPLES[option]}")
        pairs.append((key.strip(), value.strip()))
    return pairs


_EXAMPLES = {
    "--set": "schedule.microbatches=64",
    "--option": "group_size=8",
    "--over": "schedule.microbatches=8,16",
    "--slurm": "slurm_partition=gpu",
}


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
