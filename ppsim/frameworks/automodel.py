"""Facts about NeMo AutoModel: fully_shard and pipelines as in torchtitan. Source: NVIDIA-NeMo/Automodel@36044ad."""

from dataclasses import replace

from ppsim.frameworks import torchtitan
from ppsim.frameworks.facts import Moves

FACTS = replace(torchtitan.FACTS, name="AutoModel", moves=Moves())
