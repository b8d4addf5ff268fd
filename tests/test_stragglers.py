"""Stragglers: the slowest of a group is expected to be slower the larger the group is; one alone loses nothing."""

import pytest
from command_line import LLAMA
from test_choose import SMALL

import ppsim
from ppsim.costs import expected_maximum, slowdown, straggler_seconds


@pytest.mark.parametrize("number", [1, 2, 3, 10, 1000])
def test_the_slowest_of_n_uniform_draws_is_expected_at_n_over_n_plus_1(number):
    assert expected_maximum([0, 1], [0, 1], number) == pytest.approx(number / (number + 1))
    assert expected_maximum([0, 0.3, 1], [-1, -0.4, 1], number) == pytest.approx(2 * number / (number + 1) - 1)


def test_the_slower_of_two_that_are_slow_once_in_four_times():
    """A draw is 1 with probability 1/4, else 0: the larger of two is 1 with probability 7/16."""
    assert expected_maximum([0, 0.75, 0.75 + 1e-9, 1], [0, 0, 1, 1], 2) == pytest.approx(7 / 16)


def test_equal_devices_lose_nothing_and_larger_groups_lose_more():
    assert [expected_maximum([0, 1], [0.2, 0.2], number) for number in (1, 8)] == pytest.approx([0.2, 0.2])
    for kind in ("action", "collective"):
        lost = [slowdown(kind, number) for number in (1, 2, 8, 64, 512, 16384)]
        assert lost[0] == 0
        assert lost == sorted(lost)
        assert lost[-1] < 0.25


def lost_by(devices, **layout):
    data = {key: value for key, value in SMALL.items() if key not in ("batch", "layout")}
    gpus = {"hardware": {**SMALL["hardware"], "gpus": None}, "layout": {"microbatch_size": 1, **layout}}
    config = ppsim.load_config(LLAMA).changed({**data, **gpus})
    return straggler_seconds(config.costs, devices, 8)


def test_deep_pipelines_and_large_groups_pay_and_a_tensor_group_counts_as_one_device():
    assert lost_by(1) == lost_by(1, tensor=2) == 0
    assert 0 < 2 * lost_by(2) < 8 * lost_by(8)  # the mean device of eight computes a quarter
    assert lost_by(4) < lost_by(4, data=2) < lost_by(4, data=8)
    assert lost_by(1, context=2) > 0


def test_only_the_rank_counts_stragglers():
    free = {"schedule.name": ["1f1b"], "schedule.devices": [1, 2, 8]}
    expected, certain = (ppsim.choose(SMALL, free, certain=flag) for flag in (False, True))
    steps = [{one.changes["schedule.devices"]: one.step for one in found.ranked} for found in (expected, certain)]
    assert steps[0] == steps[1]
    assert [one.stragglers for one in certain.ranked] == [0, 0, 0]
    for one in expected.ranked:
        run = expected.space.config.changed(one.changes).simulate()
        assert one.step == run.iteration_time
        assert one.stragglers == straggler_seconds(run.costs, run.schedule.devices, run.schedule.microbatches)
