"""Setup: a model on a cluster in a layout, and the amounts that every effect is priced by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from ppsim.base.errors import ConfigError
from ppsim.base.rules import changed_fields, check_fields, declared, instance
from ppsim.costs.hardware import Cluster
from ppsim.costs.layers import VALUE_BYTES, Layer
from ppsim.costs.layout import Layout
from ppsim.costs.model import Model


@dataclass(frozen=True, repr=False)
class Setup:
    """A model on a cluster in a layout; ConfigError names every size of the layout that does not fit the model."""

    model: Model = declared("the model", instance(Model, "ppsim.Model(...) makes one"))
    cluster: Cluster = declared("what it runs on", instance(Cluster, "ppsim.Cluster(...) makes one"))
    layout: Layout = field(default_factory=Layout, metadata={
        "what": "how it is spread", "check": instance(Layout, "ppsim.Layout(...) makes one")
    })  # fmt: skip

    __repr__ = changed_fields

    def __post_init__(self) -> None:
        check_fields(self)
        faults = self.layout.faults(self.model)
        if faults:
            raise ConfigError("; ".join(faults))

    @property
    def rate(self) -> float:
        """FLOP/s that one GPU reaches."""
        return self.cluster.device.peak * self.cluster.device.achieved

    def compute_seconds(self, flops: float) -> float:
        """Seconds of one microbatch's share of `flops`, which are of one whole sequence."""
        return flops * self.layout.microbatch_size / (self.layout.tensor * self.layout.context) / self.rate

    @property
    def border_bytes(self) -> float:
        """Bytes of one microbatch's activations between two layers, before sequence parallelism splits them."""
        model, layout = self.model, self.layout
        return VALUE_BYTES * model.sequence * layout.microbatch_size * model.hidden / layout.context

    @property
    def transfer_bytes(self) -> float:
        """Bytes that one GPU sends to the next stage, and back, for one microbatch."""
        return self.border_bytes / (self.layout.tensor if self.layout.sequence_parallel else 1)

    def held(self, layers: Sequence[Layer]) -> tuple[float, float]:
        """Dense parameters and parameters of routed experts of a stage on one GPU; a tied matrix in one stage once."""
        dense, experts = (sum(part) for part in zip(*map(self.layout.held, layers), strict=True)) if layers else (0, 0)
        if self.model.tied_embeddings and {"embedding", "head"} <= {layer.name for layer in layers}:
            dense -= self.layout.held(replace(layers[0], copied_parameters=0))[0]
        return float(dense), float(experts)
