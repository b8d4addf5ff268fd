"""The host: it starts every kernel of an eager framework, and a GPU with little work waits for it.

A layer takes as long as its GPU or its host, whichever is longer. A host that is faster than its GPU runs ahead of it
and fills a queue, from which the GPU takes later layers; a transfer of a pipeline empties the queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from ppsim.costs.layers import Layer
from ppsim.costs.networks import group_of
from ppsim.costs.setup import Setup

PAIRS = 2  # rounds of F and B until the queue is as full as it stays


class LayerTimes(NamedTuple):
    """Seconds of one layer's F or B on its GPU and on its host."""

    gpu: float
    host: float


def start_seconds(setup: Setup) -> float:
    """Return the seconds of one start of a kernel; 0 where nothing waits for the host.

    That is under CUDA graphs and compilers that fuse, and with an achieved fraction, which contains the waiting.
    """
    layout, device = setup.layout, setup.cluster.device
    spared = layout.chosen("cuda_graphs") or (layout.run_by.host.compiled and layout.chosen("fused"))
    return 0.0 if spared or device.achieved is not None or device.operators is None else device.operators.start


def host_seconds(setup: Setup, layer: Layer, recomputed: bool = False) -> tuple[float, float]:
    """Return the seconds that the host takes to start the kernels of a layer's F, and of its B.

    `recomputed`: B repeats the starts of F.
    """
    host, start = setup.layout.run_by.host, start_seconds(setup)
    head = host.head * layer.losses
    forward, backward = (host.forward, host.backward) if layer.recomputable else (head, head)
    return forward * start, (backward + recomputed * forward) * start


def drift_seconds(setup: Setup, layer: Layer, devices: int) -> tuple[float, float]:
    """Return the seconds by which drifting hosts delay a block of a tensor-parallel group each way: hosts, and GPUs.

    On a pipeline of more than one node the hosts wait for each other; in a group of several nodes the GPUs do.
    """
    host, group = setup.layout.run_by.host, group_of(setup.cluster, setup.layout.tensor)
    apart = len(set(setup.cluster.nodes(devices, setup.layout.gpus_per_device))) > 1
    each = setup.factor("drift") * start_seconds(setup) * layer.recomputable
    return each * host.member * (group.size - 1) * apart, each * host.node * (group.nodes - 1)


def stall_seconds(setup: Setup, devices: int) -> float:
    """Return the seconds by which messages from and to a stage's neighbours delay each pass on `devices` devices."""
    stall, cluster = setup.layout.run_by.facts.stall, setup.cluster
    nodes = -(-devices * setup.layout.gpus_per_device // cluster.gpus_per_node)
    late = nodes >= stall.nodes or group_of(cluster, setup.layout.tensor).nodes >= stall.group_nodes
    return stall.seconds * min(devices - 1, 2) * late * bool(start_seconds(setup))


def waiting(forward: Sequence[LayerTimes], backward: Sequence[LayerTimes], runs_ahead: bool) -> tuple[float, float]:
    """Return the seconds that the GPU waits for its host in F and in B of one stage.

    Parameters
    ----------
    forward, backward : sequence of LayerTimes
        The stage's layers, in the order in which each pass runs them.
    runs_ahead : bool
        If the host starts an action while the GPU still runs the one before it.
    """
    if not runs_ahead:
        return _waiting(forward, 0.0)[0], _waiting(backward, 0.0)[0]
    ahead, waits = 0.0, [0.0, 0.0]
    for _ in range(PAIRS):
        for at, layers in enumerate((forward, backward)):
            waits[at], ahead = _waiting(layers, ahead)
    return waits[0], waits[1]


def _waiting(layers: Iterable[LayerTimes], ahead: float) -> tuple[float, float]:
    """Return the seconds of waiting, and by how much the host is ahead at the end, if it is `ahead` at the start."""
    gpu, host, busy = 0.0, -ahead, 0.0
    for layer in layers:
        host += layer.host
        gpu, busy = max(gpu + layer.gpu, host), busy + layer.gpu
    return gpu - busy, max(gpu - host, 0.0)
