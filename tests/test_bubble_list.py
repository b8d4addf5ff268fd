"""The list of bubbles: when, how long, and what memory is free in them."""

import csv
from typing import Any

import numpy as np
import pytest
from command_line import LLAMA
from command_line import ppsim as command
from hypothesis import given
from random_runs import runs

import ppsim


def rows(bubbles):
    return list(zip(bubbles.device.tolist(), bubbles.start, bubbles.seconds, bubbles.activations, strict=True))


def test_fill_gaps_and_drain_with_what_lives_in_them():
    run = ppsim.simulate(ppsim.build("1f1b", devices=2, microbatches=2), ppsim.Costs(forward=1, backward=2))
    assert rows(run.bubbles()) == [(0, 2, 2, 2), (0, 6, 1, 1), (1, 0, 1, 0), (1, 7, 2, 0)]
    assert np.isnan(run.bubbles().free_memory).all()


@given(runs(streams=True))
def test_bubbles_are_the_idle_time_of_every_device(run):
    bubbles = run.bubbles()
    total = np.bincount(bubbles.device, bubbles.seconds, minlength=run.schedule.devices)
    assert total == pytest.approx(run.device_idle, abs=1e-9 * run.makespan + 1e-300)
    assert (bubbles.activations <= run.peak_activations[bubbles.device] + 1e-9).all()


def test_free_memory_is_what_the_device_has_less_what_is_held():
    run: Any = ppsim.load_config(LLAMA).simulate()
    bubbles, memory = run.bubbles(), run.memory()
    for device in range(run.schedule.devices):
        mine = bubbles.free_memory[bubbles.device == device]
        assert (mine >= memory.capacity - memory.peak[device] - 1).all()
    times, levels = run.memory_over_time(1)
    first = np.flatnonzero(bubbles.device == 1)[0]
    inside = (times >= bubbles.start[first]) & (times < bubbles.start[first] + bubbles.seconds[first])
    static = run.static_memory[:, 1].sum()
    assert bubbles.free_memory[first] == memory.capacity - max(static, levels[inside].max(initial=0))


def test_the_command_writes_them_as_csv(tmp_path):
    path = tmp_path / "bubbles.csv"
    assert command("simulate", LLAMA, "--bubbles", path).status == 0
    read = list(csv.DictReader(path.open()))
    assert list(read[0]) == ["device", "start", "seconds", "activations", "free_memory"]
    assert float(read[0]["free_memory"]) > 0
    command("simulate", "--schedule", "1f1b", "--devices", 2, "--microbatches", 2, "--bubbles", path)
    assert path.read_text().splitlines()[1] == "0,2.0,2.0,2.0,"
