"""What experts cost beside their products and their exchange: starts by the host, orders of tokens, biases, clamps."""

from dataclasses import replace

import pytest

from ppsim import Cluster, DerivedCosts, Layout, Model
from ppsim.costs import DEVICES, DeviceSheet, LinkSheet, OperatorLaw

# Products at 500 FLOP/s, in fp8 at 1000; memory at 100 B/s; a host starts an expert's product in half a second.
PERMUTE_SPEED = 0.75  # of the bandwidth of other passes (SimuMax, b200_bf16_ceperm)
LAW = OperatorLaw(0.5, 0.25, 0.25, 0.25, sustained=1.0, tail=0.0, attention_tail=0.0, memory=1.0, launch=0.0, start=0.0)
DEVICE = DeviceSheet("unit", 1000.0, 1e9, memory_bandwidth=100.0, operators=LAW, peak_fp8=2000.0)
LINK = LinkSheet("link", 100.0, 0.0)
MODEL = Model(
    num_layers=1, hidden=8, heads=2, vocabulary=6, sequence=16, causal=False, experts=8, experts_per_token=2, ffn=16,
    gated=True,
)  # fmt: skip
TOKENS, VISITS = 16, 2


def work(model=MODEL, **layout):
    costs = DerivedCosts(model, Cluster(DEVICE, LINK, LINK, contention=0.0), Layout(**layout))
    return costs.work(model.layers[1])


def _down(rows):
    """Seconds of the eight experts' down-projections."""
    return 8 * (2 * rows * 16 * 8 / 500 + (2 * (rows + 8) * 16 + 2 * rows * 8) / 100)


def test_pytorchs_policy_of_every_second_product_saves_none_of_an_expert():
    block, experts = MODEL.layers[1], work().up + _down(TOKENS * VISITS / 8)
    repeated = work().norms + work().activations + work().others + (work().products - experts) / 2 + experts
    assert work().module_seconds(["alternate"]) == pytest.approx(repeated)
    routed = 2 * TOKENS * VISITS * (8 + 32 + 16 + 8)  # inputs and outputs of the up product, then of the down product
    norms, input_of_experts = 2 * TOKENS * 2 * 8, 2 * TOKENS * 8
    assert block.activation_bytes() - block.activation_bytes(recompute="alternate") == routed + norms + input_of_experts


def test_outputs_of_experts_are_held_unless_the_routers_weights_multiply_their_activation():
    block, cluster = MODEL.layers[1], Cluster(DEVICE, LINK, LINK)
    held = {
        name: DerivedCosts(MODEL, cluster, Layout(framework=name)).activation_bytes(block, "none")
        for name in ("megatron-lm core 0.12", "megatron-lm")
    }
    assert held["megatron-lm core 0.12"] - held["megatron-lm"] == 2 * TOKENS * VISITS * 8
    spread = DerivedCosts(MODEL, cluster, Layout(framework="megatron-core", data=2, expert=2))
    assert spread.activation_bytes(block, "none") == pytest.approx(1.2 * held["megatron-lm"])


@pytest.mark.parametrize(("module", "model"), [("moe", MODEL), ("mlp", replace(MODEL, experts=0, experts_per_token=0))])
def test_a_recomputed_mlp_holds_its_input_and_repeats_its_forward_and_its_exchange(module, model):
    """A block has attention with a query, keys and values of 8, 8 and 8, and a gated MLP of 16."""
    block, other = model.layers[1], {"moe": "mlp", "mlp": "moe"}[module]
    attention = 2 * TOKENS * (8 + 8 + 24 + 8)  # input of the norm and of the products, q, k, v, attention
    assert block.activation_bytes(recompute=module) == attention + 2 * TOKENS * (8 + 8)  # inputs of norm and MLP
    assert block.activation_bytes(recompute=f"norms+{module}") == attention + 2 * TOKENS * (8 + 8) - 2 * 2 * TOKENS * 8
    assert block.activation_bytes(recompute=other) == block.activation_bytes()
    up = 2 * TOKENS * 32 * (2 if module == "moe" else 1)
    assert block.activation_bytes() - block.activation_bytes(fp8_activations=True) == up / 2
    cluster = Cluster(DEVICE, LINK, LINK, contention=0.0)
    spread = {"data": 2, "expert": 2} if module == "moe" else {}
    plain, again = (DerivedCosts(model, cluster, Layout(**spread, recompute=level)) for level in ("none", module))
    added = again.work(block.mlp).forward + again.exchange(block.mlp).forward
    assert (again.exchange(block.mlp).forward > 0) == (module == "moe")
    one, other = (costs.for_stages(1) for costs in (plain, again))
    assert other.input_grad[0] - one.input_grad[0] == pytest.approx(added)
    assert other.forward[0] == one.forward[0]


