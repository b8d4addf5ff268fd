"""Operators priced by their shapes: products, attention, element-wise passes, experts, what recomputation repeats."""

import json
from dataclasses import replace

import pytest
from command_line import ppsim as command

import ppsim
from ppsim import Cluster, ConfigError, DerivedCosts, Layout, Model
from ppsim.config import ConfigSource
from ppsim.costs import DEVICES, LINKS, DeviceSheet, OperatorLaw, read_operators
from ppsim.costs.operators import Rates

# Products at half of 1000 FLOP/s without a tail, attention at a quarter, memory at 100 B/s, no gap.
LAW = OperatorLaw(0.5, 0.25, 0.25, 0.125, sustained=1.0, tail=0.0, attention_tail=0.0, memory=1.0, launch=0.0)
FAST_MEMORY = DeviceSheet("unit", 1000.0, 1e9, memory_bandwidth=1e15, operators=LAW)
LINK = LINKS["NVLink 3"]
MODEL = Model(num_layers=2, hidden=8, heads=2, vocabulary=6, sequence=16, causal=False)


def derived(layout=None, model=MODEL, device=FAST_MEMORY) -> DerivedCosts:
    return DerivedCosts(model, Cluster(device, LINK, LINK), layout or Layout())


def with_law(**changes) -> DeviceSheet:
    return replace(FAST_MEMORY, operators=replace(LAW, **changes))


def test_a_product_takes_its_flops_and_its_bytes():
    rates = Rates(LAW, 1000.0, 100.0)
    assert rates.product(4, 5, 6) == pytest.approx(2 * 4 * 5 * 6 / 500 + (2 * (4 + 5) * 6 + 2 * 4 * 5) / 100)
    assert rates.product(4, 5, 6, out=8) - rates.product(4, 5, 6) == pytest.approx(6 * 4 * 5 / 100)


def test_the_rate_of_a_product_falls_with_each_small_size():
    rates = Rates(replace(LAW, tail=4.0), 1000.0, 1e15)
    assert rates.product(4, 8, 16) == pytest.approx(2 * 4 * 8 * 16 / 500 * 2 * 1.5 * 1.25)
    sizes = [2**power for power in range(4, 14)]
    reached = [2 * n**3 / rates.product(n, n, n) / 1000 for n in sizes]
    assert reached == sorted(reached)
    assert reached[-1] == pytest.approx(0.5, rel=0.01)


def test_a_block_without_memory_and_gaps_takes_its_products_and_its_attention():
    block, work = MODEL.layers[1], derived().work(MODEL.layers[1])
    products, core = block.weight_grad / 500, block.attention_core / 250
    assert work.forward == pytest.approx(products + core)
    assert work.input_grad == pytest.approx(products + 2 * 1.25 * core)  # the backward makes the scores again
    assert work.weight_grad == pytest.approx(products)


@pytest.mark.parametrize(("framework", "more"), [("megatron-core", 0), ("megatron-deepspeed", 12)])
def test_gradients_that_other_kernels_add_move_more_bytes_in_each_microbatch(framework, more):
    block = MODEL.layers[1]
    parameters = sum(one.inputs * one.outputs for one in block.operators.products)
    for in_bf16, moved in ((False, more), (True, 0)):
        layouts = [Layout(framework=name, bf16_gradients=in_bf16) for name in ("megatron-lm", framework)]
        fused, own = (derived(layout, device=DEVICES["H100 SXM"]).work(block).weight_grad for layout in layouts)
        assert own - fused == pytest.approx(DEVICES["H100 SXM"].rates.streaming(moved * parameters), abs=1e-15)


def test_attention_is_priced_by_its_kernel():
    device = with_law(attention=0.5, flash_2=0.25, flash_1=0.125)
    cores = {
        kernel: derived(model=replace(MODEL, attention=kernel), device=device).work(
            replace(MODEL, attention=kernel).layers[1]
        ).core
        for kernel in ("flash", "flash-2", "flash-1")
    }  # fmt: skip
    assert cores["flash-2"] == pytest.approx(2 * cores["flash"])
    assert cores["flash-1"] == pytest.approx(4 * cores["flash"])
    long, short = (
        Rates(with_law(attention_tail=100.0).operators, 1.0, 1.0).attention("flash", 1.0, s) for s in (1e9, 100)
    )
    assert short == pytest.approx(2 * long)


