"""Launch files: random configs read back as what was simulated; damaged scripts end in a config or one clear error."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_launch_megatron import SCRIPT
from test_launch_primus import EXPERIMENT
from test_launch_torchtitan import JOB

import ppsim
from ppsim.config import as_config
from tests.fuzz.cases import case, damaged_bytes, fuzz, some

SCHEDULES = {
    "Megatron-LM": ["1f1b", "interleaved-1f1b", "interleaved-1f1b", "combined-1f1b"],
    "torchtitan": ["1f1b", "gpipe", "interleaved-1f1b", "looped-bfs", "interleaved-zb", "zb-v", "dualpipe-v", "zb-h1"],
    "Primus": ["1f1b", "interleaved-1f1b", "zb-h1", "zb-v"],
}
V = ("zb-v", "dualpipe-v")
FLAGS = ["--training.seq_len", "64", "-1", "${X:-4}", "$((2*3))", "A=(--num-layers", ")", "if x", "fi", "\\", "'", "\n"]
TORCHRUN = "NGPU=8 torchrun -m torchtitan.train --module llama3 --config llama3_8b --training.seq_len 4096\n"
TEXTS = {"Megatron-LM": [SCRIPT], "torchtitan": [JOB, TORCHRUN], "Primus": [EXPERIMENT]}


@st.composite
def random_configs(draw, framework):
    """A small model on a few GPUs under a schedule of the framework, its blocks spread evenly or at random."""
    name = draw(st.sampled_from(SCHEDULES[framework]))
    devices = draw(st.sampled_from([1, 2, 4] if name in ("1f1b", "gpipe") else [2, 4]))
    several = name in V or name in ("interleaved-1f1b", "looped-bfs", "interleaved-zb", "combined-1f1b")
    stages = devices * ((2 if name in V else draw(st.integers(2, 3))) if several else 1)
    blocks = [draw(st.integers(1, 3)) for _ in range(stages)]
    experts = name == "combined-1f1b" or draw(st.booleans())
    routed = {"experts": 8, "experts_per_token": 2, "expert_ffn": 512, "dense_layers": draw(st.integers(0, 1))}
    tensor, context = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2]))
    gated = draw(st.booleans()) or framework == "torchtitan"
    return {
        "model": {
            "num_layers": sum(blocks), "hidden": 512, "heads": 8, "key_value_heads": draw(st.sampled_from([2, 8])),
            "ffn": draw(st.sampled_from([1024, 1536])), "vocabulary": draw(st.sampled_from([32000, 1003])),
            "sequence": 2048, "gated": gated, **(routed if experts else {}),
        },
        "hardware": {"device": "H100 SXM", "link": "NVLink 4"},
        "layout": {
            "tensor": tensor, "context": context, "data": draw(st.sampled_from([1, 2, 4])),
            "expert": 2 if experts and tensor * context > 1 else 1, "expert_tensor": 1,
            "sequence_parallel": draw(st.booleans()) and tensor > 1,
            "microbatch_size": draw(st.integers(1, 3)), "recompute": draw(st.sampled_from(["none", "full"])),
            "partition": draw(st.sampled_from(["even", blocks])),
            "sharded": framework == "torchtitan" and (context > 1 or draw(st.booleans())),
            "sharded_by": draw(st.sampled_from(["block", "stage"])),
            "framework": "torchtitan" if framework == "torchtitan" else "megatron-core",
            **({"overlap": "two-stream"} if name == "combined-1f1b" else {}),
        },
        "schedule": {
            "name": name, "devices": devices, "microbatches": devices * draw(st.integers(1, 4)),
            **({"stages_per_device": stages // devices} if several and name not in V else {}),
        },
    }  # fmt: skip


@pytest.mark.parametrize("framework", SCHEDULES)
@given(data=st.data())
@some(1.5)
def test_what_is_printed_reads_back_as_what_was_simulated(framework, data):
    config = as_config(data.draw(random_configs(framework)))
    with case(f"configs printed for {framework}, and read back"):
        text = ppsim.to_launch(config, framework)
        back = ppsim.from_launch(framework, text)
        if "csv" in back.schedule:
            back = back.changed({"schedule.csv": None, **{f"schedule.{k}": v for k, v in config.schedule.items()}})
        schedule = config.build()
        assert back.build() == schedule
        assert isinstance(config.costs, ppsim.DerivedCosts)
        assert isinstance(back.costs, ppsim.DerivedCosts)
        assert back.costs.stages(schedule.num_stages) == config.costs.stages(schedule.num_stages)
        assert back.costs.gpus(schedule.devices) == config.costs.gpus(schedule.devices)
        for size in ("tensor", "context", "data", "expert", "microbatch_size"):
            assert getattr(back.costs.layout, size) == getattr(config.costs.layout, size)
        for size in ("num_layers", "hidden", "heads", "key_value_heads", "ffn", "sequence", "experts", "dense_layers"):
            assert getattr(back.costs.model, size) == getattr(config.costs.model, size)


@pytest.mark.parametrize("framework", TEXTS)
@given(data=st.data())
@fuzz
def test_damaged_scripts_end_in_a_config_or_one_clear_error(framework, data):
    text = data.draw(st.sampled_from(TEXTS[framework]))
    if data.draw(st.booleans()):
        content = data.draw(damaged_bytes(text.encode())).decode(errors="replace")
    else:
        words = text.split(" ")
        for _ in range(data.draw(st.integers(1, 4))):
            words.insert(data.draw(st.integers(0, len(words))), data.draw(st.sampled_from(FLAGS)))
        content = " ".join(words)
    began = time.process_time()
    with case(f"damaged launch files of {framework}"):
        ppsim.from_launch(framework, content, gpus=32 if framework == "torchtitan" else None)
    assert time.process_time() - began < 20
