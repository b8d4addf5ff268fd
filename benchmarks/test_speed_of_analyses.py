"""Each analysis of a run of 131,072 actions."""

import pytest

import ppsim

COSTS = ppsim.Costs(
    forward=1.0,
    backward=2.0,
    latency=0.1,
    activation_bytes=1e9,
    weight_bytes=2e9,
    gradient_bytes=2e9,
    optimizer_bytes=4e9,
)
ANALYSES = {
    "peak activations": lambda run: run.peak_activations,
    "peak memory": lambda run: run.peak_memory,
    "ledger": lambda run: run.ledger(),
    "critical path": lambda run: run.critical_path(),
    "slack": lambda run: run.slack(),
    "lower bound": lambda run: run.lower_bound(),
    "sensitivities": lambda run: run.sensitivities(),
}


@pytest.mark.parametrize("name", ANALYSES)
def test_analysis(benchmark, name):
    schedule = ppsim.build("1f1b", devices=64, microbatches=1024)

    def fresh():
        return (ppsim.simulate(schedule, COSTS, engine="compiled"),), {}

    benchmark.pedantic(ANALYSES[name], setup=fresh, rounds=5, warmup_rounds=1)
    benchmark.extra_info.update(analysis=name, actions=len(schedule))
