"""What runs beside computation and what does not, by framework; experts by node; weights sharded by block."""

from dataclasses import replace

import pytest

from ppsim import Cluster, ConfigError, DerivedCosts, Layout, Model
from ppsim.costs import DeviceSheet, LinkSheet, OperatorLaw

EXCHANGE_BANDWIDTHS = 0.75, 0.91  # inside a node and on the network (HybridEP and DeepEP, their pages)
DEVICE = DeviceSheet("unit", 1000.0, 1e9, 0.5)
FAST, SLOW = LinkSheet("fast", 100.0, 0.0), LinkSheet("slow", 10.0, 0.0)
CLUSTER = Cluster(DEVICE, FAST, SLOW, gpus_per_node=4, contention=0.25)
MODEL = Model(num_layers=2, hidden=8, heads=4, vocabulary=6, sequence=16, causal=False)
EXPERTS = replace(MODEL, experts=8, experts_per_token=2)


def derived(model=MODEL, cluster=CLUSTER, framework="megatron-lm 2.6", **layout) -> DerivedCosts:
    return DerivedCosts(model, cluster, Layout(framework=framework, **layout))


def test_overlapped_tensor_parallelism_exposes_its_first_part_and_what_computation_does_not_cover():
    block = MODEL.layers[1]
    plain, hidden = (
        derived(tensor=2, sequence_parallel=True, framework=name) for name in ("megatron-lm", "megatron-core")
    )
    whole, computing = plain.exchange(block).forward, plain.work(block).forward
    rest = whole / 2
    covered = min(rest, computing)
    assert hidden.exchange(block).forward == pytest.approx(rest + rest - covered + 0.25 * covered)
    exposed = derived(tensor=2, sequence_parallel=True, framework="megatron-core", overlap_tensor=False)
    assert exposed.exchange(block).forward == whole


def test_without_sequence_parallelism_only_the_all_reduces_of_a_backward_overlap_under_its_weight_gradient():
    block = MODEL.layers[1]
    plain, hidden = (derived(tensor=2, framework=name).exchange(block) for name in ("megatron-lm", "megatron-core"))
    computing = derived(tensor=2).work(block).weight_grad
    covered = min(plain.input_grad, computing)
    assert hidden.forward == plain.forward
    assert hidden.input_grad == pytest.approx(plain.input_grad - covered + 0.25 * covered)


def test_a_tensor_group_larger_than_a_node_uses_all_cards_of_the_node():
    narrow, wide = (derived(replace(MODEL, heads=8), tensor=size).exchange(MODEL.layers[1]).forward for size in (4, 8))
    boundary = 2 * 16 * 8
    assert narrow == pytest.approx(2 * 2 * 3 * boundary / 4 / 100)
    assert wide == pytest.approx(2 * 2 * 7 * boundary / 8 / (4 * 10) + 2 * 2 * 2e-4)  # waits of two nodes


def test_weights_sharded_by_block_are_gathered_beside_the_block_and_held_for_two():
    stage, block = (derived(data=4, sharded=True, framework=name) for name in ("megatron-lm", "torchtitan"))
    layer = MODEL.layers[1]
    gathering = 3 * 2 * layer.parameters / 4 / 100
    computing = block.work(layer).forward
    exposed = max(gathering - computing, 0) + 0.25 * min(gathering, computing)
    assert block.exchange(layer).forward == pytest.approx(exposed)
    assert block.exchange(layer).repeated == 0  # a full recomputation finds the weights of its backward
    assert stage.exchange(layer).forward == 0
    kept = [costs.for_stages(1).gradient_bytes[0] for costs in (stage, block)]
    total, largest = sum(one.parameters for one in MODEL.layers), layer.parameters
    root = MODEL.layers[0].parameters + MODEL.layers[-1].parameters
    assert kept == pytest.approx([4 * total, 4 * (total / 4 + max(root, largest))])
    assert block.for_stages(1).weight_bytes[0] == pytest.approx(2 * min(root + 2 * largest, total))
    assert "unshard" not in block.for_stages(1).provenance


