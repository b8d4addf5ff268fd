"""Costs derived from a model, a machine and a layout: seconds and bytes by hand-made cases."""

from dataclasses import replace

import numpy as np
import pytest
from korthikanti import model as megatron_model

import ppsim
from ppsim import Cluster, ConfigError, CostError, DerivedCosts, Layout, Model
from ppsim.costs import DEVICES, LINKS, DeviceSheet, LinkSheet, find_device, find_link
from ppsim.costs.networks import Group, all_reduce, group_of, ring_pass

FAST, SLOW = LinkSheet("fast", 100.0, 1.0), LinkSheet("slow", 10.0, 5.0)
DEVICE = DeviceSheet("unit", 1000.0, 1e9, 0.5)
CLUSTER = Cluster(DEVICE, FAST, SLOW, gpus_per_node=4)
SMALL = Model(num_layers=8, hidden=4, heads=2, vocabulary=6, sequence=16, causal=False)


def derived(layout: Layout | None = None, model: Model = SMALL, cluster: Cluster = CLUSTER, **given) -> DerivedCosts:
    return DerivedCosts(model, cluster, layout or Layout(), given)


def test_seconds_are_flops_over_the_achieved_rate():
    costs = derived(Layout(microbatch_size=3)).for_stages(8)
    block, head = SMALL.layers[1], SMALL.layers[-1]
    assert costs.per == "stage"
    assert costs.forward == pytest.approx([3 * block.forward / 500] * 7 + [3 * (block.forward + head.forward) / 500])
    assert costs.input_grad[0] == pytest.approx(3 * block.input_grad / 500)
    assert costs.backward == pytest.approx(np.add(costs.input_grad, costs.weight_grad))


def test_tensor_parallel_divides_the_work_and_adds_two_all_reduces_a_block():
    alone, split = derived().for_stages(8), derived(Layout(tensor=2, overlap_tensor=False)).for_stages(8)
    boundary = 2 * 16 * 4
    exchange = 2 * 2 * (1.0 + boundary / 2 / 100)  # two passes of a ring each
    assert split.forward[1] == pytest.approx(alone.forward[1] / 2 + exchange)
    assert split.input_grad[1] == pytest.approx(alone.input_grad[1] / 2 + exchange)
    assert split.weight_grad[1] == pytest.approx(alone.weight_grad[1] / 2)


def test_scaling_gathers_its_logits_and_computes_the_loss_of_all():
    for device, passes in ((DEVICE, 0), (DEVICES["H100 SXM"], 1)):
        cluster = replace(CLUSTER, device=device)
        layouts = [Layout(tensor=2, framework=name, fused_norms=True) for name in ("eager", "scaling")]
        costs = [derived(layout, cluster=cluster) for layout in layouts]
        split, whole = (one.for_stages(8) for one in costs)
        gather = ring_pass(group_of(cluster, 2), 2 * 16 * 6)
        loss = (
            passes * costs[0].work(SMALL.layers[-1]).activations / 22
        )  # of half of the words, which move 22 bytes each
        forward, backward = (2 * 34 - 22) * loss, 26 * loss
        assert np.subtract(whole.forward, split.forward) == pytest.approx([0] * 7 + [gather + forward], abs=1e-12)
        assert np.subtract(whole.input_grad, split.input_grad) == pytest.approx([0] * 7 + [backward], abs=1e-12)


def test_a_group_that_leaves_the_node_pays_the_network():
    model = Model(num_layers=2, hidden=8, heads=8, vocabulary=6, sequence=16)
    inside = derived(Layout(tensor=4), model).for_stages(2).forward[0]
    across = derived(Layout(tensor=8), model).for_stages(2).forward[0]
    assert across > inside


def test_collectives_follow_the_ring_and_cost_nothing_alone():
    four = Group(4, 1, FAST, FAST.latency)
    assert ring_pass(four, 800.0) == 3 * (1.0 + 200 / 100)
    assert all_reduce(four, 800.0) == 2 * ring_pass(four, 800.0)
    assert all_reduce(Group(1, 1, FAST, 1.0), 800.0) == ring_pass(Group(1, 1, FAST, 1.0), 800.0) == 0


