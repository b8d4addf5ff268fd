"""Megatron-LM's launch scripts: what is printed is what was simulated, and what users run is read back."""

import re
import shlex
from argparse import ArgumentParser
from dataclasses import replace

import pytest
from command_line import CONFIGS, LLAMA
from command_line import ppsim as run

import ppsim
from ppsim.config import as_config
from ppsim.frameworks import LAUNCH_OPTIONS, options_of
from ppsim.launch import read_launch

LAUNCHED = (
    "bloom-176b-384xa100", "glm-130b-768xa100", "gpt-145b-1536xa100", "gpt-3-175b-64xa100",
    "llama-3-405b-16384xh100", "llama-3-8b-8xh100", "megascale-175b-12288xa100", "nemotron-4-340b-6144xh100",
)  # fmt: skip
INTERLEAVED = {"schedule.name": "interleaved-1f1b", "schedule.devices": 4, "schedule.stages_per_device": 2}
EXPERTS = {
    "model": {
        "num_layers": 16, "hidden": 2048, "heads": 16, "key_value_heads": 4, "ffn": 8192, "gated": True,
        "norm": "rmsnorm", "vocabulary": 128000, "sequence": 4096, "experts": 16, "experts_per_token": 2,
        "expert_ffn": 1024, "shared_experts": 1, "dense_layers": 2,
    },
    "hardware": {"device": "H100 SXM", "link": "NVLink 4", "network": "InfiniBand NDR"},
    "layout": {"expert": 8, "data": 8, "framework": "megatron-core", "distributed_optimizer": True},
    "schedule": {"name": "1f1b", "devices": 2, "microbatches": 16}, "optimizer": "sync",
}  # fmt: skip
LATENT = {
    "model.key_value_rank": 512, "model.query_rank": 1536, "model.head_size": 128, "model.rotary_head_size": 64,
    "model.value_head_size": 128, "model.key_value_heads": 16, "model.prediction_layers": 1,
}  # fmt: skip
# Printed for the versions that have them.
GRADIENTS, GRAPHED = "megatron-fsdp-main-grads-dtype", "cuda-graph-modules"
SCORES = {"model.attention": "full", "model.causal": False}
COMBINED = {"schedule.name": "combined-1f1b", "schedule.stages_per_device": 2, "layout.overlap": "two-stream"}


def every_case():
    yield from (
        pytest.param(lambda name=name: ppsim.load_config(CONFIGS / f"{name}.yaml"), id=name) for name in LAUNCHED
    )
    dense = {
        "group_size": INTERLEAVED | {"schedule.microbatches": 24, "schedule.options": {"group_size": 8}},
        "grouping_torch": INTERLEAVED | {"schedule.microbatches": 10, "schedule.options": {"grouping": "torch"}},
        "fsdp": {"schedule.devices": 4, "layout.data": 2, "layout.sharded": True, "layout.sharded_by": "block"},
        "gradients": {
            "schedule.devices": 4, "layout.data": 2, "layout.distributed_optimizer": True,
            "layout.sharded_gradients": True, "layout.bf16_gradients": True,
        },
        "hybrid": {
            "schedule.devices": 2, "layout.data": 16, "layout.sharded": True, "layout.sharded_by": "block",
            "layout.replicas": 2, "hardware.network": "InfiniBand NDR",
        },
        "fp8": {
            "layout.fp8": "tensor", "layout.fp8_gather": True, "layout.distributed_optimizer": True,
            "layout.framework": "megatron-core", "schedule.devices": 4, "layout.data": 2,
        },
        "context": {
            "layout.tensor": 2, "layout.context": 2, "layout.sequence_parallel": True, "schedule.devices": 2,
            "layout.context_exchange": "gather", "layout.recompute": "full", "layout.recompute_blocks": 3,
        },
        "one_device": {"schedule.devices": 1, "layout.tensor": 8, "layout.sequence_parallel": True},
        "window": {"model.window": 1024, "model.window_period": 2, "model.tied_embeddings": True},
        "biases": {"model.attention_bias": True, "model.head_norm": True, "model.dropout": True},
        "graphs": {"layout.cuda_graphs": True, "layout.recompute": "norms"},
        "core": {"layout.recompute": "core"}, "mlp": {"layout.recompute": "norms+mlp"},
        "scores": {"layout.recompute": "selective", **SCORES},
        "uneven": {"layout.partition": [3, 4, 4, 4, 4, 5, 5, 3]}, "balanced": {"layout.partition": "balanced"},
    }  # fmt: skip
    yield from (
        pytest.param(lambda keys=keys: ppsim.load_config(LLAMA, overrides=keys), id=name)
        for name, keys in dense.items()
    )
    routed = {
        "experts": {}, "graphs": {"layout.cuda_graphs": True}, "router": {"layout.cuda_graphs": "router"},
        "latent": LATENT, "combined": COMBINED, "odd_width": LATENT | {"model.hidden": 2056},
        "llama_4": {"model.experts_per_token": 1, "model.pattern": "'" + "[*-][*E]" * 8 + "'", "model.dense_layers": 0},
        "dispatch": {
            "layout.expert_exchange": "hierarchical", "layout.recompute": "norms+activations+core+moe",
            "layout.grouped_experts": True, "layout.fused_router": True, "layout.expert_groups": 4,
            "layout.groups_per_token": 2,
        },
        "delta_nets": {
            "model.pattern": f"'{'[GE][G-][*E][*E]' * 4}'", "model.state_heads": 32, "model.state_groups": 16,
            "model.state_head_size": 64, "model.state_size": 128, "layout.recompute": "full",
        },
    }  # fmt: skip
    yield from (
        pytest.param(lambda keys=keys: as_config(EXPERTS).changed(keys), id=name) for name, keys in routed.items()
    )


CASES = list(every_case())
RECORD = LAUNCH_OPTIONS["Megatron-LM"]
ROTATIONS, FUSED_ROTATION = "models.common.embeddings.rope_utils", "fused_apply_rotary_pos_emb"
VERSIONS = (RECORD["version"], *RECORD["others"])