def test_only_a_block_that_is_recomputed_hides_collectives_under_its_repeated_forward():
    """Compare four stages of which two are recomputed, or one block of each, with that level for all of them."""
    model = replace(MODEL, num_layers=8)
    cluster = replace(CLUSTER, link=LinkSheet("narrow", 0.5, 0.0))

    def backward(**layout):
        costs = derived(model, cluster, data=4, sharded=True, framework="torchtitan", sharded_by="block", **layout)
        return costs.for_stages(4).input_grad

    none, full = backward(), backward(recompute="full")
    assert full[1] < none[1] + derived(model, cluster).repeated_seconds(model.layers[1], "full") * 2  # some is hidden
    assert backward(recompute="full", recompute_stages=2) == pytest.approx([*full[:2], *none[2:]])
    assert backward(recompute="full", recompute_stages=4) == full
    assert backward(recompute=["full", "none", "full", "none"]) == pytest.approx([full[0], none[1], full[2], none[3]])
    one = backward(recompute="full", recompute_blocks=1)
    assert one == pytest.approx([(some + every) / 2 for some, every in zip(none, full, strict=True)])
    assert backward(recompute="full", recompute_blocks=2) == full


def test_buckets_leave_of_a_reduction_what_the_last_backward_does_not_cover():
    plain, hidden = (derived(data=4, overlap_data=way).for_stages(2) for way in (False, True))
    whole, backward = plain.reduce_grad[0], plain.input_grad[0] + plain.weight_grad[0]
    first = whole / 2  # embedding and a block
    covered = min(whole - first, backward)
    assert hidden.reduce_grad[0] == pytest.approx(whole - covered + 0.25 * covered)


def test_a_token_crosses_to_a_node_once_where_the_exchange_is_hierarchical():
    plain, once, limited = (
        derived(EXPERTS, data=8, expert=8, **more).exchange(EXPERTS.layers[1])
        for more in ({}, {"expert_exchange": "hierarchical"}, {"expert_exchange": "hierarchical", "expert_nodes": 1})
    )
    boundary, speed = 2 * 16 * 8, EXCHANGE_BANDWIDTHS[1] * 10
    others = 1 - (1 / 2) ** 2  # of the tokens, those with an expert on a node
    wait = 2 * 2e-4  # of two nodes, before a dispatch; and before numbers of tokens are gathered, in F
    assert plain.input_grad == pytest.approx(2 * 2 * boundary * (4 / 8) / 10 + wait)
    assert plain.forward - plain.input_grad == pytest.approx(wait)
    assert once.forward == once.input_grad == pytest.approx(2 * 2 * others * boundary * (1 / 2) / speed + wait)
    assert limited.forward == pytest.approx(2 * boundary * (1 / 2) / speed + wait)


def test_a_token_goes_to_a_gpu_once_where_the_exchange_is_hierarchical():
    plain, once, limited = (
        derived(EXPERTS, data=4, expert=4, **more).exchange(EXPERTS.layers[1]).forward / 2
        for more in ({}, {"expert_exchange": "hierarchical"}, {"expert_exchange": "hierarchical", "expert_groups": 4})
    )
    boundary = 2 * 16 * 8
    assert plain == pytest.approx(2 * boundary * (3 / 4) / 100)
    assert once == pytest.approx(4 * (1 - (3 / 4) ** 2) * boundary / (EXCHANGE_BANDWIDTHS[0] * 100))
    assert limited == pytest.approx(boundary / (EXCHANGE_BANDWIDTHS[0] * 100))


