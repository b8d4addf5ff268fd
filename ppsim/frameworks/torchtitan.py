"""Facts about torchtitan. Sources: the JSON files next to this one, which name theirs; PyTorch's fully_shard.

With a tensor group each operator on a distributed tensor (DTensor) finds its placements in Python first: torch/
distributed/tensor/_dispatch.py. A block of Llama 3.1 8B and one of 70B on 8 H200 take 17.9 ms for two F and a B, not
compiled and whatever their width: 465 and 650 starts more than without a group. Measured here, PyTorch 2.13 and such a
block of small products on one CPU, without kernels and messages: F takes 2.0 ms more, B 2.8.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ppsim.frameworks import eager
from ppsim.frameworks.facts import Facts, Moves

FACTS = Facts(
    "torchtitan",
    {
        "overlap_data": True, "sharded_by": "block", "loss_bytes": 8, "fp8_experts": False, "fp8_inputs": False,
        "grouped_experts": True, "loss_chunks": 8,
    },
    eager.FACTS.host._replace(tensor=(465, 650)),
    eager.FACTS.host_source,
    messages=eager.FULLY_SHARD,
    # pull request 2937 of April 2026: every named config has ChunkedCELoss
    versions={"0.2.2": {"loss_chunks": 1}, "0.3.0": {}},
    # models/moe: gather, row of zeros, order with padding, back, set into zeros, cast to fp32, times score:
    # 32 bytes a value, four times those of a copy there and back. No compiler sees them (infra/parallelize.py).
    moves=Moves(copies=4),
    empty_stages=False,
    recompute_blocks=False,
)  # fmt: skip


def _read(name: str) -> dict[str, Any]:
    return json.loads(Path(__file__).with_name(name).read_text(encoding="utf-8"))


# Options by section: version, source, names of a section with blanks between them, what other versions have, those
# that change no step time or memory that ppsim models, and `rows` of a config's keys with their options.
OPTIONS: Mapping[str, Any] = _read("torchtitan_options.json")

# Sizes of models by module and flavor, and options of the module's named configs.
_MODELS = _read("torchtitan_models.json")
MODELS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    module: {flavor: {**_MODELS["common"], **sizes} for flavor, sizes in flavors.items()}
    for module, flavors in _MODELS["models"].items()
}
CONFIGS: Mapping[str, Mapping[str, Mapping[str, Any]]] = _MODELS["configs"]

SINGLE = ("1f1b", "gpipe")  # schedules whose classes have one stage per device; the others have two or more
# Values of options with which they change nothing.
WITHOUT_EFFECT = ("false", "none", "-1")
