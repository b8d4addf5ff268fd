"""DerivedCosts: seconds and bytes of every action from a model, a cluster and a layout, each assumption readable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ppsim.base.errors import ConfigError
from ppsim.costs.collectives import all_gather, all_reduce, all_to_all
from ppsim.costs.data_parallel import gather_seconds, optimizer_seconds, reduce_seconds
from ppsim.costs.given import Costs
from ppsim.costs.hardware import Cluster
from ppsim.costs.layers import VALUE_BYTES, Layer
from ppsim.costs.layout import Layout
from ppsim.costs.model import Model
from ppsim.costs.table import CostTable, Workload
from ppsim.lowering.sharding import LOOK_AHEAD

if TYPE_CHECKING:
    from ppsim.schedule.columns import ScheduleColumns

BACKWARD = ("backward", "input_grad", "weight_grad")
STEP = ("unshard", "reduce_grad", "optimizer_step")
TIMES = ("forward", *BACKWARD, "overlap", *STEP)
BYTES = ("activation_bytes", "weight_bytes", "gradient_bytes", "optimizer_bytes")
OTHERS = ("weight_grad_fraction_of_activation", "transfer_bytes", "latency", "bandwidth")


@dataclass(frozen=True)
class DerivedCosts:
    """A cost model that prices a schedule from shapes and data sheets.

    Parameters
    ----------
    model : Model
    cluster : Cluster
    layout : Layout
    given : mapping
        Parameters of `Costs` that replace what would be derived, times as `per` in it says.

    Raises
    ------
    ConfigError
        The layout does not fit the model; names every size that does not.
    """

    model: Model
    cluster: Cluster
    layout: Layout = field(default_factory=Layout)
    given: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
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

    def collective_seconds(self, layer: Layer) -> tuple[float, float]:
        """Seconds of the tensor-, context- and expert-parallel collectives in a layer's F and in its B (or I).

        Tensor parallel: two all-reduces a block each way, as many bytes with sequence parallelism (Korthikanti et al.
        2022, arXiv 2205.05198, section 4.2); one for the embedding's F and one for the head's B. Context parallel: keys
        and values are gathered in both ways and their gradients scattered (Llama 3, arXiv 2407.21783, section 3.3.2).
        Expert parallel: dispatch and combine each way (Lepikhin et al. 2020, GShard, arXiv 2006.16668).
        """
        if layer.name == "embedding":
            return self._tensor_parallel(), 0.0
        if layer.name == "head":
            return 0.0, self._tensor_parallel()
        tensor = 2 * self._tensor_parallel()
        context = self._context_parallel()
        exchange = 2 * self._expert_parallel() if layer.expert_parameters else 0.0
        after = self._tensor_parallel() if layer.name == "prediction" else 0.0
        return tensor + context + exchange, tensor + 2 * context + exchange + after

    def _tensor_parallel(self) -> float:
        size, algorithm = self.layout.tensor, self.cluster.all_reduce
        if self.layout.sequence_parallel:
            algorithm = "ring"  # a reduce-scatter and an all-gather in the all-reduce's place
        return all_reduce(size, self.border_bytes, self.cluster.link_of_group(size), algorithm)

    def _context_parallel(self) -> float:
        model, layout = self.model, self.layout
        if model.key_value_rank:
            width = model.heads * (model.head_size + model.rotary_head_size + model.value_head_size)
        else:
            width = 2 * model.key_value_heads * model.head_size
        gathered = VALUE_BYTES * model.sequence * layout.microbatch_size * width / layout.tensor
        return all_gather(layout.context, gathered, self.cluster.link_of_group(layout.tensor * layout.context))

    def _expert_parallel(self) -> float:
        size = self.layout.expert
        tokens_once = self.border_bytes / (self.layout.tensor if self.layout.sequence_parallel else 1)
        link = self.cluster.link_of_group(self.layout.tensor * size)
        return all_to_all(size, tokens_once * self.model.experts_per_token, link)

    @property
    def border_bytes(self) -> float:
        """Bytes of one microbatch's activations between two layers, before sequence parallelism splits them."""
        model, layout = self.model, self.layout
        return VALUE_BYTES * model.sequence * layout.microbatch_size * model.hidden / layout.context

    @property
    def transfer_bytes(self) -> float:
        """Bytes that one GPU sends to the next stage, and back, for one microbatch."""
        return self.border_bytes / (self.layout.tensor if self.layout.sequence_parallel else 1)

    def held(self, layers: list[Layer]) -> tuple[float, float]:
        """Dense parameters and parameters of routed experts of a stage on one GPU; a tied matrix in one stage once."""
        dense, experts = (sum(part) for part in zip(*map(self.layout.held, layers), strict=True)) if layers else (0, 0)
        if self.model.tied_embeddings and {"embedding", "head"} <= {layer.name for layer in layers}:
            dense -= self.layout.held(replace(layers[0], copied_parameters=0))[0]
        return float(dense), float(experts)

    def _stage_bytes(self, layers: list[Layer], recompute: str, gathered: float) -> dict[str, float]:
        layout = self.layout
        whole = sum(layer.activation_bytes(1, False, recompute) for layer in layers)
        kept = sum(layer.weight_grad_bytes for layer in layers)
        states = layout.state_bytes(self.held(layers), gathered)
        return {
            "activation_bytes": sum(self._activation_bytes(layer, recompute) for layer in layers),
            "weight_bytes": states[0],
            "gradient_bytes": states[1],
            "optimizer_bytes": states[2],
            "weight_grad_fraction_of_activation": min(1.0, kept / whole) if whole else 1.0,
        }

    def _activation_bytes(self, layer: Layer, recompute: str) -> float:
        """Bytes that one GPU holds of a layer for one microbatch."""
        layout = self.layout
        held = layer.activation_bytes(layout.tensor, layout.sequence_parallel, recompute)
        return held * layout.microbatch_size / layout.context

    def _recompute_bytes(self, layers: list[Layer], recompute: str) -> float:
        """Bytes that a backward brings back for the layer that it recomputes, the largest of the stage's."""
        dropped = [self._activation_bytes(one, "none") - self._activation_bytes(one, recompute) for one in layers]
        return max(dropped, default=0.0)

    def stage_layers(self, num_stages: int) -> list[list[Layer]]:
        """The layers of each stage; CostError where the partition does not fit `num_stages`."""
        costs = [
            self.compute_seconds(layer.forward + layer.input_grad + layer.weight_grad)
            + sum(self.collective_seconds(layer))
            for layer in self.model.layers
        ]
        return self.layout.stage_layers(self.model, num_stages, costs)

    def _stage_times(self, layers: list[Layer], recompute: str) -> dict[str, float]:
        """Seconds of one stage: computation of F, I and W, collectives of F and of I."""
        collectives = np.sum([self.collective_seconds(layer) for layer in layers], axis=0) if layers else np.zeros(2)
        forward_again = sum(self.collective_seconds(layer)[0] for layer in layers if layer.recomputable)
        repeated = self.compute_seconds(sum(layer.recompute_flops(recompute) for layer in layers))
        return {
            "forward": self.compute_seconds(sum(layer.forward for layer in layers)),
            "input_grad": self.compute_seconds(sum(layer.input_grad for layer in layers)) + repeated,
            "weight_grad": self.compute_seconds(sum(layer.weight_grad for layer in layers)),
            "forward_collectives": float(collectives[0]),
            "input_grad_collectives": float(collectives[1]) + (forward_again if recompute == "full" else 0.0),
        }

    def for_stages(self, num_stages: int, devices: int | None = None, copies: Sequence[int] | None = None) -> Costs:
        """The costs as per-stage lists.

        `devices` scales given times that are per device share; `copies[s]` devices of a pipeline hold stage s, by
        default one.
        """
        stages = self._stages(num_stages)
        gathered = min(LOOK_AHEAD * (devices or num_stages) / num_stages, 1.0)
        times = _columns([self._stage_times(*stage) for stage in stages])
        derived = {
            "forward": times["forward"] + times["forward_collectives"],
            "input_grad": times["input_grad"] + times["input_grad_collectives"],
            "weight_grad": times["weight_grad"],
            **_columns([self._stage_bytes(*stage, gathered) for stage in stages]),
            "transfer_bytes": self.transfer_bytes,
            "latency": self.cluster.link.latency,
            "bandwidth": self.cluster.link.bandwidth,
            **self._step_seconds([layers for layers, _ in stages], copies or [1] * num_stages),
        }
        if self.layout.overlap:
            derived["overlap"] = _overlap(times)
        given = self._given_per_stage(num_stages, devices)
        if {*BACKWARD} & given.keys():
            del derived["input_grad"], derived["weight_grad"]
        provenance = {name: "derived" for name in derived if name not in given}
        if "input_grad" in derived:
            provenance["backward"] = "derived"
        return Costs(**{**derived, **given}, per="stage", provenance=provenance)

    def _stages(self, num_stages: int) -> list[tuple[list[Layer], str]]:
        """The layers and the recompute level of each stage."""
        return list(zip(self.stage_layers(num_stages), self.layout.recompute_of(num_stages), strict=True))

    def _given_per_stage(self, num_stages: int, devices: int | None) -> dict[str, Any]:
        given = {name: value for name, value in self.given.items() if name != "per"}
        if self.given.get("per", "device") == "device":
            scale = (devices or num_stages) / num_stages
            for name in TIMES:
                if name in given:
                    given[name] = (np.asarray(given[name], np.float64) * scale).tolist()
        return given

    def table(self, schedule: ScheduleColumns) -> CostTable:
        """The costs of `schedule`, with the link of each pair of devices from the nodes they sit in.

        Raises CostError or ConfigError where partition, recompute levels or nodes do not fit the schedule.
        """
        num_stages, devices = schedule.num_stages, schedule.devices
        stages = self._stages(num_stages)
        blocks = np.array([sum(layer.name == "block" for layer in layers) for layers, _ in stages])
        return replace(
            self.for_stages(num_stages, devices, np.bincount(schedule.holdings[:, 1]).tolist()).table(schedule),
            stage_share=blocks * devices / self.model.num_layers,
            workload=self.workload(devices),
            exchange_seconds=self._exchange_seconds(stages),
            recompute_bytes=np.array([self._recompute_bytes(*stage) for stage in stages])
            if "activation_bytes" not in self.given
            else None,
            **self._links(devices),
        )

    def _exchange_seconds(self, stages: list[tuple[list[Layer], str]]) -> np.ndarray:
        """Seconds in the collectives of F, B, I and W by stage; 0 where the time was given."""
        times = _columns([self._stage_times(*stage) for stage in stages])
        forward = times["forward_collectives"] * ("forward" not in self.given)
        backward = times["input_grad_collectives"] * (not {*BACKWARD} & self.given.keys())
        return np.stack([forward, backward, backward, np.zeros_like(forward)])

    def _links(self, devices: int) -> dict[str, np.ndarray]:
        """Columns of the transfers between each pair of devices: link or network, and the cards on the way."""
        cluster, group = self.cluster, self.layout.gpus_per_device
        nodes = np.array(cluster.nodes(devices, group))
        same = nodes[:, None] == nodes[None, :]
        link, network = cluster.link, cluster.network_of_group(group)
        columns = {}
        if "latency" not in self.given:
            columns["latency"] = np.where(same, link.latency, network.latency)
        if "bandwidth" not in self.given:
            columns["seconds_per_byte"] = np.where(same, 1 / link.bandwidth, 1 / network.bandwidth)
        if cluster.cards_per_node is not None:
            _, card = np.unique(cluster.card_of_devices(devices, group), axis=0, return_inverse=True)
            out, into = 2 * card.reshape(-1, 1), 2 * card.reshape(1, -1) + 1
            ports = np.stack(np.broadcast_arrays(out, into), axis=-1)
            columns["link_ports"] = np.where(same[..., None], -1, ports).astype(np.int32)
            columns["port_capacity"] = np.ones(2 * (card.max() + 1), np.int64)
        return columns

    def _step_seconds(self, stages: list[list[Layer]], copies: Sequence[int]) -> dict[str, list[Any]]:
        """What is done once a step for each stage: gathers, reductions and the optimizer step."""
        layout, cluster = self.layout, self.cluster
        held = [self.held(layers) for layers in stages]
        columns = {}
        if layout.sharded:
            columns["unshard"] = [gather_seconds(part, layout, cluster) for part in held]
        if max(copies) * max(layout.data_groups) > 1:
            columns["reduce_grad"] = [
                reduce_seconds(part, layout, cluster, count) for part, count in zip(held, copies, strict=True)
            ]
        if cluster.device.memory_bandwidth is not None:
            columns["optimizer_step"] = [optimizer_seconds(part, layout, cluster) for part in held]
        return columns

    @property
    def provenance(self) -> Mapping[str, str]:
        """Where each parameter of `Costs` comes from: "derived" or "given"."""
        overlap = ("overlap",) if self.layout.overlap else ()
        derived = dict.fromkeys(("forward", *BACKWARD, *overlap, *BYTES, *OTHERS, *STEP), "derived")
        return derived | {name: "given" for name in self.given if name != "per"}

    def workload(self, devices: int) -> Workload:
        """What a step of a pipeline of `devices` devices is to the model and the GPUs."""
        sequences = self.layout.microbatch_size * self.layout.data
        return Workload(
            tokens=self.model.sequence * sequences,
            flops=self.model.step_flops() * sequences,
            gpus=self.gpus(devices),
            peak=self.cluster.device.peak,
            memory=self.cluster.device.memory,
        )

    def gpus(self, devices: int) -> int:
        """GPUs of the whole job."""
        return devices * self.layout.gpus_per_device

    @property
    def assumptions(self) -> list[str]:
        """What the derivation assumes, one readable sentence each, with units and sources."""
        from ppsim.costs.assumptions import assumptions

        return list(assumptions(self))


def _columns(rows: list[dict[str, float]]) -> dict[str, np.ndarray]:
    return {name: np.array([row[name] for row in rows], np.float64) for name in rows[0]}


def _overlap(times: dict[str, np.ndarray]) -> np.ndarray:
    """Slot lengths by [stage of F, stage of B]: the longer of both parts' computation and both parts' collectives."""
    computing = times["forward"][:, None] + (times["input_grad"] + times["weight_grad"])[None, :]
    exchanging = times["forward_collectives"][:, None] + times["input_grad_collectives"][None, :]
    return np.maximum(computing, exchanging)