def test_tokens_of_an_all_to_all_are_put_in_the_order_of_a_gpus_experts_and_back():
    block = 4 * 2 * TOKENS * VISITS * 8 / (PERMUTE_SPEED * 100)  # read and written on the way to experts, and back
    others = {
        name: work(**layout).others
        for name, layout in {
            "one gpu": {},
            "several": {"data": 4, "expert": 4},
            "one each": {"data": 8, "expert": 8},
            "by node": {"data": 4, "expert": 4, "expert_exchange": "hierarchical"},
            "in fp8": {"data": 4, "expert": 4, "fp8": "block"},
        }.items()
    }
    assert others["one gpu"] == others["one each"] == others["by node"]
    assert others["several"] - others["one gpu"] == pytest.approx(block)
    assert others["in fp8"] == others["several"]


def test_kernels_of_a_hierarchical_exchange_permute_tokens_in_eager_steps_too():
    by_node = {"data": 4, "expert": 4, "expert_exchange": "hierarchical"}
    once = 4 * 2 * TOKENS * VISITS * 8 / 100
    norms = 2 * 3 * 2 * TOKENS * 8 / 100  # additions to the residual, which count three times
    assert work(fused=False, **by_node).others - work(**by_node).others == pytest.approx(2 * norms)
    plain = work(fused=False, data=4, expert=4).others - work(data=4, expert=4).others
    assert plain == pytest.approx(2 * norms + 2 * once)


@pytest.mark.parametrize(("exchange", "spared"), [("hierarchical", 2), ("all-to-all", 0)])
def test_automodel_compiles_the_activation_of_experts_behind_deepep_in_eager_steps_too(exchange, spared):
    layout = {"expert": 2, "data": 2, "fused": False, "expert_exchange": exchange}
    eager, compiled = (work(framework=name, **layout).activations for name in ("torchtitan", "automodel"))
    assert eager - compiled == pytest.approx(spared * TOKENS * VISITS * 32 * 2 * 3 / 2 / 100)


def test_a_recomputation_of_automodel_stops_before_the_last_product_and_the_way_back_from_experts():
    whole, early = (
        DerivedCosts(
            MODEL, Cluster(DEVICE, LINK, LINK, contention=0.0),
            Layout(framework=name, data=2, expert=2, expert_exchange="hierarchical", recompute="full"),
        )
        for name in ("torchtitan", "automodel")
    )  # fmt: skip
    block = MODEL.layers[1]
    last = _down(TOKENS * VISITS / 4) / 2  # of four experts, each with the tokens of two GPUs
    assert whole.repeated_seconds(block, "full") - early.repeated_seconds(block, "full") == pytest.approx(last)
    spared = whole.exchange(block).repeated - early.exchange(block).repeated
    assert spared == pytest.approx(whole.exchange(block).input_grad / 2)


@pytest.mark.parametrize(("layout", "copies"), [({}, 4), ({"data": 4, "expert": 4}, 4), ({"tensor": 2}, 8)])
def test_torchtitan_copies_tokens_four_times_and_all_of_them_where_an_expert_is_split(layout, copies):
    layout = layout | {"sequence_parallel": "tensor" in layout}
    named, other = (work(framework=name, fused=True, **layout).others for name in ("torchtitan", "pytorch"))
    each = 4 * 2 * TOKENS * VISITS * 8 / (PERMUTE_SPEED * 100) / (2 if "tensor" in layout else 1)
    once = 2 * each if "expert" in layout else each  # an all-to-all's tokens are sorted once more
    assert named - other == pytest.approx(copies * each - once)


def test_biases_of_experts_are_weighted_and_added_in_passes_of_their_own():
    plain, biased = work(), work(replace(MODEL, mlp_bias=True))
    assert biased.others - plain.others == pytest.approx(28 * TOKENS * VISITS * 8 / 100)
    experts = [model.layers[1].expert_parameters for model in (MODEL, replace(MODEL, mlp_bias=True))]
    assert experts[1] - experts[0] == 8 * (2 * 16 + 8)


def test_a_clamp_reads_and_writes_both_halves_before_the_activation_twice():
    plain, clamped = work(), work(replace(MODEL, clamped=True))
    assert clamped.activations - plain.activations == pytest.approx(2 * 4 * 2 * TOKENS * VISITS * 16 / 100)
    assert clamped.others == plain.others


def test_a_host_on_grace_starts_slower():
    starts = {name: sheet.operators.start for name, sheet in DEVICES.items() if sheet.operators}
    assert {name for name, start in starts.items() if start > 9e-6} == {"GB200", "GB300"}


def test_a_summary_says_how_experts_start():
    def said(**layout):
        costs = DerivedCosts(MODEL, Cluster(DEVICES["H100 SXM"], LINK, LINK), Layout(**layout))
        return next((one for one in costs.assumptions if "products of a GPU's" in one), None)

    start = "the products of a GPU's 8 experts are launched one by one, each in at least 34 µs of the host"
    copies = "; tokens are copied into their order and back {} times"
    assert said() == start
    assert said(data=4, expert=4) == start.replace("8 experts", "2 experts") + copies.format(2)
    assert said(framework="torchtitan") == "the products of a GPU's 8 experts are one kernel" + copies.format(4)
    assert said(data=8, expert=8) is None
