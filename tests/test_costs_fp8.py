"""Products in fp8: their peak, the casts around them, what is held and sent in one byte a value."""

from dataclasses import replace

import pytest

from ppsim import Cluster, ConfigError, DerivedCosts, Layout, Model
from ppsim.config import ConfigSource
from ppsim.costs import DEVICES, DeviceSheet, LinkSheet, OperatorLaw
from ppsim.costs.operators import Rates

# bf16 products at 500 FLOP/s, fp8 products at 800, attention at 250, memory at 100 B/s, no gaps, no tails.
LAW = OperatorLaw(
    0.5,
    0.25,
    0.25,
    0.25,
    products_fp8=0.4,
    sustained=1.0,
    tail=0.0,
    attention_tail=0.0,
    memory=1.0,
    launch=0.0,
)
DEVICE = DeviceSheet("unit", 1000.0, 1e9, memory_bandwidth=100.0, operators=LAW, peak_fp8=2000.0)
LINK = LinkSheet("link", 100.0, 0.0)
MODEL = Model(num_layers=2, hidden=8, heads=4, vocabulary=6, sequence=16, causal=False)
EXPERTS = replace(MODEL, experts=4, experts_per_token=2, ffn=16)
BLOCK = MODEL.layers[1]
ENTERING = 16 * (8 + 8 + 8 + 32)  # values into QKV, projection, up, down
LEAVING = 16 * (24 + 8 + 32 + 8)
WEIGHTS = 8 * (24 + 8 + 32 + 32)


def derived(model=MODEL, device=DEVICE, **layout) -> DerivedCosts:
    return DerivedCosts(model, Cluster(device, LINK, LINK, gpus_per_node=8, contention=0.0), Layout(**layout))


def test_an_fp8_product_has_its_own_peak_and_factors_of_one_byte():
    rates = Rates(LAW, 1000.0, 100.0, 2000.0)
    assert rates.product(4, 5, 6, fp8=True) == pytest.approx(2 * 4 * 5 * 6 / 800 + ((4 + 5) * 6 + 2 * 4 * 5) / 100)
    as_bf16 = Rates(replace(LAW, products_fp8=None), 1000.0, 1e15, 2000.0)
    assert as_bf16.product(4, 5, 6, fp8=True) == pytest.approx(2 * 4 * 5 * 6 / 1000)


def test_a_block_casts_inputs_in_f_and_gradients_in_i():
    bf16, fp8 = derived().work(BLOCK), derived(fp8="delayed").work(BLOCK)
    flops = 2 * 16 * WEIGHTS
    faster = flops / 500 - flops / 800
    factors = (ENTERING + WEIGHTS) / 100  # one byte less of each value read
    assert fp8.forward == pytest.approx(bf16.forward - faster - factors + 4 * ENTERING / 100)
    assert fp8.input_grad == pytest.approx(bf16.input_grad - faster - (LEAVING + WEIGHTS) / 100 + 4 * LEAVING / 100)
    assert fp8.weight_grad == pytest.approx(bf16.weight_grad - faster - (ENTERING + LEAVING) / 100)
    assert fp8.core == bf16.core


def test_fused_experts_need_no_casts_and_no_pass_between_their_products():
    apart, fused = (
        derived(EXPERTS, fp8="block", grouped_experts=True, fused_experts=way).work(EXPERTS.layers[1])
        for way in (False, True)
    )
    entering, leaving = 16 * 2 * (8 + 32), 16 * 2 * (32 + 8)  # values of two visits into and out of up and down
    between = 2 * 16 * 2 * (32 + 32)  # bytes: the activation reads and writes 32 values a visit
    assert apart.forward - fused.forward == pytest.approx((4 * entering + between) / 100)
    assert apart.input_grad - fused.input_grad == pytest.approx((4 * leaving + 1.5 * between) / 100)
    assert apart.weight_grad == fused.weight_grad
    clamping = derived(replace(EXPERTS, clamped=True), fp8="block", fused_experts=True)
    assert clamping.work(clamping.model.layers[1]) == fused


