"""How fast many points are: a sweep of 10,000 of up to 16 devices and 256 microbatches, choose at 512 GPUs, and growth.

On all processors; limits of the two largest are in seconds on two cores.
"""

import time

import pytest

import ppsim

TEN_THOUSAND = {
    "schedule.name": ["1f1b", "zb-h1", "gpipe", "interleaved-1f1b:2", "eager-1f1b"],
    "schedule.devices": [2, 4, 8, 16],
    "schedule.microbatches": [16, 32, 64, 128, 256],
    "costs.latency": "0:1:100",
}
LLAMA_3_70B = {  # meta-llama/Meta-Llama-3-70B on huggingface.co; tokens of a batch as in arXiv 2407.21783, section 3.4
    "model": {
        "num_layers": 80, "hidden": 8192, "heads": 64, "key_value_heads": 8, "ffn": 28672, "gated": True,
        "vocabulary": 128256, "sequence": 8192, "norm": "rmsnorm", "attention": "flash",
    },
    "hardware": {
        "device": "H100 SXM", "link": "NVLink 4", "network": "InfiniBand NDR", "gpus_per_node": 8, "gpus": 512,
    },
    "batch": 2048,
    "transport": "directed",
    "optimizer": "sync",
}  # fmt: skip


# By the clock: several processes work, and live on.
pytestmark = pytest.mark.benchmark(timer=time.perf_counter)


def seconds_of(over):
    """Seconds of a sweep by one process, and its points."""
    began = time.perf_counter()
    table = ppsim.sweep({"schedule": {}}, over, workers=1)
    return time.perf_counter() - began, len(table.points)


def test_10_000_points(benchmark):
    table = benchmark.pedantic(ppsim.sweep, ({"schedule": {}}, TEN_THOUSAND), rounds=1)
    benchmark.extra_info.update({"call": "ppsim.sweep, up to 16 x 256", "points": 10_000, "simulated": 10_000})
    assert len(table.points) == 10_000
    assert all(point.refused is None for point in table.points)
    assert benchmark.disabled or benchmark.stats.stats.max < 60


def test_choose_for_llama_3_70b_on_512_gpus_with_all_axes_free(benchmark):
    found = benchmark.pedantic(ppsim.choose, (LLAMA_3_70B,), rounds=1)
    counts = {name: found.counts[name] for name in ("points", "simulated")}
    benchmark.extra_info.update({"call": "ppsim.choose, Llama 3 70B on 512 GPUs", **counts})
    assert found.counts["points"] == sum(number for name, number in found.counts.items() if name != "points")
    assert benchmark.disabled or benchmark.stats.stats.max < 120


def test_growth_is_linear_in_points(benchmark):
    over = {**TEN_THOUSAND, "schedule.devices": [8], "schedule.microbatches": [64]}
    seconds_of(over)  # starts the processes and compiles once
    small, points = seconds_of({**over, "costs.latency": "0:1:200"})
    large, many = benchmark.pedantic(seconds_of, ({**over, "costs.latency": "0:1:800"},), rounds=1)
    assert many == 4 * points
    assert large < 4 * 1.5 * small
