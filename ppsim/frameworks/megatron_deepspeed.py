"""Facts about Megatron-DeepSpeed, which runs Megatron-LM's layers in DeepSpeed's pipelines; BLOOM used it.

Source: bigscience-workshop/Megatron-DeepSpeed; DeepSpeed, deepspeed/runtime: pipe/engine.py, bf16_optimizer.py.
"""

from typing import Any

from ppsim.frameworks import megatron
from ppsim.frameworks.facts import Extra, Facts

# bf16 gradients stay: `clear_lp_grads`. Transfers are split over tensor-parallel GPUs. Gated models: megatron/model,
# rotary_pos_embedding.py and `swiglu` of transformer.py.
FACTS = Facts(
    "Megatron-DeepSpeed",
    {"scatter_transfers": True, "fused_loss": False, "gradient_buffers": True},
    megatron.HOST,
    megatron.HOST_SOURCE,
    moves=megatron.LOSS._replace(gates=True),
    extra=Extra(gradients=True),
    since={
        **dict.fromkeys(megatron.SINCE.keys() - {"layout.distributed_optimizer"}, ""),
        "schedule.name=interleaved-1f1b": "",
    },
)

# Flags of forks of Megatron-LM by its own with the same meaning. Sources: megatron/arguments.py of
# deepspeedai/Megatron-DeepSpeed and bigscience-workshop/Megatron-DeepSpeed; mindspeed_llm of
# Ascend/MindSpeed-LLM; megatron_patch/arguments.py of alibaba/Pai-Megatron-Patch.
FLAGS = {
    "num-key-value-heads": "num-query-groups", "pad-vocab-size-to": "padded-vocab-size", "topk": "moe-router-topk",
    "moe-expert-parallel-size": "expert-model-parallel-size", "ds-sequence-parallel-size": "context-parallel-size",
    "moe-intermediate-size": "moe-ffn-hidden-size", "intermediate-size": "ffn-hidden-size",
    "n-head-kv": "num-query-groups",
}  # fmt: skip
# --zero-stage -> keys of a layout. Without it, bf16 has an optimizer that is sharded as in stage 1.
ZERO: dict[int, dict[str, Any]] = {
    0: {"distributed_optimizer": False}, 1: {"distributed_optimizer": True}, 2: megatron.STRATEGIES["optim_grads"],
    3: megatron.STRATEGIES["optim_grads_params"],
}  # fmt: skip
# Flags of versions before flash attention was the default, and those that switch it on.
BEFORE_FLASH = ("deepspeed", "data-impl", "DDP-impl")
WITH_FLASH = (
    "use-flash-attn",
    "use-flash-attn-v1",
    "use-flash-attn-v2",
    "use-flash-attn-triton",
    "use-flash-attn-builder",
)
