"""Every flag of every command, with values legal and odd, ends with a documented exit status and no traceback."""

import json
import signal
from importlib import import_module
from pathlib import Path

import pytest
import typer.main
from command_line import LLAMA, UNIT_COSTS, ppsim
from hypothesis import given
from hypothesis import strategies as st
from synthetic_traces import trace_document

import ppsim as library
from ppsim.cli import COMMANDS, PLAIN
from tests.fuzz.cases import COUNTS, some

LONGEST = 60  # seconds of one call; a call that hangs fails
SERVES = "explore"  # until it is interrupted: test_explorer.py has its flags

NUMBERS = ["0", "-1", "1", "2", "3", "0.5", "1e300", "nan", "inf", "-inf", "9" * 400, "1e-320", "100%", "2 ms", "1 GB"]
WORDS = [
    "",
    " ",
    "x",
    "1f1b",
    "gpipe",
    "zb-h1",
    "auto",
    "rank",
    "async",
    "event",
    "sync",
    "\u202e",
    "é" * 300,
    "-",
    "=",
]
PAIRS = ["schedule.microbatches=2", "costs.forward=1e-3", "schedule.name=gpipe,zb-h1", "a.b=c", "=", "group_size=2",
         "schedule.microbatches=2,4", "jitter.actions=0.1", "costs.latency=nan", "model=null"]  # fmt: skip
FILES = ["unit.yaml", "trace.json", "profile.yaml", "order.csv", "baseline.json", "none/x.png", ".", "/dev/null",
         "bad\x1b", "out.png", "out.svg", "out.json", "out.csv", "out.html", "out.pftrace", "out.yaml",
         "x" * 5000]  # fmt: skip
NOT_FOR = {"--workers": ["9" * 400, "3", "2"], "--seconds": [], "--time-limit": []}

SIZES = "--schedule 1f1b --devices 2 --microbatches 2"
NO_SCHEDULE = "--devices 2 --microbatches 2"
# Calls that work, and words that may follow each.
CALLS = {
    "simulate": ["unit.yaml", SIZES],
    "compare": ["unit.yaml", f"--schedules 1f1b,gpipe {NO_SCHEDULE}"],
    "sweep": ["unit.yaml --over schedule.microbatches=2,4", f"{SIZES} --over schedule.name=1f1b,gpipe"],
    "what-if": ["unit.yaml --set costs.latency=2ms", "unit.yaml --slow 0=1.1"],
    "choose": ["unit.yaml", "model.yaml --free schedule.name"],
    "advise": ["unit.yaml", SIZES],
    "fits": ["model.yaml"],
    "fill": ["unit.yaml --work 100ms", f"{SIZES} --work 40ms --work 0.1"],
    "check": ["unit.yaml --baseline baseline.json", "model.yaml --max-bubble 90% --max-memory 900GB"],
    "optimum": [NO_SCHEDULE],
    "calibrate": ["trace.json -o out.yaml"],
    "evaluate": ["trace.json --profile profile.yaml"],
    "explain": ["trace.json", "trace.json unit.yaml --set schedule.devices=2 --set schedule.microbatches=2"],
    "list": ["", "1f1b"],
    "validate": ["order.csv"],
    "hardware": [""],
    "glossary": ["bubble"],
    "lengths": ["lengths.yaml"],
    "import": ["megatron launch.sh"],
    "export": ["model.yaml", "model.yaml --framework Megatron-LM"],
}
OUT = ["--json out.json", "--json -"]
COSTS = ["--forward 1 --backward 2", "--input-grad 1 --weight-grad 1", "--latency 0.1", "--overlap 2.5",
         "--transport rank", "--engine event", "--dispatch ready", "--stages-per-device 1"]  # fmt: skip
SET = ["--set costs.latency=2ms", "--set schedule.microbatches=4"]
MORE = {
    "simulate": ["--gantt out.svg", "--gantt out.png --critical-path", "--gantt out.html --transfers", "--text",
                 "--trace out.json", "--csv out.csv", "--program p.csv --sharded", "--table t.csv", "--ledger",
                 "--bubbles b.csv", "--ledger-chart l.svg", "--gantt out.svg --title x --width 5"],
    "compare": ["--gantt out.svg"],
    "sweep": ["--store s.sqlite", "--table t.md", "--front f.svg", "--measure span"],
    "what-if": [],
    "choose": ["--csv out.csv", "--headroom 10%", "--asynchronous"],
    "fill": ["--gantt out.svg", "--table t.csv", "--headroom 10%"],
    "fits": ["--headroom 10%", "--set layout.recompute=full"],
    "check": ["--junit j.xml", "--max-step-time 9999", "--tolerance-rel 1%"],
    "optimum": ["--forward 1 --backward 2", "--latency 1", "--memory-limit 3", "--csv out.csv", "--whole-backward"],
    "evaluate": ["--chart out.svg", "--csv out.csv"],
    "explain": ["--gantt out.svg", "--step 1", "--profile p.yaml"],
    "validate": ["--pytorch", "--transport rank"],
}  # fmt: skip


