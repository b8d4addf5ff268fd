"""Cost models made of others: modules that follow each other, and links whose transfers share ports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ppsim.base.errors import ConfigError, CostError, shown
from ppsim.base.rules import check_fields, declared, described, rule
from ppsim.base.short_repr import short_repr
from ppsim.costs.given import Costs
from ppsim.costs.microbatches import check_microbatch_scale, microbatch_factors
from ppsim.costs.pairs import ports_by_node
from ppsim.costs.table import CostModel, CostTable, is_cost_model
from ppsim.schedule.columns import ScheduleColumns

MODULE_COSTS = (
    "forward", "backward", "input_grad", "weight_grad", "recompute", "transfer_bytes", "activation_bytes",
    "weight_bytes", "gradient_bytes", "optimizer_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class Module:
    """Consecutive stages of equal cost, such as an image encoder.

    Attributes
    ----------
    stages : int
        Number of stages that the module is split into.
    costs : mapping
        Seconds and bytes of one average microbatch in the whole module, by names of `Costs` (forward, backward,
        input_grad, weight_grad, recompute, activation_bytes ...); `transfer_bytes` applies to each of its borders.
    microbatch_scale : list of float or mapping, optional
        Factor of each microbatch, such as its number of images, or how to draw them (`Costs.microbatch_scale`).
        Default: microbatches are equal.

    Raises CostError if a value is illegal.
    """

    stages: int
    costs: Mapping[str, Any]
    microbatch_scale: Sequence[float] | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.stages, bool) or not isinstance(self.stages, int) or self.stages < 1:
            raise CostError(f"stages={shown(self.stages)} must be a whole number of at least 1")
        unknown = [name for name in self.costs if name not in MODULE_COSTS]
        if unknown:
            raise CostError(f"{shown(unknown[0])} is no cost of a module; use one of: {', '.join(MODULE_COSTS)}")
        Costs(**self.costs, microbatch_scale=self.microbatch_scale)

    def stage_costs(self) -> dict[str, Any]:
        """Return the costs of one stage of the module."""
        return {name: value if name == "transfer_bytes" else value / self.stages for name, value in self.costs.items()}


def module_chain(modules: Sequence[Module], microbatches: int, **others: Any) -> Costs:
    """Return the costs of modules that follow each other, for a schedule whose stages are theirs in that order.

    Encoders are leading stages, decoders trailing ones. Modules can share devices, if the schedule places them so:
    `placement=[0, 1, 0, 1]` of `ppsim.build("auto", ...)` runs an encoder and a backbone of two stages each on the same
    two devices.

    Parameters
    ----------
    modules : list of Module
        Modules that all give the same costs.
    microbatches : int
        Microbatches of one step.
    **others : float
        Other parameters of `Costs`, such as latency and bandwidth.

    Raises
    ------
    CostError
        There are no modules, modules give different costs, or there is not one factor per microbatch.
    """
    if not modules:
        raise CostError("modules=[] must list at least one Module")
    names = set(modules[0].costs)
    for number, module in enumerate(modules):
        if set(module.costs) != names:
            raise CostError(
                f"modules[{number}] gives {', '.join(sorted(module.costs))}, modules[0] {', '.join(sorted(names))}; "
                f"give the same costs in all"
            )
    stages = [module for module in modules for _ in range(module.stages)]
    columns = {name: [module.stage_costs()[name] for module in stages] for name in names}
    return Costs(**columns, per="stage", microbatch_scale=[_factors(one, microbatches) for one in stages], **others)


def _factors(module: Module, microbatches: int) -> list[float]:
    """Return one factor per microbatch with mean 1, so that the costs are those of an average microbatch."""
    if module.microbatch_scale is None:
        return [1.0] * microbatches
    row = microbatch_factors(check_microbatch_scale(module.microbatch_scale), "given", np.ones(1), microbatches)[0]
    return (row / (row.mean() or 1.0)).tolist()


def _is_node(value: object) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(0 <= value < 2**31)


_TRANSFERS = rule(lambda value: _is_node(value) and value >= 1, "must be a whole number of at least 1")


@described
@dataclass(frozen=True)
class SharedPorts:
    """Costs with links that share ports.

    A transfer occupies its sender's port out and its receiver's port in; between nodes also a network card out of the
    sending node and one into the receiving node. A transfer waits in line while a port is full; docs/glossary.md has
    the rule. Raises CostError if a number is illegal, and on use if `nodes` does not list every device.
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
    cards_per_node: int = declared("transfers between nodes that a node sends, and receives, at once", _TRANSFERS, 1)
    transfers_per_device: int = declared("transfers that a device sends, and receives, at once", _TRANSFERS, 1)

    __repr__ = short_repr

    def __post_init__(self) -> None:
        try:
            check_fields(self)
        except ConfigError as error:
            raise CostError(str(error)) from None

    def table(self, schedule: ScheduleColumns) -> CostTable:
        """Return the costs of `schedule` with its ports."""
        if len(self.nodes) != schedule.devices:
            raise CostError(
                f"nodes lists {len(self.nodes)} devices, but the schedule has {schedule.devices}; list the node of each"
            )
        device = np.arange(schedule.devices)
        names, node = np.unique(self.nodes, return_inverse=True)
        first_card = 2 * len(device)
        out = np.stack([device, first_card + node], axis=1)
        into = np.stack([len(device) + device, first_card + len(names) + node], axis=1)
        ports = ports_by_node(node, out, into, np.array([False, True, False, True]))
        capacity = np.repeat([self.transfers_per_device, self.cards_per_node], [2 * len(device), 2 * len(names)])
        return replace(self.costs.table(schedule), link_ports=ports, port_capacity=capacity)

    @property
    def provenance(self) -> Mapping[str, str]:
        """Origin of each parameter."""
        return {**getattr(self.costs, "provenance", {}), "nodes": "given", "cards_per_node": "given"}
