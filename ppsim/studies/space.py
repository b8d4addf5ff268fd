"""The space that `choose` searches: the free keys of a config, their values, and every point of them."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ppsim.actions import Kind
from ppsim.base.errors import BuildError, ConfigError, shown
from ppsim.base.rules import whole_number
from ppsim.config import AnyConfig, Config, config_source, make_config, value_at
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.layers import RECOMPUTE
from ppsim.costs.layout import Layout
from ppsim.frameworks import SCHEDULES
from ppsim.search import families, find_family, split_stages
from ppsim.search.memory_actions import MEMORY_ACTIONS
from ppsim.studies.store import noting_basis

TENSOR, CONTEXT, DATA, EXPERT = "layout.tensor", "layout.context", "layout.data", "layout.expert"
MICROBATCH_SIZE, PARTITION, RECOMPUTE_LEVEL = "layout.microbatch_size", "layout.partition", "layout.recompute"
DEVICES, MICROBATCHES = "schedule.devices", "schedule.microbatches"
BALANCED = "balanced"  # a partition: balanced over devices, as a layout string
SEARCHED = "searched"  # a partition of ranked points only: the fastest stages by simulation
SHARDINGS: Mapping[str, Mapping[str, bool]] = {
    "none": {"layout.distributed_optimizer": False, "layout.sharded": False},
    "optimizer": {"layout.distributed_optimizer": True, "layout.sharded": False},
    "weights": {"layout.distributed_optimizer": False, "layout.sharded": True},
}
SHARDING = "layout.sharding"  # stands for the two keys of SHARDINGS
MIN_TOKENS = 4096  # minimum tokens of a sequence per GPU under context parallelism
_whole = whole_number()
ONE_DEVICE = "1f1b"  # the family that stands for all on a pipeline of one device
Changes = dict[str, Any]  # dotted key -> value


@dataclass(frozen=True)
class Space:
    """All points of a search.

    Attributes
    ----------
    config : Config
        The config that every point shares; its values of free keys are placeholders.
    gpus, batch : int
        GPUs of the job, and sequences of one step over all copies; equal at every point.
    values : mapping of dotted key to list
        Values of each free key, without layout.data and schedule.microbatches, which follow from the other keys.
    fixed : mapping of dotted key to int
        The config's values of layout.data and schedule.microbatches, if it sets them; other values are skipped.
    files : mapping of path to digest
        The files that the config names; a digest is None if it is not known.
    """

    config: Config
    gpus: int
    batch: int
    values: Mapping[str, list[Any]] = field(default_factory=dict)
    fixed: Mapping[str, int] = field(default_factory=dict)
    files: Mapping[str, str | None] = field(default_factory=dict)

    def layouts(self) -> Iterator[Changes]:
        """Yield every combination of the layout's keys, with the number of copies and microbatches that follows.

        Skip combinations that do not divide the GPUs, the batch or the experts evenly.
        """
        keys = [key for key in self.values if key not in ("schedule.name", "schedule.stages_per_device", PARTITION)]
        for chosen in itertools.product(*(self.values[key] for key in keys)):
            point = self._with_following_keys(dict(zip(keys, chosen, strict=True)))
            if point is not None:
                yield point

    def _with_following_keys(self, point: Changes) -> Changes | None:
        """Return the point with the keys that follow from it; None if the sizes do not divide each other evenly."""

        def size(key: str) -> int:
            return point.get(key, value_at(self.config.data, key) or 1)

        copies, left = divmod(self.gpus, size(DEVICES) * size(TENSOR) * size(CONTEXT))
        microbatches, over = divmod(self.batch, max(copies, 1) * size(MICROBATCH_SIZE))
        if left or over or not copies or not microbatches:
            return None
        point |= {DATA: copies, MICROBATCHES: microbatches}
        if any(point[key] != value for key, value in self.fixed.items()):
            return None
        if SHARDING in point:
            point |= SHARDINGS[point.pop(SHARDING)]
            if (copies * size(CONTEXT) > 1) != (point["layout.sharded"] or point["layout.distributed_optimizer"]):
                return None  # with one copy nothing is sharded; with more, a whole optimizer state is slower and larger
        if TENSOR in point and "layout.sequence_parallel" not in self.config.data.get("layout", {}):
            point["layout.sequence_parallel"] = size(TENSOR) > 1
        return point

    def schedules(self, devices: int, keeping: bool | None = None) -> Iterator[Changes]:
        """Yield every schedule on a number of devices: its name and stages per device.

        On one device all schedules are equal, so only `ONE_DEVICE` is tried, if it is among them. `keeping` selects the
        schedules that are known to keep activations until their backward, or the others.
        """
        names = self.values.get("schedule.name", [self.config.schedule.get("name")])
        if devices == 1 and ONE_DEVICE in names:
            names = [ONE_DEVICE]
        for written in names:
            name, own = split_stages(written)
            if keeping is not None and (keeps_activations(name) and not self._has_memory_actions) != keeping:
                continue
            for stages in self._stages(name, devices) if own is None else [own]:
                yield {"schedule.name": name, "schedule.stages_per_device": stages}

    @property
    def _has_memory_actions(self) -> bool:
        """True if the config adds R, or OFFLOAD and RELOAD, to every list."""
        return any(key in self.config.schedule for key in MEMORY_ACTIONS)

    def _stages(self, name: str, devices: int) -> list[int | None]:
        family = find_family(name)
        if family.fixed_stages:
            return [None]
        free = self.values.get("schedule.stages_per_device")
        if free is None:
            return [self.config.schedule.get("stages_per_device")]
        layers = self.config.model.num_layers if self.config.model else None
        return [count for count in free if layers is None or devices * count <= layers + 2]

    @property
    def partitions(self) -> list[Any]:
        """The partitions to search; [None] if the config's partition is not free."""
        return [one for one in self.values.get(PARTITION, [None]) if one != SEARCHED] or [BALANCED]

    @property
    def searches_partitions(self) -> bool:
        """True if the fastest stages of ranked points are free too."""
        return SEARCHED in self.values.get(PARTITION, ())


