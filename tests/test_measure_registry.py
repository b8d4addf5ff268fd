"""The registry of measures: what is added there is seen on every page, and the glossary says what it holds."""

import json
import re

import make_glossary
import pytest
from command_line import LLAMA, UNIT_COSTS, ppsim

import ppsim as library
from ppsim import compare
from ppsim.analysis import MEASURES, Measure, device_idle
from ppsim.studies import Tolerance, changes, config_findings, gate_numbers

PLACES = ("summary", "devices", "json", "compare", "what-if", "batch")


def one_f_one_b(**costs):
    return library.simulate(library.build("1f1b", devices=4, microbatches=8), library.Costs(**costs))


@pytest.fixture
def longest_wait(monkeypatch):
    row = Measure("longest_wait", "seconds", "per device: idle seconds, once more", device_idle, PLACES, guarded=True)
    monkeypatch.setitem(MEASURES, row.name, row)
    return row


def test_a_measure_added_to_the_registry_is_seen_everywhere(longest_wait):
    before, after = one_f_one_b(), one_f_one_b(latency=0.5)
    rows = [re.split("  +", line) for line in before.summary(verbose=True).splitlines()]
    assert ["longest_wait", "9 s (device 0)", "per device: idle seconds, once more"] in rows
    assert "longest wait" in before.summary(verbose=True)
    document = before.to_dict()
    assert document["longest_wait"] == [9.0] * 4
    assert (document["units"]["longest_wait"], document["definitions"]["longest_wait"]) == (
        "seconds", "per device: idle seconds, once more",
    )  # fmt: skip
    comparison = compare({"schedule": {"name": "1f1b", "devices": 4, "microbatches": 8}}, ["1f1b"])
    assert comparison.rows()[0]["longest_wait"] == 9.0
    assert comparison.to_frame()["longest_wait"].tolist() == [9.0]
    assert comparison.to_dict()["definitions"]["longest_wait"] == "per device: idle seconds, once more"
    moved = {change["name"]: change for change in changes(before, after)}["longest_wait"]
    assert (moved["before"], moved["after"], moved["unit"]) == (9.0, 17.0, "seconds")
    assert library.simulate_many(before.schedule, [library.Costs()]).longest_wait.tolist() == [9.0]
    old = {name: value for name, (value, _) in gate_numbers(before).items()}
    findings = config_findings("a", gate_numbers(after), {"a": old}, Tolerance(), {})
    assert {finding.measure: finding.verdict for finding in findings}["longest_wait"] == "regression"
    assert "| `longest_wait` | seconds | per device: idle seconds, once more |" in make_glossary.measures()


def test_the_glossary_says_what_the_registry_holds():
    text = make_glossary.PAGE.read_text(encoding="utf-8")
    assert make_glossary.measures() in text
    assert make_glossary.page(text) == text


def test_every_measure_is_on_the_timeline(longest_wait):
    run = one_f_one_b()
    assert run.longest_wait.tolist() == [9.0] * 4
    assert run.transfers.tolist() == [8, 16, 16, 8]
    assert all(hasattr(run, measure.name) for measure in MEASURES.values())
    with pytest.raises(AttributeError, match="a timeline has no longest_weight; its measures are stages_per_device, "):
        _ = run.longest_weight


def test_completion_offers_each_name_of_a_timeline_once():
    names = dir(one_f_one_b())
    assert names == sorted(set(names))
    assert {"makespan", "lower_bound", "ledger"} <= set(names)


def test_a_measure_where_less_is_worse_closes_the_gate_when_it_falls(monkeypatch):
    row = MEASURES["tokens_per_second"]
    monkeypatch.setitem(MEASURES, row.name, Measure(**{**vars(row), "guarded": True, "shown": ("what-if",)}))
    numbers = gate_numbers(library.load_config(LLAMA).simulate())
    less = numbers | {row.name: (numbers[row.name][0] * 0.9, row.unit)}

    def verdict(now, before, tolerance=None):
        old = {name: value for name, (value, _) in before.items()}
        findings = config_findings("a", now, {"a": old}, tolerance or Tolerance(), {})
        return {finding.measure: finding.verdict for finding in findings}[row.name]

    assert (verdict(less, numbers), verdict(numbers, less)) == ("regression", "improved")
    assert verdict(less, numbers, Tolerance(relative=0.11)) == "same"


def test_the_result_of_an_asynchronous_schedule_says_what_one_step_takes():
    pace = "iteration_time"
    document = json.loads(ppsim("what-if", UNIT_COSTS, "--schedule", "pipedream", "--json", "-").out)
    moved = {change["name"]: change for change in document["changes"]}[pace]
    assert (moved["before"], moved["after"]) == (33.0, 24.0)
    assert not any(line.startswith(pace) for line in one_f_one_b().summary().splitlines())
