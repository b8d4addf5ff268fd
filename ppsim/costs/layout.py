"""Layout: a model's parallel groups, its partition into stages, and its recompute policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ppsim.base import rules
from ppsim.base.errors import ConfigError, CostError, UnknownNameError, shown
from ppsim.base.immutable import short_repr
from ppsim.base.rules import check_fields, declarations, declared, described
from ppsim.costs import partition
from ppsim.costs.layers import MODULES, RECOMPUTE, Layer, Linear
from ppsim.costs.model import Model
from ppsim.costs.operators import RECIPES, Casts
from ppsim.costs.partition import LayoutString
from ppsim.frameworks import DEFAULT, EXAMPLE, FACTS, Named, framework
from ppsim.lowering.sharding import MAX_ACTIVE_STAGES

WEIGHT_BYTES = 2
# Values of `layout.sharding`, and the keys that each sets.
SHARDINGS: Mapping[str, Mapping[str, bool]] = {
    kind: {"distributed_optimizer": optimizer, "sharded_gradients": gradients, "sharded": weights}
    for kind, optimizer, gradients, weights in (
        ("none", False, False, False),
        ("optimizer", True, False, False),
        ("gradients", True, True, False),
        ("weights", False, False, True),
        ("hybrid", False, False, True),  # with `replicas` above 1
    )
}


def recompute_levels(value: Any) -> str | tuple[str, ...]:
    """Return a legal recompute level, or a tuple of one per stage; raise ConfigError for others."""
    levels: tuple[Any, ...] = tuple(value) if isinstance(value, list | tuple) and value else (value,)
    for level in levels:
        if not isinstance(level, str) or (level not in RECOMPUTE and not {*level.split("+")} <= {*MODULES}):
            raise ConfigError(
                f"{shown(level)} is not known; use one of: {', '.join(RECOMPUTE)}, or modules such as "
                f"{'+'.join(MODULES[:3])} (of {', '.join(MODULES)}), or a list per stage"
            )
    return value if isinstance(value, str) else levels


def _framework(value: Any) -> str:
    """Return a known framework, with its version if it names one; raise ConfigError for others."""
    framework(str(value) if isinstance(value, str) else shown(value))
    return value


def _group(what: str, example: str) -> Any:
    return declared(what, rules.whole_number(), 1, example=example)


def _policy(what: str) -> Any:
    return declared(what, rules.flag, False, example="true")


def _by_framework(what: str, otherwise: Any = False, rule: Any = rules.flag, example: str = "true") -> Any:
    """Declare a policy; `otherwise` is its value if neither the layout nor its framework sets it."""
    return declared(what, rule, None, example=example, default_text="the framework's", otherwise=otherwise)


def _count(what: str, example: str, default: str = "like the others") -> Any:
    return declared(what, rules.whole_number(0), None, example=example, default_text=default)


@described
@dataclass(frozen=True, repr=False)
class Layout:
    """Sizes of the parallel groups, and the policies that go with them.

    One pipeline device represents a group of `tensor x context x data` GPUs that all do the same work.
    Raises ConfigError with the parameter, its value and what is legal.
    """

    tensor: int = _group("size of the tensor-parallel group", "8")
    context: int = _group("size of the context-parallel group", "2")
    expert: int = _group(
        "size of the expert-parallel group, which lies within context x data, with `expert_tensor` within tensor too",
        "8",
    )
    data: int = _group("size of the data-parallel group", "16")
    sequence_parallel: bool = _policy(
        "split what tensor parallelism leaves whole (norms, dropout) along the sequence (Korthikanti et al. 2022)"
    )
    distributed_optimizer: bool = _policy("split the optimizer state over data x context (ZeRO stage 1)")
    sharded: bool = _policy(
        "split weights too (ZeRO stage 3): UNSHARD gathers a stage's before use, REDUCE_GRAD scatters its gradients"
    )
    replicas: int = _group(
        "groups of the data x context GPUs, each with all sharded state (hybrid sharding, HSDP): gathers stay inside a "
        "group, gradients are reduced over all", "2",
    )  # fmt: skip
    microbatch_size: int = _group("sequences in one microbatch", "4")
    partition: str | tuple[int, ...] | LayoutString = declared(
        "`even`: equal numbers of blocks, embedding with the first and head with the last stage; `greedy`, `optimal` "
        "(or `by_cost(...)`): by the seconds of all layers; `balanced`: equal work per device, within its memory; a "
        "list of the blocks of each stage; or a layout string of Megatron-LM, such as `Et*3|(tt|)*29,m|L`",
        partition.read_partition,
        "even",
        example="[5, 6, 6, 5]",
    )
    first_stage_layers: int | None = _count("blocks of the first stage in addition to the embedding, with `even`", "5")
    last_stage_layers: int | None = _count("blocks of the last stage in addition to the head, with `even`", "5")
    recompute: str | tuple[str, ...] = declared(
        "`none`, `selective`, `full`, modules, or a list per stage", recompute_levels, "none", example="selective"
    )
    recompute_stages: int | None = _count("apply `recompute` to this many first stages", "2", "all")
    recompute_blocks: int | None = _count("apply `recompute` to this many blocks of each stage", "2", "all")
    framework: str = declared(
        "software that runs the config; it sets the defaults below and the host's time per kernel: "
        + ", ".join(f"`{name}`" for name in FACTS)
        + " (any other with PyTorch). A version may follow; the nearest known one counts (default: the newest)",
        _framework, DEFAULT, example=EXAMPLE,
    )  # fmt: skip
    overlap_tensor: bool | None = _by_framework("the products of a block hide its tensor-parallel collectives")
    overlap_data: bool | None = _by_framework(
        "backwards hide the reduction of gradients (in buckets), the next forward the gather of weights"
    )
    scatter_transfers: bool | None = _by_framework("GPUs of a tensor-parallel group each send a part of a transfer")
    sharded_by: str | None = _by_framework(
        "with `sharded`: `stage`, gathered by UNSHARD (torchtitan's pipelines); `block`, gathered under the block "
        "before it and freed; or `step`, gathered once a step and held, gradients reduced after the last backward",
        "stage", rules.choice("stage", "block", "step"), "block",
    )  # fmt: skip
    sharded_gradients: bool | None = _by_framework(
        "with `distributed_optimizer`: gradients split too (ZeRO stage 2), reduced by block for each microbatch"
    )
    context_exchange: str | None = _by_framework(
        "`gather` keys and values before attention (Llama 3); `ring`: pass them on from GPU to GPU, a part of the "
        "attention at a time; `all-to-all`: heads for tokens and back (Ulysses)",
        "gather", rules.choice("gather", "ring", "all-to-all"), "gather",
    )  # fmt: skip
    overlap_context: bool | None = declared(
        "this exchange overlaps the attention", rules.flag, None, example="false", default_text="of a ring alone",
    )  # fmt: skip
    expert_tensor: int | None = declared(
        "GPUs that split the matrices of each expert; with 1, expert groups span the GPUs of tensor groups, each with "
        "whole experts (expert tensor parallelism of Megatron-Core)",
        rules.whole_number(), None, example="1", default_text="`tensor`",
    )  # fmt: skip
    expert_exchange: str | None = _by_framework(
        "`all-to-all`, or `hierarchical`: a token goes once to each node that has experts of it (DeepEP)",
        "all-to-all", rules.choice("all-to-all", "hierarchical"), "hierarchical",
    )  # fmt: skip
    grouped_experts: bool | None = _by_framework("a GPU's experts run as one kernel, if the framework has one")
    expert_nodes: int | None = _count("maximum nodes with experts of one token", "4", "no limit")
    expert_groups: int = _group("equal groups of experts, from which a router first chooses `groups_per_token`", "8")
    groups_per_token: int = _group("groups with experts of one token", "4")
    loss_bytes: int | None = _by_framework(
        "bytes per logit that the loss holds in its backward, in addition to the fp32 logits: 2 if the gradient takes "
        "their place and is cast (Megatron-LM), 8 of PyTorch's `cross_entropy`, 12 of its `loss_parallel`, 0 where "
        "loss and head are one kernel", 2, rules.whole_number(0), "0",
    )  # fmt: skip
    loss_chunks: int | None = _by_framework(
        "parts of a sequence in head and loss, in turn", 1, rules.whole_number(), "8"
    )
    bf16_gradients: bool | None = _by_framework(
        "gradients are summed over microbatches and reduced in bf16, 2 bytes each, not in fp32"
    )
    gradient_buffers: bool | None = _by_framework(
        "a device holds a bf16 gradient per shape of matrix, in addition to the fp32 gradients"
    )
    optimizer_bytes: int | None = _by_framework(
        "bytes of optimizer state of a parameter: 12 for weight and moments in fp32, 8 with moments in bf16 (DeepSeek)",
        12, rules.whole_number(), "8",
    )  # fmt: skip
    fp8: str = declared(
        "products of a block, all but the router's, run in fp8: `tensor`, with one scale for each tensor, from its "
        "largest value; `delayed`: from that of the steps before; `block`: a scale for each block of a tensor "
        "(DeepSeek-V3, MXFP8); `none`: in bf16",
        rules.choice(*RECIPES), "none", example="tensor",
    )  # fmt: skip
    fp8_experts: bool | None = _by_framework("with `fp8`: the products of routed experts too", True)
    fp8_head: bool = _policy("with `fp8`: the head's product too")
    fused_router: bool | None = _by_framework("a router's kernels are fused (Megatron-LM: --moe-router-fusion)")
    fused_experts: bool | None = _by_framework("with `fp8: block`: a GPU's experts, activation, casts are one kernel")
    fp8_inputs: bool | None = _by_framework("with `fp8`: inputs are held in fp8 for the backward, else in bf16", True)
    fp8_gather: bool = _policy("with `fp8`: sharded weights are gathered, and a distributed optimizer's kept, in fp8")
    fp8_activations: bool = _policy("inputs of an MLP's activation are held in fp8 (activation_func_fp8_input_store)")
    fp8_dispatch: bool = _policy("tokens are sent to experts in fp8, and returned in bf16 (DeepSeek-V3)")
    fused: bool | None = _by_framework(
        "element-wise operations are fused into one pass, by a compiler or by hand", True
    )
    fused_norms: bool | None = _by_framework("each norm is one kernel, and with `fused: false` holds nothing in fp32")
    fused_loss: bool | None = _by_framework(
        "the loss is one kernel, with `fused: false` only if set here (Megatron-LM: --cross-entropy-loss-fusion)", True
    )
    cuda_graphs: bool | str | None = _by_framework(
        "CUDA graphs launch the kernels, so no GPU waits for its host; `router`: those of routers and before exchanges",
        rule=rules.rule(lambda value: isinstance(value, bool) or value == "router", "must be true, false or router"),
    )
    launch_blocking: bool = _policy("the host waits for each kernel before the next (CUDA_LAUNCH_BLOCKING=1)")
    overlap: bool | str = declared(
        "an OVERLAP_F_B slot hides collectives behind computation: `true` all of them, `two-stream` the exchange of "
        "tokens between experts as Megatron-Core's combined 1F1B does, layer by layer; `false` none, its parts run one "
        "after the other",
        rules.rule(lambda value: isinstance(value, bool) or value == "two-stream", "must be true, false or two-stream"),
        False, example="two-stream",
    )  # fmt: skip
    max_active_stages: int = MAX_ACTIVE_STAGES  # a config gives it in its section `schedule`, next to `look_ahead`

    __repr__ = short_repr

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("first_stage_layers", "last_stage_layers"):
            value = getattr(self, name)
            if value is not None and self.partition != "even":
                raise ConfigError(f"{name}={value} needs partition 'even'; leave one of them out")

    def chosen(self, policy: str) -> Any:
        """Return the value of a policy: this layout's own, or else the framework's."""
        if policy not in DEFAULT_POLICIES:
            raise UnknownNameError(f"{shown(policy)} is not a policy; use one of: {', '.join(DEFAULT_POLICIES)}")
        own = getattr(self, policy)
        return self.run_by.policies.get(policy, DEFAULT_POLICIES[policy]) if own is None else own

    @property
    def run_by(self) -> Named:
        """Facts about its framework."""
        return framework(self.framework)

    def shards_by(self, unit: str) -> bool:
        """Return whether weights are gathered by `unit`: "stage" (UNSHARD), "block", or "step" (first F to last B)."""
        return self.sharded and self.chosen("sharded_by") == unit

    @property
    def reduces_blocks(self) -> bool:
        """True if gradients are reduced block by block for each microbatch, so that a GPU holds its part of them."""
        return self.shards_by("block") or bool(self.distributed_optimizer and self.chosen("sharded_gradients"))

    @property
    def fuses_loss(self) -> bool:
        """True if the loss is one kernel; by default only if other element-wise operations are fused, too."""
        if self.fused_loss is None:
            return self.chosen("loss_bytes") == 0 or bool(self.chosen("fused") and self.chosen("fused_loss"))
        return self.fused_loss

    @property
    def gradient_bytes(self) -> int:
        """Bytes of a gradient as it is summed over microbatches and reduced."""
        return 2 if self.chosen("bf16_gradients") else 4

    @property
    def gpus_per_device(self) -> int:
        """Number of GPUs that one pipeline device represents."""
        return self.tensor * self.context * self.data

    def faults(self, model: Model) -> list[str]:
        """Return one sentence for each size that `model` cannot be split into; empty if all fit."""
        found = list[str]()

        def divides(word: str, value: int, of: str, number: int) -> bool:
            if number % value:
                legal = [count for count in range(1, min(number, 4096) + 1) if number % count == 0]
                near = [count for count in legal if count < value][-1:] + [count for count in legal if count > value][
                    :1
                ]
                found.append(f"{word}={value} does not divide the {number} {of}; use {' or '.join(map(str, near))}")
            return number % value == 0

        if divides("tensor", self.tensor, "attention heads", model.heads) and self.tensor % model.key_value_heads:
            divides("tensor", self.tensor, "key-value heads", model.key_value_heads)
        if self.exchanges_heads:
            heads = model.heads // self.tensor
            divides("context", self.context, "heads of a GPU, which all-to-all exchanges", heads)
        if self.groups_per_token > self.expert_groups:
            found.append(f"groups_per_token={self.groups_per_token} is above expert_groups={self.expert_groups}")
        if self.context > 1 and model.has_scans:
            found.append(f"context={self.context}: the exchange of a scan's states is not priced; use 1")
        if model.pattern and self.overlap == "two-stream":
            found.append(f"overlap={self.overlap}: blocks must have attention and MLP; leave overlap or pattern out")
        if divides("context", self.context, "tokens of a sequence", model.sequence) and self.sequence_parallel:
            tokens = model.sequence // self.context
            divides("tensor", self.tensor, "tokens of a GPU, which sequence_parallel splits", tokens)
        if self.expert > 1 and not model.experts:
            found.append(f"expert={self.expert}: the model has no experts; use 1")
        else:
            divides("expert", self.expert, "experts", model.experts)
        divides("replicas", self.replicas, "data x context parallel GPUs", self.data_groups[0])
        if divides("expert_tensor", self.split_experts, "tensor-parallel GPUs", self.tensor):
            what = "data x context parallel GPUs" if self.split_experts == self.tensor else "GPUs that hold experts"
            divides("expert", self.expert, what, self.expert_gpus)
        return found

    @cached_property
    def casts(self) -> Casts:
        """Recipe for products in fp8."""
        casts = Casts(grouped=self.chosen("grouped_experts") and not self.run_by.facts.host.each_expert)
        if self.fp8 == "none":
            return casts
        return casts._replace(
            recipe=self.fp8,
            experts=self.chosen("fp8_experts"),
            weights=self.shards_by("block") and not self.fp8_gather,
            holds_inputs=self.chosen("fp8_inputs"),
            fused_experts=self.fp8 == "block" and self.chosen("fp8_experts") and self.chosen("fused_experts"),
            head=self.fp8_head,
        )

    @property
    def groups_experts(self) -> bool:
        """True if one kernel computes the products of all experts of a GPU."""
        return self.casts.grouped or self.casts.fused_experts

    @property
    def exchanges_heads(self) -> bool:
        """True if context parallelism exchanges heads for tokens (all-to-all)."""
        return self.context > 1 and self.chosen("context_exchange") == "all-to-all"

    @property
    def hides_context(self) -> bool:
        """True if the exchange of context parallelism overlaps the attention."""
        own = self.overlap_context
        return self.chosen("context_exchange") == "ring" if own is None else own

    @property
    def split_experts(self) -> int:
        """GPUs that split the matrices of each routed expert."""
        return self.tensor if self.expert_tensor is None else self.expert_tensor

    @property
    def expert_gpus(self) -> int:
        """GPUs that whole experts, and copies of them, are spread over."""
        return self.gpus_per_device // self.split_experts

    def layers_of(self, model: Model) -> list[Layer]:
        """Return the layers that a partition places: all losses with the head, or several heads if it has several L."""
        return model.layers_with_heads if getattr(self.partition, "separate_heads", False) else model.layers

    def stage_layers(self, model: Model, num_stages: int, layer_costs: list[float]) -> list[list[Layer]]:
        """Return the layers of each stage; partitions by cost balance `layer_costs`, one per layer.

        Raises CostError if the partition does not fit `num_stages`.
        """
        layers, own = self.layers_of(model), self.partition
        if isinstance(own, LayoutString):
            return partition.cut(layers, own.layer_counts([layer.name for layer in layers], num_stages))
        if own in partition.BY_COST:
            method = "optimal" if own == partition.BALANCED else str(own)
            return partition.cut(layers, partition.by_cost(layer_costs, num_stages, method))
        if self.cut_by_pattern(model):
            own = tuple(map(len, model.stage_patterns))
            if len(own) != num_stages:
                raise CostError(
                    f"the bars of model.pattern make {len(own)} stages, but the schedule has {num_stages}; make "
                    f"{num_stages} stages, or give a partition such as balanced"
                )
        if isinstance(own, tuple):
            counts = partition.explicit(own, model.num_layers, num_stages)
        else:
            counts = partition.even(model.num_layers, num_stages, self.first_stage_layers, self.last_stage_layers)
        counts[0] += 1
        counts[-1] += len(layers) - model.num_layers - 1
        return partition.cut(layers, counts)

    def cut_by_pattern(self, model: Model) -> bool:
        """Return whether the bars of the model's pattern give the stages; any partition but "even" replaces them."""
        return "|" in model.pattern and self.partition == "even"

    @property
    def common_recompute(self) -> str:
        """Recompute level of all blocks of all stages; "none" if they differ, or may."""
        is_limited = (self.recompute_stages, self.recompute_blocks) != (None, None)
        return self.recompute if isinstance(self.recompute, str) and not is_limited else "none"

    def recompute_of_stages(self, num_stages: int) -> list[str]:
        """Return the recompute level of each stage."""
        rules.argument("num_stages", num_stages, rules.whole_number(1, partition.MAX_PIECES))
        if not isinstance(self.recompute, str):
            if len(self.recompute) != num_stages:
                raise CostError(
                    f"recompute lists {len(self.recompute)} levels, but the schedule has {num_stages} stages; "
                    f"list {num_stages}, or give one level"
                )
            return list(self.recompute)
        first = num_stages if self.recompute_stages is None else self.recompute_stages
        return [self.recompute if stage < first else "none" for stage in range(num_stages)]

    def recompute_of_layers(self, layers: Sequence[Layer], recompute: str) -> list[str]:
        """Return the recompute level of each layer of a stage with that level."""
        levels = [recompute if layer.recomputable else "none" for layer in layers]
        if self.recompute_blocks is not None:
            blocks = [index for index, layer in enumerate(layers) if layer.recomputable]
            for index in blocks[self.recompute_blocks :]:
                levels[index] = "none"
        return levels

    @property
    def data_groups(self) -> tuple[int, int]:
        """GPUs that hold the same dense parameters, and the same routed experts."""
        return self.data * self.context, max(1, self.expert_gpus // self.expert)

    @property
    def optimizer_groups(self) -> tuple[int, int]:
        """GPUs over which the optimizer state of dense parameters, and of routed experts, is split."""
        if not (self.distributed_optimizer or self.sharded):
            return 1, 1
        dense, experts = self.data_groups
        return dense // self.replicas, max(1, experts // self.replicas)

    def extra_permutes(self, model: Model) -> int:
        """Return how many times, after the first, a GPU permutes tokens into the order of its experts, and back.

        A GPU sorts the tokens that an all-to-all brings: Megatron-LM, core/transformer/moe, token_dispatcher.py,
        sort_chunks_by_idxs. torchtitan has all tokens of a tensor group on each GPU.
        """
        if not model.experts or self.chosen("expert_exchange") != "all-to-all":
            return 0
        if self.run_by.facts.moves.copies:
            return self.run_by.facts.moves.copies * self.split_experts - 1
        return int(1 < self.expert < model.experts)

    @property
    def router_kernels(self) -> int:
        """Kernels that choose experts: Megatron-LM, dev, docs/discussions/deepseek-v3-gb200-optimization, 2.1.4."""
        kernels = 72 if self.chosen("expert_exchange") == "all-to-all" else 58
        return kernels - 41 if self.chosen("fused_router") else kernels

    def sums_gradients_wrongly(self, microbatches: int) -> bool:
        """Return whether the framework sums sharded gradients wrongly over microbatches: on a group of one GPU."""
        alone = min(self.optimizer_groups) == 1 and microbatches > 1
        return self.reduces_blocks and alone and not self.run_by.facts.messages.lone

    def gpu_parameters(self, layer: Layer) -> tuple[float, float]:
        """Return one layer's dense parameters, and those of routed experts, on one GPU before weights are sharded."""
        experts = layer.expert_parameters / (self.split_experts * self.expert)
        return layer.split_parameters / self.tensor + layer.copied_parameters, experts

    def fp8_parameters(self, layer: Layer) -> tuple[float, float]:
        """Return the `gpu_parameters` whose products run in fp8."""
        dense = experts = 0.0
        for linear in filter(self.casts.apply_to, layer.operators.products):
            if linear.expert:
                experts += linear.parameters / (self.split_experts * self.expert)
            else:
                dense += linear.parameters / (1 if linear.parallel == "copy" else self.tensor)
        return dense, experts

    def gradient_buffer_bytes(self, layers: Sequence[Layer], parameters: float, fraction: float) -> float:
        """Return the bytes of bf16 gradients that a stage with these parameters holds in addition to the fp32 ones.

        There is one buffer per shape of matrix: products add their results directly to fp32 gradients. The stages of a
        device share the buffers of blocks; one is `fraction` of all. Some frameworks hold one per parameter until a
        backward ends.
        Source: Megatron-LM, core/tensor_parallel/layers.py, and Transformer Engine, get_dummy_wgrad.
        """
        if not self.chosen("gradient_buffers"):
            return 0.0
        if self.run_by.facts.extra.gradients:
            return WEIGHT_BYTES * parameters if self.gradient_bytes > WEIGHT_BYTES else 0.0
        of_blocks, of_others = set[tuple[float, float]](), set[tuple[float, float]]()
        for layer in layers:
            shapes, products = of_blocks if layer.recomputable else of_others, layer.operators.products
            shapes |= {self.local_shape(one) for one in products if one.fp8 or not layer.recomputable}  # no routers
        return WEIGHT_BYTES * sum(n * m * (fraction if (n, m) in of_blocks else 1) for n, m in of_blocks | of_others)

    def local_shape(self, linear: Linear) -> tuple[float, float]:
        """Return the rows and columns of a matrix's shard on one GPU."""
        split = self.split_experts if linear.expert else self.tensor
        rows = linear.inputs / (split if linear.parallel == "row" else 1)
        return rows, linear.outputs / (split if linear.parallel == "column" else 1)

    def state_bytes(
        self, parameters: tuple[float, float], gathered: float = 1.0, reduced: float = 0.0
    ) -> tuple[float, float, float]:
        """Return the bytes of weights, gradients and optimizer state of `parameters` on one GPU.

        Bytes per parameter, over a group of d GPUs: 18 in all, which are bf16 weights 2, fp32 gradients 4 (in bf16 2)
        and `optimizer_bytes` 12. A distributed optimizer makes it 6 + 12/d: Megatron-LM,
        docs/source/api-guide/dist_optimizer.md. Sharded weights take 2/d, and 2 for the fraction that is `gathered`.
        Weights sharded by block are stored only in the optimizer: 16/d, 2 for the fraction `gathered` and 4 for the
        fraction whose gradients are being `reduced`. Weights gathered once a step: 6 + 12/d, because gradients are
        split at its end. Sharded gradients: 4/d.
        """
        total = sum(parameters)
        split = sum(part / size for part, size in zip(parameters, self.optimizer_groups, strict=True))
        gradients = weights = total
        if self.reduces_blocks:
            gradients = split + reduced * total
        if self.sharded and not self.shards_by("step"):
            weights = gathered * total + split * self.shards_by("stage")
        return WEIGHT_BYTES * weights, self.gradient_bytes * gradients, self.chosen("optimizer_bytes") * split


DEFAULT_POLICIES: Mapping[str, Any] = {
    item.name: item.metadata["otherwise"] for item in declarations(Layout) if "otherwise" in item.metadata
}
