"""Interleaved 1F1B: the three groupings, their lists, refusals and closed forms."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import devices, stages_per_device
from timelines import actions

import ppsim
from ppsim import BuildError, Costs, Schedule, build, simulate
from ppsim.families.interleaved import group_sizes


def interleaved(p, m, v=2, **options):
    return build("interleaved-1f1b", devices=p, microbatches=m, stages_per_device=v, **options)


def lists(schedule):
    return [" ".join(order) for order in schedule.orders()]


def test_groups_of_p_microbatches_walk_all_local_stages_before_the_next_group():
    assert lists(interleaved(2, 4)) == [
        "0F0 0F1 2F0 2F1 0F2 2B0 0F3 2B1 2F2 0B0 2F3 0B1 2B2 2B3 0B2 0B3",
        "1F0 1F1 3F0 3B0 3F1 3B1 1F2 1B0 1F3 1B1 3F2 3B2 3F3 3B3 1B2 1B3",
    ]


def test_each_stage_of_two_takes_half_of_the_time_of_a_device_share():
    run = simulate(interleaved(2, 4), Costs(forward=2, backward=4))
    assert actions(run) == [
        "0F0 0-1  0F1 1-2  2F0 2-3  2F1 3-4  0F2 4-5  2B0 6-8  0F3 8-9  2B1 9-11  2F2 11-12  0B0 12-14  2F3 14-15  "
        "0B1 15-17  2B2 18-20  2B3 21-23  0B2 23-25  0B3 25-27",
        "1F0 1-2  1F1 2-3  3F0 3-4  3B0 4-6  3F1 6-7  3B1 7-9  1F2 9-10  1B0 10-12  1F3 12-13  1B1 13-15  3F2 15-16  "
        "3B2 16-18  3F3 18-19  3B3 19-21  1B2 21-23  1B3 23-25",
    ]
    assert run.makespan == 27
    assert simulate(build("1f1b", devices=2, microbatches=4), Costs(forward=2, backward=4)).makespan == 30


def test_the_last_group_of_megatron_may_be_shorter():
    assert lists(interleaved(2, 5, group_size=3)) == [
        "0F0 0F1 0F2 2F0 2F1 2F2 2B0 0F3 2B1 0F4 2B2 2F3 0B0 2F4 0B1 0B2 2B3 2B4 0B3 0B4",
        "1F0 1F1 1F2 3F0 3B0 3F1 3B1 3F2 3B2 1F3 1B0 1F4 1B1 3F3 1B2 3F4 3B3 3B4 1B3 1B4",
    ]


def test_fewer_microbatches_than_devices_make_one_group():
    assert lists(interleaved(3, 2, grouping="spread"))[0] == "0F0 0F1 3F0 3F1 3B0 3B1 0B0 0B1"
    assert interleaved(3, 2, grouping="spread") == interleaved(3, 2, grouping="torch")


def test_one_stage_a_device_in_groups_of_p_has_eager_1f1bs_lists():
    # The warm-up is 2(p-r-1) + (v-1)g forwards, whose first part alone is the eager one.
    eager = build("eager-1f1b", devices=4, microbatches=8)
    assert interleaved(4, 8, v=1) == eager


@pytest.mark.parametrize(
    ("p", "m", "grouping", "group_size", "sizes"),
    [
        (4, 8, "megatron", None, [4, 4]),
        (4, 16, "megatron", 8, [8, 8]),
        (4, 12, "megatron", 8, [8, 4]),
        (4, 13, "megatron", 8, [8, 5]),
        (4, 8, "megatron", 8, [8]),
        (1, 3, "megatron", None, [1, 1, 1]),
        (4, 10, "torch", None, [5, 5]),
        (4, 3, "torch", None, [3]),
        (4, 7, "torch", None, [7]),
        (4, 11, "spread", None, [6, 5]),
        (4, 14, "spread", None, [5, 5, 4]),
        (4, 3, "spread", None, [3]),
    ],
)
def test_group_sizes(p, m, grouping, group_size, sizes):
    assert group_sizes(p, m, grouping, group_size).tolist() == sizes


@given(devices, st.integers(1, 60), st.sampled_from(["megatron", "torch", "spread"]), st.none() | st.integers(1, 60))
def test_groups_hold_every_microbatch_once_and_a_refusal_names_legal_values(p, m, grouping, group_size):
    group_size = group_size if grouping == "megatron" else None
    try:
        sizes = group_sizes(p, m, grouping, group_size)
    except BuildError as refused:
        refusal = str(refused)
    else:
        assert sizes.sum() == m
        assert np.all(np.diff(sizes) <= 0)
        assert sizes.min() >= min(p, m)
        return
    assert grouping != "spread"
    advice = refusal.split("; use ")[1]
    if "it must be from devices to microbatches" in refusal:
        assert p <= int(advice) <= m
    elif group_size is None or group_size >= p:
        for legal in re.findall(r"\d+", advice.split(" microbatches")[0]):
            assert group_sizes(p, int(legal), grouping, group_size).sum() == int(legal)


@pytest.mark.parametrize(
    ("p", "m", "options", "sentence"),
    [
        (4, 3, {}, "microbatches=3 with devices=4: grouping='megatron' needs at least as many microbatches as devices; "
                   "use 4 microbatches, or grouping='torch' or 'spread'"),
        (4, 9, {}, "microbatches=9 with group_size=4: the last group has 1, and needs at least "
                   "devices=4; use 8 or 12 microbatches, another group_size, or grouping='spread'"),
        (4, 8, {"group_size": 3}, "group_size=3 with devices=4, microbatches=8: it must be from devices to "
                                  "microbatches; use 4"),
        (4, 8, {"group_size": 9}, "group_size=9 with devices=4, microbatches=8: it must be from devices to "
                                  "microbatches; use 8"),
        (4, 8, {"group_size": 4.0}, "group_size=4.0 must be a whole number of at least 1"),
        (4, 11, {"grouping": "torch"}, "microbatches=11 with devices=4: grouping='torch' makes 2 rounds, and "
                                       "microbatches must be a multiple of the rounds; use 10 or 12 microbatches, or "
                                       "grouping='spread'"),
        (4, 8, {"grouping": "torch", "group_size": 4}, "group_size=4 needs grouping='megatron'; "
                                                       "grouping='torch' chooses its own"),
        (4, 8, {"grouping": None}, "grouping=None is not known; use one of: megatron, torch, spread"),
    ],
    ids=range(8),
)  # fmt: skip
def test_a_refused_grouping_is_told_with_its_rule(p, m, options, sentence):
    with pytest.raises(BuildError) as caught:
        interleaved(p, m, **options)
    assert str(caught.value) == sentence


def legal_groupings(p, m):
    yield {"grouping": "spread"}
    if m % max(1, m // p) == 0:
        yield {"grouping": "torch"}
    for g in {p, p + 1, 2 * p - 1, 2 * p, m - 1, m}:
        if p <= g <= m and (m % g == 0 or m % g >= p):
            yield {"group_size": g}


def test_no_grouping_deadlocks():
    for p in range(1, 13):
        for m in (*range(1, 20), 23, 29, 31, 37, 44, 59, 60):
            for options in legal_groupings(p, m):
                schedule = interleaved(p, m, v=1 + (p + m) % 4, **options)
                schedule.validate()


def test_stages_of_one_device_pay_no_transfer():
    costs = Costs(forward=1, backward=1, latency=100)
    assert simulate(interleaved(1, 4, v=4), costs).makespan == 8


@given(devices, st.integers(1, 12), stages_per_device)
def test_stage_s_sits_on_device_s_mod_p(p, m, v):
    schedule: Schedule = interleaved(p, m, v, grouping="spread")
    assert schedule.holdings.tolist() == [[r, stage] for r in range(p) for stage in range(r, p * v, p)]
    assert ppsim.Schedule.from_orders(schedule.orders()) == schedule
