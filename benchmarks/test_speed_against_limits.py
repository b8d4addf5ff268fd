"""The whole path against a bare compiled replay, the event engine against a plain SimPy model."""

import numpy as np
import pytest

import ppsim
from benchmarks.limits import Replay, plain_simpy

COSTS = ppsim.Costs(forward=1.0, backward=2.0, latency=0.1)


def whole_path(family, microbatches):
    run = ppsim.simulate(ppsim.build(family, devices=64, microbatches=microbatches), COSTS, engine="compiled")
    return run, run.makespan, run.bubble_fraction


@pytest.mark.parametrize(
    ("family", "microbatches"),
    [("1f1b", 1024), ("interleaved-1f1b", 512), ("1f1b", 8192), ("1f1b", 62_500), ("1f1b", 500_000)],
)
def test_whole_path_against_the_limit(compare, family, microbatches):
    run, *_ = whole_path(family, microbatches)
    replay = Replay(run.plan)
    assert np.array_equal(replay.ends, run.row_end)
    actions = len(run.schedule)
    del run
    compare.benchmark.extra_info.update(family=family, actions=actions)
    compare(replay, lambda: whole_path(family, microbatches)[1:], other_name="limit", rounds=9, own_per_other=1)


@pytest.mark.parametrize(("family", "microbatches"), [("1f1b", 1024), ("interleaved-1f1b", 512)])
def test_event_model_against_plain_simpy(compare, family, microbatches):
    schedule = ppsim.build(family, devices=64, microbatches=microbatches)
    run = ppsim.simulate(schedule, COSTS, engine="compiled")
    assert np.array_equal(plain_simpy(run.plan), run.row_end)
    compare.benchmark.extra_info.update(family=family, actions=len(schedule))
    compare(
        lambda: plain_simpy(run.plan),
        lambda: ppsim.simulate(schedule, COSTS, engine="event"),
        other_name="plain SimPy model",
        rounds=3,
        own_per_other=1,
    )


@pytest.mark.parametrize("microbatches", [1024, 8192, 62_500])
def test_validation_within_build(compare, microbatches):
    schedule = ppsim.build("1f1b", devices=64, microbatches=microbatches)
    compare.benchmark.extra_info.update(actions=len(schedule))
    compare(
        lambda: ppsim.build("1f1b", devices=64, microbatches=microbatches),
        lambda: ppsim.Schedule(schedule.kind, schedule.stage, schedule.microbatch, schedule.offsets).validate(),
        other_name="build",
        rounds=9,
        own_per_other=1,
    )