@pytest.mark.parametrize("make", CASES)
def test_a_printed_script_has_known_flags_and_reads_back_as_the_same_run(make):
    config = make()
    text = ppsim.to_launch(config, "Megatron-LM")
    printed = set(re.findall(r"--([a-z0-9][a-z0-9-]+)", text.partition("pretrain_gpt.py")[2]))
    assert printed <= options_of(RECORD).keys()
    for version in RECORD["others"]:
        if lacking := printed - options_of(RECORD, version).keys() - {GRADIENTS, GRAPHED}:
            with pytest.raises(ppsim.ConfigError, match=min(lacking)):
                ppsim.to_launch(config, f"Megatron-LM {version}")
    back = ppsim.from_launch("Megatron-LM", text)
    assert back.build() == config.build()
    ours, theirs = config.simulate(), back.simulate()
    assert theirs.makespan == ours.makespan
    assert theirs.peak_memory == pytest.approx(ours.peak_memory, rel=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("make", CASES)
def test_megatron_parses_and_accepts_a_printed_script(make, monkeypatch):
    """The wheel of megatron-core has no parser: a clone of NVIDIA/Megatron-LM must be on PYTHONPATH."""
    arguments = pytest.importorskip("megatron.training.arguments")
    version = f"core {pytest.importorskip('megatron.core').__version__}"
    text = ppsim.to_launch(make(), f"Megatron-LM {version if version in VERSIONS else ''}")
    monkeypatch.setattr(arguments, "get_device_arch_version", lambda: 9)
    monkeypatch.setattr("torch.cuda.get_device_capability", lambda *_: (9, 0))
    monkeypatch.setenv("CUDA_DEVICE_MAX_CONNECTIONS", "1" if "export CUDA_DEVICE_MAX" in text else "8")
    monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
    parser = arguments.add_megatron_arguments(ArgumentParser(allow_abbrev=False, exit_on_error=False))
    parsed = parser.parse_args(shlex.split(text.partition("pretrain_gpt.py")[2].replace("\\\n", " ")))
    per_node, nodes = (int(re.search(rf"--{name} (\d+)", text)[1]) for name in ("nproc-per-node", "nnodes"))
    parsed.rank, parsed.world_size = 1, per_node * nodes
    arguments.validate_args(parsed)
    for module, name in (("transformer.transformer_config", "is_te_min_version"), (ROTATIONS, FUSED_ROTATION)):
        monkeypatch.setattr(f"megatron.core.{module}.{name}", lambda *_, **__: True)  # Transformer Engine needs a GPU
    arguments.core_transformer_config_from_args(parsed)
    layout = make().costs.layout
    assert parsed.data_parallel_size == layout.data
    assert parsed.micro_batch_size == layout.microbatch_size
    assert (parsed.virtual_pipeline_model_parallel_size or 1) == make().schedule.get("stages_per_device", 1)


@pytest.mark.parametrize("fused", [True, False])
def test_a_router_is_fused_by_its_flag_alone(fused):
    config = as_config(EXPERTS).changed({"layout.fused_router": fused})
    text = ppsim.to_launch(config, "Megatron-LM")
    assert ("--moe-router-fusion" in text) is fused
    back = ppsim.from_launch("Megatron-LM", text)
    assert back.costs.layout.chosen("fused_router") is fused
    assert back.simulate().iteration_time == config.simulate().iteration_time


REJECTED = {
    "zb-h1": ({"schedule.name": "zb-h1"}, "schedule.name=zb-h1"),
    "found by a search": ({"schedule.name": "v-half"}, "schedule.name=v-half"),
    "groups of 5, 4 and 4": (
        INTERLEAVED | {"schedule.microbatches": 13, "schedule.options": {"grouping": "spread"}}, "interleaved-1f1b",
    ),
    "fp8_gather alone": ({"layout.fp8": "tensor", "layout.fp8_gather": True}, "layout.distributed_optimizer"),
    "weights by stage": ({"schedule.devices": 4, "layout.data": 2, "layout.sharded": True}, "layout.sharded_by"),
    "no such block": ({"model.parallel_block": True}, "model.parallel_block"),
    "first stages recompute": ({"layout.recompute": "full", "layout.recompute_stages": 3}, "layout.recompute_stages=3"),
    "another loss": ({"layout.loss_bytes": 8}, "layout.loss_bytes=8"),
    "norms of several kernels": ({"layout.fused_norms": False}, "layout.fused_norms=False: it has no flag for this"),
    "no experts": ({"layout.recompute": "activations"}, "layout.grouped_experts"),
    "modules without a flag": ({"layout.recompute": "up+norms"}, "layout.recompute='up+norms'"),
    "attention that holds no scores": ({"layout.recompute": "selective"}, "use none, or core"),
    "modules without a position": ({"model.prediction_layers": 1, "model.positions": "learned"}, "need rotary"),
    "recomputed by R": ({"schedule.recompute": "all"}, "order"),
    "out of order": ({"dispatch": "ready"}, "dispatch=ready"),
    "a loss for each module": (
        {"schedule.devices": 4, "layout.partition": "Et*32|m|L|L", "model.prediction_layers": 1},
        "its parser takes one L, which has all losses; write L once",
    ),
    "gradients of one GPU": ({"layout.sharding": "weights", "layout.sharded_by": "block"}, "layout.sharding"),
    "two buffers beside the exchange": (
        COMBINED | {"schedule.devices": 4, "layout.sharded_gradients": True, "layout.distributed_optimizer": True},
        "layout.sharding: combined-1f1b",
    ),
    "one moment in bf16": ({"layout.optimizer_bytes": 8}, "layout.optimizer_bytes=8: it has 6 or 10 or 12"),
    "weights in two parts beside FSDP's own": (
        {"layout.optimizer_bytes": 10, "layout.sharding": "weights", "layout.sharded_by": "block", "layout.data": 2},
        "layout.optimizer_bytes=10: it has 8 or 12 with its FSDP",
    ),
    "a state that is not split": ({"layout.optimizer_bytes": 6}, "it needs layout.distributed_optimizer=true"),
    "no exchange to hide": (INTERLEAVED | {"schedule.name": "combined-1f1b"}, "layout.expert=1"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "named"), REJECTED.values(), ids=REJECTED)
def test_what_megatron_cannot_run_is_named(changes, named):
    if "layout.data" not in changes and "schedule.devices" in changes:
        changes = {**changes, "layout.data": 2}
    with pytest.raises(ppsim.ConfigError, match=re.escape(named)):
        ppsim.to_launch(ppsim.load_config(LLAMA, overrides=changes), "Megatron-LM")


@pytest.mark.parametrize(
    ("changes", "version", "named"),
    [
        ({"model.projection_bias": True, "layout.tensor": 2}, None, "layout.expert_tensor=2: experts with biases need"),
        ({"layout.tensor": 2, "layout.sequence_parallel": False}, None, "layout.sequence_parallel=false: experts with"),
        ({"layout.expert": 1, "layout.expert_exchange": "hierarchical"}, None, "needs layout.expert above 1"),
        ({"model.projection_bias": True}, "0.14.0", "core 0.14.0 has no experts with biases; use core 0.20.0"),
        ({"layout.tensor": 8}, "0.15.3", "has no copies of key-value heads: 4 for layout.tensor=8"),
    ],
)  # fmt: skip
def test_what_the_config_of_its_core_rejects_is_named(changes, version, named):
    biases = {f"model.{name}_bias": "model.projection_bias" in changes for name in ("mlp", "attention")}
    config = as_config(EXPERTS).changed({"layout.sequence_parallel": True, **biases, **changes})
    with pytest.raises(ppsim.ConfigError, match=re.escape(named)):
        ppsim.to_launch(config, f"Megatron-LM {version or ''}")


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        ("", "core"), ("--recompute-modules core_attn", "core"), ("--attention-backend unfused", "selective"),
        ("--data-impl mmap --use-flash-attn-v2", "selective"),
    ],
)  # fmt: skip
def test_selective_recompute_repeats_flash_attention_as_megatron_core_does(flags, level):
    """Versions before Megatron-Core checkpoint attention only if it is no flash kernel."""
    text = f"{SCRIPT_FLAGS} --recompute-granularity selective {flags}"
    config = ppsim.from_launch("Megatron-LM", text)
    assert config.costs.layout.recompute == level
    slower = config.simulate().makespan > config.changed({"layout.recompute": "none"}).simulate().makespan
    assert slower == ("--data-impl" not in flags)


