"""The YAML config: a schedule and its costs, read, checked and ready to simulate. docs/config.md lists the keys."""

from __future__ import annotations

import functools
import io
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from os import PathLike
from typing import Any

import numpy as np

from ppsim.actions import Kind
from ppsim.base.documents import MAX_DEPTH, Document, NotYamlError, Path, as_python, read_yaml, read_yaml_file
from ppsim.base.errors import ConfigError, error_at, shown
from ppsim.base.immutable import short_repr
from ppsim.base.rules import checked_call, declared, described
from ppsim.base.units import counted
from ppsim.config.assembly import FAMILY_KEYS, assembled, missing_keys
from ppsim.config.schema import SHARDING_KEYS, Fault, check_sections, network_fault, with_sharding_keys, without_nulls
from ppsim.costs import CostModel, Costs
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.microbatches import attention_fraction
from ppsim.costs.model import Model
from ppsim.costs.packing import MicrobatchSlots, PackedLengths
from ppsim.costs.table import Workload
from ppsim.costs.tower_costs import BACKBONE, TowerCosts, encoders_of, towers_of
from ppsim.families.encoder import mark_prefetched
from ppsim.families.registry import RegisteredFamily
from ppsim.lowering.sharding import WINDOW
from ppsim.plan.holding import limits_of
from ppsim.plan.jitter import Jitter
from ppsim.run.schedules import Program, Schedule, lower, with_encoder
from ppsim.run.simulation import simulate
from ppsim.run.timelines import Timeline
from ppsim.schedule.columns import ScheduleColumns
from ppsim.search import families, find_family, split_stages
from ppsim.search.memory_actions import MEMORY_ACTIONS, NEEDED, add_memory_actions, build_with_memory_actions


