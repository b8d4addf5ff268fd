"""Early ends of replays through torch.distributed: killed, interrupted or refused, said in one sentence."""

import os
import signal

import pytest

pytest.importorskip("torch")

from harness import finish, is_running, processes_in_a_step, replay, start_long_program


def in_a_long_program(folder, ranks):
    """The launcher and its ranks' processes, some steps into a program that takes longer than the test."""
    launcher = start_long_program(folder, ranks)
    return launcher, processes_in_a_step(launcher, folder, ranks)


@pytest.mark.parametrize(("killed", "ranks"), [(2, 3), (0, 2)])
def test_a_rank_that_dies_is_named_once_and_no_process_or_trace_is_left(killed, ranks, tmp_path):
    launcher, processes = in_a_long_program(tmp_path, ranks)
    os.kill(processes[killed], signal.SIGKILL)
    outcome = finish(launcher, 60)
    assert outcome.status != 0
    assert len(outcome.said) == 1
    assert outcome.said[0].startswith(f"replay: broken off: rank {killed} died or does not answer")
    assert not any(is_running(pid) for pid in processes.values())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["long.csv", "short.csv", "short.json"]


def test_an_interrupt_is_said_in_one_sentence(tmp_path):
    launcher, processes = in_a_long_program(tmp_path, 2)
    os.killpg(launcher.pid, signal.SIGINT)
    outcome = finish(launcher, 60)
    assert outcome.said == ["replay: broken off: interrupted"]
    assert not any(is_running(pid) for pid in processes.values())


def test_a_killed_launcher_leaves_no_ranks(tmp_path):
    launcher, processes = in_a_long_program(tmp_path, 2)
    launcher.kill()
    outcome = finish(launcher, 60)
    assert outcome.said == ["replay: broken off: the launcher was killed"]
    assert not any(is_running(pid) for pid in processes.values())


def test_a_full_disk_is_told_on_rank_0():
    outcome = replay(2, "--schedule", "1f1b", "--microbatches", 2, "--steps", 1, "--warm-up", 0, "--out", "/dev/full")
    assert outcome.status != 0
    assert outcome.said == ["replay: broken off: rank 0: /dev/full: cannot be written: No space left on device"]
