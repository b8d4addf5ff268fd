"""Parameters, FLOPs and activations of models against published numbers."""

import korthikanti
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ppsim import ConfigError, Model

PUBLISHED = {"22B": 22e9, "175B": 175e9, "530B": 530e9, "1T": 1008e9}
LLAMA_3_8B = {
    "num_layers": 32, "hidden": 4096, "heads": 32, "key_value_heads": 8, "ffn": 14336, "gated": True,
    "vocabulary": 128256, "sequence": 8192, "norm": "rmsnorm",
}  # fmt: skip
DEEPSEEK_V3 = {
    "num_layers": 61, "hidden": 7168, "heads": 128, "head_size": 128, "vocabulary": 129280, "sequence": 4096,
    "ffn": 18432, "gated": True, "norm": "rmsnorm", "query_rank": 1536, "key_value_rank": 512, "rotary_head_size": 64,
    "value_head_size": 128, "experts": 256, "experts_per_token": 8, "shared_experts": 1, "expert_ffn": 2048,
    "dense_layers": 3, "prediction_layers": 1,
}  # fmt: skip

plain_shapes = st.builds(
    lambda heads, head, s: (heads, heads * head, s), st.integers(1, 64), st.integers(1, 256), st.integers(1, 8192)
)


def plain(heads: int, hidden: int, sequence: int, **changes) -> Model:
    """One plain block: every head its own keys and values, GELU MLP of 4h, dropout, attention held in full."""
    shape = {"attention": "full", "causal": False, "dropout": True, **changes}
    return Model(num_layers=1, hidden=hidden, heads=heads, vocabulary=1, sequence=sequence, **shape)


@settings(deadline=None, max_examples=50)
@given(plain_shapes)
def test_flops_of_a_plain_block_are_sh_times_24h_plus_4s_and_24h_plus_8s_and_24h(shape):
    _, h, s = shape
    block = plain(*shape).layers[1]
    assert block.forward == s * h * (24 * h + 4 * s)
    assert block.input_grad == s * h * (24 * h + 8 * s)
    assert block.weight_grad == 24 * s * h**2


@settings(deadline=None, max_examples=50)
@given(plain_shapes, st.sampled_from([1, 2, 4, 8]))
def test_activation_bytes_of_a_plain_block_are_those_of_korthikanti_table_2(shape, t):
    a, h, s = shape
    block = plain(*shape).layers[1]
    scores = 5 * a * s / h
    assert block.activation_bytes() == pytest.approx(s * h * (34 + scores))
    assert block.activation_bytes(t) == pytest.approx(s * h * (10 + 24 / t + scores / t))
    assert block.activation_bytes(t, sequence_parallel=True) == pytest.approx(s * h * (34 + scores) / t)
    assert block.activation_bytes(t, recompute="selective") == pytest.approx(s * h * (10 + 24 / t))
    assert block.activation_bytes(t, sequence_parallel=True, recompute="selective") == pytest.approx(s * h * 34 / t)
    assert block.activation_bytes(t, recompute="full") == 2 * s * h
    assert block.weight_grad_bytes == 32 * s * h


def test_flash_attention_drops_the_score_matrices_as_selective_recompute_does():
    flash, full = plain(8, 64, 32, attention="flash").layers[1], plain(8, 64, 32).layers[1]
    assert flash.activation_bytes() == full.activation_bytes(recompute="selective")
    assert full.attention_core == 4 * 32**2 * 64


def test_a_causal_kernel_computes_half_of_the_attention_matrix():
    whole, half = plain(4, 64, 32).layers[1], plain(4, 64, 32, causal=True).layers[1]
    assert whole.forward - half.forward == 2 * 32**2 * 64
    assert half.weight_grad == whole.weight_grad


def test_grouped_query_attention_and_a_gate_change_only_their_matrices():
    model = Model(num_layers=1, hidden=64, heads=8, key_value_heads=2, ffn=96, gated=True, vocabulary=1, sequence=16)
    block = model.layers[1]
    matrices = 64 * (64 + 2 * 16) + 64 * 64 + 3 * 64 * 96
    assert block.split_parameters == matrices
    assert block.weight_grad == 2 * 16 * matrices
    assert block.forward - block.weight_grad == 4 * 16**2 * 64 / 2


