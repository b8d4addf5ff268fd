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
    columns: dict[str, Any] = {
        "latency": values_by_node(nodes, link.latency, network.latency),
        "seconds_per_byte": values_by_node(nodes, 1 / link.bandwidth, 1 / network.bandwidth),
    }
    if cluster.cards_per_node is not None:
        _, card = np.unique(cluster.cards_of_devices(devices, group), axis=0, return_inverse=True)
        out, into = 2 * card.reshape(-1, 1), 2 * card.reshape(-1, 1) + 1
        columns["link_ports"] = ports_by_node(nodes, out, into, np.ones(2, bool))
        columns["port_capacity"] = np.ones(2 * (card.max() + 1), np.int64)
    return columns
