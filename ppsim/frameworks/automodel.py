"""Facts about NeMo AutoModel: fully_shard and pipelines as in torchtitan. Source: NVIDIA-NeMo/Automodel@36044ad.

Its models are built in bf16, and torch.optim.Adam then has moments in bf16 too (examples/llm_benchmark). It always
compiles the activation of experts behind DeepEP and HybridEP (get_expert_activation_for_deepep, components/moe). Its
checkpoints stop early, PyTorch's default (components/moe/parallelizer.py); torchtitan sets early_stop to False.
"""

from dataclasses import replace

from ppsim.frameworks import torchtitan
from ppsim.frameworks.facts import Moves

FACTS = replace(
    torchtitan.FACTS,
    name="AutoModel",
    policies={**torchtitan.FACTS.policies, "optimizer_bytes": 6, "loss_chunks": 1},
    moves=Moves(experts=True),
    early_stop=True,
    versions={},
)
