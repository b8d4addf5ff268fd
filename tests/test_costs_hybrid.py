"""Hybrid models: patterns of Megatron-LM, and FLOPs, parameters and bytes of scans and of sparse attention."""

import numpy as np
import pytest
from published_models import CONFIGS, MEGATRON_FLOPS, flops_as_megatron_counts

from ppsim import Cluster, ConfigError, CostError, DerivedCosts, Layout, Model, build, simulate
from ppsim.costs import boundary_width, find_device, find_link

SIZES = {"hidden": 4096, "heads": 32, "vocabulary": 1000, "sequence": 4096, "norm": "rmsnorm", "key_value_heads": 8}
STATE = {"state_heads": 128, "state_head_size": 64, "state_size": 128, "state_groups": 8}
CLUSTER = Cluster(find_device("H100 SXM"), find_link("NVLink 4"), find_link("InfiniBand NDR"))
EXPERTS = {"experts": 8, "experts_per_token": 2, "expert_ffn": 2048}


def hybrid(pattern, **changes):
    blocks = pattern.split("/")[0].replace("|", "")
    return Model(num_layers=len(blocks), pattern=pattern, **{**SIZES, **STATE, **EXPERTS, **changes})


def only(letter, **changes):
    """The block of a model with one block of this letter."""
    return hybrid(letter, **changes).layers[1]


@pytest.mark.parametrize("name", MEGATRON_FLOPS)
def test_the_flops_of_a_step_are_those_that_megatron_lm_counts(name):
    counted = flops_as_megatron_counts(name)
    assert counted == pytest.approx(MEGATRON_FLOPS[name], rel=1e-3 if "nvidia" in name else 1e-5)


def test_the_parameters_of_each_scan_follow_from_its_matrices():
    h = 4096
    mamba = h * (2 * 8192 + 2 * 1024 + 128) + 8192 * h + (8192 + 2 * 1024) * 5 + 3 * 128 + 8192 + h
    assert only("M").parameters == mamba
    size = {"state_heads": 32, "state_head_size": 128, "state_groups": 16}
    delta = h * (2 * 2048 + 2 * 4096 + 2 * 32) + 4096 * h + (4096 + 2 * 2048) * 4 + 2 * 32 + 128 + h
    assert only("G", **size).parameters == delta
    size["state_groups"] = 32
    kimi = h * 3 * 4096 + h * 32 + 4096 * h + 2 * (h * 128 + 128 * 4096) + 3 * 4096 * 4 + 32 + 4096 + 128 + h
    assert only("K", **size).parameters == kimi


def test_a_scan_holds_its_projections_and_its_output_and_no_matrix_of_tokens():
    s, h, inner = SIZES["sequence"], 4096, 8192
    projected = 2 * inner + 2 * 1024 + 128
    assert only("M").activation_bytes() == 2 * s * (2 * h + projected + 2 * inner)
    long = only("M", sequence=2 * s)
    assert long.forward == 2 * only("M").forward
    assert (long.attention_core, only("M").attention_core) == (0, 0)


def test_tensor_parallelism_splits_a_scan_and_sums_once_a_sublayer():
    assert [only(letter).sums for letter in "M*-E"] == [1, 1, 1, 1]
    block = Model(num_layers=1, **SIZES).layers[1]
    assert block.sums == 2
    scan = only("M")
    assert scan.copied_parameters == SIZES["hidden"]
    assert scan.activation_bytes(tensor=8, sequence_parallel=True) == scan.activation_bytes() / 8


def test_a_block_of_two_letters_is_a_transformer_block():
    plain = Model(num_layers=2, **SIZES)
    assert Model(num_layers=2, pattern="[*-][*-]", **SIZES).layers[1].forward == plain.layers[1].forward
    assert plain.block_letters == ["*-", "*-"]
    apart = Model(num_layers=4, pattern="*-*-", **SIZES)
    assert apart.parameters == plain.parameters
    assert sum(layer.activation_bytes() for layer in apart.layers) == sum(
        layer.activation_bytes() for layer in plain.layers
    )


