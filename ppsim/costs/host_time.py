"""Host time: the host launches every kernel of an eager framework, and a GPU with little work waits for it.

A layer takes as long as its GPU or its host, whichever is longer. A host that is faster than its GPU runs ahead of it
and fills a queue, from which the GPU takes later layers; the end of a pass empties it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ppsim.costs.layers import Layer
from ppsim.costs.networks import group_of
from ppsim.costs.operators import SCORES_AGAIN
from ppsim.costs.setup import Setup

# Seconds to prepare and launch one product or cast of one expert: 8 of 128 tokens, which take the GPU 1 µs each, last
# 0.272 ms (NVIDIA/TransformerEngine, pull request 3134; issue 1499 names the parts). Of it the GPU sees `start`.
EXPERT_LAUNCH = 34e-6

# Fraction of a plain exchange's kernels before its first message (token counts, permutation), which router graphs hold.
GRAPHED_FRACTION = 1 / 2


class LayerTimes(NamedTuple):
    """Seconds of one layer's F or B on its GPU and on its host."""

    gpu: float
    host: float


def launch_seconds(setup: Setup) -> float:
    """Return the host's seconds per kernel launch; 0 if nothing waits for the host.

    The host is free under CUDA graphs and fusing compilers; an achieved fraction already contains its time.
    Graphs do not launch the products of single experts, whose sizes change with the tokens that they get.
    """
    layout, device = setup.layout, setup.cluster.device
    is_compiled = layout.run_by.facts.host.compiled and layout.chosen("fused")
    if is_compiled or layout.chosen("cuda_graphs") is True or device.achieved is not None or device.operators is None:
        return 0.0
    return device.operators.start


def _expert_launch(setup: Setup) -> float:
    return EXPERT_LAUNCH if setup.cluster.device.achieved is None else 0.0


def step_launch_seconds(setup: Setup) -> float:
    """Return the seconds that a device waits for its host between two steps; 0 with an achieved fraction.

    The host reads the norm of all gradients: Megatron-LM d98e8a6, training.py, train_step, and docs/accuracy-runs.md
    """
    law = setup.cluster.device.operators if setup.cluster.device.achieved is None else None
    return law.start * setup.layout.run_by.facts.host.step if law else 0.0


def host_seconds(setup: Setup, layer: Layer, recompute: str = "none") -> tuple[float, float]:
    """Return the host's seconds to launch the kernels of a layer's F, and of its B with its recomputation."""
    launch, expert_launch = launch_seconds(setup), _expert_launch(setup)
    launches = block_launches(setup, layer) if layer.recomputable else (0, 0)
    forward, backward = (
        count * launch + experts * expert_launch + ring
        for count, experts, ring in zip(
            launches, expert_launches(setup, layer), ring_seconds(setup, layer), strict=True
        )
    )
    again = layer.repeated(recompute)
    return forward, backward + (host_seconds(setup, again)[0] if again else 0.0)


def block_launches(setup: Setup, layer: Layer) -> tuple[float, float]:
    """Return the kernel launches of a block in F and in B, without those of single experts."""
    layout, host = setup.layout, setup.layout.run_by.facts.host
    launches = [(host.forward, host.backward)] if layer.name != "mlp" else []
    if layout.shards_by("block") and launches:
        launches.append(host.hooks)
        if layout.optimizer_groups[0] > 1:
            launches.append((host.gathers, host.gathers))
    if layout.tensor > 1:
        launches.append(host.tensor)
    if any(linear.module == "latent" for linear in layer.operators.products):
        launches.append(host.latent)
    if layer.expert_parameters:
        graphed = layout.chosen("cuda_graphs") == "router"
        router, exchange_fraction = (0, 1 - GRAPHED_FRACTION) if graphed else (layout.router_kernels, 1)
        launches.append((router, router))
        if setup.model.shared_experts:
            launches.append(host.shared)
        if layout.extra_permutes(setup.model):
            launches.append((exchange_fraction * host.exchange[0], exchange_fraction * host.exchange[1]))
    return sum(forward for forward, _ in launches), sum(backward for _, backward in launches)


def ring_seconds(setup: Setup, layer: Layer) -> tuple[float, float]:
    """Return the host's seconds in F and in B for the parts of a ring of context parallelism, beyond its attention's.

    The first part is that of a block without a ring. A GPU that attends for longer than its host starts the parts hides
    them, also if hosts later wait for numbers of tokens.
    """
    layout, ring, launch = setup.layout, setup.layout.run_by.facts.host.ring, launch_seconds(setup)
    if layout.context == 1 or layout.chosen("context_exchange") != "ring" or not (layer.attention_core and launch):
        return 0.0, 0.0
    core, parts = setup.work(layer).core, layout.context - 1
    return max(parts * ring[0] * launch - core, 0.0), max(parts * ring[1] * launch - 2 * SCORES_AGAIN * core, 0.0)