def test_a_router_that_takes_experts_from_some_groups_visits_fewer_nodes():
    many = replace(EXPERTS, experts=16, experts_per_token=8)
    every, grouped, near = (
        derived(many, data=16, expert=16, expert_exchange="hierarchical", **more).exchange(many.layers[1]).forward
        for more in ({}, {"expert_groups": 8, "groups_per_token": 2}, {"expert_groups": 8})
    )
    wait = 2 * 2e-4 * 2
    crossing = [(one - wait) * EXCHANGE_BANDWIDTHS[1] * 10 / 2 / (2 * 16 * 8) for one in (every, grouped, near)]
    part = (4 - 1) / 4  # of the nodes are others
    missed = (6 * 5) / (8 * 7)  # neither of two groups is one of a node's two
    assert crossing == pytest.approx([4 * (1 - (3 / 4) ** 8) * part, 4 * (1 - missed) * part, 4 * (2 / 8) * part])
    with pytest.raises(ConfigError, match="groups_per_token=2 is above expert_groups=1"):
        derived(EXPERTS, data=4, expert=4, groups_per_token=2)


def test_megatron_lm_scatters_a_boundary_over_the_tensor_group():
    whole, scattered = (derived(tensor=4, framework=name).transfer_bytes for name in ("deepspeed", "megatron-lm 2.6"))
    assert whole == 4 * scattered == 2 * 16 * 8


def test_a_ring_of_context_parallelism_runs_beside_all_but_the_first_part_of_attention():
    block = MODEL.layers[1]
    gathered, ring, exposed = (
        derived(context=2, context_exchange=way, overlap_context=hidden)
        for way, hidden in (("gather", None), ("ring", None), ("ring", False))
    )
    whole = 2 * 16 * 2 * 8 / 2 / 100  # keys and values of the other half of the tokens
    assert gathered.exchange(block)[:2] == exposed.exchange(block)[:2] == (whole, 2 * whole)
    attending = ring.work(block).core / 2
    covered = min(whole, attending)
    assert ring.exchange(block).forward == pytest.approx(whole - covered + 0.25 * covered)
    covered = min(2 * whole, 2.5 * attending)
    assert ring.exchange(block).input_grad == pytest.approx(2 * whole - covered + 0.25 * covered)


def test_context_parallelism_of_heads_sends_a_part_of_queries_keys_values_and_outputs_each_way():
    block = MODEL.layers[1]
    costs = derived(context=4, context_exchange="all-to-all")
    own = 2 * (16 / 4) * (4 * 8)  # bf16 queries, keys, values and outputs of a GPU's tokens
    assert costs.exchange(block)[:2] == pytest.approx((own * 3 / 4 / 100,) * 2)
    with pytest.raises(ConfigError, match="context=8 does not divide the 4 heads of a GPU"):
        derived(context=8, framework="deepspeed")


@pytest.mark.parametrize(
    ("framework", "exchange", "hidden"),
    [
        ("megatron-lm", "ring", True), ("megatron-core", "ring", True), ("torchtitan", "gather", False),
        ("deepspeed", "all-to-all", False),
    ],
)  # fmt: skip
def test_how_context_is_exchanged_follows_from_the_framework(framework, exchange, hidden):
    layout = Layout(framework=framework)
    assert (layout.chosen("context_exchange"), layout.hides_context) == (exchange, hidden)


def test_whole_experts_span_the_gpus_of_tensor_groups():
    split, whole = (derived(EXPERTS, tensor=2, data=2, expert=2, expert_tensor=one) for one in (None, 1))
    layer = EXPERTS.layers[1]
    assert split.layout.gpu_parameters(layer)[1] == layer.expert_parameters / (2 * 2)
    assert whole.layout.gpu_parameters(layer)[1] == layer.expert_parameters / 2
    assert split.layout.data_groups == (2, 1)
    assert whole.layout.data_groups == (2, 2)  # two groups of two whole halves
    boundary = 2 * 2 * (2 - 1) * (2 * 16 * 8 / 2) / 100  # two rings of an all-reduce of two GPUs
    exchanged = 2 * 2 * (1 / 2) * (2 * 16 * 8) / 100
    assert split.exchange(layer).forward == pytest.approx(boundary + 2 * exchanged / 2)
    assert whole.exchange(layer).forward == pytest.approx(boundary / 2 + 2 * exchanged / 2)
    wide = derived(EXPERTS, tensor=2, data=2, expert=4, expert_tensor=1)
    assert wide.layout.gpu_parameters(layer)[1] == layer.expert_parameters / 4
    with pytest.raises(ConfigError, match="expert=8 does not divide the 4 GPUs that hold experts"):
        derived(EXPERTS, tensor=2, data=2, expert=8, expert_tensor=1)
    with pytest.raises(ConfigError, match="expert_tensor=3 does not divide the 2 tensor-parallel GPUs"):
        derived(EXPERTS, tensor=2, data=2, expert_tensor=3)


