"""Facts about PyTorch's pipelining and torchtitan. Source: torch/distributed/pipelining/schedules.py."""

CLASSES = {  # torchtitan names a schedule by its class
    "gpipe": "GPipe", "1f1b": "1F1B", "interleaved-1f1b": "Interleaved1F1B", "interleaved-zb": "InterleavedZeroBubble",
    "zb-v": "ZBVZeroBubble", "dualpipe-v": "DualPipeV",
}  # fmt: skip
SCHEDULES = (*CLASSES, "looped-bfs")

# Policies of a layout (keys of `ppsim.Layout`) in torchtitan. Source: PyTorch, fully_shard.
POLICIES = {
    "overlap_data": True, "sharded_by": "block", "loss_bytes": 8, "fp8_experts": False, "fp8_inputs": False,
    "grouped_experts": True, "shard_copies": True,
}  # fmt: skip