FSDP = "--use-megatron-fsdp --use-distributed-optimizer --data-parallel-sharding-strategy optim_grads_params"


@pytest.mark.parametrize(
    ("flags", "in_bf16", "is_assumed"),
    [
        ("", False, False), ("--grad-reduce-in-bf16", True, False), (FSDP, True, True),
        (f"{FSDP} --{GRADIENTS} fp32", False, False), (f"{FSDP} --{GRADIENTS} bf16", True, False),
        (f"{FSDP} --{GRADIENTS} auto", True, True),
    ],
)  # fmt: skip
def test_fsdp_sums_gradients_in_the_type_of_the_model_unless_told(flags, in_bf16, is_assumed):
    """Megatron-LM, core/distributed/fsdp/mcore_fsdp_adapter.py from core 0.19 on: its DDP sums in fp32."""
    reading = read_launch("Megatron-LM", f"{SCRIPT_FLAGS} {flags}", gpus=8)
    assert reading.config().costs.layout.chosen("bf16_gradients") is in_bf16
    assert ("gradients in bf16" in " ".join(reading.assumed)) is is_assumed


def test_experts_that_one_gpu_alone_holds_are_not_sharded_over_several_microbatches():
    """Megatron-LM, issue 6660: FSDP adds the gradients of such experts to themselves."""
    sharded = as_config(EXPERTS).changed({"layout.sharding": "weights", "layout.sharded_by": "block"})
    with pytest.raises(ppsim.ConfigError, match=r"smaller layout\.expert"):
        ppsim.to_launch(sharded, "Megatron-LM")
    for spared in ({"layout.expert": 4}, {"schedule.microbatches": 1}):
        assert "--fsdp-double-buffer" in ppsim.to_launch(sharded.changed(spared), "Megatron-LM")
    assert not replace(sharded.costs.layout, framework="torchtitan").sums_gradients_wrongly(16)


def test_costs_without_a_model_have_no_script():
    with pytest.raises(ppsim.ConfigError, match="model and hardware"):
        ppsim.to_launch(CONFIGS / "unit-costs.yaml", "Megatron-LM")


def test_the_size_of_a_group_is_a_flag_and_a_group_of_the_pipeline_is_none():
    flag = "--microbatch-group-size-per-virtual-pipeline-stage"
    sizes = INTERLEAVED | {"schedule.microbatches": 24, "layout.data": 2}
    own = ppsim.load_config(LLAMA, overrides=sizes | {"schedule.options": {"group_size": 8}})
    assert f"{flag} 8" in ppsim.to_launch(own, "Megatron-LM")
    assert flag not in ppsim.to_launch(ppsim.load_config(LLAMA, overrides=sizes), "Megatron-LM")


def test_fsdp_leaves_the_number_of_connections_unset_and_warns_beside_tensor_parallelism():
    sharded = {"layout.sharded": True, "layout.sharded_by": "block", "layout.data": 2, "schedule.devices": 2}
    text = ppsim.to_launch(
        ppsim.load_config(LLAMA, overrides=sharded | {"layout.tensor": 2, "layout.sequence_parallel": True}),
        "Megatron-LM",
    )
    assert "unset CUDA_DEVICE_MAX_CONNECTIONS" in text
    assert "warns against FSDP with tensor" in text
    assert "export CUDA_DEVICE_MAX_CONNECTIONS=1" in ppsim.to_launch(LLAMA, "Megatron-LM")


def test_scripts_let_segments_grow_as_the_headroom_is_too_small_for_fragments():
    assert "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n" in ppsim.to_launch(LLAMA, "Megatron-LM")


