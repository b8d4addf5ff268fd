"""Facts about Megatron-Bridge, which runs Megatron-Core. Source: NVIDIA-NeMo/Megatron-Bridge, scripts/performance."""

from dataclasses import replace

from ppsim.frameworks import megatron

# From 26.06 on, recipes with experts in MXFP8 set use_transformer_engine_op_fuser and NVTE_CUTEDSL_FUSED_GROUPED_MLP:
# NVIDIA-NeMo/Megatron-Bridge@067f987, src/megatron/bridge/perf_recipes. 26.06.01 lost it for GPT OSS:
# docs/performance-summary-archive.md.
FACTS = replace(
    megatron.CORE_FACTS,
    name="Megatron-Bridge",
    # grad_reduce_in_fp32 = False, moe_router_fusion = True: v0.2.0 and v0.3.1, scripts/performance/configs
    policies={**megatron.CORE_FACTS.policies, "bf16_gradients": True, "fused_router": True},
    extra=megatron.EXTRA._replace(frees_outputs="0"),
    # The first release has core 0.14; 25.11 (v0.2.0) a commit of core of November 2025, 26.02 core 0.16
    since=dict.fromkeys(("layout.sharded=fp8 block", "layout.sharded_gradients=fp8 block"), "26.02"),
    versions={"25.11": {}, "26.02": {}, "26.04": {}, "26.06": {"fused_experts": True}},
)
