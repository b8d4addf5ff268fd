"""Replays through torch.distributed on gloo: exact orders, causality and gradients; the simulator's step times."""

import os
import signal
import time
from importlib.util import find_spec
from typing import Any

import pytest

import ppsim

if find_spec("torch") is None:  # which only the ranks load
    pytest.skip("torch is not installed", allow_module_level=True)

from harness import assert_orders_and_causality, document, finish, processes_in_a_step, replay, start_long_program

from validation.verdict import verdict

pytestmark = pytest.mark.alone

SLEEP = ("--compute", "sleep", "--steps", 4, "--warm-up", 0)
STAGE = {"forward": 0.02, "backward": 0.04}  # seconds of one stage
LEAST, MOST = 0.99, 1.06

# A receive posted before one that must come first, as only tags allow; and sends that lag behind their actions.
CROSSED = [
    ["0F0", "0SEND_F0", "0RECV_B0", "0B0", "0F1", "0SEND_F1", "0RECV_B1", "0B1"],
    ["1RECV_F1", "1RECV_F0", "1F0", "1B0", "1SEND_B0", "1F1", "1B1", "1SEND_B1"],
]
LATE_SENDS = [
    ["0F0", "0F1", "0SEND_F1", "0SEND_F0", "0RECV_B1", "0RECV_B0", "0B0", "0B1"],
    ["1RECV_F1", "1RECV_F0", "1F0", "1F1", "1B0", "1B1", "1SEND_B1", "1SEND_B0"],
]


def held_to_the_simulator(folder, ranks, names, *arguments, stages_per_device=1):
    """Replay all programs in one launch; orders, causality and gradients of each, and its step time where it tells."""
    share: Any = {name: seconds * stages_per_device for name, seconds in STAGE.items()}
    times = [flag for name, seconds in share.items() for flag in (f"--{name}", seconds)]
    outcome = replay(ranks, *SLEEP, *times, "--check-gradients", "--out", folder / "{name}.json", *arguments)
    assert outcome.status == 0, outcome
    lines = outcome.out.splitlines()
    assert len(lines) == len(names)
    for name, line in zip(names, lines, strict=True):
        assert line.startswith(f"replayed {name}: 4 steps on {ranks} rank(s), gradients equal a single process's; ")
        assert_orders_and_causality(folder / f"{name}.json")
        result = verdict(document(folder / f"{name}.json"), ppsim.Costs(**share))
        assert result.sentence in line
        assert ("not judged" in line) != result.judged
        assert result.judged == (result.hop < 1e-3 and name != "crossed")
        if result.judged:
            assert LEAST <= result.ratio <= MOST, line


def test_two_ranks_replay_split_backwards_both_directions_and_any_order_of_sends_and_receives(tmp_path):
    programs = []
    for name, lists in (("crossed", CROSSED), ("late-sends", LATE_SENDS)):
        programs.append(tmp_path / f"{name}.csv")
        ppsim.Schedule.from_orders(lists).to_csv(programs[-1])
    families = ("1f1b", "zb-h1", "dualpipe")
    flags = [flag for name in families for flag in ("--schedule", name)]
    names = ("crossed", "late-sends", *families)
    held_to_the_simulator(tmp_path, 2, names, *programs, *flags, "--microbatches", 4)

    trace = assert_orders_and_causality(tmp_path / "crossed.json")
    assert ppsim.Schedule.of(trace.program).orders() == CROSSED
    with pytest.raises(ppsim.DeadlockError):
        ppsim.simulate(trace.program, transport="directed")
    assert trace.transport == "async"


def test_four_ranks_replay_several_stages_a_device(tmp_path):
    names = ("interleaved-1f1b", "zb-v", "dualpipe-v")
    flags = [flag for name in names for flag in ("--schedule", name)]
    held_to_the_simulator(tmp_path, 4, names, *flags, "--microbatches", 8, stages_per_device=2)


def test_ranks_that_stop_answering_are_noticed_within_twice_the_timeout(tmp_path):
    timeout, launchers, since = 6.0, {}, {}
    for stopped in (1, 0):
        launchers[stopped] = start_long_program(tmp_path / str(stopped), 2, "--timeout", timeout)
    for stopped, launcher in launchers.items():
        processes = processes_in_a_step(launcher, tmp_path / str(stopped), 2)
        os.kill(processes[stopped], signal.SIGSTOP)
        since[stopped] = time.monotonic(), processes[stopped]
    for stopped, launcher in launchers.items():
        begun, process = since[stopped]
        assert launcher.stderr is not None
        said = next(line for line in launcher.stderr if line.startswith("replay: "))
        assert time.monotonic() - begun < 2 * timeout
        assert said.startswith(f"replay: broken off: rank {stopped} died or does not answer")
        os.kill(process, signal.SIGKILL)
        finish(launcher, 60)
