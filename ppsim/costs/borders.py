"""Borders between stages: the width of what crosses them, and the links and cards that it uses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ppsim.costs.layers import Layer
from ppsim.costs.model import Model
from ppsim.costs.pairs import ports_by_node, values_by_node
from ppsim.costs.shape import border_width
from ppsim.costs.sheets import Cluster


class Stage(NamedTuple):
    """Layers of a stage, and its recompute level."""

    layers: tuple[Layer, ...]
    recompute: str


def border_widths(model: Model, stages: Sequence[Stage]) -> np.ndarray:
    """Return how many activations each stage sends in F and in B, (2, stages): `border_width` of its borders."""
    after = [*_widths(model, stages[:-1]), 1]
    return np.array([after, [1, *after[:-1]]], np.float64)


def _widths(model: Model, stages: Sequence[Stage]) -> Iterator[int]:
    before = Counter[str]()
    for stage in stages:
        before.update(layer.name for layer in stage.layers)
        yield border_width(model, before["block"], before["prediction"], before["head"])


def link_columns(cluster: Cluster, group: int, devices: int) -> dict[str, Any]:
    """Return the columns of transfers by pair of devices: link or network, and the network cards they use."""
    nodes = np.array(cluster.nodes(devices, group))
    link, network = cluster.link, cluster.network_of_group(group)
    return card_columns(cluster, [(group, devices)]) | {
        "latency": values_by_node(nodes, link.latency, network.latency),
        "seconds_per_byte": values_by_node(nodes, 1 / link.bandwidth, 1 / network.bandwidth),
    }


def card_columns(cluster: Cluster, towers: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return the columns of network cards, for towers of (GPUs per device, devices), each from a node of its own."""
    if cluster.cards_per_node is None:
        return {}
    cards = np.concatenate([
        np.insert(cluster.cards_of_devices(devices, group), 0, tower, axis=1)
        for tower, (group, devices) in enumerate(towers)
    ])  # fmt: skip
    _, node = np.unique(cards[:, :2], axis=0, return_inverse=True)
    _, card = np.unique(cards, axis=0, return_inverse=True)
    out = 2 * card.reshape(-1, 1)
    ports = ports_by_node(node.reshape(-1), out, out + 1, np.ones(2, bool))
    return {"link_ports": ports, "port_capacity": np.ones(2 * (card.max() + 1), np.int64)}
