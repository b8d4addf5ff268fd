"""What the replay harness refuses before any rank meets another, and what it concludes when one fails."""

import ast
import errno
import json
import os

import pytest

import ppsim

pytest.importorskip("torch")

import torch
from harness import ROOT
from test_harness import CROSSED

from validation import failures, one_gpu, options, replay, runtimes, stages, traces
from validation.partition import share_of

FOUR = ppsim.build("1f1b", devices=4, microbatches=4)


@pytest.fixture(autouse=True)
def _rank_0_of_4(monkeypatch):
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "4"), ("LOCAL_WORLD_SIZE", "4"), ("LOCAL_RANK", "0")):
        monkeypatch.setenv(name, value)


def refused(capfd, *arguments, main=replay.main):
    """The one line that a wrong call gets; its status is 2."""
    try:
        status = main([str(argument) for argument in arguments])
    except SystemExit as ending:
        status = ending.code
    out, err = capfd.readouterr()
    assert status == 2
    assert out == ""
    assert err.count("\n") == 1
    return err.removeprefix("replay: ").rstrip("\n")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ([], "nothing to replay; name a PROGRAM.csv or a --schedule, such as --schedule 1f1b"),
        (["--bogus"], "unrecognized arguments: --bogus; see --help"),
        (["--schedule", "1f1b", "--steps", "0"], "--steps 0 must be at least 1"),
        (["--schedule", "1f1b", "--steps", "x"], "argument --steps: invalid int value: 'x'; see --help"),
        (
            ["--schedule", "1f1b", "--timeout", "nan"],
            "--timeout nan must be a number of seconds above 0 and at most 3600",
        ),
        (["--schedule", "1f1b", "--layers", "0"], "--layers 0 must be at least 1"),
        (
            ["--schedule", "1f1b", "--compute", "transformer", "--hidden", "6"],
            "--hidden 6 is not a multiple of --heads 4",
        ),
        (["--schedule", "1f1b", "--forward", "1"], "--forward goes with --compute sleep"),
        (
            ["--schedule", "1f1b", "--option", "x"],
            "--option 'x' has no value; write NAME=VALUE, such as grouping=torch",
        ),
        (["--schedule", "1f1b", "--schedule", "1f1b"], "1f1b is named twice; give each program a name of its own"),
        (
            ["--schedule", "1f1b", "--schedule", "gpipe", "--out", "trace.json"],
            "--out trace.json: several programs need several files; write {name} in it",
        ),
        (
            ["--schedule", "1f1b", "--out", ""],
            "--out '' is no file; give one, such as --out 'traces/{name}.json'",
        ),
        (
            ["--schedule", "1f1b", "--out", "/tmp"],  # noqa: S108 - a folder that exists
            "--out '/tmp' is no file; give one, such as --out 'traces/{name}.json'",
        ),
        (
            ["--schedule", "1f1b", "--out", "/nowhere/trace.json"],
            "--out /nowhere/trace.json: /nowhere is not a folder that can be written to",
        ),
        (
            ["--schedule", "1f1b", "--backend", "nccl"],
            "--backend nccl needs CUDA devices and a torch built with NCCL; use --backend gloo on CPUs",
        ),
        (
            ["--schedule", "pipedream"],
            "pipedream has steps without a flush or activations kept elsewhere, which the harness cannot run; "
            "use another schedule",
        ),
    ],
)
def test_a_wrong_call_gets_one_sentence(capfd, monkeypatch, flags, said):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert refused(capfd, *flags) == said


@pytest.mark.parametrize(
    ("flags", "part"),
    [
        (["--schedule", "1f2b"], "unknown schedule '1f2b'; did you mean"),
        (["--schedule", "dualpipe", "--microbatches", "3"], "use at least 8"),
        (["--schedule", "1f1b", "--compute", "sleep", "--forward", "-1"], "forward"),
        (["missing.csv"], "missing.csv: cannot be read: No such file or directory"),
    ],
)
def test_the_librarys_refusals_are_passed_on(capfd, flags, part):
    assert part in refused(capfd, *flags)


