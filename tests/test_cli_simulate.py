"""`ppsim simulate`: the summary, the JSON document, the files, and the status and message of every mistake."""

import csv
import json
import math
import re
from types import SimpleNamespace

import pytest
from command_line import LLAMA, UNIT_COSTS, ppsim

import ppsim as library
from ppsim.commands.reporting import takes_colours

FLAGS = ("simulate", "--schedule", "1f1b", "--devices", 4, "--microbatches", 8)


def document(*arguments):
    outcome = ppsim(*arguments, "--json", "-")
    assert (outcome.status, outcome.err) == (0, "")
    return json.loads(outcome.out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_flags_alone_give_the_closed_form_of_1f1b():
    result = document(*FLAGS, "--forward", 2, "--backward", 3, "--latency", 0.5)
    assert result["schema"] == "ppsim.result/1"
    assert result["makespan"] == pytest.approx((8 + 3) * 5 + 2 * 0.5 * math.floor(3 * 11 / 4))
    assert result["peak_activations"] == [4, 3, 2, 1]


def test_the_json_document_holds_the_timelines_measures_with_units_and_definitions():
    result = document("simulate", UNIT_COSTS)
    run = library.simulate(library.build("1f1b", devices=4, microbatches=8))
    names = ("makespan", "span", "bubble_fraction", "bubble_ratio", "span_bubble_fraction")
    assert {name: result[name] for name in names} == {name: getattr(run, name) for name in names}
    assert result["device_busy"] == run.device_busy.tolist()
    assert result["units"].keys() == result["definitions"].keys() >= set(names)
    assert result["schedule"] == {
        "name": "1f1b", "devices": 4, "num_stages": 4, "microbatches": 8, "iterations": 1, "slices": 1, "actions": 64,
        "found": None,
    }  # fmt: skip


def test_costs_say_where_they_come_from():
    given = document(*FLAGS, "--forward", "20 ms", "--backward", "40ms")["costs"]
    assert given["forward"] == {
        "value": [0.02] * 4, "unit": "seconds per microbatch and stage", "provenance": "given",
    }  # fmt: skip
    assert given["input_grad"]["provenance"] == "derived"
    assert given["latency"]["provenance"] == "default"
    derived = document("simulate", LLAMA)
    assert derived["costs"]["forward"]["provenance"] == "derived"
    assert derived["assumptions"]


def test_what_is_not_known_is_null():
    result = document(*FLAGS)
    assert result["peak_memory"] is None
    assert result["costs"]["bandwidth"]["value"] is None


def test_the_summary_names_the_measures_with_units_and_definitions():
    outcome = ppsim("simulate", UNIT_COSTS, "-v")
    assert outcome.status == 0
    for part in ("makespan", "33 s", "bubble_fraction", "idle / total", "peak_activations"):
        assert part in outcome.out


@pytest.mark.parametrize(
    ("limit", "words"),
    [
        (5, "within the limit of 5"), (3, "over the limit of 3"), ("[4,3,2,1]", "within the limit of 4"),
        ("[5,5,1,1]", "over the limit of 1"),
    ],
)  # fmt: skip
def test_a_limit_on_activations_says_what_fits_in_simulate_as_in_compare(limit, words):
    sizes = ("--devices", 4, "--microbatches", 8, "--memory-limit", limit)
    assert words in ppsim("simulate", "--schedule", "1f1b", *sizes).out
    row = next(line for line in ppsim("compare", "--schedules", "1f1b", *sizes).out.splitlines() if line[:2] == "1 ")
    assert ("over" in row) == words.startswith("over")


@pytest.mark.parametrize(("limit", "rule"), [("[1,2]", "is not a limit for 4 devices"), (0, "above 0")])
def test_a_limit_that_fits_no_device_is_refused(limit, rule):
    outcome = ppsim("simulate", UNIT_COSTS, "--memory-limit", limit)
    assert outcome.status == 2
    assert rule in outcome.err


def test_flags_and_settings_change_a_config():
    changed = document(
        "simulate", UNIT_COSTS, "--schedule", "zb-h1", "--set", "schedule.microbatches=16", "--set", "costs.latency=1ms"
    )
    assert changed["schedule"]["name"] == "zb-h1"
    assert changed["schedule"]["microbatches"] == 16
    assert changed["costs"]["latency"]["value"] == 0.001


@pytest.mark.parametrize("written", ["lists.csv", "'lists.csv'"])
def test_a_file_of_a_setting_is_relative_to_the_shell_not_to_the_config(tmp_path, monkeypatch, written):
    (tmp_path / "lists.csv").write_text("0F0,0B0\n")
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "job.yaml").write_text("schedule: {csv: missing.csv}\n")
    monkeypatch.chdir(tmp_path)
    assert document("simulate", "below/job.yaml", "--set", f"schedule.csv={written}")["makespan"] == 3
    removed = ppsim("simulate", "below/job.yaml", "--set", "schedule.csv=null")
    assert "a schedule has name, devices and microbatches, or csv" in removed.err


