"""Thousands of devices: nothing is kept for each pair of them, unless links or ports differ by pair."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_runs import runs

import ppsim
from ppsim.costs import Profile


def test_a_profile_prices_the_links_that_it_measured():
    kinds = {"F": [1.0], "B": [2.0]}
    profile = Profile(devices=300, seconds=kinds, latency=0.5, links={"0-1": 0.75, "299-298": 0.25})
    latency = profile.table(ppsim.build("1f1b", devices=300, microbatches=1)).latency
    assert (latency[0, 1], latency[1, 0], latency[299, 298], latency[5, 6]) == (0.75, 0.5, 0.25, 0.5)


@pytest.mark.parametrize("name", ["given", "profile", "jitter"])
def test_no_matrix_of_all_pairs_is_made(name):
    devices = 2048
    matrix = 8 * devices**2
    costs = ppsim.Costs(forward=1, backward=2, latency=0.1)
    jitter = ppsim.Jitter(actions=0.1, transfers=0.1, devices=0.1, links=0.1) if name == "jitter" else None
    if name == "profile":
        costs = Profile(devices=devices, seconds={"F": [1.0], "B": [2.0]}, latency=0.1)
    schedule = ppsim.build("1f1b", devices=devices, microbatches=1)
    ppsim.simulate(ppsim.build("1f1b", devices=2, microbatches=1), ppsim.Costs()).summary()
    tracemalloc.start()
    try:
        run = ppsim.simulate(schedule, costs, jitter=jitter, engine="event")
        assert run.ledger().total.sum() == pytest.approx(run.device_idle.sum())
        assert tracemalloc.get_traced_memory()[1] < matrix
    finally:
        tracemalloc.stop()


def test_too_many_pairs_of_devices_say_what_they_need(monkeypatch):
    ledger = ppsim.simulate(ppsim.build("1f1b", devices=8, microbatches=1)).ledger()
    monkeypatch.setattr("ppsim.base.host.memory_bytes", lambda: 3_000)
    with pytest.raises(
        ppsim.ConfigError, match=r"needs about .* of memory, and this machine has 3 kB; use fewer devices"
    ):
        assert ledger.blame


@settings(deadline=None, max_examples=50)
@given(runs(st.sampled_from([0.1, 0.5, 2.0]), streams=True))
def test_peaks_of_devices_at_once_are_the_highest_points_of_their_curves(run):
    stages = run.schedule.num_stages
    table = replace(
        run.table, activation_bytes=np.arange(1.0, stages + 1), state_bytes=np.ones((3, stages)),
        transfer_bytes=np.full((2, stages), 0.25),
    )  # fmt: skip
    run = ppsim.Timeline(run.plan, table, run.costs, run.times, engine=run.engine)
    devices = range(run.schedule.devices)
    peaks = run.peak_activations, run.peak_memory
    for peak, curve in zip(peaks, (run.activations_over_time, run.memory_over_time), strict=True):
        assert peak == pytest.approx([curve(device)[1].max() for device in devices], rel=1e-9)
    assert run.peak_memory == pytest.approx(run.memory().peak, rel=1e-9)
