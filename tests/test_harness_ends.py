"""Early ends of replays through torch.distributed: killed, interrupted or refused, said in one sentence."""

import os
import signal
from importlib.util import find_spec

import pytest

if find_spec("torch") is None:  # which only the ranks load
    pytest.skip("torch is not installed", allow_module_level=True)

from harness import finish, is_running, processes_in_a_step, replay, start_long_program


def start_long_programs(folder, *ranks):
    """Launchers and their ranks' processes, some steps into programs that take longer than the test.

    All start at once, so that none waits for another to load torch.
    """
    launchers = [start_long_program(folder / str(number), count) for number, count in enumerate(ranks)]
    return [
        (launcher, processes_in_a_step(launcher, folder / str(number), count))
        for number, (launcher, count) in enumerate(zip(launchers, ranks, strict=True))
    ]


def test_a_rank_that_dies_is_named_once_and_no_process_or_trace_is_left(tmp_path):
    started = start_long_programs(tmp_path, 2, 2)
    killed = 1, 0
    for rank, (_, processes) in zip(killed, started, strict=True):
        os.kill(processes[rank], signal.SIGKILL)
    for number, (rank, (launcher, processes)) in enumerate(zip(killed, started, strict=True)):
        outcome = finish(launcher, 60)
        assert outcome.status != 0
        assert len(outcome.said) == 1
        assert outcome.said[0].startswith(f"replay: broken off: rank {rank} died or does not answer")
        assert not any(is_running(pid) for pid in processes.values())
        left = sorted(path.name for path in (tmp_path / str(number)).iterdir())
        assert left == ["long.csv", "short.csv", "short.json"]


def test_an_interrupt_and_a_killed_launcher_are_said_in_one_sentence_and_leave_no_ranks(tmp_path):
    started = start_long_programs(tmp_path, 2, 2)
    os.killpg(started[0][0].pid, signal.SIGINT)
    started[1][0].kill()
    for (launcher, processes), said in zip(started, ("interrupted", "the launcher was killed"), strict=True):
        outcome = finish(launcher, 60)
        assert outcome.said == [f"replay: broken off: {said}"]
        assert not any(is_running(pid) for pid in processes.values())


def test_a_full_disk_is_told_on_rank_0():
    outcome = replay(2, "--schedule", "1f1b", "--microbatches", 2, "--steps", 1, "--warm-up", 0, "--out", "/dev/full")
    assert outcome.status != 0
    assert outcome.said == ["replay: broken off: rank 0: /dev/full: cannot be written: No space left on device"]
