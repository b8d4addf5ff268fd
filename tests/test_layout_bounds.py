"""No synchronous schedule of a layout takes less time or memory than the layout's bound says."""

from hypothesis import given, settings
from hypothesis import strategies as some
from test_choose import SMALL

import ppsim
from ppsim.analysis import layout_memory_bound, layout_step_bound
from ppsim.config import ConfigSource
from ppsim.studies.space import keeps_activations

FAMILIES = [
    name for name, family in ppsim.schedules().items() if "costs" not in family.options and not family.asynchronous
]
LAYOUTS = some.fixed_dictionaries(
    {
        "tensor": some.sampled_from([1, 2, 4]),
        "recompute": some.sampled_from(["none", "full", "norms+up"]),
        "overlap": some.sampled_from([False, True, "two-stream"]),
        "partition": some.sampled_from(["even", "by_cost(greedy)", "balanced"]),
    }
)
ROUTED = {"experts": 8, "experts_per_token": 2, "expert_ffn": 1024}
EXPERTS = some.sampled_from([{}, ROUTED, {**ROUTED, "dense_layers": 3}, {"tied_embeddings": True}])
SHARDINGS = some.sampled_from(
    [{}, {"distributed_optimizer": True}, {"distributed_optimizer": True, "sharded_gradients": True}]
    + [{"sharded": True, "sharded_by": unit} for unit in ("stage", "block", "step")]
)


@settings(deadline=None, max_examples=60)
@given(
    some.sampled_from(FAMILIES),
    some.sampled_from([2, 4]),
    some.sampled_from([4, 8, 12]),
    some.sampled_from([None, 3]),
    EXPERTS,
    LAYOUTS,
    SHARDINGS,
    some.sampled_from(["sync", "post-validated", None]),
    some.booleans(),
    some.sampled_from([None, 0.25, 2.0]),
)
def test_no_step_or_peak_is_below_that_of_its_layout(
    family, devices, microbatches, stages, experts, layout, sharding, optimizer, ready, scale
):
    data = 8 // devices // layout["tensor"]
    if not data:
        return
    case = {key: value for key, value in SMALL.items() if key != "batch"} | {
        "model": {**SMALL["model"], **experts},
        "schedule": {"name": family, "devices": devices, "microbatches": microbatches, "stages_per_device": stages},
        "layout": {
            **layout, **sharding, "data": data, "expert": data if "experts" in experts else 1,
            "sequence_parallel": layout["tensor"] > 1,
        },
        "optimizer": optimizer,
    }  # fmt: skip
    if scale is not None:
        case["costs"] = {"microbatch_scale": [scale] * microbatches}
    if ready:
        case |= {"dispatch": "ready", "transport": "async"}
    try:
        config = ConfigSource(case, "case").config()
        run = config.simulate()
    except ppsim.PpsimError:
        return
    of = devices, microbatches, optimizer
    seconds = layout_step_bound(config.costs, *of)
    size = layout_memory_bound(config.costs, devices, keeps_activations(family))
    assert seconds <= run.iteration_time
    assert seconds > 0 or scale is not None
    assert run.peak_memory is not None
    assert 0 < size <= run.peak_memory.max()
