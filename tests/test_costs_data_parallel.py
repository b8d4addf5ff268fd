"""What data parallelism costs a step: gathers, reductions and the optimizer."""

from dataclasses import replace

import numpy as np
import pytest

import ppsim
from ppsim import Cluster, DerivedCosts, Layout, Model
from ppsim.config import as_config
from ppsim.costs import DeviceSheet, LinkSheet, find_device, find_link

FAST, SLOW = LinkSheet("fast", 100.0, 1.0), LinkSheet("slow", 10.0, 5.0)
DEVICE = DeviceSheet("unit", 1000.0, 1e9, 0.5, memory_bandwidth=500.0)
CLUSTER = Cluster(DEVICE, FAST, SLOW, gpus_per_node=4)
MODEL = Model(num_layers=8, hidden=4, heads=2, vocabulary=6, sequence=16)
BLOCK = MODEL.layers[1].parameters


def stage(layout: Layout, model: Model = MODEL, **given) -> ppsim.Costs:
    return DerivedCosts(model, CLUSTER, layout, given).for_stages(8)


def run_of(layout: Layout, optimizer=None, sharded=False, **given):
    schedule = ppsim.build("1f1b", devices=4, microbatches=8)
    costs = DerivedCosts(MODEL, CLUSTER, layout, given)
    program = ppsim.lower(schedule, sharded=sharded)
    return ppsim.simulate(program if sharded else schedule, costs, transport="directed", optimizer=optimizer)


def all_gather(size, total_bytes, link, nodes=1):
    """Seconds of a ring: size - 1 hops, one of a node between nodes."""
    hops = (size - nodes) * FAST.latency + (nodes - 1) * link.latency
    return hops + (size - 1) / size * total_bytes / link.bandwidth


def all_reduce(size, total_bytes, link, nodes=1):
    """Seconds of two passes."""
    return 2 * all_gather(size, total_bytes, link, nodes)


def test_gradients_of_one_copy_are_not_reduced():
    assert stage(Layout()).reduce_grad is None
    assert len(run_of(Layout()).reductions.device) == 0


def test_gradients_are_reduced_in_fp32_by_a_ring_over_the_copies():
    assert stage(Layout(data=4)).reduce_grad[1] == pytest.approx(all_reduce(4, 4 * BLOCK, FAST))
    assert stage(Layout(data=4, distributed_optimizer=True)).reduce_grad[1] == pytest.approx(
        all_gather(4, 4 * BLOCK, FAST)
    )
    assert stage(Layout(data=2, context=2)).reduce_grad[1] == pytest.approx(all_reduce(4, 4 * BLOCK, FAST))


def test_a_ring_that_leaves_the_node_has_its_share_of_the_cards_and_is_not_faster_than_the_link_inside():
    assert stage(Layout(data=8)).reduce_grad[1] == pytest.approx(
        all_reduce(8, 4 * BLOCK, LinkSheet("slow", 40.0, 5.0), 2)
    )
    half = MODEL.layers[1].split_parameters / 2 + MODEL.layers[1].copied_parameters
    assert stage(Layout(tensor=2, data=8)).reduce_grad[1] == pytest.approx(
        all_reduce(8, 4 * half, LinkSheet("slow", 20.0, 5.0), 4)
    )
    slow_inside = Cluster(DEVICE, LinkSheet("slow", 15.0, 1.0), SLOW, gpus_per_node=4)
    assert slow_inside.link_of_ring(8, 1).bandwidth == 15.0


def test_a_ring_over_nodes_of_eight_a100_reaches_what_nccl_tests_measured():
    """At most 96 GB/s with four cards of 200 Gb/s a node: NVIDIA/nccl-tests, issues 100, 119 and 175."""
    links = find_link("NVLink 3"), find_link("InfiniBand HDR")
    nodes = Cluster(find_device("A100 SXM"), *links, cards_per_node=4)
    assert nodes.link_of_ring(16, 1).bandwidth == pytest.approx(96e9, rel=0.02)


def test_experts_are_reduced_over_the_copies_of_each_expert():
    model = Model(num_layers=8, hidden=4, heads=2, vocabulary=6, sequence=16, experts=4, experts_per_token=2)
    block = model.layers[1]
    dense = block.split_parameters + block.copied_parameters
    expected = all_reduce(4, 4 * dense, FAST) + all_reduce(2, 4 * block.expert_parameters / 2, FAST)
    assert stage(Layout(data=4, expert=2), model).reduce_grad[1] == pytest.approx(expected)


