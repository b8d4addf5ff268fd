"""1F1B-V: its authors' lists, idle slots and activations."""

import pytest

import ppsim

UNIT = ppsim.Costs(forward=1, backward=2, per="stage")


def build(p, m):
    return ppsim.build("1f1b-v", devices=p, microbatches=m)


def test_two_devices_turn_round_on_the_last():
    assert [" ".join(order) for order in build(2, 3).orders()] == [
        "0F0 0F1 0F2 3F0 3B0 3F1 3B1 0B0 3F2 3B2 0B1 0B2",
        "1F0 2F0 1F1 2F1 2B0 1B0 1F2 2F2 2B1 1B1 2B2 1B2",
    ]


@pytest.mark.parametrize(("p", "idle", "peak"), [(4, 15, 6), (5, 18, 8), (6, 22, 10), (8, 33, 12)])
def test_idle_slots_and_stages_held_are_the_authors(p, idle, peak):
    for m in (2 * p, 3 * p + 1):
        run = ppsim.simulate(build(p, m), UNIT)
        assert run.makespan - 6 * m == idle
        assert run.peak_activations.max() * 2 == peak


def test_it_holds_two_thirds_of_1f1bs_activations_and_idles_less():
    for p in range(2, 17):
        run = ppsim.simulate(build(p, 2 * p), UNIT)
        assert run.peak_activations.max() == 2 * p // 3 + 1
        assert run.makespan - 12 * p < 6 * (p - 1)
