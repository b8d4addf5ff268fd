"""Trace files: a measured step is a Timeline like any other, and a damaged file is one clear error."""

import contextlib
import copy
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_traces import trace_document

import ppsim
from ppsim.interop.traces import action_errors, read_trace, trace_of
from ppsim.studies import calibrate, evaluate

RECORDED = Path(__file__).resolve().parents[1] / "validation" / "data" / "cpu" / "sleep"
COSTS = ppsim.Costs(forward=0.5, backward=1.0, latency=0.125)
DOCUMENT = trace_document("1f1b", COSTS, devices=2, microbatches=2, steps=2)


def test_a_measured_step_is_the_timeline_that_made_it():
    run = ppsim.simulate(ppsim.lower(ppsim.build("1f1b", devices=2, microbatches=2)), COSTS, transport="directed")
    measured = ppsim.Timeline.of(trace_of(DOCUMENT, "trace").timeline())
    np.testing.assert_allclose(measured.start, run.start)
    np.testing.assert_allclose(measured.end, run.end)
    np.testing.assert_allclose(measured.transfer_end, run.transfer_end)
    assert measured.makespan == run.makespan
    assert measured.bubble_fraction == pytest.approx(run.bubble_fraction)
    assert measured.engine == "measured"
    errors = action_errors(measured, run)
    assert errors["end_error"] == pytest.approx(np.zeros(8))
    with pytest.raises(ppsim.ConfigError, match="the two timelines are of different orders"):
        action_errors(measured, ppsim.simulate(ppsim.build("gpipe", devices=2, microbatches=2)))


def test_a_recorded_trace_is_drawn_and_measured_like_a_simulation():
    run = ppsim.Timeline.from_trace(RECORDED / "dualpipe-v.json")
    assert run.schedule.devices == 4
    assert 0.6 < run.makespan < 0.7
    assert 0 < run.bubble_fraction < 0.3
    assert (run.peak_activations > 0).all()
    assert "makespan" in run.summary(verbose=True, costs=True)
    assert len(run.to_frame()) == len(run.start)
    first = ppsim.Timeline.from_trace(RECORDED / "dualpipe-v.json", step=np.int64(0))
    assert first.makespan == pytest.approx(run.makespan, rel=0.1)
    with pytest.raises(ppsim.ConfigError, match="step 99 was not recorded; the file holds steps 0 to 7"):
        ppsim.Timeline.from_trace(RECORDED / "dualpipe-v.json", step=99)


def test_a_recorded_output_layer_that_is_cut_over_devices_has_a_ledger_without_its_collectives():
    document = trace_document("vocab-1f1b", ppsim.Costs(vocabulary_forward=0.5), devices=2, microbatches=4, steps=1)
    run = ppsim.Timeline.of(trace_of(document, "trace").timeline())
    assert sum(run.ledger().values()).sum() == pytest.approx(2 * run.makespan - run.device_busy.sum())
    assert run.to_dict()["makespan"] == run.makespan


def test_copies_of_activations_without_recorded_transfers_leave_no_time_unknown():
    start, end = [[0.0, 1.0, 3.0, 5.0], [1.5, 2.5]], [[1.0, 2.0, 4.0, 6.0], [2.5, 4.5]]
    document = {
        "schema": "ppsim.trace/1",
        "orders": [["0F0", "0OFFLOAD0", "0RELOAD0", "0B0"], ["1F0", "1B0"]],
        "steps": [{"issue": start, "start": start, "end": end}],
    }
    run = ppsim.Timeline.of(trace_of(document, "trace").timeline())
    assert run.transfer_start.tolist() == pytest.approx([np.nan, 4.5, 1.0, np.nan], nan_ok=True)
    assert run.transfer_end.tolist() == pytest.approx([np.nan, 5.0, 1.5, np.nan], nan_ok=True)
    assert sum(run.ledger().values()).tolist() == [4.0, 3.0]


def test_costs_of_a_measured_step_are_what_was_measured():
    measured = ppsim.Timeline.of(trace_of(DOCUMENT, "trace").timeline())
    assert measured.costs.seconds == {"F": [0.5, 0.5], "B": [1.0, 1.0]}
    assert measured.costs.latency == pytest.approx(0.125)
    assert measured.costs.provenance["forward"] == "measured"
    said = measured.summary(verbose=True, costs=True)
    assert "8 actions, measured" in said
    assert "default" not in said