def test_other_ranks_say_nothing(capfd, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    assert replay.main(["--steps", "0"]) == replay.main([]) == 2
    with pytest.raises(SystemExit, match="2"):
        replay.main(["--bogus"])
    assert capfd.readouterr() == ("", "")


def test_a_program_for_another_number_of_ranks_names_the_launch_that_fits(capfd, monkeypatch, tmp_path):
    FOUR.to_csv(tmp_path / "four.csv")
    monkeypatch.setenv("WORLD_SIZE", "2")
    said = refused(capfd, tmp_path / "four.csv")
    assert said == "four is for 4 devices, but torchrun started 2 process(es); use torchrun --nproc-per-node 4"
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name)
    said = refused(capfd, tmp_path / "four.csv")
    assert said == "the program is for 4 devices; start it with torchrun --nproc-per-node 4"


@pytest.mark.parametrize("out", ["four.csv", "{name}.csv", "link", "../{folder}/four.csv"])
def test_a_trace_never_replaces_the_program_that_is_replayed(capfd, monkeypatch, tmp_path, out):
    FOUR.to_csv(tmp_path / "four.csv")
    (tmp_path / "link").symlink_to("four.csv")
    before = (tmp_path / "four.csv").read_bytes()
    monkeypatch.setenv("WORLD_SIZE", "4")
    said = refused(capfd, tmp_path / "four.csv", "--out", tmp_path / out.replace("{folder}", tmp_path.name))
    assert said.endswith("would replace a program that this call reads; give another name")
    assert (tmp_path / "four.csv").read_bytes() == before


