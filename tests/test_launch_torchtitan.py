"""torchtitan's launch command: what is printed is what was simulated; and a config's own YAML."""

import re
import shlex
from dataclasses import make_dataclass

import pytest
from command_line import CONFIGS, LLAMA
from command_line import ppsim as command

import ppsim
from ppsim.config import config_yaml
from ppsim.frameworks import LAUNCH_OPTIONS, options_of
from ppsim.launch import read_launch

RECORD = LAUNCH_OPTIONS["torchtitan"]
CLASSES = {
    "looped-bfs": "LoopedBFS", "interleaved-1f1b": "Interleaved1F1B", "interleaved-zb": "InterleavedZeroBubble",
    "zb-v": "ZBVZeroBubble", "dualpipe-v": "DualPipeV", "gpipe": "GPipe",
}  # fmt: skip
CASES = {
    "1f1b": {},
    "split backward": {"schedule.name": "zb-h1"},
    "v": {"schedule.name": "v-half", "schedule.devices": 2, "schedule.microbatches": 4, "layout.data": 4},
    "four stages": {"schedule.name": "interleaved-1f1b", "schedule.stages_per_device": 4},
    "uneven": {"layout.partition": [3, 4, 4, 4, 4, 5, 5, 3]},
    "sharded": {
        "schedule.devices": 2, "layout.data": 4, "layout.sharded": True, "layout.sharded_by": "block",
        "layout.recompute": "alternate", "layout.microbatch_size": 2,
    },
    "gathered by stage": {
        "schedule.devices": 4, "layout.data": 2, "layout.context": 2, "layout.sharded": True,
        "layout.sharded_by": "stage", "layout.fused": False, "layout.framework": "torchtitan",
    },
    "own sizes": {"model.hidden": 2048, "layout.fp8": "tensor", "schedule.name": "looped-bfs"},
    "tensor": {"schedule.devices": 4, "layout.tensor": 2, "layout.recompute": "full", "schedule.name": "gpipe"},
    "hybrid": {
        "schedule.devices": 1, "layout.data": 16, "layout.sharded": True, "layout.sharded_by": "block",
        "layout.replicas": 2, "hardware.network": "InfiniBand NDR", "hardware.gpus": None,
    },
    "one device": {"schedule.devices": 1, "layout.tensor": 8, "layout.sequence_parallel": True},
    "a compiled loss alone": {"layout.fused": False, "layout.fused_loss": True, "layout.framework": "torchtitan"},
}  # fmt: skip


def loaded(changes):
    return ppsim.load_config(LLAMA, overrides=changes)


def derived(config):
    assert isinstance(config.costs, ppsim.DerivedCosts)
    return config.costs


def words_of(config, version=RECORD["version"]):
    text = ppsim.to_launch(config, f"torchtitan {version}")
    assert f"torchtitan {version}" in text
    return shlex.split(text.partition(" --config ")[2].replace("\\\n", " "))[1:]


def arguments_of(config, version=RECORD["version"]):
    """The arguments of each flag; a bare flag has none."""
    found, values = {}, []
    for word in words_of(config, version):
        if word.startswith(("--", "activation-checkpoint:")):
            values = found[word] = []
        else:
            values.append(word)
    return found


