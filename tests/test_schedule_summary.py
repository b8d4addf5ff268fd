"""The summary of a schedule: each kind of action with its number, and moments at which its devices hold most."""

import numpy as np
import pytest

import ppsim
from ppsim.analysis import ScheduleSummary, memory_bound, step_bound


def most_held(schedule):
    """Most whole activations that each device holds in the peaks of a summary."""
    moments = ScheduleSummary.of(schedule).peaks
    return [moments.held[0, moments.device == device].sum(axis=1).max() for device in range(schedule.devices)]


def test_alike_actions_of_a_device_are_counted():
    summary = ScheduleSummary.of(ppsim.build("1f1b", devices=2, microbatches=4))
    assert summary.actions.kind.tolist() == [0, 1, 0, 1]
    assert summary.actions.stage.tolist() == [0, 0, 1, 1]
    assert summary.times.tolist() == [4, 4, 4, 4]


def test_both_parts_of_a_fused_slot_stay_together():
    schedule = ppsim.build("1f1b-overlap", devices=2, microbatches=6)
    summary = ScheduleSummary.of(schedule)
    assert summary.times[summary.actions.joined].sum() == np.count_nonzero(schedule.joined)
    assert (summary.actions.joined[1:] <= ~summary.actions.joined[:-1]).all()
    assert summary.times.sum() == len(schedule.kind)


def test_slices_that_differ_are_told_apart():
    summary = ScheduleSummary.of(ppsim.build("seq1f1b", devices=2, microbatches=3, slices=4))
    assert summary.times.tolist() == [3] * 2 * 2 * 4


def test_the_peaks_hold_as_many_as_the_family_keeps():
    assert most_held(ppsim.build("gpipe", devices=3, microbatches=5)) == [5, 5, 5]
    assert most_held(ppsim.build("1f1b", devices=3, microbatches=5)) == [3, 2, 1]


def test_what_waits_on_another_device_counts_while_it_is_at_home():
    """BPipe's device 0 of 4 keeps 3 of its 4 activations, and a fourth only while its forward runs."""
    schedule = ppsim.build("bpipe", devices=4, microbatches=8)
    run = ppsim.simulate(schedule, ppsim.Costs(activation_bytes=1, weight_bytes=1))
    held = memory_bound(ScheduleSummary.of(schedule), run.table)
    assert held is not None
    assert run.peak_memory is not None
    assert (held <= run.peak_memory).all()
    assert held[0] > 1.9  # the weights, and one activation that stays


@pytest.mark.parametrize("name", ["interleaved-1f1b", "zb-h1", "dualpipe", "slimpipe", "chimera"])
def test_the_bounds_of_a_summary_are_those_of_all_actions(name):
    schedule = ppsim.build(name, devices=4, microbatches=8)
    costs = ppsim.Costs(forward=1, input_grad=1.2, weight_grad=0.7, activation_bytes=3, weight_bytes=2, latency=0.1)
    table = costs.table(schedule)
    small, whole = ScheduleSummary.of(schedule), ScheduleSummary.of(schedule, whole=True)
    assert len(small) < len(whole)
    assert step_bound(small, table) == pytest.approx(step_bound(whole, table), rel=1e-12)
    assert np.array_equal(memory_bound(small, table), memory_bound(whole, table))
