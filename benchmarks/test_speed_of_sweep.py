"""How fast many points are: 10,000 of up to 16 devices and 256 microbatches, on all processors."""

import ppsim


def test_10_000_points(benchmark):
    over = {
        "schedule.name": ["1f1b", "zb-h1", "gpipe", "interleaved-1f1b:2", "eager-1f1b"],
        "schedule.devices": [2, 4, 8, 16],
        "schedule.microbatches": [16, 32, 64, 128, 256],
        "costs.latency": "0:1:100",
    }
    table = benchmark.pedantic(ppsim.sweep, ({"schedule": {}}, over), rounds=1)
    assert len(table.points) == 10_000
    assert all(point.refused is None for point in table.points)