def blocks_of(flags, num_stages, blocks):
    """The blocks per stage that torchtitan builds: named ones, or its split with embedding and head as blocks."""
    if named := flags.get("--parallelism.module_fqns_per_model_part"):
        assert [name for part in named for name in part.split(",")] == [
            "tok_embeddings", *(f"layers.{block}" for block in range(blocks)), "norm", "lm_head",
        ]  # fmt: skip
        return [sum(name.startswith("layers.") for name in part.split(",")) for part in named]
    first, last, size = (
        int(flags[f"--parallelism.pipeline_parallel_{key}"][0])
        for key in ("first_stage_less_layers", "last_stage_less_layers", "layers_per_stage")
    )
    assert -(-(blocks + first + last) // size) == num_stages
    each, more = divmod(blocks + first + last, num_stages)
    return [each + (s < more) - first * (s == 0) - last * (s == num_stages - 1) for s in range(num_stages)]


@pytest.mark.parametrize("version", ["0.3.0", "main"])
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_printed_flags_are_known_to_their_version_and_read_back_as_the_same_run(changes, version):
    config = loaded(changes)
    known = options_of(RECORD, version)
    for flag in arguments_of(config, version):
        if flag.startswith("activation-checkpoint:"):
            assert flag.partition(":")[2] in RECORD["policies"].split()
        else:
            assert flag.removeprefix("--").replace(".no-", ".").replace("-", "_") in known
    text = ppsim.to_launch(config, f"torchtitan {version}")
    back = ppsim.from_launch("torchtitan", text)
    if "csv" in back.schedule:
        back = back.changed(
            {"schedule.csv": None, **{f"schedule.{key}": value for key, value in config.schedule.items()}}
        )
    assert back.build() == config.build()
    ours, theirs = config.simulate(), back.simulate()
    assert theirs.makespan == ours.makespan
    assert theirs.peak_memory == pytest.approx(ours.peak_memory, rel=1e-12)


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_printed_flags_say_what_was_simulated(changes):
    config = loaded(changes)
    flags, layout, schedule = arguments_of(config), derived(config).layout, config.build()

    def size(name):
        return int(flags[f"--{name}"][0])

    assert size("parallelism.pipeline_parallel_degree") == schedule.devices
    assert size("parallelism.tensor_parallel_degree") == layout.tensor
    assert size("training.seq_len") == derived(config).model.sequence
    copies = [size(f"parallelism.data_parallel_{kind}_degree") for kind in ("shard", "replicate")]
    replicas = layout.replicas if layout.sharded else layout.data
    assert copies == [layout.data // replicas, replicas]
    batch = layout.microbatch_size * layout.data * schedule.microbatches
    assert size("training.global_batch_size") == batch
    if schedule.devices == 1:
        return
    assert "--training.disable_cuda_graphs" in flags
    size_of_one = size("parallelism.pipeline_parallel_microbatch_size")
    assert size("training.local_batch_size") // size_of_one == schedule.microbatches
    stages = derived(config).stages(schedule.num_stages)
    blocks = [stage.get("block", 0) for stage in stages]
    assert blocks_of(flags, schedule.num_stages, sum(blocks)) == blocks
    assert flags["--parallelism.pipeline_parallel_schedule"][0] in {"1F1B", *CLASSES.values()}


@pytest.mark.slow
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_torchtitan_parses_printed_flags(changes):
    """The named configs of 0.3.0 need Triton; the sections of its options, the tyro rules and the policies do not."""
    manager = pytest.importorskip("torchtitan.config.manager")
    tyro = pytest.importorskip("tyro")
    configs = pytest.importorskip("torchtitan.config.configs")
    policies = pytest.importorskip("torchtitan.distributed.activation_checkpoint")
    losses = pytest.importorskip("torchtitan.components.loss").ChunkedLossWrapper.Config  # of the named configs

    manager.ConfigManager()
    job = make_dataclass(
        "job",
        [
            ("training", configs.TrainingConfig), ("parallelism", configs.ParallelismConfig),
            ("compile", configs.CompileConfig), ("loss", losses),
            ("activation_checkpoint", policies.ActivationCheckpointingConfig),
        ],
    )  # fmt: skip
    default = job(configs.TrainingConfig(), configs.ParallelismConfig(), configs.CompileConfig(), losses(), None)
    parsed = tyro.cli(job, args=words_of(loaded(changes)), default=default, registry=manager.custom_registry)
    assert parsed.parallelism.pipeline_parallel_degree == loaded(changes).build().devices


ROUTED = {"model.experts": 8, "model.experts_per_token": 2, "model.expert_ffn": 512}


def test_two_passes_overlap_their_exchange_only_in_versions_that_have_the_option():
    routed = {"schedule.name": "dualpipe-v", "schedule.devices": 2, "schedule.microbatches": 8, "layout.data": 4}
    sharded = {"layout.sharding": "weights", "layout.sharded_by": "stage", "layout.expert": 4}
    config = loaded({**ROUTED, **routed, **sharded, "layout.framework": "torchtitan"})
    assert "overlap" not in " ".join(words_of(config))
    with pytest.raises(ppsim.ConfigError, match=r"layout\.overlap='two-stream'"):
        ppsim.to_launch(config.changed({"layout.overlap": "two-stream"}), "torchtitan")
    old = JOB.replace("interleaved1F1B", "DualPipeV").replace('"llama3"', '"deepseek_v3"').replace('"70B"', '"671B"')
    old = old.replace("pipeline_parallel_layers_per_stage = 11", "expert_parallel_degree = 4")
    assert derived(ppsim.from_launch("torchtitan", old, gpus=32)).layout.overlap == "two-stream"


def test_asynchronous_tensor_parallelism_is_asked_for_only_where_the_model_is_compiled():
    """Its parser rejects it elsewhere; on this host, which is slower than its GPUs, both take as long."""
    changes = {
        "tensor": 4, "sequence_parallel": True, "overlap_tensor": True, "fused": False, "fused_loss": True,
        "expert": 8, "expert_tensor": 1,
        "data": 4, "expert_exchange": "all-to-all", "sharding": "weights", "sharded_by": "stage",
        "distributed_optimizer": None, "fused_router": True,
    }  # fmt: skip
    large = ppsim.load_config(CONFIGS / "qwen3-235b-256xgb200.yaml").changed(
        {**{f"layout.{key}": value for key, value in changes.items()}, "schedule.devices": 4, "hardware.gpus": None}
    )
    flags = arguments_of(large)
    assert flags["--compile.components"] == ["loss"]
    assert "--compile.enable_async_tensor_parallel" not in flags


REJECTED = {
    "slices": ({"schedule.name": "slimpipe"}, "slices"),
    "evictions": ({"schedule.name": "bpipe"}, "bpipe"),
    "weight versions": ({"schedule.name": "pipedream"}, "pipedream"),
    "two ways": ({"schedule.name": "chimera"}, "each stage on one device"),
    "a wave": ({"schedule.name": "hanayo", "schedule.stages_per_device": 4}, "places stages"),
    "parts of a loss": ({"layout.loss_chunks": 3, "layout.microbatch_size": 3}, "layout.loss_chunks=3: it must divide"),
    "optimizer alone": ({"layout.distributed_optimizer": True}, "layout.distributed_optimizer"),
    "context without shards": ({"schedule.devices": 4, "layout.context": 2}, "layout.context=2"),
    "a ring": (
        {"schedule.devices": 4, "layout.context": 2, "layout.sharded": True, "layout.context_exchange": "ring"},
        "layout.context_exchange='ring'",
    ),
    "no pipeline": (
        {"schedule.name": "gpipe", "schedule.devices": 1},
        "than with name='gpipe'; on one device use 1f1b",
    ),
    "some blocks": (
        {"layout.recompute": "full", "layout.recompute_blocks": 2},
        "layout.recompute_blocks=2: all blocks",
    ),
    "tied": ({"model.tied_embeddings": True}, "model.tied_embeddings"),
    "shared heads": (
        {"layout.tensor": 16, "schedule.devices": 1, "hardware.gpus": None},
        "must divide the 8 key-value",
    ),
    "an odd sequence": (
        {
            "schedule.devices": 1,
            "layout.data": 2,
            "layout.sharding": "weights",
            "layout.context": 4,
            "model.sequence": 8196,
        },
        "need a multiple of 8",
    ),
    "one shard": ({"layout.sharding": "weights", "layout.sharded_by": "stage"}, "shards nothing; use none"),
    "experts of one GPU": (
        {**ROUTED, "layout.data": 4, "layout.expert": 4, "schedule.devices": 2},
        "layout.expert=4: must divide context x tensor x sharded data = 1; use 1, or layout.sharding=weights",
    ),
    "split experts": (
        {**ROUTED, "layout.tensor": 4, "schedule.devices": 2},
        "layout.expert_tensor=4: each GPU has whole experts",
    ),
    "attention recomputed": ({"layout.recompute": "selective"}, "layout.recompute=selective"),
    "out of order": ({"dispatch": "ready"}, "dispatch=ready"),
    "a stage without layers": (
        {"schedule.devices": 2, "schedule.name": "zb-v", "layout.data": 4, "layout.partition": "Et*16|t*8||t*8L"},
        "layout.partition: stage 2",
    ),
}


@pytest.mark.parametrize(("changes", "named"), REJECTED.values(), ids=REJECTED)
def test_what_torchtitan_cannot_run_is_named(changes, named):
    with pytest.raises(ppsim.ConfigError, match=re.escape(named)):
        ppsim.to_launch(loaded(changes), "torchtitan")


def test_every_idea_of_choose_for_pytorch_is_a_job_of_torchtitan():
    """Its stages are named, so none is empty; all blocks recompute or none; weights are gathered by stage."""
    only = {"schedule.devices": [2], "schedule.name": ["zb-v", "looped-bfs"], "schedule.stages_per_device": [2]}
    model = {"num_layers": 5, "hidden": 512, "heads": 4, "sequence": 2048, "vocabulary": 100_000, "norm": "rmsnorm"}
    job = {
        "model": model, "hardware": {"device": "H100 SXM", "link": "NVLink 4", "gpus_per_node": 8, "gpus": 4},
        "batch": 8, "layout": {"microbatch_size": 1, "tensor": 1},
    }  # fmt: skip
    found = ppsim.choose(job, framework="PyTorch", only=only)
    configs = [found.space.config.changed(one.changes) for one in found.ranked]
    assert "stage" in [derived(config).layout.sharded_by for config in configs]
    for config in configs:
        ppsim.to_launch(config, "torchtitan")


def test_costs_without_a_model_have_no_command():
    with pytest.raises(ppsim.ConfigError, match="model and hardware"):
        ppsim.to_launch(CONFIGS / "unit-costs.yaml", "torchtitan")


@pytest.mark.parametrize("name", CLASSES)
def test_a_schedule_is_named_by_its_class_only_if_the_class_has_its_lists(name):
    flags = arguments_of(loaded({"schedule.name": name, "schedule.microbatches": 16, "layout.partition": "even"}))
    assert flags["--parallelism.pipeline_parallel_schedule"] == [CLASSES[name]]
    assert "--parallelism.pipeline_parallel_schedule_csv" not in flags


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"schedule.name": "zb-h1"}, "1F1B"),
        (CASES["v"], "ZBVZeroBubble"),
        ({"schedule.name": "interleaved-1f1b", "schedule.options": {"group_size": 16}}, "Interleaved1F1B"),
    ],
)
def test_other_lists_are_a_csv_file_beside_a_class_that_places_the_stages(changes, name):
    flags = arguments_of(loaded(changes))
    assert flags["--parallelism.pipeline_parallel_schedule_csv"] == ["schedule.csv"]
    assert flags["--parallelism.pipeline_parallel_schedule"] == [name]


