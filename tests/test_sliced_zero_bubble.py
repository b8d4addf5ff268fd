"""Seq1F1B with split backward: ZB-H1's bubble, a piece long instead of a microbatch."""

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import ppsim

seconds = st.floats(0.1, 10)


def build(p, m, k):
    return ppsim.build("seq1f1b-zb", devices=p, microbatches=m, slices=k)


def test_pieces_run_forward_and_back_and_w_follow_the_i():
    assert [" ".join(order) for order in build(2, 2, 2).orders()] == [
        "0F0 0F1 0F2 0I1 0W1 0F3 0I0 0W0 0I3 0W3 0I2 0W2",
        "1F0 1F1 1I1 1F2 1I0 1W1 1F3 1I3 1W0 1I2 1W3 1W2",
    ]


def test_one_slice_is_zb_h1():
    assert build(4, 8, 1) == ppsim.build("zb-h1", devices=4, microbatches=8)


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 7), st.integers(1, 10), st.integers(1, 6), seconds, seconds, seconds)
def test_the_bubble_is_zb_h1s_over_the_slices(p, m, k, F, I, W):  # noqa: E741 - the field's letters
    W = min(F, I, W)
    assume(m * k >= p + k - 1)
    run = ppsim.simulate(build(p, m, k), ppsim.Costs(forward=F, input_grad=I, weight_grad=W))
    assert run.makespan == pytest.approx(m * (F + I + W) + (p - 1) * (F + I - W) / k, rel=1e-9)
    assert run.peak_activations.max() == pytest.approx((p + k - 1) / k, rel=1e-9)


def test_every_size_runs_under_queued_transfers_and_both_engines_agree():
    costs = ppsim.Costs(latency=0.1)
    for p in range(1, 5):
        for m in range(1, 5):
            for k in (1, 2, 3, 5):
                event, compiled = (
                    ppsim.simulate(build(p, m, k), costs, transport="directed", engine=engine)
                    for engine in ("event", "compiled")
                )
                assert event.end.tolist() == compiled.end.tolist()


def test_refused_slices_name_the_rule():
    with pytest.raises(ppsim.BuildError, match="slices=0 is too small; use at least 1"):
        build(4, 8, 0)
