"""Costs with links that share ports, for tests."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ppsim.costs import CostModel, CostTable, ports_by_node


@dataclass(frozen=True)
class SharedPorts:
    """A transfer occupies a port of its sender and one of its receiver; between nodes also a card of both nodes."""

    costs: CostModel
    nodes: Sequence[int]
    cards_per_node: int = 1

    def table(self, schedule) -> CostTable:
        device = np.arange(schedule.devices)
        names, node = np.unique(self.nodes, return_inverse=True)
        first_card = 2 * len(device)
        out = np.stack([device, first_card + node], axis=1)
        into = np.stack([len(device) + device, first_card + len(names) + node], axis=1)
        ports = ports_by_node(node, out, into, np.array([False, True, False, True]))
        capacity = np.repeat([1, self.cards_per_node], [2 * len(device), 2 * len(names)])
        return replace(self.costs.table(schedule), link_ports=ports, port_capacity=capacity)
