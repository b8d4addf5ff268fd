"""Charts of 131,072 actions and traces of a million."""

import pytest

import ppsim

COSTS = ppsim.Costs(forward=1.0, backward=2.0, latency=0.1)


@pytest.fixture(scope="module")
def run_of_131072():
    return ppsim.simulate(ppsim.build("1f1b", devices=64, microbatches=1024), COSTS)


@pytest.fixture(scope="module")
def run_of_a_million():
    return ppsim.simulate(ppsim.build("1f1b", devices=64, microbatches=8192), COSTS)


def written(benchmark, run, name, write, path):
    benchmark.pedantic(write, (run, path), rounds=2)
    benchmark.extra_info.update(output=name, actions=len(run.schedule), megabytes=path.stat().st_size / 1e6)


def test_png(benchmark, run_of_131072, tmp_path):
    written(benchmark, run_of_131072, "Gantt chart, PNG", type(run_of_131072).save, tmp_path / "run.png")


def test_html(benchmark, run_of_131072, tmp_path):
    written(benchmark, run_of_131072, "Gantt chart, HTML", type(run_of_131072).save, tmp_path / "run.html")


@pytest.mark.parametrize(("suffix", "name"), [("pftrace", "Perfetto trace"), ("json", "Chrome trace, JSON")])
def test_trace(benchmark, run_of_a_million, tmp_path, suffix, name):
    written(benchmark, run_of_a_million, name, type(run_of_a_million).to_perfetto, tmp_path / f"run.{suffix}")
