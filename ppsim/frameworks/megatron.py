"""Facts about Megatron-LM. Source: megatron/core/pipeline_parallel/schedules.py, megatron/training/arguments.py."""

import json
from pathlib import Path
from typing import Any

from ppsim.frameworks.facts import Extra, Facts, Host, Messages, Moves

SCHEDULES = ("1f1b", "interleaved-1f1b")
ENCODER_SCHEDULES = ("1f1b",)  # with an encoder that is not in the first stage
EXPERT_SCHEDULES = ("combined-1f1b",)  # --overlap-moe-expert-parallel-comm, only with expert parallelism
LAUNCHED = (*SCHEDULES, *EXPERT_SCHEDULES)
SHARDINGS = ("none", "optimizer", "gradients", "weights", "hybrid")  # the last three by its FSDP
STRATEGIES: dict[str, dict[str, Any]] = {  # --data-parallel-sharding-strategy -> keys of a layout
    "optim_grads": {"distributed_optimizer": True, "sharded_gradients": True},
    "optim_grads_params": {"sharded": True, "sharded_by": "block"},
}
RECOMPUTE = (
    "none", "norms", "latent", "norms+activations", "norms+activations+latent", "norms+mlp", "selective", "full",
)  # fmt: skip

# Entries of the vocabularies of --tokenizer-type, before padding; Llama 3's for any other. Those from Mixtral on are
# Primus's: vocab_size of config.json at their tokenizer_model.
VOCABULARIES = {
    "GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000, "BertWordPieceLowerCase": 30522, "MixtralTokenizer": 32000,
    "DeepSeekV2Tokenizer": 102400, "DeepSeekV3Tokenizer": 129280, "KimiK2Tokenizer": 163840,
}  # fmt: skip
LARGE_VOCABULARY = 128256
# Bytes of optimizer state with the numbers of fp32: --use-precision-aware-optimizer holds the 2 bytes of a weight that
# its bf16 copy lacks (core/optimizer/optimizer_config.py, store_param_remainders).
STATES = (10,)

# Every option by the group of its parser: version, source, and names of a group with blanks between them. `left_out`
# and `left_out_groups` change no step time or memory that ppsim models; `rows` are keys of a config with their flags.
OPTIONS: dict[str, Any] = json.loads(Path(__file__).with_name("megatron_options.json").read_text(encoding="utf-8"))

# each_expert: Transformer Engine's nvte_multi_stream_cublas_gemm (common/gemm/cublaslt_gemm.cu).
# A kernel of Transformer Engine's modules takes 9 starts in F, and 7 in B: a dense block has 12 and 20 of them. One of
# PyTorch takes 1, of Triton 3, a collective 7 and 6. Kernels of core/transformer of d98e8a6 beyond a dense block's:
# latent: two products, a norm, and 27 that rotate, split and join (multi_latent_attention.py). shared: an MLP.
# exchange (moe/token_dispatcher.py): a norm, three all-to-alls, ten of Triton that permute, sort and go back, copies of
# numbers of tokens to the host, and lists of experts' tensors, twice: views, allocations and streams start no kernel
# but take the host's time (docs/discussions/deepseek-v3-gb200-optimization of 8d194675, 2). Chosen with all seen steps.
# ring (Transformer Engine, context_parallel.py, AttnFuncWithCPAndKVP2P): in F a message 7, copies 2, attention 9, the
# part's softmax and output corrected 10, streams and events 4; in B a message 6, copies 3, attention 7, sums 5, 4.
HOST = Host(110, 145, each_expert=True, latent=(54, 60), shared=(27, 35), exchange=(200, 90), ring=(32, 25))
# Its FSDP overlaps a block's reduction with the backward of the next, and with --fsdp-double-buffer holds the gradients
# of these two: docs/user-guide/features/megatron_fsdp.md. A gradient that one GPU alone holds is added to itself with
# each microbatch: issue 6660, fixed in September 2026 (6773).
FSDP = Messages(blocks=2, lone=False)
HOST_SOURCE = "published steps of Nemotron-4 340B in fp8 on GB200, docs/accuracy.md"
# Passes of core/tensor_parallel/cross_entropy.py without --cross-entropy-loss-fusion: in F a cast to fp32, largest, its
# difference, exponential, sum and quotient; in B a product and a cast.
LOSS = Moves(loss=(38, 14))
# First versions with an option. Sources: megatron/arguments.py of tag v2.6 and of 2022 (commits 329fe58, cfd2e21: 3.0),
# and megatron/training/arguments.py of tags from core_v0.4.0 on. A layout string gives a stage any layers.
# Its FSDP holds weights in fp8, first with a scale per tensor; with one per block from pull request 2239 on. "graphs":
# any recomputation with CUDA graphs, which core/transformer/transformer_config.py of core_v0.14.0 rejects.
SINCE = {
    "layout.distributed_optimizer": "3.0", "layout.sequence_parallel": "3.0", "layout.recompute=selective": "3.0",
    "layout.context": "core 0.4", "layout.expert": "core 0.4", "layout.fp8": "core 0.4",
    "layout.overlap_data": "core 0.4", "layout.overlap_tensor": "core 0.4", "layout.grouped_experts": "core 0.5",
    "layout.fused_loss": "core 0.8", "layout.fp8_gather": "core 0.9", "layout.expert_tensor=1": "core 0.10",
    "layout.optimizer_bytes": "core 0.11", "layout.bf16_gradients": "core 0.12", "layout.sharded": "core 0.12",
    "layout.expert_exchange=hierarchical": "core 0.12", "layout.sharded_gradients": "core 0.12",
    **{f"layout.recompute={one}": "core 0.12" for one in ("norms", "activations", "latent", "mlp", "moe")},
    "layout.partition": "core 0.13", "layout.fused_router": "core 0.14", "layout.replicas": "core 0.14",
    "layout.overlap=two-stream": "core 0.14", "schedule.name=combined-1f1b": "core 0.14",
    "layout.recompute=graphs": "core 0.15",
    **{f"layout.{key}=fp8 block": "core 0.16" for key in ("sharded", "sharded_gradients")},
}  # fmt: skip
# Its FSDP runs with tensor, expert and context parallelism (docs/user-guide/features/custom_fsdp.md of core 0.16). No
# functional test of it, and no recipe of Megatron-Bridge, has a pipeline.
WITHOUT_PIPELINE = ("gradients", "weights", "hybrid")
# frees_outputs: core/fusions/fused_bias_swiglu.py, weighted_bias_swiglu. graphs: "models with PP size > 1 may consume
# over 10GB" (NVIDIA-NeMo/Megatron-Bridge@067f987, docs/performance-guide.md).
EXTRA = Extra(frees_outputs="core 0.13", expert_fragments=0.2, graphs=10e9)
# Tag v2.6 scatters what it sends (megatron/p2p_communication.py); from core_v0.4.0 to 0.17 nothing reads the option.
FACTS = Facts(
    "Megatron-LM",
    {"context_exchange": "ring", "fused_loss": False, "fused_router": False},
    HOST,
    HOST_SOURCE,
    messages=FSDP,
    moves=LOSS,
    extra=EXTRA,
    pads_words=True,
    versions={"2.6": {"scatter_transfers": True}, "core 0.4.0": {}},
    since=SINCE,
)
CORE_FACTS = Facts(
    "Megatron-Core",
    {**FACTS.policies, **dict.fromkeys(("overlap_tensor", "overlap_data", "gradient_buffers", "fused_loss"), True)},
    HOST,
    HOST_SOURCE,
    messages=FSDP,
    moves=LOSS,
    extra=EXTRA,
    pads_words=True,
    since=SINCE,
)
