"""Hanayo: stages in waves, against its closed forms."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ppsim


def hanayo(p, m, **options):
    return ppsim.build("hanayo", devices=p, microbatches=m, **options)


def test_hanayo_turns_round_at_both_ends():
    assert [" ".join(order) for order in hanayo(2, 2).orders()] == [
        "0F0 0F1 3F0 3B0 3F1 3B1 0B0 0B1",
        "1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1",
    ]
    assert hanayo(2, 1, stages_per_device=4).orders() == [
        ["0F0", "3F0", "4F0", "7F0", "7B0", "4B0", "3B0", "0B0"],
        ["1F0", "2F0", "5F0", "6F0", "6B0", "5B0", "2B0", "1B0"],
    ]


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 7), st.integers(1, 3), st.integers(1, 25), st.floats(0.1, 10))
def test_hanayo_units_of_p_microbatches_leave_no_gap_where_f_equals_b(p, w, m, f):
    run = ppsim.simulate(hanayo(p, m, stages_per_device=2 * w), ppsim.Costs(forward=f, backward=f, per="stage"))
    v, units, last = 2 * w, -(-m // p), (m - 1) % p
    assert run.makespan == pytest.approx((2 * v * p * units + 2 * last) * f, rel=1e-9)


def test_a_turn_pays_no_transfer():
    run = ppsim.simulate(hanayo(3, 1, stages_per_device=4), ppsim.Costs(forward=1, backward=1, per="stage", latency=10))
    turns, borders = 3, 11
    assert run.makespan == 2 * 12 + 2 * (borders - turns) * 10


def test_an_odd_number_of_stages_is_refused_with_the_nearest_legal_ones():
    with pytest.raises(ppsim.BuildError, match=r"stages_per_device=3 is odd.*use 2 or 4"):
        hanayo(4, 8, stages_per_device=3)
