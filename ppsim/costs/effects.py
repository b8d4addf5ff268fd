"""Effects: the parts of derived costs, each declared once with its formula, its sentence and its source.

A new effect is an entry here, and a field of Layout or Cluster if a config switches it on. `DerivedCosts` adds up the
seconds of every entry; config, summary, JSON and docs/cost-model.md (`make docs`) read the declarations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ppsim.costs import assumed
from ppsim.costs.assumed import STEP_BYTES
from ppsim.costs.collectives import (
    context_parallel,
    expert_parallel,
    exposed_seconds,
    gather_seconds,
    reduce_seconds,
    regather_seconds,
    sharded_blocks,
    tensor_parallel,
    tensor_parallel_outside,
)
from ppsim.costs.layers import Layer
from ppsim.costs.setup import Setup


@dataclass(frozen=True)
class Effect:
    """One part of the costs."""

    key: str  # key of the config that switches it on, or the cost that it sets
    unit: str  # unit of the formula's result
    # formula, source: texts for the page, in its notation
    formula: str
    source: str
    # the assumption, with units and sources; None if it does not apply
    sentence: Callable[[Setup], str | None] | None = None
    # seconds inside F and inside I (and so B) of that layer, in addition to the computation
    action: Callable[[Setup, Layer], tuple[float, float]] | None = None
    # seconds of a stage once per step; `key` is the parameter of `Costs`. None if it does not apply.
    step: Callable[[Setup, StageOfStep], float | None] | None = None
    repeated: bool = True  # True if full recomputation repeats the seconds that `action` adds to F
    # "forward" or "backward" of the stage hides `step` bucket by bucket if `layout.overlap_data` says so; "": neither
    hidden_under: str = ""


def update_seconds(setup: Setup, parameters: tuple[float, float]) -> float | None:
    """Return the seconds of moving 30 bytes per parameter through the GPU's memory; None without a bandwidth."""
    bandwidth = setup.cluster.device.memory_bandwidth
    if bandwidth is None:
        return None
    groups = setup.layout.optimizer_groups
    moved = STEP_BYTES * sum(part / size for part, size in zip(parameters, groups, strict=True))
    return (moved + setup.layout.run_by.facts.moves.step * sum(parameters)) / bandwidth


def _step_reduce(setup: Setup, stage: StageOfStep) -> float | None:
    layout = setup.layout
    needed = layout.replicas > 1 if layout.reduces_blocks else stage.copies * max(layout.data_groups) > 1
    return reduce_seconds(setup, stage.parameters, stage.copies, _messages(setup, stage)) if needed else None


def _messages(setup: Setup, stage: StageOfStep) -> int:
    """Return the messages in which data-parallel GPUs exchange the parameters of a stage, or their gradients."""
    layout = setup.layout
    if not layout.chosen("overlap_data"):
        return 1
    messages, members = layout.run_by.facts.messages, max(layout.data_groups)
    if layout.distributed_optimizer and messages.tensors:
        return messages.tensors * stage.layers
    return max(math.ceil(sum(stage.parameters) / max(messages.bucket, messages.per_member * members)), 1)


def _step_regather(setup: Setup, stage: StageOfStep) -> float | None:
    if setup.cluster.device.memory_bandwidth is None:
        return None
    dense, experts = (own - less for own, less in zip(stage.parameters, stage.spared, strict=True))
    return regather_seconds(setup, (dense, experts), _messages(setup, stage))


KORTHIKANTI, ZERO = "Korthikanti et al. 2022, arXiv 2205.05198", "Rajbhandari et al. 2020 (ZeRO), arXiv 1910.02054"

