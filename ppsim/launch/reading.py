"""Reading: a launch file as a config, with what was left out, assumed and not understood."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ppsim.base.documents import read_json
from ppsim.base.errors import BuildError, ConfigError, shown
from ppsim.config import Config, make_config
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.layout import DEFAULT_POLICIES
from ppsim.frameworks import DEFAULT, options_of, options_of_all
from ppsim.launch.flags import Flags
from ppsim.run.schedules import Schedule

# Without it fragments can take a quarter of the memory (NVIDIA-NeMo/Megatron-Bridge, pull request 3107).
EXPANDABLE = "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
HARDWARE = {"device": "H100 SXM", "link": "NVLink 4", "network": "InfiniBand NDR"}
ENDING = {"transport": "directed", "optimizer": "sync"}
_MARK = "# ppsim: "
_OWN = ("model", "layout", "schedule", "name", "batch", "published")  # sections that flags give, or nobody reads


@dataclass
class Reading:
    """Content of a launch file as a config, and what did not become part of it."""

    framework: str
    version: str
    data: dict[str, Any] = field(default_factory=dict)  # the sections of the config
    # read, left_out: flags that the config follows from, and flags that change no step
    read: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    # assumed, unknown: values that the file does not give, and flags that may change the step, one sentence each
    assumed: list[str] = field(default_factory=list)
    unknown: list[str] = field(default_factory=list)
    conditional: list[int] = field(default_factory=list)  # lines that depend on a condition and were not read

    def config(self, hardware: Mapping[str, Any] | None = None, place: str = "launch") -> Config:
        """Return the checked config; `hardware` replaces keys of that section, which no launch file has."""
        data = dict(self.data)
        data["hardware"] = {**(self.data.get("hardware") or HARDWARE), **(hardware or {})}
        return make_config(data, place=place)


def notes_of(config: Config, *said: str) -> dict[str, Any]:
    """Return what a launch file leaves out of a config: hardware, transport, the step's end, and sections `said`."""
    notes = {key: value for key, value in config.data.items() if value is not None and (key not in _OWN or key in said)}
    return {**notes, "framework": config.data.get("layout", {}).get("framework", DEFAULT)}


def notes_text(notes: Mapping[str, Any]) -> str:
    """Return notes as a comment."""
    return _MARK + json.dumps(notes)


def notes_in(text: str) -> dict[str, Any]:
    """Return the notes of a launch file that ppsim wrote; empty for others."""
    line = next((line for line in text.splitlines() if line.startswith(_MARK)), None)
    if line is None:
        return {}
    notes = read_json(line.removeprefix(_MARK), "its line `# ppsim:`", "a JSON object")
    if not isinstance(notes, dict):
        raise ConfigError("its line `# ppsim:` must hold an object; remove the line")
    return notes


def sort_unread(
    flags: Flags, reading: Reading, record: Mapping[str, Any], groups: Sequence[str], names: Sequence[str]
) -> None:
    """Sort the flags that nothing has read into those that change no step (of `groups`, or `names`) and others."""
    known, options = options_of_all(record), options_of(record, reading.version)
    reading.read = [name for name in flags.arguments if name in flags.used]
    for name in flags.unread:
        if name in names or known.get(name) in groups:
            reading.left_out.append(name)
            continue
        reason = "may change the step"
        if name not in options:
            versions = (record["version"], *record["others"])
            others = [version for version in versions if name in options_of(record, version)]
            reason = f"no option of {reading.version}" + (f", but of {others[0]}; {reason}" if others else "")
        reading.unknown.append(f"{flags.sign}{name}: {reason}")


def effective(section: Any, name: str) -> Any:
    """Return the value of a field of a model or layout; of a policy that the framework's defaults set, that value."""
    return section.chosen(name) if name in DEFAULT_POLICIES else getattr(section, name)


def padded(vocabulary: int, multiple: int) -> int:
    """Return the entries of a vocabulary padded to a multiple."""
    return -(-vocabulary // multiple) * multiple


def derived_costs(config: Config, framework: str) -> DerivedCosts:
    """Return the config's derived costs; ConfigError if it has others, or an encoder."""
    if isinstance(config.costs, DerivedCosts):
        return config.costs
    if config.derived:
        raise ConfigError(f"{framework}: ppsim writes no flags for an encoder and its backbone")
    raise ConfigError(f"{framework} needs sections model and hardware; this config gives costs without a model")


def differences(config: Config, schedule: Schedule, back: Config, lists: Schedule | None = None) -> list[str]:
    """Return what a framework would run in another way than the config, one sentence each.

    `back` is the config that its launch file gives; `lists`, if given, are read from another file. A key counts only
    if it changes the costs of the schedule.
    """
    costs, read, found = config.costs, back.costs, []
    assert isinstance(costs, DerivedCosts)  # noqa: S101 - the caller has checked it
    assert isinstance(read, DerivedCosts)  # noqa: S101 - a launch file always has a model
    table = costs.table(schedule)
    for section, ours, theirs in (("model", costs.model, read.model), ("layout", costs.layout, read.layout)):
        for item in fields(ours):
            one, other = effective(ours, item.name), effective(theirs, item.name)
            if one == other or item.name in ("partition", "first_stage_layers", "last_stage_layers"):
                continue
            if item.name == "vocabulary" and other == padded(one, costs.layout.tensor):
                continue
            changed = replace(costs, **{section: replace(ours, **{item.name: other})})
            if changed.table(schedule) != table:
                found.append(f"{section}.{item.name}={shown(one)}: it has no flag for this, and runs {shown(other)}")
    reason = "it runs another order"
    if config.dispatch != "list":
        found.append(f"dispatch={config.dispatch}: its devices run their lists in order; use list")
    try:
        same = (lists or back.build()) == schedule
    except BuildError as error:
        same, reason = False, str(error)
    if not same:
        found.append(f"schedule {schedule.name}: {reason}")
    elif read.megatron_layout(schedule.num_stages) != costs.megatron_layout(schedule.num_stages):
        found.append(f"layout.partition: it splits the layers as {read.megatron_layout(schedule.num_stages)}")
    return found
