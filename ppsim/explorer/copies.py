"""A case as its user would write it elsewhere: a command line, a config file, Python."""

from __future__ import annotations

import io
import shlex
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML

from ppsim.config import Config, source_of

FLAGS = {
    "schedule.name": "--schedule", "schedule.devices": "--devices", "schedule.microbatches": "--microbatches",
    "schedule.stages_per_device": "--stages-per-device", "costs.forward": "--forward",
    "costs.backward": "--backward", "costs.input_grad": "--input-grad", "costs.weight_grad": "--weight-grad",
    "costs.overlap": "--overlap", "costs.latency": "--latency", "transport": "--transport",
}  # fmt: skip
OPTION = "schedule.options."


def copies_of(config: Config, changes: Mapping[str, Any], path: str | None) -> dict[str, str]:
    """The texts `command`, `config` and `python` of a config: the file at `path`, or none, with dotted keys changed."""
    return {
        "command": _command(changes, path),
        "config": _yaml(config),
        "python": _python(changes, path),
    }


def _command(changes: Mapping[str, Any], path: str | None) -> str:
    words = ["ppsim", "simulate", *([path] if path else [])]
    for key, value in changes.items():
        if value is None:
            words += ["--set", f"{key}=null"]
        elif key == "schedule.csv":
            words += ["--schedule", str(value)]
        elif key in FLAGS:
            words += [FLAGS[key], _text(value)]
        elif key.startswith(OPTION):
            words += ["--option", f"{key.removeprefix(OPTION)}={_text(value)}"]
        else:
            words += ["--set", f"{key}={_text(value)}"]
    return shlex.join(words)


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _yaml(config: Config) -> str:
    writer, text = YAML(typ="safe", pure=True), io.StringIO()
    writer.default_flow_style = False
    writer.dump({key: value for key, value in source_of(config).data.items() if value is not None}, text)
    return text.getvalue()


def _python(changes: Mapping[str, Any], path: str | None) -> str:
    if path:
        return (
            f"import ppsim\n\nrun = ppsim.load_config({path!r}, overrides={_plain(changes)!r}).simulate()\n"
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
    return (
        f"import ppsim\n\nschedule = {made}\nrun = ppsim.simulate(schedule, {costs}{transport})\nprint(run.summary())\n"
    )


def _under(changes: Mapping[str, Any], section: str) -> dict[str, Any]:
    return {key.removeprefix(section): value for key, value in changes.items() if key.startswith(section)}


def _arguments(values: Mapping[str, Any]) -> list[str]:
    return [f"{key}={value!r}" for key, value in values.items()]


def _plain(changes: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value if isinstance(value, bool | int | float | str | None) else str(value)
        for key, value in changes.items()
    }