def test_actions_that_were_not_recorded_take_no_time():
    document = copy.deepcopy(DOCUMENT)
    for step in document["steps"]:
        step["start"][0][0] = step["end"][1][-1] = None
    run = ppsim.Timeline.of(trace_of(document, "trace").timeline())
    assert (run.end >= run.start).all()
    assert (np.isfinite(run.start) & np.isfinite(run.end)).all()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"schema": "other"}, "schema is 'other', expected 'ppsim.trace/1'"),
        ({"orders": [["0F0"]]}, "trace: "),
        ({"orders": None}, "orders: None: it must be a list"),
        ({"steps": []}, "'steps' holds no step"),
        ({"steps": 3}, "steps: 3: it must be a list"),
        ({"steps": [{"issue": [[], []], "start": [[], []]}]}, "steps[0].end: is missing"),
        ({"steps": [{"issue": [[]], "start": [[]], "end": [[]]}]}, "has 1 device, the program has 2"),
        ({"steps": [{"issue": [[], []], "start": [[0] * 99, []], "end": [[], []]}]}, "has 99 entries for"),
        (
            {"steps": [{"issue": [[], []], "start": [["x"], []], "end": [[], []]}]},
            "steps[0].start[0][0]: 'x': it must be a number",
        ),
        ({"steps": [{"issue": [[], []], "start": [[], []], "end": [[], []]}]}, "holds the times of no action"),
        ({"transfer_bytes": -1}, "transfer_bytes: -1 must be a finite number of at least 0"),
        ({"units": {"time": "ms"}}, "units.time is 'ms', expected 'seconds'"),
        ({"transport": "pigeon"}, "transport: 'pigeon' is not known; use one of: async"),
    ],
)
def test_a_faulty_trace_gets_one_sentence(change, said):
    with pytest.raises(ppsim.PpsimError) as caught:
        trace_of({**DOCUMENT, **change}, "trace")
    assert said in str(caught.value)
    assert str(caught.value).startswith("trace: ")


def test_every_fault_of_a_trace_is_said_with_its_place():
    steps = [{"issue": 3, "start": [["x"], [True]], "end": [[int("9" * 400)]]}, 4, {"issue": [[], []]}]
    wrong = {"orders": [["0F0", 5], 3], "steps": steps, "transport": "pigeon", "transfer_bytes": "many"}
    with pytest.raises(ppsim.ConfigError) as caught:
        trace_of({**DOCUMENT, **wrong}, "trace")
    places = [fault.partition(":")[0] for fault in caught.value.faults]
    assert places == [
        "orders[0][1]", "orders[1]", "steps[0].issue", "steps[0].start[0][0]", "steps[0].end[0][0]", "steps[1]",
        "steps[2].start", "steps[2].end", "transfer_bytes", "transport",
    ]  # fmt: skip


def test_files_that_are_no_traces(tmp_path):
    for name, text in (("half.json", json.dumps(DOCUMENT)[:500]), ("deep.json", "[" * 100_000), ("list.json", "[1]")):
        (tmp_path / name).write_text(text)
        with pytest.raises(ppsim.ConfigError, match="not a trace"):
            read_trace(tmp_path / name)
    with pytest.raises(ppsim.ConfigError, match="give another tool's as a folder with one file per rank"):
        read_trace(tmp_path / "list.json")
    for name in ("none.json", "none.yaml", "none.sqlite"):
        with pytest.raises(ppsim.ConfigError, match="cannot be read: No such file or directory"):
            ppsim.Timeline.from_trace(tmp_path / name)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.just("0F0"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=2),
    max_leaves=6,
)


@st.composite
def damaged(draw):
    """The document with one value anywhere replaced."""
    document = copy.deepcopy(DOCUMENT)
    place = document
    while True:
        keys = sorted(place) if isinstance(place, dict) else range(len(place))
        key = draw(st.sampled_from(list(keys)))
        if not isinstance(place[key], dict | list) or not place[key] or draw(st.booleans()):
            place[key] = draw(values)
            return document
        place = place[key]


@given(damaged())
def test_a_damaged_trace_is_read_or_refused(document):
    with contextlib.suppress(ppsim.PpsimError):
        trace = trace_of(document, "trace")
        ppsim.Timeline.of(trace.timeline())
        evaluate([trace], calibrate([trace]))


def test_a_step_without_an_end_is_followed_by_no_gap():
    trace = trace_of(DOCUMENT, "trace")
    start, end = (times + np.array([[0.0], [9.0]]) for times in (trace.start, trace.end))
    assert len(type(trace).of_clock("trace", trace.program, start, end).between_steps) == 1
    end[0] = np.nan
    assert type(trace).of_clock("trace", trace.program, start, end).between_steps == []
