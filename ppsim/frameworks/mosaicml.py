"""Facts about MosaicML's llm-foundry: PyTorch's older FSDP. Source: mosaicml/llm-foundry, scripts/train; Composer."""

from ppsim.frameworks.facts import Facts, Host

FACTS = Facts(
    "MosaicML",
    {"overlap_data": True, "sharded_by": "block", "loss_bytes": 8, "fp8_inputs": False, "shard_copies": False},
    Host(100, 150, 50),
    "as of any eager PyTorch",
)