@described
@dataclass(frozen=True)
class Config:
    """One run: the schedule to build, its costs, and how to simulate it.

    The costs are `Costs` of given numbers, `DerivedCosts` of a model, a cluster and a layout, a measured `Profile`, or
    the `TowerCosts` of an encoder and one of these.
    """

    name: str = declared("the key `name`, or the file's name")
    path: str = declared("path of the file")
    schedule: Mapping[str, Any] = declared("the checked section `schedule`")
    costs: CostModel = declared("the cost model", factory=Costs)
    transport: str = declared("how transfers queue", default="async")
    engine: str = declared("auto, event or compiled", default="auto")
    optimizer: str | None = declared('"sync" or "post-validated"; None leaves the optimizer step out', default=None)
    dispatch: str = declared("list or ready", default="list")
    memory_limit: float | list[float] | None = declared(
        'maximum live activations per device, for dispatch "ready" and `schedule.recompute`', default=None
    )
    model: Model | None = declared("None if all costs are given", default=None)
    lengths: PackedLengths | None = declared(
        "sequences of unequal length, which set the microbatches of a step", default=None
    )
    jitter: Jitter | None = declared("noise of actions, transfers, devices and links", default=None)
    seed: int = declared("seed of the jitter", default=0)
    published: Mapping[str, Any] = declared(
        "published numbers of the real run, for reports only: step (seconds), mfu, tokens_per_second, source",
        factory=dict,
    )
    data: Mapping[str, Any] = declared("the sections of the file, unchecked, with overrides", factory=dict)

    def build(self) -> Schedule:
        """Build the schedule; BuildError if its family does not allow the sizes, ScheduleError for a wrong CSV file."""
        section = self.schedule
        if "csv" in section:
            read = Schedule.from_csv(section["csv"], name=self.name, slices=section.get("slices", 1))
            return self.completed(mark_prefetched(read, encoders_of(self.costs)))
        sizes = section["devices"], section["microbatches"], section.get("stages_per_device")
        return self.build_family(find_family(section["name"]), *sizes, section.get("options", {}))

    def build_family(
        self, family: RegisteredFamily, devices: int, microbatches: int, stages: int | None, options: Mapping[str, Any]
    ) -> Schedule:
        """Build a family's schedule for the config's costs and limit, with its R, or OFFLOAD and RELOAD."""
        costs = towers_of(self.costs)[BACKBONE]
        own = {"costs": costs, "memory_limit": self.memory_limit}
        options = {name: own[name] for name in own if name in family.options and own[name] is not None} | dict(options)
        sizes = devices, microbatches, stages
        columns = build_with_memory_actions(family, sizes, options, self._memory_actions, costs, self.memory_limit)
        return functools.reduce(with_encoder, reversed(encoders_of(self.costs)), Schedule.of(columns))

    def completed(self, schedule: ScheduleColumns) -> Schedule:
        """Return a schedule with the R, or OFFLOAD and RELOAD, of `schedule.recompute` and `schedule.offload`."""
        columns = add_memory_actions(schedule, **self._memory_actions, costs=self.costs, memory_limit=self.memory_limit)
        return Schedule.of(columns)

    @property
    def _memory_actions(self) -> dict[str, str]:
        return {key: self.schedule[key] for key in MEMORY_ACTIONS if key in self.schedule}

    def simulate(self, schedule: Schedule | None = None, *, dispatch: str | None = None) -> Timeline:
        """Build and simulate, or simulate another schedule or dispatch instead; raise the errors of both.

        With jitter this is one sample, which depends on the seed only; `ppsim.simulate_many` draws many. With `lengths`
        it is the busiest data-parallel copy of the first step; `ppsim lengths` simulates all.
        """
        schedule = self.build() if schedule is None else schedule
        if self.memory_limit is not None and not self.has_encoder:
            with error_at(f"{self.path}: "):
                limits_of(schedule.devices, self.memory_limit, error=ConfigError)
        if dispatch is None:
            self._check_limit()
            dispatch = self.dispatch
        self._check_gpus(schedule)
        run = simulate(
            self.lowered(schedule),
            self.costs,
            transport=self.transport,
            engine=self.engine,
            optimizer=self.optimizer,
            jitter=self.jitter,
            seed=self.seed,
            dispatch=dispatch,
            memory_limit=self.memory_limit if dispatch == "ready" else None,
        )
        table = run.table
        if self.lengths:
            table = replace(table, workload=self.workload(run, self.lengths.drawn[0]))
        name = self.data.get("name")
        return run.changed(config=self, table=table, name=None if name == schedule.name else name)

    @property
    def sizes(self) -> tuple[int, int]:
        """Devices and microbatches of one step, those of the lists of a CSV file too."""
        if "csv" not in self.schedule:
            return self.schedule["devices"], self.schedule["microbatches"]
        own = self.build()
        return own.devices, own.microbatches_of_a_step

    @property
    def packed_lengths(self) -> PackedLengths:
        """The section `lengths`; ConfigError if it is missing."""
        if self.lengths is None:
            raise ConfigError(f"{self.path}: lengths is missing; give one, as in {{sequences: 512, median: 1500}}")
        return self.lengths

    def workload(self, run: Timeline, lengths: np.ndarray) -> Workload | None:
        """Return the workload of a run whose sequences have these lengths; attention counts all pairs of tokens."""
        whole, model = run.table.workload, self.model
        if whole is None or model is None:
            return None
        full = MicrobatchSlots(model.sequence, attention=attention_fraction(replace(model, causal=False).layers))
        flops, count = model.step_flops() * full.work(lengths).sum(), run.schedule.microbatches_of_a_step
        return replace(whole, tokens=float(lengths.sum()) / count, flops=float(flops) / count)

    def lowered(self, schedule: Schedule) -> Schedule | Program:
        """Return the schedule to simulate: lowered with UNSHARD and REDUCE_GRAD if weights are sharded."""
        if self.sharded and not (schedule.kind == Kind.UNSHARD).any():
            return lower(schedule, sharded=True, **self.window)
        return schedule

    @property
    def window(self) -> dict[str, Any]:
        """The keywords of `lower` for the stages with gathered weights."""
        return {key: self.schedule[key] for key in WINDOW if key in self.schedule}

    @property
    def sharded(self) -> bool:
        """True if weights are sharded over data-parallel copies, so that UNSHARD and REDUCE_GRAD run."""
        return any(
            one.layout.shards_by("stage")
            if isinstance(one, DerivedCosts)
            else getattr(one, "unshard", None) is not None
            for one in towers_of(self.costs).values()
        )

    def _check_limit(self) -> None:
        """Raise ConfigError for a `memory_limit` that nothing uses; without bytes, it says whether a schedule fits."""
        section = self.schedule
        places = section.get("recompute") == NEEDED or section.get("recompute_placing", "backward") != "backward"
        searches = "name" in section and "memory_limit" in find_family(section["name"]).options
        if None not in (self.memory_limit, self.derived) and not (places or searches or self.dispatch == "ready"):
            raise ConfigError(
                f"{self.path}: memory_limit: nothing uses it here; use it with dispatch: ready, with "
                f"schedule.recompute: {NEEDED}, with a recompute_placing other than backward, or with a schedule that "
                f"is searched within it, such as auto"
            )

    @property
    def has_encoder(self) -> bool:
        """True if an encoder precedes the model."""
        return isinstance(self.costs, TowerCosts)

    @property
    def derived(self) -> DerivedCosts | None:
        """The derived costs of the model, without those of an encoder; None if the costs are not derived."""
        costs = towers_of(self.costs)[BACKBONE]
        return costs if isinstance(costs, DerivedCosts) else None

    @property
    def in_bytes(self) -> bool:
        """True if the costs give the bytes of activations; else peaks are live activations."""
        costs = towers_of(self.costs)[BACKBONE]
        return self.derived is not None or (isinstance(costs, Costs) and costs.activation_bytes is not None)

    @property
    def backbone(self) -> Config:
        """The config without its encoder."""
        of_all = {"hardware.gpus": None} if value_at(self.data, "hardware.gpus") else {}
        return self.changed({"encoder": None, **of_all}) if self.has_encoder else self

    def _check_gpus(self, schedule: Schedule) -> None:
        hardware = self.data.get("hardware") or {}
        gpus = hardware.get("gpus")
        used = self.costs.gpus(schedule.devices) if isinstance(self.costs, DerivedCosts) else 0
        if fault := network_fault(used, hardware.get("gpus_per_node"), hardware.get("network")):
            raise ConfigError(f"{self.path}: {fault}")
        if gpus and isinstance(self.costs, TowerCosts):
            workload = self.costs.table(schedule.compute).workload
            if workload and workload.gpus != gpus:
                raise ConfigError(f"{self.path}: hardware.gpus is {gpus}, but all towers make {workload.gpus}")
        if gpus and isinstance(self.costs, DerivedCosts) and used != gpus:
            raise ConfigError(
                f"{self.path}: hardware.gpus is {gpus}, but {counted(schedule.devices, 'pipeline device')} of "
                f"{counted(self.costs.layout.gpus_per_device, 'GPU')} make {used}"
            )
        self._check_batch(schedule)

    def _check_batch(self, schedule: Schedule) -> None:
        batch, costs = self.data.get("batch"), self.derived
        if batch is None or costs is None:
            return
        layout, microbatches = costs.layout, schedule.microbatches_of_a_step
        made = microbatches * layout.microbatch_size * layout.data
        if made != batch:
            raise ConfigError(
                f"{self.path}: batch is {batch}, but {microbatches} microbatches of {layout.microbatch_size} sequences "
                f"in {layout.data} copies make {made}"
            )

    def changed(self, changes: Mapping[str, Any]) -> Config:
        """Return the config with other values at dotted keys: `{"layout.recompute": "full"}`; None removes a key."""
        return config_source(self).config(changes)