def expert_launches(setup: Setup, layer: Layer) -> tuple[float, float]:
    """Return the number of calls that launch products and casts of single experts, in a layer's F, and in its B."""
    layout, casts = setup.layout, setup.layout.casts
    if layout.groups_experts:
        return 0.0, 0.0
    forward = backward = 0.0
    for linear in layer.operators.products:
        experts = linear.copies / layout.expert
        if not linear.expert or experts <= 1:
            continue
        forward, backward = forward + experts, backward + 2 * experts
        if casts.apply_to(linear):
            cast = 1 if casts.recipe == "delayed" else experts  # one call: TransformerEngine's cast.cpp, split_quantize
            inputs, weights = cast if linear.holds_input else 0, cast if casts.weights else 0
            forward += inputs + weights
            backward += cast + weights + (0 if casts.holds_inputs else inputs)
    return forward, backward


def drift_seconds(setup: Setup, layer: Layer, devices: int) -> tuple[float, float]:
    """Return the seconds per pass of a block that its host, and its GPU, wait for slower hosts of the tensor group.

    On a pipeline of more than one node the hosts wait for each other; in a group of several nodes the GPUs do.
    """
    host, group = setup.layout.run_by.facts.host, group_of(setup.cluster, setup.layout.tensor)
    if group.size == 1 or not layer.recomputable:
        return 0.0, 0.0
    each = setup.factor("drift") * launch_seconds(setup)
    of_host = each * host.member * group.size * (1.25 if group.nodes > 1 else 1)
    has_nodes = len(set(setup.cluster.nodes(devices, setup.layout.gpus_per_device))) > 1
    return of_host if has_nodes else 0.0, each * host.node * (group.nodes - 1)


def counting_seconds(setup: Setup, layer: Layer, forward: LayerTimes, after: float) -> tuple[float, float]:
    """Return the seconds that a block's F waits because its host reads token counts: on its GPU, and for its group.

    The GPU counts the tokens of each expert. The host needs these counts before it starts an exchange and the products
    of single experts. So the GPU waits for these starts if they last longer than the exchange and experts `after` the
    counts; no earlier layer hides them. In a tensor group the GPUs wait for all hosts: F lasts as long as host and GPU
    together. Megatron-LM d98e8a6, core/transformer/moe: token_dispatcher.py, _maybe_dtoh_and_synchronize, and
    fused_a2a.py, where hosts of other kernels wait, too; Megatron-Bridge v0.5.1, known issues.
    """
    layout = setup.layout
    if not layer.expert_parameters:
        return 0.0, 0.0
    if min(layout.tensor, layout.expert) == 1:
        return max(expert_launches(setup, layer)[0] * _expert_launch(setup) - after, 0.0), 0.0
    waits = layout.extra_permutes(setup.model) > 0 or layout.chosen("expert_exchange") == "hierarchical"
    return 0.0, min(forward) if waits else 0.0


def stall_seconds(setup: Setup, devices: int, busy: float) -> float:
    """Return the seconds by which messages from and to a stage's neighbours delay a pass of `busy` seconds.

    The first poll for each of a message's two headers fails; the next comes `poll` seconds later. After a pass of at
    least `poll` seconds, the first poll comes half of `poll` later.
    """
    stall, cluster, run_by = setup.layout.run_by.facts.stall, setup.cluster, setup.layout.run_by
    nodes = -(-devices * setup.layout.gpus_per_device // cluster.gpus_per_node)
    polls = nodes >= stall.nodes or group_of(cluster, setup.layout.tensor).nodes >= stall.group_nodes
    if not polls or run_by.asked or not launch_seconds(setup):  # a named version is a release, which does not poll
        return 0.0
    neighbours = min(devices - 1, 2)
    return (2 * stall.poll + min(busy, stall.poll) / 2) * neighbours


def host_wait_seconds(layers: Iterable[LayerTimes], blocking: bool) -> float:
    """Return the seconds that the GPU waits for its host in F or B of one stage, with its layers in order.

    A pass begins with an empty queue. A `blocking` host waits for each kernel before it launches the next one.
    """
    if blocking:
        return sum(layer.host for layer in layers)
    gpu = host = busy = 0.0
    for layer in layers:
        host += layer.host
        gpu, busy = max(gpu + layer.gpu, host), busy + layer.gpu
    return gpu - busy
