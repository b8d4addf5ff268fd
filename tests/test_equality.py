"""`==` of what the library returns: equal for two runs of the same, unequal for another, and never an error."""

import numpy as np
import pytest

import ppsim
from ppsim.costs.profile import Profile

HELD = {"activation_bytes": 10.0, "weight_bytes": 100.0}


def run(**costs):
    return ppsim.simulate(ppsim.build("zb-h1", devices=2, microbatches=4), ppsim.Costs(**HELD, **costs))


def batch(**costs):
    return ppsim.simulate_many(ppsim.build("1f1b", devices=2, microbatches=4), [ppsim.Costs(**costs)])


@pytest.mark.parametrize(
    "made",
    [
        run,
        lambda **costs: run(**costs).memory(),
        lambda **costs: run(**costs).ledger(),
        lambda **costs: run(**costs).lower_bound(),
        lambda **costs: run(**costs).sensitivities(),
        batch,
    ],
    ids=["timeline", "memory", "ledger", "lower bound", "sensitivities", "batch"],
)
def test_two_of_the_same_are_equal_and_of_other_costs_are_not(made):
    assert made(latency=0.5) == made(latency=0.5)
    assert made(latency=5.0, transfer_bytes=3.0) != made(latency=0.0)
    assert made() != "something else"


def test_a_profile_equals_one_of_the_same_costs():
    assert Profile(2, {"F": [1.0], "B": [2.0]}) == Profile(2, {"F": [1.0], "B": [2.0]})
    assert Profile(2, {"F": [1.0], "B": [2.0]}) != Profile(2, {"F": [1.0], "B": [3.0]})


def test_a_device_that_never_has_a_value_still_equals_itself():
    memory = run().memory()
    assert memory == type(memory)(**{**vars(memory), "moment": memory.moment.copy()})
    unknown = np.full(2, np.nan)
    assert type(memory)(*[unknown] * 6) == type(memory)(*[unknown.copy()] * 6)
