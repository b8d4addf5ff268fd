"""What it takes to run a config elsewhere: its YAML, and flags that the argument parser of torchtitan knows."""

import re

import pytest
from command_line import LLAMA
from command_line import ppsim as command

import ppsim
from ppsim.studies import config_yaml, torchtitan_flags

# pytorch/torchtitan at b5bcd76c66d0, torchtitan/config/configs.py and distributed/activation_checkpoint.py.
TORCHTITAN = {
    *(
        f"parallelism.{name}"
        for name in (
            "tensor_parallel_degree", "pipeline_parallel_degree", "context_parallel_degree", "expert_parallel_degree",
            "data_parallel_shard_degree", "data_parallel_replicate_degree", "num_pp_microbatches",
            "pipeline_parallel_schedule", "pipeline_parallel_schedule_csv",
        )
    ),
    "training.max_context_length", "training.num_tokens_per_microbatch_per_dp_rank",
}  # fmt: skip
CLASSES = {
    "looped-bfs": "LoopedBFS", "interleaved-1f1b": "Interleaved1F1B", "interleaved-zb": "InterleavedZeroBubble",
    "zb-v": "ZBVZeroBubble", "dualpipe-v": "DualPipeV", "gpipe": "GPipe",
}  # fmt: skip
POLICIES = ("activation-checkpoint:none", "activation-checkpoint:selective", "activation-checkpoint:full")


def recipes(changes):
    config = ppsim.load_config(LLAMA, overrides=changes)
    run = config.simulate()
    return config, torchtitan_flags(config, run)


@pytest.mark.parametrize("sharding", [{}, {"layout.distributed_optimizer": True}, {"layout.sharded": True}])
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b", "zb-h1"])
def test_every_flag_is_one_that_the_parser_knows(name, recompute, sharding):
    changes = {"schedule.name": name, "layout.recompute": recompute, "layout.tensor": 2, **sharding}
    changes |= {"layout.sequence_parallel": True, "layout.partition": "even"}
    _, titan = recipes(changes)
    *flags, policy = titan
    assert set(re.findall(r"--([a-z_.]+)", " ".join(flags))) <= TORCHTITAN
    assert policy in POLICIES
    assert ("pipeline_parallel_schedule_csv" in " ".join(flags)) == (name == "zb-h1")


def test_sizes_in_the_flags_are_those_of_the_config():
    _, titan = recipes({"layout.microbatch_size": 2, "schedule.microbatches": 16})
    assert "--parallelism.num_pp_microbatches 16" in titan
    assert "--training.num_tokens_per_microbatch_per_dp_rank 16384" in titan


@pytest.mark.parametrize("name", ["slimpipe", "pipedream", "pipedream-2bw", "bpipe", "vocab-1f1b", "mario"])
def test_what_is_outside_the_lists_or_unknown_to_them_has_no_flags(name):
    assert recipes({"schedule.name": name})[1] == []


@pytest.mark.parametrize("name", ["looped-bfs", "interleaved-1f1b", "interleaved-zb", "zb-v", "dualpipe-v", "gpipe"])
def test_a_schedule_is_named_by_its_class_only_if_the_class_has_its_lists(name):
    _, titan = recipes({"schedule.name": name, "schedule.microbatches": 16, "layout.partition": "even"})
    assert f"--parallelism.pipeline_parallel_schedule {CLASSES[name]}" in titan
    assert not any("csv" in flag for flag in titan)
    _, titan = recipes({"schedule.name": "interleaved-1f1b", "schedule.options": {"group_size": 16}})
    assert "--parallelism.pipeline_parallel_schedule_csv schedule.csv" in titan


def test_a_csv_file_that_loses_something_says_so(tmp_path):
    sizes = ("--devices", 4, "--microbatches", 8, "--csv", tmp_path / "lists.csv")
    done = command("simulate", "--schedule", "bpipe", *sizes)
    assert "holds lists of actions only, and not that bpipe has 4 activations that are evicted" in done.err
    assert "lists of actions only" not in command("simulate", "--schedule", "zb-v", *sizes).err


def test_the_yaml_gives_the_same_step(tmp_path):
    config, *_ = recipes({"layout.recompute": "full"})
    (tmp_path / "again.yaml").write_text(config_yaml(config))
    assert ppsim.load_config(tmp_path / "again.yaml").simulate().makespan == config.simulate().makespan
