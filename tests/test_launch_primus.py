"""Primus's experiments: what is printed is what was simulated, and what users run is read back."""

import random
import re

import pytest
import yaml
from command_line import LLAMA
from command_line import ppsim as run
from test_launch_megatron import CASES, EXPERTS, LATENT

import ppsim
from ppsim.config import as_config
from ppsim.frameworks import LAUNCH_OPTIONS, SCHEDULES, SCHEDULES_OF_LAUNCH, frameworks_running, options_of
from ppsim.launch import read_launch

RECORD = LAUNCH_OPTIONS["Primus"]
SPLIT = {"schedule.devices": 4, "schedule.microbatches": 16, "layout.overlap_data": False}


def random_sizes(seed):
    """Return an uneven partition under a schedule of Primus, on an odd or even number of devices."""
    draw = random.Random(seed)  # noqa: S311 - sizes of a test
    name, devices, data = draw.choice(SCHEDULES["Primus"]), draw.choice([2, 3, 4, 5]), draw.choice([1, 2, 3])
    v = {"interleaved-1f1b": draw.choice([2, 3]), "zb-v": 2}.get(name, 1)
    blocks = [draw.randint(1, 4) for _ in range(devices * v)]
    microbatches = devices * draw.randint(2, 5) if name == "interleaved-1f1b" else draw.randint(2 * devices - 1, 30)
    return SPLIT | {
        "schedule.name": name, "schedule.devices": devices, "schedule.microbatches": microbatches,
        "schedule.stages_per_device": v, "model.num_layers": sum(blocks), "layout.partition": blocks,
        "layout.data": data, "layout.microbatch_size": draw.choice([1, 3]), "layout.bf16_gradients": data > 1,
        "layout.distributed_optimizer": data > 2, "model.dropout": devices > 3,
    }  # fmt: skip


PRINTED = [
    *(one for one in CASES if one.id not in ("combined", "delta_nets", "llama_4")),
    *(
        pytest.param(lambda n=n: ppsim.load_config(LLAMA, overrides=random_sizes(n)), id=f"random {n}")
        for n in range(24)
    ),
]


def overrides(text):
    return yaml.safe_load(text)["modules"]["pre_trainer"]["overrides"]


@pytest.mark.parametrize("make", PRINTED)
def test_a_printed_experiment_has_known_keys_and_reads_back_as_the_same_run(make):
    config = make()
    text = ppsim.to_launch(config, "Primus")
    assert overrides(text).keys() <= options_of(RECORD).keys()
    back = ppsim.from_launch("Primus", text)
    gpus = back.data["hardware"].get("gpus")  # also if the call gives those that the text notes
    assert ppsim.from_launch("Primus", text, gpus=gpus).data == back.data
    assert back.build() == config.build()
    ours, theirs = config.simulate(), back.simulate()
    assert theirs.layout_string == ours.layout_string
    assert theirs.makespan == ours.makespan
    assert theirs.peak_memory == pytest.approx(ours.peak_memory, rel=1e-12)


def test_every_schedule_that_it_runs_is_among_the_random_sizes():
    assert {random_sizes(n)["schedule.name"] for n in range(24)} == {*SCHEDULES["Primus"]}


