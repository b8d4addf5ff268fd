"""Many runs of one schedule at once against as many single simulations."""

import ppsim

COSTS = [ppsim.Costs(forward=1.0 + k / 100, latency=k / 1000) for k in range(200)]


def test_simulate_many(compare):
    schedule = ppsim.build("1f1b", devices=8, microbatches=64)
    compare.benchmark.extra_info.update(runs=len(COSTS), actions=len(schedule))
    compare(
        lambda: [ppsim.simulate(schedule, costs).bubble_fraction for costs in COSTS],
        lambda: ppsim.simulate_many(schedule, COSTS).bubble_fraction,
        other_name="simulate in a loop",
    )