def test_a_csv_file_that_loses_something_says_so(tmp_path):
    sizes = ("--devices", 4, "--microbatches", 8, "--csv", tmp_path / "lists.csv")
    done = command("simulate", "--schedule", "bpipe", *sizes)
    assert "holds lists of actions only, and not that bpipe has 4 activations that are evicted" in done.err
    assert "lists of actions only" not in command("simulate", "--schedule", "zb-v", *sizes).err


def test_the_yaml_gives_the_same_step(tmp_path):
    config = loaded({"layout.recompute": "full"})
    (tmp_path / "again.yaml").write_text(config_yaml(config))
    assert ppsim.load_config(tmp_path / "again.yaml").simulate().makespan == config.simulate().makespan


JOB = """
[job]
description = "Llama 3 70B on 4 nodes"

[model]
name = "llama3"
flavor = "70B"
converters = ["float8"]

[optimizer]
lr = 1.5e-4

[training]
local_batch_size = 16
seq_len = 8_192
steps = 1000

[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 4
enable_async_tensor_parallel = true
pipeline_parallel_degree = 4
pipeline_parallel_schedule = "interleaved1F1B"
pipeline_parallel_layers_per_stage = 11
context_parallel_rotate_method = "alltoall"

[activation_checkpoint]
mode = "selective"
selective_ac_option = "op"

[compile]
enable = true

[quantize.linear.float8]
enable_fsdp_float8_all_gather = true
filter_fqns = ["output"]

[experimental]
custom_import = "mine"
"""