# The order is that of the sentences, and that in which the seconds inside actions are added.
EFFECTS = (
    Effect(
        "hardware.device", "seconds", "FLOPs of an action's share / (peak x achieved)", "the device's sheet",
        assumed.computation_rate,
    ),
    Effect(
        "layout.fp8", "seconds",
        "products of blocks at peak_fp8, their factors 1 byte a value (with `fp8_head` the head's too); to fp8: 4 "
        "bytes a value through memory (2 read, 1 written along rows and 1 along columns), with `tensor` 2 more and "
        "one more pass to find the largest; inputs in F, gradients of outputs in I, weights once a step, or of "
        "gathered blocks in F and in I; with inputs held in bf16 these again in W; with sequence parallelism gathers "
        "of 1 byte a value",
        "DeepSeek-V3, arXiv 2412.19437, section 3.3; Transformer Engine, user guide; torchao, float8", assumed.fp8,
    ),
    Effect(
        "hardware.link", "seconds", "latency and bytes over the bandwidth, of what stays inside a node",
        "the link's sheet",
        lambda setup: f"inside a node of {setup.cluster.gpus_per_node} GPUs: {assumed.link_text(setup.cluster.link)}",
    ),
    Effect(
        "hardware.network", "seconds", "latency and bytes over the bandwidth, of what goes between nodes",
        "the link's sheet", lambda setup: f"between nodes: {assumed.link_text(setup.cluster.network)}",
    ),
    Effect(
        "hardware.all_reduce, hardware.node_wait", "seconds",
        "a pass of a ring of n GPUs in k nodes: (2.5 + n - k) latency inside + (k-1) latency between + (n-1)/n x "
        "/ bandwidth, an all-reduce two; a tree up and down: (1.5 + n/k) latency inside + log2 k latency between + x "
        "/ (0.92 bandwidth) each way; between nodes all members wait k `node_wait`, at most 64, for the last one, once "
        "in each pass of a block. Gradients and weights go in messages by framework",
        "NCCL's tuning model, github.com/NVIDIA/nccl, src/graph/tuning.cc (2.2x); The Ultra-Scale Playbook, "
        "pp_comm_bandwidth.html; deepseek-ai/profile-data, train.json", assumed.collectives,
    ),
    Effect(
        "transfer_bytes", "bytes",
        "2 s b h / c, with sequence parallelism or `layout.scatter_transfers` / t; times `residual_streams`, or 1 + "
        "the blocks before / `residual_block`, rounded up; after k prediction modules times 1 + k, less 1 for each "
        "head before",
        "bf16 activations and gradients; Narayanan et al. 2021, arXiv 2104.04473, section 4.1; Megatron-LM, "
        "transformer_block.py and multi_token_prediction.py; Primus, kimi_k3_block.py",
        assumed.border,
    ),
    Effect(
        "model.attention", "FLOPs",
        "4 s^2 b a d in F, half of it with `causal`, (w + 128) s in the place of s^2 for a window of w tokens; 2.5 "
        "times that in I; 1.35 times as fast with `layout.fp8_attention`, which computes all of a window's s^2 in I",
        "Narayanan et al. 2021, arXiv 2104.04473; NVIDIA/cudnn-frontend, benchmark/sdpa_benchmark_training",
        assumed.attention,
    ),
    Effect(
        "layout.tensor", "seconds",
        "two all-reduces a block in F, two in I, of x = 2 s b h / c bytes, such as two passes of a ring; with "
        "`layout.sequence_parallel` reduce-scatter and all-gather of a ring in their place; one with "
        "`model.parallel_block`, and in a block whose experts are whole",
        f"{KORTHIKANTI}, section 4.2", action=tensor_parallel,
    ),
    Effect(
        "layout.context", "seconds",
        "keys and values gathered or passed on in F, again with their gradients in I, of x bytes: a pass of a ring "
        "each; `all-to-all`: queries, keys, values and outputs in F and in I, (c-1)/c of a GPU's; a ring "
        "runs beside (c-1)/c of the attention",
        "Llama 3, arXiv 2407.21783, section 3.3.2; Liu et al. 2023 (ring attention), arXiv 2310.01889; Jacobs et al. "
        "2023 (Ulysses), arXiv 2309.14509; Transformer Engine, cp_comm_type", action=context_parallel,
    ),
    Effect(
        "layout.expert", "seconds",
        "dispatch and combine in F and again in I, all to all of x bytes for the experts a token visits: "
        "(e-1) (latency + x/e / bandwidth) each, at 0.886 of the bandwidth inside nodes; `hierarchical`: once to each "
        "node and GPU visited, at 0.91 and 0.75; of half as many in one of both with `layout.fp8_dispatch`",
        "Lepikhin et al. 2020 (GShard), arXiv 2006.16668; DeepSeek-V3, arXiv 2412.19437, section 3.3.3; SimuMax, "
        "configs/system/b200_bf16_ceperm.json; deepseek-ai/DeepEP, README.md, docs/README_Hybrid-EP.md",
        action=expert_parallel,
    ),
    Effect(
        "layout.framework", "seconds", "defaults of the named version, or of the nearest known one",
        "ppsim/frameworks, a file for each", assumed.framework_version,
    ),
    Effect(
        "layout.framework, layout.cuda_graphs", "seconds",
        "each pass of a layer lasts as long as its GPU or its host, whichever takes longer; the host takes `start` per "
        "kernel, whose number the framework gives, none under CUDA graphs or a compiler that fuses kernels; and 34 µs "
        "per product and kernel of a cast of one expert in fp8. Without a pipeline the host runs ahead of the GPU. "
        "DeepSpeed gathers and frees the sharded weights of each module in Python: 530 and 860 starts more a block in "
        "F and B. nanotron's benchmark polls both headers of each message between stages every 0.1 s, from 64 nodes on "
        "and with a tensor-parallel group over 4 nodes: it is 0.2 to 0.25 s late; not with a version, which is a "
        "release",
        "PyTorch, CUDA semantics: asynchronous execution; the numbers of starts: ppsim/frameworks; huggingface/"
        "nanotron, branch nouamane/bench2, parallel/pipeline_parallel/p2p.py; fp8: "
        "NVIDIA/TransformerEngine, pull request 3134", assumed.host,
    ),
    Effect(
        "layout.grouped_experts", "seconds",
        "if a host starts the products of experts one by one: at least `start` per product and per kernel of a cast",
        "SimuMax, configs/system/b200_bf16_ceperm.json: grouped products; Transformer Engine 2.9, grouped_linear.py",
        assumed.experts,
    ),
    Effect(
        "layout.expert_exchange", "seconds",
        "8 s b h / (bandwidth memory) more for an all-to-all to a GPU with several experts, per expert that a token "
        "visits: sorting tokens by expert and back; with `layout.fp8` the same again: padding to sizes that fp8 "
        "products accept, and back; all at 0.75 of `memory`; 31 kernels more choose experts, 17 with `hierarchical`",
        "Megatron-LM, core/transformer/moe: token_dispatcher.py, sort_chunks_by_idxs; experts.py, Fp8Padding; "
        "docs/discussions/deepseek-v3-gb200-optimization; SimuMax, configs/system/b200_bf16_ceperm.json",
    ),
    Effect(
        "model.clamped, model.mlp_bias", "seconds",
        "16 s b f and 28 s b h, over (bandwidth memory), per expert that a token visits: clamping both halves of an "
        "activation's input; multiplying biases of experts with the router's weight, in fp32",
        "Megatron-LM, core/fusions/fused_bias_geglu.py; core/transformer/moe/experts.py, _apply_bias",
    ),
    Effect(
        "model.residual_streams, model.residual_block", "seconds",
        "per sublayer a product n h x (n^2 + 2 n) and (8 n + 2) h values moved in the place of 3 h, and 240 n^2 in 20 "
        "Sinkhorn iterations, for n streams; (4 m + 1) h more for m residuals of blocks; (n + 1) h or m h values held: "
        "recomputing `streams` frees n h and the norm's input, and moves (7 n - 1) h again; mHC fuses kernels",
        "mHC, arXiv 2512.24880; Megatron-LM, core/transformer/hyper_connection.py; Primus, kimi_k3_block.py",
    ),
    Effect(
        "layout.tensor", "seconds",
        "one more all-reduce in the embedding's F, and in the head's I for each loss; Scaling gathers and passes all V",
        f"{KORTHIKANTI}, section 4.2; Aleph-Alpha/scaling, lm_head.py", action=tensor_parallel_outside,
    ),
    Effect(
        "layout.sharded_by", "seconds",
        "`block`: gather of 2 P bytes in F, gather and reduction of 4 P in I, each overlapping the layer's "
        "computation, recomputed too; with `layout.sharded_gradients` "
        "only the reduction; those of `layout.replicas` are summed once a step; `step`: one of both per step",
        "PyTorch, fully_shard and distributed/pipelining/stage.py; Megatron FSDP; torchtitan and OLMo-core, which call "
        "set_requires_all_reduce",
        action=sharded_blocks, repeated=False,
    ),
    Effect(
        "layout.recompute", "seconds",
        "I (and so B) repeats the forward: `full` the whole block with its collectives, `selective` the attention "
        "core if its s x s matrices would be held, `alternate` half of the products, all of routed experts; not "
        "embedding and head",
        f"{KORTHIKANTI}, section 5; torchtitan, _op_sac_save_list",
    ),
    Effect(
        "layout.overlap", "seconds",
        "a fused slot lasts as long as both parts' computation or both parts' collectives, whichever is longer; with "
        "`two-stream` as long as the components of its layers on two streams, with dispatch and combine on the second; "
        "plus `hardware.contention` of the hidden time, with `hierarchical` exchanges at most their part of the "
        "processors, 0.22 inside a node, 0.15 between nodes",
        "DeepSeek-V3, arXiv 2412.19437, section 3.2.1; Megatron-LM, combined_1f1b.py, moe_deepep_num_sms; "
        "Megatron-Bridge, moe_hybridep_num_sms",
    ),
    Effect(
        "layout.fused", "bytes",
        "with `false` a block holds 2 s b f / t more for its non-linearity, 8 s b h for norms in fp32; not if norms "
        "or activations are recomputed. Norms move 9 times (16 in Scaling), other element-wise operations 3 times the "
        "bytes of one kernel; with `layout.fused_norms` norms are one kernel",
        "PyTorch, torch.nn.functional.silu, rms_norm; transformers, models/llama/modeling_llama.py", assumed.unfused,
    ),
    Effect(
        "layout.fused_loss", "seconds",
        "25 bytes of each logit through memory; if it is not fused, 52 in Megatron-LM and nanotron",
        "Megatron-LM, core/tensor_parallel/cross_entropy.py",
    ),
    Effect(
        "layout.framework", "bytes",
        "in addition to the tensors of the shapes, in nanotron: 0.12 of the activations in allocator fragments "
        "(0.25 in Scaling, which gathers the logits of the whole vocabulary on each GPU); "
        "2 per parameter, because bf16 gradients are added to the fp32 ones after a whole backward; in a backward with "
        "sequence parallelism 10 s b h / c for the whole inputs, outputs and gradients of a block's products",
        "PyTorch, CUDA semantics: memory management; nanotron, optim/gradient_accumulator.py, "
        "parallel/tensor_parallel/functional.py; Aleph-Alpha/scaling, lm_head.py", assumed.held_beyond,
    ),
    Effect(
        "slice_costs", "seconds",
        "a slice takes its fraction of F, I and W; one of fewer than 128 tokens on a GPU takes as long as one of 128",
        "SlimPipe, arXiv 2504.14519: slices of 128 tokens ran at full efficiency",
    ),
    Effect(
        "layout.fp8_inputs, layout.fp8_gather", "bytes",
        "inputs of products in fp8: 1 per value, not 2; 2 per parameter of them, along rows and along columns; "
        "with `fp8_gather` these take the place of the 2 in bf16, and a gathered block has 1",
        "Transformer Engine, user guide; torchao, float8",
    ),
    Effect(
        "layout.distributed_optimizer, layout.sharded, layout.bf16_gradients", "bytes",
        "18 a parameter; 6 + 12/(D c) with a distributed optimizer; 2 + 16/(D c) with sharded gradients, 4 of the "
        "larger of a block and of embedding with head; (2 + 12)/(D c) + 4 and 2 while gathered with sharded weights; "
        "6 + 16/(D c) if they are gathered once a step; with weights sharded by block 16/(D c), 2 of embedding, head "
        "and two blocks, 4 of the larger of a block (of two in Megatron's FSDP) and of embedding with head; of routed "
        "experts D c / e in the place of D c; with `layout.replicas` groups D c / replicas; gradients in bf16 have 2 "
        "for each 4",
        f"Megatron-LM, dist_optimizer.md, megatron_fsdp.md; {ZERO}; PyTorch, fully_shard", assumed.state,
    ),
    Effect(
        "layout.recompute", "bytes",
        "in the backward of a block of which `full` recomputes all: what it would hold without, and 2 (n + m) of each "
        "token that passes the largest product, n x m, for the gradients of its input and of its output; each of the "
        "experts that a token visits counts",
        "follows from reverse-mode differentiation",
    ),
    Effect(
        "layout.gradient_buffers", "bytes",
        "2 n m for each shape n x m of matrix on a GPU, of an expert one for all experts; of the blocks once a device",
        "Megatron-LM, core/tensor_parallel/layers.py; Transformer Engine, get_dummy_wgrad",
    ),
    Effect(
        "layout.loss_bytes", "bytes",
        "s b V / (t c) times this while the head's B or I runs: gradients of the log-probabilities and of the logits, "
        "4 each, of PyTorch's `cross_entropy`; the bf16 gradient of the logits in Megatron-LM",
        "PyTorch, torch.nn.functional.cross_entropy; Megatron-LM, core/tensor_parallel/cross_entropy.py", assumed.loss,
    ),
    Effect(
        "reduce_grad", "seconds",
        "all-reduce of 4 P bytes, in bf16 of 2 P; a ring's reduce-scatter half with a distributed optimizer or sharded "
        "weights, but not in Scaling, which sums in fp32",
        f"{ZERO}, section 7", assumed.reduction, step=_step_reduce, hidden_under="backward",
    ),
    Effect(
        "unshard", "seconds", "ring all-gather of 2 P bytes of sharded weights, each UNSHARD", f"{ZERO}, section 7",
        step=lambda setup, stage: gather_seconds(setup, stage.parameters) if setup.layout.shards_by("stage") else None,
    ),
    Effect(
        "optimizer_step", "seconds",
        "30 bytes per parameter whose state the GPU holds, over the memory bandwidth: it reads gradient, fp32 weight "
        "and both moments, writes these three and the bf16 weight; norms, clips and zeros of gradients last as long as "
        "150 bytes a parameter in nanotron, 30 in Scaling",
        "follows from Adam in mixed precision; nanotron, optim/clip_grads.py", assumed.optimizer,
        step=lambda setup, stage: update_seconds(setup, stage.parameters),
    ),
    Effect(
        "optimizer_step", "seconds",
        "all-reduce of 4 V h / t bytes, in bf16 of 2, over the devices with copies of the embedding (first stage, "
        "prediction modules, a tied head) or of a head with losses on several stages",
        "Megatron-LM, core/distributed/finalize_model_grads.py",
    ),
    Effect(
        "optimizer_step", "seconds",
        "with a distributed optimizer also the gather of 2 P bytes; with `fp8_gather` 1 for products, in blocks 2",
        "Megatron-LM, dist_optimizer.md; param_and_grad_buffer.py", step=_step_regather, hidden_under="forward",
    ),
    Effect(
        "layout.overlap_data", "seconds",
        "the part of a stage's reduction or gather that its last backward or first forward does not hide; with n "
        "layers at least 1/n of it",
        "Megatron-LM, --overlap-grad-reduce and --overlap-param-gather", assumed.buckets,
    ),
    Effect(
        "hardware.contention", "seconds",
        "collectives that overlap computation lengthen it by this fraction of their own seconds",
        "fitted: docs/accuracy.md", assumed.contention,
    ),
    Effect(
        "hardware.cards_per_node", "seconds",
        "a transfer between nodes waits until the sender's and the receiver's card are free", "follows", assumed.cards,
    ),
    Effect(
        "hardware.device", "seconds", "nothing for norms, element-wise operations and data loading", "assumed",
        assumed.not_counted,
    ),
)  # fmt: skip


