"""Grouped interleaved 1F1B: what a smaller group saves in activations and costs in bubble."""

import pytest

import ppsim


def build(p, m, v, g):
    return ppsim.build("grouped-interleaved", devices=p, microbatches=m, stages_per_device=v, group_size=g)


def test_groups_of_one_on_two_devices():
    assert [" ".join(order) for order in build(2, 3, 2, 1).orders()] == [
        "0F0 2F0 0F1 2B0 2F1 0B0 0F2 2B1 2F2 0B1 2B2 0B2",
        "1F0 3F0 3B0 1F1 1B0 3F1 3B1 1F2 1B1 3F2 3B2 1B2",
    ]


def test_the_default_group_is_one_microbatch_a_device():
    assert ppsim.build("grouped-interleaved", devices=4, microbatches=8) == build(4, 8, 2, 4)


@pytest.mark.parametrize(("g", "legal"), [(2, 3), (6, 5)])
def test_a_refused_group_size_names_the_nearest_legal_one(g, legal):
    with pytest.raises(ppsim.BuildError, match=rf"group_size={g} with devices=5.* = 3 to devices; use {legal}"):
        build(5, 10, 2, g)