def test_family_options_reach_the_family():
    result = document(
        "simulate", "--schedule", "interleaved-1f1b", "--devices", 2, "--microbatches", 6, "--option", "group_size=3"
    )
    order = library.build("interleaved-1f1b", devices=2, microbatches=6, group_size=3)
    assert result["makespan"] == library.simulate(order).makespan


def test_text_draws_every_device():
    outcome = ppsim(*FLAGS, "--text")
    assert outcome.status == 0
    assert all(f"device {device}" in outcome.out for device in range(4))
    narrow = ppsim(*FLAGS, "--text", "--width", 40).out  # a heading of two lines
    assert re.search(r"\n\n0 \S", narrow)
    assert "microbatches:" not in narrow


def test_csv_is_the_schedule_and_passes_back_in(tmp_path):
    assert ppsim(*FLAGS, "--csv", tmp_path / "order.csv").status == 0
    assert library.Schedule.from_csv(tmp_path / "order.csv") == library.build("1f1b", devices=4, microbatches=8)
    assert document("simulate", "--schedule", tmp_path / "order.csv")["makespan"] == 33


@pytest.mark.parametrize(
    ("asked", "first"),
    [
        (("--offload", "all"), "0F0,0OFFLOAD0,0F1,0OFFLOAD1,0RELOAD0,0RELOAD1,0B0,0B1"),
        (("--recompute", "first:1"), "0F0,0F1,0R0,0B0,0R1,0B1"),
        (("--recompute", "needed", "--memory-limit", 1), "0F0,0F1,0B0,0R1,0B1"),
    ],
)
def test_what_the_lists_are_asked_to_hold_is_in_the_files_too(tmp_path, asked, first):
    sizes = ("--schedule", "1f1b", "--devices", 2, "--microbatches", 2)
    lists, program = tmp_path / "lists.csv", tmp_path / "program.csv"
    assert ppsim("simulate", *sizes, *asked, "--csv", lists, "--program", program).status == 0
    assert lists.read_text().splitlines()[0] == first
    sent = [cell for cell in program.read_text().splitlines()[0].split(",") if "_" not in cell]
    assert ",".join(sent) == first
    assert ppsim("validate", program).status == 0
    refused = ppsim("validate", program, "--pytorch")
    assert refused.status == 1
    assert "PyTorch's pipeline runtime knows no" in refused.out


def test_sharded_without_a_program_is_a_wrong_call():
    outcome = ppsim(*FLAGS, "--sharded")
    assert outcome.status == 2
    assert "has no effect without --program FILE" in outcome.err


def test_program_is_the_lowered_schedule_and_runs_under_a_transport(tmp_path):
    assert ppsim(*FLAGS, "--program", tmp_path / "program.csv").status == 0
    program = library.lower(library.build("1f1b", devices=4, microbatches=8))
    assert library.Schedule.from_csv(tmp_path / "program.csv") == program
    result = document("simulate", "--schedule", tmp_path / "program.csv", "--transport", "directed")
    assert result["makespan"] == library.simulate(program, transport="directed").makespan


def test_table_has_a_row_for_each_action(tmp_path):
    assert ppsim(*FLAGS, "--table", tmp_path / "table.csv").status == 0
    rows = list(csv.DictReader((tmp_path / "table.csv").open()))
    assert len(rows) == 64
    assert rows[0] == {
        "device": "0", "action": "0F0", "kind": "F", "stage": "0", "microbatch": "0", "start": "0.0", "end": "1.0",
    }  # fmt: skip


def test_json_goes_to_a_file_beside_the_summary(tmp_path):
    outcome = ppsim(*FLAGS, "--json", tmp_path / "result.json")
    assert "step         33.0 s" in outcome.out
    assert json.loads((tmp_path / "result.json").read_text())["makespan"] == 33


