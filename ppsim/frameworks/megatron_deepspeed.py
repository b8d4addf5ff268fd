"""Facts about Megatron-DeepSpeed, which runs Megatron-LM's layers in DeepSpeed's pipelines; BLOOM used it.

Source: bigscience-workshop/Megatron-DeepSpeed; DeepSpeed, deepspeed/runtime: pipe/engine.py, bf16_optimizer.py.
"""

from ppsim.frameworks import megatron
from ppsim.frameworks.facts import Extra, Facts

# bf16 gradients stay: `clear_lp_grads`. After each backward each one (2 bytes written) is cast (2 read, 4 written) and
# added to the sum (8 read, 4 written): bf16_optimizer.py, `_update_hp_grad`. Transfers are split over tensor-parallel
# GPUs. Gated models: megatron/model, rotary_pos_embedding.py and `swiglu` of transformer.py.
FACTS = Facts(
    "Megatron-DeepSpeed",
    {"scatter_transfers": True, "fused_loss": False, "gradient_buffers": True},
    megatron.HOST,
    megatron.HOST_SOURCE,
    moves=megatron.LOSS._replace(gates=True, gradient=20),
    extra=Extra(gradients=True),
    pads_words=True,
    since={
        **dict.fromkeys(megatron.SINCE.keys() - {"layout.distributed_optimizer"}, ""),
        "schedule.name=interleaved-1f1b": "",
    },
)
