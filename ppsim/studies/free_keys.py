"""Keys that `choose` can free: their names, the values that are tried for a job, and the schedules that are offered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from ppsim.base.errors import ConfigError, PpsimError
from ppsim.base.rules import argument, choice, whole_number
from ppsim.config import Config, value_at
from ppsim.costs import layout
from ppsim.costs.combined_slot import TWO_STREAM
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.layers import RECOMPUTE
from ppsim.costs.layout import Layout
from ppsim.costs.model import Model
from ppsim.costs.operators import RECIPES
from ppsim.costs.partition import BALANCED
from ppsim.frameworks import (
    EXPERT_SCHEDULES,
    SCHEDULES,
    SearchedLayouts,
    framework,
    frameworks_running,
    searched_layouts,
)
from ppsim.launch import launch_faults
from ppsim.launch.reading import effective
from ppsim.search import families, find_family, split_stages


class Key:
    """Dotted keys of a config that `choose` can free, and those that follow from them."""

    TENSOR, CONTEXT, DATA, EXPERT = "layout.tensor", "layout.context", "layout.data", "layout.expert"
    MICROBATCH_SIZE, PARTITION, RECOMPUTE_LEVEL = "layout.microbatch_size", "layout.partition", "layout.recompute"
    DEVICES, MICROBATCHES = "schedule.devices", "schedule.microbatches"
    STAGES, OFFLOAD = "schedule.stages_per_device", "schedule.offload"
    RECOMPUTE_BLOCKS, EXPERT_TENSOR = "layout.recompute_blocks", "layout.expert_tensor"
    EXCHANGE, GROUPED, OVERLAP = "layout.expert_exchange", "layout.grouped_experts", "layout.overlap"
    FUSED_ROUTER, FP8, SEQUENCE = "layout.fused_router", "layout.fp8", "layout.sequence_parallel"
    OVERLAP_TENSOR, OVERLAP_DATA = "layout.overlap_tensor", "layout.overlap_data"
    STATE = "layout.optimizer_bytes"
    SHARDING = "layout.sharding"  # sets the keys of SHARDINGS and `REPLICAS`
    REPLICAS = "layout.replicas"


OVERLAPS = Key.OVERLAP_TENSOR, Key.OVERLAP_DATA
# Keys that change no size of a layout.
POLICY_KEYS = (
    Key.RECOMPUTE_LEVEL, Key.EXCHANGE, Key.GROUPED, Key.FUSED_ROUTER, Key.OVERLAP, *OVERLAPS, Key.SEQUENCE, Key.STATE,
)  # fmt: skip
# Keys that are free only if the user names them. fp8 changes the numerics of training, and offload needs a fast host.
# Numbers of blocks that recompute are tried for ranked points only.
OPT_IN = (Key.FP8, Key.OFFLOAD, Key.RECOMPUTE_BLOCKS)
COMBINED = tuple(name for names in EXPERT_SCHEDULES.values() for name in names)
ONE_DEVICE = "1f1b"  # on one device all families are equal; this one is tried
SEARCHED = "searched"  # a partition of ranked points only: the fastest stages by simulation
# by name: the keys of a layout that a kind of sharding sets
SHARDINGS: Mapping[str, Mapping[str, bool]] = {
    kind: {f"layout.{key}": value for key, value in keys.items()} for kind, keys in layout.SHARDINGS.items()
}
# Numbers of stages per device up to this are all tried. A larger one is tried if the stages divide the layers evenly,
# with or without embedding and head.
MAX_STAGES = 8
BLOCKS_RECOMPUTED = (1, 2, 3, 4, 6, 8, 12)  # numbers of blocks of a stage that may recompute
MIN_TOKENS = 4096  # minimum tokens of a sequence per GPU under context parallelism

Changes = dict[str, Any]  # dotted key -> value
Needs = Mapping[str, Mapping[str, Any]]  # by schedule: fields of a layout that a framework runs it with


def sharding_of(changes: Mapping[str, Any]) -> str | None:
    """Return the name in SHARDINGS of a point's sharding; None if its changes do not set it."""
    kind = next((name for name, keys in SHARDINGS.items() if keys.items() <= changes.items()), None)
    return "hybrid" if kind == "weights" and changes.get(Key.REPLICAS, 1) > 1 else kind


@dataclass(frozen=True)
class Job:
    """Job on which the values of a free key depend."""

    config: Config
    gpus: int
    batch: int
    asynchronous: bool
    framework: str | None
    research: bool

    @property
    def searched(self) -> SearchedLayouts:
        """Layouts that the framework has."""
        return searched_layouts(self.framework, value_at(self.config.data, "layout.framework"))


