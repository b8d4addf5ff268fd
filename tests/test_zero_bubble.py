"""ZB-H1 and ZB-H2: the backward split in I and W, against the closed forms and the published numbers."""
# ruff: noqa: E741 - I is the field's letter for the input gradient

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import devices, microbatches, seconds
from timelines import actions

from ppsim import BuildError, Costs, build, simulate

UNIT = Costs(forward=1, input_grad=1, weight_grad=1)


def lists(schedule):
    return [" ".join(order) for order in schedule.orders()]


def split(F, I, W, c=0.0):
    return Costs(forward=F, input_grad=I, weight_grad=W, latency=c)


def test_zb_h1_keeps_1f1bs_order_and_starts_w_after_r_input_gradients():
    schedule = build("zb-h1", devices=3, microbatches=4)
    assert lists(schedule) == [
        "0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3",
        "1F0 1F1 1I0 1F2 1I1 1W0 1F3 1I2 1W1 1I3 1W2 1W3",
        "2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3",
    ]
    without_w = [[cell.replace("I", "B") for cell in order if "W" not in cell] for order in schedule.orders()]
    assert without_w == build("1f1b", devices=3, microbatches=4).orders()


def test_zb_h1_timeline():
    run = simulate(build("zb-h1", devices=3, microbatches=4), UNIT)
    assert actions(run) == [
        "0F0 0-1  0F1 1-2  0F2 2-3  0I0 5-6  0W0 6-7  0F3 7-8  0I1 8-9  0W1 9-10  0I2 10-11  0W2 11-12  0I3 12-13  "
        "0W3 13-14",
        "1F0 1-2  1F1 2-3  1I0 4-5  1F2 5-6  1I1 6-7  1W0 7-8  1F3 8-9  1I2 9-10  1W1 10-11  1I3 11-12  1W2 12-13  "
        "1W3 13-14",
        "2F0 2-3  2I0 3-4  2F1 4-5  2I1 5-6  2F2 6-7  2I2 7-8  2W0 8-9  2F3 9-10  2I3 10-11  2W1 11-12  2W2 12-13  "
        "2W3 13-14",
    ]
    assert run.makespan == 14
    assert run.bubble_fraction == pytest.approx(2 / 14)


@given(devices, microbatches, seconds, st.floats(0, 1))
def test_zb_h1_holds_p_minus_r_whole_activations_and_r_parts_that_w_needs(p, more, F, kept):
    m = p - 1 + more
    costs = Costs(forward=F, input_grad=F, weight_grad=F, weight_grad_fraction_of_activation=kept)
    run = simulate(build("zb-h1", devices=p, microbatches=m), costs)
    assert run.peak_activations == pytest.approx([p - r + r * kept for r in range(p)], rel=1e-9)


def test_zb_h2_fills_the_idle_time_before_the_first_backward_with_forwards():
    assert lists(build("zb-h2", devices=3, microbatches=5)) == [
        "0F0 0F1 0F2 0F3 0F4 0I0 0W0 0I1 0W1 0I2 0W2 0I3 0W3 0I4 0W4",
        "1F0 1F1 1F2 1I0 1F3 1I1 1F4 1I2 1W0 1I3 1W1 1I4 1W2 1W3 1W4",
        "2F0 2I0 2F1 2I1 2F2 2I2 2F3 2I3 2F4 2I4 2W0 2W1 2W2 2W3 2W4",
    ]


def test_zb_h2_timeline_has_no_idle_time_within_a_device():
    run = simulate(build("zb-h2", devices=2, microbatches=3), UNIT)
    assert actions(run) == [
        "0F0 0-1  0F1 1-2  0F2 2-3  0I0 3-4  0W0 4-5  0I1 5-6  0W1 6-7  0I2 7-8  0W2 8-9",
        "1F0 1-2  1I0 2-3  1F1 3-4  1I1 4-5  1F2 5-6  1I2 6-7  1W0 7-8  1W1 8-9  1W2 9-10",
    ]
    assert (run.makespan, run.span, run.span_bubble_fraction) == (10, 9, 0)
    assert run.bubble_fraction == pytest.approx(0.1)


@given(devices, st.integers(0, 20), st.floats(0, 1))
def test_zb_h2_holds_2p_minus_2r_minus_1_whole_activations_and_2r_parts_that_w_needs(p, more, kept):
    costs = Costs(forward=1, input_grad=1, weight_grad=1, weight_grad_fraction_of_activation=kept)
    run = simulate(build("zb-h2", devices=p, microbatches=2 * p - 1 + more), costs)
    assert run.peak_activations == pytest.approx([2 * p - 2 * r - 1 + 2 * r * kept for r in range(p)], rel=1e-9)


def test_zb_h2_needs_2p_minus_1_microbatches():
    assert build("zb-h2", devices=4, microbatches=7).microbatches == 7
    with pytest.raises(BuildError) as caught:
        build("zb-h2", devices=4, microbatches=6)
    assert str(caught.value) == (
        "zb-h2: microbatches=6 with devices=4: it needs at least 2 x devices - 1 = 7 microbatches to fill the "
        "pipeline; use at least 7, or zb-h1"
    )


@pytest.mark.parametrize(
    ("name", "v", "rate"),
    [("1f1b", 1, 0.2431), ("interleaved-1f1b", 3, 0.1090), ("zb-h1", 1, 0.1585), ("zb-h2", 1, 0.1083)],
)
def test_bubble_rates_of_the_zero_bubble_papers_table(name, v, rate):
    # Qi et al. 2023, arXiv 2401.10241, bubble table at p = 8, m = 24 with T_F 18.522, T_B 18.086, T_W 9.337 and
    # T_comm 0.601 ms. All four rates come out when T_comm is the latency of every transfer between two devices under
    # `async` (transfers overlap compute and never queue), a stage of v = 3 takes a third of the times and the same
    # T_comm, and the rate is 1 - busy / span. The paper prints 0.1055 for the interleaved schedule, which its own
    # inputs do not give.
    costs = split(18.522e-3, 18.086e-3, 9.337e-3, 0.601e-3)
    run = simulate(build(name, devices=8, microbatches=24, stages_per_device=v), costs)
    assert run.span_bubble_fraction == pytest.approx(rate, abs=5e-5)


def test_a_weight_gradient_waits_for_no_transfer():
    run = simulate(build("zb-h1", devices=2, microbatches=2), split(1, 1, 1, c=10))
    assert actions(run) == [
        "0F0 0-1  0F1 1-2  0I0 23-24  0W0 24-25  0I1 25-26  0W1 26-27",
        "1F0 11-12  1I0 12-13  1F1 13-14  1I1 14-15  1W0 15-16  1W1 16-17",
    ]