def test_a_ring_has_one_hop_of_the_network_for_each_node():
    eight = Group(8, 2, SLOW, FAST.latency)
    hops = 6 * 1.0 + SLOW.latency
    assert ring_pass(eight, 800.0) == pytest.approx(hops + 700 / SLOW.bandwidth)


def test_without_a_switch_a_group_of_n_uses_n_minus_1_links_of_a_device():
    joined = replace(CLUSTER, link=replace(FAST, links=CLUSTER.gpus_per_node - 1))
    for size in range(2, CLUSTER.gpus_per_node + 1):
        part = (size - 1) / (CLUSTER.gpus_per_node - 1)
        assert group_of(joined, size).link.bandwidth == pytest.approx(part * group_of(CLUSTER, size).link.bandwidth)
    for layout, is_slower in ((Layout(tensor=2), True), (Layout(expert=4, data=4), False)):
        model = replace(SMALL, experts=4, experts_per_token=1) if layout.expert > 1 else SMALL
        switched, direct = (derived(layout, model, one).for_stages(1) for one in (CLUSTER, joined))
        assert (direct.forward[0] > switched.forward[0]) == is_slower
        assert direct.bandwidth == pytest.approx(switched.bandwidth / joined.link.links)  # of two devices


def test_members_of_several_nodes_wait_for_the_last_one():
    assert [group_of(CLUSTER, size).nodes for size in (CLUSTER.gpus_per_node, 4 * CLUSTER.gpus_per_node)] == [1, 4]
    assert group_of(CLUSTER, CLUSTER.gpus_per_node).wait == 0
    assert group_of(replace(CLUSTER, node_wait=3.0), 4 * CLUSTER.gpus_per_node).wait == 12.0
    model, layout = Model(num_layers=2, hidden=16, heads=16, vocabulary=16, sequence=16), Layout(tensor=16)
    quick, slow = (derived(layout, model, replace(CLUSTER, node_wait=one)).for_stages(2).forward for one in (0.0, 3.0))
    waits = 2 * 3.0 * (16 // CLUSTER.gpus_per_node)  # two all-reduces a block, and that of the embedding
    assert slow[0] - quick[0] == pytest.approx(1.5 * waits)


def test_context_parallel_gathers_keys_and_values():
    costs = derived(Layout(context=2, context_exchange="gather")).for_stages(8)
    gathered = 2 * 16 * 2 * 4
    assert costs.forward[1] == pytest.approx(derived().for_stages(8).forward[1] / 2 + 1.0 + gathered / 2 / 100)
    assert costs.transfer_bytes == 2 * 16 * 4 / 2


def test_expert_parallel_dispatches_and_combines():
    model = Model(num_layers=2, hidden=4, heads=2, vocabulary=6, sequence=16, experts=4, experts_per_token=2)
    alone, spread = derived(Layout(data=2), model), derived(Layout(data=2, expert=2), model)
    exchange = 2 * (1.0 + 2 * (2 * 16 * 4) / 2 / 100)
    assert spread.for_stages(2).forward[0] - alone.for_stages(2).forward[0] == pytest.approx(exchange)
    held = alone.for_stages(2).weight_bytes[0] - spread.for_stages(2).weight_bytes[0]
    assert held == 2 * model.layers[1].expert_parameters / 2


def test_recompute_adds_its_forward_to_the_backward_of_the_chosen_stages():
    none = derived().for_stages(8)
    full = derived(Layout(recompute="full", recompute_stages=3)).for_stages(8)
    added = np.subtract(full.backward, none.backward)
    assert added == pytest.approx([none.forward[0]] * 3 + [0.0] * 5)
    assert full.activation_bytes[:4] == [2 * 16 * 4] * 3 + none.activation_bytes[3:4]
    assert full.forward == none.forward
    assert full.weight_grad == none.weight_grad
    levels = ("full",) * 3 + ("none",) * 5
    assert derived(Layout(recompute=levels)).for_stages(8).backward == full.backward


def test_full_recompute_repeats_the_collectives_of_the_forward():
    layout = {"tensor": 2}
    none, full = (derived(Layout(**layout, recompute=level)).for_stages(8) for level in ("none", "full"))
    assert np.subtract(full.backward, none.backward)[1] == pytest.approx(none.forward[1])


def test_the_part_of_the_activations_that_weight_gradients_need_is_32_of_34():
    model = Model(num_layers=4, hidden=64, heads=4, vocabulary=1, sequence=16, dropout=True)
    assert derived(model=model).for_stages(4).weight_grad_fraction_of_activation[1] == 32 / 34


def test_state_is_18_bytes_a_parameter_and_6_plus_12_over_d_with_a_distributed_optimizer():
    parameters = SMALL.layers[1].parameters
    plain = derived(Layout(gradient_buffers=False)).for_stages(8)
    shared = derived(Layout(data=4, distributed_optimizer=True)).for_stages(8)
    total = [getattr(plain, name)[1] for name in ("weight_bytes", "gradient_bytes", "optimizer_bytes")]
    assert total == [2 * parameters, 4 * parameters, 12 * parameters]
    assert shared.optimizer_bytes[1] == 12 / 4 * parameters
    assert shared.weight_bytes == plain.weight_bytes


def test_tied_embeddings_are_held_on_both_ends_but_once_on_a_single_stage():
    tied = Model(num_layers=8, hidden=4, heads=2, vocabulary=600, sequence=16, tied_embeddings=True)
    assert derived(model=tied).for_stages(1).weight_bytes == [2 * tied.parameters]
    assert sum(derived(model=tied).for_stages(8).weight_bytes) == 2 * (tied.parameters + 600 * 4)


def test_pairs_of_devices_pay_the_link_between_their_nodes():
    schedule = ppsim.build("1f1b", devices=4, microbatches=4)
    table = derived(Layout(data=2)).table(schedule)  # two GPUs a pipeline device: two pipeline devices a node
    near, far = 1.0, 5.0
    assert table.latency.tolist() == [
        [near, near, far, far], [near, near, far, far], [far, far, near, near], [far, far, near, near],
    ]  # fmt: skip
    assert table.seconds_per_byte[0].tolist() == [1 / 100, 1 / 100, 1 / 10, 1 / 10]


def test_a_transfer_in_a_timeline_lasts_latency_plus_bytes_over_bandwidth_of_its_link():
    schedule = ppsim.build("gpipe", devices=8, microbatches=1)
    run = ppsim.simulate(schedule, derived())
    seconds = run.transfer_end - run.transfer_start
    first_node, crossing = schedule.offsets[1], schedule.offsets[4]
    assert seconds[first_node] == pytest.approx(1.0 + 2 * 16 * 4 / 100)
    assert seconds[crossing] == pytest.approx(5.0 + 2 * 16 * 4 / 10)


def test_activations_are_counted_in_shares_of_the_blocks():
    schedule = ppsim.build("1f1b", devices=4, microbatches=8)
    assert ppsim.simulate(schedule, derived()).peak_activations.tolist() == [4, 3, 2, 1]
    uneven = derived(Layout(partition=(5, 1, 1, 1)))
    assert ppsim.simulate(schedule, uneven).peak_activations.tolist() == [4 * 2.5, 3 * 0.5, 2 * 0.5, 1 * 0.5]


def test_partition_by_cost_moves_blocks_away_from_the_head():
    model = Model(num_layers=32, hidden=64, heads=4, vocabulary=20000, sequence=64)
    blocks = [len(layers) for layers in derived(Layout(partition="optimal"), model).stage_layers(8)]
    even = derived(Layout(), model).for_stages(8)
    balanced = derived(Layout(partition="optimal"), model).for_stages(8)
    assert sum(blocks) == 34
    assert max(balanced.forward) <= max(even.forward)
    assert blocks[-1] < 5


def test_more_stages_than_layers_is_one_clear_error():
    schedule = ppsim.build("1f1b", devices=9, microbatches=9)
    with pytest.raises(CostError, match="8 layers cannot fill 9 stages of at least one layer each; use at most 8"):
        ppsim.simulate(schedule, derived())


def test_an_overlapped_slot_hides_collectives_behind_computation():
    slots = derived(Layout(tensor=2, overlap=True)).for_stages(8)
    serial = derived(Layout(tensor=2)).for_stages(8)
    alone = derived().for_stages(8)
    computing = (alone.forward[1] + alone.backward[2]) / 2
    exchanging = serial.forward[1] + serial.backward[2] - computing
    assert slots.overlap[1][2] == pytest.approx(max(computing, exchanging))


def test_given_numbers_replace_derived_ones_and_say_so():
    costs = derived(forward=2.0, latency=0.25)
    schedule = ppsim.build("interleaved-1f1b", devices=4, microbatches=4, stages_per_device=2)
    table = costs.table(schedule)
    assert table.seconds[0].tolist() == [1.0] * 8  # 2 s a device share, two stages a device
    assert np.all(table.latency == 0.25)
    assert costs.provenance["forward"] == "given"
    assert costs.provenance["backward"] == "derived"
    halves = derived(backward=4.0, per="stage").for_stages(8)
    assert halves.input_grad == 2.0


@pytest.mark.parametrize(
    ("layout", "message"),
    [
        ({"tensor": 3}, "tensor=3 does not divide the 2 attention heads; use 2"),
        ({"context": 5}, "context=5 does not divide the 16 tokens of a sequence; use 4 or 8"),
        ({"expert": 2}, "expert=2: the model has no experts; use 1"),
    ],
)
def test_a_layout_that_does_not_fit_the_model_is_one_clear_error(layout, message):
    with pytest.raises(ConfigError, match=message):
        derived(Layout(**layout))


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "two"])
def test_a_wrong_number_of_layers_of_an_end_is_one_clear_error(wrong):
    for name in ("first_stage_layers", "last_stage_layers"):
        with pytest.raises(ConfigError, match=f"{name}=.* must be a whole number of at least 0"):
            Layout(**{name: wrong})


