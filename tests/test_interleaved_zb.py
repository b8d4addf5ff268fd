"""Interleaved zero bubble against its closed forms and PyTorch's own order."""

from types import SimpleNamespace

import pytest

import ppsim


def rounds(p, v, count):
    return ppsim.build("interleaved-zb", devices=p, microbatches=count * p, stages_per_device=v)


def test_interleaved_zb_on_two_devices():
    assert rounds(2, 2, 1).orders() == [
        ["0F0", "0F1", "2F0", "2F1", "2I0", "2W0", "2I1", "2W1", "0I0", "0W0", "0I1", "0W1"],
        ["1F0", "1F1", "3F0", "3I0", "3F1", "3I1", "3W0", "1I0", "3W1", "1I1", "1W0", "1W1"],
    ]


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
        ({"microbatches": 8, "stages_per_device": 0}, r"stages_per_device=0 must be a whole number of at least 1"),
    ],
)
def test_a_refused_size_names_the_rule_and_a_legal_value(options, words):
    with pytest.raises(ppsim.BuildError, match=words):
        ppsim.build("interleaved-zb", devices=4, **options)