def flags_of(name):
    """The options of a command: its name and whether it takes a value."""
    module, _ = COMMANDS[name]
    only = typer.Typer(**PLAIN)
    only.command(name)(getattr(import_module(f"ppsim.commands.{module}"), module))
    options = [one for one in typer.main.get_command(only).params if one.param_type_name == "option"]
    return {max(one.opts, key=len): not getattr(one, "is_flag", False) for one in options if "--help" not in one.opts}


FLAGS = {name: flags_of(name) for name in COMMANDS if name != SERVES}


@st.composite
def calls(draw, name):
    """A call that works with up to two things more that go with it; in half of the calls one word is then damaged."""
    start = draw(st.sampled_from(CALLS[name]))
    fitting = MORE.get(name, []) + OUT * ("--json" in FLAGS[name])
    if "--set" in FLAGS[name] or "--engine" in FLAGS[name]:
        fitting = fitting + (SET if "yaml" in start else COSTS * ("--engine" in FLAGS[name]))
    more = draw(st.lists(st.sampled_from(fitting or [""]), max_size=2, unique_by=lambda words: words.split(" ")[0]))
    words = " ".join([start, *more]).split()
    damage = draw(st.sampled_from(["none", "none", "none", "word", "flag", "missing"]))
    if damage == "word" and words:
        words[draw(st.integers(0, len(words) - 1))] = draw(st.sampled_from(NUMBERS + WORDS + PAIRS + FILES))
    if damage == "missing" and words:
        del words[draw(st.integers(0, len(words) - 1))]
    if damage == "flag":
        flag = draw(st.sampled_from(sorted(FLAGS[name])))
        odd = [value for value in NUMBERS + WORDS + PAIRS + FILES if value not in NOT_FOR.get(flag, ())]
        words += [flag, draw(st.sampled_from(odd))] if FLAGS[name][flag] else [flag]
    return words


def write_inputs():
    """Write every file that a call reads into this folder."""
    small = UNIT_COSTS.read_text().replace("devices: 4", "devices: 2").replace("microbatches: 8", "microbatches: 4")
    Path("unit.yaml").write_text(small)
    Path("model.yaml").write_text(LLAMA.read_text())
    costs = library.Costs(forward=0.02, backward=0.05, latency=0.001)
    Path("trace.json").write_text(json.dumps(trace_document("1f1b", costs, devices=2, microbatches=2, steps=2)))
    assert ppsim("calibrate", "trace.json", "-o", "profile.yaml").status == 0
    assert ppsim("check", "unit.yaml", "--baseline", "baseline.json", "--update").status == 0
    library.build("1f1b", devices=2, microbatches=2).to_csv("order.csv")
    Path("lengths.yaml").write_text(
        "schedule: {name: 1f1b, devices: 2}\ncosts: {forward: 0.02, backward: 0.05}\n"
        "lengths: {sequences: 8, median: 8, spread: 0.5, tokens: 16, attention: 0.5, batches: 2}\n"
    )
    Path("launch.sh").write_text(library.to_launch(library.load_config(LLAMA), "Megatron-LM"))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with every file that a call names."""
    monkeypatch.chdir(tmp_path)
    write_inputs()
    return tmp_path


def too_long(*_):
    raise AssertionError(f"no answer within {LONGEST} s")


@pytest.mark.parametrize("name", sorted(FLAGS))
@given(data=st.data())
@some(0.25)
def test_a_call_with_any_flags_ends_with_a_status_and_without_a_traceback(name, data, folder):
    words = data.draw(calls(name))
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(LONGEST)
    try:
        outcome = ppsim(name, *words)
    finally:
        signal.alarm(0)
    assert outcome.status in (0, 1, 2), words
    assert outcome.status == 0 or outcome.out or outcome.err, words
    assert "Traceback" not in outcome.err, words
    assert not set(outcome.out + outcome.err) & set("\x1b\x07"), words
    for written in folder.iterdir():
        assert not written.name.startswith("."), (words, written)  # no half of a file is left
    COUNTS[f"ppsim {name}"]["answers" if outcome.status == 0 else "refusals"] += 1


def test_every_command_is_called_or_said_why_not():
    assert set(CALLS) == set(FLAGS) == set(COMMANDS) - {SERVES}
