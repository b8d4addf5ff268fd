"""Facts about Primus, which trains with Megatron-LM.

Source: AMD-AGI/Primus at the version of `OPTIONS`: primus/core/pipeline_parallel/scheduler, and
primus/backends/megatron/core/pipeline_parallel. 1F1B and the interleaved schedule are Megatron-LM's own.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from ppsim.frameworks import megatron

# Schedules that split the backward, with the `pp_algorithm` of equal lists. Its v-half and v-min hold equal activations
# in another order, which depends on no costs; without `patch_primus_pipeline` it runs Megatron-LM's schedules.
ALGORITHMS = {"zb-h1": "zero-bubble", "zb-v": "zbv-formatted"}
ORDERS = {
    **ALGORITHMS, "v-half": "v-half", "v-min": "v-min", "1f1b": "1f1b", "interleaved-1f1b": "1f1b-interleaved",
}  # fmt: skip
SCHEDULES = ("1f1b", "interleaved-1f1b", *ALGORITHMS)
# Values of a layout's keys that its split backward needs, with the reason: .../zerobubble/README.md, extensions/
# te_wgrad_store.py (a W after its B), and primus/core/projection/config_validation.py.
SPLIT_NEEDS: dict[str, tuple[Any, str]] = {
    "overlap_data": (False, "needs overlap_grad_reduce false"),
    "overlap_tensor": (False, "excludes tp_comm_overlap"),
    "recompute": ("none", "keeps the inputs that a recompute frees"),
    **dict.fromkeys(("sharded", "sharded_gradients"), (False, "excludes FSDP")),
}
_NEEDS = {key: value for key, (value, _) in SPLIT_NEEDS.items()}
NEEDS = dict.fromkeys(ALGORITHMS, _NEEDS)
# One kernel has the products of a GPU's experts with use_turbo_grouped_gemm or moe_use_legacy_grouped_gemm:
# primus/backends/megatron/core/extensions/transformer_engine_spec_provider.py, grouped_mlp_modules.
HOST, EXTRA = megatron.HOST._replace(each_expert=False), megatron.EXTRA._replace(frees_outputs="0")
FACTS = replace(megatron.CORE_FACTS, name="Primus", host=HOST, extra=EXTRA, since={})


# Every key by the group of Megatron-LM's parser, or its file of presets; keys whose flag of Megatron-LM has another
# name, or is for `false`; the values of pre_trainer.yaml, and of each model beyond those of language_model.yaml.
OPTIONS: dict[str, Any] = json.loads(Path(__file__).with_name("primus_options.json").read_text(encoding="utf-8"))
