"""Facts about Megatron-LM. Source: megatron/core/pipeline_parallel/schedules.py, megatron/training/arguments.py."""

SCHEDULES = ("1f1b", "interleaved-1f1b")
FP8_RECIPES = {"tensor": "tensorwise", "delayed": "delayed", "block": "blockwise"}  # our recipe -> its --fp8-recipe

# Policies of a layout (keys of `ppsim.Layout`) in Megatron-LM, and in Megatron-Core.
POLICIES = {"scatter_transfers": True, "context_exchange": "ring"}
CORE_POLICIES = {"overlap_tensor": True, "overlap_data": True, "context_exchange": "ring", "gradient_buffers": True}
