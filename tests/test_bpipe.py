"""BPipe: eviction levels the activations of 1F1B and leaves its time alone."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ppsim
from ppsim.analysis.evictions import unhidden_moves


def bpipe(p, m):
    return ppsim.build("bpipe", devices=p, microbatches=m)


def one_f_one_b(p, m):
    return ppsim.build("1f1b", devices=p, microbatches=m)


def test_the_lists_are_those_of_1f1b_and_early_devices_lend_to_their_mirror():
    schedule = bpipe(4, 8)
    assert schedule.orders() == one_f_one_b(4, 8).orders()
    assert schedule.evicted.tolist() == [[0, 2, 3], [0, 3, 3], [0, 6, 3], [0, 7, 3]]


@settings(deadline=None, max_examples=80)
@given(st.integers(1, 14), st.integers(1, 40), st.floats(0.1, 5), st.floats(0.1, 5), st.floats(0, 3))
def test_no_device_holds_more_than_half_of_p_and_one_at_any_costs(p, m, F, B, latency):
    costs = ppsim.Costs(forward=F, backward=B, latency=latency)
    run, plain = ppsim.simulate(bpipe(p, m), costs), ppsim.simulate(one_f_one_b(p, m), costs)
    assert run.peak_activations.max() <= -(-(p + 2) // 2)
    assert run.peak_activations.max() <= plain.peak_activations.max()
    assert run.makespan == plain.makespan
    if m >= p > 1:
        assert run.peak_activations.max() == -(-(p + 2) // 2)


def test_evicted_activations_wait_on_the_host_from_the_end_of_f_to_the_start_of_b():
    run = ppsim.simulate(bpipe(4, 4), ppsim.Costs(forward=1, backward=2))
    owner, host = (
        list(zip(*(column.tolist() for column in run.activations_over_time(r)), strict=True)) for r in (0, 3)
    )
    assert owner == [(0, 1), (1, 2), (2, 3), (4, 2), (12, 1), (15, 0), (16, 1), (18, 0), (19, 1), (21, 0)]
    assert host == [(3, 2), (4, 3), (15, 2), (16, 1), (19, 0)]


def test_memory_counts_an_evicted_activation_on_its_host():
    costs = ppsim.Costs(activation_bytes=10.0, weight_bytes=1.0)
    for p, m in ((4, 12), (8, 20)):
        run = ppsim.simulate(bpipe(p, m), costs)
        assert run.peak_memory.tolist() == [1 + 10 * held for held in run.peak_activations]


def test_moves_that_last_longer_than_the_activations_are_away_are_not_hidden():
    def unhidden(**link):
        costs = ppsim.Costs(forward=1, backward=2, activation_bytes=80, **link)
        return unhidden_moves(ppsim.simulate(bpipe(4, 4), costs)).tolist()

    # Device 0 evicts microbatch 2 from 3 s to 16 s and microbatch 3 from 4 s to 19 s.
    assert unhidden(bandwidth=80 / 6.5) == [0] * 4
    assert unhidden(bandwidth=80 / 7) == [1, 0, 0, 0]
    assert unhidden(bandwidth=80 / 8) == [3 + 1, 0, 0, 0]


def test_a_program_of_the_schedule_keeps_what_is_evicted():
    program = ppsim.lower(bpipe(6, 12))
    assert np.array_equal(program.schedule.evicted, bpipe(6, 12).evicted)
    run = ppsim.simulate(program, transport="directed")
    assert run.peak_activations.max() == 4


def test_every_size_is_valid_and_runs_under_queued_transfers():
    for p in range(1, 9):
        for m in range(1, 2 * p + 2):
            schedule = bpipe(p, m)
            schedule.validate()
            ppsim.simulate(schedule, ppsim.Costs(latency=0.1), transport="directed")


def test_one_stage_a_device_is_the_only_size():
    with pytest.raises(ppsim.BuildError, match="use stages_per_device=1"):
        ppsim.build("bpipe", devices=4, microbatches=8, stages_per_device=2)