def test_a_parallel_block_has_one_all_reduce():
    one, two = (derived(replace(MODEL, parallel_block=way), tensor=2) for way in (True, False))
    block, other = one.model.layers[1], two.model.layers[1]
    assert one.exchange(block).forward == two.exchange(other).forward / 2
    assert block.operators.other_bytes == other.operators.other_bytes * 4 / 6
    assert block.parameters == other.parameters


def test_a_window_leaves_out_the_pairs_of_tokens_that_lie_further_apart():
    model = replace(MODEL, num_layers=4, window=4, window_period=2)
    cores = [layer.attention_core for layer in model.layers[1:5]]
    whole = 4 * 16**2 * 8
    assert cores == [4 * (16**2 - 12**2) * 8, whole] * 2
    assert replace(model, window_period=0).layers[4].attention_core == cores[0]
    causal = replace(model, causal=True)
    assert causal.layers[1].attention_core == cores[0] / 2
    assert replace(model, window=16).layers[1].attention_core == whole


def test_a_slot_that_hides_collectives_is_slowed_by_a_part_of_them():
    law = OperatorLaw(0.5, 0.25, 0.25, 0.25, sustained=1.0, tail=0.0, attention_tail=0.0, memory=1.0, launch=0.0)
    device = DeviceSheet("unit", 1000.0, 1e9, memory_bandwidth=1e9, operators=law)
    hidden, apart = (
        derived(cluster=replace(CLUSTER, device=device, contention=part), tensor=2, overlap=True).for_stages(1)
        for part in (0.25, 0.0)
    )
    collectives = derived(cluster=replace(CLUSTER, device=device, contention=0.0), tensor=2)
    exchanging = sum(sum(collectives.exchange(layer)[:2]) for layer in MODEL.layers)
    computing = sum(collectives.work(layer).whole for layer in MODEL.layers)
    assert apart.overlap[0][0] == pytest.approx(max(computing, exchanging))
    assert hidden.overlap[0][0] == pytest.approx(max(computing, exchanging) + 0.25 * min(computing, exchanging))


def test_fused_accumulation_holds_a_gradient_of_each_shape_of_matrix_once_a_device():
    plain, fused = (
        derived(tensor=2, overlap_tensor=False, framework=name) for name in ("megatron-lm", "megatron-core")
    )
    blocks = 2 * (8 * 12 + 4 * 8 + 8 * 16 + 16 * 8)  # QKV, projection, up and down, halves of 24, 8, 32 and 32
    head = 2 * 8 * 3
    one = [costs.for_stages(1).gradient_bytes[0] for costs in (plain, fused)]
    assert one[1] - one[0] == blocks + head
    two = [costs.for_stages(2, devices=1).gradient_bytes for costs in (plain, fused)]
    assert [after - before for before, after in zip(*two, strict=True)] == [blocks / 2, blocks / 2 + head]
    experts = replace(EXPERTS, expert_ffn=16)
    one = [
        derived(experts, framework=name).for_stages(1).gradient_bytes[0] for name in ("megatron-lm", "megatron-core")
    ]
    assert one[1] - one[0] == 2 * (8 * 24 + 8 * 8 + 8 * 16 + 16 * 8 + 8 * 6)  # one of eight experts, the head
