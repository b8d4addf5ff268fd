"""Evaluation: signed errors of fitted and of held-out runs, ranks, incomplete traces, chart and files."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import ppsim as command
from measured_tables import (
    SLEEPS,
    alone,
    band_table,
    compute_table,
    later_table,
    law_table,
    left_out,
    link_sentence,
    sleep_table,
)
from measured_tables import recorded as launch
from synthetic_traces import read_document, trace_document

import ppsim
from ppsim.costs import read_profile
from ppsim.studies import calibrate, evaluate
from ppsim.studies.evaluation import kendall_tau

RECORDED = Path(__file__).resolve().parents[1] / "validation" / "data" / "cpu" / "sleep"
HELD_OUT = ("gpipe", "interleaved-1f1b", "zb-h1", "zb-v", "dualpipe-v")
COSTS = ppsim.Costs(forward=0.02, backward=0.04, latency=0.001)


def trace(name, **options):
    return read_document(trace_document(name, COSTS, **options), name)


def recorded(name):
    path = RECORDED / f"{name}.json"
    return read_document(json.loads(path.read_text(encoding="utf-8")), str(path))


def test_calibrated_on_1f1b_the_recorded_held_out_schedules_are_within_3_percent_and_keep_their_ranking():
    profile = calibrate([recorded("1f1b")])
    found = evaluate([recorded(name) for name in ("1f1b", *HELD_OUT)], profile)
    assert [run.fitted for run in found.runs] == [True] + [False] * 5
    assert found.mape["held_out"] <= 0.03
    assert found.kendall_tau["held_out"] == 1.0
    assert found.notes == []
    for run in found.runs:
        assert run.action_error < 0.03
        assert all(abs(error) < 0.03 for error in run.kind_error.values())


@pytest.mark.parametrize("folder", SLEEPS)
def test_calibrated_on_its_1f1b_every_other_timed_sleep_of_a_launch_is_within_1_percent(folder):
    """Three of the launches were set aside before the law of the host's time was chosen."""
    profile = calibrate([trace for trace in launch(folder) if trace.program.name == "1f1b"])
    assert max(abs(run.error) for run in evaluate(launch(folder), profile).runs) <= 0.01
    assert sum(run.inside for run in left_out(folder)) / sum(run.steps for run in left_out(folder)) >= 0.85


def test_the_readme_holds_the_table_that_the_script_prints():
    readme = (RECORDED.parents[2] / "README.md").read_text()
    assert sleep_table() in readme
    assert link_sentence() in readme
    assert law_table() in readme
    assert band_table() in readme
    assert band_table(alone) in readme
    assert later_table() in readme
    assert all(compute_table(ranks) in readme for ranks in (2, 4))


@pytest.mark.parametrize("folders", [("sleep", "sleep/2"), ("mlp/2", "mlp/4")])
def test_the_interval_holds_nine_in_ten_steps_of_recorded_runs_that_were_left_out(folders):
    """Timed sleeps hardly differ from step to step; real compute differs by a fifth, as others used the machine."""
    runs = [run for folder in folders for run in left_out(folder)]
    steps = sum(run.steps for run in runs)
    assert steps >= 96
    assert 0.85 <= sum(run.inside for run in runs) / steps <= 0.95


def test_the_recorded_profile_is_what_calibration_gives():
    profile, again = read_profile(RECORDED / "profile.yaml"), calibrate([recorded("1f1b")])
    assert profile.fitted == again.fitted == ["1f1b p=4 m=8 1024 B"]
    assert profile.seconds["F"] == pytest.approx(again.seconds["F"])
    assert profile.overhead == pytest.approx(again.overhead, rel=1e-6)
    assert profile.message_overhead == pytest.approx(again.message_overhead, rel=1e-6)
    assert profile.stretch == pytest.approx(again.stretch, rel=1e-6)


def test_runs_that_are_simulations_are_predicted_exactly():
    profile = calibrate([trace("1f1b", overhead=0.0005)])
    found = evaluate([trace(name, overhead=0.0005) for name in ("1f1b", "gpipe", "zb-h1")], profile)
    for run in found.runs:
        assert run.error == pytest.approx(0.0, abs=1e-3)
        assert run.action_error == pytest.approx(0.0, abs=1e-3)
    assert found.mape["fitted"] == pytest.approx(0.0, abs=1e-6)