def test_tritons_attention_is_twice_as_fast_as_flashattention_1_in_f_and_a_tenth_faster_in_i():
    plain, triton, bare = (
        derived(model=replace(MODEL, attention=kernel), device=device).work(replace(MODEL, attention=kernel).layers[1])
        for kernel, device in (
            ("flash-1", with_law(launch=0.0)),
            ("triton", with_law(launch=0.0)),
            ("flash", with_law(launch=0.0)),
        )
    )
    assert triton.core == pytest.approx(plain.core / 2.03)
    products = bare.input_grad - 2.5 * bare.core
    assert triton.input_grad - products == pytest.approx((plain.input_grad - products) / 1.1)


def test_norms_of_heads_move_queries_and_keys_as_a_rotation_does():
    device = replace(FAST_MEMORY, memory_bandwidth=100.0)
    plain, normed = (
        derived(model=replace(MODEL, head_norm=way), device=device).work(replace(MODEL, head_norm=way).layers[1])
        for way in (False, True)
    )
    assert normed.activations - plain.activations == pytest.approx(2 * 2 * 16 * 4 * (2 + 2) / 100)


def test_recomputing_latent_attention_repeats_its_up_projections_and_gives_back_what_they_make():
    model = replace(MODEL, query_rank=4, key_value_rank=4, rotary_head_size=2, value_head_size=4, head_size=4)
    plain, again = (derived(Layout(recompute=level), model) for level in ("none", "latent"))
    block = model.layers[1]
    ups = 4 * 2 * (4 + 4) + 4 * 2 * (4 + 2)  # keys and values, queries
    assert again.repeated_seconds(block, "latent") == plain.work(block).latent == pytest.approx(2 * 16 * ups / 500)
    held = [costs.for_stages(1).activation_bytes[0] for costs in (plain, again)]
    assert held[0] - held[1] == 2 * 2 * 16 * (2 * (4 + 4) + 2 * (4 + 2))  # of two blocks


def test_full_attention_moves_its_scores_through_memory():
    model = replace(MODEL, attention="full")
    device = replace(FAST_MEMORY, memory_bandwidth=100.0)
    slow = replace(device, memory_bandwidth=50.0)
    scores = model.heads * model.sequence**2
    half = [derived(model=model, device=one).work(model.layers[1]).core for one in (device, slow)]
    products = 2 * model.heads * (2 * 2 * 16 * 4 + 2 * 16 * 16) / 100
    assert half[1] - half[0] == pytest.approx(4 * scores / 100 + products)
    one, separate = (
        derived(Layout(fused=way), model=model, device=slow).work(model.layers[1]) for way in (True, False)
    )
    assert separate.core - one.core == pytest.approx(2 * 4 * scores / 50)  # a softmax, mask and scaling of their own


def test_tensor_parallelism_makes_products_smaller_and_so_slower():
    device = with_law(tail=8.0)
    alone, split = (derived(Layout(tensor=size), device=device).work(MODEL.layers[1]).products for size in (1, 2))
    assert alone / 2 < split < alone


def test_an_expert_is_a_product_of_the_tokens_that_reach_it():
    model = replace(MODEL, experts=4, experts_per_token=2, ffn=16, expert_ffn=16)
    slow = replace(FAST_MEMORY, memory_bandwidth=1e3)
    one, spread = derived(model=model, device=slow), derived(Layout(data=4, expert=4), model, slow)
    # the same tokens for each GPU, but one expert's weights read in the place of four
    weights = 3 * 2 * 2 * 8 * 16 / 1e3
    assert one.work(model.layers[1]).products - spread.work(model.layers[1]).products == pytest.approx(weights)


def test_a_gap_follows_every_operator():
    slow, fast = (derived(device=with_law(launch=gap)).work(MODEL.layers[1]) for gap in (1.0, 0.0))
    assert slow.products - fast.products == pytest.approx(4)  # QKV, projection, up, down
    assert slow.core - fast.core == pytest.approx(1)
    assert slow.weight_grad - fast.weight_grad == pytest.approx(4)


def test_a_bias_gets_its_gradient_from_a_sum_that_reads_the_gradients_of_its_product():
    device = replace(FAST_MEMORY, memory_bandwidth=100.0)
    model = replace(MODEL, mlp_bias=True)
    plain, biased = (derived(model=one, device=device).work(one.layers[1]) for one in (MODEL, model))
    assert biased.weight_grad - plain.weight_grad == pytest.approx(2 * 16 * (32 + 8) / 100)  # up and down, bf16
    assert biased.forward == plain.forward