def test_a_scale_from_the_tensor_itself_reads_it_once_more_and_takes_four_kernels():
    gap = replace(DEVICE, operators=replace(LAW, launch=1.0))
    delayed, own = (derived(device=gap, fp8=recipe).work(BLOCK) for recipe in ("delayed", "tensor"))
    assert own.forward - delayed.forward == pytest.approx(2 * ENTERING / 100 + 4 * 3)  # of four kernels three more
    assert derived(fp8="block").work(BLOCK) == derived(fp8="delayed").work(BLOCK)


def test_inputs_held_in_bf16_are_cast_again_for_the_weight_gradient():
    held, again = (derived(fp8="delayed", fp8_inputs=way).work(BLOCK) for way in (True, False))
    assert again.weight_grad - held.weight_grad == pytest.approx(4 * ENTERING / 100)
    assert again.forward == held.forward


def test_inputs_in_fp8_are_half_as_large_and_recomputed_ones_are_not_counted_twice():
    bf16, fp8 = (derived(fp8=recipe) for recipe in ("none", "block"))
    for level, halved in (("none", ENTERING), ("norms", 16 * (8 + 32)), ("norms+activations", 16 * 8), ("full", 0)):
        assert bf16.activation_bytes(BLOCK, level) - fp8.activation_bytes(BLOCK, level) == halved
    head = MODEL.layers[-1]
    assert bf16.activation_bytes(head, "none") == fp8.activation_bytes(head, "none")
    assert derived(fp8="block", framework="torchtitan").activation_bytes(BLOCK, "none") == bf16.activation_bytes(
        BLOCK, "none"
    )


def test_router_and_head_stay_in_bf16_and_experts_where_the_framework_leaves_them():
    head, block = MODEL.layers[-1], EXPERTS.layers[1]
    assert derived(fp8="tensor").work(head) == derived().work(head)
    megatron, torchtitan = (derived(EXPERTS, fp8="tensor", framework=name) for name in ("megatron-core", "torchtitan"))
    dense, experts = 8 * (24 + 8), 4 * 2 * 8 * 32
    assert megatron.layout.fp8_parameters(block) == (dense, experts)
    assert torchtitan.layout.fp8_parameters(block) == (dense, 0)


def test_copies_of_weights_in_fp8_are_held_along_rows_and_columns():
    bf16, both, kept = (
        derived(fp8=recipe, fp8_gather=gather).for_stages(1).weight_bytes[0]
        for recipe, gather in (("none", False), ("block", False), ("block", True))
    )
    assert both - bf16 == 2 * 2 * WEIGHTS  # two blocks
    assert kept == bf16  # two bytes in the place of two


def test_weights_are_cast_with_each_gathered_block():
    sharded = {"framework": "torchtitan", "sharded": True, "data": 4, "fp8": "delayed"}
    cast, gathered = (derived(**sharded, fp8_gather=way).work(BLOCK) for way in (False, True))
    assert cast.forward - gathered.forward == pytest.approx(4 * WEIGHTS / 100)
    assert cast.input_grad - gathered.input_grad == pytest.approx(4 * WEIGHTS / 100)


def test_weights_gathered_in_fp8_are_half_as_many_bytes():
    slow = replace(DEVICE, memory_bandwidth=1e15)
    sharded = {"framework": "torchtitan", "sharded": True, "data": 4, "fp8": "delayed"}
    link = LinkSheet("slow", 1e-3, 0.0)
    costs = [
        DerivedCosts(MODEL, Cluster(slow, link, link, contention=0.0), Layout(**sharded, fp8_gather=way))
        for way in (False, True)
    ]
    spared = costs[0].exchange(BLOCK).forward - costs[1].exchange(BLOCK).forward
    assert spared == pytest.approx(3 / 4 * WEIGHTS / 1e-3)


@pytest.mark.parametrize(("recipe", "bytes_spared"), [("delayed", 1), ("tensor", 1), ("block", 0)])
def test_a_distributed_optimizer_gathers_new_weights_in_fp8_unless_blocks_of_a_row_have_a_scale(recipe, bytes_spared):
    link = LinkSheet("slow", 1e-3, 0.0)
    layouts = [Layout(data=4, distributed_optimizer=True, fp8=recipe, fp8_gather=way) for way in (False, True)]
    steps = [DerivedCosts(MODEL, Cluster(DEVICE, link, link), one).for_stages(1).optimizer_step[0] for one in layouts]
    assert steps[0] - steps[1] == pytest.approx(bytes_spared * 3 / 4 * 2 * WEIGHTS / 1e-3)  # two blocks