def test_a_users_toml_becomes_a_config():
    config = ppsim.from_launch("torchtitan", JOB, gpus=32)
    layout = derived(config).layout
    assert (derived(config).model.num_layers, derived(config).model.ffn) == (80, 28672)
    assert (layout.tensor, layout.data, layout.sharded, layout.sharded_by) == (4, 2, True, "stage")
    assert (layout.recompute, layout.fp8, layout.fp8_gather, layout.fused) == ("alternate", "tensor", True, True)
    assert (layout.overlap_tensor, layout.context_exchange, layout.sequence_parallel) == (True, "ring", True)
    assert dict(config.schedule) == {
        "name": "interleaved-1f1b", "devices": 4, "stages_per_device": 2, "microbatches": 16,
        "options": {"grouping": "torch"},
    }  # fmt: skip
    assert layout.partition == (10, 11, 10, 10, 10, 10, 10, 9)


def test_options_under_their_names_of_2024_are_read():
    text = """
[model]
name = "llama3"
flavor = "8B"
[training]
batch_size = 2
compile = true
tensor_parallel_degree = 4
data_parallel_replicate_degree = 2
data_parallel_shard_degree = 3
[experimental]
context_parallel_degree = 2
enable_async_tensor_parallel = true
pipeline_parallel_first_stage_less_layers = 0
[float8]
enable_float8_linear = true
enable_fsdp_float8_all_gather = true
[checkpoint]
interval_type = "steps"
"""
    reading = read_launch("torchtitan", text, gpus=48)
    layout = derived(reading.config()).layout
    assert (layout.fp8, layout.fp8_gather) == ("tensor", True)
    assert (layout.tensor, layout.context, layout.data, layout.replicas, layout.microbatch_size) == (4, 2, 6, 2, 2)
    assert layout.fused
    assert layout.overlap_tensor
    assert not reading.unknown