def test_an_expert_block_computes_only_the_experts_that_a_token_visits():
    shape = {"num_layers": 1, "hidden": 64, "heads": 4, "vocabulary": 1, "sequence": 16, "expert_ffn": 32}
    block = Model(**shape, experts=8, experts_per_token=2, shared_experts=1).layers[1]
    attention, expert, router = 4 * 64 * 64, 2 * 64 * 32, 64 * 8
    assert block.expert_parameters == 8 * expert
    assert block.weight_grad == 2 * 16 * (attention + router + 3 * expert)


def test_the_head_holds_its_input_twice_and_fp32_logits():
    head = Model(num_layers=1, hidden=64, heads=4, vocabulary=1000, sequence=16).layers[-1]
    assert head.name == "head"
    assert head.activation_bytes() == 4 * 16 * 64 * (1 + 1000 / 64)  # 4 s b h (1 + v/h), section 4.3 of the paper
    assert head.forward == head.input_grad == head.weight_grad == 2 * 16 * 64 * 1000
    assert head.activation_bytes(recompute="full") == head.activation_bytes()


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_parameters_of_the_megatron_models_are_the_published_counts(name, parameters):
    assert korthikanti.model(name).parameters == pytest.approx(parameters, rel=0.01)


def test_parameters_of_llama_3_8b_and_deepseek_v3_are_the_published_counts():
    assert Model(**LLAMA_3_8B).parameters == 8_030_261_248
    deepseek = Model(**DEEPSEEK_V3)
    assert deepseek.parameters == pytest.approx(671e9, rel=0.01)
    assert deepseek.active_parameters == pytest.approx(37e9, rel=0.02)
    assert [layer.name for layer in deepseek.layers[-3:]] == ["block", "prediction", "head"]


@pytest.mark.parametrize(
    ("name", "saved", "added"), [("175B", 0.70, 0.027), ("530B", 0.65, 0.016)]
)  # section 5 of the paper
def test_selective_recompute_saves_and_costs_what_korthikanti_publish(name, saved, added):
    model = korthikanti.model(name)
    block = model.layers[1]
    assert 1 - block.activation_bytes(recompute="selective") / block.activation_bytes() == pytest.approx(
        saved, abs=0.005
    )
    # The paper's increase holds forward and backward of the attention core, three times the forward that is repeated.
    repeated = model.num_layers * block.attention_core
    assert 3 * repeated / model.step_flops() == pytest.approx(added, abs=0.0006)


@pytest.mark.parametrize("name", PUBLISHED)
def test_sequence_parallelism_with_selective_recompute_saves_about_five_times_as_published(name):
    block, t = korthikanti.model(name).layers[1], korthikanti.TENSOR_PARALLEL
    both = block.activation_bytes(t, sequence_parallel=True, recompute="selective")
    assert block.activation_bytes(t) / both == pytest.approx(5, abs=1.3)
    assert block.activation_bytes(t, recompute="full") / block.activation_bytes(t) == pytest.approx(0.10, abs=0.03)


def test_step_flops_are_those_of_korthikanti_equation_7():
    model = korthikanti.model("175B")
    s, h, layers, v = 2048, 12288, 96, 51200
    expected = 72 * layers * s * h**2 * (1 + s / (6 * h) + v / (12 * h * layers))
    assert model.step_flops() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 0}, "heads=0 must be a whole number of at least 1"),
        ({"num_layers": 10**9}, "num_layers=1000000000 is too large; use at most 2000"),
        ({"heads": True}, "heads=True must be a whole number"),
        ({"hidden": 4097}, "hidden=4097 is not a multiple of heads=32"),
        ({"key_value_heads": 5}, "key_value_heads=5 does not divide heads=32"),
        ({"gated": "yes"}, "gated='yes' must be true or false"),
        ({"norm": "batchnorm"}, "norm='batchnorm' is not known; use one of: layernorm, rmsnorm"),
        ({"experts": 4}, "experts=4 needs experts_per_token from 1 to 4"),
        ({"experts": 4, "experts_per_token": 5}, "experts_per_token=5 is above experts=4"),
    ],
)
def test_an_impossible_shape_is_one_clear_error(changes, message):
    with pytest.raises(ConfigError, match=message):
        Model(**{**LLAMA_3_8B, **changes})
