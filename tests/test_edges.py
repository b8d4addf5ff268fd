"""The edges of the program: odd numbers, names, files and outputs end in an answer or one sentence."""

import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from command_line import ENVIRONMENT, UNIT_COSTS, hear_signals, ppsim
from shared_ports import SharedPorts
from synthetic_traces import trace_document

import ppsim as library
from ppsim.base.errors import visible

HUGE = "9" * 400


def refusal(*arguments):
    outcome = ppsim(*arguments)
    assert outcome.status == 2
    assert outcome.err.startswith("ppsim: ")
    return outcome.err


@pytest.mark.parametrize("family", ["1f1b", "gpipe", "interleaved-1f1b", "zb-h1", "dualpipe", "hanayo", "seq1f1b"])
@pytest.mark.parametrize("transport", ["async", "directed", "rank", "blocking"])
def test_slack_is_known_where_transfers_that_take_no_time_share_ports(family, transport):
    schedule = library.build(family, devices=4, microbatches=8)
    run = library.simulate(schedule, SharedPorts(library.Costs(latency=0.0), [0, 1, 2, 3]), transport=transport)
    assert np.isfinite(run.slack()).all()
    assert run.slack()[run.critical_path()].max() == 0.0


def test_costs_that_overflow_close_the_gate():
    slow = "jitter.slow_devices={0: 1e300, 1: 1e300}"
    arguments = ("check", UNIT_COSTS, "--max-bubble", "1%", "--set", slow, "--set", "costs.forward=1e50")
    assert "a step must take a finite time" in refusal(*arguments)


@pytest.mark.parametrize("folder", ["run #3", "a: b", "{x", "'q", "- y"])
def test_a_schedule_file_may_lie_in_a_folder_of_any_name(folder, tmp_path):
    file = tmp_path / folder / "order.csv"
    file.parent.mkdir()
    file.write_text("0F0,0B0\n")
    outcome = ppsim("simulate", "--schedule", file, "--json", "-")
    assert json.loads(outcome.out)["makespan"] == 3.0


def test_sections_taken_away_are_as_if_never_given():
    absent = [word for key in ("model", "hardware", "layout") for word in ("--set", f"{key}=null")]
    assert ppsim("simulate", UNIT_COSTS, *absent).out == ppsim("simulate", UNIT_COSTS).out


def test_an_empty_section_is_as_if_never_given(tmp_path):
    config = tmp_path / "empty.yaml"
    config.write_text("schedule: {name: 1f1b, devices: 2, microbatches: 2}\nhardware:\nmodel:\n")
    assert ppsim("simulate", config).status == 0


@pytest.mark.parametrize("key", ["costs.forward", "jitter.devices", "schedule.devices", "published.mfu"])
def test_integers_too_large_for_a_float_are_refused_by_name(key):
    assert key.rpartition(".")[2] in refusal("simulate", UNIT_COSTS, "--set", f"{key}={HUGE}")


def test_jitter_of_an_integer_too_large_for_a_float_is_refused():
    for given in ({"actions": int(HUGE)}, {"slow_devices": {0: int(HUGE)}}):
        with pytest.raises(library.CostError, match="jitter"):
            library.Jitter(**given)


def test_a_number_of_thousands_of_digits_is_refused_by_its_key_without_pythons_own_words():
    said = refusal("simulate", UNIT_COSTS, "--set", f"costs.forward={'9' * 5000}")
    assert "override 'costs.forward': line 1: a number of more than 4000 digits" in said


