"""DualPipe and DualPipe-V against the eight steps, PyTorch's own order and the closed forms on their domain."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ppsim

# Seconds on the domain of the published bubble: F = I, W <= F, a fused slot of at least B.
seconds = st.floats(0.1, 10)


def dualpipe(p, m):
    return ppsim.build("dualpipe", devices=p, microbatches=m)


def dualpipe_v(p, m):
    return ppsim.build("dualpipe-v", devices=p, microbatches=m)


def test_dualpipe_on_four_devices():
    lists = [" ".join(order).replace(")OVERLAP_F_B", ")") for order in dualpipe(4, 8).orders()]
    assert lists == [
        "0F0 0F1 0F2 3F4 3I4 3W4 3F5 (0F3;3B5) (3F6;0B0) 3B6 (3F7;0B1) 3B7 0I2 0W2 0I3 0W3",
        "1F0 2F4 1F1 2F5 1F2 2B4 (2F6;1B0) (1F3;2B5) (2F7;1B1) 2B6 1B2 2I7 1I3 2W7 1W3",
        "1F4 2F0 1F5 2F1 1F6 2B0 (2F2;1B4) (1F7;2B1) (2F3;1B5) 2B2 1B6 2I3 1I7 2W3 1W7",
        "0F4 0F5 0F6 3F0 3I0 3W0 3F1 (0F7;3B1) (3F2;0B4) 3B2 (3F3;0B5) 3B3 0I6 0W6 0I7 0W7",
    ]


def test_dualpipe_is_the_same_from_both_ends():
    for p, m in ((4, 8), (6, 14), (8, 20)):
        schedule = dualpipe(p, m)
        orders = schedule.orders()
        half = m // 2
        mirrored = ppsim.Schedule(
            schedule.kind, schedule.stage, (schedule.microbatch + half) % m, schedule.offsets, joined=schedule.joined
        ).orders()
        assert orders == mirrored[::-1]


def test_dualpipe_v_orders_equal_pytorchs_for_every_size():
    pipelining = pytest.importorskip("torch.distributed.pipelining.schedules")
    for p in range(1, 8):
        for m in range(2 * p, 5 * p + 2):
            stage = SimpleNamespace(num_stages=2 * p, group_size=p, group_rank=0, is_last=False, submod=None)
            theirs = pipelining.ScheduleDualPipeV([stage, stage], m).pipeline_order
            assert dualpipe_v(p, m).orders() == [[str(action) for action in theirs[r] if action] for r in range(p)]


@settings(deadline=None, max_examples=20)
@given(st.integers(1, 6), st.integers(0, 8), seconds, st.just(0.0) | st.floats(1e-9, 1))
def test_without_a_fused_kernel_the_bubble_is_f_plus_i_minus_w_a_device(half, more, F, weight_part):
    W = F * weight_part
    costs = ppsim.Costs(forward=F, input_grad=F, weight_grad=W, per="stage")
    for schedule, h in ((dualpipe(2 * half, 4 * half + 2 * more), half), (dualpipe_v(half, 2 * half + more), half)):
        run = ppsim.simulate(schedule, costs)
        np.testing.assert_allclose(run.device_idle, (h - 1) * (2 * F - W), rtol=1e-9, atol=1e-9 * run.makespan)


def test_the_published_bubble_does_not_hold_off_its_domain():
    def bubble(F, input_grad, W, overlap):
        costs = ppsim.Costs(forward=F, input_grad=input_grad, weight_grad=W, overlap=overlap)
        return ppsim.simulate(dualpipe(4, 8), costs).device_idle[1], overlap + (input_grad + W) - 3 * W

    assert bubble(1, 1, 1, 3) == (2, 2)
    assert bubble(2, 1, 1, 3) == (3, 2)  # F > I: more
    assert bubble(1, 2, 1, 3) == (2, 3)  # F < I: less
    assert bubble(1, 1, 1.5, 3) == (1.5, 1)  # W > F: more
    assert bubble(1, 1, 1, 1.5) == (1.5, 0.5)  # a slot shorter than B: more


def test_dualpipe_holds_its_weights_twice_and_dualpipe_v_once():
    assert dualpipe(4, 8).holdings.tolist() == [[0, 0], [0, 3], [1, 1], [1, 2], [2, 1], [2, 2], [3, 0], [3, 3]]
    assert dualpipe_v(2, 4).holdings.tolist() == [[0, 0], [0, 3], [1, 1], [1, 2]]
    costs = ppsim.Costs(weight_bytes=10.0)
    assert ppsim.simulate(dualpipe(4, 8), costs).static_memory.tolist() == [[20.0] * 4, [0.0] * 4, [0.0] * 4]


def test_the_middle_of_the_v_pays_no_transfer():
    costs = ppsim.Costs(forward=1, input_grad=1, weight_grad=1, latency=5)
    assert ppsim.simulate(dualpipe_v(1, 4), costs).makespan == ppsim.simulate(dualpipe_v(1, 4)).makespan == 12


def test_a_fused_slot_prices_each_part_with_its_own_stage_where_no_kernel_fuses_them():
    costs = ppsim.Costs(forward=[1, 2, 3, 4], backward=[10, 20, 30, 40], per="stage")
    run = ppsim.simulate(dualpipe(4, 8), costs)
    for row in run.schedule.joined.nonzero()[0].tolist():
        for part in (row - 1, row):
            stage, kind = run.schedule.stage[part], run.schedule.kind[part]
            assert run.row_end[part] - run.row_start[part] == (stage + 1) * (10 if kind else 1)


@pytest.mark.parametrize(("p", "m"), [(2, 4), (3, 7), (4, 8), (4, 11)])
def test_a_whole_drain_splits_w_off_only_before_the_steady_part(p, m):
    schedule = ppsim.build("dualpipe-v", devices=p, microbatches=m, drain="whole")
    split = ppsim.build("dualpipe-v", devices=p, microbatches=m)
    for device, row in enumerate(schedule.orders()):
        kinds = [action.strip("(").lstrip("0123456789")[0] for action in row]
        assert (kinds.count("I"), kinds.count("W")) == (p - 1 - device, p - 1 - device)
        assert all(kinds[at + 1] == "W" for at, kind in enumerate(kinds) if kind == "I")
        assert not {"I", "W"} & set(kinds[-2 * p :])
    costs = ppsim.Costs(forward=1.0, input_grad=1.0, weight_grad=1.0, overlap=3.0)
    runs = [ppsim.simulate(one, costs) for one in (schedule, split)]
    assert runs[0].makespan >= runs[1].makespan
    assert runs[0].device_busy == pytest.approx(runs[1].device_busy)


def test_an_unknown_drain_is_refused():
    with pytest.raises(ppsim.BuildError, match="drain"):
        ppsim.build("dualpipe-v", devices=2, microbatches=4, drain="half")