def test_missing_backends_are_named(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_gloo_available", lambda: False)
    with pytest.raises(failures.ReplayError, match="this build of torch has no gloo backend"):
        options.check_backend("gloo")
    monkeypatch.setattr(torch.distributed, "is_nccl_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(failures.ReplayError, match=r"4 ranks share 1 GPU\(s\).*NCCL refuses two ranks on one GPU"):
        options.check_backend("nccl")


def test_a_program_that_would_hang_on_the_communicators_is_refused_with_its_cycle(tmp_path):
    ppsim.Schedule.from_orders(CROSSED).to_csv(tmp_path / "crossed.csv")
    asked = options.make_rank_parser(None).parse_args([str(tmp_path / "crossed.csv"), "--backend", "nccl"])
    with pytest.raises(ppsim.DeadlockError):
        options.load_programs(asked, 2)
    asked.backend = "gloo"
    assert options.load_programs(asked, 2)[0].orders() == CROSSED


def test_a_full_disk_leaves_no_half_written_trace(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    target = tmp_path / "trace.json"
    target.write_text("the old one")
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(failures.ReplayError, match=r"trace\.json: cannot be written: No space left on device"):
            traces.write_trace(str(target), {"schema": traces.SCHEMA})
    assert target.read_text() == "the old one"
    assert [path.name for path in tmp_path.iterdir()] == ["trace.json"]
    traces.write_trace(str(target), {"schema": traces.SCHEMA})
    assert json.loads(target.read_text()) == {"schema": "ppsim.trace/1"}


@pytest.mark.parametrize(
    ("reports", "said"),
    [
        ({0: (1, "lost 1"), 1: (2, "lost 2")}, "rank 2 died or does not answer (noticed by rank 1: lost 2)"),
        ({0: (1, "lost 1"), 1: (2, "lost 2"), 2: (None, "no memory")}, "rank 2: no memory"),
        ({0: (None, ""), 1: (failures.SOME_RANK, "a timeout"), 2: (None, "")}, "rank 1: a timeout"),
        (
            {0: (None, ""), 1: (failures.SOME_RANK, "closed")},
            "rank 2 died or does not answer (noticed by rank 1: closed)",
        ),
        ({0: (None, "no space")}, "rank 0: no space"),
        ({1: (0, "lost 0"), 2: (None, "")}, "rank 0 died or does not answer (noticed by rank 1: lost 0)"),
        ({0: (None, failures.INTERRUPTED), 1: (0, "lost 0")}, "interrupted"),
        ({0: (None, ""), 1: (None, "")}, "rank 2 died or does not answer"),
        ({0: (None, ""), 1: (None, ""), 2: (None, "")}, failures.UNKNOWN),
        ({}, failures.UNKNOWN),
    ],
)
def test_the_rank_that_broke_a_replay_is_found_from_what_all_say(reports, said):
    assert failures.conclusion(reports, 3) == said


def test_communicators_follow_the_layout_and_are_made_in_one_order(monkeypatch):
    program = ppsim.lower(ppsim.build("1f1b", devices=3, microbatches=3))
    pairs = options.used_pairs([program])
    assert pairs == [(0, 1), (1, 0), (1, 2), (2, 1)]
    made = []
    monkeypatch.setattr(torch.distributed, "new_group", lambda ranks, backend: made.append(ranks) or len(made))
    assert runtimes.make_communicators(pairs, "directed") == {(0, 1): 1, (1, 0): 2, (1, 2): 3, (2, 1): 4}
    assert made == [[0, 1], [0, 1], [1, 2], [1, 2]]
    made.clear()
    assert runtimes.make_communicators(pairs, "pair") == {(0, 1): 1, (1, 0): 1, (1, 2): 2, (2, 1): 2}
    made.clear()
    assert runtimes.make_communicators(pairs, "rank") == dict.fromkeys(pairs)
    assert made == []


def test_the_harness_meets_the_library_in_public_names_only():
    for file in (ROOT / "validation").glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                assert not [name.name for name in node.names if name.name.startswith("ppsim.")], file
            elif isinstance(node, ast.ImportFrom) and str(node.module).partition(".")[0] == "ppsim":
                assert node.module == "ppsim", file
                assert {name.name for name in node.names} <= set(ppsim.__all__), file


def test_one_gpu_refuses_what_it_cannot_play(capfd, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    wrong = {
        ("--devices", "2"): "one_gpu.py needs a CUDA device; on CPUs use torchrun validation/replay.py",
        ("--devices", "0"): "--devices 0 must be at least 1",
        ("--devices", "2", "--latency", "9"): "--latency 9 must be from 0 to 2 seconds",
        ("--devices", "16", "--microbatches", "16"): "the programs need 47 streams and torch has 32; use fewer devices",
    }
    for flags, said in wrong.items():
        assert refused(capfd, "--schedule", "1f1b", *flags, main=one_gpu.main) == said
    assert share_of(132, 4) == 32
    with pytest.raises(RuntimeError, match="132 multiprocessors cannot be cut into 20 parts; use at most 16"):
        share_of(132, 20)


@pytest.mark.parametrize("block", ["mlp", "transformer"])
def test_i_and_w_apart_are_the_gradients_of_autograd(block):
    shape = stages.Shape(block=block, layers=2)
    cpu = torch.device("cpu")
    split = stages.reference_gradients(2, 3, shape, cpu)
    whole = [stages.Stage(number, 2, shape, cpu) for number in range(2)]
    linears = [linear for stage in whole for linear in stage.linears]
    for linear in linears:
        linear.forward = lambda x, linear=linear: torch.nn.functional.linear(x, linear.weight)
    for microbatch in range(3):
        x = shape.microbatch(microbatch, cpu)
        for stage in whole:
            for part in stage.blocks:
                x = part(x)
        x.square().mean().backward()
    for found, linear in zip(split, linears, strict=True):
        torch.testing.assert_close(found, linear.weight.grad, rtol=1e-12, atol=1e-14)


def test_the_readme_names_every_flag():
    text = (ROOT / "validation" / "README.md").read_text()
    flags = {flag for action in options.make_rank_parser(None)._actions for flag in action.option_strings}
    assert sorted(flag for flag in flags if flag not in ("-h", "--help") and flag not in text) == []
