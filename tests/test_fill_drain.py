"""Fill and drain: naive, GPipe and breadth-first, their lists and closed forms."""

import pytest
from hypothesis import given
from strategies import devices, microbatches, seconds, stages_per_device
from timelines import actions

from ppsim import Costs, build, simulate


def lists(schedule):
    return [" ".join(order) for order in schedule.orders()]


def test_naive_takes_one_microbatch_at_a_time():
    assert lists(build("naive", devices=2, microbatches=2)) == ["0F0 0B0 0F1 0B1", "1F0 1B0 1F1 1B1"]


def test_naive_timeline():
    run = simulate(build("naive", devices=2, microbatches=2), Costs(forward=1, backward=2, latency=0.5))
    assert actions(run) == [
        "0F0 0-1  0B0 5-7  0F1 7-8  0B1 12-14",
        "1F0 1.5-2.5  1B0 2.5-4.5  1F1 8.5-9.5  1B1 9.5-11.5",
    ]


def test_gpipe_runs_all_forwards_then_all_backwards_in_the_order_asked_for():
    assert lists(build("gpipe", devices=2, microbatches=3)) == ["0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1F1 1F2 1B0 1B1 1B2"]
    assert lists(build("gpipe", devices=1, microbatches=3, backward_order="lifo")) == ["0F0 0F1 0F2 0B2 0B1 0B0"]


def test_gpipe_timeline_in_both_orders():
    costs = Costs(forward=1, backward=2)
    run = simulate(build("gpipe", devices=2, microbatches=2), costs)
    assert actions(run) == ["0F0 0-1  0F1 1-2  0B0 5-7  0B1 7-9", "1F0 1-2  1F1 2-3  1B0 3-5  1B1 5-7"]
    run = simulate(build("gpipe", devices=2, microbatches=2, backward_order="lifo"), costs)
    assert actions(run) == ["0F0 0-1  0F1 1-2  0B1 5-7  0B0 7-9", "1F0 1-2  1F1 2-3  1B1 3-5  1B0 5-7"]


def test_breadth_first_runs_all_of_one_stage_before_the_next_and_back_in_reverse():
    assert lists(build("looped-bfs", devices=2, microbatches=2)) == [
        "0F0 0F1 2F0 2F1 2B1 2B0 0B1 0B0",
        "1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0",
    ]


def test_breadth_first_timeline():
    run = simulate(build("looped-bfs", devices=2, microbatches=2), Costs(forward=2, backward=4))
    assert actions(run) == [
        "0F0 0-1  0F1 1-2  2F0 2-3  2F1 3-4  2B1 7-9  2B0 9-11  0B1 11-13  0B0 13-15",
        "1F0 1-2  1F1 2-3  3F0 3-4  3F1 4-5  3B1 5-7  3B0 7-9  1B1 9-11  1B0 11-13",
    ]


@given(devices, microbatches, stages_per_device, seconds, seconds)
def test_breadth_first_makespan_is_mv_plus_p_minus_1_slots_or_pv_plus_m_minus_1_with_few_microbatches(p, m, v, F, B):
    schedule = build("looped-bfs", devices=p, microbatches=m, stages_per_device=v)
    run = simulate(schedule, Costs(forward=F, backward=B))
    slots = m * v + p - 1 if m >= p else p * v + m - 1
    assert run.makespan == pytest.approx(slots * (F + B) / v, rel=1e-9)
    assert run.peak_activations == pytest.approx([m] * p, rel=1e-9)
    balanced = build("looped-bfs", devices=p, microbatches=m, stages_per_device=v, memory="balanced")
    run = simulate(balanced, Costs(forward=F, backward=B))
    assert run.makespan == pytest.approx(slots * (F + B) / v, rel=1e-9)
    assert run.peak_activations == pytest.approx([((v - 1) * m + min(m, p - r)) / v for r in range(p)], rel=1e-9)


def test_balanced_breadth_first_warms_up_and_pairs_as_paddlepaddles_schedule():
    # PaddleFleet, tests of vpp_simulator: p 4, v 2, m 6 has 9, 8, 7, 6 forwards, then 3, 4, 5, 6 pairs.
    orders = build("looped-bfs", devices=4, microbatches=6, stages_per_device=2, memory="balanced").orders()
    kinds = ["".join(action.strip("0123456789") for action in order) for order in orders]
    assert kinds == [
        "F" * warm_up + "FB" * pairs + "B" * (12 - pairs) for warm_up, pairs in ((9, 3), (8, 4), (7, 5), (6, 6))
    ]
    assert orders[3][-8:] == ["7F5", "7B5", *(f"3B{microbatch}" for microbatch in range(6))]


@given(devices, microbatches)
def test_breadth_first_with_one_stage_a_device_is_gpipe_backwards_in_reverse(p, m):
    breadth_first = build("looped-bfs", devices=p, microbatches=m, stages_per_device=1)
    assert breadth_first == build("gpipe", devices=p, microbatches=m, backward_order="lifo")