SCRIPT_FLAGS = (
    "--num-layers 2 --hidden-size 8192 --num-attention-heads 64 --seq-length 8192 --vocab-size 32000 "
    "--micro-batch-size 1 --global-batch-size 8"
)
SCRIPT = """#!/bin/bash
# pre-training of a 7B model
export CUDA_DEVICE_MAX_CONNECTIONS=1
GPUS_PER_NODE=8
NNODES=${NNODES:-2}
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
TP=2; PP=4
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE   # each GPU
    --nnodes $NNODES
)
GPT_MODEL_ARGS=(
    --num-layers 32
    --hidden-size 4096 --ffn-hidden-size 11008
    --num-attention-heads 32
    --seq-length 4096
    --max-position-embeddings 4096
    --vocab-size 32000
    --swiglu --disable-bias-linear --normalization RMSNorm
    --position-embedding-type rope
    --untie-embeddings-and-output-weights
    --attention-dropout 0 --hidden-dropout 0
)
TRAINING_ARGS="
    --micro-batch-size 1 \\
    --global-batch-size 128 \\
    --lr 3.0e-4 --bf16 --adam-beta2 0.95"
MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size ${TP}
    --pipeline-model-parallel-size $PP --num-layers-per-virtual-pipeline-stage 4
    --sequence-parallel --use-distributed-optimizer
    --some-flag 7 --fine-grained-activation-offloading
)
if [ -f "$WANDB" ]; then
    TRAINING_ARGS="$TRAINING_ARGS --wandb-project x"
fi
torchrun "${DISTRIBUTED_ARGS[@]}" pretrain_gpt.py \\
    "${GPT_MODEL_ARGS[@]}" ${TRAINING_ARGS} \\
    ${MODEL_PARALLEL_ARGS[@]} \\
    --save '/checkpoints/a b' --log-interval 10 | tee log.txt
"""


def test_a_users_script_becomes_a_config(tmp_path):
    config = ppsim.from_launch("Megatron-LM", SCRIPT)
    layout, model = config.costs.layout, config.model
    assert (layout.tensor, layout.data, layout.sequence_parallel, layout.distributed_optimizer) == (2, 2, True, True)
    assert (model.num_layers, model.ffn, model.gated, model.norm, model.dropout) == (32, 11008, True, "rmsnorm", False)
    assert model.vocabulary == 32000
    assert dict(config.schedule) == {
        "name": "interleaved-1f1b", "devices": 4, "stages_per_device": 2, "microbatches": 64,
    }  # fmt: skip
    again = ppsim.from_launch("Megatron-LM", ppsim.to_launch(config, "Megatron-LM"))
    assert again.simulate().makespan == config.simulate().makespan


@pytest.mark.parametrize(
    ("flags", "graphs"),
    [
        ("--cuda-graph-impl none --cuda-graph-modules attn", None), ("--cuda-graph-impl local", True),
        ("--external-cuda-graph --cuda-graph-scope full", True), ("--enable-cuda-graph", True),
        ("--cuda-graph-impl local --cuda-graph-scope full_iteration", True),
        ("--cuda-graph-impl transformer_engine --cuda-graph-modules attn mlp", True),
        ("--cuda-graph-impl local --cuda-graph-scope attn", None),
    ],
)  # fmt: skip
def test_flags_of_cuda_graphs_are_read(flags, graphs):
    reading = read_launch("Megatron-LM", SCRIPT.replace("--some-flag 7", flags))
    assert reading.data["layout"].get("cuda_graphs") is graphs
    assert any("--cuda-graph-modules attn: " in one for one in reading.unknown) == flags.endswith("scope attn")


def test_cuda_graphs_exclude_what_megatron_rejects_with_them():
    """Megatron-LM, core/transformer/transformer_config.py and training/arguments.py."""
    graphed = as_config(EXPERTS).changed({"layout.cuda_graphs": True})
    assert "\nexport NCCL_GRAPH_REGISTER=0\n" in ppsim.to_launch(graphed, "Megatron-LM")
    assert "--cuda-graph-scope attn moe_router" in ppsim.to_launch(graphed, "Megatron-LM core 0.17.1")
    for level in ("full", "norms+moe"):
        with pytest.raises(ppsim.ConfigError, match=r"layout\.cuda_graphs: excludes recompute"):
            ppsim.to_launch(graphed.changed({"layout.recompute": level}), "Megatron-LM")
    with pytest.raises(ppsim.ConfigError, match=r"layout\.cuda_graphs=router: needs experts"):
        ppsim.to_launch(ppsim.load_config(LLAMA, overrides={"layout.cuda_graphs": "router"}), "Megatron-LM")


def test_the_command_writes_a_config_and_names_what_it_did_not_read(tmp_path):
    script, job = tmp_path / "train.sh", tmp_path / "job.yaml"
    script.write_text(SCRIPT)
    done = run("import", "megatron", script, "-o", job)
    assert done.status == 0, done.err
    assert "UNKNOWN   --some-flag: no option of Megatron-LM core" in done.out
    assert "UNKNOWN   --fine-grained-activation-offloading: may change the step" in done.out
    assert "lines 35: not read" in done.out
    assert "H100 SXM" in done.out
    assert done.err == ""
    assert "UNKNOWN   --some-flag" in run("import", "megatron", script).err  # stdout is the config
    names = run("import", "megatron", script, "-o", job, "-v").out.split()
    assert {"lr", "save", "log-interval", "adam-beta2"} <= set(names)
    assert ppsim.load_config(job).simulate().makespan > 0
    assert run("import", "megatron", script, "--strict").status == 1
    script.write_text(SCRIPT.replace("--some-flag", "--rampup-batch-size 16 16 1000"))
    done = run("import", "megatron", script, "-o", job, "--device", "A100 SXM")
    assert "rampup" not in "".join(line for line in done.out.splitlines() if line.startswith("UNKNOWN"))
    assert "assumed   link NVLink 4 (--link; ppsim hardware lists others)" in done.out
    assert "interleaved-1f1b x2, 64 microbatches" in done.out


def test_a_script_starts_four_processes_on_a_host_of_gb200_whose_domain_has_72():
    config = ppsim.load_config(CONFIGS / "qwen3-235b-256xgb200.yaml")
    text = ppsim.to_launch(config, "Megatron-LM")
    assert "--nproc-per-node 4 --nnodes 64 " in text
    assert ppsim.from_launch("Megatron-LM", text).data["hardware"]["gpus_per_node"] == 72


@pytest.mark.parametrize(("copies", "each", "hosts"), [(1, 4, 1), (3, 4, 3), (4, 8, 2)])
def test_hosts_start_equal_processes_as_many_as_the_job_has_gpus(copies, each, hosts):
    config = ppsim.load_config(LLAMA).changed({"schedule.devices": 4, "layout.data": copies})  # nodes of 8
    assert f"--nproc-per-node {each} --nnodes {hosts} " in ppsim.to_launch(config, "Megatron-LM")
    assert f"GPUS_PER_NODE={each} ./runner/primus-cli slurm srun -N {hosts} " in ppsim.to_launch(config, "Primus")


