"""The YAML config: a schedule with what prices it, read, checked and ready to simulate. Keys: docs/config.md."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from os import PathLike
from typing import Any

from ppsim.actions import Kind
from ppsim.base.errors import ConfigError, CostError, shown
from ppsim.base.files import MOST_OF_A_CONFIG, read_text
from ppsim.base.yaml_text import DEEPEST, Document, Path, read_yaml
from ppsim.config.schema import MEASURED, Fault, check
from ppsim.costs import CostModel, Costs
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.hardware import Cluster, DeviceSheet, LinkSheet, find_device, find_link
from ppsim.costs.layout import Layout
from ppsim.costs.model import Model
from ppsim.costs.profile import Profile, read_profile
from ppsim.families.registry import find_family, split_stages
from ppsim.plan.jitter import Jitter
from ppsim.run.schedules import Schedule, lower
from ppsim.run.simulation import simulate
from ppsim.run.timelines import Timeline


@dataclass(frozen=True)
class Config:
    """One run: what to build, what it costs, how to simulate it.

    Attributes
    ----------
    name : str
        From the file, or the file's own name.
    path : str
        The file.
    schedule : mapping
        The checked section `schedule`.
    costs : CostModel
        `Costs` of given numbers, `DerivedCosts` of a model, a cluster and a layout, or a measured `Profile`.
    transport, engine : str
    optimizer : "sync", "post-validated" or None
        How the step ends; None leaves the optimizer step out.
    dispatch : str
    memory_limit : float, list or None
        Of dispatch "ready".
    model : Model or None
        None where all costs are given.
    jitter : Jitter or None
    seed : int
        Of the jitter.
    published : mapping
        What is known of the real run: step (seconds), mfu, tokens_per_second, source. Nothing is computed from it.
    data : mapping
        The sections as they were read, overrides included.
    """

    name: str
    path: str
    schedule: Mapping[str, Any]
    costs: CostModel = field(default_factory=Costs)
    transport: str = "async"
    engine: str = "auto"
    optimizer: str | None = None
    dispatch: str = "list"
    memory_limit: float | list[float] | None = None
    model: Model | None = None
    jitter: Jitter | None = None
    seed: int = 0
    published: Mapping[str, Any] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)

    def build(self) -> Schedule:
        """The schedule; BuildError where the family does not allow its sizes, ScheduleError for a faulty CSV file."""
        section = dict(self.schedule)
        if "csv" in section:
            file = os.path.join(os.path.dirname(self.path), section["csv"])
            return Schedule.from_csv(file, name=self.name, slices=section.get("slices", 1))
        family = find_family(section["name"])
        options = dict(section.get("options", {}))
        if "costs" in family.options:
            options.setdefault("costs", self.costs)
        return Schedule.of(
            family.columns(section["devices"], section["microbatches"], section.get("stages_per_device"), **options)
        )

    def simulate(self, schedule: Schedule | None = None, *, dispatch: str | None = None) -> Timeline:
        """Build and simulate, or simulate another schedule or dispatch in its place; the errors of both.

        With jitter this is one sample, the same for the same seed; `ppsim.simulate_many` makes more.
        """
        schedule = self.build() if schedule is None else schedule
        dispatch = self.dispatch if dispatch is None else dispatch
        self._check_gpus(schedule)
        if self.sharded and not (schedule.kind == Kind.UNSHARD).any():
            schedule = lower(schedule, sharded=True)
        return simulate(
            schedule,
            self.costs,
            transport=self.transport,
            engine=self.engine,
            optimizer=self.optimizer,
            jitter=self.jitter,
            seed=self.seed,
            dispatch=dispatch,
            memory_limit=self.memory_limit if dispatch == "ready" else None,
        )

    @property
    def sharded(self) -> bool:
        """Whether weights are sharded over data-parallel copies, so that schedules run with UNSHARD and REDUCE_GRAD."""
        if isinstance(self.costs, DerivedCosts):
            return self.costs.layout.sharded
        return getattr(self.costs, "unshard", None) is not None

    def _check_gpus(self, schedule: Schedule) -> None:
        gpus = (self.data.get("hardware") or {}).get("gpus")
        if gpus and isinstance(self.costs, DerivedCosts) and self.costs.gpus(schedule.devices) != gpus:
            raise ConfigError(
                f"{self.path}: hardware.gpus is {gpus}, but {schedule.devices} pipeline devices of "
                f"{self.costs.layout.gpus_per_device} GPUs make {self.costs.gpus(schedule.devices)}"
            )
        self._check_batch(schedule)

    def _check_batch(self, schedule: Schedule) -> None:
        batch = self.data.get("batch")
        if batch is None or not isinstance(self.costs, DerivedCosts):
            return
        layout, microbatches = self.costs.layout, schedule.microbatches_of_a_step
        made = microbatches * layout.microbatch_size * layout.data
        if made != batch:
            raise ConfigError(
                f"{self.path}: batch is {batch}, but {microbatches} microbatches of {layout.microbatch_size} sequences "
                f"in {layout.data} copies make {made}"
            )

    def changed(self, changes: Mapping[str, Any]) -> Config:
        """The config with other values at dotted keys, such as `{"layout.recompute": "full"}`; None takes one away."""
        return make_config(dict(self.data), place=self.path, overrides=changes)


def load_config(path: str | PathLike[str], *, overrides: Mapping[str, Any] | None = None) -> Config:
    """Read and check a YAML config.

    Parameters
    ----------
    path : str or PathLike
        A YAML 1.2 file.
    overrides : mapping of dotted key to value, optional
        Replaces keys of the file, such as `{"schedule.name": "gpipe"}`; text is read as YAML, so "64" is a number, and
        a `pathlib.Path` stands for itself. None (YAML's null) takes a key away.

    Raises
    ------
    ConfigError
        The file cannot be read, is not YAML, or breaks rules: one line for each fault with its path in the file, its
        line, the value and what is legal. `error.faults` lists them.
    """
    place = str(os.fspath(path))
    document = _read(place)
    return make_config(document.value, place=place, overrides=overrides, lines=document.lines)


def _read(place: str) -> Document:
    document = read_yaml(read_text(place, most=MOST_OF_A_CONFIG), place)
    if not isinstance(document.value, dict):
        raise ConfigError(
            f"{place}: {shown(document.value)} is no config; write sections such as `schedule:` and `costs:`"
        )
    return document


@dataclass(frozen=True)
class Source:
    """A config before it is checked: its plain values, and the place that names it in errors."""

    data: Mapping[str, Any]
    place: str

    def changed(self, changes: Mapping[str, Any]) -> Source:
        """With other values at dotted keys, as in `Config.changed`; ConfigError for what is no key."""
        data = dict(self.data)
        for key, value in _with_stages(changes).items():
            data = _overridden(data, key, value)
        return Source(data, self.place)

    def config(self, changes: Mapping[str, Any] | None = None) -> Config:
        """The checked config, with `changes`; ConfigError."""
        return make_config(dict(self.data), place=self.place, overrides=changes)


def source_of(config: Config | Source | str | PathLike[str] | Mapping[str, Any]) -> Source:
    """The values of a config given as a path, as plain values or as an object; ConfigError for another thing."""
    if isinstance(config, Source):
        return config
    if isinstance(config, Config):
        return Source(config.data, config.path)
    if isinstance(config, Mapping):
        return Source(config, "config")
    if isinstance(config, str | PathLike):
        place = str(os.fspath(config))
        return Source(_read(place).value, place)
    raise ConfigError(f"config={shown(config)} must be a path of a YAML file, a dict of its sections or a ppsim.Config")


def make_config(
    data: dict[str, Any],
    *,
    place: str,
    overrides: Mapping[str, Any] | None = None,
    lines: Mapping[Path, int] | None = None,
) -> Config:
    """Check a config that is already plain values; `place` names it in errors, `lines` says where its keys stand."""
    lines = lines or {}
    for key, value in _with_stages(overrides or {}).items():
        data = _overridden(data, key, value)
        replaced = tuple(key.split("."))
        lines = {path: line for path, line in lines.items() if path[: len(replaced)] != replaced}
    checked, faults = check(data)
    config = None
    if not faults:
        config, faults = _assembled(checked, data, place)
    else:
        faults += _missing_keys(data.get("schedule"))
    if config is None or faults:
        raise _fault_error(place, faults, lines)
    return config


def _with_stages(changes: Mapping[str, Any]) -> Mapping[str, Any]:
    """A change to `interleaved-1f1b:4` is one of the name and one of the stages per device."""
    name, stages = changes.get("schedule.name"), changes.get("schedule.stages_per_device")
    if not isinstance(name, str) or ":" not in name or stages is not None:
        return changes
    family_name, stages = split_stages(name)
    return {**changes, "schedule.name": family_name, "schedule.stages_per_device": stages}


def _overridden(data: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """`data` with the value at a dotted key replaced; sections on the way are made."""
    if key.count(".") >= DEEPEST:
        raise ConfigError(f"override {shown(key)}: nested deeper than {DEEPEST} levels")
    first, _, rest = key.partition(".")
    if not first or (not rest and key.endswith(".")):
        raise ConfigError(f"override {shown(key)}: write keys with dots between them, such as schedule.name")
    if not rest:
        return {**data, first: _override_value(key, value)}
    below = data.get(first)
    if below is None or (isinstance(below, str) and first in ("device", "link", "network")):
        below = {} if below is None else {"like": below}
    if not isinstance(below, dict):
        raise ConfigError(f"override {shown(key)}: {first} is {shown(below)}, not a section with keys")
    number = int(rest) if key.startswith("slow_devices.") and rest.isdecimal() else None
    if number is not None:  # devices are numbers in the file, not text
        return {**data, first: {**below, number: _overridden({}, rest, value)[rest]}}
    return {**data, first: _overridden(below, rest, value)}


def _override_value(key: str, value: Any) -> Any:
    """Text is YAML; the name of a file, which may hold " #" or ": ", is not."""
    if isinstance(value, PathLike):
        return os.fspath(value)
    return _read_value(key, value) if isinstance(value, str) else value


@functools.lru_cache(4096)  # a sweep gives the same few texts again and again
def _read_value(key: str, text: str) -> Any:
    return read_yaml(text, f"override {key}").value


def _fault_error(place: str, faults: list[Fault], lines: Mapping[Path, int]) -> ConfigError:
    def sentence(fault: Fault) -> str:
        path, message = fault
        name = ".".join(map(str, path))
        line = f" (line {lines[path]})" if path in lines else ""
        return f"{name}{line}: {message}" if name else message

    sentences = [sentence(fault) for fault in faults]
    if len(sentences) == 1:
        return ConfigError(f"{place}: {sentences[0]}", sentences)
    listed = "\n".join(f"  {line}" for line in sentences)
    return ConfigError(f"{place}: {len(sentences)} faults\n{listed}", sentences)


class _Faults(list[Fault]):
    """Faults so far; `attempt` adds what goes wrong."""

    def attempt(self, path: Path, make: Callable[[], Any]) -> Any:
        try:
            return make()
        except (ConfigError, CostError) as error:
            self.append((path, str(error)))
            return None


def _assembled(checked: dict[str, Any], data: Mapping[str, Any], place: str) -> tuple[Config | None, list[Fault]]:
    """The config from checked sections, or the faults between keys."""
    faults = _Faults()
    schedule = checked["schedule"]
    faults += _schedule_faults(schedule)
    model = _model(checked.get("model"), place, faults)
    cluster = _cluster(checked.get("hardware"), faults)
    layout = faults.attempt(("layout",), lambda: Layout(**checked.get("layout", {})))
    given = checked.get("costs", {})
    faults += _missing_partners(checked)
    faults += _unpriced_optimizer(checked, cluster)
    costs: Any = None
    if "profile" in given:
        costs = _profile(checked, place, faults)
    elif not faults:
        costs = faults.attempt(("costs",), lambda: Costs(**given))
        if costs and model and cluster and layout:
            costs = faults.attempt(("layout",), lambda: DerivedCosts(model, cluster, layout, given))
    jitter = dict(checked.get("jitter", {}))
    seed = jitter.pop("seed", 0)
    if jitter.get("actions") == MEASURED:
        if isinstance(costs, Profile):
            jitter["actions"] = costs.jitter
        elif "profile" not in given:
            faults.append((("jitter", "actions"), f"{MEASURED} goes with costs.profile; give a number such as 0.05"))
    if faults:
        return None, faults
    return Config(
        name=checked.get("name", os.path.splitext(os.path.basename(place))[0]),
        path=place,
        schedule=schedule,
        costs=costs,
        transport=checked.get("transport", "async"),
        engine=checked.get("engine", "auto"),
        optimizer=checked.get("optimizer"),
        dispatch=checked.get("dispatch", "list"),
        memory_limit=checked.get("memory_limit"),
        model=model,
        jitter=Jitter(**jitter) if "jitter" in checked else None,
        seed=seed,
        published=checked.get("published", {}),
        data=data,
    ), []


def _missing_keys(section: Any) -> list[Fault]:
    """What a schedule without a CSV file cannot do without; told beside whatever else is wrong."""
    if not isinstance(section, dict) or "csv" in section:
        return []
    return [
        (("schedule", key), "is missing; a schedule has name, devices and microbatches, or csv")
        for key in ("name", "devices", "microbatches")
        if section.get(key) is None
    ]


def _schedule_faults(section: dict[str, Any]) -> list[Fault]:
    if "csv" in section:
        spare = [key for key in ("name", "devices", "microbatches", "stages_per_device", "options") if key in section]
        return _said_by_the_file("schedule", "csv", spare)
    faults = _missing_keys(section)
    if "slices" in section:
        faults.append((("schedule", "slices"), "goes with csv; a family takes it as an option"))
    if "name" in section:
        family = find_family(section["name"])
        known = ", ".join(name for name in family.options if name != "costs") or "none"
        faults += [
            (("schedule", "options", key), f"unknown option of {family.name}; its options are: {known}")
            for key in section.get("options", {})
            if key not in family.options
        ]
    return faults


def _said_by_the_file(section: str, file: str, keys: Iterable[str]) -> list[Fault]:
    return [((section, key), f"does not go with {file}: the file says it; leave it out") for key in keys if key != file]


def _missing_partners(checked: dict[str, Any]) -> list[Fault]:
    if "model" in checked and "hardware" not in checked:
        return [(("hardware",), "is missing; a model is priced on a device and a link")]
    return [
        ((section,), "needs a section `model`; without one all costs are given in `costs`")
        for section in ("hardware", "layout")
        if section in checked and "model" not in checked
    ]


def _unpriced_optimizer(checked: dict[str, Any], cluster: Cluster | None) -> list[Fault]:
    known = cluster is None or cluster.device.memory_bandwidth is not None
    if "optimizer" not in checked or known or "optimizer_step" in checked.get("costs", {}):
        return []
    return [
        (
            ("hardware", "device"),
            "gives no memory_bandwidth, which the optimizer step is priced by; give it, or costs.optimizer_step",
        )
    ]


def _model(section: dict[str, Any] | None, place: str, faults: _Faults) -> Model | None:
    if section is None:
        return None
    shape = dict(section)
    file = shape.pop("huggingface", None)
    if file is not None:
        return faults.attempt(
            ("model",), lambda: Model.from_huggingface(os.path.join(os.path.dirname(place), file), **shape)
        )
    missing = [name for name in _needed(Model) if name not in shape]
    faults += [(("model", name), "is missing; give it, or huggingface: the path of a config.json") for name in missing]
    return None if missing else faults.attempt(("model",), lambda: Model(**shape))


def _profile(checked: dict[str, Any], place: str, faults: _Faults) -> Profile | None:
    """Costs measured by `ppsim calibrate`; the path is relative to the config."""
    given = checked["costs"]
    faults += _said_by_the_file("costs", "profile", given)
    if "model" in checked:
        faults.append((("model",), "does not go with costs.profile, which prices a model by itself; leave one out"))
    path = os.path.join(os.path.dirname(place), given["profile"])
    return faults.attempt(("costs", "profile"), lambda: read_profile(path))


def _cluster(section: dict[str, Any] | None, faults: _Faults) -> Cluster | None:
    if section is None:
        return None
    device = faults.attempt(("hardware", "device"), lambda: _sheet(DeviceSheet, find_device, section["device"]))
    links = [
        faults.attempt(("hardware", key), lambda sheet=section[key]: _sheet(LinkSheet, find_link, sheet))
        for key in ("link", "network")
        if key in section
    ]
    if device is None or None in links:
        return None
    keys = ("gpus_per_node", "node_of_device", "cards_per_node", "all_reduce")
    others = {key: section[key] for key in keys if key in section}
    return Cluster(device, links[0], links[-1], **others)


def _sheet(kind: Any, find: Callable[[str], Any], section: dict[str, Any]) -> Any:
    """A known sheet, changed or not, or a whole one of the user's own."""
    changes = {key: value for key, value in section.items() if key != "like"}
    if "like" in section:
        sheet = find(section["like"])
        sources = {"achieved_source": {"achieved"}, "latency_source": {"latency"}}
        if "source" not in changes:
            others = changes.keys() - {"name", "achieved", "latency", *sources}
            changes |= {"source": f"given: {', '.join(sorted(others))}; else {sheet.source}"} if others else {}
        given = {name: "given" for name, numbers in sources.items() if numbers & changes.keys()}
        return replace(sheet, **given | changes)
    missing = [name for name in _needed(kind) if name not in changes]
    if missing:
        raise ConfigError(f"gives no {', '.join(missing)}; give {', '.join(_needed(kind))}, or like: a known one")
    return kind(**{"name": "the user's own", **changes})


def _needed(kind: Any) -> list[str]:
    """Fields without a default; a name is not asked for."""
    return [item.name for item in fields(kind) if item.default is MISSING and item.name != "name"]
