"""The host: it starts every kernel of an eager framework, and a GPU with little work waits for it.

A layer takes as long as its GPU or its host, whichever is longer. A host that is faster than its GPU runs ahead of it
and fills a queue, from which the GPU takes later layers; the end of a pass empties it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ppsim.costs.layers import Layer
from ppsim.costs.networks import group_of
from ppsim.costs.setup import Setup

# Seconds to prepare and start one product or cast of one expert: 8 of 128 tokens, which take the GPU 1 µs each, last
# 0.272 ms (NVIDIA/TransformerEngine, pull request 3134; issue 1499 names the parts). Of it the GPU sees `start`.
EXPERT_START = 34e-6
# Starts of an embedding, with the batch and its masks, and of a head with its loss, each way: kernels of Megatron-LM's
OUTSIDE = 50  # pretrain_gpt.py and core/tensor_parallel, layers.py and cross_entropy.py


class LayerTimes(NamedTuple):
    """Seconds of one layer's F or B on its GPU and on its host."""

    gpu: float
    host: float


def start_seconds(setup: Setup) -> float:
    """Return the seconds of one start of a kernel; 0 where nothing waits for the host.

    That is under CUDA graphs and compilers that fuse, and with an achieved fraction, which contains the waiting. Graphs
    do not start the products of single experts, whose sizes change with the tokens that they get.
    """
    layout, device = setup.layout, setup.cluster.device
    spared = layout.chosen("cuda_graphs") or (layout.run_by.host.compiled and layout.chosen("fused"))
    return 0.0 if spared or device.achieved is not None or device.operators is None else device.operators.start


def host_seconds(setup: Setup, layer: Layer, recomputed: bool = False) -> tuple[float, float]:
    """Return the seconds that the host takes to start the kernels of a layer's F, and of its B.

    `recomputed`: B repeats the starts of F.
    """
    start = start_seconds(setup)
    ways = block_starts(setup, layer) if layer.recomputable else (OUTSIDE, OUTSIDE)
    each = 0.0 if setup.cluster.device.achieved is not None else EXPERT_START
    forward, backward = (one * start + many * each for one, many in zip(ways, expert_starts(setup, layer), strict=True))
    return forward, backward + (recomputed and layer.recomputable) * forward


def block_starts(setup: Setup, layer: Layer) -> tuple[float, float]:
    """Return the starts of a block in F and in B, without those of single experts."""
    layout, host, routed = setup.layout, setup.layout.run_by.host, layer.expert_parameters > 0
    each_way = host.tensor * (layout.tensor > 1) + layout.router_kernels * routed
    gathers, sharded = host.gathers * (layout.optimizer_groups[0] > 1), layout.shards_by("block")
    parts = (
        (host.latent, any(linear.module == "latent" for linear in layer.operators.products)),
        (host.shared, routed and setup.model.shared_experts > 0),
        (host.exchange, routed and layout.regroups(setup.model) > 0),
    )
    forward, backward = (
        own + (hooks + gathers) * sharded + each_way + sum(part[way] * there for part, there in parts)
        for way, (own, hooks) in enumerate(zip(host[:2], host.hooks, strict=True))
    )
    return forward, backward


def expert_starts(setup: Setup, layer: Layer) -> tuple[float, float]:
    """Return how many products and casts of single experts the host starts in F of a layer, and in its B."""
    layout, casts = setup.layout, setup.layout.casts
    forward = backward = 0.0
    for linear in () if layout.groups_experts else layer.operators.products:
        experts = linear.copies / layout.expert * linear.expert
        if experts > 1:
            forward, backward = forward + experts, backward + 2 * experts
            if casts and casts.apply_to(linear):
                cast = casts.kernels(experts)
                entering, weights = cast * linear.holds_input, cast * casts.weights
                forward += entering + weights
                backward += cast + weights + entering * (not casts.holds_inputs)
    return forward, backward


def drift_seconds(setup: Setup, layer: Layer, devices: int) -> tuple[float, float]:
    """Return the seconds by which drifting hosts delay a block of a tensor-parallel group each way: hosts, and GPUs.

    On a pipeline of more than one node the hosts wait for each other; in a group of several nodes the GPUs do.
    """
    host, group = setup.layout.run_by.host, group_of(setup.cluster, setup.layout.tensor)
    apart = (group.size > 1) * (len(set(setup.cluster.nodes(devices, setup.layout.gpus_per_device))) > 1)
    apart *= 1 + (group.nodes > 1) / 4
    each = setup.factor("drift") * start_seconds(setup) * layer.recomputable
    return each * host.member * group.size * apart, each * host.node * (group.nodes - 1)


def counting_seconds(setup: Setup, layer: Layer, forward: LayerTimes) -> float:
    """Return the seconds that a block's F lasts longer because hosts of a tensor-parallel group read numbers of tokens.

    Before a plain exchange each host waits for the GPU that knows them, then the GPUs wait for all hosts: F lasts as
    long as host and GPU together. Without such a group a host catches up. Source: NVIDIA/Megatron-LM d98e8a6,
    core/transformer/moe/token_dispatcher.py, _maybe_dtoh_and_synchronize; Megatron-Bridge v0.5.1, known issues.
    """
    layout = setup.layout
    counts = layer.expert_parameters > 0 and min(layout.tensor, layout.expert) > 1 and layout.regroups(setup.model) > 0
    return min(forward) * counts


def stall_seconds(setup: Setup, devices: int, busy: float) -> float:
    """Return the seconds by which messages from and to a stage's neighbours delay a pass of `busy` seconds.

    Each of a message's two headers is looked for again after `poll`; half of it passes after a long pass until a look.
    """
    stall, cluster = setup.layout.run_by.facts.stall, setup.cluster
    nodes = -(-devices * setup.layout.gpus_per_device // cluster.gpus_per_node)
    late = nodes >= stall.nodes or group_of(cluster, setup.layout.tensor).nodes >= stall.group_nodes
    late &= not setup.layout.run_by.asked  # a named version is a release
    each = 2 * stall.poll + min(busy, stall.poll) / 2
    return each * min(devices - 1, 2) * late * bool(start_seconds(setup))


def waiting(layers: Iterable[LayerTimes], blocking: bool) -> float:
    """Return the seconds that the GPU waits for its host in F or B of one stage, with its layers in order.

    A pass begins with an empty queue. A `blocking` host waits for each kernel before it starts the next one.
    """
    if blocking:
        return sum(layer.host for layer in layers)
    gpu = host = busy = 0.0
    for layer in layers:
        host += layer.host
        gpu, busy = max(gpu + layer.gpu, host), busy + layer.gpu
    return gpu - busy