@checked_call()
def load_config(path: AnyConfig, *, overrides: Mapping[str, Any] | None = None) -> Config:
    """Read and check a config.

    Parameters
    ----------
    path : str, PathLike, dict or Config
        A YAML 1.2 file, or its sections.
    overrides : mapping of dotted key to value, optional
        New values of keys, such as `{"schedule.name": "gpipe"}`; None (YAML's null) removes a key. Text is read as
        YAML, so "64" is a number; a `pathlib.Path` is a path.

    Raises
    ------
    ConfigError
        The file cannot be read, is not YAML, or breaks rules. The message has one line per fault, with its key, its
        line, its value and the legal values; `error.faults` lists the faults.
    """
    return config_source(path).config(overrides)


def _read(place: str) -> Document:
    document = read_yaml_file(place)
    if not isinstance(document.value, dict):
        found = "is empty" if document.value is None else f"{shown(document.value)} is not a config"
        raise ConfigError(f"{place}: {found}; write sections such as `schedule:` and `costs:`")
    return document


@dataclass(frozen=True)
class ConfigSource:
    """Plain values of a config before they are checked, and for errors the name of the config and its keys' lines."""

    data: Mapping[str, Any]
    place: str
    lines: Mapping[Path, int] = field(default_factory=dict, repr=False)

    __repr__ = short_repr

    def changed(self, changes: Mapping[str, Any]) -> ConfigSource:
        """Return the source with other values at dotted keys, as in `Config.changed`; ConfigError for a wrong key."""
        return ConfigSource(overridden(self.data, changes), self.place)

    def config(self, changes: Mapping[str, Any] | None = None) -> Config:
        """Check the values, with `changes`, and return the Config; ConfigError if they are wrong."""
        data = overridden(self.data, changes or {})
        checked, faults = check_sections(data)
        fields: dict[str, Any] = {}
        if not faults:
            fields, faults = assembled(checked, self.place)
        else:
            faults += missing_keys(data)
        if faults:
            replaced = [tuple(key.split(".")) for key in changes or ()]
            known = (item for item in self.lines.items() if not any(item[0][: len(key)] == key for key in replaced))
            raise _fault_error(self.place, faults, dict(known))
        return Config(path=self.place, data=data, **fields)


