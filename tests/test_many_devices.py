"""Thousands of devices: nothing is kept for each pair of them, unless links or ports differ by pair."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_runs import runs

import ppsim
from ppsim.analysis import gaps
from ppsim.analysis import ledger as ledgers
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


def test_of_many_devices_a_document_lists_the_longest_waits_and_sums_the_others(monkeypatch):
    ledger = ppsim.simulate(ppsim.build("1f1b", devices=4, microbatches=1)).ledger()
    monkeypatch.setattr(ledgers, "_MAX_LISTED", 0)
    monkeypatch.setattr(ledgers, "_MIN_LISTED_PER_DEVICE", 4)
    whole = ledger.to_dict()["blame"]
    monkeypatch.setattr(ledgers, "_WAITS_AT_ONCE", 4)  # device by device
    assert ledger.to_dict()["blame"] == whole
    of_first = [tuple(wait.values()) for wait in whole if wait["device"] == 0]
    assert of_first == [(0, 1, "B", 2.0), (0, 2, "B", 2.0), (0, 3, "B", 2.0), (0, 1, "F", 1.0), (0, None, "F", 2.0)]
    assert sum(wait["seconds"] for wait in whole) == ledger.blame.seconds.sum()


@settings(deadline=None, max_examples=50)
@given(runs(streams=True), st.integers(0, 3))
def test_a_ledger_of_a_few_devices_at_a_time_is_that_of_all(run, block):
    whole = gaps.Gaps(run)
    idle, waited = np.zeros_like(whole.idle), np.zeros_like(whole.waited)
    for first in range(0, run.schedule.devices, block + 1):
        part = gaps.Gaps(run, devices=slice(first, first + block + 1))
        idle, waited = idle + part.idle, waited + part.waited
    np.testing.assert_allclose(idle, whole.idle, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(waited, whole.waited, rtol=1e-9, atol=1e-12)


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