def test_the_error_is_signed_predicted_over_measured():
    profile = calibrate([trace("1f1b")])
    slow = trace("gpipe")
    slow = replace(slow, start=2 * slow.start, end=2 * slow.end)
    run = evaluate([slow], profile).runs[0]
    assert run.error == pytest.approx(-0.5, abs=1e-3)
    assert run.kind_error["F"] == pytest.approx(-0.5, abs=1e-3)


def test_kendall_counts_pairs():
    assert kendall_tau([1.0], [2.0]) is None
    assert kendall_tau([1, 2, 3], [10, 20, 30]) == 1.0
    assert kendall_tau([1, 2, 3], [30, 20, 10]) == -1.0
    assert kendall_tau([1, 2, 3, 4], [1, 2, 4, 3]) == pytest.approx(4 / 6)
    assert kendall_tau([1, 1], [1, 2]) == 0.0


def test_a_trace_with_missing_events_is_used_as_far_as_it_goes_and_says_so():
    document = trace_document("1f1b", COSTS, steps=3)
    document["steps"][0]["end"][1][document["orders"][1].index("1F0")] = None
    document["steps"][1]["start"][2] = document["steps"][1]["start"][2][:-2]
    cut = read_document(document, "cut.json")
    assert cut.notes == [
        "cut.json: 2 of 192 actions are missing, in 2 steps; used as far as it goes",
        "cut.json: 1 of 288 ends of transfers are missing",
    ]
    whole = trace("1f1b", steps=3)
    assert len(cut.step_seconds) == 1
    assert cut.step_seconds[0] == pytest.approx(whole.step_seconds[0])
    profile = calibrate([cut])
    assert profile.seconds["F"] == pytest.approx(calibrate([whole]).seconds["F"])
    found = evaluate([cut], profile)
    assert found.notes == cut.notes
    assert found.runs[0].error == pytest.approx(0.0, abs=1e-6)


def test_the_command_prints_tables_and_writes_json_csv_and_the_overlay(tmp_path):
    files = [RECORDED / "1f1b.json", RECORDED / "gpipe.json"]
    profile = ("--profile", RECORDED / "profile.yaml")
    shown = command(
        "evaluate", *files, *profile, "--chart", tmp_path / "overlay.svg", "--csv", tmp_path / "all.csv", "-v"
    )
    assert shown.status == 0
    lines = [line for line in shown.out.splitlines() if "p=4" in line][:2]  # of the first table
    assert max(map(len, shown.out.splitlines())) <= 100
    assert [line.split()[4] + line.split()[5] for line in lines] == ["Bheld", "Bfitted"]
    assert shown.out.startswith("held-out runs: predicted step ")
    said = " ".join(shown.out.split())
    assert "the interval is calibrated: 2 % assumed for a schedule that was not measured" in said
    drawing = (tmp_path / "overlay.svg").read_text()
    assert "gpipe p=4 m=8 1024 B, measured<" in drawing
    assert "gpipe p=4 m=8 1024 B, predicted<" in drawing

    rows = list(csv.DictReader((tmp_path / "all.csv").open()))
    assert len(rows) == 2 * 4 * 16
    assert (rows[0]["device"], rows[0]["action"]) == ("0", "0F0")
    for row in rows[:20]:
        assert float(row["end_error"]) == pytest.approx(
            float(row["predicted_end"]) - float(row["measured_end"]), abs=2e-9
        )

    document = json.loads(command("evaluate", *files, *profile, "--json", "-").out)
    assert document["schema"] == "ppsim.evaluation/1"
    assert [run["fitted"] for run in document["runs"]] == [True, False]
    assert document["mape"]["held_out"] == pytest.approx(abs(document["runs"][1]["error"]))
    assert document["kendall_tau"]["held_out"] is None


def test_wrong_calls_get_one_message(tmp_path):
    good = RECORDED / "1f1b.json"
    for arguments, said in (
        ((good, "--profile", tmp_path / "none.yaml"), "cannot be read: No such file or directory"),
        ((good, "--profile", RECORDED / "profile.yaml", "--chart", "x.gif"), "must end in one of: .png, .svg, .pdf"),
        ((tmp_path, "--profile", RECORDED / "profile.yaml"), "has no profiler trace"),
        ((RECORDED / "profile.yaml", "--profile", RECORDED / "profile.yaml"), "not a trace"),
    ):
        outcome = command("evaluate", *arguments)
        assert outcome.status == 2
        assert said in outcome.err
        assert outcome.err.count("\n") == 1
        assert outcome.out == ""
