"""Facts about Megatron-Bridge, which runs Megatron-Core. Source: NVIDIA-NeMo/Megatron-Bridge, scripts/performance."""

from ppsim.frameworks import megatron
from ppsim.frameworks.facts import Facts

FACTS = Facts(
    "Megatron-Bridge", megatron.CORE_FACTS.policies, megatron.HOST, megatron.HOST_SOURCE, messages=megatron.BUCKETS
)