@functools.cache
def keeps_activations(name: str) -> bool:
    """Return True if a family's small lists keep every activation on devices from its F to its B.

    False for families that look at costs: their lists may change with them.
    """
    family = find_family(name)
    for devices, microbatches in () if "costs" in family.options else ((4, 16), (2, 8), (3, 9), (1, 4)):
        try:
            return bool((family.columns(devices, microbatches).kind <= Kind.W).all())
        except BuildError:
            continue
    return False


def search_space(
    config: AnyConfig,
    free: Iterable[str] | Mapping[str, Iterable[Any]] | None = None,
    asynchronous: bool = False,
    only: Mapping[str, Iterable[Any]] | None = None,
) -> Space:
    """Return the space of a config.

    Parameters
    ----------
    config : path, dict or Config
        It may lack keys of the schedule; `hardware.gpus` and `batch` then give the size of the job.
    free : list of keys, or mapping of key to its values, optional
        Default: every key of `FREE` that the config leaves out; layout.data, and the microbatches if a batch is given,
        then keep the config's values. If given: these keys, and the schedule's name and devices if the config lacks
        them.
    asynchronous : bool
        Include schedules that train on old weights.
    only : mapping of key to its values, optional
        Further free keys, with these values only.

    Raises
    ------
    ConfigError
        A key that cannot be free, a job of unknown size, or a wrong config.
    """
    source = config_source(config)
    data, place = dict(source.data), source.place
    _require_sections(data, place)
    chosen = _chosen(data, free, {key: list(values) for key, values in (only or {}).items()})
    completed, gpus, batch = _completed(data, chosen, place)
    with noting_basis() as basis:
        whole = make_config(completed, place=place)
    if "csv" in whole.schedule:
        raise ConfigError(f"{place}: schedule.csv fixes the schedule; choose needs schedule.name, or none")
    derived = isinstance(whole.costs, DerivedCosts)
    if not derived:
        _refuse_keys_of_a_model(chosen, free, only)
        chosen = {key: values for key, values in chosen.items() if key.startswith("schedule.") and key != DEVICES}
    job = Job(whole, gpus, batch, asynchronous)
    for key, given in chosen.items():
        check_values(key, given or ())
    values = {key: given or list(FREE[key](job)) for key, given in chosen.items()}
    fixed = {key: value_at(data, key) for key in _following(data)} if free is None and derived else {}
    return Space(
        whole,
        gpus,
        batch,
        {key: legal for key, legal in values.items() if legal},
        {key: value for key, value in fixed.items() if value is not None},
        basis.files,
    )