AnyConfig = Config | ConfigSource | str | PathLike[str] | Mapping[str, Any]


def config_source(config: AnyConfig) -> ConfigSource:
    """Return the source of a config given as a path, a dict or an object; ConfigError for anything else."""
    if isinstance(config, ConfigSource):
        return config
    if isinstance(config, Config):
        return ConfigSource(config.data, config.path)
    if isinstance(config, Mapping):
        return ConfigSource(as_python(config, "config"), "config")
    if isinstance(config, str | PathLike):
        place = str(os.fspath(config))
        document = _read(place)
        return ConfigSource(document.value, place, document.lines)
    raise ConfigError(f"config={shown(config)} must be a path of a YAML file, a dict of its sections or a ppsim.Config")


def as_config(config: AnyConfig) -> Config:
    """Return the checked config given as a path, a dict or an object; ConfigError if it is wrong."""
    return config if isinstance(config, Config) else config_source(config).config()


def config_yaml(config: Config) -> str:
    """Return the config as the text of a YAML file that ppsim can read."""
    from ruamel.yaml import YAML

    writer, text = YAML(), io.StringIO()
    writer.default_flow_style = False
    writer.width = 4096
    writer.dump(without_nulls(dict(config.data)), text)
    return text.getvalue()


def value_at(data: Mapping[str, Any], key: str) -> Any:
    """Return the value at a dotted key such as `schedule.name`; None if it is missing."""
    value: Any = data
    for name in key.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _fault_error(place: str, faults: list[Fault], lines: Mapping[Path, int]) -> ConfigError:
    def sentence(fault: Fault) -> str:
        path, message = fault
        name = ".".join(map(str, path))
        line = f" (line {lines[path]})" if path in lines else ""
        return f"{name}{line}: {message}" if name else message

    sentences = [sentence(fault) for fault in faults]
    text = sentences[0] if len(sentences) == 1 else "\n  ".join([f"{len(sentences)} faults", *sentences])
    return ConfigError(f"{place}: {text}", sentences)