def sentences(setup: Setup) -> Iterator[str]:
    """Yield the sentence of each effect that assumes something about this setup."""
    found = (effect.sentence(setup) for effect in EFFECTS if effect.sentence)
    return (sentence for sentence in found if sentence)


class Exchange(NamedTuple):
    """Seconds of a layer's collectives in F and in I (and so B), and of those that full recomputation repeats."""

    forward: float
    input_grad: float
    repeated: float


def exchange(setup: Setup, layer: Layer) -> Exchange:
    """Return the seconds that the effects add to the computation of a layer."""
    parts = [(effect.action(setup, layer), effect.repeated) for effect in EFFECTS if effect.action]
    repeated = sum(part[0] for part, again in parts if again and layer.recomputable)
    return Exchange(sum(part[0] for part, _ in parts), sum(part[1] for part, _ in parts), repeated)


class StageOfStep(NamedTuple):
    """Properties of a stage that determine its seconds once per step."""

    parameters: tuple[float, float]  # dense parameters and those of routed experts on one GPU
    spared: tuple[float, float]  # parameters of bf16 that a gather in fp8 spares of both
    copies: int  # devices of a pipeline that hold the stage
    layers: int
    # forward, backward: seconds of one microbatch
    forward: float
    backward: float


def step_seconds(setup: Setup, stages: Sequence[StageOfStep]) -> dict[str, list[float]]:
    """Return the seconds once per step of each stage, by parameter of `Costs`; without effects that no stage has."""
    by_stage = {stage: _seconds_by_key(setup, stage) for stage in dict.fromkeys(stages)}
    keys = dict.fromkeys(key for seconds in by_stage.values() for key in seconds)
    return {key: [by_stage[stage].get(key, 0.0) for stage in stages] for key in keys}


def _seconds_by_key(setup: Setup, stage: StageOfStep) -> dict[str, float]:
    found, layout = dict[str, float](), setup.layout
    for effect in EFFECTS:
        seconds = effect.step(setup, stage) if effect.step else None
        reduced_last = effect.hidden_under == "backward" and layout.shards_by("step")  # after the last backward
        late = effect.hidden_under == "forward" and layout.run_by.facts.messages.late_gather
        beside = layout.chosen("overlap_data") or (effect.hidden_under == "backward" and layout.reduces_blocks)
        if seconds and effect.hidden_under and beside and not (reduced_last or late):
            first = seconds / max(stage.layers, 1)  # nothing hides the first bucket
            seconds = first + exposed_seconds(setup, seconds - first, getattr(stage, effect.hidden_under))
        if seconds is not None:
            found[effect.key] = found.get(effect.key, 0.0) + seconds
    return found
