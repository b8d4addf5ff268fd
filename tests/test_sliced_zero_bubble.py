"""Seq1F1B with split backward: ZB-H1's bubble, a piece long instead of a microbatch."""

import pytest

import ppsim


def build(p, m, k):
    return ppsim.build("seq1f1b-zb", devices=p, microbatches=m, slices=k)


def test_pieces_run_forward_and_back_and_w_follow_the_i():
    assert [" ".join(order) for order in build(2, 2, 2).orders()] == [
        "0F0 0F1 0F2 0I1 0W1 0F3 0I0 0W0 0I3 0W3 0I2 0W2",
        "1F0 1F1 1I1 1F2 1I0 1W1 1F3 1I3 1W0 1I2 1W3 1W2",
    ]


def test_one_slice_is_zb_h1():
    assert build(4, 8, 1) == ppsim.build("zb-h1", devices=4, microbatches=8)


def test_refused_slices_name_the_rule():
    with pytest.raises(ppsim.BuildError, match="slices=0 must be a whole number of at least 1"):
        build(4, 8, 0)
