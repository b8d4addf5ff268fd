"""Jitter of one run: slow devices, slow links and noise, on both engines, and what the ledger says of it."""

import numpy as np
import pytest
from timelines import actions, transfers

import ppsim

ENGINES = pytest.mark.parametrize("engine", ["event", "compiled"])
COSTS = ppsim.Costs(forward=1, backward=2, latency=0.5)


def run(engine="auto", **options):
    return ppsim.simulate(ppsim.build("1f1b", devices=2, microbatches=2), COSTS, engine=engine, **options)


@ENGINES
def test_a_slow_device_takes_longer_for_everything_it_computes(engine):
    slow = run(engine, jitter=ppsim.Jitter(slow_devices={1: 2.0}))
    assert actions(slow) == [
        "0F0 0-1  0F1 1-2  0B0 8-10  0B1 14-16",
        "1F0 1.5-3.5  1B0 3.5-7.5  1F1 7.5-9.5  1B1 9.5-13.5",
    ]


@ENGINES
def test_a_slow_link_is_slow_both_ways(engine):
    slow = run(engine, jitter=ppsim.Jitter(slow_links={(0, 1): 4.0}))
    assert transfers(slow) == {"1F0": (1, 3), "1F1": (2, 4), "0B0": (6, 8), "0B1": (9, 11)}


def test_a_slow_device_is_slow_in_its_optimizer_step():
    costs = ppsim.Costs(forward=1, backward=2, optimizer_step=1)
    slow = ppsim.simulate(
        ppsim.build("1f1b", devices=2, microbatches=2),
        costs,
        optimizer="post-validated",
        jitter=ppsim.Jitter(slow_devices={1: 2.0}),
    )
    assert (slow.optimizer_steps.end - slow.optimizer_steps.start).tolist() == [1, 2]


def test_a_run_is_the_first_sample_of_its_seed():
    jitter = ppsim.Jitter(actions=0.1, transfers=0.1, devices=0.1, links=0.1)
    batch = ppsim.simulate_many(ppsim.build("1f1b", devices=2, microbatches=2), COSTS, jitter=jitter, samples=2, seed=5)
    assert run(jitter=jitter, seed=5).makespan == batch.makespan[0]
    assert run(jitter=jitter, seed=6).makespan != batch.makespan[0]


def test_the_ledger_calls_imbalance_what_a_device_that_was_set_slower_causes():
    quiet, slow = run(), run(jitter=ppsim.Jitter(slow_devices={1: 2.0}))
    assert quiet.ledger()["imbalance"].tolist() == [0, 0]
    # Device 0 waits 9 s for what device 1 computes, and 4.5 s if both are 1.5 x slower.
    assert slow.ledger()["imbalance"].tolist() == pytest.approx([4.5, 0])
    assert slow.ledger()["jitter"].sum() == 0.0
    assert slow.ledger().total == pytest.approx(slow.device_idle)


def test_what_is_no_jitter_is_refused():
    with pytest.raises(ppsim.ConfigError, match=r"jitter=0\.1 must be a ppsim\.Jitter"):
        run(jitter=0.1)
    with pytest.raises(ppsim.ConfigError, match="seed=-1 must be a whole number of at least 0"):
        run(jitter=ppsim.Jitter(actions=0.1), seed=-1)
    with pytest.raises(ppsim.CostError, match="slow_devices names device 7"):
        run(jitter=ppsim.Jitter(slow_devices={7: 2.0}))


def test_the_result_document_says_what_noise_was_drawn():
    assert run().to_dict()["jitter"] is None
    drawn = run(jitter=ppsim.Jitter(actions=0.1, slow_links={(0, 1): 2.0}), seed=7)
    document = drawn.to_dict()["jitter"]
    assert (document["actions"], document["slow_links"], document["seed"]) == (0.1, {"(0, 1)": 2.0}, 7)
    assert ", jitter (seed 7)\n" in drawn.summary(verbose=True, costs=True)
    slow = ppsim.Jitter(slow_devices={1: 1.1}, slow_links={(0, 1): 2.0})
    never_drawn = ppsim.simulate(drawn.schedule, jitter=slow).summary(verbose=True, costs=True)
    assert ", device 1 x 1.1, link 0-1 x 2\n" in never_drawn
    assert "seed" not in never_drawn


def test_numbers_of_numpy_are_numbers_of_a_jitter():
    jitter = ppsim.Jitter(actions=np.float32(0.5), slow_devices={0: np.int64(2)})
    assert jitter == ppsim.Jitter(actions=0.5, slow_devices={0: 2.0})


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"links": 3.5}, "jitter links=3.5 must be a relative spread from 0 to 3"),
        (
            {"slow_links": 2.0},
            "jitter slow_links=2.0 must map a pair of devices to a factor, such as",
        ),
        ({"slow_devices": {3: 0}}, r"jitter slow_devices=\{3: 0}: 0 must be a factor above 0"),
    ],
)
def test_what_is_no_jitter_is_said_as_in_a_config(given, sentence):
    with pytest.raises(ppsim.CostError, match=f"^{sentence}"):
        ppsim.Jitter(**given)
