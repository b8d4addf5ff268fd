"""Facts about MosaicML's llm-foundry: PyTorch's older FSDP. Sources: mosaicml/llm-foundry, scripts/train; Composer.

Logits are held in bf16 with their gradient: models/mpt/modeling_mpt.py, `fused_crossentropy` by default.
"""

from ppsim.frameworks.facts import Facts, Host, Messages, Moves

FACTS = Facts(
    "MosaicML",
    {"overlap_data": True, "sharded_by": "block", "loss_bytes": 0, "fp8_inputs": False},
    Host(100, 150),
    "as of any eager PyTorch",
    # views of one parameter: their gradients are joined, and divided (torch/distributed/fsdp/_runtime_utils.py)
    messages=Messages(copies=(0, 8)),
    # torch.nn.LayerNorm under autocast takes 24 bytes a value in F (to fp32 6, norm 12, back 6), 40 in B (6, 28, 6), in
    # place of 4 and 6: both of its kernels read their inputs twice (ATen/native/cuda/layer_norm_kernel.cu).
    moves=Moves(norm=(24, 40)),
)