@pytest.mark.slow
@pytest.mark.parametrize("make", PRINTED)
def test_primus_loads_a_printed_experiment_and_orders_its_lists(make, tmp_path, monkeypatch):
    """Clones of AMD-AGI/Primus and of the Megatron-LM that it names must be on PYTHONPATH."""
    arguments = pytest.importorskip("megatron.training.arguments")
    loaded = pytest.importorskip("primus.core.config.primus_config")
    builder = pytest.importorskip("primus.backends.megatron.argument_builder").MegatronArgBuilder()
    factory = pytest.importorskip("primus.core.pipeline_parallel.scheduler.schedule_table_factory")
    config, path = make(), tmp_path / "experiment.yaml"
    schedule, layout = config.build(), config.costs.layout
    path.write_text(ppsim.to_launch(config, "Primus"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(arguments, "get_device_arch_version", lambda: 9)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda *_: (9, 0))
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "8" if layout.reduces_blocks else "1")
    module = loaded.get_module_config(loaded.load_primus_config(path), "pre_trainer")
    parsed = builder.update(module.params).finalize()
    parsed.world_size, parsed.rank, parsed.tokenizer_type = config.costs.gpus(schedule.devices), 1, "NullTokenizer"
    parsed.sequence_parallel &= parsed.tensor_model_parallel_size > 1
    arguments.validate_args(parsed)
    assert parsed.data_parallel_size == layout.data
    assert parsed.micro_batch_size == layout.microbatch_size
    stages = parsed.virtual_pipeline_model_parallel_size or 1
    assert stages == schedule.num_stages // schedule.devices
    if schedule.name in ("zb-h1", "zb-v"):
        sizes = schedule.devices, stages, schedule.microbatches
        table = factory.produce_schedule_instance(module.params.pp_algorithm, *sizes).generate_schedule_table()
        kinds = {"F": "F", "B": "I", "W": "W"}
        lists = []
        for device, nodes in enumerate(table):
            computed = [(node.chunk, kinds.get(node.func_type.name), node.mini_batch) for node in nodes]
            homes = device, 2 * len(table) - 1 - device
            lists.append([f"{homes[chunk]}{kind}{number}" for chunk, kind, number in computed if kind])
        assert lists == schedule.orders()


REJECTED = {
    "search": ({"schedule.name": "v-half"}, "schedule.name=v-half"),
    "few": ({"schedule.name": "zb-v", "schedule.microbatches": 6}, "zbv-formatted needs at least 7"),
    "few lists": ({"schedule.name": "zb-h1", "schedule.microbatches": 3}, "zero-bubble needs at least 4"),
    "one device": ({"schedule.name": "zb-h1", "schedule.devices": 1}, "schedule.devices=1"),
    "overlap": ({"schedule.name": "zb-v", "layout.data": 2, "layout.overlap_data": True}, "overlap_grad_reduce"),
    "collectives": (
        {"schedule.name": "zb-v", "layout.tensor": 2, "layout.sequence_parallel": True, "layout.overlap_tensor": True},
        "tp_comm_overlap",
    ),
    "recompute": ({"schedule.name": "zb-h1", "layout.recompute": "full"}, "layout.recompute=full"),
    "fsdp": (
        {"schedule.name": "zb-h1", "layout.data": 2, "layout.sharded": True, "layout.sharded_by": "block"},
        "excludes FSDP",
    ),
    "windows": ({"schedule.name": "zb-v", "model.window": 1024, "model.window_period": 2}, "in a V it numbers"),
    "loss": ({"layout.loss_bytes": 8}, "layout.loss_bytes=8"),
    "no key": ({"schedule.devices": 1, "model.residual_streams": 4}, "it has no enable_mhc_connections"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "named"), REJECTED.values(), ids=REJECTED)
def test_what_primus_cannot_run_is_named(changes, named):
    with pytest.raises(ppsim.ConfigError, match=named):
        ppsim.to_launch(ppsim.load_config(LLAMA, overrides=SPLIT | changes), "Primus")


def test_a_v_takes_no_prediction_modules():
    latent = as_config(EXPERTS).changed({**LATENT, **SPLIT, "schedule.name": "zb-v", "layout.framework": "primus"})
    with pytest.raises(ppsim.ConfigError, match="its V has no prediction modules"):
        ppsim.to_launch(latent, "Primus")


SIZES = {"num_layers": 16, "hidden": 2048, "heads": 16, "sequence": 2048, "vocabulary": 32000, "norm": "rmsnorm"}
JOB = {
    "hardware": {"device": "H100 SXM", "link": "NVLink 4", "gpus_per_node": 8, "gpus": 8}, "batch": 32,
    "layout": {"microbatch_size": 1, "tensor": 1, "context": 1}, "schedule": {"devices": 4},
}  # fmt: skip
EVEN = {"layout.partition": ["even"], "layout.recompute": ["none"]}