@pytest.mark.parametrize(
    ("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF"), ("a.html", b"<")]
)
def test_gantt_charts_have_the_format_of_their_ending(tmp_path, name, start):
    outcome = ppsim(*FLAGS, "--gantt", tmp_path / name)
    assert (outcome.status, outcome.err) == (0, f"wrote {tmp_path / name}\n")
    assert (tmp_path / name).read_bytes().startswith(start)


def test_the_ledger_is_printed_and_stands_in_the_document():
    assert "device 0          0      0           9      9\n" in ppsim(*FLAGS, "--ledger").out
    ledger = document(*FLAGS, "--ledger")["ledger"]
    assert ledger["total"]["fill"] == 6
    assert "ledger" not in document(*FLAGS)


def test_charts_are_titled_with_the_name_of_the_config(tmp_path):
    charts = [tmp_path / "chart.svg", tmp_path / "chart.html", tmp_path / "ledger.svg"]
    assert ppsim("simulate", UNIT_COSTS, "--gantt", charts[0], "--ledger-chart", charts[2]).status == 0
    assert ppsim("simulate", UNIT_COSTS, "--gantt", charts[1]).status == 0
    for chart in charts:
        assert "unit costs: 1f1b, 4 devices, 8 microbatches" in chart.read_text()
    assert ppsim(*FLAGS, "--gantt", tmp_path / "flags.svg").status == 0
    assert "1f1b: 1f1b" not in (tmp_path / "flags.svg").read_text()


def test_a_page_begins_with_what_was_asked_for(tmp_path):
    drawing = ["--transfers", "--critical-path", "--title", "mine"]
    assert ppsim(*FLAGS, "--gantt", tmp_path / "chart.html", *drawing).status == 0
    page = (tmp_path / "chart.html").read_text()
    assert "<title>mine</title>" in page
    assert '"on": ["transfers", "critical", "memory", "ledger"]' in page


def test_text_has_the_width_asked_for_and_colours_only_on_a_terminal(monkeypatch):
    drawn = ppsim(*FLAGS, "--text", "--width", "80").out
    rows = [line for line in drawn.splitlines() if line.startswith("device 0 ")][-1:]
    assert 70 <= len(rows[0]) <= 80
    assert "\x1b" not in drawn
    monkeypatch.setattr("ppsim.commands.simulate.takes_colours", lambda: True)
    coloured = ppsim(*FLAGS, "--text", "--width", "80").out
    assert "\x1b[48;2;" in coloured
    assert re.sub("\x1b\\[[0-9;]*m", "", coloured) == drawn


def test_colours_go_to_terminals_unless_they_are_not_wanted(monkeypatch):
    terminal = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr("sys.stdout", terminal)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert takes_colours()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not takes_colours()
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "dumb")
    assert not takes_colours()


