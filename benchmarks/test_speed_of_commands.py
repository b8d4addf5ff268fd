"""What users call, from ten thousand to ten million actions: time an action."""

import subprocess
import sys

import pytest

import ppsim

COSTS = ppsim.Costs(forward=1.0, backward=2.0, latency=0.1)
MICROBATCHES = [80, 800, 8_000, 80_000]  # of 64 devices: 10^4 to 10^7 actions


def calls(schedule, path):
    """Each call by name; a run for the chart and the trace is made beforehand."""
    run = ppsim.simulate(schedule, COSTS, engine="compiled")
    lists = schedule.kind, schedule.stage, schedule.microbatch, schedule.offsets
    sizes = {"name": "1f1b", "devices": 64, "microbatches": schedule.microbatches}
    config = {"schedule": sizes, "costs": {"forward": 1.0, "backward": 2.0, "latency": 0.1}}
    return {
        "simulate": lambda: ppsim.simulate(schedule, COSTS, engine="compiled").bubble_fraction,
        "compare": lambda: ppsim.compare(config, ["1f1b", "eager-1f1b"]),
        "validate": lambda: ppsim.Schedule(*lists).validate(),
        "chart (PNG)": lambda: run.save(path / "run.png"),
        "trace (Perfetto)": lambda: run.to_perfetto(path / "run.pftrace"),
    }


@pytest.mark.parametrize("microbatches", MICROBATCHES)
@pytest.mark.parametrize("name", ["simulate", "compare", "validate", "chart (PNG)", "trace (Perfetto)"])
def test_growth(benchmark, tmp_path, name, microbatches):
    schedule = ppsim.build("1f1b", devices=64, microbatches=microbatches)
    call = calls(schedule, tmp_path)[name]
    takes_long = microbatches >= 8_000 and name.startswith(("chart", "trace"))
    benchmark.pedantic(call, rounds=1 if takes_long else 5, warmup_rounds=not takes_long)
    benchmark.extra_info.update(call=name, actions=len(schedule))


def test_simulate_8_million_actions_with_a_chart(compare, tmp_path):
    command = [sys.executable, "-m", "ppsim", "simulate", "--schedule", "1f1b", "--devices", "64"]
    command += ["--microbatches", "62500"]
    compare.benchmark.extra_info.update(actions=8_000_000)
    compare(
        lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL),  # noqa: S603 - our own
        lambda: subprocess.run([*command, "--gantt", str(tmp_path / "run.png")], check=True, stdout=subprocess.DEVNULL),  # noqa: S603 - our own
        other_name="without a chart",
        rounds=1,
        own_per_other=1,
    )
