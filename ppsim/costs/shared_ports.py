"""Ports from nodes: each device's own port out and in, and the network cards that the devices of a node share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ppsim.base.errors import CostError, shown
from ppsim.costs.table import CostModel, CostTable

if TYPE_CHECKING:
    from ppsim.schedule.columns import ScheduleColumns


@dataclass(frozen=True)
class SharedPorts:
    """Other costs with links that share ports.

    A transfer takes a place at its sender's port out and its receiver's port in; between nodes also one of the sending
    node's network cards out and of the receiving node's cards in. Who finds no place waits in line; docs/glossary.md
    has the rule.

    Parameters
    ----------
    costs : CostModel
        Prices everything else.
    nodes : sequence of int >= 0
        Node of each pipeline device.
    cards_per_node : int >= 1
        Transfers between nodes that a node sends, and receives, at once at full rate.
    transfers_per_device : int >= 1
        Transfers that a device sends, and receives, at once at full rate.

    Raises
    ------
    CostError
        A number is not legal; on use, when `nodes` does not list every device.
    """

    costs: CostModel
    nodes: Sequence[int]
    cards_per_node: int = 1
    transfers_per_device: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.nodes, str) or not isinstance(self.nodes, Sequence) or not all(map(_is_node, self.nodes)):
            raise CostError(f"nodes={shown(self.nodes)} must list the node of each device, such as [0, 0, 1, 1]")
        for name in ("cards_per_node", "transfers_per_device"):
            value = getattr(self, name)
            if not _is_node(value) or value < 1:
                raise CostError(f"{name}={shown(value)} must be a whole number of at least 1")

    def table(self, schedule: ScheduleColumns) -> CostTable:
        """The costs of `schedule` with its ports."""
        if len(self.nodes) != schedule.devices:
            raise CostError(
                f"nodes lists {len(self.nodes)} devices, but the schedule has {schedule.devices}; list the node of each"
            )
        device = np.arange(schedule.devices)
        names, node = np.unique(self.nodes, return_inverse=True)
        first_card = 2 * len(device)
        out = np.stack([device, first_card + node], axis=1)
        into = np.stack([len(device) + device, first_card + len(names) + node], axis=1)
        ways = np.concatenate(np.broadcast_arrays(out[:, None, :], into[None, :, :]), axis=2).astype(np.int32)
        same = node[:, None] == node[None, :]
        ways[same] = np.where([True, False, True, False], ways[same], -1)
        capacity = np.repeat([self.transfers_per_device, self.cards_per_node], [2 * len(device), 2 * len(names)])
        return replace(self.costs.table(schedule), link_ports=ways, port_capacity=capacity)

    @property
    def provenance(self) -> Mapping[str, str]:
        """Where each parameter comes from."""
        return {**getattr(self.costs, "provenance", {}), "nodes": "given", "cards_per_node": "given"}


def _is_node(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(0 <= value < 2**31)