def overridden(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `data` with other values at dotted keys; None removes a key. ConfigError for a wrong key.

    Another schedule also removes the keys that only the one in its place has.
    """
    data, changes = with_sharding_keys(dict(data)), _with_stages(changes)
    for key, value in {**_without_replaced(data.get("schedule"), changes), **changes}.items():
        if key == "layout.sharding" and isinstance(data.get("layout"), dict):
            data = {**data, "layout": {name: old for name, old in data["layout"].items() if name not in SHARDING_KEYS}}
        data = _overridden(data, key, _value(key, value))
    return with_sharding_keys(data)


def _with_stages(changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the changes; a schedule name such as `interleaved-1f1b:4` also sets the stages per device."""
    name, stages = changes.get("schedule.name"), changes.get("schedule.stages_per_device")
    if not isinstance(name, str) or ":" not in name or stages is not None:
        return changes
    family_name, stages = split_stages(name)
    return {**changes, "schedule.name": family_name, "schedule.stages_per_device": stages}


def _without_replaced(section: Any, changes: Mapping[str, Any]) -> dict[str, None]:
    """Return the keys of a section `schedule` that go away if changes name another schedule.

    A CSV file fixes the whole schedule. Options belong to one family, and some families have a fixed number of stages.
    """
    name = changes.get("schedule.name")
    if not isinstance(section, dict):
        return {}
    if changes.get("schedule.csv") is not None:
        replaced = FAMILY_KEYS
    elif isinstance(name, str):
        own, family = str(section.get("name")).partition(":")[0], families().get(name)
        has_fixed_stages = family is not None and family.fixed_stages
        replaced = ("csv", "slices", *["options"] * (name != own), *["stages_per_device"] * has_fixed_stages)
    else:
        replaced = ()
    return {f"schedule.{key}": None for key in replaced if key in section}


def _overridden(data: dict[str, Any], key: str, value: Any, above: str = "") -> dict[str, Any]:
    """Return `data` with another value at a dotted key, in the section `above`; missing sections are added."""
    if not isinstance(key, str):
        raise ConfigError(f"override {shown(key)}: write keys as text with dots, such as schedule.name")
    if key.count(".") >= MAX_DEPTH:
        raise ConfigError(f"override {shown(key)}: nested deeper than {MAX_DEPTH} levels")
    first, _, rest = key.partition(".")
    if not first or (not rest and key.endswith(".")):
        raise ConfigError(f"override {shown(key)}: write keys with dots between them, such as schedule.name")
    if not rest:
        return {**data, first: value}
    below = data.get(first)
    if below is None or (isinstance(below, str) and first in ("device", "link", "network")):
        below = {} if below is None else {"like": below}
    if not isinstance(below, dict):
        raise ConfigError(f"override {shown(above + key)}: {above}{first} is {shown(below)}, not a section with keys")
    if key.startswith("slow_devices.") and rest.isdecimal():  # devices are numbers in the file, not text
        return {**data, first: {**below, int(rest): value}}
    return {**data, first: _overridden(below, rest, value, f"{above}{first}.")}


def _value(key: str, value: Any) -> Any:
    """Return the plain value of a key; text is read as YAML, but not a path, which may contain " #" or ": "."""
    if isinstance(value, PathLike):
        return os.fspath(value)
    return _read_value(key, value) if isinstance(value, str) else as_python(value, f"override {shown(key)}")


def _read_value(key: str, text: str) -> Any:
    """Return the value of a text; ConfigError for YAML that is unfinished or wrong, or that hides its value."""
    place = f"override {shown(key)}"
    try:
        value = read_yaml(text, place).value
    except NotYamlError:  # the YAML reader explains a document, not one value that somebody is typing
        value = None
    if value is None and text.strip().lower() not in ("", "~", "null"):
        raise ConfigError(
            f"{place}: {shown(text)} is not a value; give a number, a text, true, false, null, or a list such as [1, 2]"
            "; put a text with other signs in quotes"
        )
    return value
