"""Receive buffers: lifetimes and slots of small programs by hand, and the counts of PyTorch's reviewer."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import schedules

import ppsim
from ppsim.lowering import POOLS, RECEIVES


def test_an_activation_lives_until_its_backward_and_a_gradient_until_its_use():
    program = ppsim.lower(ppsim.build("gpipe", devices=2, microbatches=2))
    assert program.orders()[1] == ["1RECV_F0", "1F0", "1RECV_F1", "1F1", "1B0", "1SEND_B0", "1B1", "1SEND_B1"]
    found = program.receive_buffers()
    lives = [
        f"{program.label(first)}..{program.label(last)} in slot {slot}"
        for first, last, slot in zip(found.first, found.last, found.slot, strict=True)
    ]
    assert lives == [
        "0RECV_B0..0B0 in slot 0", "0RECV_B1..0B1 in slot 0", "1RECV_F0..1B0 in slot 0", "1RECV_F1..1B1 in slot 1",
    ]  # fmt: skip
    assert (found.slots.tolist(), found.peak.tolist(), found.received.tolist()) == ([1, 2], [1, 2], [2, 2])


def test_a_split_backward_keeps_the_activation_until_w():
    program = ppsim.lower(ppsim.Schedule.from_orders([["0F0", "0B0"], ["1F0", "1I0", "1W0"]]))
    found = program.receive_buffers("device")
    assert [program.label(row) for row in found.last] == ["0B0", "1W0"]


# A comment of 16 September 2026 on pytorch/pytorch pull request 196465: slots per stage and direction, per direction
# and per device, for Interleaved1F1B with 4 ranks and 4 stages on each; equal for 8, 16 and 32 microbatches.
REVIEWED = {"stage": [22, 30, 28, 32], "direction": [14, 20, 17, 18], "device": [14, 20, 17, 16]}


# A second comment of that day, for ScheduleZBVZeroBubble with 4 ranks; equal for 8 and 16 microbatches.
REVIEWED_V = {"stage": [5, 14, 16, 8], "direction": [5, 14, 16, 8], "device": [3, 11, 12, 7]}


@pytest.mark.parametrize("microbatches", [8, 16])
@pytest.mark.parametrize("pool", POOLS)
def test_slots_of_a_v_equal_those_that_a_reviewer_of_pytorch_counted(pool, microbatches):
    schedule = ppsim.build("zb-v", devices=4, microbatches=microbatches)
    assert ppsim.lower(schedule, sharded=True).receive_buffers(pool).slots.tolist() == REVIEWED_V[pool]


@pytest.mark.parametrize("microbatches", [8, 16, 32])
@pytest.mark.parametrize("pool", POOLS)
def test_slots_equal_those_that_a_reviewer_of_pytorch_counted(pool, microbatches):
    schedule = ppsim.build("interleaved-1f1b", devices=4, microbatches=microbatches, stages_per_device=4)
    assert ppsim.lower(schedule, sharded=True).receive_buffers(pool).slots.tolist() == REVIEWED[pool]


@settings(deadline=None, max_examples=40)
@given(schedule=schedules(bidirectional=False), pool=st.sampled_from(POOLS), receive=st.sampled_from(RECEIVES))
def test_no_slot_holds_two_live_buffers_and_one_pool_needs_no_more_than_the_peak(schedule, pool, receive):
    try:
        found = ppsim.lower(schedule, receive=receive).receive_buffers(pool)
    except ppsim.DeadlockError:
        return
    assert (found.first < found.last).all()
    place = {
        "stage": lambda at: (found.device[at], found.stage[at], found.is_activation[at]),
        "direction": lambda at: (found.device[at], found.is_activation[at]),
        "device": lambda at: found.device[at],
    }[pool]
    for one, other in combinations(range(len(found.first)), 2):
        if place(one) == place(other) and found.slot[one] == found.slot[other]:
            assert found.last[one] < found.first[other] or found.last[other] < found.first[one]
    live = [
        max(
            (np.sum((found.first <= row) & (row <= found.last) & (found.device == device)) for row in found.first),
            default=0,
        )
        for device in range(len(found.peak))
    ]
    assert found.peak.tolist() == live
    assert (found.peak <= found.slots).all()
    assert (found.slots <= found.received).all()


@pytest.mark.parametrize("pool", ["rank", None, [], np.array([])], ids=range(4))
def test_an_unknown_pool_names_the_known_ones(pool):
    program = ppsim.lower(ppsim.build("1f1b", devices=2, microbatches=2))
    with pytest.raises(ppsim.ConfigError, match="use one of: stage, direction, device"):
        program.receive_buffers(pool)