def test_the_command_reads_toml_and_names_what_it_did_not_read(tmp_path):
    file, job = tmp_path / "job.toml", tmp_path / "job.yaml"
    file.write_text(JOB)
    done = command("import", "torchtitan", file, "-o", job, "--gpus", "32", "--verbose")
    assert done.status == 0, done.err
    assert "UNKNOWN   experimental.custom_import: may change the step" in done.out
    assert {"job.description", "optimizer.lr", "training.steps"} <= set(done.out.partition("left out")[2].split())
    assert ppsim.load_config(job).simulate().makespan > 0
    assert command("import", "torchtitan", file, "--gpus", "32", "--strict").status == 1
    wrong = command("import", "torchtitan", file, "--gpus", "34")
    assert (wrong.status, wrong.out) == (2, "")
    assert "34 GPUs, which is not tensor x context x pipeline x data = 16 x 3; give --gpus 48" in wrong.err


@pytest.mark.parametrize(
    ("text", "layout", "schedule"),
    [
        ("MODULE=llama3 CONFIG=llama3_70b NGPU=8 ./run_train.sh", {"tensor": 8, "data": 1, "recompute": "full"}, {}),
        ("torchrun --nproc_per_node=8 -m torchtitan.train --module llama3 --config llama3_8b "
         "--parallelism.data-parallel-shard-degree 8 --training.local_batch_size 2 --compile.no-enable",
         {"data": 8, "sharded": True, "sharded_by": "block", "microbatch_size": 2, "fused": False},
         {"microbatches": 1}),
        ("--module llama3 --config llama3_8b --training.local_batch_size 8 --parallelism.pipeline_parallel_degree 2 "
         "--parallelism.module_fqns_per_model_part tok_embeddings,"
         + ",".join(f"layers.{i}" for i in range(15)) + " " + ",".join(f"layers.{i}" for i in range(15, 32))
         + ",norm,lm_head", {"partition": (15, 17)}, {"name": "1f1b", "devices": 2, "microbatches": 8}),
        ("--module deepseek_v3 --config deepseek_v3_16b --parallelism.pipeline_parallel_degree 2 "
         "--parallelism.data_parallel_shard_degree 8 --parallelism.pipeline_parallel_schedule ZBVZeroBubble "
         "activation-checkpoint:full",
         {"expert": 8, "expert_tensor": 1, "recompute": "full", "partition": "even", "fused": False},
         {"name": "zb-v", "microbatches": 4}),
    ],
    ids=["run_train.sh", "torchrun", "named layers", "experts"],
)  # fmt: skip
def test_a_users_command_becomes_a_config(text, layout, schedule):
    config = ppsim.from_launch("torchtitan", text)
    assert {key: getattr(derived(config).layout, key) for key in layout} == layout
    assert {key: config.schedule[key] for key in schedule} == schedule
    assert config.simulate().makespan > 0


