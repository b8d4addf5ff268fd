"""STP: its authors' lists, the idle time of all devices, and activations."""

import numpy as np
import pytest
from random_runs import rerun

import ppsim


def build(p, m):
    return ppsim.build("stp", devices=p, microbatches=m)


def simulate(p, m, *parts, overlap=None):
    names = ("forward", "input_grad", "weight_grad")
    costs = ppsim.Costs(**dict(zip(names, parts, strict=True)), overlap=overlap, per="stage")
    return ppsim.simulate(build(p, m), costs)


def test_two_devices_and_five_microbatches():
    assert [" ".join(order) for order in build(2, 5).orders()] == [
        "0F0 0F1 0F2 3F0 0F3 3F1 3I0 0F4 3W0 (3F2;3B1)OVERLAP_F_B 0B0 3F3 3I2 0B1 3F4 3I3 0B2 3B4 0B3 3W2 3W3 0B4",
        "1F0 2F0 1F1 2F1 1F2 1F3 (2F2;2B0)OVERLAP_F_B (1F4;1B0)OVERLAP_F_B 2F3 2I1 1B1 2F4 2I2 1B2 2B3 1B3 2B4 1B4 "
        "2W1 2W2",
    ]


@pytest.mark.parametrize("p", [2, 4, 8])
def test_a_shorter_w_adds_its_difference_where_parts_wait_for_their_own_inputs(p):
    run = simulate(p, 32, 1, 1.2, 0.8)
    assert run.makespan - run.device_busy.max() == pytest.approx((p - 1) * 1.4)


def authors_pairs(p, m, schedule):
    """Return for each row if it ends a braided pair: in steps 3 to 6, except an odd first F0 and the B0."""
    joined = schedule.joined.copy()
    for r, first in enumerate(schedule.offsets[:-1].tolist()):
        outer, inner, braided = p - r - 1, r + 1, 2 * (m - 3 * p + 1) + 1 + 2 * r
        forwards = first + 2 * outer + 2 * inner
        pairs = forwards + inner + 2 * (2 * outer + braided)
        joined[forwards + inner % 2 + 1 : pairs : 2] = True
        joined[pairs + 2 : pairs + 3 * (2 * outer + r) : 3] = True
    return joined


@pytest.mark.parametrize("p", [2, 4, 8])
def test_where_both_parts_of_every_pair_start_together_a_shorter_w_costs_more(p):
    """So the authors run them, F&F, F&I and F&W too, and idle (p-1) x 2.0 there; separate parts wait for less."""
    m = 32
    run = simulate(p, m, 1, 1.2, 0.8)
    joined = authors_pairs(p, m, run.schedule)
    seconds = run.plan.seconds.copy()
    seconds[:-1] += np.where(joined[1:], run.plan.seconds[1:], 0)
    seconds[joined] = 0
    together = rerun(run, fused=joined, seconds=seconds)
    assert together.row_end.max() - run.device_busy.max() == pytest.approx((p - 1) * 2.0)


def test_too_few_microbatches_are_refused():
    with pytest.raises(ppsim.BuildError, match=r"stp: microbatches=7 with devices=4.* use at least 8"):
        build(4, 7)