def test_a_bidirectional_pipeline_reduces_over_its_own_two_copies_of_a_stage():
    schedule = ppsim.build("dualpipe", devices=4, microbatches=8)
    table = DerivedCosts(MODEL, CLUSTER, Layout(overlap_data=False)).table(schedule)
    assert table.reduce_seconds[1] == pytest.approx(all_reduce(2, 4 * 2 * BLOCK, FAST))


def test_sharded_weights_are_gathered_in_bf16():
    costs = stage(Layout(data=4, sharded=True))
    assert costs.unshard[1] == pytest.approx(all_gather(4, 2 * BLOCK, FAST))
    assert costs.reduce_grad[1] == pytest.approx(all_gather(4, 4 * BLOCK, FAST))
    assert costs.provenance["unshard"] == "derived"
    run = run_of(Layout(data=4, sharded=True), sharded=True)
    assert run.unshards.end[0] - run.unshards.start[0] == pytest.approx(run.table.unshard_seconds[0])


def test_an_optimizer_step_moves_42_bytes_a_parameter_through_memory():
    assert stage(Layout()).optimizer_step[1] == pytest.approx(42 * BLOCK / 500)
    split = stage(Layout(data=4, distributed_optimizer=True)).optimizer_step[1]
    assert split == pytest.approx(42 * BLOCK / 4 / 500 + all_gather(4, 2 * BLOCK, FAST))
    assert stage(Layout(data=4, sharded=True)).optimizer_step[1] == pytest.approx(42 * BLOCK / 4 / 500)


def test_the_step_ends_with_the_optimizer_where_it_is_asked_for():
    plain, stepped = run_of(Layout()), run_of(Layout(), "sync")
    longest = 42 * max(sum(layer.parameters for layer in MODEL.layers[first:last]) for first, last in ((0, 3), (7, 10)))
    assert stepped.makespan == pytest.approx(plain.makespan + longest / 500)
    assert run_of(Layout(), "post-validated").makespan <= stepped.makespan


def test_given_seconds_replace_derived_ones_at_equal_work():
    table = run_of(Layout(data=4), reduce_grad=8.0, optimizer_step=2.0, per="device").table
    assert table.reduce_seconds.tolist() == [8.0] * 4
    assert table.optimizer_seconds.tolist() == [2.0] * 4


def test_sharded_state_is_split_and_at_most_three_stages_of_a_device_are_gathered():
    held = 4.0 * BLOCK, 0.0
    layout = Layout(data=4, sharded=True)
    assert layout.state_bytes(held) == (2 * held[0] * 1.25, 4 * held[0], 12 * held[0] / 4)
    looped = DerivedCosts(MODEL, CLUSTER, layout).for_stages(8, devices=1)
    assert looped.weight_bytes[1] == pytest.approx(2 * BLOCK * (1 / 4 + 3 / 8))


def test_a_window_of_gathered_stages_changes_what_a_device_holds_and_how_often_it_gathers():
    config = {
        "model": {"num_layers": 16, "hidden": 256, "heads": 8, "vocabulary": 1000, "sequence": 512},
        "hardware": {"device": "H100 SXM", "link": "NVLink 4"},
        "layout": {"data": 4, "sharded": True, "sharded_by": "stage"},
        "schedule": {"name": "interleaved-1f1b", "devices": 2, "microbatches": 8, "stages_per_device": 4},
    }
    loaded = as_config(config)
    runs = {limit: loaded.changed({"schedule.max_active_stages": limit}).simulate() for limit in (1, 3, 4)}
    assert loaded.simulate() == runs[3]
    gathered = {limit: len(run.unshards.start) for limit, run in runs.items()}
    assert gathered[1] > gathered[3] > gathered[4] == 8
    weights = {limit: run.costs.for_stages(8, devices=2).weight_bytes[1] for limit, run in runs.items()}
    # Of 4 stages a GPU stores a quarter and gathers 1, 3 or 4: 2 bytes per parameter of 8 blocks per device.
    parts = {limit: 1 / 4 + limit / 4 for limit in weights}
    assert weights[4] / weights[1] == pytest.approx(parts[4] / parts[1])
    assert weights[3] / weights[1] == pytest.approx(parts[3] / parts[1])
    said = {limit: " ".join(run.to_dict()["assumptions"]) for limit, run in runs.items()}
    assert "at most 4 stages of a device gathered" in said[4]
    assert "at most 1 stage of a device gathered" in said[1]


