"""1F1B and eager 1F1B: their lists, whole small timelines and closed forms."""

import pytest
from hypothesis import given
from strategies import devices, microbatches
from timelines import actions, transfers

from ppsim import Costs, build, simulate


def lists(schedule):
    return [" ".join(order) for order in schedule.orders()]


def test_1f1b_warms_up_with_p_minus_r_minus_1_forwards_and_then_alternates():
    assert lists(build("1f1b", devices=3, microbatches=4)) == [
        "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3",
        "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3",
        "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3",
    ]


@given(devices, microbatches)
def test_the_last_device_of_1f1b_starts_with_its_first_backward_not_with_a_second_forward(p, m):
    last = build("1f1b", devices=p, microbatches=m).orders()[-1]
    assert last == [f"{p - 1}{kind}{microbatch}" for microbatch in range(m) for kind in "FB"]


def test_1f1b_with_fewer_microbatches_than_its_warm_up():
    assert lists(build("1f1b", devices=4, microbatches=2)) == [
        "0F0 0F1 0B0 0B1",
        "1F0 1F1 1B0 1B1",
        "2F0 2F1 2B0 2B1",
        "3F0 3B0 3F1 3B1",
    ]


def test_1f1b_timeline():
    run = simulate(build("1f1b", devices=3, microbatches=4), Costs(forward=1, backward=2))
    assert actions(run) == [
        "0F0 0-1  0F1 1-2  0F2 2-3  0B0 7-9  0F3 9-10  0B1 10-12  0B2 13-15  0B3 16-18",
        "1F0 1-2  1F1 2-3  1B0 5-7  1F2 7-8  1B1 8-10  1F3 10-11  1B2 11-13  1B3 14-16",
        "2F0 2-3  2B0 3-5  2F1 5-6  2B1 6-8  2F2 8-9  2B2 9-11  2F3 11-12  2B3 12-14",
    ]
    assert (run.makespan, run.span) == (18, 18)
    assert run.bubble_fraction == pytest.approx(2 / 6)
    assert run.device_busy.tolist() == [12, 12, 12]
    assert run.device_idle.tolist() == [6, 6, 6]


def test_1f1b_timeline_with_latency_each_way():
    run = simulate(build("1f1b", devices=2, microbatches=3), Costs(forward=1, backward=2, latency=0.25))
    assert actions(run) == [
        "0F0 0-1  0F1 1-2  0B0 4.5-6.5  0F2 6.5-7.5  0B1 7.5-9.5  0B2 11-13",
        "1F0 1.25-2.25  1B0 2.25-4.25  1F1 4.25-5.25  1B1 5.25-7.25  1F2 7.75-8.75  1B2 8.75-10.75",
    ]
    assert transfers(run) == {
        "1F0": (1, 1.25), "1F1": (2, 2.25), "1F2": (7.5, 7.75),
        "0B0": (4.25, 4.5), "0B1": (7.25, 7.5), "0B2": (10.75, 11),
    }  # fmt: skip


def test_eager_1f1b_warms_up_twice_as_long():
    assert lists(build("eager-1f1b", devices=3, microbatches=5)) == [
        "0F0 0F1 0F2 0F3 0F4 0B0 0B1 0B2 0B3 0B4",
        "1F0 1F1 1F2 1B0 1F3 1B1 1F4 1B2 1B3 1B4",
        "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3 2F4 2B4",
    ]


def test_eager_1f1b_hides_transfers_that_1f1b_waits_for():
    costs = Costs(forward=1, backward=2, latency=0.25)
    run = simulate(build("eager-1f1b", devices=2, microbatches=3), costs)
    assert actions(run) == [
        "0F0 0-1  0F1 1-2  0F2 2-3  0B0 4.5-6.5  0B1 7.5-9.5  0B2 10.5-12.5",
        "1F0 1.25-2.25  1B0 2.25-4.25  1F1 4.25-5.25  1B1 5.25-7.25  1F2 7.25-8.25  1B2 8.25-10.25",
    ]
    assert simulate(build("1f1b", devices=2, microbatches=3), costs).makespan == 13