def _require_sections(data: Mapping[str, Any], place: str) -> None:
    """Raise ConfigError if a section that is read before the config is checked is not a mapping."""
    for name in ("schedule", "layout", "hardware"):
        if data.get(name) is not None and not isinstance(data[name], Mapping):
            raise ConfigError(f"{place}: {name}: {shown(data[name])} must be a section of keys")


def _chosen(
    data: Mapping[str, Any],
    free: Iterable[str] | Mapping[str, Iterable[Any]] | None,
    only: Mapping[str, list[Any]],
) -> dict[str, list[Any] | None]:
    """Return the free keys, in the order of FREE, with the values given for them or None."""
    wanted: dict[str, list[Any] | None] = {}
    if isinstance(free, Mapping):
        wanted = {key: list(values) for key, values in free.items()}
    elif free is not None:
        wanted = dict.fromkeys([free] if isinstance(free, str) else free)
    wanted |= only
    for key in wanted:
        if key not in FREE:
            raise ConfigError(f"free: {shown(key)} cannot be free; use some of: {', '.join(FREE)}")
    left_out = {key for key in FREE if not _is_given(data, key)}
    if free is not None:
        left_out &= {"schedule.name", DEVICES}
    return {key: wanted.get(key) for key in FREE if key in wanted or key in left_out}


def _refuse_keys_of_a_model(chosen: Iterable[str], *named: Iterable[str] | None) -> None:
    """Raise ConfigError for keys that cannot be chosen under given costs, because these hold for one layout."""
    wanted = {key for keys in named for key in ([keys] if isinstance(keys, str) else keys or ())}
    wrong = [key for key in chosen if key == DEVICES or (key in wanted and key.startswith("layout."))]
    if wrong:
        raise ConfigError(
            f"{wrong[0]} cannot be chosen where costs are given: they are of one layout on so many devices; say "
            "schedule.devices, and choose schedule.name or schedule.stages_per_device, or give a model and hardware"
        )


def _is_given(data: Mapping[str, Any], key: str) -> bool:
    if key == SHARDING:
        return any(_is_given(data, one) for one in SHARDINGS["none"])
    if key == "schedule.stages_per_device" and _is_given(data, "schedule.name"):
        return True  # a named family runs its own number of stages if none is given
    return value_at(data, key) is not None


def _following(data: Mapping[str, Any]) -> list[str]:
    """Return the keys that follow from GPUs and batch; without a batch, microbatches are not among them."""
    return [DATA] + [MICROBATCHES] * (data.get("batch") is not None)


def _completed(data: dict[str, Any], chosen: Mapping[str, Any], place: str) -> tuple[dict[str, Any], int, int]:
    """Return the config's data with a placeholder at each required key that is free, its GPUs and its batch."""
    schedule, layout = dict(data.get("schedule") or {}), dict(data.get("layout") or {})
    gpus, batch = (
        _count(place, "hardware.gpus", value_at(data, "hardware.gpus")),
        _count(place, "batch", data.get("batch")),
    )
    if gpus is None and schedule.get("devices") is not None:
        gpus = _product(data, place, DEVICES, "layout.tensor", "layout.context", DATA)
    if gpus is None:
        raise ConfigError("hardware.gpus is missing: say on how many GPUs the job runs, such as gpus: 512")
    if batch is None and schedule.get("microbatches") is not None:
        batch = _product(data, place, MICROBATCHES, "layout.microbatch_size", DATA)
    if batch is None:
        raise ConfigError("batch is missing: say how many sequences one step has, such as batch: 1024")
    for key in chosen:
        section, name = key.split(".")
        {"schedule": schedule, "layout": layout}[section].pop(name, None)
    if SHARDING in chosen:
        for key in SHARDINGS["none"]:
            layout.pop(key.split(".")[1], None)
    if "schedule.name" in chosen:
        schedule.pop("options", None)
    if PARTITION in chosen:
        layout = {key: value for key, value in layout.items() if not key.endswith("_stage_layers")}
    placeholders = {"name": "1f1b", "devices": 1, "microbatches": 1}
    completed = {**data, "schedule": {**placeholders, **schedule}}
    if layout:
        completed["layout"] = layout
    completed.pop("batch", None)
    return completed, gpus, batch


