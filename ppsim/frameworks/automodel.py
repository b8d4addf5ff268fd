"""Facts about NeMo AutoModel: fully_shard and pipelines as in torchtitan. Source: NVIDIA-NeMo/Automodel@36044ad."""

from dataclasses import replace

from ppsim.frameworks import torchtitan
from ppsim.frameworks.facts import Moves

# fused_routed: torch.compile and `weighted_bias_swiglu_impl` of components/moe/experts.py, also in eager steps.
# stops_early: profiles of Qwen3 30B, all recomputed, have 288 dispatches and 192 combinations, so none is repeated;
# those of Llama 3.1 70B have 26 products a block where all would be 28 (branches MFSDP-qwen3-moe, MFSDP-llama3-70b).
FACTS = replace(torchtitan.FACTS, name="AutoModel", moves=Moves(fused_routed=True), stops_early=True)