def test_sparse_attention_attends_to_the_chosen_tokens_and_scores_all():
    """At 4,096 tokens, of which 1,024 are chosen, 7/16 of the pairs remain; the indexer scores all."""
    latent = {"key_value_rank": 512, "query_rank": 1536, "head_size": 128, "rotary_head_size": 64}
    index = {"index_heads": 64, "index_head_size": 128, "index_tokens": 1024}
    dense, sparse = only("+", **latent), only("D", **latent, **index)
    s = SIZES["sequence"]
    scores = s * s * 64 * 128
    assert sparse.attention_core == pytest.approx(dense.attention_core * 7 / 16 + scores)
    projections = 1536 * 64 * 128 + 4096 * (128 + 64)
    assert sparse.forward - sparse.attention_core == dense.forward - dense.attention_core + 2 * s * projections
    assert sparse.parameters == dense.parameters + projections + 2 * 128


def test_a_bar_ends_a_stage_unless_the_layout_cuts_otherwise():
    model = hybrid("M-M-|M*E")
    costs = DerivedCosts(model, CLUSTER, Layout())
    assert costs.megatron_layout(2) == "Et*4|t*3L"
    assert DerivedCosts(model, CLUSTER, Layout(partition=(3, 4))).megatron_layout(2) == "Et*3|t*4L"
    with pytest.raises(CostError, match="4"):
        costs.stage_layers(4)
    run = simulate(build("1f1b", devices=2, microbatches=4), costs)
    assert run.makespan > 0
    assert run.peak_memory is not None


def test_prediction_modules_follow_a_slash():
    model = hybrid("MEM*/*E", prediction_layers=1)
    assert model.prediction_letters == "*E"
    assert [layer.name for layer in model.layers] == ["embedding", *["block"] * 4, "prediction", "head"]


@pytest.mark.parametrize(
    ("pattern", "changes", "message"),
    [
        ("MxM", {}, "must consist of the letters M G K"),
        ("[MM", {}, "must consist of the letters"),
        ("M-", {"num_layers": 3}, "has 2 blocks, but num_layers=3; use num_layers=2"),
        ("M-", {"state_heads": 0}, "M in pattern='M-' needs state_heads above 0"),
        ("W-", {}, "W in pattern='W-' needs window above 0"),
        ("D-", {}, "D in pattern='D-' needs index_heads above 0"),
        ("+-", {}, r"\+ in pattern='\+-' needs key_value_rank above 0"),
        ("M*/*E", {}, "has 1 prediction modules after /"),
    ],
)
def test_a_pattern_that_is_none_is_one_clear_error(pattern, changes, message):
    with pytest.raises(ConfigError, match=message):
        Model(**{**SIZES, **STATE, **EXPERTS, "pattern": pattern, "num_layers": len(pattern.split("/")[0]), **changes})


def test_context_parallelism_of_a_scan_is_refused():
    with pytest.raises(ConfigError, match="context=2: the exchange of a scan's states is not priced"):
        DerivedCosts(hybrid("M-"), CLUSTER, Layout(context=2))


def test_hybrids_are_read_from_their_configs():
    qwen = Model.from_huggingface(CONFIGS["Qwen/Qwen3-Next-80B-A3B-Instruct"][0])
    assert qwen.pattern == "[GE][GE][GE][*E]" * 12
    kimi = Model.from_huggingface(CONFIGS["moonshotai/Kimi-Linear-48B-A3B-Base"][0])
    assert kimi.pattern.startswith("[K-][KE][KE][+E]")
    maverick = Model.from_huggingface(CONFIGS["meta-llama/Llama-4-Maverick-17B-128E"][0])
    assert maverick.pattern == "[*-][*E]" * 24


def bytes_at_boundaries(partition, stages, **changes):
    model = Model(num_layers=24, hidden=1024, heads=8, vocabulary=32000, sequence=2048, **changes)
    costs = DerivedCosts(model, CLUSTER, Layout(partition=partition))
    return costs.table(build("1f1b", devices=stages, microbatches=8)).transfer_bytes / (2 * 2048 * 1024)