def _count(place: str, key: str, value: Any) -> int | None:
    """Return the integer at a key, or None if it is missing; ConfigError for anything else."""
    try:
        return None if value is None else _whole(value)
    except ConfigError as wrong:
        raise ConfigError(f"{place}: {key}: {wrong}") from None


def _product(data: Mapping[str, Any], place: str, *keys: str) -> int:
    """Return the product of the counts at some keys; a missing one counts 1."""
    return math.prod(_count(place, key, value_at(data, key)) or 1 for key in keys)


def sharding_of(changes: Mapping[str, Any]) -> str | None:
    """Return the name in SHARDINGS of a point's sharding; None if its changes do not set it."""
    return next((name for name, keys in SHARDINGS.items() if keys.items() <= changes.items()), None)


@dataclass(frozen=True)
class Job:
    """Job on which the values of a free key depend."""

    config: Config
    gpus: int
    batch: int
    asynchronous: bool


def _divisors(number: int, most: int) -> list[int]:
    return [count for count in range(1, min(number, most) + 1) if number % count == 0]


def _tensor_sizes(job: Job) -> list[int]:
    """Return the sizes within a node that divide the attention heads."""
    costs = job.config.costs
    if not isinstance(costs, DerivedCosts):
        return []
    return [size for size in _divisors(costs.model.heads, costs.cluster.gpus_per_node) if job.gpus % size == 0]


def _context_sizes(job: Job) -> list[int]:
    model = job.config.model
    most = model.sequence // MIN_TOKENS if model else 1
    return [size for size in (1, 2, 4, 8) if model and model.sequence % size == 0 and size <= max(most, 1)]


def _expert_sizes(job: Job) -> list[int]:
    model = job.config.model
    return _divisors(model.experts, job.gpus) if model and model.experts else []


def _device_counts(job: Job) -> list[int]:
    most = job.config.model.num_layers + 2 if job.config.model else job.gpus
    return _divisors(job.gpus, most)


def _microbatch_sizes(job: Job) -> list[int]:
    return [size for size in (1, 2, 4) if size <= job.batch]


def _names(job: Job) -> list[str]:
    """Return the families that need no search."""
    return [
        name
        for name, family in families().items()
        if "costs" not in family.options and (job.asynchronous or not family.asynchronous)
    ]


def _recompute_levels(job: Job) -> list[str]:
    """Return the levels; selective recompute drops attention scores, so flash attention has none."""
    model = job.config.model
    return [level for level in RECOMPUTE if level != "selective" or (model and model.attention == "full")]


# Key -> its values for a job. layout.data and schedule.microbatches follow from the GPUs and the batch.
FREE: dict[str, Callable[[Job], list[Any]]] = {
    TENSOR: _tensor_sizes,
    CONTEXT: _context_sizes,
    EXPERT: _expert_sizes,
    MICROBATCH_SIZE: _microbatch_sizes,
    RECOMPUTE_LEVEL: _recompute_levels,
    SHARDING: lambda job: list(SHARDINGS),
    PARTITION: lambda job: ["even", BALANCED, SEARCHED],
    DEVICES: _device_counts,
    "schedule.name": _names,
    "schedule.stages_per_device": lambda job: [2, 3, 4, 5, 6, 8],
}


def check_values(key: str, values: Iterable[Any]) -> None:
    """Raise ConfigError unless the key can have every value."""
    for value in values:
        if key == "schedule.name":
            find_family(split_stages(value)[0])
        elif key == SHARDING:
            if value not in tuple(SHARDINGS):
                raise ConfigError(f"{key}: {shown(value)} is not known; use some of: {', '.join(SHARDINGS)}")
        elif key in (PARTITION, RECOMPUTE_LEVEL):
            if key != PARTITION or value not in (BALANCED, SEARCHED):
                Layout(**{key.partition(".")[2]: value})
        elif type(value) is not int or value < 1:
            raise ConfigError(f"{key}: {shown(value)} must be a whole number of at least 1, such as 2")


def schedules_run_by(framework: str | None) -> list[str]:
    """Return the families that a framework runs, in the order of the registry; None stands for any framework.

    Raises ConfigError for an unknown framework.
    """
    if framework is not None and framework not in SCHEDULES:
        raise ConfigError(f"framework={shown(framework)} is not known; use one of: {', '.join(SCHEDULES)}")
    chosen = [*SCHEDULES] if framework is None else [framework]
    return [name for name in families() if any(name in SCHEDULES[one] for one in chosen)]