WRONG = {
    "no options": ("echo hello", "holds no options"),
    "Python": ("def mine() -> Trainer.Config:\n    return llama3_8b()\n", "config in Python, which is not run here"),
    "an unknown model": (JOB.replace('"llama3"', '"llama9"'), "'llama9'"),
    "an unknown flavor": (JOB.replace('"70B"', '"71B"'), "'71B'"),
    "no model": ("[training]\nseq_len = 4096\n", "model.name"),
    "a file elsewhere": ("CONFIG_FILE=a.toml ./run_train.sh", "'a.toml'"),
    "no TOML": (JOB + "x = [1,\n", "no TOML"),
    "a word for a number": (JOB.replace("seq_len = 8_192", 'seq_len = "long"'), "'long'"),
    "GPUs": (JOB.replace("degree = -1", "degree = 3"), "32 GPUs"),
    "a batch": (JOB.replace("seq_len = 8_192", "seq_len = 8192\nglobal_batch_size = 33"), "33"),
    "a schedule": (JOB.replace("interleaved1F1B", "PipelineScheduleMulti"), "PipelineScheduleMulti"),
    "stages": (JOB.replace("per_stage = 11", "per_stage = 12"), "7 stages on 4 devices"),
    "too many stages": (JOB.replace("per_stage = 11", "per_stage = 11\npipeline_parallel_last_stage_less_layers = 90"),
                        "cannot be split"),
    "a policy": (JOB.replace('"selective"', '"some"'), "'some'"),
    "an unset variable": ("python train.py --module llama3 --config llama3_8b --training.seq_len $LENGTH", "seq_len"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "named"), WRONG.values(), ids=WRONG)
def test_a_job_that_cannot_be_read_is_an_error_that_names_why(text, named):
    with pytest.raises(ppsim.ConfigError, match=re.escape(named)):
        ppsim.from_launch("torchtitan", text, gpus=32)


def test_versions_of_torchtitan_are_named():
    with pytest.raises(ppsim.ConfigError, match=re.escape("0.3.0, main, 0.2.2")):
        ppsim.to_launch(LLAMA, "torchtitan 9.9")
    with pytest.raises(ppsim.ConfigError, match=re.escape("use 0.3.0 or main")):
        ppsim.to_launch(LLAMA, "torchtitan 0.2.2")
