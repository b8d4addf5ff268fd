"""Bytes held by a timeline, part by part, and throughput: sums, fits, what a backward brings back, tokens, MFU."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ppsim
from ppsim import Cluster, ConfigError, CostError, Costs, DerivedCosts, Layout, Model
from ppsim.config import as_config
from ppsim.costs import DEVICES, DeviceSheet, LinkSheet

MODEL = Model(num_layers=8, hidden=64, heads=4, vocabulary=100, sequence=32)
CLUSTER = Cluster(DeviceSheet("unit", 1e9, 20e6, 0.5), LinkSheet("fast", 1e6, 1e-3), LinkSheet("slow", 1e5, 1e-3))


def run_of(name="1f1b", devices=4, microbatches=8, layout=None, **options):
    schedule = ppsim.build(name, devices=devices, microbatches=microbatches, **options)
    return ppsim.simulate(schedule, DerivedCosts(MODEL, CLUSTER, layout or Layout()), transport="directed")


def test_the_parts_of_a_given_case_are_what_it_says():
    costs = Costs(activation_bytes=[30, 20], weight_bytes=4, gradient_bytes=8, optimizer_bytes=24, transfer_bytes=5,
                  latency=1.0)  # fmt: skip
    held = ppsim.simulate(ppsim.build("gpipe", devices=2, microbatches=3), costs).memory()
    assert held.weights.tolist() == [4, 4]
    assert held.gradients.tolist() == [8, 8]
    assert held.optimizer_state.tolist() == [24, 24]
    assert held.activations.tolist() == [90, 60]
    assert held.transfer_buffers.tolist() == [10, 5]  # two gradients on device 0; the third F's input on device 1
    assert held.peak.tolist() == [136, 101]
    assert held.moment.tolist() == [9.0, 4.0]


@settings(deadline=None, max_examples=20)
@given(
    st.sampled_from(["gpipe", "1f1b", "zb-h1", "interleaved-1f1b", "dualpipe-v"]), st.integers(2, 4), st.integers(1, 3)
)
def test_the_parts_sum_to_the_peak_of_every_device(name, p, groups):
    run = run_of(name, p, 2 * p * groups)
    held = run.memory()
    assert held.peak == pytest.approx(run.peak_memory, rel=1e-12)
    assert np.all(held.activations > 0)


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(["gpipe", "1f1b", "zb-v", "interleaved-1f1b", "dualpipe"]), st.sampled_from(["none", "full"]))
def test_the_parts_over_time_sum_to_the_curve_of_the_device(name, recompute):
    run = run_of(name, 4, 8, Layout(recompute=recompute))
    for device in range(4):
        times, parts = run.memory_parts_over_time(device)
        whole_times, whole = run.memory_over_time(device)
        levels = sum(parts.values())
        np.testing.assert_allclose(levels[np.searchsorted(times, whole_times)], whole, rtol=1e-12)
        assert levels.max() == pytest.approx(whole.max(), rel=1e-12)
        assert list(parts) == ["weights", "gradients", "optimizer_state", "activations", "transfer_buffers"]
        assert all((part >= 0).all() for part in parts.values())
        assert parts["activations"][-1] == pytest.approx(0, abs=1e-6)


def test_fits_compares_the_fullest_device_with_its_memory_less_headroom():
    held = run_of().memory()
    assert held.capacity == 20e6
    assert held.fits()
    assert not held.fits(headroom=1 - 0.99 * held.peak.max() / 20e6)
    assert not held.fits(0, capacity=held.peak.max() - 1)
    assert held.fits(0, capacity=held.peak.max())
    assert not held.fits(capacity=held.peak.max())
    assert held.spare(0, capacity=held.peak.max()).min() == 0
    with pytest.raises(ConfigError, match="headroom=1 must be a fraction from 0 to below 1"):
        held.fits(headroom=1)


def test_memory_without_a_model_is_one_clear_error():
    schedule = ppsim.build("1f1b", devices=2, microbatches=2)
    with pytest.raises(CostError, match="memory is not known"):
        ppsim.simulate(schedule).memory()
    costs = Costs(activation_bytes=1, weight_bytes=1)
    with pytest.raises(CostError, match="no device is known to fit into"):
        ppsim.simulate(schedule, costs).memory().fits()


def test_the_summary_names_every_part_with_its_unit():
    text = run_of().memory().summary()
    names = ("weights", "gradients", "optimizer state", "activations", "transfer buffers", "peak", "peak at")
    units = ("kB", "kB", "MB", "kB", "kB", "MB", "ms")
    heads, second = text.splitlines()[:2]
    assert re.split(r"\s{2,}", heads) == ["device", *names]
    assert tuple(second.split()) == units
    assert "memory of a device: 20 MB" in text
    assert set(run_of().memory().to_dict()) >= {"weights", "peak", "moment", "capacity"}


def test_tokens_per_second_and_mfu_follow_from_the_step():
    run = run_of(layout=Layout(data=2, microbatch_size=3))
    tokens = 8 * 32 * 3 * 2
    assert run.tokens_per_second == pytest.approx(tokens / run.makespan)
    flops = 8 * 3 * 2 * MODEL.step_flops()
    assert run.mfu == pytest.approx(flops / run.makespan / (8 * 1e9))
    assert run.mfu < 0.5
    attention = 3 * 4 * MODEL.sequence**2 * MODEL.hidden * MODEL.num_layers  # Q K^T and its product with V, three times
    assert run.mfu_causal / run.mfu == pytest.approx(1 - attention / 2 / MODEL.step_flops())
    bare = ppsim.simulate(run.schedule)
    assert (bare.tokens_per_second, bare.mfu, bare.mfu_causal) == (None, None, None)


def test_mfu_of_devices_that_never_wait_is_the_achieved_fraction_over_what_attention_is_left_out():
    model = Model(num_layers=2, hidden=64, heads=4, vocabulary=100, sequence=32, causal=False)
    schedule = ppsim.build("1f1b", devices=1, microbatches=4)
    run = ppsim.simulate(schedule, DerivedCosts(model, CLUSTER, Layout()))
    assert run.mfu == pytest.approx(0.5)


def test_a_backward_holds_the_block_that_it_recomputes_from_its_start_to_its_end():
    model = Model(num_layers=8, hidden=64, heads=4, vocabulary=1, sequence=32)
    schedule = ppsim.build("1f1b", devices=4, microbatches=8)
    run = ppsim.simulate(schedule, DerivedCosts(model, CLUSTER, Layout(recompute="full")))
    block = model.layers[1]
    gradients = 2 * 32 * (64 + 4 * 64)  # of the input and of the output of a matrix of the MLP
    again = block.activation_bytes() - block.activation_bytes(recompute="full") + gradients
    assert run.table.recompute_bytes.tolist() == [again] * 4
    without = np.asarray(run.table.activation_bytes)[1] * run.peak_activations[1] + run.static_memory[:, 1].sum()
    held = run.memory()
    assert run.peak_memory[1] == pytest.approx(without + again + held.transfer_buffers[1])
    times, levels = run.memory_over_time(1)
    backward = schedule.rows(1).start + schedule.kind[schedule.rows(1)].tolist().index(1)
    before, during = (levels[np.searchsorted(times, run.row_start[backward], side) - 1] for side in ("left", "right"))
    assert during - before == pytest.approx(again)


def test_blocks_bring_nothing_back_without_recomputation():
    assert not run_of().table.recompute_bytes[:-1].any()
    selective = Layout(recompute="selective")
    assert not run_of(layout=selective).table.recompute_bytes[:-1].any()  # flash attention holds no scores


@pytest.mark.parametrize(("framework", "of_a_logit"), [("megatron-lm", 2), ("torchtitan 0.2.2", 8)])
def test_the_loss_holds_gradients_of_the_logits_while_its_backward_runs(framework, of_a_logit):
    layout = Layout(framework=framework, tensor=2, microbatch_size=3)
    logits = 32 * 100 * 3 / 2
    assert run_of(layout=layout).table.recompute_bytes[-1] == of_a_logit * logits
    assert run_of(layout=replace(layout, loss_bytes=0)).table.recompute_bytes[-1] == 0
    chunked = run_of(layout=replace(layout, loss_chunks=4)).table
    assert chunked.recompute_bytes[-1] == (4 + of_a_logit) * logits / 4
    assert run_of(layout=layout).table.activation_bytes[-1] - chunked.activation_bytes[-1] == 4 * logits


def test_the_loss_is_over_before_a_block_is_recomputed():
    model = Model(num_layers=8, hidden=64, heads=4, vocabulary=1, sequence=32)
    costs = DerivedCosts(model, CLUSTER, Layout(recompute="full"))
    block = model.layers[1]
    table = costs.table(ppsim.build("1f1b", devices=4, microbatches=8))
    assert table.recompute_bytes[-1] == table.recompute_bytes[0] > block.activation_bytes() - block.input_bytes


def test_the_backward_of_a_recomputed_block_holds_the_gradients_around_the_products_of_all_its_experts():
    model = replace(MODEL, experts=8, experts_per_token=4, expert_ffn=32)
    block, tokens = model.layers[1], 4 * 32  # each of four experts per token

    def gradients(**layout):
        costs = DerivedCosts(model, CLUSTER, Layout(recompute="full", loss_bytes=0, **layout))
        again = costs.activation_bytes(block, "none") - costs.activation_bytes(block, "full")
        return costs.backward_bytes([block], "full") - again

    assert gradients() == 2 * tokens * (64 + 32)
    assert gradients(data=8, expert=8) == gradients()  # a GPU gets as many tokens as it sends
    assert gradients(tensor=2) == 2 * tokens * (64 + 32 / 2)  # all tokens of the group, a part of each expert
    assert gradients(tensor=2, expert_tensor=1) == 2 * tokens * (64 + 32) / 2
    assert DerivedCosts(model, CLUSTER, Layout(loss_bytes=0)).backward_bytes([block], "none") == 0


@pytest.mark.parametrize(("framework", "blocks"), [("torchtitan", 1), ("megatron-core", 2)])
def test_sharded_gradients_are_whole_for_the_blocks_that_a_framework_reduces_at_a_time(framework, blocks):
    """Megatron-LM, docs/user-guide/features/megatron_fsdp.md: one is reduced beside the backward of the next."""
    sharded = Layout(framework=framework, data=4, sharded=True, sharded_by="block", gradient_buffers=False)
    for layout in (sharded, replace(sharded, sharded=False, distributed_optimizer=True, sharded_gradients=True)):
        costs = DerivedCosts(MODEL, CLUSTER, layout)
        total, block = sum(costs.gpu_parameters(MODEL.layers)), MODEL.layers[1].parameters
        assert costs.for_stages(1).gradient_bytes[0] == pytest.approx(4 * (total / 4 + blocks * block))


def test_weights_sharded_by_block_are_whole_for_embedding_head_and_two_blocks():
    stage = DerivedCosts(MODEL, CLUSTER, Layout(framework="torchtitan", data=4, sharded=True)).for_stages(1)
    block = MODEL.layers[1].parameters
    root = MODEL.layers[0].parameters + MODEL.layers[-1].parameters
    total = 8 * block + root
    assert stage.weight_bytes[0] == pytest.approx(2 * (root + 2 * block))
    assert stage.gradient_bytes[0] == pytest.approx(4 * (total / 4 + max(root, block)))
    assert stage.optimizer_bytes[0] == pytest.approx(12 * total / 4)


def test_a_capacity_is_bytes_or_text_with_a_unit():
    memory = ppsim.simulate(
        ppsim.build("1f1b", devices=2, microbatches=2), ppsim.Costs(activation_bytes=1e9, weight_bytes=10e9)
    ).memory()
    assert memory.fits(capacity="80 GB")
    assert memory.fits(capacity=80e9)
    assert not memory.fits(capacity="11 GB")
    assert memory.spare(capacity="20 GB").tolist() == memory.spare(capacity=20e9).tolist()
    for wrong in ("eighty", "80 GHz", True, [80], float("nan")):
        with pytest.raises(ConfigError, match=r"capacity=.* must be a number of bytes"):
            memory.fits(capacity=wrong)


def test_what_programs_can_allocate_is_what_every_command_uses():
    assert all(sheet.usable and "GiB can be allocated" in sheet.source for sheet in DEVICES.values())
    config = ppsim.load_config("configs/llama-3-8b-8xh100.yaml")
    assert config.simulate().memory().capacity == pytest.approx(79.1 * 2**30, rel=1e-3)  # sold as 80 GB
    given = config.changed({"hardware.device": {"like": "H100 SXM", "memory": "60 GB"}})
    assert given.simulate().memory().capacity == 60e9  # of another memory the sheet's usable part is not known
    both = config.changed({"hardware.device": {"like": "H100 SXM", "memory": "60 GB", "usable": "58 GB"}})
    assert both.simulate().memory().capacity == 58e9


def test_kernels_that_are_not_fused_hold_results_of_the_non_linearity_and_norms_in_fp32():
    """A Llama block holds 2 f bytes of silu and 8 h bytes of norms more for each token."""
    model = ppsim.Model(
        num_layers=2, hidden=512, heads=8, key_value_heads=4, ffn=1024, gated=True, norm="rmsnorm", vocabulary=1000,
        sequence=256,
    )  # fmt: skip
    block, tensor = model.layers[1], 4
    split, whole = 256 * 2 * 1024, 256 * 2 * 4 * 512
    more = block.activation_bytes(tensor, fused=False) - block.activation_bytes(tensor)
    assert more == split / tensor + whole
    freed = block.activation_bytes(tensor, recompute="norms+activations", fused=False)
    assert freed == block.activation_bytes(tensor, recompute="norms+activations")
    assert (
        block.activation_bytes(tensor, True, fused=False) - block.activation_bytes(tensor, True)
        == (split + whole) / tensor
    )


def test_nanotron_holds_gradients_in_bf16_fragments_and_whole_tensors_of_a_tensor_parallel_block():
    """A parameter has 8 bytes and its state, activations 12 % more, a backward five tensors of s b h whole, not / t."""
    split = Layout(tensor=4, sequence_parallel=True, framework="nanotron")
    costs = DerivedCosts(MODEL, CLUSTER, split)
    dense, _ = costs.gpu_parameters(MODEL.layers)
    stage = costs.for_stages(1)
    assert stage.weight_bytes[0] + stage.gradient_bytes[0] == pytest.approx(8 * dense)
    block, tokens = MODEL.layers[1], MODEL.sequence * MODEL.hidden
    held = block.activation_bytes(4, True, fused=False, fused_norms=True)
    assert costs.activation_bytes(block, "none") == pytest.approx(1.12 * held)
    assert costs.backward_bytes([block], "none") == pytest.approx(5 * 2 * tokens * (1 - 1 / 4))
    alone = DerivedCosts(MODEL, CLUSTER, replace(split, tensor=1, sequence_parallel=False))
    assert alone.backward_bytes([block], "none") == 0


def test_megatron_holds_cuda_graphs_on_each_device_of_a_pipeline():
    layout = Layout(framework="megatron-core", cuda_graphs=True)
    graphs, eager = (DerivedCosts(MODEL, CLUSTER, replace(layout, cuda_graphs=on)) for on in (True, None))
    for devices, stages, held in ((4, 4, 10e9), (4, 8, 5e9), (1, 1, 0), (1, 2, 0)):
        both = [costs.for_stages(stages, devices).weight_bytes for costs in (graphs, eager)]
        assert np.subtract(*both) == pytest.approx(held)


@pytest.mark.parametrize(
    ("per_host", "exchange", "expert", "sizes"),
    [(4, "hierarchical", 8, 1), (4, "hierarchical", 16, 0.5), (8, "hierarchical", 8, 0), (4, "all-to-all", 8, 0)],
)
def test_an_exchange_over_nvlink_between_hosts_has_room_for_all_tokens_of_the_group(per_host, exchange, expert, sizes):
    """`sizes` is the fraction of the experts that one NVLink domain has; each token has a weight for each of them."""
    model = replace(MODEL, experts=16, experts_per_token=2, expert_ffn=64)
    cluster = replace(CLUSTER, gpus_per_node=8, device=replace(CLUSTER.device, gpus_per_host=per_host))
    costs = DerivedCosts(model, cluster, Layout(data=16, expert=expert, expert_exchange=exchange))
    room = expert * model.sequence * (2 * model.hidden + 4 * sizes * 16) if sizes else 0
    assert costs.exchange_bytes == pytest.approx(room)
    inside = replace(costs, layout=replace(costs.layout, expert_exchange="all-to-all"))
    held = np.subtract(costs.for_stages(4, 2).weight_bytes, inside.for_stages(4, 2).weight_bytes)
    assert held == pytest.approx(room / 2)


def test_gradients_in_bf16_have_half_the_bytes_in_memory_and_in_their_reduction():
    layout = Layout(data=4, distributed_optimizer=True, gradient_buffers=False)
    whole, half = (
        DerivedCosts(MODEL, CLUSTER, replace(layout, bf16_gradients=on)).for_stages(2) for on in (None, True)
    )
    assert half.gradient_bytes == pytest.approx(np.array(whole.gradient_bytes) / 2)
    assert half.reduce_grad[0] < whole.reduce_grad[0]
    assert half.weight_bytes == whole.weight_bytes


def test_moments_in_bf16_have_half_the_bytes_in_memory_and_in_an_optimizer_step():
    cluster = replace(CLUSTER, device=replace(CLUSTER.device, memory_bandwidth=1e12))
    layout = Layout(data=4, distributed_optimizer=True)
    whole, half = (
        DerivedCosts(MODEL, cluster, replace(layout, optimizer_bytes=size)).for_stages(2) for size in (None, 8)
    )
    assert half.optimizer_bytes == pytest.approx(np.array(whole.optimizer_bytes) * 8 / 12)
    assert (half.weight_bytes, half.gradient_bytes) == (whole.weight_bytes, whole.gradient_bytes)
    assert half.optimizer_step[0] < whole.optimizer_step[0]


@pytest.mark.parametrize("engine", ["event", "compiled"])
@pytest.mark.parametrize(
    ("schedule", "changes", "copies"),
    [
        ("zb-v", {"model.tied_embeddings": True}, [1, 0, 0, 0]),
        ("dualpipe", {"model.tied_embeddings": True}, [1, 0, 0, 1]),
        ("zb-v", {"model.prediction_layers": 1, "layout.partition": "Ett|tt|tt|tt|tt|tt|tt|ttmL"}, [1, 0, 0, 0]),
        ("zb-v", {"model.prediction_layers": 1, "layout.partition": "Ett|tt|tt|tt|tt|ttt|tttm|LL"}, [0, 0, 0, 0]),
        ("interleaved-1f1b:2", {"model.tied_embeddings": True}, [0, 0, 0, 0]),
    ],
)
def test_a_device_holds_a_matrix_of_several_of_its_stages_once(engine, schedule, changes, copies):
    """DeepSeek-V3, arXiv 2412.19437, section 3.2.3: stages on one device share embedding and head."""
    config = as_config({
        "model": {"num_layers": 16, "hidden": 256, "heads": 4, "vocabulary": 4096, "sequence": 256},
        "hardware": {"device": "H100 SXM", "link": "NVLink 4", "network": "InfiniBand NDR"},
        "schedule": {"name": "zb-v", "devices": 4, "microbatches": 8}, "engine": engine,
    }).changed({"schedule.name": schedule, **changes})  # fmt: skip
    run = config.simulate()
    separate = np.zeros(4)
    np.add.at(separate, run.schedule.holdings[:, 0], run.table.state_bytes.sum(axis=0)[run.schedule.holdings[:, 1]])
    assert separate - run.static_memory.sum(axis=0) == pytest.approx(18 * 4096 * 256 * np.array(copies))
