"""The keys that `choose` may leave open, and the values that it tries where none are named."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ppsim.base.errors import ConfigError, shown
from ppsim.config import Config
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.layers import RECOMPUTE
from ppsim.costs.layout import Layout
from ppsim.search import families, find_family, split_stages

TENSOR, CONTEXT, DATA, EXPERT = "layout.tensor", "layout.context", "layout.data", "layout.expert"
MICROBATCH_SIZE, PARTITION, RECOMPUTE_LEVEL = "layout.microbatch_size", "layout.partition", "layout.recompute"
DEVICES, MICROBATCHES = "schedule.devices", "schedule.microbatches"
BALANCED = "balanced"  # a partition: balanced over devices, as a layout string
SEARCHED = "searched"  # a partition of ranked points alone: their fastest stages, sought with simulated steps
SHARDINGS: Mapping[str, Mapping[str, bool]] = {
    "none": {"layout.distributed_optimizer": False, "layout.sharded": False},
    "optimizer": {"layout.distributed_optimizer": True, "layout.sharded": False},
    "weights": {"layout.distributed_optimizer": False, "layout.sharded": True},
}
SHARDING = "layout.sharding"  # stands for the two keys of SHARDINGS
LEAST_TOKENS = 4096  # of a sequence on one GPU: context parallelism cuts no finer


def sharding_of(changes: Mapping[str, Any]) -> str | None:
    """The name in SHARDINGS of what a point shards; None where it does not say."""
    return next((name for name, keys in SHARDINGS.items() if keys.items() <= changes.items()), None)


@dataclass(frozen=True)
class Context:
    """What the values of a free key depend on."""

    config: Config
    gpus: int
    batch: int
    asynchronous: bool


def _divisors(number: int, most: int) -> list[int]:
    return [count for count in range(1, min(number, most) + 1) if number % count == 0]


def _tensor_sizes(context: Context) -> list[int]:
    """Within a node, and what divides the attention heads."""
    costs = context.config.costs
    if not isinstance(costs, DerivedCosts):
        return []
    return [size for size in _divisors(costs.model.heads, costs.cluster.gpus_per_node) if context.gpus % size == 0]


def _context_sizes(context: Context) -> list[int]:
    model = context.config.model
    most = model.sequence // LEAST_TOKENS if model else 1
    return [size for size in (1, 2, 4, 8) if model and model.sequence % size == 0 and size <= max(most, 1)]


def _expert_sizes(context: Context) -> list[int]:
    model = context.config.model
    return _divisors(model.experts, context.gpus) if model and model.experts else []


def _device_counts(context: Context) -> list[int]:
    most = context.config.model.num_layers + 2 if context.config.model else context.gpus
    return _divisors(context.gpus, most)


def _microbatch_sizes(context: Context) -> list[int]:
    return [size for size in (1, 2, 4) if size <= context.batch]


def _names(context: Context) -> list[str]:
    """The families that need no search."""
    return [
        name
        for name, family in families().items()
        if "costs" not in family.options and (context.asynchronous or not family.asynchronous)
    ]


def _recompute_levels(context: Context) -> list[str]:
    """Selective recompute drops only attention scores that are held."""
    model = context.config.model
    return [level for level in RECOMPUTE if level != "selective" or (model and model.attention == "full")]


# Key -> its values at a config. layout.data and schedule.microbatches follow from the GPUs and the batch.
FREE: dict[str, Callable[[Context], list[Any]]] = {
    TENSOR: _tensor_sizes,
    CONTEXT: _context_sizes,
    EXPERT: _expert_sizes,
    MICROBATCH_SIZE: _microbatch_sizes,
    RECOMPUTE_LEVEL: _recompute_levels,
    SHARDING: lambda context: list(SHARDINGS),
    PARTITION: lambda context: ["even", BALANCED, SEARCHED],
    DEVICES: _device_counts,
    "schedule.name": _names,
    "schedule.stages_per_device": lambda context: [2, 3, 4, 5, 6, 8],
}


def check_values(key: str, values: Iterable[Any]) -> None:
    """ConfigError unless every value is one that the key can have."""
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
