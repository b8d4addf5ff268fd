"""Facts about Megatron-Bridge, which runs Megatron-Core. Source: NVIDIA-NeMo/Megatron-Bridge, scripts/performance."""

from ppsim.frameworks import megatron
from ppsim.frameworks.facts import Facts

# From 26.06 on, recipes with experts in MXFP8 set use_transformer_engine_op_fuser and NVTE_CUTEDSL_FUSED_GROUPED_MLP:
# NVIDIA-NeMo/Megatron-Bridge@067f987, src/megatron/bridge/perf_recipes. 26.06.01 lost it for GPT OSS:
# docs/performance-summary-archive.md.
FACTS = Facts(
    "Megatron-Bridge",
    {**megatron.CORE_FACTS.policies, "bf16_gradients": True},  # grad_reduce_in_fp32 = False in each of these recipes
    megatron.HOST,
    megatron.HOST_SOURCE,
    messages=megatron.BUCKETS,
    versions={"26.04": {}, "26.06": {"fused_experts": True}},
)