def test_every_sheet_has_positive_numbers_and_sources():
    for sheet in (*DEVICES.values(), *LINKS.values()):
        assert len(sheet.source) > 20
    assert find_device("h100").peak == 989e12
    assert find_link("nvlink 4").bandwidth == 450e9
    with pytest.raises(ConfigError, match="unknown device 'H1000'; did you mean H100 SXM"):
        find_device("H1000")


def test_every_assumption_is_written_out_with_units():
    text = "\n".join(derived(Layout(data=2, distributed_optimizer=True), forward=1.0).assumptions)
    assert "by a ring reduce-scatter of 2 GPUs" in text
    assert "50 % of the 1 kFLOP/s of unit" in text
    assert "10 B/s one way, 5 s per message" in text
    assert "given instead of derived: forward" in text


def test_the_175b_step_of_korthikanti_table_5_is_predicted_within_5_percent():
    cluster = Cluster(find_device("A100"), find_link("NVLink 3"), find_link("InfiniBand HDR"))
    layout = Layout(tensor=8, sequence_parallel=True, recompute="selective")
    schedule = ppsim.build("interleaved-1f1b", devices=8, microbatches=64, stages_per_device=3)
    run = ppsim.simulate(schedule, DerivedCosts(megatron_model("175B"), cluster, layout))
    assert run.makespan == pytest.approx(13.75, rel=0.05)  # seconds, published


def test_slices_take_their_part_of_a_microbatch_down_to_128_tokens():
    config = ppsim.load_config("configs/llama-3-8b-8xh100.yaml").changed({"schedule.name": "slimpipe"})
    tokens = config.costs.model.sequence // config.costs.layout.context
    whole = config.costs.for_stages(8).forward[1]
    assert config.costs.for_stages(8, slices=tokens // 128).forward[1] == whole
    assert config.costs.for_stages(8, slices=tokens // 32).forward[1] == 4 * whole
    longer = config.changed({"schedule.options": {"slices": tokens // 32}}).simulate()
    assert longer.device_busy[0] > 3 * config.simulate().device_busy[0]