def lacks(data: Mapping[str, Any], key: str, value: Any) -> bool:
    """Return whether the version of a framework that a config names lacks a value of a key."""
    named = value_at(data, "layout.framework")
    if named is None:
        return False
    if key == Key.SHARDING:
        keys = {**SHARDINGS[value], Key.REPLICAS: 2 if value == "hybrid" else 1}
        return any(lacks(data, *item) for item in keys.items())
    if key in ("layout.sharded", "layout.sharded_gradients") and value and value_at(data, "layout.fp8_gather"):
        value = f"fp8 {value_at(data, Key.FP8)}"
    if key == Key.RECOMPUTE_LEVEL and value not in (None, "none") and value_at(data, "layout.cuda_graphs"):
        value = f"{value}+graphs"
    return framework(named).lacks(key, value)


def divisors(number: int, limit: int = 2**30) -> list[int]:
    """Return the divisors of a number up to `limit`, in rising order."""
    return [count for count in range(1, min(number, limit) + 1) if number % count == 0]


def _tensor_sizes(job: Job) -> list[int]:
    """Return the sizes within a node that divide the attention heads."""
    costs = job.config.costs
    if not isinstance(costs, DerivedCosts):
        return []
    return [size for size in divisors(costs.model.heads, costs.cluster.gpus_per_node) if job.gpus % size == 0]


def _context_sizes(job: Job) -> list[int]:
    model = job.config.model
    limit = model.sequence // MIN_TOKENS if model else 1
    return [size for size in (1, 2, 4, 8, 16, 32) if model and model.sequence % size == 0 and size <= max(limit, 1)]


def _names(job: Job) -> list[str]:
    """Return the families without a search that a framework launches in these layouts, or all if requested."""
    model, launched = job.config.model, () if job.research else job.searched.runners
    offered = schedules_run_by(job.framework, model, job.research, launched if model else ())
    return [
        name
        for name, family in families().items()
        if not family.searches and (job.asynchronous if family.asynchronous else name in offered)
    ]


def useful_levels(model: Model, known: Iterable[str]) -> list[str]:
    """Return the levels, of those that a framework has flags for, that free something of the model."""
    has = {"selective": model.attention == "full", "activations": model.experts > 0, "latent": model.key_value_rank > 0}
    has |= {"streams": model.residual_streams > 1, "mlp": not model.experts}
    levels = [one for one in known if all(has.get(module, True) for module in one.split("+"))]
    # With experts, a level is worse than the same level that also recomputes their activations.
    return [one for one in levels if not any(other.startswith(f"{one}+act") for other in levels)]


def _recompute_levels(job: Job) -> list[str]:
    if job.config.model is None:
        return [*RECOMPUTE]
    return [*useful_levels(job.config.model, job.searched.recompute), *["norms+activations+up"] * job.research]


def _if_experts(values: list[Any], others: list[Any] | None = None) -> Callable[[Job], list[Any]]:
    """Return the values for a model with experts: `others`, if given, for frameworks that have no flag for the key."""
    return lambda job: (
        [*(values if others is None or job.searched.flags else others)]
        if job.config.model and job.config.model.experts
        else []
    )


def _states(job: Job) -> list[Any]:
    """Return the bytes of optimizer state with which every number of training is as with the framework's own (None)."""
    in_bf16 = value_at(job.config.data, Key.FP8) in (None, "none")
    return [None, *job.searched.states] if job.searched.states and in_bf16 else []


def _fp8_recipes(job: Job) -> list[str]:
    costs = job.config.costs
    known = isinstance(costs, DerivedCosts) and costs.cluster.device.peak_fp8 is not None
    return [*RECIPES] if known else ["none"]