@pytest.mark.parametrize(("batch", "split"), [(32, {"zb-h1", "zb-v"}), (12, {"zb-h1"})])
def test_every_idea_of_choose_for_primus_is_an_experiment(batch, split):
    """A split backward is priced without overlaps, recompute and FSDP; a V needs 2p - 1 microbatches."""
    found = ppsim.choose({**JOB, "model": SIZES, "batch": batch}, framework="Primus", top=12)
    assert split == {name for one in found.ranked if (name := one.changes["schedule.name"]).startswith("zb")}
    for one in found.ranked:
        assert "overrides:" in ppsim.to_launch(found.space.config.changed(one.changes), "Primus")


@pytest.mark.parametrize(
    ("model", "runners", "split"),
    [
        ({"prediction_layers": 1}, (None, "Primus"), {"zb-h1"}),
        ({"window": 512, "window_period": 2}, (None,), {"zb-h1"}),
        ({"pattern": "*-" * 8, "num_layers": 16}, (None,), set()),
        ({"experts": 8, "experts_per_token": 2, "expert_ffn": 512}, ("PyTorch",), {"zb-v"}),
    ],
    ids=["prediction", "windows", "pattern", "experts"],
)
def test_a_framework_that_an_answer_names_launches_it(model, runners, split):
    """Searches, advice and launch files read one rule of what a model or a layout excludes."""
    names = {runner: name for name, runner in SCHEDULES_OF_LAUNCH.items()}
    for runner in runners:
        job = {**JOB, "model": {**SIZES, **model}}
        found = ppsim.choose(job, framework=runner, only=EVEN | ({"layout.expert": [2]} if "experts" in model else {}))
        offered = [found.space.config.changed(one.changes) for one in found.ranked]
        assert split == {one.schedule["name"] for one in offered if one.schedule["name"] in ("zb-h1", "zb-v")}
        for config in offered:
            wanted = [runner] if runner else ["Megatron-LM", "Primus"]
            running = [one for one in frameworks_running(config.schedule["name"], "experts" in model) if one in wanted]
            assert config.simulate().iteration_time in [launched_step(config, names[one]) for one in running]


def test_advice_offers_no_schedule_that_the_model_excludes():
    config = {**JOB, "model": {**SIZES, "prediction_layers": 1}}
    config["schedule"] = {"name": "1f1b", "devices": 4, "microbatches": 16}
    config["layout"] = {"data": 2, "microbatch_size": 1}
    del config["batch"]
    found = ppsim.advise(config)
    assert "its V has no prediction modules" in found.refused["zb-v"]
    assert "zb-h1" in [one.what for one in found.advice]


@pytest.mark.parametrize("framework", ["Megatron-LM", "Primus", "torchtitan"])
@pytest.mark.parametrize("overlap", [None, False])
def test_tensor_parallelism_alone_has_a_launch_file(framework, overlap):
    """Without sequence parallelism no flag of Megatron-LM says what overlaps."""
    layout, schedule = {"tensor": 8, "overlap_tensor": overlap}, {"name": "1f1b", "devices": 1, "microbatches": 4}
    if framework == "torchtitan":
        layout |= {"framework": "torchtitan"}
    config = as_config({"model": SIZES, "hardware": JOB["hardware"], "layout": layout, "schedule": schedule})
    assert launched_step(config, framework) == config.simulate().iteration_time


def launched_step(config, framework):
    """Return the step time of what a launch file gives; None if the framework has none for the config."""
    try:
        return ppsim.from_launch(framework, ppsim.to_launch(config, framework)).simulate().iteration_time
    except ppsim.ConfigError:
        return None


def test_every_model_preset_is_read():
    for name in RECORD["models"]:
        text = EXPERIMENT.replace("llama3.1_8B", name).replace("num_layers: 16", "moe_per_layer_logging: false")
        text = text.replace("_size: 4", "_size: 1").replace("rank: 2", "rank: 1")
        assert ppsim.from_launch("Primus", text, gpus=16).costs.model.num_layers > 3


