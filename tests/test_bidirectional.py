"""Chimera and GEMS, two copies of the model in opposite directions, against their closed forms."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ppsim

seconds = st.floats(0.1, 10)


def build(name, p, m):
    return ppsim.build(name, devices=p, microbatches=m)


def test_chimera_on_four_devices():
    assert [" ".join(order) for order in build("chimera", 4, 4).orders()] == [
        "0F0 0F1 3F2 3B2 3F3 3B3 0B0 0B1",
        "1F0 2F2 1F1 2F3 2B2 1B0 2B3 1B1",
        "1F2 2F0 1F3 2F1 2B0 1B2 2B1 1B3",
        "0F2 0F3 3F0 3B0 3F1 3B1 0B2 0B3",
    ]


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 6), st.integers(1, 6), seconds)
def test_chimera_idles_p_minus_2_forwards_where_f_equals_b(half, units, F):
    p, m = 2 * half, 2 * half * units
    run = ppsim.simulate(build("chimera", p, m), ppsim.Costs(forward=F, backward=F))
    assert run.makespan == pytest.approx((2 * m + p - 2) * F, rel=1e-9)
    assert run.device_idle == pytest.approx([(p - 2) * F] * p, rel=1e-9, abs=1e-9 * run.makespan)
    assert run.peak_activations.tolist() == [half + 1 + min(r, p - 1 - r) for r in range(p)]


def test_chimera_with_longer_backwards_keeps_its_published_bubble_for_one_unit_only():
    for p in (4, 6, 8):
        one, two = (ppsim.simulate(build("chimera", p, units * p)).bubble_fraction for units in (1, 2))
        assert one == pytest.approx((p - 2) / (3 * p / 2 + p - 2), rel=1e-9)
        assert two > (p - 2) / (3 * p + p - 2)


def test_gems_takes_turns_from_both_ends():
    assert build("gems", 2, 3).orders() == [
        ["0F0", "0B0", "1F2", "1B2", "0F1", "0B1"],
        ["1F0", "1B0", "0F2", "0B2", "1F1", "1B1"],
    ]


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 8), st.integers(1, 12), seconds, seconds)
def test_gems_makespan_and_its_one_activation(p, m, F, B):
    run = ppsim.simulate(build("gems", p, m), ppsim.Costs(forward=F, backward=B))
    assert run.makespan == pytest.approx(p * (F + B) + (m - 1) * max(p * B + F, p * F + B), rel=1e-9)
    assert run.peak_activations.tolist() == [1] * p


def test_gems_bubble_comes_to_p_minus_1_over_p_plus_a_half_with_many_microbatches():
    run = ppsim.simulate(build("gems", 8, 2000), ppsim.Costs(forward=1, backward=2))
    assert run.bubble_fraction == pytest.approx(7 / 8.5, abs=1e-4)


def test_both_directions_hold_the_weights():
    for name in ("chimera", "gems"):
        run = ppsim.simulate(build(name, 4, 8), ppsim.Costs(weight_bytes=3.0))
        assert run.static_memory[0].tolist() == [6.0] * 4


def test_every_size_is_valid_and_runs_under_queued_transfers():
    costs = ppsim.Costs(latency=0.1)
    for p in range(1, 7):
        for m in range(1, 3 * p + 2):
            schedules = [build("gems", p, m)]
            schedules += [build("chimera", p, m)] if p % 2 == 0 and m % p == 0 else []
            for schedule in schedules:
                schedule.validate()
                if m in (p, 2 * p):
                    ppsim.simulate(schedule, costs, transport="directed")
