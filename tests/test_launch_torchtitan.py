"""torchtitan's launch command: what is printed is what was simulated; and a config's own YAML."""

import re
import shlex
from dataclasses import make_dataclass

import pytest
from command_line import CONFIGS, LLAMA
from command_line import ppsim as command

import ppsim
from ppsim.frameworks import LAUNCH_OPTIONS
from ppsim.studies import config_yaml

CLASSES = {
    "looped-bfs": "LoopedBFS", "interleaved-1f1b": "Interleaved1F1B", "interleaved-zb": "InterleavedZeroBubble",
    "zb-v": "ZBVZeroBubble", "dualpipe-v": "DualPipeV", "gpipe": "GPipe",
}  # fmt: skip
CASES = {
    "1f1b": {},
    "split backward": {"schedule.name": "zb-h1"},
    "v": {"schedule.name": "v-half"},
    "four stages": {"schedule.name": "interleaved-1f1b", "schedule.stages_per_device": 4},
    "uneven": {"layout.partition": [3, 4, 4, 4, 4, 5, 5, 3]},
    "sharded": {
        "schedule.devices": 2, "layout.data": 4, "layout.sharded": True, "layout.sharded_by": "block",
        "layout.recompute": "alternate", "layout.microbatch_size": 2,
    },
    "tensor": {"schedule.devices": 4, "layout.tensor": 2, "layout.recompute": "full", "schedule.name": "gpipe"},
    "one device": {"schedule.devices": 1, "layout.tensor": 8, "layout.sequence_parallel": True},
}  # fmt: skip


def loaded(changes):
    return ppsim.load_config(LLAMA, overrides=changes)


def words_of(config):
    text = ppsim.to_launch(config, "torchtitan")
    assert f"torchtitan {LAUNCH_OPTIONS['torchtitan']['version']}" in text
    return shlex.split(text.partition("--config ${CONFIG}")[2].replace("\\\n", " "))


def arguments_of(config):
    """The arguments of each flag; a bare flag has none."""
    found = {}
    for word in words_of(config):
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


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_printed_flags_are_known_and_say_what_was_simulated(changes):
    config = loaded(changes)
    flags, layout, schedule = arguments_of(config), config.costs.layout, config.build()
    groups = LAUNCH_OPTIONS["torchtitan"]["groups"]
    *known, policies = (names.split() for names in groups.values())
    assert {*flags} <= {
        *(f"--{section}.{name}" for section, names in zip(groups, known, strict=False) for name in names),
        *(f"activation-checkpoint:{name}" for name in policies),
    }

    def size(name):
        return int(flags[f"--{name}"][0])

    assert size("parallelism.pipeline_parallel_degree") == schedule.devices
    assert size("parallelism.tensor_parallel_degree") == layout.tensor
    assert size("training.seq_len") == config.model.sequence
    copies = [size(f"parallelism.data_parallel_{kind}_degree") for kind in ("shard", "replicate")]
    assert copies == ([layout.data, 1] if layout.sharded else [1, layout.data])
    batch = layout.microbatch_size * layout.data * schedule.microbatches
    assert size("training.global_batch_size") == batch
    if schedule.devices == 1:
        return
    assert "--training.disable_cuda_graphs" in flags
    size_of_one = size("parallelism.pipeline_parallel_microbatch_size")
    assert size("training.local_batch_size") // size_of_one == schedule.microbatches
    stages = config.costs.stages(schedule.num_stages)
    blocks = [stage.get("block", 0) for stage in stages]
    assert blocks_of(flags, schedule.num_stages, sum(blocks)) == blocks
    assert flags["--parallelism.pipeline_parallel_schedule"][0] in {"1F1B", *CLASSES.values()}


@pytest.mark.slow
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_torchtitan_parses_printed_flags(changes):
    manager = pytest.importorskip("torchtitan.config.manager")
    tyro = pytest.importorskip("tyro")
    from torchtitan.config.configs import ParallelismConfig, TrainingConfig
    from torchtitan.distributed.activation_checkpoint import ActivationCheckpointingConfig

    manager.ConfigManager()
    job = make_dataclass(
        "job",
        [
            ("training", TrainingConfig), ("parallelism", ParallelismConfig),
            ("activation_checkpoint", ActivationCheckpointingConfig),
        ],
    )  # fmt: skip
    default = job(TrainingConfig(), ParallelismConfig(), None)
    parsed = tyro.cli(job, args=words_of(loaded(changes)), default=default, registry=manager.custom_registry)
    assert parsed.parallelism.pipeline_parallel_degree == loaded(changes).build().devices


REJECTED = {
    "slices": ({"schedule.name": "slimpipe"}, "slices"),
    "evictions": ({"schedule.name": "bpipe"}, "bpipe"),
    "weight versions": ({"schedule.name": "pipedream"}, "pipedream"),
    "two ways": ({"schedule.name": "chimera"}, "each stage on one device"),
    "a wave": ({"schedule.name": "hanayo", "schedule.stages_per_device": 4}, "places stages"),
    "optimizer alone": ({"layout.distributed_optimizer": True}, "layout.distributed_optimizer"),
    "weights by stage": ({"schedule.devices": 4, "layout.data": 2, "layout.sharded": True}, "layout.sharded_by"),
    "attention recomputed": ({"layout.recompute": "selective"}, "layout.recompute=selective"),
    "out of order": ({"dispatch": "ready"}, "dispatch=ready"),
}


@pytest.mark.parametrize(("changes", "named"), REJECTED.values(), ids=REJECTED)
def test_what_torchtitan_cannot_run_is_named(changes, named):
    with pytest.raises(ppsim.ConfigError, match=re.escape(named)):
        ppsim.to_launch(loaded(changes), "torchtitan")


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
        ({"schedule.name": "v-half"}, "ZBVZeroBubble"),
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
