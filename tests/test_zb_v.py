"""ZB-V against its closed forms and PyTorch's own order."""

from types import SimpleNamespace

import pytest

import ppsim

UNIT = ppsim.Costs(forward=2, input_grad=2, weight_grad=2)  # a stage, half a device share, takes 1 s


def zb_v(p, m):
    return ppsim.build("zb-v", devices=p, microbatches=m)


def test_zb_v_on_two_devices():
    assert [" ".join(order) for order in zb_v(2, 3).orders()] == [
        "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2",
        "1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2",
    ]


def test_short_pipelines_drop_the_surplus_of_2p_minus_1_microbatches():
    for p in range(1, 9):
        full = zb_v(p, 2 * p - 1)
        for m in range(1, 2 * p - 1):
            kept = full.microbatch < m
            schedule = zb_v(p, m)
            assert schedule.stage.tolist() == full.stage[kept].tolist()
            assert schedule.kind.tolist() == full.kind[kept].tolist()
            assert ppsim.simulate(schedule, UNIT).peak_activations.max() <= p


def test_orders_equal_pytorchs_for_every_size():
    pipelining = pytest.importorskip("torch.distributed.pipelining.schedules")
    for p in range(1, 8):
        for m in range(1, 20):
            stages = [
                SimpleNamespace(num_stages=2 * p, group_size=p, group_rank=0, is_last=False, submod=None)
                for _ in range(2)
            ]
            theirs = pipelining.ScheduleZBVZeroBubble(stages, m).pipeline_order
            assert zb_v(p, m).orders() == [[str(action) for action in theirs[r] if action] for r in range(p)]