def test_a_chart_of_the_shortest_times_there_are_overflows_nowhere():
    costs = library.Costs(forward=1e-100, backward=1.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert library.simulate(library.build("1f1b", devices=2, microbatches=2), costs).plot()._repr_mimebundle_()


def test_a_key_with_thousands_of_dots_is_refused():
    assert "nested deeper than" in refusal("simulate", UNIT_COSTS, "--set", ".".join("a" * 3000) + "=1")


LONG = "x" * 5000


@pytest.mark.parametrize("call", [
    ("simulate", LONG), ("check", UNIT_COSTS, "--baseline", LONG), ("validate", LONG), ("explain", LONG),
    ("calibrate", LONG, "-o", "out.yaml"), ("evaluate", LONG, "--profile", LONG),
    ("simulate", UNIT_COSTS, "--csv", LONG),
])  # fmt: skip
def test_a_path_longer_than_the_system_takes_is_refused(call):
    assert "name too long" in refusal(*call)


@pytest.mark.parametrize("limit", ["1e300", "1e308", "123456789"])
def test_a_memory_limit_above_all_activations_is_none(limit):
    pytest.importorskip("ortools")
    sizes = ("--devices", 2, "--microbatches", 2)
    free = json.loads(ppsim("optimum", *sizes, "--json", "-").out)
    assert (
        json.loads(ppsim("optimum", *sizes, "--memory-limit", limit, "--json", "-").out)["makespan"] == free["makespan"]
    )


def ended(*arguments, **options):
    """Exit status and stderr of `ppsim ARGUMENTS` as a process with a stdout of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "ppsim", *map(str, arguments)], stderr=subprocess.PIPE, text=True, **options
    )
    return done.returncode, done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a Linux device")
@pytest.mark.parametrize("call", [
    ("simulate", UNIT_COSTS), ("--version",),
])  # fmt: skip
def test_a_full_stdout_is_one_sentence(call):
    with open("/dev/full", "w") as full:
        status, said = ended(*call, stdout=full, env=ENVIRONMENT)
    assert (status, said) == (2, "ppsim: stdout: cannot be written: No space left on device\n")


def test_a_closed_stdout_is_one_sentence():
    status, said = ended("simulate", UNIT_COSTS, env=ENVIRONMENT, preexec_fn=lambda: os.close(1))
    assert status == 2
    assert said.startswith("ppsim: stdout")
    assert said.count("\n") == 1


def test_a_stdout_that_is_not_unicode_gets_what_it_can_hold():
    told = {**ENVIRONMENT, "PYTHONIOENCODING": "ascii"}
    text = subprocess.check_output([sys.executable, "-m", "ppsim", "simulate", UNIT_COSTS, "--text"], env=told)
    assert b". idle" in text
    assert b"F0F1F2" in text
    assert b"\\" not in text
    document = subprocess.check_output([sys.executable, "-m", "ppsim", "simulate", UNIT_COSTS, "--json", "-"], env=told)
    assert json.loads(document)["makespan"] == 33.0


def test_control_characters_in_a_name_are_shown_not_sent(tmp_path):
    config = tmp_path / "\x1b[31mred\x9b.yaml"
    config.write_text('schedule: {name: 1f1b, devices: 2, microbatches: 2}\nname: "a\\u001b]0;title\\u0007"\n')
    for arguments in (("simulate", config, "--json", "-"), ("check", config, "--max-bubble", "1%"), ("fits", config)):
        outcome = ppsim(*arguments)
        assert not set(outcome.out + outcome.err) & set("\x1b\x07\x9b")
    assert json.loads(ppsim("simulate", config, "--json", "-").out)["name"] == "a\x1b]0;title\x07"


def test_names_are_shown_in_charts_and_reports(tmp_path):
    import xml.dom.minidom

    run = library.simulate(library.Schedule.from_orders([["0F0", "0B0"]], name="a\x1b[31m\x00$\\frac\u202e"))
    run.plot().savefig(tmp_path / "chart.svg")
    text = (tmp_path / "chart.svg").read_text()
    xml.dom.minidom.parseString(text)  # noqa: S318 - our own file
    assert "\\u001b[31m\\u0000$\\frac\\u202e" in text
    config = tmp_path / "\x01.yaml"
    config.write_text("schedule: {name: 1f1b, devices: 2, microbatches: 2}\n")
    ppsim("check", config, "--max-bubble", "1%", "--junit", tmp_path / "report.xml")
    assert "\\u0001.yaml" in (tmp_path / "report.xml").read_text()
    xml.dom.minidom.parse(str(tmp_path / "report.xml"))  # noqa: S318 - our own file


def test_text_is_visible_as_json_writes_it():
    assert visible("a\tb\n\x1b[0m\u202eé") == "a\tb\n\\u001b[0m\\u202eé"


def test_latex_in_a_users_settings_changes_no_chart(tmp_path):
    import matplotlib

    with matplotlib.rc_context({"text.usetex": True}):
        library.simulate(library.build("1f1b", devices=2, microbatches=2)).plot().savefig(tmp_path / "chart.png")


def test_a_file_name_that_is_not_utf_8_goes_into_a_summary_of_github(tmp_path):
    config = tmp_path / os.fsdecode(b"odd\xff.yaml")
    config.write_text("schedule: {name: 1f1b, devices: 2, microbatches: 2}\n")
    summary = tmp_path / "summary.md"
    told = {**ENVIRONMENT, "GITHUB_STEP_SUMMARY": str(summary)}
    status, said = ended("check", config, "--max-bubble", "1%", stdout=subprocess.DEVNULL, env=told)
    assert (status, said) == (1, "")
    assert "odd\\udcff.yaml" in summary.read_text()


@pytest.mark.parametrize("option", ["--gantt", "--csv", "--json"])
def test_a_missing_folder_is_refused_before_any_work(option, tmp_path):
    target = tmp_path / "none" / "file.png"
    assert f"{target}: cannot be written: there is no folder" in refusal(
        "simulate", tmp_path / "no.yaml", option, target
    )


@pytest.mark.parametrize(
    ("option", "name"),
    [(option, name) for option in ("--csv", "--json", "--table") for name in ("", ".", "/")] + [("--csv", "-")],
)
def test_what_names_no_file_is_refused_before_any_work(option, name):
    assert "not a file name; use a name such as out.json" in refusal("simulate", UNIT_COSTS, option, name)


@pytest.mark.parametrize("command", ["simulate", "check"])
def test_a_file_without_end_is_refused(command):
    more = ("--max-bubble", "1%") if command == "check" else ()
    assert "/dev/zero: holds more than" in refusal(command, "/dev/zero", *more)


@pytest.mark.parametrize("module", ["numpy", "simpy"])
def test_an_interrupt_while_modules_load_says_nothing(module):
    # NumPy makes another error of an exception that is raised while it loads.
    load = f"""
import builtins, os, signal
from ppsim.__main__ import main
load = builtins.__import__
def interrupted(name, *more):
    if name == {module!r}:
        os.kill(os.getpid(), signal.SIGINT)
    return load(name, *more)
builtins.__import__ = interrupted
main()
"""
    call = [sys.executable, "-c", load, "simulate", "--schedule", "1f1b", "--devices", "2", "--microbatches", "2"]
    ended = subprocess.run(call, capture_output=True, text=True, env=ENVIRONMENT, preexec_fn=hear_signals, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


@pytest.mark.parametrize(
    ("command", "twice"),
    [
        ("sweep", ["--over", "schedule.microbatches=4,8", "--over", " schedule.microbatches =16"]),
        ("simulate", ["--set", "costs.forward=1", "--set", "costs.forward=2"]),
        ("simulate", ["--microbatches", "4", "--set", "schedule.microbatches=8"]),
        ("simulate", ["--schedule", "zb-h1", "--set", "schedule.name=1f1b"]),
        ("simulate", ["--option", "group_size=4", "--set", "schedule.options.group_size=8"]),
        ("choose", ["--only", "schedule.name=1f1b", "--only", "schedule.name=zb-h1"]),
        ("check", ["--max-bubble", "99%", "--tolerance-abs", "makespan=1ms", "--tolerance-abs", "makespan=2ms"]),
        ("what-if", ["--slow", "0=1.1", "--slow", "0=2"]),
    ],
)
def test_a_second_value_of_a_key_replaces_no_first_one(command, twice):
    assert re.search(r"is given twice|two values", refusal(command, UNIT_COSTS, *twice))


def test_a_trace_of_steps_without_time_is_refused(tmp_path):
    document = trace_document("1f1b", library.Costs(forward=0.0, backward=0.0), devices=2, microbatches=2)
    (tmp_path / "zero.json").write_text(json.dumps(document))
    assert ppsim("calibrate", tmp_path / "zero.json", "-o", tmp_path / "p.yaml").status == 0
    said = refusal("evaluate", tmp_path / "zero.json", "--profile", tmp_path / "p.yaml", "--json", "-")
    assert f"{tmp_path}/zero.json: the median step takes 0 s, but must be above 0 s" in said


def test_a_packed_profiler_trace_that_unpacks_without_end_is_refused(tmp_path):
    import gzip

    with gzip.open(tmp_path / "0.json.gz", "wb") as packed:
        packed.write(b'{"traceEvents": [')
        for _ in range(20):
            packed.write(b" " * 2**20)
    assert "holds more than" in refusal("calibrate", tmp_path, "-o", tmp_path / "p.yaml")


def test_a_pipe_in_a_folder_of_profiler_traces_is_no_trace(tmp_path):
    os.mkfifo(tmp_path / "0.json")
    assert "has no profiler trace" in refusal("calibrate", tmp_path, "-o", tmp_path / "p.yaml")


SCHEDULE = library.build("1f1b", devices=2, microbatches=2)
RUN = library.simulate(SCHEDULE)
NOISE = library.Jitter(actions=0.1)
NO_PYTHON_CALL = {
    "a width of 400 digits": (lambda: RUN.to_text(width=int(HUGE)), "at most 1,000,000 columns"),
    "an end of 400 digits": (lambda: RUN.plot(until=int(HUGE)), "use seconds above 0"),
    "a window of 400 digits": (lambda: RUN.to_plotly(start=int(HUGE)), "must lie before"),
    "samples of 400 digits": (
        lambda: library.simulate_many(SCHEDULE, jitter=NOISE, samples=int(HUGE)),
        "at most 10000000",
    ),
    "samples for 8 TB": (lambda: library.simulate_many(SCHEDULE, jitter=NOISE, samples=2**40), "at most 10000000"),
    "factors of 400 digits": (lambda: library.Costs(microbatch_scale=[1.0, 1e300]), "from 0 to 1e"),
    "keys that are no text": (lambda: library.sweep(UNIT_COSTS, over={3: [5]}), "must map keys to values"),
    "values without keys": (lambda: library.sweep(UNIT_COSTS, over=[8, 16]), "must map keys to values"),
    "an override that is no text": (lambda: library.load_config(UNIT_COSTS, overrides={3: 5}), "keys as text"),
    "workers that fill a machine": (
        lambda: library.sweep(UNIT_COSTS, over={"costs.forward": [1]}, workers=10**12),
        "use at most 4096",
    ),
    "an executor that is none": (
        lambda: library.sweep(UNIT_COSTS, over={"costs.forward": [1]}, executor=3),
        "must be a concurrent.futures.Executor",
    ),
    "nothing among schedules": (lambda: library.compare(UNIT_COSTS, ["1f1b", None]), "None is not a schedule"),
    "no config": (
        lambda: library.advise(None),
        "config=None must be a path of a YAML file, a dict of its sections or a ppsim.Config",
    ),
    "hours of 400 digits": (
        lambda: library.build("auto", devices=2, microbatches=2, seconds=int(HUGE)),
        "is not a time to search",
    ),
}


@pytest.mark.parametrize("what", NO_PYTHON_CALL)
def test_what_a_call_from_python_cannot_mean_is_one_sentence(what):
    call, message = NO_PYTHON_CALL[what]
    with pytest.raises(library.PpsimError, match=message):
        call()


def test_a_swept_number_of_400_digits_is_a_refused_point_of_the_chart():
    sweep = library.sweep(UNIT_COSTS, over={"costs.forward": [1, 2, int(HUGE)]})
    assert [point.refused is None for point in sweep.points] == [True, True, False]
    assert sweep.plot().axes


@pytest.mark.parametrize("value", [".nan", "[1, .inf]", "2020-01-01"])
def test_a_swept_value_that_json_does_not_have_is_a_refused_point(value):
    outcome = ppsim("sweep", UNIT_COSTS, "--over", f"costs.forward={value},1", "--json", "-")
    refused, point = json.loads(outcome.out, parse_constant=pytest.fail)["points"]
    assert "costs.forward" in refused["refused"]
    assert point["over"] == {"costs.forward": 1}
