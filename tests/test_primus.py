"""Primus' dumps of real runs are read as measured traces; a run is predicted from another one of fewer chunks."""

import json
from pathlib import Path

import numpy as np
import pytest
from command_line import ppsim as command
from primus_dumps import head_heavy, recorded, write_dump

import ppsim
from ppsim.interop.kineto import read_any_trace
from ppsim.studies import calibrate, predict


def made(folder, chunks=1, **options):
    name = "1f1b" if chunks == 1 else "interleaved-1f1b"
    schedule = ppsim.build(name, devices=4, microbatches=8, stages_per_device=chunks)
    run = ppsim.simulate(schedule, head_heavy(4 * chunks, 4))
    return write_dump(folder, run, chunks=chunks, **options), run


@pytest.mark.parametrize("chunks", [1, 2])
def test_a_dump_is_the_run_that_made_it(tmp_path, chunks):
    folder, run = made(tmp_path, chunks)
    measured = ppsim.Timeline.from_trace(folder)
    assert measured.schedule == run.schedule
    np.testing.assert_allclose(measured.start, run.start, atol=1e-9)
    np.testing.assert_allclose(measured.end, run.end, atol=1e-9)
    assert measured.makespan == pytest.approx(run.makespan)
    assert measured.ledger()["transfer"].sum() == pytest.approx(run.ledger()["transfer"].sum())


def test_clocks_of_ranks_are_set_by_what_passes_between_them(tmp_path):
    folder, run = made(tmp_path, clocks=(0.0, 0.02, -0.03, 0.01))
    trace = read_any_trace(folder)
    np.testing.assert_allclose(trace.timeline().start, run.start, atol=1e-9)
    assert trace.document["clocks_moved"] == pytest.approx(0.03)


def test_a_first_iteration_that_is_slow_is_not_the_median_step(tmp_path):
    def slow_start(documents):
        for name, document in documents.items():
            if name != "config.json":
                first = document["1"]
                document["1"] = {key: [2 * t for t in v] if isinstance(v, list) else v for key, v in first.items()}

    folder, run = made(tmp_path, change=slow_start)
    trace = read_any_trace(folder)
    assert trace.step_seconds == pytest.approx([2 * run.makespan, run.makespan, run.makespan])
    assert ppsim.Timeline.of(trace.timeline()).makespan == pytest.approx(run.makespan)


def test_a_made_run_with_two_chunks_is_predicted_from_the_one_with_one(tmp_path):
    folder, _ = made(tmp_path / "one")
    _, two = made(tmp_path / "two", 2)
    profile = calibrate([read_any_trace(folder)])
    assert profile.once["F"] == pytest.approx((0.0, 0.006))
    assert ppsim.simulate(two.schedule, profile).makespan == pytest.approx(two.makespan, rel=1e-3)


def both(folder, runs):
    """The run with one chunk a rank, and the one with two."""
    if runs == "made":
        return [read_any_trace(made(folder / str(chunks), chunks)[0]) for chunks in (1, 2)]
    return [read_any_trace(Path(runs).parent / "pp8"), read_any_trace(runs)]


@pytest.mark.parametrize("runs", ["made", *map(str, recorded("pp8_vpp2"))])
def test_a_run_with_two_chunks_is_predicted_within_3_percent_and_the_interval_from_the_one_with_one(tmp_path, runs):
    """The recorded runs lie beside the repository (`../shared/data/primus`) or are not there; made ones always are."""
    one, two = both(tmp_path, runs)
    profile, measured = calibrate([one]), float(np.median(two.step_seconds))
    assert abs((predict(two, profile).makespan - profile.overhead) / measured - 1) < 0.03
    interval = predict(two, profile).interval
    assert interval is not None
    assert interval[0] < measured < interval[1]