def test_a_window_that_nothing_uses_is_a_fault_of_the_config():
    config = {"schedule": {"name": "1f1b", "devices": 2, "microbatches": 4, "look_ahead": "auto"}}
    with pytest.raises(ppsim.ConfigError, match=r"schedule\.look_ahead: needs weights that are gathered by stage"):
        as_config(config)
    given = {**config, "costs": {"unshard": 0.5}}
    given["schedule"] = {**config["schedule"], "look_ahead": [1, 2, 3]}
    with pytest.raises(ppsim.ConfigError, match="must have one number per device, 2 in all"):
        as_config(given)


def test_a_late_gather_of_the_next_stage_is_sharding_in_the_ledger():
    config = {
        "schedule": {"name": "interleaved-1f1b", "devices": 4, "microbatches": 16, "stages_per_device": 4},
        "costs": {"forward": 1.0, "backward": 2.0, "unshard": 0.8},
    }
    full, late = (as_config(config).changed({"schedule.look_ahead": distance}).simulate() for distance in ("full", 1))
    assert late.ledger()["sharding"].sum() > full.ledger()["sharding"].sum()
    assert late.makespan > full.makespan


def test_exposed_communication_is_collectives_inside_actions_and_what_is_waited_for():
    run = run_of(Layout(tensor=2))
    inside = 8 * (run.table.exchange_seconds[0] + run.table.exchange_seconds[1])
    waited = run.ledger()["transfer"] + run.ledger()["queue"]
    np.testing.assert_allclose(run.exposed_communication, inside + waited)
    assert not run_of(Layout(), latency=0.0, bandwidth=1e30).exposed_communication.round(9).any()


def test_an_overlapped_slot_exposes_only_what_computation_does_not_hide():
    schedule = ppsim.build("1f1b-overlap", devices=4, microbatches=8)
    hidden, shown = (
        ppsim.simulate(schedule, DerivedCosts(MODEL, CLUSTER, Layout(tensor=2, overlap=overlap)))
        for overlap in (True, False)
    )
    assert (hidden.exposed_communication < shown.exposed_communication).all()


def test_published_cost_of_data_parallelism_bounds_the_reduction_from_above():
    """Korthikanti et al. 2022, section 6.3: 530B over 8 copies takes 39.15 s instead of 37.83 s, nothing overlapped."""
    cluster = Cluster(find_device("A100"), find_link("NVLink 3"), find_link("InfiniBand HDR"))
    shape = {"num_layers": 105, "hidden": 20480, "heads": 128, "vocabulary": 51200, "sequence": 2048}
    costs = DerivedCosts(Model(**shape, tied_embeddings=True), cluster, Layout(tensor=8, data=8)).for_stages(35)
    assert 0.3 * 1.32 < max(costs.reduce_grad) < 1.32


def test_a_stage_that_only_some_devices_hold_twice_is_reduced_over_its_own_copies():
    orders = [["0F0", "1F0", "2F0", "2B0", "1B0", "0B0", "1F1", "2F1", "2B1", "1B1"], ["0F1", "0B1"]]
    schedule = ppsim.Schedule.from_orders(orders)
    once = DerivedCosts(MODEL, CLUSTER, Layout()).table(schedule)
    assert once.reduce_seconds[0] > 0
    assert once.reduce_seconds[1:].tolist() == [0, 0]
    per_stage = [DerivedCosts(MODEL, CLUSTER, Layout(data=2)).for_stages(3, 2, [copies] * 3) for copies in (1, 2)]
    copied = DerivedCosts(MODEL, CLUSTER, Layout(data=2)).table(schedule)
    assert copied.reduce_seconds.tolist() == [per_stage[1].reduce_grad[0], *per_stage[0].reduce_grad[1:]]


def test_zero_2_reduces_each_block_for_each_microbatch_and_holds_a_part_of_the_gradients():
    one, two = (Layout(data=4, distributed_optimizer=True, sharded_gradients=flag) for flag in (False, True))
    held = 4.0 * BLOCK, 0.0
    assert one.state_bytes(held) == (2 * held[0], 4 * held[0], 12 * held[0] / 4)
    assert two.state_bytes(held, 0.5, 0.25) == (2 * held[0], 4 * held[0] * (1 / 4 + 1 / 4), 12 * held[0] / 4)
    assert stage(one).reduce_grad[1] == pytest.approx(all_gather(4, 4 * BLOCK, FAST))
    assert stage(two).reduce_grad is None
    assert stage(two).unshard is None
    longer = stage(two).input_grad[1] - stage(one).input_grad[1]
    work = DerivedCosts(MODEL, CLUSTER, two).work(MODEL.layers[1])
    hidden = work.input_grad + work.weight_grad
    exposed = all_gather(4, 4 * BLOCK, FAST)
    assert longer == pytest.approx(max(exposed - hidden, 0) + CLUSTER.contention * min(exposed, hidden))


