"""DerivedCosts: seconds and bytes of every action from a model, a cluster and a layout, each assumption readable."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from ppsim.actions import is_vocabulary
from ppsim.base.errors import CostError, shown
from ppsim.costs import layout_string, partition
from ppsim.costs.effects import border_seconds
from ppsim.costs.fp8 import COPY_BYTES, FP8_BYTES
from ppsim.costs.given import PARAMETERS, SCALED, Costs
from ppsim.costs.layers import Layer
from ppsim.costs.layout import WEIGHT_BYTES
from ppsim.costs.output_parts import held_by_part, with_output_parts
from ppsim.costs.pairs import of_nodes, of_ways
from ppsim.costs.setup import Setup
from ppsim.costs.slices import CAUSAL, attention_part
from ppsim.costs.spread import Spread, spread_of
from ppsim.costs.summed_effects import Exchange, StageOnce, exchange, once_each, sentences, step_seconds
from ppsim.costs.table import CostTable, Workload
from ppsim.costs.two_stream import TWO_STREAM, two_stream_slots
from ppsim.lowering.sharding import LOOK_AHEAD
from ppsim.schedule.columns import ScheduleColumns

BACKWARD = ("backward", "input_grad", "weight_grad")


def _named_costs(given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise CostError(f"given={shown(given)} must map names of costs to values, such as {{'forward': 0.01}}")
    unknown = [name for name in given if name not in PARAMETERS]
    if unknown:
        raise CostError(f"given names {shown(unknown[0])}, which is no cost; use one of: {', '.join(PARAMETERS)}")
    Costs(**given)
    return dict(given)


@dataclass(frozen=True, repr=False)
class DerivedCosts(Setup):
    """A cost model that prices a schedule from shapes and data sheets.

    Parameters
    ----------
    model : Model
    cluster : Cluster
    layout : Layout
    given : mapping
        Parameters of `Costs` that replace what would be derived, times as `per` in it says.
    layers_of_stages : tuple of int, optional
        Layers of each stage, embedding, prediction modules and head among them; default: what the layout says.

    Raises
    ------
    ConfigError
        The layout does not fit the model; names every size that does not.
    CostError
        A given cost that is not known, or not legal.
    """

    given: Mapping[str, Any] = field(default_factory=dict)
    layers_of_stages: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "given", _named_costs(self.given))

    def exchange(self, layer: Layer) -> Exchange:
        """Seconds of the collectives of a layer: `EFFECTS` has the formulas and sources."""
        if layer not in self._exchanges:
            self._exchanges[layer] = exchange(self, layer)
        return self._exchanges[layer]

    @cached_property
    def _exchanges(self) -> dict[Layer, Exchange]:
        return {}

    def _stage_bytes(self, layers: list[Layer], recompute: str, part: float) -> dict[str, float]:
        """Bytes that a stage holds, where a device holds 1/part of them."""
        layout, gathered = self.layout, min(LOOK_AHEAD * part, 1.0)
        levels = layout.levels_of(layers, recompute)
        whole = sum(map(_bytes_on_one, layers, levels))
        kept = sum(layer.weight_grad_bytes for layer in layers)
        held, reduced = self.held(layers), 0.0
        if layout.shards_blocks:
            gathered, reduced = self._unsharded(layers)
        states = layout.state_bytes(held, gathered, reduced)
        weights = states[0] + self._fp8_copies(layers)
        return {
            "activation_bytes": sum(map(self.activation_bytes, layers, levels)),
            "weight_bytes": weights,
            "gradient_bytes": states[1] + layout.buffer_bytes(layers, min(part, 1.0)),
            "optimizer_bytes": states[2],
            "weight_grad_fraction_of_activation": min(1.0, kept / whole) if whole else 1.0,
        }

    def activation_bytes(self, layer: Layer, recompute: str) -> float:
        """Bytes that one GPU holds of a layer for one microbatch, with a recompute level."""
        layout = self.layout
        narrow = layout.casts is not None and layout.casts.holds_inputs
        held = layer.activation_bytes(layout.tensor, layout.sequence_parallel, recompute, narrow)
        return held * layout.microbatch_size / layout.context

    def _fp8_copies(self, layers: list[Layer]) -> float:
        """Bytes of weights in fp8, less those in bf16 that they replace; of sharded blocks of the two gathered."""
        layout, narrow = self.layout, [sum(self.layout.held_in_fp8(layer)) for layer in layers]
        if layout.shards_blocks:
            return (FP8_BYTES - WEIGHT_BYTES) * sum(sorted(narrow)[-2:]) * layout.fp8_gather
        return (COPY_BYTES - WEIGHT_BYTES * layout.fp8_gather) * sum(narrow)

    def _unsharded(self, layers: list[Layer]) -> tuple[float, float]:
        """Part of a stage's parameters that is gathered, and part whose gradients are reduced, with blocks sharded.

        Two blocks at a time, and the root (embedding and head) from the first forward to the last backward; the
        gradients of a block, or of the root, in one buffer. PyTorch's allocator has a pool for each stream, so these
        count beside the activations whenever those are highest. Source: PyTorch, fully_shard.
        """
        total = sum(self.held(layers))
        if not total:
            return 0.0, 0.0
        blocks = [sum(self.layout.held(layer)) for layer in layers if layer.recomputable]
        root, largest = total - sum(blocks), max(blocks, default=0.0)
        return min(root + 2 * largest, total) / total, max(root, largest) / total

    def backward_bytes(self, layers: list[Layer], recompute: str) -> float:
        """Bytes that a backward of a stage brings: the largest layer that it recomputes, or the gradients of the loss.

        The loss comes first and its gradients are gone before a block is recomputed.
        """
        dropped = [self.activation_bytes(one, "none") - self.activation_bytes(one, recompute) for one in layers]
        loss = sum(self.share(layer.logits) for layer in layers) * self.layout.chosen("loss_bytes")
        return max([loss, *dropped])

    def stage_layers(self, num_stages: int) -> list[list[Layer]]:
        """The layers of each stage; CostError where the partition does not fit `num_stages`."""
        layers, counts = self.model.layers, self.layers_of_stages
        if counts is None:
            by_cost = self.layout.partition in partition.BY_COST
            return self.layout.stage_layers(self.model, num_stages, self.layer_seconds if by_cost else [])
        return partition.cut(layers, partition.explicit(counts, len(layers), num_stages))

    @cached_property
    def layer_seconds(self) -> list[float]:
        """Seconds of each layer, forward and backward, collectives included."""

        def seconds(layer: Layer) -> float:
            return self.work(layer).whole + sum(self.exchange(layer)[:2])

        return once_each(self.model.layers, id, seconds)

    def with_partition(self, value: Any) -> DerivedCosts:
        """These costs with another `layout.partition`; ConfigError where it is none."""
        other = copy(self)  # all but the partition is checked
        object.__setattr__(other, "layout", replace(self.layout, partition=value))
        return self._sharing(other)

    def with_stages(self, layers_of_stages: Sequence[int]) -> DerivedCosts:
        """These costs with so many layers in each stage, whatever the layout says."""
        other = copy(self)  # all but the stages is checked
        object.__setattr__(other, "layers_of_stages", tuple(layers_of_stages))
        return self._sharing(other)

    def _sharing(self, other: DerivedCosts) -> DerivedCosts:
        """`other`, which differs in its partition alone: what layers and stages cost is worked out once for both."""
        for name in ("_work", "_exchanges", "_known_stages", "_known_times", "_known_bytes", "_known_steps"):
            vars(other)[name] = getattr(self, name)
        return other

    def __getstate__(self) -> dict[str, Any]:
        """What copies and pickles carry: not what was worked out, which is known by where its stages are in memory."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    @cached_property
    def _known_stages(self) -> dict[Any, tuple[list[Layer], str]]:
        return {}

    @cached_property
    def _known_steps(self) -> dict[StageOnce, dict[str, float]]:
        return {}

    @cached_property
    def _known_times(self) -> dict[Any, dict[str, float]]:
        return {}

    @cached_property
    def _known_bytes(self) -> dict[Any, dict[str, float]]:
        return {}

    def stages(self, num_stages: int) -> list[dict[str, int]]:
        """What each stage holds: how many layers by name, in order."""
        return once_each(self._stages(num_stages), id, lambda stage: dict(Counter(layer.name for layer in stage[0])))

    def megatron_layout(self, num_stages: int) -> str:
        """The stages as Megatron-LM's `--pipeline-model-parallel-layout`, such as `Et*11|t*12|t*11L`."""
        return str(layout_string.of_stages([layer.name for layer in stage] for stage in self.stage_layers(num_stages)))

    def _stage_times(self, layers: list[Layer], recompute: str) -> dict[str, float]:
        """Seconds of one stage: computation of F, I and W, collectives of F and of I."""
        levels = self.layout.levels_of(layers, recompute)
        works, exchanges = [self.work(layer) for layer in layers], [self.exchange(layer) for layer in layers]
        again = sum(one.again for one, level in zip(exchanges, levels, strict=True) if level == "full")
        return {
            "forward": sum(work.forward for work in works),
            "input_grad": sum(work.input_grad for work in works) + sum(map(self.repeated, layers, levels)),
            "weight_grad": sum(work.weight_grad for work in works),
            "forward_collectives": sum(one.forward for one in exchanges),
            "input_grad_collectives": sum(one.input_grad for one in exchanges) + again,
        }

    def for_stages(
        self,
        num_stages: int,
        devices: int | None = None,
        copies: Sequence[int] | None = None,
        output_parts: Sequence[int] = (),
    ) -> Costs:
        """The costs as per-stage lists.

        `devices` scales given times that are per device share; `copies[s]` devices of a pipeline hold stage s, by
        default one; over the stages `output_parts`, where there are any, the output layer, which S and T run, and the
        embedding's weights are cut.
        """
        stages = self._stages(num_stages, len(output_parts) > 0)
        part = (devices or num_stages) / num_stages
        times = self._times_of(stages)
        bytes_of = once_each(
            stages, lambda stage: (id(stage), part), lambda stage: self._stage_bytes(*stage, part),
            self._known_bytes,
        )  # fmt: skip
        states = _columns(bytes_of)
        held = once_each(stages, id, lambda stage: self.held(stage[0]))
        if output_parts:
            dense, experts = held_by_part(self, len(output_parts))
            for stage in output_parts:
                held[stage] = held[stage][0] + dense, held[stage][1] + experts
        backward = times["input_grad"] + times["weight_grad"]
        once = [
            StageOnce(held[s], (copies or [1] * num_stages)[s], len(stages[s][0]), times["forward"][s], backward[s])
            for s in range(num_stages)
        ]
        beside = border_seconds(self, devices or num_stages) * np.array([bool(layers) for layers, _ in stages])
        derived = {
            "forward": times["forward"] + times["forward_collectives"] + beside,
            "input_grad": times["input_grad"] + times["input_grad_collectives"] + beside,
            "weight_grad": times["weight_grad"],
            **states,
            "transfer_bytes": self.transfer_bytes,
            "latency": self.cluster.link.latency,
            "bandwidth": self.cluster.link.bandwidth,
            "offload_latency": self.cluster.host_latency,
            "offload_bandwidth": self.cluster.host_bandwidth,
            **step_seconds(self, once, self._known_steps),
        }
        derived["input_fraction_of_activation"] = _input_fraction(self.own_border_bytes, derived["activation_bytes"])
        if self.layout.overlap:
            derived["overlap"] = self._slots(stages, times) + beside[:, None] + beside[None, :]
        given = self._given_per_stage(num_stages, devices)
        if {*BACKWARD} & given.keys():
            del derived["input_grad"], derived["weight_grad"]
        provenance = {name: "derived" for name in derived if name not in given}
        if "input_grad" in derived:
            provenance["backward"] = "derived"
        return Costs(**{**derived, **given}, per="stage", provenance=provenance)

    def _times_of(self, stages: list[tuple[list[Layer], str]]) -> dict[str, np.ndarray]:
        return _columns(once_each(stages, id, lambda stage: self._stage_times(*stage), self._known_times))

    def _slots(self, stages: list[tuple[list[Layer], str]], times: dict[str, np.ndarray]) -> np.ndarray:
        """Slot lengths by [stage of F, stage of B]: the longer of both parts' computation and both parts' collectives.

        Or what two streams take. What runs beside computation makes it longer; an achieved fraction has that in it.
        """
        computing = times["forward"][:, None] + (times["input_grad"] + times["weight_grad"])[None, :]
        exchanging = times["forward_collectives"][:, None] + times["input_grad_collectives"][None, :]
        two = self.layout.overlap == TWO_STREAM
        slots = self._two_stream(stages) if two else np.maximum(computing, exchanging)
        contention = self.cluster.contention if self.cluster.device.achieved is None else 0.0
        return slots + contention * np.maximum(computing + exchanging - slots, 0.0)

    def _two_stream(self, stages: list[tuple[list[Layer], str]]) -> np.ndarray:
        """Slot lengths by [stage of F, stage of B], from the pieces of their layers."""
        levels = (zip(layers, self.layout.levels_of(layers, level), strict=True) for layers, level in stages)
        return two_stream_slots(
            self, [[(one, self._stage_times([one], own)) for one, own in stage] for stage in levels]
        )

    def _stages(self, num_stages: int, output_apart: bool = False) -> list[tuple[list[Layer], str]]:
        """The layers and the recompute level of each stage; of stages with the same layers and level the same tuple."""
        known, levels = self._known_stages, self.layout.recompute_of(num_stages)
        found = []
        for layers, level in zip(self.stage_layers(num_stages), levels, strict=True):
            key = (*map(id, layers), level, output_apart)
            if key not in known:
                known[key] = _without_output(layers) if output_apart else layers, level
            found.append(known[key])
        return found

    def _given_per_stage(self, num_stages: int, devices: int | None) -> dict[str, Any]:
        given = {name: value for name, value in self.given.items() if name != "per"}
        if given.get("slice_costs") == CAUSAL:
            given["slice_costs"] = {"attention": attention_part(self.model.layers) if self.model.causal else 0.0}
        if self.given.get("per", "device") == "device":
            scale = (devices or num_stages) / num_stages
            for name in SCALED:
                if name in given:
                    given[name] = (np.asarray(given[name], np.float64) * scale).tolist()
        return given

    def table(self, schedule: ScheduleColumns) -> CostTable:
        """The costs of `schedule`, with the link of each pair of devices from the nodes they sit in.

        Raises CostError or ConfigError where partition, recompute levels or nodes do not fit the schedule.
        """
        num_stages, devices, cut = schedule.num_stages, schedule.devices, schedule.cuts_vocabulary
        stages = self._stages(num_stages, cut)
        parts = np.unique(schedule.stage[is_vocabulary(schedule.kind)]).tolist()
        copies = np.bincount(schedule.holdings[:, 1]).tolist()
        blocks = np.array([sum(layer.name == "block" for layer in layers) for layers, _ in stages])
        table = replace(
            self.for_stages(num_stages, devices, copies, parts).table(schedule),
            stage_share=blocks * devices / self.model.num_layers,
            workload=self.workload(devices),
            exchange_seconds=self._exchange_seconds(stages),
            recompute_bytes=np.array(once_each(stages, id, lambda stage: self.backward_bytes(*stage)))
            if "activation_bytes" not in self.given
            else None,
            **self._links(devices),
        )
        return with_output_parts(self, schedule, table, parts, self.given.keys()) if cut else table

    def _exchange_seconds(self, stages: list[tuple[list[Layer], str]]) -> np.ndarray:
        """Seconds in the collectives of F, B, I and W by stage; 0 where the time was given."""
        times = self._times_of(stages)
        forward = times["forward_collectives"] * ("forward" not in self.given)
        backward = times["input_grad_collectives"] * (not {*BACKWARD} & self.given.keys())
        return np.stack([forward, backward, backward, np.zeros_like(forward)])

    def _links(self, devices: int) -> dict[str, Any]:
        """Columns of the transfers between each pair of devices: link or network, and the cards on the way."""
        cluster, group = self.cluster, self.layout.gpus_per_device
        nodes = np.array(cluster.nodes(devices, group))
        link, network = cluster.link, cluster.network_of_group(group)
        columns = {}
        if "latency" not in self.given:
            columns["latency"] = of_nodes(nodes, link.latency, network.latency)
        if "bandwidth" not in self.given:
            columns["seconds_per_byte"] = of_nodes(nodes, 1 / link.bandwidth, 1 / network.bandwidth)
        if cluster.cards_per_node is not None:
            _, card = np.unique(cluster.card_of_devices(devices, group), axis=0, return_inverse=True)
            out, into = 2 * card.reshape(-1, 1), 2 * card.reshape(-1, 1) + 1
            columns["link_ports"] = of_ways(nodes, out, into, np.ones(2, bool))
            columns["port_capacity"] = np.ones(2 * (card.max() + 1), np.int64)
        return columns

    @property
    def provenance(self) -> Mapping[str, str]:
        """Where each parameter of `Costs` comes from: "derived" or "given"."""
        left_out = {"per", "slice_costs", "recompute", "offload_bytes", "offload_switch"}
        left_out |= {"microbatch_scale", "microbatch_order"} | ({"overlap"} if not self.layout.overlap else set())
        derived = {name: "derived" for name in PARAMETERS if name not in left_out}
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

    def spread(self, devices: int) -> Spread | None:
        """How far off a derived step of `devices` pipeline devices may be; None where times of actions are given."""
        return None if {"forward", *BACKWARD, "overlap"} & self.given.keys() else spread_of(self, devices)

    def gpus(self, devices: int) -> int:
        """GPUs of the whole job."""
        return devices * self.layout.gpus_per_device

    @property
    def assumptions(self) -> list[str]:
        """What the derivation assumes, one readable sentence each, with units and sources."""
        given = ", ".join(name for name in self.given if name != "per")
        return [*sentences(self), *([f"given instead of derived: {given}"] if given else [])]


def _without_output(layers: list[Layer]) -> list[Layer]:
    """What a stage holds where the output layer, and the embedding's weights with it, are cut over devices."""
    kept = [layer for layer in layers if layer.name != "head"]
    return [replace(layer, split_parameters=0) if layer.name == "embedding" else layer for layer in kept]


def _bytes_on_one(layer: Layer, level: str) -> float:
    """Bytes of one sequence's activations of a layer on one GPU alone."""
    return layer.activation_bytes(recompute=level)


def _columns(rows: list[dict[str, float]]) -> dict[str, np.ndarray]:
    return {name: np.array([row[name] for row in rows], np.float64) for name in rows[0]}


def _input_fraction(input_bytes: float, activation_bytes: np.ndarray) -> np.ndarray:
    """Part of each stage's activations that its input alone is; 0 for a stage that holds nothing."""
    held = np.maximum(activation_bytes, input_bytes)
    return np.where(activation_bytes > 0, input_bytes / np.maximum(held, 1.0), 0.0)