@pytest.mark.parametrize("run", ["made", *map(str, recorded("pp8")), *map(str, recorded("pp8_vpp2"))])
def test_a_run_is_replayed_within_0_7_percent_from_its_own_action_times(tmp_path, run):
    measured = ppsim.Timeline.from_trace(made(tmp_path)[0] if run == "made" else run)
    assert ppsim.explain(measured).replayed == pytest.approx(measured.makespan, rel=0.007)


@pytest.mark.parametrize("runs", ["made", *map(str, recorded("pp8_vpp2"))])
def test_a_better_schedule_takes_as_long_whichever_of_two_runs_it_is_priced_by(tmp_path, runs):
    """Chunks of one run are halves of the other's, so that overhead and head are what could set them apart."""
    traces = both(tmp_path, runs)
    better = [ppsim.explain(ppsim.Timeline.of(one.timeline()), profile=calibrate([one])).better for one in traces]
    assert [one.schedule for one in better] == ["zb-v", "zb-v"]
    assert better[0].step == pytest.approx(better[1].step, rel=0.01)


def _set(name, *path, to):
    def change(documents):
        place = documents[name]
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_set("config.json", "pp_size", to="eight"), ["config.json", "pp_size", "'eight'", "whole number"]),
        (_set("config.json", "pp_size", to=5), ["pp_rank_4.json", "cannot be read"]),
        (_set("config.json", "pp_size", to=3), ["pp_rank_3.json", "pp_size is 3", "ranks of one run"]),
        (_set("config.json", "num_mbs", to=0), ["config.json", "num_mbs=0", "at least 1", str(2**24)]),
        (_set("pp_rank_1.json", "2", "fwd_end", to=None), ["pp_rank_1.json", "2.fwd_end", "a list"]),
        (_set("pp_rank_1.json", "2", "fwd_end", 3, to="x"), ["pp_rank_1.json", "2.fwd_end[3]", "'x'", "a number"]),
        (_set("pp_rank_1.json", "2", "fwd_end", 3, to=-1e9), ["pp_rank_1.json", "2.fwd_end", "before it starts"]),
        (_set("pp_rank_0.json", "1", "bwd_end", to=[1.0]), ["pp_rank_0.json", "1.bwd_end has 1 times", "is 8"]),
        (_set("pp_rank_0.json", "1", "bwd_end", 0, to=float("inf")), ["pp_rank_0.json", "1.bwd_end", "finite"]),
    ],
)
def test_a_faulty_dump_is_refused_with_file_field_value_and_rule(tmp_path, change, said):
    folder, _ = made(tmp_path, change=change)
    with pytest.raises(ppsim.PpsimError) as refused:
        read_any_trace(folder)
    assert all(word in str(refused.value) for word in said)


def test_every_fault_of_a_file_is_named_at_once(tmp_path):
    def both(documents):
        documents["pp_rank_2.json"]["1"]["fwd_start"] = "x"
        del documents["pp_rank_2.json"]["3"]["bwd_end"]

    folder, _ = made(tmp_path, change=both)
    with pytest.raises(ppsim.ConfigError) as refused:
        read_any_trace(folder)
    assert len(refused.value.faults) == 2
    assert "1.fwd_start" in str(refused.value)
    assert "3.bwd_end: is missing" in str(refused.value)


def test_a_file_that_is_no_json_names_its_line(tmp_path):
    folder, _ = made(tmp_path)
    (folder / "pp_rank_2.json").write_text('{"1": [1,')
    outcome = command("explain", folder)
    assert outcome.status == 2
    assert "pp_rank_2.json: not a Primus pipeline dump: no JSON at line 1" in outcome.err


def test_iterations_of_no_common_number_are_refused(tmp_path):
    folder, _ = made(tmp_path)
    document = json.loads((folder / "pp_rank_0.json").read_text())
    (folder / "pp_rank_0.json").write_text(json.dumps({"9": document["1"]}))
    with pytest.raises(ppsim.ConfigError, match="no iteration is in the files of all ranks"):
        read_any_trace(folder)
