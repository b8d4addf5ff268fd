"""A case as texts to copy: the command line, the YAML config, and the Python code that run it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from ppsim.config import Config, config_yaml

# Key of a case -> key of the config. Further keys of a case: see `ppsim.explorer.cases`.
KEYS = {
    "schedule": "schedule.name", "devices": "schedule.devices", "microbatches": "schedule.microbatches",
    "stages_per_device": "schedule.stages_per_device", "forward": "costs.forward", "backward": "costs.backward",
    "input_grad": "costs.input_grad", "weight_grad": "costs.weight_grad", "overlap": "costs.overlap",
    "latency": "costs.latency", "transport": "transport",
}  # fmt: skip
# Key of the config -> option of `ppsim simulate`.
FLAGS = {key: f"--{name.replace('_', '-')}" for name, key in KEYS.items()}
OPTION = "schedule.options."


def copies_of(config: Config, changes: Mapping[str, Any], path: str | None) -> dict[str, str]:
    """Return a case as `command`, `config` and `python` to copy, based on the config file at `path` if given."""
    return {"command": _command(changes, path), "config": config_yaml(config), "python": _python(changes, path)}


def _command(changes: Mapping[str, Any], path: str | None) -> str:
    words = ["ppsim", "simulate", *([path] if path else [])]
    for key, value in changes.items():
        if value is None and "schedule.csv" in changes:
            continue  # --schedule also removes the keys of the config's own schedule
        if value is None:
            words += ["--set", f"{key}=null"]
        elif key == "schedule.csv":
            words += ["--schedule", str(value)]
        elif key in FLAGS and not isinstance(value, list):
            words += [FLAGS[key], _text(value)]
        elif key.startswith(OPTION):
            words += ["--option", f"{key.removeprefix(OPTION)}={_text(value)}"]
        else:
            words += ["--set", f"{key}={_text(value)}"]
    return shlex.join(words)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _python(changes: Mapping[str, Any], path: str | None) -> str:
    if path:
        return (
            f"import ppsim\n\nrun = ppsim.load_config({path!r}, overrides={dict(changes)!r}).simulate()\n"
            "print(run.summary())\n"
        )
    schedule = _under(changes, "schedule.")
    options = _under(changes, OPTION)
    if "csv" in schedule:
        made = f"ppsim.Schedule.from_csv({str(schedule['csv'])!r})"
    else:
        sizes = [
            f"{key}={schedule[key]!r}" for key in ("devices", "microbatches", "stages_per_device") if key in schedule
        ]
        made = f"ppsim.build({', '.join([repr(schedule['name']), *sizes, *_arguments(options)])})"
    costs = f"ppsim.Costs({', '.join(_arguments(_under(changes, 'costs.')))})"
    transport = f", transport={changes['transport']!r}" if "transport" in changes else ""
    slow = {int(device): factor for device, factor in _under(changes, "jitter.slow_devices.").items()}
    jitter = f", jitter=ppsim.Jitter(slow_devices={slow})" if slow else ""
    return (
        f"import ppsim\n\nschedule = {made}\nrun = ppsim.simulate(schedule, {costs}{transport}{jitter})\n"
        "print(run.summary())\n"
    )


def _under(changes: Mapping[str, Any], section: str) -> dict[str, Any]:
    return {key.removeprefix(section): value for key, value in changes.items() if key.startswith(section)}


def _arguments(values: Mapping[str, Any]) -> list[str]:
    return [f"{key}={value!r}" for key, value in values.items()]
