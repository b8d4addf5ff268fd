"""Models read from Hugging Face configurations."""

import json

import pytest
from published_models import CONFIGS, counted_parameters

from ppsim import Cluster, ConfigError, DerivedCosts, Layout, Model, load_config
from ppsim.costs import find_device, find_link

LLAMA = CONFIGS["meta-llama/Meta-Llama-3-8B"][0]


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_counted_from_a_config_are_the_published_count(name):
    """Exact counts differ by biases of routers and a few norms; Nemotron-H is published as 56 billion."""
    published = CONFIGS[name]
    model = Model.from_huggingface(published.config)
    exact = isinstance(published.parameters, int)
    assert counted_parameters(name, model) == pytest.approx(published.parameters, rel=1e-4 if exact else 0.006)
    assert model.active_parameters == pytest.approx(published.active or model.active_parameters, rel=0.02)
    assert (model.active_parameters == model.parameters) == (model.experts == 0)


def test_a_path_a_folder_and_a_mapping_give_the_same_model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    model = Model.from_huggingface(LLAMA)
    assert Model.from_huggingface(tmp_path) == Model.from_huggingface(tmp_path / "config.json") == model
    assert model.sequence == 4096
    assert Model.from_huggingface(LLAMA, sequence=8192, attention="full").sequence == 8192


def test_experts_are_counted_by_the_name_that_transformers_5_writes():
    old = CONFIGS["Qwen/Qwen3-30B-A3B"][0]
    new = {"num_local_experts" if name == "num_experts" else name: value for name, value in old.items()}
    assert Model.from_huggingface(new) == Model.from_huggingface(old)


def test_a_yaml_config_names_the_file_and_changes_what_it_says(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "case.yaml").write_text(
        "model: {huggingface: config.json, sequence: 1024}\n"
        "hardware: {device: H100 SXM, link: NVLink 4}\n"
        "schedule: {name: 1f1b, devices: 4, microbatches: 8}\n"
    )
    config = load_config(tmp_path / "case.yaml")
    assert config.model == Model.from_huggingface(LLAMA, sequence=1024)
    assert config.simulate().makespan > 0


@pytest.mark.parametrize("field", ["num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads"])
def test_a_missing_field_is_named(field):
    config = {key: value for key, value in LLAMA.items() if key != field}
    with pytest.raises(ConfigError, match=f"field '{field}' is missing; a config of model_type 'llama' needs it"):
        Model.from_huggingface(config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "bert"}, "model_type 'bert', which is not known, but .*The known ones are llama, mistral"),
        ({"model_type": None}, "has no model_type, but --approximate .*. The known ones are"),
        ({"hidden_size": "4096"}, "hidden_size='4096' must be a whole number"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings='no' must be true or false"),
        ({"num_key_value_heads": 5}, "key_value_heads=5 does not divide heads=32"),
        ({"model_type": "mixtral"}, "field 'num_local_experts' is missing"),
        (
            {"model_type": "qwen3_moe", "decoder_sparse_step": 2, "moe_intermediate_size": 8},
            "decoder_sparse_step and mlp",
        ),
    ],
)
def test_a_config_that_cannot_be_read_is_one_clear_error(changes, message):
    with pytest.raises(ConfigError, match=message):
        Model.from_huggingface(LLAMA | changes)


def test_an_unknown_architecture_names_the_fields_that_it_lacks():
    with pytest.raises(
        ConfigError, match=r"^the config: has model_type 'gpt2', .* and no num_hidden_layers, hidden_size"
    ):
        Model.from_huggingface({"model_type": "gpt2", "n_embd": 768})


def test_the_file_is_named_once():
    with pytest.raises(ConfigError, match=r"^the config: field 'num_local_experts'"):
        Model.from_huggingface(LLAMA | {"model_type": "mixtral"})