ZBV = "      patch_primus_pipeline: true\n      pp_algorithm: zbv-formatted\n"
EXPERIMENT = """\
work_group: ${PRIMUS_TEAM:amd}
modules:
  pre_trainer:
    framework: megatron
    config: pre_trainer.yaml
    model: ${PRIMUS_MODEL:llama3.1_8B}.yaml
    overrides:
      num_layers: 16
      wandb_project: "pretrain"
      micro_batch_size: ${PRIMUS_MBS:2}
      global_batch_size: 256
      seq_length: 8192
      pipeline_model_parallel_size: 4
      num_virtual_stages_per_pipeline_rank: 2
      overlap_grad_reduce: ${OVERLAP:false}
      sequence_parallel: 1
      use_distributed_optimizer: false
      turbo_sync_free_moe_stage: 0
      my_key: 3
"""


@pytest.mark.parametrize("kernel", ["use_turbo_grouped_gemm", "moe_use_legacy_grouped_gemm", "use_turbo_rms_norm"])
def test_one_kernel_has_the_products_of_experts_where_an_experiment_names_it(kernel):
    grouped = as_config(EXPERTS).changed({"layout.grouped_experts": True, "layout.framework": "primus"})
    printed = ppsim.to_launch(grouped, "Primus")
    assert overrides(printed)["use_turbo_grouped_gemm"] is True
    read = ppsim.from_launch("Primus", printed.replace("use_turbo_grouped_gemm", kernel))
    assert read.costs.layout.groups_experts == (kernel != "use_turbo_rms_norm")


def test_a_users_experiment_becomes_a_config():
    reading = read_launch("Primus", EXPERIMENT, gpus=16)
    config = reading.config()
    model, layout = config.costs.model, config.costs.layout
    assert (model.num_layers, model.hidden, model.key_value_heads, model.positions) == (16, 4096, 8, "rotary")
    assert (layout.data, layout.microbatch_size, layout.framework) == (4, 2, "primus")
    assert not layout.distributed_optimizer  # pre_trainer.yaml has it
    assert (config.build().name, config.build().microbatches) == ("interleaved-1f1b", 32)
    assert reading.left_out == ["wandb_project"]
    assert reading.unknown == ["my_key: no option of Primus v26.5.1"]
    off = EXPERIMENT.replace("my_key: 3", "moe_shared_expert_overlap: false")
    assert read_launch("Primus", off, gpus=16).left_out == ["wandb_project", "moe_shared_expert_overlap"]
    unset = EXPERIMENT.replace("my_key: 3", "virtual_pipeline_model_parallel_size: null")
    assert read_launch("Primus", unset, gpus=16).unknown == []


def test_the_published_experiment_of_deepseek_v3_on_mi355x_is_read():
    """examples/megatron/configs/MI355X/deepseek_v3-BF16-pretrain.yaml of fd1eeab; its script gives mtp_num_layers 0."""
    keys = """\
      pipeline_model_parallel_layout: "Et*1|t*1|(t*2|)*29t*1,L"
      recompute_granularity: full
      recompute_layer_ids: "0,3,4,7,8,11,12,15,19,23,31,32,35,36,39,40,43,44,47,48,51"
      use_precision_aware_optimizer: true
      main_grads_dtype: bf16
      turbo_sync_free_moe_stage: 1
      moe_use_legacy_grouped_gemm: true
"""
    text = re.sub(r" *num_layers: 16\n| *num_virtual.*\n| *turbo_sync.*\n *my_key.*\n", "", EXPERIMENT) + keys
    text = text.replace("llama3.1_8B", "deepseek_v3").replace("size: 4", "size: 16")
    reading = read_launch("Primus", text, gpus=256)
    model, layout = reading.config().costs.model, reading.config().costs.layout
    assert (model.prediction_layers, reading.config().schedule["stages_per_device"]) == (0, 2)
    assert "mtp_num_layers 0: the layout has no m" in " ".join(reading.assumed)
    assert (len(layout.recompute), [*layout.recompute].count("full"), layout.recompute_blocks) == (32, 21, 1)
    assert (layout.bf16_gradients, layout.fused_router, layout.expert_exchange) == (True, True, "all-to-all")
    assert reading.unknown == []
    uneven = read_launch("Primus", text.replace("0,3,4,7", "0,3,4,5,7"), gpus=256)
    assert uneven.unknown == ["recompute_layer_ids: priced as 2 layers of each stage that has any"]
    with pytest.raises(ppsim.CostError, match="has 1; write m 1 times"):  # as Megatron-LM
        read_launch("Primus", text + "      mtp_num_layers: 1\n", gpus=256).config().build()


