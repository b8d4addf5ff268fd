"""Facts about Megatron-DeepSpeed, which runs Megatron-LM's layers in DeepSpeed's pipelines; BLOOM used it.

Source: bigscience-workshop/Megatron-DeepSpeed; DeepSpeed, deepspeed/runtime: pipe/engine.py, bf16_optimizer.py.
"""

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

# Layout keys of each --zero-stage. At stage 0 a bf16 optimizer is sharded as at stage 1.
ZERO = ({"distributed_optimizer": False}, {"distributed_optimizer": True}, *megatron.STRATEGIES.values())
