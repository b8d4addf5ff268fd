"""Setup: a model on a cluster in a layout; the amounts from which effects are priced; columns of stage boundaries."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, wraps
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ppsim.base.errors import ConfigError
from ppsim.base.immutable import short_repr
from ppsim.base.rules import argument, check_fields, checked_methods, declared, device_count, instance, is_number, rule
from ppsim.costs.layers import VALUE_BYTES, AttentionCore, Layer, Linear, Operators
from ppsim.costs.layout import WEIGHT_BYTES, Layout, recompute_levels
from ppsim.costs.model import Model
from ppsim.costs.operators import (
    BACKWARD_PASSES,
    COPY_BYTES,
    FP8_BYTES,
    FUSED_LOSS,
    FUSED_NORM,
    PERMUTE_SPEED,
    SCORES_AGAIN,
    TRITON,
    UNFUSED_PASSES,
    Computation,
)
from ppsim.costs.pairs import ports_by_node, values_by_node
from ppsim.costs.shape import boundary_width
from ppsim.costs.sheets import Cluster
from ppsim.costs.table import Workload

Value = TypeVar("Value")
FACTORS = rule(
    lambda value: isinstance(value, Mapping) and all(is_number(one) and 0 < one < math.inf for one in value.values()),
    "must give each constant a factor above 0, such as those of calibrate_steps(runs)",
)


def cached_by_arguments(method: Callable[..., Value]) -> Callable[..., Value]:
    """Return a method of a `Setup` that stores its results by their arguments: most layers and stages are equal."""

    @wraps(method)
    def stored(self: Setup, *arguments: Any) -> Value:
        key = method, *(tuple(one) if isinstance(one, list) else one for one in arguments)
        if key not in self._computed:
            self._computed[key] = method(self, *arguments)
        return self._computed[key]

    return stored


@checked_methods
@dataclass(frozen=True, repr=False)
class Setup:
    """A model on a cluster in a layout; ConfigError names every size of the layout that does not fit the model."""

    model: Model = declared("the model", instance(Model, "ppsim.Model(...) makes one"))
    cluster: Cluster = declared("what it runs on", instance(Cluster, "ppsim.Cluster(...) makes one"))
    layout: Layout = field(default_factory=Layout, metadata={
        "what": "how it is spread", "check": instance(Layout, "ppsim.Layout(...) makes one")
    })  # fmt: skip
    factors: Mapping[str, float] = field(default_factory=dict, kw_only=True, metadata={
        "what": "factors of the laws' constants by name, which a calibration gives", "check": FACTORS
    })  # fmt: skip

    __repr__ = short_repr

    def __post_init__(self) -> None:
        check_fields(self)
        faults = self.layout.faults(self.model)
        device = self.cluster.device
        if self.layout.fp8 != "none" and device.peak_fp8 is None:
            faults.append(
                f"fp8='{self.layout.fp8}' needs the fp8 peak of {device.name}, which its sheet does not give; use none "
                f"or give hardware.device.peak_fp8"
            )
        if faults:
            raise ConfigError("; ".join(faults))

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields alone: computed results are keyed by objects of this process."""
        return {item.name: getattr(self, item.name) for item in fields(self)}

    def factor(self, name: str) -> float:
        """Return the calibrated factor of a constant that is not a field of model, cluster or layout; 1 by default."""
        return self.factors.get(name, 1.0)

    @property
    def expert_fragments(self) -> float:
        """Fraction of the activations that a GPU holds in addition if GPUs share experts; 0 if each has all experts."""
        return self.layout.run_by.facts.extra.expert_fragments if self.layout.expert > 1 else 0.0

    @property
    def graph_bytes(self) -> float:
        """Bytes of CUDA graphs that a GPU of a pipeline holds."""
        return self.layout.run_by.facts.extra.graphs if self.layout.chosen("cuda_graphs") else 0.0

    @property
    def exchange_bytes(self) -> float:
        """Bytes of the buffer for tokens of experts, if NVLink joins hosts: all of a group, with a weight per expert.

        deepseek-ai/DeepEP@94a9f8f, docs/Hybrid-EP_Implementation.md and csrc/hybrid_ep/buffer/intranode.cu.
        """
        layout, cluster, model = self.layout, self.cluster, self.model
        is_hierarchical = layout.expert > 1 and layout.chosen("expert_exchange") == "hierarchical"
        if not is_hierarchical or cluster.gpus_per_node <= cluster.gpus_per_host:
            return 0.0
        tokens = layout.expert * self.local_boundary_bytes / (VALUE_BYTES * model.hidden)
        experts = model.experts * min(1.0, cluster.gpus_per_node / (layout.expert * layout.split_experts))
        return tokens * (VALUE_BYTES * (model.expert_hidden or model.hidden) + 4 * experts)

    @property
    def step_bytes(self) -> int:
        """Bytes that an optimizer step moves for each parameter.

        Adam reads a gradient and its state, and writes the state and the bf16 weight. Before that a norm reads the
        gradient, and clipping reads and writes it: Megatron-LM, core/optimizer/clip_grads.py; PyTorch,
        nn/utils/clip_grad.py.
        """
        return 4 * 4 + 2 * self.layout.chosen("optimizer_bytes") + 2

    @cached_property
    def _computed(self) -> dict[Any, Any]:
        return {}

    @cached_by_arguments
    def work(self, layer: Layer) -> Computation:
        """Return the seconds of computation of a layer for one microbatch on one GPU."""
        layout, device, facts = self.layout, self.cluster.device, self.layout.run_by.facts
        if device.achieved is not None:
            return self._at_one_rate(layer)
        priced = self._priced(layer.operators)
        if not layer.losses:
            return priced
        moved = FUSED_LOSS if layout.fuses_loss else facts.moves.loss
        logits = self.share(layer.logits) * (layout.tensor if facts.extra.logits else 1)  # of all words on each GPU
        forward, backward = (device.rates.streaming(each * logits) for each in moved)
        return priced._replace(activations=forward, input_grad=priced.input_grad + backward)

    def _priced(self, operators: Operators) -> Computation:
        """Return the seconds of operators by the laws of the device."""
        layout, moves, rates = self.layout, self.layout.run_by.facts.moves, self.cluster.device.rates
        products, cores = list(map(self._product, operators.products)), list(map(self._core, operators.cores))
        sequences = layout.microbatch_size / layout.context
        whole = layout.tensor if layout.sequence_parallel else 1  # GPUs that split what tensor parallelism does not
        fuses_norms = layout.fused_norms is not False and (layout.chosen("fused") or layout.chosen("fused_norms"))
        normed = [each / FUSED_NORM[0] * sequences for each in (FUSED_NORM if fuses_norms else moves.norm)]
        passing = (1.0 if self._fuses_passes else UNFUSED_PASSES) * sequences
        hierarchical = layout.chosen("expert_exchange") == "hierarchical"
        routed = operators.routed_bytes * (sequences if moves.experts and hierarchical else passing)
        routed = 0.0 if layout.casts.fused_experts else routed
        is_plain = not self.model.gated and self.model.positions != "rotary"  # one kernel: torch.nn.functional.gelu
        activated = (operators.activation_bytes - operators.routed_bytes) * (sequences if is_plain else passing)
        activations = rates.streaming((activated + routed) / layout.tensor)
        head_norms = operators.head_norm_bytes / layout.tensor
        norms, norms_back = (rates.streaming(operators.norm_bytes * each / whole) for each in normed)
        heads, heads_back = (rates.streaming(head_norms * each) for each in normed)
        is_separate = not (self._fuses_passes or hierarchical)  # several operators permute tokens
        permuting = (1 + layout.extra_permutes(self.model)) / PERMUTE_SPEED + is_separate * (UNFUSED_PASSES - 1)
        permuted = rates.streaming(permuting * operators.regrouped_bytes * sequences / whole)
        others = rates.streaming((operators.other_bytes - operators.regrouped_bytes) * passing / whole) + permuted
        others += (operators.passes + (layout.router_kernels if operators.regrouped_bytes else 0)) * rates.law.launch
        forwards = [(linear, one[0]) for linear, one in zip(operators.products, products, strict=True)]
        again = sum(seconds * linear.recomputed(layout.casts.apply_to(linear)) for linear, seconds in forwards)

        def of_module(name: str) -> float:
            return sum(seconds for linear, seconds in forwards if linear.module == name)

        return Computation(
            products=sum(seconds for _, seconds in forwards), core=sum(one[0] for one in cores), norms=norms,
            activations=activations + heads, others=others, up=of_module("up"), latent=of_module("latent"),
            streams=rates.streaming(operators.stream_bytes * passing / whole),
            input_grad=sum(one[1] for one in [*products, *cores]) + BACKWARD_PASSES * (activations + others)
            + norms_back + heads_back,
            weight_grad=sum(one[2] for one in products),
            alternate=(others if operators.routed_bytes else 0.0) + again,
        )  # fmt: skip

    @property
    def _fuses_passes(self) -> bool:
        """True if element-wise operations are fused."""
        return self.layout.chosen("fused") and not (self.layout.run_by.facts.moves.gates and self.model.gated)

    def _product(self, linear: Linear) -> tuple[float, float, float]:
        """Return the seconds in F, I and W of a product, or of the products of a GPU's experts in turn."""
        layout, rates, casts = self.layout, self.cluster.device.rates, self.layout.casts
        copies, split, tokens = 1.0, layout.tensor, self.model.sequence * layout.microbatch_size / layout.context
        if linear.expert:  # a GPU's experts see expert_tensor / tensor of the tensor group's tokens
            copies, split = linear.copies / layout.expert, layout.split_experts
            tokens *= split / layout.tensor
        rows = tokens * linear.visits / copies
        inputs, outputs = linear.inputs, linear.outputs
        if linear.parallel == "column":
            outputs /= split
        elif linear.parallel == "row":
            inputs /= split
        else:
            rows /= split
        fp8, launch = casts.apply_to(linear), rates.law.launch
        forward = copies * rates.product(rows, outputs, inputs, fp8=fp8)
        input_grad = copies * rates.product(rows, inputs, outputs, fp8=fp8)
        gradient = 8 if layout.chosen("bf16_gradients") else layout.run_by.facts.moves.gradient
        weight_grad = copies * rates.product(inputs, outputs, rows, gradient, fp8)
        if linear.bias and not fp8 and not linear.expert:  # its gradient sums the output's; a cast sums in passing
            weight_grad += rates.streaming(VALUE_BYTES * rows * outputs) + launch
        if fp8 and not (linear.expert and casts.fused_experts):
            # an input that is not held belongs to another matrix too, which casts it
            input_cast = rates.cast(copies * rows * inputs, casts, copies) if linear.holds_input else 0.0
            weight_cast = rates.cast(copies * inputs * outputs, casts, copies) if casts.weights else 0.0
            forward += input_cast + weight_cast
            input_grad += rates.cast(copies * rows * outputs, casts, copies) + weight_cast  # W reads them too
            weight_grad += 0.0 if casts.holds_inputs else input_cast
        # kernels of an older GPU: cutlass_75_tensorop_..._align1 (pegainfer-project/pegainfer, pull request 1046)
        pads = layout.run_by.facts.pads_words or linear.module != "head" or -(-linear.outputs // split) % 2 == 0
        times = 1.0 if pads else rates.law.odd
        return times * forward + launch, times * input_grad + launch, times * weight_grad + launch

    def _core(self, core: AttentionCore) -> tuple[float, float]:
        """Return the seconds of an attention core in F and in I."""
        rates, sequence = self.cluster.device.rates, self.model.sequence
        gpu_share = self.layout.microbatch_size / self.layout.context / self.layout.tensor
        launch = rates.law.launch
        if core.kernel != "full":
            seconds = rates.attention(core.kernel, core.flops * gpu_share, core.window or sequence)
            backward = seconds * (TRITON[0] / TRITON[1] if core.kernel == "triton" else 1.0)
            return seconds + launch, 2 * SCORES_AGAIN * backward + launch
        products = rates.product(sequence, sequence, core.query) + rates.product(sequence, core.value, sequence)
        passes = rates.streaming(core.score_bytes * gpu_share * (1.0 if self._fuses_passes else UNFUSED_PASSES))
        seconds = core.heads * gpu_share * products
        launches = 5 * launch  # two products, scaling and mask, softmax, dropout
        return seconds + passes + launches, 2 * seconds + BACKWARD_PASSES * passes + launches

    def _at_one_rate(self, layer: Layer) -> Computation:
        """Return the seconds with every FLOP at the achieved fraction of the peak; all else is free."""
        device, in_fp8 = self.cluster.device, self.layout.casts.apply_to
        s, products, core = self.model.sequence, layer.operators.products, layer.attention_core
        speedup = (device.peak_fp8 or device.peak) / device.peak - 1  # of fp8: its FLOPs count as fewer
        saved = s * sum(one.flops for one in products if in_fp8(one)) * speedup / (1 + speedup)
        counted = [(one, s * one.flops / (1 + speedup if in_fp8(one) else 1)) for one in products]

        def seconds(flops: float) -> float:
            return self.share(flops) / self.rate

        return Computation(
            products=seconds(layer.forward - core - saved), core=seconds(core), norms=0.0, activations=0.0, others=0.0,
            up=seconds(sum(flops for one, flops in counted if one.module == "up")),
            latent=seconds(sum(flops for one, flops in counted if one.module == "latent")), streams=0.0,
            input_grad=seconds(layer.input_grad - saved), weight_grad=seconds(layer.weight_grad - saved),
            alternate=seconds(sum(flops * one.recomputed(in_fp8(one)) for one, flops in counted)),
        )  # fmt: skip

    def repeated_seconds(self, layer: Layer, recompute: str) -> float:
        """Return the seconds of the computation that a layer's backward repeats under a recompute level."""
        argument("recompute", recompute, recompute_levels)
        again = layer.repeated(recompute)
        if again is layer:
            stops = self.layout.run_by.facts.early_stop and self.cluster.device.achieved is None
            return self.work(layer).forward - (self._product(layer.operators.products[-1])[0] if stops else 0.0)
        if not layer.recomputable or recompute == "none":
            return 0.0
        if recompute == "selective":
            holds_scores = any(held.module == "core" and held.bytes for held in layer.held)
            return self.work(layer).core if holds_scores else 0.0
        modules = [one for one in recompute.split("+") if one not in ("mlp", "moe")]
        return self.work(layer).module_seconds(modules) + (self.work(again).forward if again else 0.0)

    @property
    def rate(self) -> float:
        """FLOP/s that one GPU reaches over all computation of a step without recomputation."""
        device = self.cluster.device
        if device.achieved is not None:
            return device.peak * device.achieved
        flops = sum(self.share(layer.forward + layer.input_grad + layer.weight_grad) for layer in self.model.layers)
        return flops / sum(self.work(layer).whole for layer in self.model.layers)

    def share(self, amount: float) -> float:
        """Return one GPU's share, for one microbatch, of an amount of one whole sequence."""
        return amount * self.layout.microbatch_size / (self.layout.tensor * self.layout.context)

    @property
    def boundary_bytes(self) -> float:
        """Bytes of one microbatch's hidden states between two layers, before sequence parallelism splits them."""
        model, layout = self.model, self.layout
        return VALUE_BYTES * model.sequence * layout.microbatch_size * model.hidden / layout.context

    @property
    def local_boundary_bytes(self) -> float:
        """Bytes of `boundary_bytes` that one GPU holds: all, or 1/tensor with sequence parallelism."""
        return self.boundary_bytes / (self.layout.tensor if self.layout.sequence_parallel else 1)

    @property
    def transfer_bytes(self) -> float:
        """Bytes that one GPU sends to the next stage, and back, for one microbatch."""
        layout = self.layout
        split = layout.sequence_parallel or layout.chosen("scatter_transfers")
        return self.boundary_bytes / (layout.tensor if split else 1)

    @cached_by_arguments
    def gpu_parameters(self, layers: Sequence[Layer]) -> tuple[float, float]:
        """Return a stage's dense parameters, and those of routed experts, on one GPU.

        A matrix that several heads of the stage use, or a tied one that its embedding uses too, counts once. A stage
        with prediction modules has a copy of the embedding: NVIDIA/Megatron-LM d98e8a6, core/models/gpt/gpt_model.py.
        """
        if not layers:
            return 0.0, 0.0
        names = {layer.name for layer in layers}
        if "prediction" in names and "embedding" not in names:
            layers = [*layers, replace(self.model.layers[0], copied_parameters=0)]
        dense, experts = (sum(part) for part in zip(*map(self.layout.gpu_parameters, layers), strict=True))
        users = ("embedding", "head") if self.model.tied_embeddings else ("head",)
        for again in [layer for layer in layers if layer.name in users][:-1]:
            dense -= self.layout.gpu_parameters(replace(again, copied_parameters=0))[0]
        return float(dense), float(experts)

    def gradients_of_product(self, layer: Layer) -> float:
        """Return the bytes of the gradients of the largest product's input and output, of one microbatch on one GPU."""
        layout = self.layout
        tokens = self.model.sequence * layout.microbatch_size / layout.context

        def width(linear: Linear) -> float:
            token_share = layout.split_experts / layout.tensor if linear.expert else 1.0  # of a tensor group's tokens
            return sum(layout.local_shape(linear)) * linear.visits * token_share

        return VALUE_BYTES * tokens * max(map(width, layer.operators.products), default=0.0)

    def gathered_fractions(self, layers: Sequence[Layer]) -> tuple[float, float]:
        """Return the fractions of a stage's parameters that a GPU holds gathered, and with whole gradients, by block.

        Two blocks are gathered at a time, and the root (embedding and head) from the first forward to the last
        backward. Whole gradients are those of the blocks that the framework reduces at a time, or of the root.
        PyTorch's allocator has a pool per stream, so these always add to the peak of the activations. Source: PyTorch,
        fully_shard; Megatron-LM, docs/user-guide/features/megatron_fsdp.md, Double Buffering.
        """
        total, at_once = sum(self.gpu_parameters(layers)), self.layout.run_by.facts.messages.blocks
        if not total:
            return 0.0, 0.0
        blocks = sorted(sum(self.layout.gpu_parameters(layer)) for layer in layers if layer.recomputable)
        root = total - sum(blocks)
        return (root + sum(blocks[-2:])) / total, max(root, sum(blocks[-at_once:])) / total

    def fp8_copies(self, layers: Sequence[Layer]) -> float:
        """Return the bytes of weights in fp8 minus the bf16 bytes that they replace; of two blocks if sharded."""
        layout, fp8 = self.layout, [sum(self.layout.fp8_parameters(layer)) for layer in layers]
        if layout.shards_by("block"):
            return (FP8_BYTES - WEIGHT_BYTES) * sum(sorted(fp8)[-2:]) if layout.fp8_gather else 0.0
        return (COPY_BYTES - (WEIGHT_BYTES if layout.fp8_gather else 0)) * sum(fp8)

    def copied_bytes(self, stages: Sequence[Iterable[str]], devices_per_stage: float) -> np.ndarray:
        """Return the bytes of weights, gradients and optimizer state of the embedding and the head, (3, 2, stages).

        `stages` are the names of their layers. The embedding's matrix is also on stages with prediction modules, and
        with the head if it is tied; an untied head is on each stage with a loss: DeepSeek-V3, arXiv 2412.19437,
        section 3.2.3.
        """
        layout, model = self.layout, self.model
        of_embedding, of_head = {"embedding", "prediction"}, {"head"}
        if model.tied_embeddings:
            of_embedding, of_head = of_embedding | of_head, set[str]()
        holders = np.array([[not users.isdisjoint(names) for names in stages] for users in (of_embedding, of_head)])
        gathered = 1.0 if layout.reduces_blocks else min(layout.max_active_stages * devices_per_stage, 1.0)
        state = layout.state_bytes((model.vocabulary * model.hidden / layout.tensor, 0.0), gathered)
        return np.array(state)[:, None, None] * self.factor("state") * holders

    def workload(self, devices: int) -> Workload:
        """Return the tokens, FLOPs and GPUs of a step on a pipeline of `devices` devices."""
        sequences = self.layout.microbatch_size * self.layout.data
        return Workload(
            tokens=self.model.sequence * sequences,
            flops=self.model.step_flops() * sequences,
            gpus=self.gpus(devices),
            peak=self.cluster.device.peak,
            memory=self.cluster.device.capacity,
            masked_flops=self.model.masked_flops() * sequences,
        )

    def gpus(self, devices: int) -> int:
        """Return the GPUs of the whole job."""
        argument("devices", devices, device_count)
        return devices * self.layout.gpus_per_device


# Boundaries between stages: the number of hidden states that cross them, the links and the network cards.


class Stage(NamedTuple):
    """Layers of a stage, and its recompute level."""

    layers: tuple[Layer, ...]
    recompute: str


def boundary_widths(model: Model, stages: Sequence[Stage]) -> np.ndarray:
    """Return the number of hidden states that each stage sends in F and in B, (2, stages); see `boundary_width`."""
    widths, before = [1], Counter[str]()
    for stage in stages[:-1]:
        before.update(layer.name for layer in stage.layers)
        widths.append(boundary_width(model, before["block"], before["prediction"], before["head"]))
    return np.array([[*widths[1:], 1], widths], np.float64)


def link_columns(cluster: Cluster, group: int, devices: int) -> dict[str, Any]:
    """Return the columns of transfers by pair of devices: link or network, and the network cards they use."""
    nodes = np.array(cluster.nodes(devices, group))
    link, network = cluster.link.among(2), cluster.network_of_group(group)
    return card_columns(cluster, [(group, devices)]) | {
        "latency": values_by_node(nodes, link.latency, network.latency),
        "seconds_per_byte": values_by_node(nodes, 1 / link.bandwidth, 1 / network.bandwidth),
    }


def card_columns(cluster: Cluster, towers: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return the columns of network cards, for towers of (GPUs per device, devices). A tower begins on a new node."""
    if cluster.cards_per_node is None:
        return {}
    cards = np.concatenate([
        np.insert(cluster.cards_of_devices(devices, group), 0, tower, axis=1)
        for tower, (group, devices) in enumerate(towers)
    ])  # fmt: skip
    _, node = np.unique(cards[:, :2], axis=0, return_inverse=True)
    _, card = np.unique(cards, axis=0, return_inverse=True)
    out = 2 * card.reshape(-1, 1)
    ports = ports_by_node(node.reshape(-1), out, out + 1, np.ones(2, bool))
    return {"link_ports": ports, "port_capacity": np.ones(2 * (card.max() + 1), np.int64)}