def test_export_writes_the_script_of_a_config(tmp_path):
    script = tmp_path / "train.sh"
    assert run("export", LLAMA, "-o", script).out == ""
    assert script.read_text() == run("export", LLAMA).out == ppsim.to_launch(LLAMA, "Megatron-LM")
    assert run("export", LLAMA, "--framework", "torchtitan main").out == ppsim.to_launch(LLAMA, "torchtitan main")
    wrong = run("export", LLAMA, "--framework", "deepspeed")
    assert wrong.status == 2
    assert "has no launch files here; use one of: Megatron-LM" in wrong.err


SHELL = {
    "a default": ("${UNSET:-4}", {}),
    "a default inside a default": ("${UNSET:-${OTHER:-4}}", {}),
    "a default for an empty value": ("${EMPTY:-4}", {"EMPTY": '""'}),
    "a default for an unset variable": ("${UNSET-4}", {}),
    "another value": ("${SET:+4}", {"SET": "1"}),
    "an item": ("${SIZES[1]}", {"SIZES": "(2 4 8)"}),
    "a sum": ("$(( (GPUS_PER_NODE * 2) / 4 ))", {}),
    "a choice": ("$(( GPUS_PER_NODE > 4 ? 4 : 2 ))", {}),
    "an argument": ("$1", {}),
    "a default that stays": ("$SIZE", {': "${SIZE:': '4}"'}),
    "a number as Python writes it": ("0_4", {}),
    "a value that must be set": ("${SIZE:?usage}", {"SIZE": "4"}),
    "a comment with a backslash": ("$SIZE", {"# \\\nSIZE": "4"}),
}  # fmt: skip


@pytest.mark.parametrize(("value", "variables"), SHELL.values(), ids=SHELL)
def test_values_of_variables_are_those_of_a_shell(value, variables):
    first = "\n".join(["set -- 4 x", *(f"{name}={text}" for name, text in variables.items())])
    text = f"{first}\n{SCRIPT}".replace("size ${TP}", f"size {value}")
    assert ppsim.from_launch("Megatron-LM", text).costs.layout.tensor == 4


CONDITIONS = {
    "if": "if [[ $TP -gt 1 && -z $OTHER ]]; then\n  X=full\nelse\n  X=selective\nfi",
    "elif": "if [ $TP = 1 ]; then X=none; elif [ $TP -eq 2 ] && [ $PP != 2 ]; then\n  X=full\nfi",
    "else": 'if [ -n "$LEVEL" ] || test $TP -lt 2; then X=none; else X=full; fi',
    "not": "if ! [ $TP = 2 ]; then X=none; else X=full; fi",
    "inside another": "if [ $PP = 4 ]; then if [ $TP = 1 ]; then X=none; else X=full; fi; fi",
    "case": 'case "$NAME" in\n  7b|8b) X=none ;;\n  13*)\n    X=full\n    ;;\n  *) X=none\nesac',
    "and": "[ $TP = 2 ] && X=full",
    "or": "[ $TP = 1 ] || X=full",
    "sums": "if (( TP * PP > 4 )); then X=full; fi",
}


@pytest.mark.parametrize("condition", CONDITIONS.values(), ids=CONDITIONS)
def test_the_branch_is_read_whose_condition_holds(condition):
    lines = f"NAME=13b\n{condition}\ntorchrun"
    text = SCRIPT.replace("\ntorchrun", f"\n{lines}").replace("--save", "--recompute-granularity $X --save")
    assert ppsim.from_launch("Megatron-LM", text).costs.layout.recompute == "full"


def test_flags_that_change_no_step_are_known_and_merges_name_the_tokenizer():
    flags = (
        "--num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 512 --no-position-embedding "
        "--calculate-per-token-loss --no-masked-softmax-fusion"
    )
    reading = read_launch("Megatron-LM", flags)
    assert not reading.unknown
    assert not read_launch("Megatron-LM", f"{flags} --initial-loss-scale 4096 --hysteresis 2").unknown
    assert reading.data["model"]["positions"] == "rotary"
    assert any("no tokenizer is named" in one for one in reading.assumed)
    unfused = read_launch("Megatron-LM", flags + " --attention-backend unfused")
    assert unfused.unknown == ["--no-masked-softmax-fusion: may change the step"]
    assert read_launch("Megatron-LM", flags + " --merge-file m.txt").data["model"]["vocabulary"] == 50304


@pytest.mark.parametrize(
    ("flags", "keys"),
    [
        ("--position-embedding-type none", {"positions": "rotary"}),
        ("--position-embedding-type alibi", {"positions": "rotary"}),
        ("--num-query-groups 2", {"key_value_heads": 4}),
        ("--group-query-attention --num-query-groups 2", {"key_value_heads": 2}),
        ("--num-experts 4 --moe-layer-freq [0,1,1,1]", {"dense_layers": 1}),
        ("--num-experts 4 --moe-layer-freq ([0]*2+[1]*2)", {"dense_layers": 2}),
        ("--num-experts 4 --moe-layer-freq -1", {"experts": 4}),
        ("--num-experts 4 --moe-layer-freq [0,1]*2", {"pattern": "[*-][*E][*-][*E]"}),
        ("--num-experts 4 --moe-layer-freq 2 --multi-latent-attention", {"pattern": "[+E][+-][+E][+-]"}),
        ("--num-experts 4 --first-k-dense-replace 1 --n-shared-experts 2", {"dense_layers": 1, "shared_experts": 2}),
        ("--position-embedding-type own", {"positions": "rotary"}),
        ("--window-size (127,0) --window-attn-skip-freq 4", {"window": 128, "window_period": 4}),
        ("--window-size (127,0) --window-attn-skip-freq [1]*4", {"window": 128, "window_period": 0}),
        ("--data-impl mmap", {"attention": "full"}),
        ("--data-impl mmap --use-flash-attn", {"attention": "flash"}),
        ("--num-key-value-heads 2", {"key_value_heads": 2}),
    ],
)
def test_flags_of_a_model_are_read_as_megatron_does(flags, keys):
    sizes = "--num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 512"
    model = read_launch("Megatron-LM", f"{sizes} '{flags}'").data["model"]
    assert {key: model[key] for key in keys} == keys