def test_hybrid_sharding_gathers_inside_a_group_and_reduces_over_the_replicas_too():
    layout = Layout(data=8, sharded=True, replicas=2)
    costs = stage(layout)
    assert costs.unshard[1] == pytest.approx(all_gather(4, 2 * BLOCK, FAST))  # inside a node
    assert costs.reduce_grad[1] == pytest.approx(all_gather(4, 4 * BLOCK, FAST) + all_reduce(2, 4 * BLOCK / 4, SLOW, 2))
    assert layout.optimizer_groups == (4, 4)
    assert layout.state_bytes((100.0, 0.0), 0.0) == (2 * 25, 4 * 100, 12 * 25)
    with pytest.raises(ppsim.ConfigError, match="replicas=3 does not divide the 8 data x context parallel GPUs"):
        stage(Layout(data=8, sharded=True, replicas=3))


@pytest.mark.parametrize(("framework", "out", "into"), [("torchtitan", 4, 6), ("mosaicml", 0, 8), ("deepspeed", 4, 8)])
def test_a_block_is_copied_out_of_a_gather_and_its_gradients_into_a_reduction(framework, out, into):
    cluster, seconds = Cluster(find_device("H100 SXM"), FAST, SLOW, gpus_per_node=4), []
    for name in (framework, "megatron-core"):  # whose gathers and reductions are in place
        costs = DerivedCosts(MODEL, cluster, Layout(data=4, sharded=True, sharded_by="block", framework=name))
        seconds.append(costs.exchange(MODEL.layers[1])[:2])
    (forward, backward), (plain_forward, plain_backward) = seconds
    streaming = cluster.device.rates.streaming
    assert forward - plain_forward == pytest.approx(streaming(out * BLOCK))
    assert backward - plain_backward == pytest.approx(streaming((out + into) * BLOCK))


def test_replicas_of_weights_sharded_by_block_sum_their_gradients_once_a_step():
    sharded = {"sharded": True, "sharded_by": "block"}
    whole, hybrid = (stage(Layout(data=data, replicas=data // 4, **sharded)) for data in (4, 8))
    assert hybrid.input_grad[1] == whole.input_grad[1]  # a microbatch reduces inside its group alone
    assert whole.reduce_grad is None
    assert 0 < hybrid.reduce_grad[1] <= all_reduce(2, 4 * BLOCK / 4, SLOW, 2)  # beside the last backward


def test_weights_gathered_once_a_step_are_held_and_their_gradients_reduced_after_the_last_backward():
    layout = Layout(data=4, sharded=True, sharded_by="step", overlap_data=True)
    costs = stage(layout)
    assert costs.unshard is None
    assert costs.reduce_grad[1] == pytest.approx(all_gather(4, 4 * BLOCK, FAST))  # nothing hides it
    assert layout.state_bytes((100.0, 0.0), 0.0) == (200, 4 * 100, 12 * 25)
    costs_of_step = DerivedCosts(MODEL, CLUSTER, replace(layout, gradient_buffers=False))
    one, two = (
        costs_of_step.table(ppsim.build("gpipe", devices=2, microbatches=count)).state_bytes for count in (1, 2)
    )
    assert (4 * one[1]).tolist() == two[1].tolist()  # one backward splits each block's gradients at once
    gathered = (
        stage(layout).optimizer_step[1] - stage(Layout(data=4, sharded=True, sharded_by="block")).optimizer_step[1]
    )
    assert 0 < gathered <= all_gather(4, 2 * BLOCK, FAST)


@pytest.mark.parametrize(
    "kind", [{"sharded_gradients": True}, {"sharded": True, "sharded_by": "step"}, {"replicas": 2}]
)
def test_both_engines_run_every_kind_of_sharding_alike(kind):
    layout = Layout(data=8, distributed_optimizer=True, **kind)
    costs, schedule = DerivedCosts(MODEL, CLUSTER, layout), ppsim.build("interleaved-1f1b", devices=4, microbatches=8)
    runs = [
        ppsim.simulate(schedule, costs, transport="directed", optimizer="sync", engine=engine)
        for engine in ("event", "compiled")
    ]
    assert runs[0].end.tolist() == runs[1].end.tolist()
    assert runs[0].iteration_time == runs[1].iteration_time
