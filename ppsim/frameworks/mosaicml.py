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
    moves=Moves(norm=5),  # torch.nn.LayerNorm under autocast: to fp32 6 bytes a value, norm 8, back 6, in place of 4
)