def test_an_exchange_of_tokens_is_read_by_its_older_name():
    sizes = "--num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 512 --num-experts 4"
    for name, exchange in {"alltoall_seq": "all-to-all", "flex": "hierarchical"}.items():
        layout = read_launch("Megatron-LM", f"{sizes} --moe-token-dispatcher-type {name}").data["layout"]
        assert layout["expert_exchange"] == exchange


def test_a_line_in_a_loop_or_under_an_unknown_condition_is_named():
    text = SCRIPT.replace("\ntorchrun", "\nfor X in 1 2; do\n  TP=$X\ndone\n[ -d x ] && TP=8\ntorchrun")
    reading = read_launch("Megatron-LM", text)
    assert reading.data["layout"]["tensor"] == 2
    assert [text.split("\n")[line - 1].strip() for line in reading.conditional[1:]] == ["TP=$X", "[ -d x ] && TP=8"]


LAUNCHERS = {
    "mpirun": "mpirun -np 32 -x PATH python pretrain_gpt.py",
    "a container": "srun apptainer exec --nv image.sif torchrun --nproc_per_node=8 --nnodes=4 pretrain_gpt.py",
    "a command line": 'RUN="torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py',
    "Slurm": "srun python pretrain_gpt.py",
}


@pytest.mark.parametrize("launcher", LAUNCHERS.values(), ids=LAUNCHERS)
def test_gpus_are_those_that_the_launcher_starts(launcher):
    text = SCRIPT.replace('torchrun "${DISTRIBUTED_ARGS[@]}" pretrain_gpt.py', launcher)
    text = re.sub("WORLD_SIZE=.*", "cat > hosts <<EOF\nit's a host\nEOF", text)
    if launcher.startswith("RUN"):
        text = text.replace("'/checkpoints/a b' --log-interval 10 |", 'x" 2>&1 && eval "$RUN" |')
    if launcher.startswith("srun python"):
        text = text.replace("#!/bin/bash", "#SBATCH --nodes=4 --time=1\n#SBATCH --gres=gpu:8")
    assert ppsim.from_launch("Megatron-LM", text).costs.layout.data == 4


FSDP = "--use-distributed-optimizer --use-megatron-fsdp --data-parallel-sharding-strategy"
PRECISE = "--use-distributed-optimizer --use-precision-aware-optimizer"
IN_BF16 = "--exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"
SHARDINGS = {
    "optimizer": ("--use-distributed-optimizer", {"distributed_optimizer": True}),
    "gradients": (f"{FSDP} optim_grads", {"distributed_optimizer": True, "sharded_gradients": True}),
    "weights": (f"{FSDP} optim_grads_params", {"sharded": True, "sharded_by": "block"}),
    "hybrid": (
        f"{FSDP} optim_grads_params --num-distributed-optimizer-instances 2",
        {"sharded": True, "sharded_by": "block", "replicas": 2},
    ),
    "none": ("", {"distributed_optimizer": False, "sharded": False}),
    "weights in two parts": (f"{PRECISE}", {"optimizer_bytes": 10}),
    "moments in bf16": (f"{PRECISE} {IN_BF16}", {"optimizer_bytes": 6}),
    "moments in bf16, mxfp8": (f"{PRECISE} {IN_BF16} --fp8-format hybrid --fp8-recipe mxfp8", {"optimizer_bytes": 8}),
    "moments in bf16 beside FSDP's own weights": (f"{PRECISE} {IN_BF16} {FSDP} optim_grads", {"optimizer_bytes": 8}),
}  # fmt: skip


@pytest.mark.parametrize(("flags", "keys"), SHARDINGS.values(), ids=SHARDINGS)
def test_what_the_copies_split_is_read(flags, keys):
    script = SCRIPT.replace("NNODES:-2", "NNODES:-4")  # two copies of two GPUs each
    config = ppsim.from_launch("Megatron-LM", script.replace("--use-distributed-optimizer", flags))
    layout = config.costs.layout
    assert {key: getattr(layout, key) for key in keys} == keys
    again = ppsim.from_launch("Megatron-LM", ppsim.to_launch(config, "Megatron-LM"))
    ours, theirs = config.simulate(), again.simulate()
    assert (theirs.makespan, theirs.peak_memory.tolist()) == (ours.makespan, ours.peak_memory.tolist())


def test_a_file_that_the_script_sources_is_named_if_a_value_is_missing():
    text = SCRIPT.replace("TP=2; PP=4", "source ./model.sh").replace("${TP}", "$TP")
    with pytest.raises(ppsim.ConfigError, match=re.escape("put the lines of ./model.sh in its place")):
        ppsim.from_launch("Megatron-LM", text)
    assert ppsim.from_launch("Megatron-LM", text.replace("source ./model.sh", "TP=2 PP=4")).costs.layout.tensor == 2
    with pytest.raises(ppsim.ConfigError, match=re.escape("put the lines of ./train.sh in its place")):
        ppsim.from_launch("Megatron-LM", "export GBS=8\nMODEL=8B bash ./train.sh --swiglu\nbash ./train.sh")


def test_a_script_that_writes_the_one_it_submits_is_read_with_its_lines():
    inner = SCRIPT.partition("GPUS_PER_NODE=8")[2].replace("$GPUS_PER_NODE ", "\\$GPUS_PER_NODE ")
    text = f"TP=4\ncat > job.sh <<EOF\nGPUS_PER_NODE=8{inner}EOF\nsbatch --wait job.sh\n"
    assert ppsim.from_launch("Megatron-LM", text).costs.layout.data == 2


def test_world_size_counts_nodes_if_the_processes_of_a_node_are_unknown():
    text = SCRIPT.replace("WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))", "WORLD_SIZE=1").replace(
        "PER_NODE=8", "PER_NODE=$(n)"
    )
    assert any("8 GPUs, the fewest" in one for one in read_launch("Megatron-LM", text).assumed)


def test_an_encoder_alone_is_priced_as_a_decoder_and_says_so():
    reading = read_launch("Megatron-LM", SCRIPT.replace("pretrain_gpt.py", "pretrain_bert.py"))
    assert reading.unknown[0] == "pretrain_bert.py: priced as pretrain_gpt.py, as a decoder"


