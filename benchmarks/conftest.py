"""How benchmarks measure: what is compared takes turns in one run, so that ratios hold on a busy machine too."""

import os
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec

import pytest

import ppsim
from benchmarks.timers import processor_seconds


class Compare:
    """Times the benchmark's own call against another one; `ratio` is other / own, of the fastest round of each."""

    def __init__(self, benchmark):
        self.benchmark = benchmark

    def __call__(
        self, other: Callable, own: Callable, *, other_name: str, rounds: int = 3, own_per_other: int = 5
    ) -> float:
        other_seconds: list[float] = []

        def turn() -> None:
            if self.turns % own_per_other == 0:
                began = processor_seconds()
                other()
                other_seconds.append(processor_seconds() - began)
            self.turns += 1

        self.turns = 0
        own()
        self.benchmark.pedantic(own, setup=turn, rounds=rounds * own_per_other)
        best = min(other_seconds)
        ratio = best / self.benchmark.stats.stats.min
        self.benchmark.extra_info.update({"other": other_name, "other_seconds": best, "ratio": ratio})
        return ratio


@pytest.fixture
def compare(benchmark) -> Compare:
    return Compare(benchmark)


@pytest.fixture(scope="session", autouse=True)
def compiled_beforehand():
    """Loading Numba and compiling happen once on a machine and are no part of any benchmark."""
    schedule = ppsim.build("gpipe", devices=2, microbatches=2)
    for transport in ("async", "rank"):
        ppsim.simulate(schedule, engine="compiled", transport=transport)


def pytest_benchmark_update_machine_info(config, machine_info):
    """Versions and how busy the machine is, for docs/performance.md; the machine's own name stays out."""
    libraries = ("numpy", "numba", "simpy", "matplotlib", "plotly", "torch")
    machine_info["libraries"] = {name: version(name) for name in libraries if find_spec(name)}
    machine_info["cores"], machine_info["load"] = os.cpu_count(), os.getloadavg()[0]
    machine_info.pop("node", None)
