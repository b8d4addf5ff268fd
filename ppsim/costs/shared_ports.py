"""Ports from nodes: each device's own port out and in, and the network cards that the devices of a node share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ppsim.base.errors import ConfigError, CostError
from ppsim.base.rules import check_fields, declared, described, rule
from ppsim.base.short_repr import short_repr
from ppsim.costs.pairs import of_ways
from ppsim.costs.table import CostModel, CostTable, is_cost_model
from ppsim.schedule.columns import ScheduleColumns


def _is_node(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(0 <= value < 2**31)


_PLACES = rule(lambda value: _is_node(value) and value >= 1, "must be a whole number of at least 1")


@described
@dataclass(frozen=True)
class SharedPorts:
    """Other costs with links that share ports.

    A transfer takes a place at its sender's port out and its receiver's port in; between nodes also one of the sending
    node's network cards out and of the receiving node's cards in. Who finds no place waits in line; docs/glossary.md
    has the rule. Raises CostError where a number is not legal; on use, when `nodes` does not list every device.
    """

    costs: CostModel = declared(
        "what prices everything else",
        rule(is_cost_model, "cannot price a schedule; give ppsim.Costs(forward=..., backward=...)"),
    )
    nodes: Sequence[int] = declared(
        "node of each pipeline device",
        rule(
            lambda nodes: isinstance(nodes, Sequence) and not isinstance(nodes, str) and all(map(_is_node, nodes)),
            "must list the node of each device, such as [0, 0, 1, 1]",
            tuple,
        ),
    )
    cards_per_node: int = declared("transfers between nodes that a node sends, and receives, at once", _PLACES, 1)
    transfers_per_device: int = declared("transfers that a device sends, and receives, at once", _PLACES, 1)

    __repr__ = short_repr

    def __post_init__(self) -> None:
        try:
            check_fields(self)
        except ConfigError as error:
            raise CostError(str(error)) from None

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
        ways = of_ways(node, out, into, np.array([False, True, False, True]))
        capacity = np.repeat([self.transfers_per_device, self.cards_per_node], [2 * len(device), 2 * len(names)])
        return replace(self.costs.table(schedule), link_ports=ways, port_capacity=capacity)

    @property
    def provenance(self) -> Mapping[str, str]:
        """Where each parameter comes from."""
        return {**getattr(self.costs, "provenance", {}), "nodes": "given", "cards_per_node": "given"}
