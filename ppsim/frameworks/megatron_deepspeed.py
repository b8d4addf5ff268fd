"""Facts about Megatron-DeepSpeed, which runs Megatron-LM's layers in DeepSpeed's pipelines; BLOOM used it.

Source: bigscience-workshop/Megatron-DeepSpeed; DeepSpeed, deepspeed/runtime: pipe/engine.py, bf16_optimizer.py.
"""

from ppsim.frameworks import megatron
from ppsim.frameworks.facts import Extra, Facts

# Each backward sets bf16 gradients to 0 (2 bytes), adds to them (6) and adds them to fp32 ones (10), where a product
# that adds to fp32 ones itself moves 8; it writes 2. The bf16 ones stay: `clear_lp_grads`. Transfers are split over
# tensor-parallel GPUs.
FACTS = Facts(
    "Megatron-DeepSpeed",
    {"scatter_transfers": True, "fused_loss": False, "gradient_buffers": True},
    megatron.HOST,
    megatron.HOST_SOURCE,
    moves=megatron.LOSS._replace(gradient=12),
    extra=Extra(gradients=True),
)
