"""Build, simulate and measure from ten thousand to ten million actions: time and memory of an action stay the same."""

import subprocess
import sys

import pytest

import ppsim

COSTS = ppsim.Costs(forward=1.0, backward=2.0, latency=0.1)


def whole_path(family, microbatches, transport="async"):
    schedule = ppsim.build(family, devices=64, microbatches=microbatches)
    run = ppsim.simulate(schedule, COSTS, engine="compiled", transport=transport)
    return len(schedule), run.makespan, run.bubble_fraction, run.span, run.peak_activations


@pytest.mark.parametrize("microbatches", [80, 625, 1024, 7_800, 62_500, 78_125])
def test_whole_path_of_1f1b(benchmark, microbatches):
    actions, *_ = benchmark.pedantic(whole_path, ("1f1b", microbatches), rounds=9, warmup_rounds=1)
    benchmark.extra_info.update(family="1f1b", actions=actions)


@pytest.mark.parametrize("microbatches", [64, 1024, 31_232])
def test_whole_path_of_interleaved_1f1b(benchmark, microbatches):
    actions, *_ = benchmark.pedantic(whole_path, ("interleaved-1f1b", microbatches), rounds=9, warmup_rounds=1)
    benchmark.extra_info.update(family="interleaved-1f1b", actions=actions)


MEASURE = """
import re, sys
from pathlib import Path
sys.path.insert(0, "benchmarks")
from test_speed_of_growth import whole_path

def peak():
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

family, microbatches, transport = sys.argv[1:]
whole_path("1f1b", 80, transport)
before = peak()
actions = whole_path(family, int(microbatches), transport)[0]
print(actions, peak() - before)
"""


@pytest.mark.parametrize(
    ("family", "microbatches", "transport"),
    [
        ("1f1b", 62_500, "async"),
        ("interleaved-1f1b", 31_232, "async"),
        ("1f1b", 781_250, "async"),
        ("1f1b", 62_500, "directed"),
        ("interleaved-1f1b", 31_232, "rank"),
    ],
)
def test_peak_memory(benchmark, family, microbatches, transport):
    """Bytes by which the whole path raises the peak of a fresh process."""
    command = [sys.executable, "-c", MEASURE, family, str(microbatches), transport]
    printed = benchmark.pedantic(subprocess.check_output, (command,), rounds=1)
    actions, peak = map(int, printed.split())
    benchmark.extra_info.update(family=family, transport=transport, actions=actions, bytes=peak)