def test_a_heads_product_with_an_odd_number_of_words_takes_longer_unless_the_framework_pads():
    odd = replace(MODEL, vocabulary=7)
    eager, split, padded = Layout(framework="eager"), Layout(framework="eager", tensor=2), Layout()
    for layout, times in ((eager, 4), (split, 1), (padded, 1)):
        head, slower = (
            derived(layout, odd, replace(FAST_MEMORY, operators=law)).work(odd.layers[-1])
            for law in (LAW, replace(LAW, odd=4))
        )
        assert slower.products == pytest.approx(times * head.products)
        assert slower.weight_grad == pytest.approx(times * head.weight_grad)


def test_norms_alone_may_be_several_kernels():
    device = replace(FAST_MEMORY, memory_bandwidth=100.0)
    layouts = (Layout(framework="mosaicml", fused_norms=way) for way in (None, True, False))
    default, one, several = (derived(layout, device=device).work(MODEL.layers[1]) for layout in layouts)
    assert default == one
    assert several.norms == pytest.approx(6 * one.norms)
    assert several.activations == one.activations


def test_unfused_norms_move_nine_times_and_activations_three_times_the_bytes():
    device = replace(FAST_MEMORY, memory_bandwidth=100.0)
    layouts = (Layout(), Layout(fused=False), Layout(fused=False, fused_norms=True))
    fused, unfused, norms_alone = (derived(layout, device=device).work(MODEL.layers[1]) for layout in layouts)
    assert (unfused.norms, unfused.activations) == pytest.approx((9 * fused.norms, 3 * fused.activations))
    assert unfused.input_grad - norms_alone.input_grad == pytest.approx((84 - 6) / 4 * fused.norms)
    assert (norms_alone.norms, norms_alone.activations) == pytest.approx((fused.norms, 3 * fused.activations))
    assert fused.norms == pytest.approx(4 * 2 * 16 * 8 / 100)
    scaling = derived(Layout(framework="scaling"), device=device).work(MODEL.layers[1])
    assert scaling.norms == pytest.approx(16 * fused.norms)
    plain = replace(MODEL, gated=False, positions="learned")
    fused, unfused = (derived(layout, plain, device).work(plain.layers[1]) for layout in layouts[:2])
    assert unfused.activations == fused.activations  # PyTorch's GELU is one kernel


@pytest.mark.parametrize(
    ("level", "parts"),
    [("norms", ["norms"]), ("norms+activations", ["norms", "activations"]), ("up+core", ["up", "core"])],
)
def test_recomputing_modules_repeats_their_seconds_and_gives_back_their_bytes(level, parts):
    device = replace(FAST_MEMORY, memory_bandwidth=100.0)
    none, some = (derived(Layout(recompute=one), device=device) for one in ("none", level))
    work, block = none.work(MODEL.layers[1]), MODEL.layers[1]
    again = some.for_stages(2).input_grad[1] - none.for_stages(2).input_grad[1]
    assert again == pytest.approx(sum(getattr(work, part) for part in parts))
    token = {"norms": 2 * 2 * 8, "activations": 2 * 32, "up": 2 * 32, "core": 0}
    assert block.activation_bytes() - block.activation_bytes(recompute=level) == 16 * sum(token[part] for part in parts)


def test_every_second_product_is_recomputed_but_no_last_one_and_all_before_it_in_fp8():
    device, block = replace(FAST_MEMORY, peak_fp8=2000.0), MODEL.layers[1]
    qkv_output_and_up = 2 * 16 * 8 * (3 * 8 + 8 + 32)
    for recipe, seconds in (("none", qkv_output_and_up / 500 / 2), ("delayed", qkv_output_and_up / 1000)):
        costs = derived(Layout(framework="torchtitan", fp8=recipe), device=device)
        assert costs.repeated_seconds(block, "alternate") == pytest.approx(seconds)


def test_recompute_blocks_applies_to_the_first_blocks_of_each_stage():
    none, one, both = (
        derived(Layout(recompute=level, recompute_blocks=blocks)).for_stages(1)
        for level, blocks in (("none", None), ("full", 1), ("full", None))
    )
    assert 2 * (one.input_grad[0] - none.input_grad[0]) == pytest.approx(both.input_grad[0] - none.input_grad[0])
    assert none.activation_bytes[0] > one.activation_bytes[0] > both.activation_bytes[0]


