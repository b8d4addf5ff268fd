"""Facts about Megatron-LM. Source: megatron/core/pipeline_parallel/schedules.py, megatron/training/arguments.py."""

import json
from pathlib import Path
from typing import Any

from ppsim.frameworks.facts import Facts, Host, Messages, Moves

SCHEDULES = ("1f1b", "interleaved-1f1b")
ENCODER_SCHEDULES = ("1f1b",)  # beside an encoder that is not in the first stage
EXPERT_SCHEDULES = ("combined-1f1b",)  # --overlap-moe-expert-parallel-comm, only with expert parallelism
LAUNCHED = (*SCHEDULES, *EXPERT_SCHEDULES)
SHARDINGS = ("none", "optimizer", "gradients", "weights", "hybrid")  # the last three by its FSDP
STRATEGIES: dict[str, dict[str, Any]] = {  # --data-parallel-sharding-strategy -> keys of a layout
    "optim_grads": {"distributed_optimizer": True, "sharded_gradients": True},
    "optim_grads_params": {"sharded": True, "sharded_by": "block"},
}
RECOMPUTE = ("none", "norms", "latent", "norms+activations", "norms+activations+latent", "selective", "full")
FP8_RECIPES = {"tensor": "tensorwise", "delayed": "delayed", "block": "blockwise"}  # our recipe -> its --fp8-recipe

# Entries of the vocabularies of --tokenizer-type, before padding: GPT-2's, Llama 2's; Llama 3's for any other.
VOCABULARIES = {"GPT2BPETokenizer": 50257, "Llama2Tokenizer": 32000, "BertWordPieceLowerCase": 30522}
LARGE_VOCABULARY = 128256

# Every option by the group of its parser: version, source, and names of a group with blanks between them.
OPTIONS: dict[str, Any] = json.loads(Path(__file__).with_name("megatron_options.json").read_text(encoding="utf-8"))

# each_expert: Transformer Engine's nvte_multi_stream_cublas_gemm (common/gemm/cublaslt_gemm.cu).
HOST = Host(110, 145, each_expert=True)
# core/distributed/distributed_data_parallel.py, bucket_size. Its FSDP reduces a block beside the backward of the next,
# and with --fsdp-double-buffer holds the gradients of no more: docs/user-guide/features/megatron_fsdp.md. A gradient
# that one GPU alone holds is added to itself with each microbatch: issue 6660, mended in September 2026 (pull 6773).
BUCKETS = Messages(40e6, 1e6, blocks=2, lone=False)
HOST_SOURCE = "published steps of Nemotron-4 340B in fp8 on GB200, docs/accuracy.md"
# Passes of core/tensor_parallel/cross_entropy.py without --cross-entropy-loss-fusion: in F a cast to fp32, largest, its
# difference, exponential, sum and quotient; in B a product and a cast.
LOSS = Moves(loss_forward=38, loss_backward=14)
# Tag v2.6 scatters what it sends (megatron/p2p_communication.py); from core_v0.4.0 to core 0.17 the option exists,
# but nothing reads it.
FACTS = Facts(
    "Megatron-LM",
    {"context_exchange": "ring", "fused_loss": False, "fused_router": False},
    HOST,
    HOST_SOURCE,
    messages=BUCKETS,
    moves=LOSS,
    versions={"2.6": {"scatter_transfers": True}, "core 0.4.0": {}},
)
CORE_FACTS = Facts(
    "Megatron-Core",
    {**FACTS.policies, **dict.fromkeys(("overlap_tensor", "overlap_data", "gradient_buffers", "fused_loss"), True)},
    HOST,
    HOST_SOURCE,
    messages=BUCKETS,
)

# Options that change no step time or memory that ppsim models, by the groups of Megatron-LM's own parser, and by name.
LEFT_OUT_GROUPS, LEFT_OUT = tuple(OPTIONS["left_out_groups"]), tuple(OPTIONS["left_out"].split())