@pytest.mark.parametrize(("name", "start"), [("a.json", b"{"), ("a.pftrace", b"\n")])
def test_traces_have_the_format_of_their_ending(tmp_path, name, start):
    assert ppsim(*FLAGS, "--trace", tmp_path / name).status == 0
    assert (tmp_path / name).read_bytes().startswith(start)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--schedule", "1f1b"], "nothing to simulate without --devices, --microbatches"),
        ([], "nothing to simulate without --schedule, --devices, --microbatches"),
        (["no-such-file.yaml"], "no-such-file.yaml: cannot be read"),
        (["1f1b"], "1f1b: is a schedule, no config; give it as --schedule 1f1b"),
        ([UNIT_COSTS, "--set", "schedule"], "write KEY=VALUE"),
        ([UNIT_COSTS, "--set", "schedule.microbatch=3"], "microbatches"),
        ([UNIT_COSTS, "--transport", "teleport"], "async, directed, directions, pair, rank, blocking"),
        ([UNIT_COSTS, "--engine", "steam"], "auto"),
        ([UNIT_COSTS, "--transport", ""], "--transport '': is empty; give a NAME, or leave it out"),
        ([UNIT_COSTS, "--set", "schedule.name.x=1"], "'schedule.name.x': schedule.name is '1f1b', not a section"),
        ([UNIT_COSTS, "--recompute", "first:0"], "use first:N, N from 1 to 1"),
        ([UNIT_COSTS, "--gantt", "chart.doc"], ".png, .svg, .pdf, .html"),
        ([UNIT_COSTS, "--trace", "trace.txt"], ".pftrace, .json"),
        ([UNIT_COSTS, "--ledger-chart", "chart.html"], ".png, .svg, .pdf"),
        ([UNIT_COSTS, "--critical-path"], "--critical-path changes a drawing; it needs --gantt"),
        ([UNIT_COSTS, "--transfers"], "--transfers changes a drawing; it needs --gantt"),
        ([UNIT_COSTS, "--title", "x"], "--title changes a drawing; it needs --gantt"),
        ([UNIT_COSTS, "--width", "9"], "--width changes a drawing; it needs --gantt or --ledger-chart or --text"),
        ([UNIT_COSTS, "--width", "9", "--gantt", "chart.html"], "is a page: leave width out"),
        ([UNIT_COSTS, "--width", "80", "--text", "--gantt", "chart.png"], "inches of a picture, or columns"),
        ([UNIT_COSTS, "--width", "80.5", "--text"], "columns of a text must be an integer"),
        ([UNIT_COSTS, "--width", "0", "--text"], "width=0 is too narrow for a chart"),
        ([UNIT_COSTS, "--width", "nan", "--text"], "columns of a text must be an integer"),
        ([UNIT_COSTS, "--width", "nan", "--gantt", "chart.png"], "inches from 1"),
        ([UNIT_COSTS, "--width", "10", "--text"], "at least 40"),
        ([UNIT_COSTS, "--gantt", "no/such/folder/chart.png"], "cannot be written"),
        ([UNIT_COSTS, "--csv", "no/such/folder/order.csv"], "cannot be written"),
        ([UNIT_COSTS, "--json", "no/such/folder/a.json"], "cannot be written"),
        ([UNIT_COSTS, "--text", "--json", "-"], "both print to stdout"),
        ([UNIT_COSTS, "--frobnicate"], "No such option"),
        (["--schedule", "zb-h9", "--devices", "4", "--microbatches", "8"], "zb-h1"),
        (["--schedule", "1f1b", "--devices", "0", "--microbatches", "8"], "--devices: 0 must be a whole number"),
        (["--schedule", "1f1b", "--devices", "x", "--microbatches", "8"], "'x'"),
        (["--schedule", "1f1b", "--devices", "2", "--microbatches", "8", "--forward", "-1"], "--forward: "),
        (["--schedule", "1f1b", "--devices", "2", "--microbatches", "8", "--forward", "nan"], "--forward: "),
        (["--schedule", "1f1b", "--devices", "2", "--microbatches", "8", "--input-grad", "1"], "weight_grad"),
        (["--schedule", "dualpipe", "--devices", "3", "--microbatches", "8"], "odd"),
        (["--schedule", "1f1b", "--devices", "2", "--microbatches", "8", "--option", "colour=red"], "colour"),
    ],
)
def test_a_wrong_call_is_one_message_and_status_2(arguments, message):
    outcome = ppsim("simulate", *arguments)
    assert outcome.status == 2
    assert outcome.out == ""
    assert message in outcome.err
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("0F0,0B0\n1F0\n", "1B0"),
        ("0F0,0B0,1F0\n1B0\n", "1F0 is on device 0 and 1B0 on device 1"),
        ("1F0,0F0,0B0,1B0\n", "deadlock"),
    ],
)
def test_an_invalid_schedule_is_status_1(tmp_path, rows, message):
    (tmp_path / "order.csv").write_text(rows)
    outcome = ppsim("simulate", "--schedule", tmp_path / "order.csv")
    assert outcome.status == 1
    assert outcome.out == ""
    assert message in outcome.err


def test_a_deadlock_under_a_transport_is_status_1_with_its_cycle(tmp_path):
    crossed = (
        "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n1RECV_F1,1RECV_F0,1F0,1F1,1B0,1SEND_B0,1B1,1SEND_B1\n"
    )
    (tmp_path / "crossed.csv").write_text(crossed)
    outcome = ppsim("simulate", "--schedule", tmp_path / "crossed.csv", "--transport", "directed")
    assert outcome.status == 1
    assert "waits" in outcome.err


def test_costs_that_do_not_go_with_the_sizes_name_their_config(tmp_path):
    config = tmp_path / "job.yaml"
    config.write_text("schedule: {name: 1f1b, devices: 4, microbatches: 8}\ncosts: {forward: [1, 2, 3]}\n")
    outcome = ppsim("simulate", config)
    assert outcome.status == 2
    assert f"{config}: forward lists 3 values, but the schedule has 4 stages; list 4" in outcome.err