def test_an_achieved_fraction_takes_the_place_of_the_operators():
    flat = derived(device=replace(FAST_MEMORY, achieved=0.1)).work(MODEL.layers[1])
    assert flat.forward == pytest.approx(MODEL.layers[1].forward / 100)
    with pytest.raises(ConfigError, match="gives no achieved and no operators with a memory_bandwidth"):
        DeviceSheet("bare", 1e12, 80e9)


def test_a_config_changes_numbers_of_a_law():
    config = {
        "model": {"num_layers": 4, "hidden": 64, "heads": 4, "vocabulary": 100, "sequence": 32},
        "hardware": {"device": {"like": "H100", "operators": {"products": 0.5, "launch": "2 us"}}, "link": "NVLink 4"},
        "schedule": {"name": "1f1b", "devices": 2, "microbatches": 2},
    }
    law = ConfigSource(config, "here").config().costs.cluster.device.operators
    assert (law.products, law.launch, law.source) == (0.5, 2e-6, "given")
    assert law.flash_2 == DEVICES["H100 SXM"].operators.flash_2
    config["hardware"]["device"]["operators"] = {"product": 0.5}
    with pytest.raises(ConfigError, match="'product' is not known; the keys here are: products, attention"):
        ConfigSource(config, "here").config()


def test_every_sheet_says_how_its_operators_run():
    for sheet in DEVICES.values():
        assert sheet.achieved is None
        assert sheet.operators.source
        assert 0 < sheet.operators.products * sheet.operators.sustained <= 1
        model = ppsim.Model(num_layers=2, hidden=4096, heads=32, vocabulary=32000, sequence=4096)
        assert 0.2 < derived(model=model, device=sheet).rate / sheet.peak < 0.9


def test_a_measured_device_takes_the_place_of_the_law(tmp_path):
    peak, bandwidth, launch, tail = 1e12, 1e11, 1e-5, 32.0
    rates = Rates(OperatorLaw(1.0, 0.5, 0.5, 0.5, sustained=1.0, tail=tail, memory=1.0), peak, bandwidth)
    sizes = [(m, n, k) for m in (64, 512, 4096) for n in (64, 512, 4096) for k in (64, 512, 4096)]
    measured = {
        "schema": "ppsim.measured-operators/1", "device": "ours", "data_type": "bfloat16", "value_bytes": 2,
        "products": [
            {"rows": m, "columns": n, "depth": k, "seconds": launch + rates.product(m, n, k)} for m, n, k in sizes
        ],
        "attention": [
            {"batch": 1, "heads": 1, "width": 64, "tokens": s, "causal": False,
             "seconds": 2 * launch + 3.5 * 4 * 64 * s * s * (1 + 256 / s) / (peak / 2)} for s in (512, 2048, 8192)
        ],
        "streams": [{"bytes": 10**9, "seconds": 10**9 / bandwidth}],
    }  # fmt: skip
    source, made = tmp_path / "measured.json", tmp_path / "mine.yaml"
    source.write_text(json.dumps(measured))
    done = command("calibrate", "--operators", source, "-o", made)
    assert done.status == 0, done.err
    assert "matrix products            1 TFLOP/s" in done.out
    law = read_operators(made)
    assert (law.peak, law.launch, law.bandwidth) == pytest.approx((peak, launch, bandwidth), rel=0.03)
    assert law.tail == pytest.approx(tail, rel=0.2)
    assert law.residual < 0.02
    config = {
        "model": {"num_layers": 4, "hidden": 64, "heads": 4, "vocabulary": 100, "sequence": 32},
        "hardware": {"device": {"peak": "2 TFLOP/s", "memory": "80 GB", "operators": "mine.yaml"}, "link": "NVLink 4"},
        "schedule": {"name": "1f1b", "devices": 2, "microbatches": 2},
    }
    device = ConfigSource(config, str(tmp_path / "c.yaml")).config().costs.cluster.device
    assert device.operators.products == pytest.approx(law.peak / 2e12)
    assert device.memory_bandwidth == law.bandwidth
    config["hardware"]["device"]["peak"] = "1 GFLOP/s"
    with pytest.raises(ConfigError, match="times as fast as the device's sheet allows"):
        ConfigSource(config, str(tmp_path / "c.yaml")).config()


def test_calibrate_takes_traces_or_operators(tmp_path):
    assert command("calibrate", "-o", tmp_path / "x.yaml").status == 2
    (tmp_path / "bad.json").write_text("{}")
    wrong = command("calibrate", "--operators", tmp_path / "bad.json", "-o", tmp_path / "x.yaml")
    assert wrong.status == 2
    assert "schema is None, expected 'ppsim.measured-operators/1'" in wrong.err