@pytest.mark.parametrize(
    ("text", "message"), [("{", "no JSON at line 1"), ("[" * 100_000, "nested too deeply"), ("[1]", "is not a config")]
)
def test_a_file_that_is_no_config_is_one_clear_error(tmp_path, text, message):
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        Model.from_huggingface(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        Model.from_huggingface(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="3 is not a config; give the path"):
        Model.from_huggingface(3)
    with pytest.raises(ConfigError, match=r"Model\(colour=...\): there is no such option"):
        Model.from_huggingface(LLAMA, colour="red")


def _windows(name, **changes):
    """Per block: whether its attention costs less than that of all tokens."""
    model = Model.from_huggingface(CONFIGS[name][0] | changes)
    whole = Model.from_huggingface(CONFIGS[name][0] | changes | {"sliding_window": None})
    blocks = slice(1, 1 + model.num_layers)
    return [one.forward < other.forward for one, other in zip(model.layers[blocks], whole.layers[blocks], strict=True)]


def test_a_sliding_window_is_in_the_blocks_that_the_architecture_gives_it():
    assert _windows("mistralai/Mistral-7B-v0.1", sliding_window=1024) == [True] * 32
    assert _windows("mistralai/Mixtral-8x7B-v0.1", sliding_window=1024) == [True] * 32
    assert _windows("google/gemma-2-2b", sliding_window=1024) == [True, False] * 13
    assert _windows("google/gemma-3-1b-pt") == ([True] * 5 + [False]) * 4 + [True] * 2
    assert (
        _windows("google/gemma-3-1b-pt", layer_types=["sliding_attention", "full_attention"] * 13) == [True, False] * 13
    )


def test_a_gpt_oss_has_windows_in_every_other_block_biases_and_clamped_experts():
    listed, counted = CONFIGS["openai/gpt-oss-20b"][0], CONFIGS["openai/gpt-oss-120b"][0]  # with layer_types, without
    assert _windows("openai/gpt-oss-20b", max_position_embeddings=4096) == [True, False] * 12
    model = Model.from_huggingface(counted)
    assert model == Model.from_huggingface(
        listed | {"num_hidden_layers": 36, "num_local_experts": 128, "layer_types": None}
    )
    assert (model.window, model.window_period, model.experts_per_token, model.expert_ffn) == (128, 2, 4, 2880)
    assert all([model.attention_bias, model.projection_bias, model.mlp_bias, model.clamped])
    assert not Model.from_huggingface(counted | {"attention_bias": False}).projection_bias


def test_a_qwen_has_its_window_only_where_it_is_switched_on():
    qwen = {"sliding_window": 1024, "max_window_layers": 28}
    assert not any(_windows("Qwen/Qwen2.5-7B", **qwen))
    assert not any(_windows("Qwen/Qwen2.5-7B", use_sliding_window=True, **qwen))  # from block 28 on; it has 28
    assert all(_windows("Qwen/Qwen2.5-7B", use_sliding_window=True, sliding_window=1024, max_window_layers=0))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["sliding_attention"]}, "layer_types=.* must list one word for each of the 28 blocks"),
        ({"sliding_window": -1}, "sliding_window=-1 must be a whole number of at least 0"),
        ({"max_window_layers": 0, "num_hidden_layers": 10**12}, "num_layers=1000000000000"),
    ],
)
def test_windows_of_no_list_of_blocks_are_one_clear_error(changes, message):
    qwen = CONFIGS["Qwen/Qwen2.5-7B"][0] | {"use_sliding_window": True, "sliding_window": 1024}
    with pytest.raises(ConfigError, match=message):
        Model.from_huggingface(qwen | changes)


def test_windows_in_any_order_are_a_pattern():
    qwen = CONFIGS["Qwen/Qwen2.5-7B"][0] | {"use_sliding_window": True, "sliding_window": 1024, "max_window_layers": 14}
    model = Model.from_huggingface(qwen)
    assert (model.pattern, model.window) == ("[*-]" * 14 + "[W-]" * 14, 1024)
    assert model.parameters == Model.from_huggingface(CONFIGS["Qwen/Qwen2.5-7B"][0]).parameters