def test_residual_streams_cross_every_boundary_until_the_final_norm():
    """An embedding and a head on stages of their own; with modules the streams end with the last block."""
    forward, backward = bytes_at_boundaries("E|t*12|t*12|L", 4, residual_streams=4)
    assert forward.tolist() == [4, 4, 4, 1]
    assert backward.tolist() == [1, 4, 4, 4]
    assert bytes_at_boundaries("Et*12|t*12|mL", 3, residual_streams=4, prediction_layers=1)[0].tolist() == [4, 1, 1]


def test_streams_are_mixed_around_each_sublayer():
    """Megatron-LM, hyper_connection.py: mapping_proj, bias and three alphas; (8 n + 2) h values pass, not 3 h."""
    sizes = {"num_layers": 2, "hidden": 1024, "heads": 8, "vocabulary": 32000, "sequence": 2048}
    plain, mixed, n, h, s = Model(**sizes), Model(**sizes, residual_streams=4), 4, 1024, 2048
    weights = n * n + 2 * n
    assert mixed.parameters - plain.parameters == 2 * 2 * (n * h * weights + weights + 3)
    (_, one, *_), (_, other, *_) = plain.layers, mixed.layers
    assert other.forward - one.forward == 2 * 2 * s * n * h * weights
    moved = other.operators.other_bytes - one.operators.other_bytes
    assert moved == 2 * 2 * s * ((8 * n + 2 - 3) * h + 20 * 2 * 3 * n * n)
    assert other.activation_bytes() - one.activation_bytes() == 2 * 2 * s * ((n + 1) * h + weights)
    assert other.activation_bytes() - other.activation_bytes(recompute="streams") == 2 * 2 * s * (n + 1) * h
    assert other.activation_bytes(recompute="full") == n * one.activation_bytes(recompute="full")
    costs = DerivedCosts(mixed, CLUSTER, Layout())
    again = costs.repeated_seconds(other, "streams")
    assert 0 < again < costs.work(other).others
    assert costs.repeated_seconds(one, "streams") == 0


def test_residuals_of_earlier_blocks_are_mixed_before_each_sublayer():
    """Kimi K3: the third of blocks of two reads two residuals and the running sum, with two vectors to weigh them."""
    sizes = {"num_layers": 6, "hidden": 1024, "heads": 8, "vocabulary": 32000, "sequence": 2048}
    plain, mixed = Model(**sizes), Model(**sizes, residual_block=2)
    for index, count in enumerate([1, 2, 2, 3, 3, 4]):
        one, other = plain.layers[1 + index], mixed.layers[1 + index]
        assert other.operators.other_bytes - one.operators.other_bytes == 2 * 2 * 2048 * 1024 * (
            4 * count + 1 if count > 1 else 0
        )
        assert other.parameters - one.parameters == (2 * 2 * 1024 if count > 1 else 0)


def test_residuals_by_block_grow_from_stage_to_stage():
    """Kimi K3: 1 + ceil(layer / block) activations; Primus, kimi_k3_block.py, gives [0, 1, 1, 1, 1, 2, 2, 2] for 4."""
    model = Model(num_layers=8, hidden=64, heads=8, vocabulary=128, sequence=64, residual_block=4)
    assert [boundary_width(model, layer) - 1 for layer in range(8)] == [0, 1, 1, 1, 1, 2, 2, 2]
    assert bytes_at_boundaries("Et*6|t*6|t*6|t*6L", 4, residual_block=6)[0].tolist() == [2, 3, 4, 1]
    assert bytes_at_boundaries("Et*5|t*8|t*11L", 3, residual_block=12)[0].tolist() == [2, 3, 1]


def test_outputs_of_prediction_modules_travel_beside_the_last_block():
    assert bytes_at_boundaries("Et*24|m|m|L", 4, prediction_layers=2)[0].tolist() == [1, 2, 3, 1]


def test_an_output_travels_to_the_stage_of_its_own_head():
    """Stages of Megatron-LM, pull request 5318: of 4 outputs the first heads take 2, and 2 go on."""
    forward, backward = bytes_at_boundaries("E|t*24m|m|m|LL|LL", 6, prediction_layers=3)
    assert forward.tolist() == [1, 2, 3, 4, 2, 1]
    assert backward.tolist() == [1, 1, 2, 3, 4, 2]


