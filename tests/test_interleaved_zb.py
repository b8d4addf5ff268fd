"""Interleaved zero bubble against its closed forms and PyTorch's own order."""

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ppsim


def rounds(p, v, count):
    return ppsim.build("interleaved-zb", devices=p, microbatches=count * p, stages_per_device=v)


def test_interleaved_zb_on_two_devices():
    assert rounds(2, 2, 1).orders() == [
        ["0F0", "0F1", "2F0", "2F1", "2I0", "2W0", "2I1", "2W1", "0I0", "0W0", "0I1", "0W1"],
        ["1F0", "1F1", "3F0", "3I0", "3F1", "3I1", "3W0", "1I0", "3W1", "1I1", "1W0", "1W1"],
    ]


@settings(deadline=None, max_examples=60)
@given(
    st.integers(1, 7),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 8),
    st.integers(0, 8),
    st.integers(0, 8),
)
def test_bubble_is_p_minus_1_times_f_plus_i_minus_w(p, v, count, forward, input_grad, weight_grad):
    weight_grad = min(weight_grad, forward, input_grad)
    costs = ppsim.Costs(forward=forward, input_grad=input_grad, weight_grad=weight_grad, per="stage")
    run = ppsim.simulate(rounds(p, v, count), costs)
    work = count * p * v * (forward + input_grad + weight_grad)
    assert run.makespan == work + (p - 1) * (forward + input_grad - weight_grad)


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 7), st.integers(1, 4), st.integers(1, 4))
def test_fraction_is_p_minus_1_over_3vm_plus_p_minus_1_and_every_device_holds_p(p, v, count):
    run = ppsim.simulate(rounds(p, v, count), ppsim.Costs(forward=1, input_grad=1, weight_grad=1))
    assert run.bubble_fraction == pytest.approx((p - 1) / (3 * v * count * p + p - 1))
    assert run.peak_activations.tolist() == [p] * p


def test_every_size_is_valid_when_the_remainder_is_spread():
    for p in range(1, 7):
        for m in range(1, 15):
            for v in (1, 2, 3):
                schedule = ppsim.build(
                    "interleaved-zb", devices=p, microbatches=m, stages_per_device=v, grouping="spread"
                )
                schedule.validate()


def test_orders_equal_pytorchs_for_every_size_it_accepts():
    pipelining = pytest.importorskip("torch.distributed.pipelining.schedules")
    for p in range(1, 7):
        for m in range(1, 20):
            for v in (1, 2, 3):
                stages = [
                    SimpleNamespace(num_stages=p * v, group_size=p, group_rank=0, is_last=False, submod=None)
                    for _ in range(v)
                ]
                try:
                    theirs = pipelining.ScheduleInterleavedZeroBubble(stages, m).pipeline_order
                except ValueError:
                    with pytest.raises(ppsim.BuildError):
                        ppsim.build("interleaved-zb", devices=p, microbatches=m, stages_per_device=v)
                    continue
                ours = ppsim.build("interleaved-zb", devices=p, microbatches=m, stages_per_device=v)
                assert ours.orders() == [[str(action) for action in theirs[r] if action] for r in range(p)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"microbatches": 11}, r"multiple of the rounds; use 10 or 12 microbatches"),
        ({"microbatches": 8, "grouping": "megatron"}, r"use one of: torch, spread"),
        ({"microbatches": 8, "group_size": 4}, r"unknown option 'group_size'; .* are: grouping"),
        ({"microbatches": 8, "stages_per_device": 0}, r"stages_per_device=0 is too small; use at least 1"),
    ],
)
def test_a_refused_size_names_the_rule_and_a_legal_value(options, words):
    with pytest.raises(ppsim.BuildError, match=words):
        ppsim.build("interleaved-zb", devices=4, **options)