@pytest.mark.parametrize(
    "keys",
    [
        "window_size: [128, 0]\n      window_attn_skip_freq: [1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0]",
        "use_sink_attention: true\n      sink_sliding_window: 128\n      sink_window_even_layers_only: true",
    ],
)
def test_a_window_in_every_second_block_is_read(keys):
    model = ppsim.from_launch("Primus", EXPERIMENT.replace("my_key: 3", keys), gpus=16).costs.model
    assert (model.window, model.window_period) == (129, 2)


@pytest.mark.parametrize(
    ("keys", "name", "unknown"),
    [
        ("patch_primus_pipeline: true\n      pp_algorithm: zbv-formatted", "zb-v", 0),
        ("patch_primus_pipeline: true\n      pp_algorithm: v-half", "v-half", 1),
        ("patch_primus_pipeline: true", "interleaved-1f1b", 0),
        ("patch_zero_bubble: true\n      zero_bubble_v_schedule: true", "v-half", 1),
        ("patch_zero_bubble: true\n      num_virtual_stages_per_pipeline_rank: 1", "zb-h1", 1),
        ("pp_algorithm: zbv-formatted", "interleaved-1f1b", 0),
    ],
)
def test_the_order_is_that_of_the_patch_which_is_on(keys, name, unknown):
    text = re.sub(r" *turbo_sync.*\n *my_key.*\n", f"      {keys}\n", EXPERIMENT)
    text = text.replace("      num_virtual_stages_per_pipeline_rank: 2\n", "", "num_virtual" in keys)
    reading = read_launch("Primus", text, gpus=16)
    assert reading.config().build().name == name
    assert len(reading.unknown) == unknown


@pytest.mark.parametrize(
    ("text", "named"),
    [
        (EXPERIMENT.replace("framework: megatron", "framework: torchtitan"), "only megatron"),
        (EXPERIMENT.replace("llama3.1_8B", "mine"), "model 'mine' is not known here"),
        (EXPERIMENT.replace("llama3.1_8B", "llama3.1_9B"), "near: llama3.1_8B or"),
        (EXPERIMENT.replace(":2}", "}"), "micro_batch_size: its value comes from a variable"),
        (
            EXPERIMENT.replace("global_batch_size: 256", "global_batch_size: 9"),
            "global_batch_size 9 is not a multiple .* use 8 or 16, or",
        ),
        (EXPERIMENT.replace("rank: 2", "rank: 1") + ZBV, "zb-v: stages_per_device=1 is not allowed"),
        ("--num-layers 8", "holds no `modules"),
        ("modules: [", "not YAML|line 1"),
    ],
)
def test_an_experiment_that_cannot_be_read_is_an_error_that_names_why(text, named):
    with pytest.raises(ppsim.ConfigError, match=named):
        ppsim.from_launch("Primus", text, gpus=16).build()


def test_the_command_reads_an_experiment(tmp_path):
    path, config = tmp_path / "experiment.yaml", tmp_path / "job.yaml"
    path.write_text(EXPERIMENT)
    outcome = run("import", "primus", path, "--gpus", "16", "-o", config)
    assert "PP 4, DP 4, interleaved-1f1b x2, 32 microbatches; from Primus" in outcome.out
    assert "my_key: no option of Primus v26.5.1" in outcome.out
    assert ppsim.load_config(config).build().devices == 4
    assert "assumed   device MI300X" in outcome.out


@pytest.mark.parametrize(("batch", "gpus"), [(256, "8 GPUs, the runner's default"), (6, "4 GPUs, the fewest for its")])
def test_without_a_number_of_gpus_the_runner_starts_a_node_if_the_batch_divides(batch, gpus):
    text = EXPERIMENT.replace("global_batch_size: 256", f"global_batch_size: {batch}")
    assert any(one.startswith(gpus) for one in read_launch("Primus", text).assumed)
