"""What it takes to run a config elsewhere: flags that the argument parsers of Megatron-LM and torchtitan know."""

import re

import pytest
from command_line import LLAMA
from command_line import ppsim as command

import ppsim
from ppsim.studies import config_yaml, megatron_flags, torchtitan_flags

# Read from the sources: NVIDIA/Megatron-LM at d98e8a64ddf3, megatron/training/arguments.py and the dataclasses that it
# makes flags of (model_parallel, transformer, training and distributed data parallel configs).
MEGATRON = {
    "tensor-model-parallel-size",
    "pipeline-model-parallel-size",
    "context-parallel-size",
    "expert-model-parallel-size",
    "micro-batch-size",
    "global-batch-size",
    "pipeline-model-parallel-layout",
    "sequence-parallel",
    "use-distributed-optimizer",
    "use-megatron-fsdp",
    "data-parallel-sharding-strategy",
    "ckpt-format",
    "recompute-granularity",
    "recompute-method",
    "recompute-num-layers",
    "fp8-format",
    "fp8-recipe",
    "fp8-param-gather",
}
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
    return config, megatron_flags(config, run), torchtitan_flags(config, run)


@pytest.mark.parametrize("sharding", [{}, {"layout.distributed_optimizer": True}, {"layout.sharded": True}])
@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b", "zb-h1"])
def test_every_flag_is_one_that_the_parser_knows(name, recompute, sharding):
    changes = {"schedule.name": name, "layout.recompute": recompute, "layout.tensor": 2, **sharding}
    changes |= {"layout.sequence_parallel": True, "layout.partition": "even"}
    _, megatron, titan = recipes(changes)
    assert set(re.findall(r"--([a-z-]+)", " ".join(megatron))) <= MEGATRON
    assert bool(megatron) == (name != "zb-h1")
    *flags, policy = titan
    assert set(re.findall(r"--([a-z_.]+)", " ".join(flags))) <= TORCHTITAN
    assert policy in POLICIES
    assert ("pipeline_parallel_schedule_csv" in " ".join(flags)) == (name == "zb-h1")


def test_products_in_fp8_are_flags_of_megatron():
    _, megatron, _ = recipes({"layout.fp8": "tensor", "layout.fp8_gather": True})
    assert {"--fp8-format hybrid --fp8-recipe tensorwise", "--fp8-param-gather"} <= {*megatron}
    assert set(re.findall(r"--([a-z0-9-]+)", " ".join(megatron))) <= MEGATRON
    _, megatron, _ = recipes({"layout.fp8": "block"})
    assert "--fp8-format hybrid --fp8-recipe blockwise" in megatron


def test_sizes_in_the_flags_are_those_of_the_config():
    _, megatron, titan = recipes({"layout.microbatch_size": 2, "schedule.microbatches": 16})
    assert "--micro-batch-size 2" in megatron
    assert "--global-batch-size 32" in megatron
    assert "--pipeline-model-parallel-size 8" in megatron
    assert "--parallelism.num_pp_microbatches 16" in titan
    assert "--training.num_tokens_per_microbatch_per_dp_rank 16384" in titan


@pytest.mark.parametrize("name", ["slimpipe", "pipedream", "pipedream-2bw", "bpipe", "vocab-1f1b", "mario"])
def test_what_is_outside_the_lists_or_unknown_to_them_runs_in_neither(name):
    _, megatron, titan = recipes({"schedule.name": name})
    assert (megatron, titan) == ([], [])


@pytest.mark.parametrize("name", ["looped-bfs", "interleaved-1f1b", "interleaved-zb", "zb-v", "dualpipe-v", "gpipe"])
def test_a_schedule_is_named_by_its_class_only_if_the_class_has_its_lists(name):
    _, _, titan = recipes({"schedule.name": name, "schedule.microbatches": 16, "layout.partition": "even"})
    assert f"--parallelism.pipeline_parallel_schedule {CLASSES[name]}" in titan
    assert not any("csv" in flag for flag in titan)
    _, _, titan = recipes({"schedule.name": "interleaved-1f1b", "schedule.options": {"group_size": 16}})
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