# Key -> its values for a job. layout.data and schedule.microbatches follow from the GPUs and the batch.
FREE: dict[str, Callable[[Job], list[Any]]] = {
    Key.TENSOR: _tensor_sizes,
    Key.CONTEXT: _context_sizes,
    Key.EXPERT: lambda job: divisors(job.config.model.experts, job.gpus) if job.config.model else [],
    Key.MICROBATCH_SIZE: lambda job: [size for size in (1, 2, 4, 8, 16) if size <= job.batch],
    Key.RECOMPUTE_LEVEL: _recompute_levels,
    Key.RECOMPUTE_BLOCKS: lambda job: [
        None,  # all of a stage's blocks
        *(count for count in BLOCKS_RECOMPUTED if job.config.model and count < job.config.model.num_layers),
    ],
    # It is never slower, and frameworks overlap the collectives only with it.
    Key.SEQUENCE: lambda job: [True] if job.config.model else [],
    # `none` is slower and larger than every other kind.
    Key.SHARDING: lambda job: [kind for kind in job.searched.shardings if kind != "none"],
    Key.STATE: _states,
    Key.EXPERT_TENSOR: _if_experts([None, 1], [1]),
    Key.EXCHANGE: _if_experts(["all-to-all", "hierarchical"], ["all-to-all"]),
    Key.GROUPED: _if_experts([True]),
    Key.FUSED_ROUTER: _if_experts([True], []),
    # Overlap is never slower: it is on if the framework has a flag for it.
    Key.OVERLAP_TENSOR: lambda job: [True] * job.searched.flags,
    Key.OVERLAP_DATA: lambda job: [True] * job.searched.flags,
    Key.OVERLAP: lambda job: (
        [False, TWO_STREAM] if {*COMBINED} & {*schedules_run_by(job.framework, job.config.model, job.research)} else []
    ),
    Key.FP8: _fp8_recipes,
    Key.PARTITION: lambda job: ["even", BALANCED, SEARCHED],
    Key.DEVICES: lambda job: divisors(job.gpus, job.config.model.num_layers + 2 if job.config.model else job.gpus),
    "schedule.name": _names,
    Key.STAGES: lambda job: [*range(2, 21 if job.config.model else MAX_STAGES + 1)],
    Key.OFFLOAD: lambda job: [None, "all", "first:1"],
}


def check_values(key: str, values: Iterable[Any]) -> None:
    """Raise ConfigError unless the key can have every value."""
    for value in values:
        if key == "schedule.name":
            find_family(split_stages(value)[0])
        elif key == Key.SHARDING:
            argument(key, value, choice(*SHARDINGS))
        elif key == Key.OFFLOAD or value is None:
            continue  # each config checks it
        elif key in (Key.PARTITION, Key.FP8, *POLICY_KEYS):
            if key != Key.PARTITION or value != SEARCHED:
                Layout(**{key.partition(".")[2]: value})
        else:
            argument(key, value, whole_number())


def schedules_run_by(
    framework: str | None, model: Model | None = None, research: bool = False, runners: Iterable[str] = ()
) -> list[str]:
    """Return the families that a framework runs with the model unchanged, in the order of the registry.

    This is the rule for what `choose`, `advise`, `fits` and `compare` offer. None means any framework, or any of
    `runners`; `research` then adds the families that no framework runs. Raises ConfigError for an unknown framework.
    """
    if framework is not None:
        argument("framework", framework, choice(*SCHEDULES))
    experts, wanted = model is not None and model.experts > 0, {framework} if framework else {*(runners or SCHEDULES)}
    return [one for one in families() if wanted & {*frameworks_running(one, experts)} or (research and not framework)]


def needed(costs: object, needs: Mapping[str, Any], free: Iterable[str] = (*OVERLAPS, Key.OVERLAP)) -> Changes:
    """Return the `free` keys that a framework needs changed to run a schedule; none for costs without a layout."""
    if not isinstance(costs, DerivedCosts):
        return {}
    other = {f"layout.{key}": value for key, value in needs.items() if effective(costs.layout, key) != value}
    return {key: other[key] for key in free if key in other}


def faults_by_runner(
    layouts: Iterable[object], runners: Iterable[str], needs: Needs, name: str = ONE_DEVICE, devices: int = 1
) -> dict[str, list[str]]:
    """Return why each of some frameworks launches a schedule in none of the layouts, given as costs.

    The reasons are those of the layout with the fewest; there are none for a framework that launches one of them.
    """
    found: dict[str, list[str]] = {}
    for costs in layouts:
        with suppress(PpsimError):
            schedule = find_family(name).columns(devices, 2 * devices)
            if isinstance(costs, DerivedCosts):
                policies = {key.partition(".")[2]: value for key, value in needed(costs, needs.get(name, {})).items()}
                policies |= {"partition": BALANCED, "first_stage_layers": None, "last_stage_layers": None}
                costs = costs.with_layout(replace(costs.layout, **policies))
            for runner in (runner for runner in runners if found.get(runner) != []):
                faults = launch_faults(costs, schedule, 2 * devices, (runner,))
                found[runner] = min(found.get(runner, faults), faults, key=lambda texts: len("".join(texts)))
        if found and not any(found.values()):
            break
    return found


def names_run_by(framework: str, given: list[str], model: Model | None) -> list[str]:
    """Return those of the given schedules that a framework runs; ConfigError if there is none."""
    known = schedules_run_by(framework, model)
    kept = [name for name in given if split_stages(name)[0] in known]
    if not kept:
        raise ConfigError(
            f"schedule.name: {framework} runs none of {', '.join(given)}; use some of: {', '.join(known)}"
        )
    return kept