def test_a_missing_value_is_named_with_the_line_that_gives_it():
    text = SCRIPT.replace("TP=2; PP=4", "TP=$1; PP=4")
    with pytest.raises(ppsim.ConfigError, match=r"or a first line TP=8; the script takes arguments: .* `set -- A B`"):
        ppsim.from_launch("Megatron-LM", text)
    assert ppsim.from_launch("Megatron-LM", f"set -- 2\n{text}").costs.layout.tensor == 2


@pytest.mark.parametrize("flags", ["--checkpoint-activations", "--activations-checkpoint-method uniform"])
def test_recompute_is_read_by_its_names_of_earlier_years(flags):
    text = SCRIPT.replace("--sequence-parallel", flags)
    assert ppsim.from_launch("Megatron-LM", text).costs.layout.recompute == "full"


def test_words_of_an_array_may_hold_a_flag_with_its_value():
    flags = "    '--recompute-granularity full' \"--recompute-method block\" $NONE"
    text = SCRIPT.replace("    --sequence-parallel", flags)
    assert ppsim.from_launch("Megatron-LM", text).costs.layout.recompute == "full"


EIGHT_EXPERTS = "--num-experts 8 --expert-model-parallel-size 8"
WRONG = {
    "no flags": ("echo hello", "holds no flags"),
    "FlagScale's YAML": ("model:\n  num_layers: 4\n", "or its flags, such as --num-layers 32 for num_layers: 32"),
    "layers that do nothing": (SCRIPT.replace("--swiglu", "--noop-layers 30,31"), "without the layers that do nothing"),
    "layers per stage": (
        SCRIPT.replace("--swiglu", "--num-layer-list 7,8,8,9"),
        "the layers of each stage as in",
    ),
    "no size": ("--num-layers 4", "--hidden-size"),
    "a word for a number": (SCRIPT.replace("--num-layers 32", "--num-layers many"), "'many'"),
    "an unset variable": (SCRIPT.replace("--hidden-size 4096", "--hidden-size $HIDDEN"), "--hidden-size"),
    "an open quote": ("X='--num-layers 4", "quote"),
    "GPUs": (SCRIPT.replace("GPUS_PER_NODE=8", "GPUS_PER_NODE=3"), "6 GPUs"),
    "GPUs for experts": (SCRIPT.replace("--swiglu", f"--swiglu {EIGHT_EXPERTS}"), "give --gpus 64"),
    "no stage": (SCRIPT.replace("--swiglu", "--context-parallel-size 0"), "--context-parallel-size '0'"),
    "another model": (SCRIPT.replace("pretrain_gpt.py", "pretrain_t5.py"), "calls pretrain_t5.py"),
    "blocks": (SCRIPT.replace("--swiglu", "--num-experts 2 --moe-layer-freq [0,1]"), "of 32 blocks"),
    "a batch": (SCRIPT.replace("--global-batch-size 128", "--global-batch-size 127"), "127"),
    "uneven layers": (SCRIPT.replace("--num-layers 32", "--num-layers 33"), "33"),
    "a word of no list": (SCRIPT.replace("RMSNorm", "BatchNorm"), "BatchNorm"),
}


@pytest.mark.parametrize(("text", "named"), WRONG.values(), ids=WRONG)
def test_a_script_that_cannot_be_read_is_an_error_that_names_why(text, named):
    with pytest.raises(ppsim.ConfigError, match=re.escape(named)):
        ppsim.from_launch("Megatron-LM", text)


@pytest.mark.parametrize(
    ("flags", "partition", "stages"),
    [
        ("", "even", None),
        ("--num-virtual-stages-per-pipeline-rank 2", "even", 2),
        ("--decoder-first-pipeline-num-layers 7 --decoder-last-pipeline-num-layers 7", [7, 9, 9, 7], None),
        ("--num-layers 30 --account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split",
         [7, 8, 8, 7], None),
        ("--pipeline-model-parallel-layout 'Et*7|(t*9|)*2t*7L'", "Et*7|(t*9|)*2t*7L", None),
        (r"--pipeline-model-parallel-layout 'Et*7\|\(t*9\|\)*2t*7L'", "Et*7|(t*9|)*2t*7L", None),  # for eval
    ],
)  # fmt: skip
def test_layers_of_stages_are_split_as_megatron_does(flags, partition, stages):
    text = SCRIPT.replace("--num-layers-per-virtual-pipeline-stage 4", flags)
    data = ppsim.from_launch("Megatron-LM", text).data
    assert data["layout"].get("partition", "even") == partition
    assert data["schedule"].get("stages_per_device") == stages


def test_frameworks_without_launch_files_are_named():
    with pytest.raises(ppsim.ConfigError, match="Megatron-LM"):
        ppsim.to_launch(LLAMA, "nanotron")


HYBRID = {
    "model": {
        "num_layers": 6, "hidden": 1024, "heads": 16, "key_value_heads": 4, "ffn": 4096, "vocabulary": 32000,
        "sequence": 2048, "norm": "rmsnorm", "state_heads": 32, "state_head_size": 64, "state_size": 128,
        "experts": 8, "experts_per_token": 2, "expert_ffn": 1024, "expert_hidden": 512, "prediction_layers": 1,
    },
    "hardware": {"device": "H100 SXM", "link": "NVLink 4", "gpus": 4},
    "layout": {"framework": "megatron-core", "data": 2, "expert": 2},
    "schedule": {"name": "1f1b", "devices": 2, "microbatches": 4},
}  # fmt: skip


def with_pattern(pattern, **others):
    return {**HYBRID, "model": {**HYBRID["model"], "pattern": pattern, **others}}


@pytest.mark.parametrize(
    ("pattern", "more", "printed"),
    [
        ("MEM*ME/*E", {}, "MEM|*ME/*E"),
        ("ME|M*ME", {}, "ME|M*ME/*E"),
        ("GEGE|*E", {"state_groups": 16, "attention_gate": True, "shared_gate": True, "shared_experts": 1},
         "GEGE|*E/*E"),
    ],
)  # fmt: skip
def test_a_hybrid_is_printed_with_its_stages_and_read_back(pattern, more, printed):
    config = with_pattern(pattern, **more)
    text = ppsim.to_launch(config, "Megatron-LM")
    assert "pretrain_hybrid.py --spec megatron.core.models.hybrid.hybrid_layer_specs hybrid_stack_spec" in text
    assert f"--hybrid-layer-pattern '{printed}'" in text
    assert "--pipeline-model-parallel-layout" not in text
    back = ppsim.from_launch("Megatron-LM", text)
    assert (back.model.pattern, back.model.num_layers) == (printed, 6)
    assert back.model.step_flops() == pytest.approx(as_config(config).model.step_flops())
    assert "pretrain_mamba.py --spec megatron.core.models.mamba" in ppsim.to_launch(config, "Megatron-LM core 0.17.1")


