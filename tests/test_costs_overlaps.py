"""What runs beside computation and what does not, by framework; experts by node; weights sharded by block."""

from dataclasses import replace

import pytest

from ppsim import Cluster, DerivedCosts, Layout, Model
from ppsim.costs import LinkSheet
from ppsim.costs.hardware import DeviceSheet

DEVICE = DeviceSheet("unit", 1000.0, 1e9, 0.5)
FAST, SLOW = LinkSheet("fast", 100.0, 0.0), LinkSheet("slow", 10.0, 0.0)
CLUSTER = Cluster(DEVICE, FAST, SLOW, gpus_per_node=4, contention=0.25)
MODEL = Model(num_layers=2, hidden=8, heads=4, vocabulary=6, sequence=16, causal=False)
EXPERTS = replace(MODEL, experts=8, experts_per_token=2)


def derived(model=MODEL, cluster=CLUSTER, **layout) -> DerivedCosts:
    return DerivedCosts(model, cluster, Layout(**layout))


def test_overlapped_tensor_parallelism_exposes_its_first_part_and_what_computation_does_not_cover():
    block = MODEL.layers[1]
    plain, hidden = derived(tensor=2), derived(tensor=2, framework="megatron-core")
    whole, computing = plain.exchange(block).forward, plain.work(block).forward
    rest = whole / 2
    covered = min(rest, computing)
    assert hidden.exchange(block).forward == pytest.approx(rest + rest - covered + 0.25 * covered)
    assert derived(tensor=2, framework="megatron-core", overlap_tensor=False).exchange(block).forward == whole


def test_a_tensor_group_larger_than_a_node_uses_all_cards_of_the_node():
    narrow, wide = (derived(replace(MODEL, heads=8), tensor=size).exchange(MODEL.layers[1]).forward for size in (4, 8))
    border = 2 * 16 * 8
    assert narrow == pytest.approx(2 * 2 * 3 * border / 4 / 100)
    assert wide == pytest.approx(2 * 2 * 7 * border / 8 / (4 * 10))


def test_weights_sharded_by_block_are_gathered_beside_the_block_and_held_for_two():
    stage, block = (derived(data=4, sharded=True, framework=name) for name in ("megatron-lm", "torchtitan"))
    layer = MODEL.layers[1]
    gathering = 3 * 2 * layer.parameters / 4 / 100
    computing = block.work(layer).forward
    exposed = max(gathering - computing, 0) + 0.25 * min(gathering, computing)
    assert block.exchange(layer).forward == pytest.approx(exposed)
    assert block.exchange(layer).again == 0  # a full recomputation finds the weights of its backward
    assert stage.exchange(layer).forward == 0
    kept = [costs.for_stages(1).gradient_bytes[0] for costs in (stage, block)]
    total, largest = sum(one.parameters for one in MODEL.layers), layer.parameters
    root = MODEL.layers[0].parameters + MODEL.layers[-1].parameters
    assert kept == pytest.approx([4 * total, 4 * (total / 4 + max(root, largest))])
    assert block.for_stages(1).weight_bytes[0] == pytest.approx(2 * min(root + 2 * largest, total))
    assert "unshard" not in block.for_stages(1).provenance


def test_buckets_leave_of_a_reduction_what_the_last_backward_does_not_cover():
    plain, hidden = (derived(data=4, overlap_data=way).for_stages(2) for way in (False, True))
    whole, backward = plain.reduce_grad[0], plain.input_grad[0] + plain.weight_grad[0]
    first = whole / 2  # embedding and a block
    covered = min(whole - first, backward)
    assert hidden.reduce_grad[0] == pytest.approx(whole - covered + 0.25 * covered)


def test_a_token_crosses_to_a_node_once_where_the_exchange_is_hierarchical():
    plain, once, limited = (
        derived(EXPERTS, data=8, expert=8, **more).exchange(EXPERTS.layers[1]).forward / 2
        for more in ({}, {"expert_exchange": "hierarchical"}, {"expert_exchange": "hierarchical", "expert_nodes": 1})
    )
    border = 2 * 16 * 8
    assert plain == pytest.approx(2 * border * (4 / 8) / 10)
    assert once == pytest.approx(2 * (1 - (1 / 2) ** 2) * border * (1 / 2) / 10)
    assert limited == pytest.approx(border * (1 / 2) / 10)


def test_megatron_lm_scatters_a_border_over_the_tensor_group():
    whole, scattered = (derived(tensor=4, framework=name).transfer_bytes for name in ("deepspeed", "megatron-lm"))
    assert whole == 4 * scattered == 2 * 16 * 8
