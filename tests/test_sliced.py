"""Seq1F1B and TeraPipe: pieces of sequences against their closed forms."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import strategies as st

import ppsim
from ppsim.costs import Profile

seconds = st.floats(0.1, 10)


def build(name, p, m, k):
    return ppsim.build(name, devices=p, microbatches=m, slices=k)


def test_seq1f1b_runs_pieces_forward_and_back():
    schedule = build("seq1f1b", 2, 2, 2)
    assert [" ".join(order) for order in schedule.orders()] == [
        "0F0 0F1 0F2 0B1 0F3 0B0 0B3 0B2",
        "1F0 1F1 1B1 1F2 1B0 1F3 1B3 1B2",
    ]
    assert schedule.slices == 2


def test_terapipe_is_gpipe_over_pieces():
    assert build("terapipe", 1, 2, 3).orders() == [
        ["0F0", "0F1", "0F2", "0F3", "0F4", "0F5", "0B2", "0B1", "0B0", "0B5", "0B4", "0B3"]
    ]


def test_one_slice_is_1f1b_and_gpipe():
    for name, whole in (("seq1f1b", "1f1b"), ("terapipe", "gpipe")):
        assert build(name, 4, 8, 1) == ppsim.build(whole, devices=4, microbatches=8)


def test_slices_cost_what_slice_costs_says():
    run = ppsim.simulate(build("terapipe", 1, 1, 3), ppsim.Costs(forward=6, backward=12, slice_costs=[1, 2, 3]))
    assert (run.end - run.start).tolist() == [1, 2, 3, 6, 4, 2]
    even = ppsim.simulate(build("seq1f1b", 4, 4, 2), ppsim.Costs(forward=1, backward=2))
    uneven = ppsim.simulate(build("seq1f1b", 4, 4, 2), ppsim.Costs(forward=1, backward=2, slice_costs=[1, 3]))
    assert uneven.makespan > even.makespan


def test_a_slice_that_overtakes_the_one_before_it_is_a_fault():
    schedule = ppsim.Schedule.from_orders([["0F1", "0F0", "0B1", "0B0"]], slices=2)
    with pytest.raises(ppsim.ScheduleError, match="a slice's F follows the F of the slice before it"):
        schedule.validate()


def test_of_slices_only_those_that_overtake_are_called_late():
    orders = build("seq1f1b", 2, 2, 2).orders()
    orders[0][:2] = ["0F1", "0F0"]
    with pytest.raises(ppsim.ScheduleError) as caught:
        ppsim.Schedule.from_orders(orders, slices=2).validate()
    late = "0F0 (row 1, column 2) comes too late: a slice's F follows the F of the slice before it"
    assert caught.value.faults == [late]


@pytest.mark.parametrize("name", ["seq1f1b", "terapipe"])
def test_refused_slices_name_the_rule(name):
    with pytest.raises(ppsim.BuildError, match="slices=0 must be a whole number of at least 1"):
        build(name, 4, 8, 0)
    with pytest.raises(ppsim.BuildError, match="slices=100000000 makes more than"):
        build(name, 4, 8, 10**8)


def sliced_profile(**columns):
    profile = Profile(devices=1, seconds={"F": [1.0], "B": [2.0]}, overhead=0.5)

    class Given:
        def table(self, schedule):
            return replace(profile.table(schedule), **columns)

    return Given()


def test_each_slice_pays_the_whole_overhead_of_an_action():
    order = [f"0F{k}" for k in range(4)] + [f"0B{k}" for k in (3, 2, 1, 0)]
    run = ppsim.simulate(ppsim.Schedule.from_orders([order], slices=4), sliced_profile())
    assert (run.end - run.start).tolist() == [0.75] * 4 + [1.0] * 4
    whole = ppsim.simulate(ppsim.Schedule.from_orders([["0F0", "0B0"]]), sliced_profile())
    assert (whole.end - whole.start).tolist() == [1.5, 2.5]


def test_a_fused_slot_pays_the_overhead_of_one_action():
    order = ["0F0", "0F1", "0F2", "(0F3;0B1)OVERLAP_F_B", "0B0", "0B3", "0B2"]
    costs = sliced_profile(overlap=np.full((1, 1), 2.5))
    run = ppsim.simulate(ppsim.Schedule.from_orders([order], slices=2), costs)
    assert (run.end - run.start).tolist() == [1.0, 1.0, 1.0, (2.5 - 0.5) / 2 + 0.5, 1.5, 1.5, 1.5]


def test_noise_lengthens_the_overhead_of_an_action_too():
    order = ["0F0", "0F1", "0B1", "0B0"]
    schedule = ppsim.Schedule.from_orders([order], slices=2)
    slow = ppsim.simulate(schedule, sliced_profile(), jitter=ppsim.Jitter(slow_devices={0: 2.0}))
    assert (slow.end - slow.start).tolist() == [2.0, 2.0, 3.0, 3.0]