@pytest.mark.parametrize(
    ("pattern", "printed"),
    [
        ("[GE][GE][*E][GE][GE][*E]", "--linear-attention-freq '([1]*2+[0]*1)*2'"),
        ("[GE][G-]|[GE][*E][*-][*E]", "--moe-layer-freq '([1]*1+[0]*1+[1]*1)*2'"),
        ("[*-][*E][*-][*E][*-][*E]", "--moe-layer-freq '([0]*1+[1]*1)*3'"),
        ("[*-][*-][GE][GE][GE][GE]/[GE]", "--linear-attention-freq '[0]*2+[1]*4'"),
    ],
)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_blocks_of_two_sublayers_are_layers_of_pretrain_gpt(pattern, printed, recompute):
    """Qwen3-Next's own script has the flags of delta nets; its bars and full recompute are of blocks, not sublayers."""
    config = as_config(with_pattern(pattern, state_groups=16)).changed({"layout.recompute": recompute})
    text = ppsim.to_launch(config, "Megatron-LM")
    assert printed in text
    assert "pretrain_gpt.py" in text
    assert "--hybrid-layer-pattern" not in text
    back, costs, schedule = ppsim.from_launch("Megatron-LM", text), config.costs, config.build()
    assert back.model.pattern == pattern.replace("|", "")
    assert back.costs.table(schedule) == costs.table(schedule)


@pytest.mark.parametrize(
    ("flag", "pattern"),
    [
        ("--moe-layer-freq 2", "[*E][*-][*E][*-]/[*-]"),
        ("--moe-layer-freq ([0]+[1])*2 --window-size 127,0 --window-attn-skip-freq 4", "[W-][WE][W-][*E]"),
        ("--experimental-attention-variant gdn --linear-attention-freq 4", "[GE][GE][GE][*E]"),
        ("--experimental-attention-variant gated_delta_net --linear-attention-freq (([0]+[1])*1+[1]*2)",
         "[*E][GE][GE][GE]/[GE]"),
    ],
)  # fmt: skip
def test_blocks_of_several_kinds_are_read_as_a_pattern(flag, pattern):
    sizes = "--num-layers 4 --hidden-size 256 --num-attention-heads 4 --seq-length 512 --num-experts 4"
    assert read_launch("Megatron-LM", f"{sizes} --mtp-num-layers 1 '{flag}'").config().model.pattern == pattern
    with pytest.raises(ppsim.ConfigError, match="must be a number, or a list of 4 blocks"):
        read_launch("Megatron-LM", f"{sizes} --moe-layer-freq '[1]*9999*9999*9999'")


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (with_pattern("WEMEKE", window=128, state_groups=32), "no letter for K, W; it has MG"),
        (with_pattern("[ME][*E][*E]", num_layers=3), "a block of several sublayers must be"),
        (with_pattern("[*E][*E][GE]", num_layers=3, state_groups=16), "are copies of the last block; write /\\[GE"),
        (with_pattern("[GE][GE][*E]", num_layers=3, state_groups=1) | {"layout": {"tensor": 2}}, "a multiple of"),
    ],
)  # fmt: skip
def test_a_hybrid_that_megatron_lm_lacks_is_one_clear_error(config, message):
    with pytest.raises(ppsim.ConfigError, match=message):
        ppsim.to_launch(config, "Megatron-LM")
    with pytest.raises(ppsim.ConfigError, match=r"core 0\.16\.1 has no --hybrid-layer-pattern"):
        ppsim.to_launch(with_pattern("MEM*ME"), "Megatron-LM core 0.16.1")


def test_the_older_names_of_a_pattern_are_read():
    flags = (
        "pretrain_mamba.py --is-hybrid-model --hybrid-override-pattern M-M*M- --hidden-size 1024 --seq-length 2048 "
        "--num-attention-heads 16 --mtp-num-layers 2 --mtp-hybrid-override-pattern '*-' --micro-batch-size 1 "
        "--pipeline-model-parallel-size 2"
    )
    reading = read_launch("Megatron-LM", flags, gpus=2)
    model = reading.config().model
    assert (model.pattern, model.prediction_layers) == ("M-M*M-/*-/*-", 2)
    assert (model.state_heads, model.state_head_size, model.state_size, model.state_groups) == (32, 64, 128, 8)
    with pytest.raises(ppsim.ConfigError, match="its stages are no multiple of 2"):
        read_launch("Megatron-LM", flags.replace("M-M*M-", "'M-|M*|M-'"), gpus=2).config()


def test_residual_streams_are_printed_and_read():
    changes = {"model.residual_streams": 4, "layout.recompute": "streams", "schedule.devices": 1, "hardware.gpus": 1}
    script = ppsim.to_launch(ppsim.load_config(LLAMA, overrides=changes), "Megatron-LM")
    assert "--enable-mhc-connections --mhc-num-residual-streams 4" in script
    assert "--recompute-modules mhc" in script
    read = read_launch("Megatron-LM", script).config()
    assert (read.model.residual_streams, read.costs.layout.recompute) == (4, "streams")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.residual_block": 4}, "model.residual_block=4: it has no flag for this"),
        ({"model.residual_streams": 4}, "model.residual_streams=4: excludes pipeline"),
        ({"model.residual_streams": 4, "layout.recompute": "full"}, "residual_streams=4: excludes full recompute"),
        ({"model.residual_streams": 4, "model.prediction_layers": 1}, "residual_streams=4: excludes prediction"),
        ({"model.residual_streams": 4, "model.experts": 8, "model.experts_per_token": 2}, "=4: excludes experts"),
        ({"layout.recompute": "streams"}, "layout.recompute=streams: the model has one residual"),
    ],
)
def test_residuals_that_megatron_lm_rejects_are_one_clear_error(changes, message):
    with pytest.raises(ppsim.ConfigError, match=message):
        ppsim.to_launch(ppsim.load_config(LLAMA, overrides=changes), "Megatron-LM")