def test_an_unknown_architecture_is_read_as_the_nearest_one_on_request():
    config = CONFIGS["moonshotai/Kimi-K2-Base"][0] | {"model_type": "kimi_k9"}
    with pytest.raises(ConfigError, match=r"model_type 'kimi_k9', .*--approximate .*`approximate: true`"):
        Model.from_huggingface(config)
    assert Model.from_huggingface(config, approximate=True).parameters == CONFIGS["moonshotai/Kimi-K2-Base"][1] - 23_040
    cluster = Cluster(find_device("H100 SXM"), find_link("NVLink 4"), find_link("InfiniBand NDR"))
    costs = DerivedCosts(Model.from_huggingface(config, approximate=True), cluster, Layout())
    like = "its config is read like deepseek_v2, deepseek_v3, kimi_k2"
    assert costs.assumptions[0] == f"model_type 'kimi_k9' is not known: {like}"
    known = DerivedCosts(Model.from_huggingface(LLAMA), cluster, Layout())
    assert not any("not known" in line for line in known.assumptions)
    with pytest.raises(ConfigError, match="and no num_hidden_layers"):
        Model.from_huggingface({"model_type": "gpt2"}, approximate=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_mtp_modules": 3, "shared_width_size": 8}, "like llama, without num_mtp_modules, shared_width_size"),
        ({"num_experts": 4}, "cannot be read like the nearest one, qwen3_moe: field 'num_experts_per_tok' is missing"),
        ({"intermediate_size": None}, "which is not known, and no intermediate_size"),
    ],
)
def test_an_unknown_architecture_names_what_the_nearest_one_does_not_understand(changes, message):
    with pytest.raises(ConfigError, match=message):
        Model.from_huggingface(LLAMA | {"model_type": "new"} | changes)


def test_the_part_for_text_of_a_model_with_images_takes_what_the_whole_config_says_about_its_head():
    text = {key: value for key, value in LLAMA.items() if key != "tie_word_embeddings"}
    whole = {"model_type": "llava", "text_config": text, "tie_word_embeddings": True}
    assert Model.from_huggingface(whole) == Model.from_huggingface(text | {"tie_word_embeddings": True})


def test_kimi_k3_has_experts_in_a_narrow_space_gates_and_residuals_of_blocks():
    linear = CONFIGS["moonshotai/Kimi-Linear-48B-A3B-Base"].config
    gated = linear | {"mla_use_output_gate": True, "routed_expert_hidden_size": 1152, "attn_res_block_size": 12}
    gated |= {"linear_attn_config": linear["linear_attn_config"] | {"use_full_rank_gate": True}}
    model, plain = Model.from_huggingface(gated), Model.from_huggingface(linear)
    assert (model.expert_hidden, model.residual_block, model.attention_gate, model.full_gate) == (1152, 12, True, True)
    letters = [one.block_letters for one in (model, plain)]
    assert letters[0] == letters[1]
    latent, kda = (letters[0].index(one) for one in ("+E", "K-"))
    wider = [one.layers[1 + kda].parameters for one in (model, plain)]
    assert wider[0] - wider[1] == 2304 * 32 * 128 - 128 * (2304 + 32 * 128)
    same = Model.from_huggingface(gated | {"mla_use_output_gate": False})
    assert model.layers[1 + latent].parameters - same.layers[1 + latent].parameters == 2304 * 32 * 128


def test_attention_and_mlp_of_a_gpt_neox_stand_side_by_side():
    neox = CONFIGS["EleutherAI/gpt-neox-20b"][0]
    assert Model.from_huggingface(neox).parallel_block
    assert not Model.from_huggingface(neox | {"use_parallel_residual": False}).parallel_block
