"""Chains of modules: an encoder, a backbone, a decoder as stages with costs of their own for each microbatch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ppsim.base.errors import CostError, shown
from ppsim.costs.given import Costs
from ppsim.costs.microbatches import check_scale, factors

OF_A_MODULE = (
    "forward", "backward", "input_grad", "weight_grad", "recompute", "transfer_bytes", "activation_bytes",
    "weight_bytes", "gradient_bytes", "optimizer_bytes",
)  # fmt: skip


@dataclass(frozen=True)
class Module:
    """Consecutive stages that cost alike, such as an image encoder.

    Attributes
    ----------
    stages : int
        How many stages it is cut into.
    costs : mapping
        Names of `Costs` (forward, backward, input_grad, weight_grad, recompute, activation_bytes ...) to what one
        average microbatch costs the whole module, seconds and bytes; `transfer_bytes` is at each of its borders.
    microbatch_scale : list of float or mapping, optional
        Factor of each microbatch, such as its number of images, or how to draw them (`Costs.microbatch_scale`).
        Default: microbatches are alike.

    Raises CostError where a value is not legal.
    """

    stages: int
    costs: Mapping[str, Any]
    microbatch_scale: Sequence[float] | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if isinstance(self.stages, bool) or not isinstance(self.stages, int) or self.stages < 1:
            raise CostError(f"stages={shown(self.stages)} must be a whole number of at least 1")
        unknown = [name for name in self.costs if name not in OF_A_MODULE]
        if unknown:
            raise CostError(f"{shown(unknown[0])} is no cost of a module; use one of: {', '.join(OF_A_MODULE)}")
        Costs(**self.costs, microbatch_scale=self.microbatch_scale)

    def of_stage(self) -> dict[str, Any]:
        """Its costs, of one of its stages."""
        return {name: value if name == "transfer_bytes" else value / self.stages for name, value in self.costs.items()}


def module_chain(modules: Sequence[Module], microbatches: int, **others: Any) -> Costs:
    """The costs of modules that follow each other, for a schedule whose stages are theirs in that order.

    Encoders are leading stages, decoders trailing ones. Chains share devices where the schedule places them so:
    `placement=[0, 1, 0, 1]` of `ppsim.build("auto", ...)` runs an encoder and a backbone of two stages each on the same
    two devices.

    Parameters
    ----------
    modules : list of Module
        All give the same costs.
    microbatches : int
        Of one step.
    **others : float
        Other parameters of `Costs`, such as latency and bandwidth.

    Raises
    ------
    CostError
        No modules, modules that give different costs, or factors that are not one a microbatch.
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
    columns = {name: [module.of_stage()[name] for module in stages] for name in names}
    return Costs(**columns, per="stage", microbatch_scale=[_factors(one, microbatches) for one in stages], **others)


def _factors(module: Module, microbatches: int) -> list[float]:
    """One factor a microbatch with mean 1, so that the costs are of an average microbatch."""
    if module.microbatch_scale is None:
        return [1.0] * microbatches
    row = factors(check_scale(module.microbatch_scale), "given", np.ones(1), microbatches)[0]
    return (row / (row.mean() or 1.0)).tolist()
