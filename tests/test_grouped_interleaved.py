"""Grouped interleaved 1F1B: what a smaller group saves in activations and costs in bubble."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import ppsim


def build(p, m, v, g):
    return ppsim.build("grouped-interleaved", devices=p, microbatches=m, stages_per_device=v, group_size=g)


def test_groups_of_one_on_two_devices():
    assert [" ".join(order) for order in build(2, 3, 2, 1).orders()] == [
        "0F0 2F0 0F1 2B0 2F1 0B0 0F2 2B1 2F2 0B1 2B2 0B2",
        "1F0 3F0 3B0 1F1 1B0 3F1 3B1 1F2 1B1 3F2 3B2 1B2",
    ]


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 4), st.floats(0, 1), st.floats(0.1, 5), st.floats(0.1, 5))
def test_each_microbatch_that_a_group_lacks_adds_a_slot_for_each_further_stage(p, v, groups, size, f, b):
    g = round((p + 1) // 2 + size * (p - (p + 1) // 2))
    assume(g * (f + b) >= p * max(f, b) * (1 + 1e-9))
    m = groups * g
    run = ppsim.simulate(build(p, m, v, g), ppsim.Costs(forward=f, backward=b, per="stage"))
    assert run.makespan == pytest.approx((m * v + p - 1) * (f + b) + (p - g) * (v - 1) * (f + b), rel=1e-9)


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 8), st.integers(1, 4), st.integers(1, 4), st.floats(0, 1))
def test_device_0_holds_g_times_v_minus_1_plus_p_stage_activations(p, v, groups, size):
    g = round((p + 1) // 2 + size * (p - (p + 1) // 2))
    m = groups * g
    held = ppsim.simulate(build(p, m, v, g)).peak_activations
    assert held == pytest.approx([min(m * v, g * (v - 1) + p - r) / v for r in range(p)], rel=1e-9)


def test_the_default_group_is_one_microbatch_a_device():
    assert ppsim.build("grouped-interleaved", devices=4, microbatches=8) == build(4, 8, 2, 4)


def test_every_size_is_valid_and_runs_under_queued_transfers():
    for p in range(1, 6):
        for g in range((p + 1) // 2, p + 1):
            for m in range(1, 3 * p + 2):
                for v in (1, 2, 3):
                    schedule = build(p, m, v, g)
                    schedule.validate()
                    if m in (g, 2 * p + 1):
                        ppsim.simulate(schedule, ppsim.Costs(latency=0.1), transport="directed")


@pytest.mark.parametrize(("g", "legal"), [(2, 3), (6, 5)])
def test_a_refused_group_size_names_the_nearest_legal_one(g, legal):
    with pytest.raises(ppsim.BuildError, match=rf"group_size={g} with devices=5.* = 3 to devices; use {legal}"):
        build(5, 10, 2, g)
