"""Facts about the frameworks that run schedules.

A framework's schedules are the synchronous ones that it runs without a change of the model: every microbatch is whole,
and each weight is held once.
"""

from collections.abc import Mapping
from typing import Any

from ppsim.frameworks import deepspeed, megatron, primus, pytorch

SCHEDULES: dict[str, tuple[str, ...]] = {
    "Megatron-LM": megatron.SCHEDULES,
    "Primus": primus.SCHEDULES,
    "PyTorch": pytorch.SCHEDULES,
}

# Policies of a layout that a framework sets, by the names of `layout.framework`.
POLICIES: Mapping[str, Mapping[str, Any]] = {
    "megatron-lm": megatron.POLICIES,
    "megatron-core": megatron.CORE_POLICIES,
    "torchtitan": pytorch.POLICIES,
    "deepspeed": deepspeed.POLICIES,
}

# Options of a framework's own parser at one version, by the names of `ppsim.to_launch`.
LAUNCH_OPTIONS: Mapping[str, Mapping[str, Any]] = {"Megatron-LM": megatron.OPTIONS, "torchtitan": pytorch.TITAN_OPTIONS}
