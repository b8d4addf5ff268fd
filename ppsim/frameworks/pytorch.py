"""Facts about PyTorch's pipelining and torchtitan. Source: torch/distributed/pipelining/schedules.py."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CLASSES = {  # torchtitan names a schedule by its class
    "gpipe": "GPipe", "looped-bfs": "LoopedBFS", "1f1b": "1F1B", "interleaved-1f1b": "Interleaved1F1B",
    "interleaved-zb": "InterleavedZeroBubble", "zb-v": "ZBVZeroBubble", "dualpipe-v": "DualPipeV",
}  # fmt: skip
SCHEDULES = (*CLASSES,)
# Options with which a family is what its class runs.
GROUPED = {"grouping": "torch"}
OPTIONS: Mapping[str, Mapping[str, Any]] = {"interleaved-1f1b": GROUPED, "interleaved-zb": GROUPED}

# Policies of a layout (keys of `ppsim.Layout`) in torchtitan. Source: PyTorch, fully_shard.
POLICIES = {
    "overlap_data": True, "sharded_by": "block", "loss_bytes": 8, "fp8_experts": False, "fp8_inputs": False,
    "grouped_experts": True, "shard_copies": True,
}  # fmt: skip

# torchtitan's options by section: version, source, and names of a section with blanks between them.
TITAN_OPTIONS: dict[str, Any] = json.loads(
    Path(__file__).with_name("torchtitan_options.json").read_text(encoding="utf-8")
)
