"""Facts about PyTorch's pipelining. Source: torch/distributed/pipelining/schedules.py."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ppsim.frameworks import eager

CLASSES = {  # torchtitan names a schedule by its class
    "gpipe": "GPipe", "looped-bfs": "LoopedBFS", "1f1b": "1F1B", "interleaved-1f1b": "Interleaved1F1B",
    "interleaved-zb": "InterleavedZeroBubble", "zb-v": "ZBVZeroBubble", "dualpipe-v": "DualPipeV",
}  # fmt: skip
SCHEDULES = (*CLASSES,)
# Options with which a family is what its class runs.
GROUPED = {"grouping": "torch"}
OPTIONS: Mapping[str, Mapping[str, Any]] = {"interleaved-1f1b": GROUPED, "interleaved-zb": GROUPED}

FACTS = replace(eager.FACTS, name="PyTorch")

SHARDINGS = ("none", "weights", "hybrid")  # its optimizer keeps the state of the weights that it has
RECOMPUTE = ("none", "alternate", "full")
# In a pipeline the runtime gathers and frees weights stage by stage (schedules.py, `_add_unshard_reshard`); with one
# stage per device that is once a step, as no backward but the last one frees or reduces (stage.py,
# `backward_maybe_with_nosync`).
PIPELINE_SHARDED_BY = "stage"
