"""DerivedCosts: seconds and bytes of every action from a model, a cluster and a layout, with readable assumptions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from ppsim.actions import Kind, is_vocabulary
from ppsim.base.errors import ConfigError, CostError, shown
from ppsim.base.rules import argument, checked_methods, device_count
from ppsim.costs import host_time, partition
from ppsim.costs.calibrated import Calibration
from ppsim.costs.collectives import saved_by_fp8
from ppsim.costs.combined_slot import TWO_STREAM, LayerPieces, combined_slot, layer_pieces, slot_matrix
from ppsim.costs.effects import Exchange, StageOfStep, exchange, sentences, step_seconds
from ppsim.costs.given import PARAMETERS, SCALED, Costs, named_costs
from ppsim.costs.host_time import (
    LayerTimes,
    counting_seconds,
    drift_seconds,
    host_seconds,
    host_wait_seconds,
    stall_seconds,
)
from ppsim.costs.layers import VALUE_BYTES, Layer
from ppsim.costs.layout import DEFAULT_POLICIES, Layout
from ppsim.costs.microbatches import CAUSAL, attention_fraction
from ppsim.costs.model import Model
from ppsim.costs.networks import EXCHANGE_PROCESSORS, all_reduce, group_of, group_of_pipeline
from ppsim.costs.setup import Setup, Stage, boundary_widths, cached_by_arguments, link_columns
from ppsim.costs.spread import Spread, spread_of
from ppsim.costs.sublayers import LOGIT_BYTES, embedding, head
from ppsim.costs.table import CostTable
from ppsim.schedule.columns import ScheduleColumns

BACKWARD = ("backward", "input_grad", "weight_grad")
TIMES = ("forward", "input_grad", "weight_grad")
STATE = ("weight_bytes", "gradient_bytes", "optimizer_bytes")
# Tokens of a slice on a GPU that ran at full efficiency: SlimPipe, Li et al. 2025, arXiv 2504.14519. A slice takes its
# part of the microbatch, but at least as long as one of so many tokens. The law of products (`operators.py`) would let
# each slice read the weights and write the gradients again, 4.6 times as long; a published run shows no such loss.
MIN_SLICE_TOKENS = 128
# Given costs that replace each derived column of the table.
GIVEN_COLUMNS = {name: {name} for name in ("latency", "transfer_bytes")} | {
    "seconds_per_byte": {"bandwidth"}, "host_seconds": {"optimizer_step"}, "recompute_bytes": {"activation_bytes"},
    "copied_bytes": {*STATE},
}  # fmt: skip


@checked_methods
@dataclass(frozen=True, repr=False)
class DerivedCosts(Setup):
    """A cost model that prices a schedule from shapes and data sheets.

    Parameters
    ----------
    model : Model
    cluster : Cluster
    layout : Layout
    given : mapping
        Parameters of `Costs` that replace derived ones; its `per` applies to their times.
    layers_of_stages : tuple of int, optional
        Layers of each stage, including embedding, prediction modules and head; default: the layout's partition.
    calibration : Calibration or None

    Raises ConfigError with every size of the layout that does not fit the model, CostError for an illegal given cost.
    """

    given: Mapping[str, Any] = field(default_factory=dict)
    layers_of_stages: tuple[int, ...] | None = None
    calibration: Calibration | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "given", named_costs(self.given))

    def stage_layers(self, num_stages: int) -> list[list[Layer]]:
        """Return the layers of each stage; CostError if the partition does not fit `num_stages`."""
        layers, counts = self.layout.layers_of(self.model), self.layers_of_stages
        if counts is None:
            by_cost = self.layout.partition in partition.BY_COST
            return self.layout.stage_layers(self.model, num_stages, self.layer_seconds if by_cost else [])
        return partition.cut(layers, partition.explicit(counts, len(layers), num_stages))

    @property
    def layer_seconds(self) -> list[float]:
        """Seconds of each layer, forward and backward, with collectives, or of its host if that takes longer."""
        return [
            max(self.work(layer).whole + sum(self.exchange(layer)[:2]), sum(host_seconds(self, layer)))
            for layer in self.layout.layers_of(self.model)
        ]

    def with_partition(self, value: Any) -> DerivedCosts:
        """Return these costs with another `layout.partition`; ConfigError if it is not one."""
        return replace(self, layout=replace(self.layout, partition=value))

    def with_layout(self, layout: Layout) -> DerivedCosts:
        """Return these costs in another layout; ConfigError names every size that does not fit the model."""
        return replace(self, layout=layout)

    def with_stages(self, layers_of_stages: Sequence[int]) -> DerivedCosts:
        """Return these costs with these numbers of layers per stage, in place of the layout's partition."""
        return replace(self, layers_of_stages=tuple(layers_of_stages))

    def without_each(self) -> Iterator[tuple[str, Any, DerivedCosts]]:
        """Yield (key, value, costs with its default) for each key of layout, hardware and costs; skip a needed one.

        Partition, framework and the constants that a calibration sets are skipped.
        """
        skipped = {"partition", "framework", "device", "link"} | (
            self.calibration.fields if self.calibration else set()
        )
        for section, holder in (("layout", "layout"), ("hardware", "cluster")):
            part = getattr(self, holder)
            for item in fields(part):
                name, value = item.name, getattr(part, item.name)
                default = self.cluster.link if name == "network" else item.default
                if name in skipped or value == default:
                    continue
                with suppress(ConfigError, CostError):
                    other = replace(part, **{name: default})
                    if name not in DEFAULT_POLICIES or other.chosen(name) != value:
                        yield f"{section}.{name}", getattr(value, "name", value), replace(self, **{holder: other})
        for name, value in self.given.items():
            with suppress(CostError):
                given = {key: other for key, other in self.given.items() if key != name}
                yield f"costs.{name}", value, replace(self, given=given)

    def stages(self, num_stages: int) -> list[dict[str, int]]:
        """Return the number of layers of each stage by layer name, in order."""
        return [dict(Counter(layer.name for layer in layers)) for layers in self.stage_layers(num_stages)]

    def megatron_layout(self, num_stages: int) -> str:
        """Return the stages as Megatron-LM's `--pipeline-model-parallel-layout`, such as `Et*11|t*12|t*11L`."""
        names = ([layer.name for layer in stage] for stage in self.stage_layers(num_stages))
        return str(partition.LayoutString.of_stages(names))

    @cached_by_arguments
    def exchange(self, layer: Layer, recompute: str | None = None) -> Exchange:
        """Return the seconds of a layer's collectives, with B at a recompute level; default: that of all blocks.

        `EFFECTS` has the formulas and sources.
        """
        if recompute in (None, self.layout.common_recompute):
            return exchange(self, layer)
        layout = replace(self.layout, recompute=recompute, recompute_stages=None, recompute_blocks=None)
        return exchange(self.with_layout(layout), layer)

    @cached_by_arguments
    def activation_bytes(self, layer: Layer, recompute: str) -> float:
        """Return the bytes that one GPU holds of a layer for one microbatch, with a recompute level."""
        layout, extra = self.layout, self.layout.run_by.facts.extra
        held = layer.activation_bytes(
            layout.tensor, layout.sequence_parallel, recompute, fp8=layout.casts.holds_inputs,
            fused=layout.chosen("fused"), fused_norms=layout.chosen("fused_norms"),
            expert_outputs=layout.run_by.facts.holds_expert_outputs(layout.run_by.asked),
            fp8_activations=layout.fp8_activations,
        )  # fmt: skip
        if layout.chosen("loss_chunks") > 1:  # a chunk's backward frees its logits
            held -= LOGIT_BYTES * layer.logits / layout.tensor
        held *= self.factor("activations") * (1 + extra.fragments + self.expert_fragments)
        return held * layout.microbatch_size / layout.context

    @cached_by_arguments
    def backward_bytes(self, layers: Sequence[Layer], recompute: str) -> float:
        """Return the bytes that a backward of a stage adds: the maximum of three amounts, which it holds in turn.

        These are: the gradients of the loss; the largest recomputed layer (with the gradients of its largest product's
        input and output if all of it is recomputed); whole inputs and gradients of a block split along the sequence.
        """
        if not layers:
            return 0.0
        layout, extra = self.layout, self.layout.run_by.facts.extra
        chunks = layout.chosen("loss_chunks")
        logits = sum(self.share(layer.logits) for layer in layers) / chunks
        logit_bytes = layout.chosen("loss_bytes") + (LOGIT_BYTES if chunks > 1 else 0)
        loss = logits * logit_bytes
        if extra.logits:  # the activations count the logits of this GPU's part of the vocabulary only
            loss += logits * (layout.tensor - 1) * (logit_bytes + LOGIT_BYTES)

        def recomputed(layer: Layer) -> float:
            freed = self.activation_bytes(layer, "none") - self.activation_bytes(layer, recompute)
            return freed + (self.gradients_of_product(again) if (again := layer.repeated(recompute)) else 0.0)

        whole = extra.whole * (self.boundary_bytes - self.local_boundary_bytes)
        return max(loss, whole, *map(recomputed, dict.fromkeys(layers)))

    @cached_by_arguments
    def _stage_bytes(self, stage: Stage, devices_per_stage: float) -> dict[str, float]:
        """Return the bytes that a device holds of one of its stages, by parameter of `Costs`."""
        layout, layers = self.layout, stage.layers
        gathered, fraction = min(layout.max_active_stages * devices_per_stage, 1.0), min(devices_per_stage, 1.0)
        levels = layout.recompute_of_layers(layers, stage.recompute)
        whole = sum(layer.activation_bytes(recompute=level) for layer, level in zip(layers, levels, strict=True))
        weight_grad_bytes = sum(layer.weight_grad_bytes for layer in layers)
        parameters, reduced = self.gpu_parameters(layers), 0.0
        if layout.reduces_blocks:
            gathered, reduced = self.gathered_fractions(layers)
        state = np.array(layout.state_bytes(parameters, gathered, reduced)) * self.factor("state")
        held, boundary = sum(map(self.activation_bytes, layers, levels)), self.local_boundary_bytes
        return {
            "activation_bytes": held,
            "weight_bytes": state[0] + self.fp8_copies(layers),
            "gradient_bytes": state[1] + layout.gradient_buffer_bytes(layers, sum(parameters), fraction),
            "optimizer_bytes": state[2],
            "weight_grad_fraction_of_activation": min(1.0, weight_grad_bytes / whole) if whole else 1.0,
            "input_fraction_of_activation": boundary / max(held, boundary) if held > 0 else 0.0,
        }

    def _stages(self, num_stages: int, without_output: bool = False) -> list[Stage]:
        """Return the stages; `without_output` leaves out the model's head and the embedding's weights."""
        stages = zip(self.stage_layers(num_stages), self.layout.recompute_of_stages(num_stages), strict=True)
        if not without_output:
            return [Stage(tuple(layers), level) for layers, level in stages]
        first, *_, last = self.layout.layers_of(self.model)  # no device splits the losses of prediction modules
        left = {first: [replace(first, split_parameters=0)], last: [head(self.model)] * (last.losses - 1)}
        return [Stage(tuple(part for one in own for part in left.get(one, [one])), level) for own, level in stages]

    @cached_by_arguments
    def _stage_times(self, stage: Stage) -> dict[str, float]:
        """Return the seconds of a stage: computation of F, I and W, collectives of F and of I."""
        layers, levels = stage.layers, self.layout.recompute_of_layers(stage.layers, stage.recompute)
        works, exchanges = [self.work(layer) for layer in layers], list(map(self.exchange, layers, levels))
        repeated = sum(self.exchange(one).repeated for one in map(Layer.repeated, layers, levels) if one)
        return {
            "forward": sum(work.forward for work in works),
            "input_grad": sum(work.input_grad for work in works) + sum(map(self.repeated_seconds, layers, levels)),
            "weight_grad": sum(work.weight_grad for work in works),
            "forward_collectives": sum(one.forward for one in exchanges),
            "input_grad_collectives": sum(one.input_grad for one in exchanges) + repeated,
        }

    def _by_layer(self, stage: Stage) -> list[Stage]:
        """Return each layer of a stage as a stage of its own, with its recompute level."""
        levels = self.layout.recompute_of_layers(stage.layers, stage.recompute)
        return [Stage((layer,), level) for layer, level in zip(stage.layers, levels, strict=True)]

    @cached_by_arguments
    def _host_seconds(self, stage: Stage) -> tuple[float, float]:
        """Return the seconds that the host takes to start a stage's F, and its B."""
        each = [host_seconds(self, one.layers[0], one.recompute) for one in self._by_layer(stage)]
        return sum(one[0] for one in each), sum(one[1] for one in each)

    @cached_by_arguments
    def _host_waits(self, stage: Stage, devices: int) -> tuple[float, float]:
        """Return the seconds that a stage's F and B wait for hosts, on a pipeline of `devices` devices."""
        forwards, backwards, drift, counting, counting_again = list[LayerTimes](), list[LayerTimes](), 0.0, 0.0, 0.0
        for one in self._by_layer(stage):
            layer, seconds, host = one.layers[0], self._stage_times(one), self._host_seconds(one)
            pieces = self._pieces(one)[0]
            forward = seconds["forward"] + seconds["forward_collectives"]
            host_drift, gpu_drift = drift_seconds(self, layer, devices)
            times, is_repeated = LayerTimes(forward, host[0]), layer.repeated(one.recompute) is not None
            idle, counted = counting_seconds(self, layer, times, pieces.dispatch + pieces.mlp)
            backward = sum(seconds.values()) - forward + is_repeated * idle
            forwards.append(LayerTimes(forward + idle + gpu_drift, host[0] + host_drift))
            backwards.append(LayerTimes(backward + gpu_drift, host[1] + host_drift))
            drift += gpu_drift
            counting += idle + counted
            counting_again += is_repeated * (idle + counted)

        def delay(layers: Sequence[LayerTimes]) -> float:
            wait = host_wait_seconds(layers, self.layout.launch_blocking)
            return wait + drift + stall_seconds(self, devices, wait + sum(layer.gpu for layer in layers))

        return delay(forwards) + counting, delay(backwards[::-1]) + counting_again

    def _times(self, stages: Sequence[Stage]) -> dict[str, np.ndarray]:
        return _columns([self._stage_times(stage) for stage in stages])

    def for_stages(
        self, num_stages: int, devices: int | None = None, copies: Sequence[int] | None = None,
        output_parts: Sequence[int] = (), slices: int = 1,
    ) -> Costs:  # fmt: skip
        """Return the costs as per-stage lists.

        Parameters
        ----------
        num_stages : int
            Stages of the schedule.
        devices : int, optional
            Scales given times that are per device share. Default: one per stage.
        copies : sequence of int, optional
            Devices of a pipeline that hold each stage. Default: one.
        output_parts : sequence of int
            Stages that split the output layer (which S and T run) and the embedding's weights; empty: no split.
        slices : int
            Slices of a microbatch; the times are those of all slices of a microbatch together.
        """
        if devices is not None:
            argument("devices", devices, device_count)
        stages = self._stages(num_stages, len(output_parts) > 0)
        if not {*output_parts} <= {*range(num_stages)}:
            raise ConfigError(f"output_parts={shown(output_parts)} must list stages from 0 to {num_stages - 1}")
        devices_per_stage, times = (devices or num_stages) / num_stages, self._times(stages)
        bytes_held = [self._stage_bytes(stage, devices_per_stage) for stage in stages]
        parameters = [self.gpu_parameters(stage.layers) for stage in stages]
        output_parameters = self._parameters_of_part(len(output_parts)) if output_parts else 0.0
        for stage in output_parts:
            parameters[stage] = parameters[stage][0] + output_parameters, parameters[stage][1]
        near, backward = self.cluster.link.among(2), times["input_grad"] + times["weight_grad"]
        waits = np.array([self._host_waits(stage, devices or num_stages) for stage in stages]).T
        step_stages = [
            StageOfStep(
                parameters[index], saved_by_fp8(self, stage.layers), copies[index] if copies else 1, len(stage.layers),
                forward=times["forward"][index] + waits[0][index], backward=backward[index] + waits[1][index],
            )
            for index, stage in enumerate(stages)
        ]  # fmt: skip
        derived = {
            "forward": times["forward"] + times["forward_collectives"] + waits[0],
            "input_grad": times["input_grad"] + times["input_grad_collectives"] + waits[1],
            "weight_grad": times["weight_grad"],
            **_columns(bytes_held),
            "transfer_bytes": self.transfer_bytes,
            "latency": near.latency,
            "bandwidth": near.bandwidth,
            "offload_latency": self.cluster.host_latency,
            "offload_bandwidth": self.cluster.host_bandwidth,
            **step_seconds(self, step_stages),
        }
        if slices > 1:
            tokens = self.model.sequence * self.layout.microbatch_size / (self.layout.context * slices)
            derived |= {name: derived[name] * max(1.0, MIN_SLICE_TOKENS / tokens) for name in TIMES}
        if self.layout.overlap:
            derived["overlap"] = self._slots(stages, times)
        buffers = self.exchange_bytes + self.graph_bytes * ((devices or num_stages) > 1)
        derived["weight_bytes"] = derived["weight_bytes"] + buffers * devices_per_stage
        given = self._given_per_stage(num_stages, devices)
        if {*BACKWARD} & given.keys():
            del derived["input_grad"], derived["weight_grad"]
        names = [*derived, "backward"] if "input_grad" in derived else [*derived]
        provenance = {name: "derived" for name in names if name not in given}
        return Costs(**{**derived, **given}, per="stage", provenance=provenance)

    def _slots(self, stages: Sequence[Stage], times: dict[str, np.ndarray]) -> np.ndarray:
        """Return the slot lengths by [stage of F, stage of B].

        A slot lasts as long as both parts' computation or both parts' collectives, if that is longer; or as two
        streams take; and at least as long as the host. Hidden collectives slow the computation; an achieved fraction
        already contains that.
        """
        computing = times["forward"][:, None] + (times["input_grad"] + times["weight_grad"])[None, :]
        exchanging = times["forward_collectives"][:, None] + times["input_grad_collectives"][None, :]
        two = self.layout.overlap == TWO_STREAM
        slots = slot_matrix([*map(self._pieces, stages)], combined_slot) if two else np.maximum(computing, exchanging)
        hosts = np.array([self._host_seconds(stage) for stage in stages]).T
        slots = slots + self.slot_contention * np.maximum(computing + exchanging - slots, 0.0)
        return np.maximum(slots, hosts[0][:, None] + hosts[1])

    @property
    def slot_contention(self) -> float:
        """Seconds that a second of collectives adds to the computation of a slot that hides it."""
        contention = self.cluster.contention if self.cluster.device.achieved is None else 0.0
        if self.layout.expert == 1:
            return contention
        between_nodes = group_of(self.cluster, self.layout.expert).nodes > 1
        return min(contention, EXCHANGE_PROCESSORS[between_nodes])  # tokens move little memory

    @cached_by_arguments
    def _pieces(self, stage: Stage) -> tuple[LayerPieces, ...]:
        return tuple(layer_pieces(self, one.layers[0], self._stage_times(one)) for one in self._by_layer(stage))

    def _given_per_stage(self, num_stages: int, devices: int | None) -> dict[str, Any]:
        given = {name: value for name, value in self.given.items() if name != "per"}
        if given.get("slice_costs") == CAUSAL:
            given["slice_costs"] = {"attention": attention_fraction(self.model.layers) if self.model.causal else 0.0}
        if self.given.get("per", "device") == "device":
            scale = (devices or num_stages) / num_stages
            for name in SCALED:
                if name in given:
                    given[name] = (np.asarray(given[name], np.float64) * scale).tolist()
        return given

    def table(self, schedule: ScheduleColumns) -> CostTable:
        """Return the costs of `schedule`, with the link of each pair of devices by their nodes.

        Raises CostError or ConfigError if partition, recompute levels or nodes do not fit the schedule.
        """
        num_stages, devices, cut = schedule.num_stages, schedule.devices, schedule.cuts_vocabulary
        stages = self._stages(num_stages, cut)
        parts = np.unique(schedule.stage[is_vocabulary(schedule.kind)]).tolist()
        copies = np.bincount(schedule.holdings[:, 1]).tolist()
        blocks = np.array([one.count("block") for one in _layer_names(stages)])
        priced = self.for_stages(num_stages, devices, copies, parts, schedule.slices).table(schedule)
        times, free = self._times(stages), np.zeros(num_stages)
        in_forward = free if "forward" in self.given else times["forward_collectives"]
        in_backward = free if {*BACKWARD} & self.given.keys() else times["input_grad_collectives"]
        columns = link_columns(self.cluster, self.layout.gpus_per_device, devices) | {
            "stage_share": blocks * devices / self.model.num_layers, "workload": self.workload(devices),
            "exchange_seconds": np.stack([in_forward, in_backward, in_backward, free]),
            "transfer_bytes": priced.transfer_bytes * boundary_widths(self.model, stages),
            "recompute_bytes": np.array([self.backward_bytes(*stage) for stage in stages]),
            "host_seconds": host_time.step_launch_seconds(self),
        }  # fmt: skip
        if len(schedule.holdings) > devices and not cut:  # stages of one device share an embedding
            columns["copied_bytes"] = self.copied_bytes(_layer_names(stages), devices / num_stages)
        given = {column for column, costs in GIVEN_COLUMNS.items() if costs & self.given.keys()}
        table = replace(priced, **{name: column for name, column in columns.items() if name not in given})
        is_split = schedule.microbatches == 1 and self.layout.shards_by("step") and not {*STATE} & self.given.keys()
        if is_split and table.state_bytes is not None:
            weights, _, optimizer = table.state_bytes  # its backward splits the gradients of each block at once
            gradients = optimizer * self.layout.gradient_bytes / self.layout.chosen("optimizer_bytes")
            table = replace(table, state_bytes=np.stack([weights, gradients, optimizer]))
        return self._with_output_parts(schedule, table, parts) if cut else table

    def _with_output_parts(self, schedule: ScheduleColumns, table: CostTable, stages: Sequence[int]) -> CostTable:
        """Return a table of stages without an output layer, with a part of that layer on each of `stages`.

        A part is the output layer of 1/len(stages) of the vocabulary, and the embedding's rows for it; its S holds its
        logits until T, or until it ends if the lists have no T. Given costs are not replaced. Source: Yeung et al.
        2024, arXiv 2411.05288, sections 3 and 4.
        """
        part, given = head(self._model_of_part(len(stages))), self.given.keys()
        holds = np.isin(np.arange(schedule.num_stages), stages)
        changed: dict[str, Any] = self._output_reductions(schedule)
        if not given & {"vocabulary_forward", "vocabulary_backward"}:
            work, exchanged = self.work(part), self.exchange(part)
            backward = work.input_grad + work.weight_grad + exchanged.input_grad
            changed["vocabulary_seconds"] = np.outer((work.forward + exchanged.forward, backward), holds)
        if table.state_bytes is not None and not given & {*STATE}:
            state = self.layout.state_bytes((self._parameters_of_part(len(stages)), 0.0))
            changed["state_bytes"] = table.state_bytes + np.outer(state, holds)
        if "activation_bytes" not in given:
            changed["vocabulary_bytes"] = holds * self.activation_bytes(part, "none")
        return replace(table, **changed)

    def _output_reductions(self, schedule: ScheduleColumns) -> dict[str, Any]:
        """Return the seconds of all-reducing the input gradient, and the statistics: three fp32 numbers per token.

        These are maximum, predicted logit and sum of exponentials, one after the other. Without T in the lists they go
        with the gradient. A given `vocabulary_reduce` is that of the statistics too, unless those are given.
        Source: sail-sg/VocabularyParallelism, vocab_parallel_schedule.py, `reduce_lm_head_res_alg1` and `_alg2`.
        """
        if "vocabulary_reduce" in self.given:
            return {}
        members = group_of_pipeline(self.cluster, schedule.devices, self.layout.gpus_per_device)
        statistics = 3 * all_reduce(members, self.local_boundary_bytes * 4 / (VALUE_BYTES * self.model.hidden))
        seconds = all_reduce(members, self.local_boundary_bytes)
        if not (schedule.kind == Kind.T).any():
            return {"vocabulary_reduce_seconds": seconds + statistics}
        if "vocabulary_statistics" in self.given:
            return {"vocabulary_reduce_seconds": seconds}
        return {"vocabulary_reduce_seconds": seconds, "vocabulary_statistics_seconds": statistics}

    def _model_of_part(self, parts: int) -> Model:
        """Return the model with the vocabulary of one of `parts`."""
        return replace(self.model, vocabulary=-(-self.model.vocabulary // parts))

    def _parameters_of_part(self, parts: int) -> float:
        """Return the parameters of one of `parts` on one GPU: of output and embedding, or once if they are tied.

        Every device holds the final norm; learned positions stay with the first stage.
        """
        model = self._model_of_part(parts)
        others = [] if model.tied_embeddings else [replace(embedding(model), copied_parameters=0)]
        return sum(self.layout.gpu_parameters(layer)[0] for layer in (head(model), *others))

    @property
    def provenance(self) -> Mapping[str, str]:
        """Origin of each parameter of `Costs`: "derived" or "given"."""
        left_out = {"per", "slice_costs", "recompute", "offload_bytes", "offload_switch"}
        left_out |= {"microbatch_scale", "microbatch_order", "" if self.layout.overlap else "overlap"}
        derived = {name: "derived" for name in PARAMETERS if name not in left_out}
        return derived | {name: "given" for name in self.given if name != "per"}

    def spread(self, devices: int) -> Spread | None:
        """Return the spread of derived steps on `devices` devices; None if times of actions are given."""
        argument("devices", devices, device_count)
        return None if {"forward", *BACKWARD, "overlap"} & self.given.keys() else spread_of(self, devices)

    @property
    def assumptions(self) -> list[str]:
        """Assumptions of the derivation, one readable sentence each, with units and sources."""
        given = ", ".join(name for name in self.given if name != "per")
        found = [self.model.approximated, self.calibration.sentence if self.calibration else "", *sentences(self)]
        found.append(f"given instead of derived: {given}" if given else "")
        return [sentence for sentence in found if sentence]


def _columns(rows: list[dict[str, float]]) -> dict[str, np.ndarray]:
    return {name: np.array([row[name] for row in rows], np.float64) for name in rows[0]}


def _layer_names(stages: Sequence[Stage]) -> list[list[str]]:
    return [[layer.name for layer in stage.layers] for stage in stages]
