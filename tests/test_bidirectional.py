"""Chimera and GEMS, two copies of the model in opposite directions, against their closed forms."""

import pytest

import ppsim


def build(name, p, m):
    return ppsim.build(name, devices=p, microbatches=m)


def test_chimera_on_four_devices():
    assert [" ".join(order) for order in build("chimera", 4, 4).orders()] == [
        "0F0 0F1 3F2 3B2 3F3 3B3 0B0 0B1",
        "1F0 2F2 1F1 2F3 2B2 1B0 2B3 1B1",
        "1F2 2F0 1F3 2F1 2B0 1B2 2B1 1B3",
        "0F2 0F3 3F0 3B0 3F1 3B1 0B2 0B3",
    ]


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


def test_gems_bubble_comes_to_p_minus_1_over_p_plus_a_half_with_many_microbatches():
    run = ppsim.simulate(build("gems", 8, 2000), ppsim.Costs(forward=1, backward=2))
    assert run.bubble_fraction == pytest.approx(7 / 8.5, abs=1e-4)


def test_both_directions_hold_the_weights():
    for name in ("chimera", "gems"):
        run = ppsim.simulate(build(name, 4, 8), ppsim.Costs(weight_bytes=3.0))
        assert run.static_memory[0].tolist() == [6.0] * 4
