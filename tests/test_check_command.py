"""`ppsim check`: exit statuses, the table of what moved, the reports, and a baseline that is never half written."""

import json
import re

import make_pages
import pytest
from command_line import CONFIGS, ROOT, UNIT_COSTS, ppsim

from ppsim.analysis import guarded

NAMED = ("makespan", "bubble_fraction", "bubble_ratio", "span_bubble_fraction", "peak_activations", "peak_memory")
WORSE = ("--set", "costs.latency=0.5")


def rows_of(table):
    return [re.split("  +", line.strip()) for line in table.splitlines()]


@pytest.fixture
def baseline(tmp_path, monkeypatch):
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    outcome = ppsim("check", UNIT_COSTS, "--baseline", tmp_path / "b.json", "--update")
    assert (outcome.status, outcome.out, outcome.err) == (0, "", f"wrote {tmp_path / 'b.json'}: 1 config\n")
    return tmp_path / "b.json"


def test_what_has_not_moved_passes(baseline):
    outcome = ppsim("check", UNIT_COSTS, "--baseline", baseline)
    assert (outcome.status, outcome.out, outcome.err) == (
        0,
        f"OK    {len(guarded())} measures of 1 config: no change\n",
        "",
    )


def test_a_config_made_worse_fails_and_says_what_changed(baseline):
    outcome = ppsim("check", UNIT_COSTS, "--baseline", baseline, *WORSE)
    assert outcome.status == 1
    assert "makespan 33 s 41 s 33 s regression" in " ".join(outcome.out.split())
    assert "regression" in outcome.out
    assert "all devices: transfer +" in " ".join(outcome.out.split())


def test_limits_need_no_baseline():
    assert ppsim("check", UNIT_COSTS, "--max-bubble", "0.3", "--max-step-time", "33s").status == 0
    outcome = ppsim("check", UNIT_COSTS, "--max-bubble", "25%")
    assert outcome.status == 1
    assert "over the limit" in outcome.out
    assert ppsim("check", CONFIGS / "llama-3-8b-8xh100.yaml", "--max-memory", "1 GB").status == 1
    asynchronous = (
        "check",
        UNIT_COSTS,
        "--set",
        "schedule.name=pipedream",
    )  # 8 microbatches of 3 s; three steps last 81 s
    assert ppsim(*asynchronous, "--max-step-time", "24s").status == 0
    assert "iteration_time - 24 s 23 s" in " ".join(ppsim(*asynchronous, "--max-step-time", "23s").out.split())


def test_a_config_that_is_not_in_the_baseline_fails_and_one_that_is_not_checked_is_named(baseline):
    outcome = ppsim("check", CONFIGS / "llama-3-8b-8xh100.yaml", "--baseline", baseline)
    assert outcome.status == 1
    assert "new" in outcome.out
    assert "in the baseline and not checked: " in outcome.err
    assert "unit-costs.yaml" in outcome.err


def test_reports_go_to_the_summary_to_junit_and_to_json(baseline, tmp_path, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    (tmp_path / "summary.md").write_text("before\n")
    arguments = ("check", UNIT_COSTS, "--baseline", baseline, *WORSE, "--junit", tmp_path / "junit.xml")
    outcome = ppsim(*arguments, "--json", "-")
    assert outcome.status == 1
    document = json.loads(outcome.out)
    assert (document["schema"], document["passed"]) == ("ppsim.check/1", False)
    worse = [finding["measure"] for finding in document["findings"] if finding["verdict"] == "regression"]
    assert worse[:4] == list(NAMED[:4])
    heading = f"before\n### ppsim check: {len(worse)} checks failed\n"
    assert (tmp_path / "summary.md").read_text().startswith(heading)
    assert (tmp_path / "junit.xml").read_text().startswith("<?xml")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to check against"),
        (["--update"], "nothing to check against"),
        (
            ["--baseline", "none.json"],
            "none.json: cannot be read: there is no such file; write it with",
        ),
        (["--baseline", UNIT_COSTS], "not a baseline"),
        (["--max-bubble", "x"], "--max-bubble: 'x' must be a finite number"),
        (["--max-step-time", "2 GB"], "--max-step-time: "),
        (["--max-bubble", "0.9", "--tolerance-rel", "x"], "--tolerance-rel: 'x'"),
        (["--max-bubble", "0.9", "--tolerance-abs", "3"], "write MEASURE=AMOUNT, such as makespan=2ms"),
        (["--max-bubble", "0.9", "--tolerance-abs", "speed=3"], "--tolerance-abs of 'speed': unknown measure"),
        (["no-such.yaml", "--max-bubble", "0.9"], "no-such.yaml: cannot be read"),
        (["--baseline", "no/such/folder/b.json", "--update"], "cannot be written"),
    ],
)
def test_a_wrong_call_or_a_broken_baseline_exits_2_with_one_message(arguments, message, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    outcome = ppsim("check", UNIT_COSTS, *arguments)
    assert outcome.status == 2
    assert message in outcome.err
    assert outcome.out == ""


def test_a_config_that_fails_to_simulate_leaves_the_old_baseline(baseline):
    before = baseline.read_bytes()
    assert ppsim("check", UNIT_COSTS, "no-such.yaml", "--baseline", baseline, "--update").status == 2
    assert baseline.read_bytes() == before


def test_an_unwritable_summary_is_named(baseline, monkeypatch):
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "no/such/folder/summary.md")
    outcome = ppsim("check", UNIT_COSTS, "--baseline", baseline)
    assert outcome.status == 2
    assert "from GITHUB_STEP_SUMMARY" in outcome.err


def test_the_page_about_ci_shows_what_the_command_prints(monkeypatch, tmp_path):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / UNIT_COSTS.name).write_bytes(UNIT_COSTS.read_bytes())
    (tmp_path / "configs" / "baseline.json").write_bytes((CONFIGS / "baseline.json").read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    assert make_pages.with_count(page) == page
    line, printed = re.search(r"\$ ppsim (check configs/unit-costs[^\n]*)\n(.*?)```", page, re.DOTALL).groups()
    other = [name for name in guarded() if name not in NAMED]
    rows = [row for row in rows_of(ppsim(*line.split()).out) if not set(row) & set(other)]
    assert rows == rows_of(printed)