def losses_on_stages(partition, stages, **changes):
    model = Model(num_layers=24, hidden=1024, heads=8, vocabulary=32000, sequence=2048, prediction_layers=3, **changes)
    costs = DerivedCosts(model, CLUSTER, Layout(partition=partition))
    return costs, costs.stage_layers(stages)


def test_prediction_modules_and_heads_on_stages_of_their_own():
    """A stage holds the matrix of its heads once, and a norm for each; one with modules has a copy of the embedding."""
    s, h, vocabulary = 2048, 1024, 32000
    costs, stages = losses_on_stages("E|t*24m|m|m|LL|LL", 6)
    module, loss = s * h * (4 * h + 24 * h + 2 * s), 2 * s * h * vocabulary
    assert [sum(layer.forward for layer in stage) for stage in stages[2:]] == [module, module, 2 * loss, 2 * loss]
    parameters = [costs.gpu_parameters(stage)[0] for stage in stages[2:]]
    assert parameters == [14 * h * h + 8 * h + vocabulary * h] * 2 + [vocabulary * h + 4 * h] * 2
    assert [sum(layer.logits for layer in stage) for stage in stages] == [0] * 4 + [2 * s * vocabulary] * 2
    assert [costs.backward_bytes(stage, "none") for stage in stages[2:]] == [
        0, 0, *[2 * s * vocabulary * costs.layout.chosen("loss_bytes")] * 2,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("partition", "copies", "tied_copies"),
    [
        ("Et*24m*3L*4", 0, 0),
        ("Et*24m*3|L", 0, 1),
        ("Et*24m*3|L*4", 0, 1),
        ("E|t*24m|m|m|L", 3, 4),
        ("E|t*24m|m|m|LL|LL", 4, 5),
        ("Et*12|t*12mm|mL|L|L|L", 5, 5),
    ],
)
@pytest.mark.parametrize("tied", [False, True])
def test_the_stages_together_are_the_model_wherever_its_losses_are(partition, copies, tied_copies, tied):
    """Further stages with a head hold a copy of its matrix, those with modules one of the embedding's; tied, of one."""
    whole, joined = losses_on_stages("Et*24m*3L", 1, tied_embeddings=tied)
    costs, stages = losses_on_stages(partition, partition.count("|") + 1, tied_embeddings=tied)
    layers = [layer for stage in stages for layer in stage]
    for amount in ("forward", "input_grad", "weight_grad", "logits"):
        assert sum(getattr(one, amount) for one in layers) == sum(getattr(one, amount) for one in joined[0])
    assert sum(one.activation_bytes(4) for one in layers) == sum(one.activation_bytes(4) for one in joined[0])
    matrix = 32000 * 1024
    parameters = sum(costs.gpu_parameters(stage)[0] for stage in stages)
    assert parameters == whole.gpu_parameters(joined[0])[0] + (tied_copies if tied else copies) * matrix


def test_copies_on_the_same_devices_share_their_gradients():
    """ZB-V and DualPipe have the first and the last stage on the same devices."""
    for name in ("zb-v", "dualpipe"):
        schedule = build(name, devices=4, microbatches=8)
        costs = DerivedCosts(
            Model(num_layers=24, hidden=1024, heads=8, vocabulary=32000, sequence=2048, tied_embeddings=True),
            CLUSTER, Layout(),
        )  # fmt: skip
        copies = np.bincount(schedule.holdings[:, 1]).tolist()
        own = np.array(costs.for_stages(schedule.num_stages, 4, copies).optimizer_step)
        assert costs.table(schedule).optimizer_seconds == pytest.approx(own)


def test_two_kinds_of_residuals_are_rejected_together():
    with pytest.raises(ConfigError, match="residual_block=12 and residual_streams=4 exclude each other"):
        Model(num_layers=8, hidden=64, heads=8, vocabulary=128, sequence=64, residual_block=12, residual_streams=4)