def test_sequence_parallelism_gathers_in_fp8_and_reduces_in_bf16():
    alone = {"tensor": 2, "overlap_tensor": False}
    bf16, fp8 = (
        derived(**alone, sequence_parallel=True, fp8=recipe).exchange(BLOCK).forward for recipe in ("none", "tensor")
    )
    assert bf16 == pytest.approx(2 * 2 * (2 * 16 * 8 / 2) / 100)
    assert fp8 == pytest.approx(3 / 4 * bf16)
    plain = derived(**alone, fp8="tensor").exchange(BLOCK)
    assert plain == derived(**alone).exchange(BLOCK)


def test_tokens_dispatched_in_fp8_come_back_in_bf16():
    block = EXPERTS.layers[1]
    both, one = (derived(EXPERTS, data=4, expert=4, fp8_dispatch=way).exchange(block) for way in (False, True))
    assert one.forward == pytest.approx(3 / 4 * both.forward)
    assert one.input_grad == one.forward


def test_one_achieved_fraction_holds_of_both_peaks():
    device = DeviceSheet("unit", 1000.0, 1e9, 0.5, peak_fp8=2000.0)
    bf16, fp8 = (derived(device=device, fp8=recipe).work(BLOCK) for recipe in ("none", "tensor"))
    assert fp8.weight_grad == pytest.approx(bf16.weight_grad / 2)
    assert fp8.core == bf16.core
    assert fp8.up == pytest.approx(bf16.up / 2)


def test_a_device_without_an_fp8_peak_is_refused():
    with pytest.raises(ConfigError, match=r"fp8='tensor' needs the fp8 peak of A100 SXM.*none or give .*peak_fp8"):
        derived(device=DEVICES["A100 SXM"], fp8="tensor")
    with pytest.raises(ConfigError, match="fp8='e4m3' is not known; use one of: none, tensor, delayed, block"):
        Layout(fp8="e4m3")
    assert {name for name, sheet in DEVICES.items() if sheet.peak_fp8 is None} == {"A100 SXM", "TPU v5p", "Ascend 910B"}


def test_a_config_asks_for_fp8_and_its_summary_says_what_runs_so():
    config = ConfigSource(
        {
            "model": {"num_layers": 8, "hidden": 4096, "heads": 32, "vocabulary": 32000, "sequence": 4096},
            "hardware": {"device": "H100 SXM", "link": "NVLink 4"},
            "layout": {"fp8": "tensor"},
            "schedule": {"name": "1f1b", "devices": 4, "microbatches": 8},
        },
        "here",
    ).config()
    run = config.simulate()
    said = next(one for one in run.to_dict()["assumptions"] if "in fp8" in one)
    assert said == (
        "products of the blocks run in fp8 (a scale for each tensor), peak 1.979 PFLOP/s, their inputs held in fp8; "
        "attention, router, norms, loss and head in bf16"
    )
    assert run.makespan < config.changed({"layout.fp8": "none"}).simulate().makespan


def test_a_window_in_the_fused_kernel_leaves_out_pairs_of_tokens():
    near = replace(MODEL, sequence=1024, attention="flash", window=128)

    def core(model, **layout):
        return derived(model, **layout).work(model.layers[1])

    wide, tiled = core(replace(near, window=0)), core(near)
    assert tiled.core / wide.core == pytest.approx(1 - (1 - 128 / 1024) ** 2)


def test_a_head_may_run_in_fp8():
    bf16, fp8 = (derived(fp8="block", fp8_head=way).work(MODEL.layers[-1]).products for way in (False, True))
    factors = 16 * 8 + 8 * 6  # one byte a value, but cast from bf16: the weights once a step
    assert bf16 - fp8 == pytest.approx(2 * 16 * 8 * 6 * (1 / 500 - 1 / 800) + (factors - 4 * 16 * 8) / 100)
