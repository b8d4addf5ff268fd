"""BPipe: eviction levels the activations of 1F1B, and takes time where its moves are long."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import with_traits

import ppsim


def bpipe(p, m):
    return ppsim.build("bpipe", devices=p, microbatches=m)


def one_f_one_b(p, m):
    return ppsim.build("1f1b", devices=p, microbatches=m)


def test_the_lists_are_those_of_1f1b_and_early_devices_lend_to_their_mirror():
    schedule = bpipe(4, 8)
    assert schedule.orders() == one_f_one_b(4, 8).orders()
    assert schedule.evicted.tolist() == [[0, 1, 3], [0, 3, 3], [0, 5, 3], [0, 7, 3]]


@settings(deadline=None, max_examples=30)
@given(
    st.integers(1, 14),
    st.integers(1, 40),
    st.floats(0.1, 5),
    st.floats(0.1, 5),
    st.just(0.0) | st.floats(1e-9, 9),
    st.just(0.0) | st.floats(1e-9, 9),
)
def test_no_device_holds_more_than_half_of_p_and_one_at_any_costs(p, m, F, B, latency, moved):
    costs = ppsim.Costs(forward=F, backward=B, latency=latency, activation_bytes=moved, bandwidth=1.0)
    run, plain = ppsim.simulate(bpipe(p, m), costs), ppsim.simulate(one_f_one_b(p, m), costs)
    assert run.peak_activations.max() <= -(-(p + 2) // 2)
    assert run.peak_activations.max() <= plain.peak_activations.max()
    assert run.makespan >= plain.makespan
    if m >= p > 1:
        assert run.peak_activations.max() == -(-(p + 2) // 2)


@settings(deadline=None, max_examples=20)
@given(st.integers(2, 12), st.integers(1, 30), st.floats(0.1, 5), st.floats(0.1, 5), st.just(0.0) | st.floats(1e-9, 1))
def test_moves_no_longer_than_f_and_b_take_no_time(p, m, F, B, part):
    costs = ppsim.Costs(forward=F, backward=B, activation_bytes=part * min(F, B), bandwidth=1.0)
    assert ppsim.simulate(bpipe(p, m), costs).makespan == ppsim.simulate(one_f_one_b(p, m), costs).makespan


def test_evicted_activations_wait_on_the_host_from_the_end_of_f_to_the_action_before_b():
    run = ppsim.simulate(bpipe(4, 4), ppsim.Costs(forward=1, backward=2))
    owner, host = (
        list(zip(*(column.tolist() for column in run.activations_over_time(r)), strict=True)) for r in (0, 3)
    )
    # Device 0 evicts microbatches 1 and 3, which leave at 2 and 4 s; 1 is back at 4 s, and 3 when B of 2 starts.
    assert owner == [(0, 1), (1, 2), (3, 3), (12, 2), (18, 1), (21, 0)]
    assert host == [(2, 1), (3, 2), (15, 0)]


def test_memory_counts_an_evicted_activation_on_its_host():
    costs = ppsim.Costs(activation_bytes=10.0, weight_bytes=1.0)
    for p, m in ((4, 12), (8, 20)):
        run = ppsim.simulate(bpipe(p, m), costs)
        assert run.peak_memory.tolist() == [1 + 10 * held for held in run.peak_activations]


def test_a_move_takes_its_bytes_over_the_link_and_f_and_b_wait_for_it():
    costs = ppsim.Costs(forward=1, backward=2, activation_bytes=80, bandwidth=80 / 3.5)
    run = ppsim.simulate(bpipe(4, 4), costs)
    # Microbatch 1 leaves device 0 when its F has ended at 2 s; the F of microbatch 3 needs that room at 5.5 s, its own
    # move follows at 6.5 s, and what comes back takes its room.
    assert run.offloads.microbatch.tolist() == run.reloads.microbatch.tolist() == [1, 3]
    assert list(zip(run.offloads.start, run.offloads.end, strict=True)) == [(2, 5.5), (6.5, 10)]
    assert list(zip(run.reloads.start, run.reloads.end, strict=True)) == [(10, 13.5), (15.5, 19)]
    assert run.start[:8].tolist() == [0, 1, 2, 5.5, 10, 13.5, 16, 19]
    assert run.ledger()["reload"][0] == 2.5 + 0.5


def test_a_program_of_the_schedule_keeps_what_is_evicted():
    program = ppsim.lower(bpipe(6, 12))
    assert np.array_equal(program.schedule.evicted, bpipe(6, 12).evicted)
    run = ppsim.simulate(program, transport="directed")
    assert run.peak_activations.max() == 4


@pytest.mark.parametrize(
    ("evicted", "sentence"),
    [
        ([[2, 0, 1]], "an eviction of 2F0 to device 1 names what does not exist"),
        ([[0, 0, 2]], "an eviction of 0F0 to device 2 names what does not exist"),
        ([[0, 0, 0]], "0F0 (row 1, column 1) is evicted to device 0, which runs it"),
        ([[0, 1, 1], [0, 1, 1]], "0F1 (row 1, column 2) is evicted to device 1, but it is evicted twice"),
        ([[1, 1, 0]], "1F1 (row 2, column 2) is evicted to device 0, but its backward is in one slot with its"),
        ([[1, 0, 0]], "1F0 (row 2, column 1) is evicted to device 0, but the lists also OFFLOAD it"),
    ],
)
def test_an_eviction_that_cannot_be_is_named(evicted, sentence):
    lists = [["0F0", "0F1", "0B1", "0B0"], ["1F0", "1OFFLOAD0", "(1F1;1B1)OVERLAP_F_B", "1RELOAD0", "1B0"]]
    if "slot" in sentence:
        lists[1] = ["1F0", "(1F1;1B1)OVERLAP_F_B", "1B0"]
    schedule = with_traits(ppsim.Schedule.from_orders(lists), evicted=np.array(evicted, np.int32))
    with pytest.raises(ppsim.ScheduleError, match=re.escape(sentence)):
        schedule.validate()


def test_an_evicted_activation_is_back_before_its_r():
    lists = [["0F0", "0F1", "0R0", "0B1", "0B0"], ["1F0", "1F1", "1B1", "1B0"]]
    schedule = with_traits(ppsim.Schedule.from_orders(lists), evicted=np.array([[0, 0, 1]], np.int32))
    costs = ppsim.Costs(activation_bytes=1.0, bandwidth=4.0, input_fraction_of_activation=1.0)
    for engine in ("event", "compiled"):
        run = ppsim.simulate(schedule, costs, engine=engine)
        assert (run.offloads.end.tolist(), run.reloads.end.tolist()) == ([1.25], [1.5])
        assert dict(zip(schedule.orders()[0], run.start, strict=False))["0R0"] == 2
