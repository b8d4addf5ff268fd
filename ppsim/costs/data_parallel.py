"""Data parallelism and the optimizer step: seconds of reducing gradients, gathering weights and updating parameters."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ppsim.costs.collectives import all_gather, all_reduce
from ppsim.costs.hardware import Cluster, LinkSheet
from ppsim.costs.layout import GRADIENT_BYTES, WEIGHT_BYTES, Layout

# Adam reads a gradient, the fp32 weight and both moments, and writes the last three and the bf16 weight.
STEP_BYTES = 4 * 4 + 3 * 4 + 2

Held = tuple[float, float]


def reduce_seconds(held: Held, layout: Layout, cluster: Cluster, copies: int = 1) -> float:
    """Seconds of reducing the fp32 gradients of a stage over its data-parallel copies, once a step.

    An all-reduce, or the first half of a ring's where each GPU keeps only its part: ZeRO, Rajbhandari et al. 2020,
    arXiv 1910.02054, section 7.

    `held` are a stage's parameters on one GPU, see `Layout.held`; `copies` devices of a pipeline hold the stage, 2 in a
    bidirectional one.
    """
    keeps_a_part = layout.distributed_optimizer or layout.sharded
    collective = all_gather if keeps_a_part else partial(all_reduce, algorithm=cluster.all_reduce)
    return _over_groups(collective, GRADIENT_BYTES, held, layout, cluster, copies)


def gather_seconds(held: Held, layout: Layout, cluster: Cluster) -> float:
    """Seconds of a ring all-gather of a stage's bf16 weights over its data-parallel copies: UNSHARD."""
    return _over_groups(all_gather, WEIGHT_BYTES, held, layout, cluster, 1)


def optimizer_seconds(held: Held, layout: Layout, cluster: Cluster) -> float | None:
    """Seconds of one Adam step over what a GPU keeps of a stage's optimizer state; None without a memory bandwidth.

    With a distributed optimizer also the gather of the new weights, which sharded weights leave to the next UNSHARD.
    """
    updating = update_seconds(held, layout, cluster)
    return None if updating is None else updating + regather_seconds(held, layout, cluster)


def update_seconds(held: Held, layout: Layout, cluster: Cluster) -> float | None:
    """Seconds of moving 30 bytes a parameter through the GPU's memory; None without a memory bandwidth."""
    bandwidth = cluster.device.memory_bandwidth
    if bandwidth is None:
        return None
    return STEP_BYTES * sum(part / size for part, size in zip(held, layout.optimizer_groups, strict=True)) / bandwidth


def regather_seconds(held: Held, layout: Layout, cluster: Cluster) -> float:
    """Seconds of gathering the new weights that a distributed optimizer leaves in parts; 0 with any other."""
    gathers_weights = layout.distributed_optimizer and not layout.sharded
    return gather_seconds(held, layout, cluster) if gathers_weights else 0.0


def _over_groups(
    collective: Callable[[int, float, LinkSheet], float],
    value_bytes: int,
    held: Held,
    layout: Layout,
    cluster: Cluster,
    copies: int,
) -> float:
    """One collective over the copies of the dense parameters and one over those of the experts, one after the other."""
    distances = (layout.tensor, layout.split_experts * layout.expert)
    total = 0.0
    for parameters, group, distance in zip(held, layout.data_groups, distances, strict=True):
        size = group * copies
        if size > 1 and parameters:
            total += collective(size, value_bytes * parameters, cluster.link_of_ring(size, distance))
    return total
