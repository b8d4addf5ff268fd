"""Calibration recovers the costs that made a trace, through noise and outliers, and refuses what it cannot use."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from command_line import ppsim as command
from hypothesis import given
from hypothesis import strategies as st
from measured_tables import backward_errors, recorded
from synthetic_traces import read_document, trace_document

import ppsim
from ppsim.costs import (
    HALVED_ERROR,
    PRICED_BY_OTHERS,
    SUMMED_ERROR,
    Profile,
    interval_reach,
    read_profile,
    write_profile,
)
from ppsim.studies import calibrate, evaluate
from ppsim.studies.calibration import fit_line

RECORDED = Path(__file__).resolve().parents[1] / "validation" / "data" / "cpu"
COSTS = ppsim.Costs(forward=0.02, input_grad=0.03, weight_grad=0.01, latency=0.002)


def trace(name, costs=COSTS, **options):
    return read_document(trace_document(name, costs, **options), name)


def test_without_noise_the_costs_are_recovered_exactly():
    profile = calibrate([trace("zb-h1", overhead=0.001)])
    assert profile.seconds == {
        "F": pytest.approx([0.02] * 4), "I": pytest.approx([0.03] * 4), "W": pytest.approx([0.01] * 4)
    }  # fmt: skip
    assert profile.overhead == pytest.approx(0.001)
    assert profile.latency == pytest.approx(0.002)
    assert math.isinf(profile.bandwidth)
    assert profile.links == {pair: pytest.approx(0.002) for pair in ("0-1", "1-0", "1-2", "2-1", "2-3", "3-2")}
    assert profile.jitter == pytest.approx(0.0, abs=1e-9)
    assert profile.residual == pytest.approx(0.0, abs=1e-9)
    assert (profile.source, profile.recorded) == ("a simulated device", "2026-01-02")
    assert profile.fitted == ["zb-h1 p=4 m=8"]


def test_the_host_s_seconds_of_messages_are_told_from_those_of_actions():
    profile = calibrate([trace("interleaved-1f1b", overhead=0.001, message=0.0004)])
    assert profile.overhead == pytest.approx(0.001)
    assert profile.message_overhead == pytest.approx(0.0004)
    assert profile.stretch == {kind: pytest.approx(1.0) for kind in "FB"}
    found = evaluate([trace(name, overhead=0.001, message=0.0004) for name in ("gpipe", "1f1b", "looped-bfs")], profile)
    assert [run.error for run in found.runs] == pytest.approx([0.0] * 3, abs=1e-9)


def test_one_device_has_no_messages():
    profile = calibrate([trace("1f1b", devices=1, overhead=0.001)])
    assert (profile.overhead, profile.message_overhead) == (pytest.approx(0.001), 0.0)


def test_a_profile_of_an_earlier_version_costs_what_it_did(tmp_path):
    text = "schema: ppsim.profile/1\ndevices: 2\nseconds: {F: [1.0, 1.0], B: [2.0, 2.0]}\noverhead: 0.5\nlatency: 0.1\n"
    (tmp_path / "p.yaml").write_text(text)
    profile = read_profile(tmp_path / "p.yaml")
    assert (profile.message_overhead, profile.stretch) == (0.0, {})
    schedule = ppsim.build("1f1b", devices=2, microbatches=1)
    assert ppsim.simulate(schedule, profile).makespan == pytest.approx(4 * 0.5 + 6 + 2 * 0.1)


def test_stages_of_their_own_cost_are_told_apart_and_cut_anew():
    costs = ppsim.Costs(forward=[0.01, 0.02, 0.03, 0.04], backward=[0.02, 0.04, 0.06, 0.08], per="stage")
    profile = calibrate([trace("1f1b", costs)])
    assert profile.seconds["F"] == pytest.approx([0.01, 0.02, 0.03, 0.04])
    table = profile.table(ppsim.build("zb-v", devices=4, microbatches=8))
    assert table.seconds[0] == pytest.approx([0.005, 0.005, 0.01, 0.01, 0.015, 0.015, 0.02, 0.02])
    assert table.seconds[2] == pytest.approx(table.seconds[0])  # I is half of B where only B was measured


TRUTH = {"F": 0.02, "I": 0.03, "W": 0.01}


def test_intervals_hold_the_truth_and_jitter_is_the_noise():
    profile = calibrate([trace("zb-h1", noise=0.02, steps=20)])
    held = [low <= TRUTH[kind] <= high for kind in TRUTH for low, high in profile.interval[kind]]
    assert sum(held) >= 11  # of 12 intervals of 95 %
    assert profile.jitter == pytest.approx(0.02, rel=0.1)
    assert profile.residual == pytest.approx(0.02 * 0.6745, rel=0.1)  # median of |x| of a normal distribution
    assert profile.latency == pytest.approx(0.002, rel=0.01)
    assert profile.link_fit.latency[0] <= 0.002 <= profile.link_fit.latency[1]


def test_a_tenth_of_outliers_moves_the_medians_little():
    profile = calibrate([trace("zb-h1", noise=0.02, outliers=0.1, steps=20)])
    for kind, seconds in TRUTH.items():
        assert profile.seconds[kind] == pytest.approx([seconds] * 4, rel=0.02)
    assert profile.jitter == pytest.approx(0.02, rel=0.3)


def test_a_profile_s_noise_draws_with_the_spread_that_was_measured(tmp_path):
    profile = calibrate([trace("zb-h1", noise=0.05, steps=20)])
    noise = ppsim.Jitter.measured(profile)
    assert noise == ppsim.Jitter(actions=profile.jitter)
    schedule = ppsim.build("zb-h1", devices=4, microbatches=8)
    once = ppsim.simulate(schedule, profile, jitter=noise, seed=3)
    assert once != ppsim.simulate(schedule, profile)
    write_profile(profile, tmp_path / "p.yaml")
    config = {
        "schedule": {"name": "zb-h1", "devices": 4, "microbatches": 8},
        "costs": {"profile": str(tmp_path / "p.yaml")}, "jitter": {"actions": "measured", "seed": 3},
    }  # fmt: skip
    (tmp_path / "c.yaml").write_text(json.dumps(config))
    assert ppsim.load_config(tmp_path / "c.yaml").simulate().makespan == pytest.approx(once.makespan, rel=1e-6)
    with pytest.raises(ppsim.ConfigError, match=r"jitter\.actions .*: measured needs costs\.profile"):
        ppsim.load_config(tmp_path / "c.yaml", overrides={"costs": {"forward": 1.0}})


@given(
    latency=st.floats(1e-6, 1e-2),
    bandwidth=st.floats(1e8, 1e11),
    seed=st.integers(0, 100),
)
def test_latency_and_bandwidth_are_recovered_over_sizes_with_outliers(latency, bandwidth, seed):
    generator = np.random.default_rng(seed)
    size = np.repeat(np.array([1.0, 4.0, 16.0, 64.0]) * latency * bandwidth, 40)
    seconds = latency + size / bandwidth
    seconds[generator.random(len(size)) < 0.1] *= 20
    found, per_byte, fit = fit_line(size, seconds)
    assert found == pytest.approx(latency, rel=1e-6)
    assert 1 / per_byte == pytest.approx(bandwidth, rel=1e-6)
    assert fit.latency[0] <= found * (1 + 1e-9)
    assert fit.residual < 1e-6


def test_sizes_recorded_on_a_cpu_give_a_latency_and_a_bandwidth():
    traces = recorded("sizes")
    profile = calibrate(traces)
    assert len({item.transfer_bytes for item in traces}) == 4
    assert 1e-5 < profile.latency < 2e-3
    assert 1e8 < profile.bandwidth < 1e11
    assert profile.link_fit.bandwidth[0] <= profile.bandwidth <= profile.link_fit.bandwidth[1]
    assert profile.links == {}


def test_a_profile_file_reads_back_as_it_was(tmp_path):
    profile = calibrate([trace("zb-h1", noise=0.01, overhead=1e-4)])
    write_profile(profile, tmp_path / "profile.yaml")
    text = (tmp_path / "profile.yaml").read_text()
    assert "provenance: measured" in text
    assert "units: {time: seconds, size: bytes}" in text
    again = read_profile(tmp_path / "profile.yaml")
    for kind, values in profile.seconds.items():
        assert again.seconds[kind] == pytest.approx(values)
        assert np.array(again.interval[kind]) == pytest.approx(np.array(profile.interval[kind]))
    assert again.overhead == pytest.approx(profile.overhead)
    assert again.message_overhead == pytest.approx(profile.message_overhead)
    assert again.stretch == pytest.approx(profile.stretch)
    assert again.links == {pair: pytest.approx(value) for pair, value in profile.links.items()}
    assert (again.fitted, again.source, again.recorded) == (profile.fitted, profile.source, profile.recorded)
    assert again.link_fit.latency == pytest.approx(profile.link_fit.latency)


def test_a_config_takes_a_profile_beside_it(tmp_path):
    profile = calibrate([trace("1f1b")])
    write_profile(profile, tmp_path / "profile.yaml")
    config = tmp_path / "run.yaml"
    config.write_text("schedule: {name: zb-v, devices: 4, microbatches: 8}\ncosts: {profile: profile.yaml}\n")
    run = ppsim.load_config(config).simulate()
    expected = ppsim.simulate(ppsim.build("zb-v", devices=4, microbatches=8), read_profile(tmp_path / "profile.yaml"))
    assert run.makespan == expected.makespan
    assert run.costs.provenance["forward"] == "measured"
    config.write_text(
        "schedule: {name: 1f1b, devices: 4, microbatches: 8}\ncosts: {profile: profile.yaml, forward: 1}\n"
    )
    with pytest.raises(ppsim.ConfigError, match=r"forward.*excludes profile"):
        ppsim.load_config(config)


def test_a_profile_prices_other_numbers_of_devices():
    profile = calibrate([trace("zb-h1")])
    two, eight = (profile.table(ppsim.build("1f1b", devices=p, microbatches=8)) for p in (2, 8))
    assert two.seconds[0] == pytest.approx([0.04, 0.04])
    assert eight.seconds[0] == pytest.approx([0.01] * 8)
    assert eight.latency == pytest.approx(np.full((8, 8), 0.002))


def test_a_step_that_something_else_slowed_down_is_left_out():
    document = trace_document("1f1b", COSTS, steps=8)
    for times in ("start", "end"):
        document["steps"][3][times] = [[2 * second for second in row] for row in document["steps"][3][times]]
    disturbed = read_document(document, "disturbed")
    profile = calibrate([disturbed])
    assert (profile.steps.steps, profile.steps.disturbed) == (7, 1)
    assert profile.seconds == calibrate([trace("1f1b", steps=7)]).seconds
    for step in document["steps"][:4]:  # half of the steps: the run itself is noisy
        for times in ("start", "end"):
            step[times] = [[2 * second for second in row] for row in step[times]]
    noisy = calibrate([read_document(document, "noisy")])
    assert (noisy.steps.steps, noisy.steps.disturbed) == (8, 0)


def test_a_run_by_a_profile_states_its_interval(tmp_path):
    runs = [trace(name, noise=0.02, seed=seed) for seed, name in enumerate(("1f1b", "zb-h1", "gpipe"))]
    write_profile(calibrate(runs), tmp_path / "profile.yaml")
    profile = read_profile(tmp_path / "profile.yaml")
    run = ppsim.simulate(ppsim.build("zb-v", devices=4, microbatches=8), profile)
    assert run.interval == pytest.approx((run.makespan * profile.steps.low, run.makespan * profile.steps.high))
    assert run.to_dict()["interval"] == list(run.interval)
    assert "errors of 3 runs, each left out of the fit" in run.summary(verbose=True, costs=True)
    assert "these were of" not in run.summary(verbose=True, costs=True)
    moved = ppsim.simulate(ppsim.build("zb-v", devices=8, microbatches=8), profile)
    assert "these were of 4 devices" in " ".join(moved.summary(verbose=True, costs=True).split())


def test_compare_says_which_schedules_are_slower_for_certain(tmp_path):
    runs = [trace(name, noise=0.05, seed=seed) for seed, name in enumerate(("zb-h1", "1f1b", "zb-v"))]
    write_profile(calibrate(runs), tmp_path / "profile.yaml")
    write_profile(calibrate([runs[0], runs[2]]), tmp_path / "split.yaml")
    case = {
        "schedule": {"name": "1f1b", "devices": 4, "microbatches": 8},
        "costs": {"profile": str(tmp_path / "profile.yaml")},
    }
    found = ppsim.compare(case, ["1f1b", "gpipe", "zb-h1", "naive"])
    assert found.timelines[0].schedule.name == "zb-h1"
    assert found.as_fast() == []
    split = ppsim.compare({**case, "costs": {"profile": str(tmp_path / "split.yaml")}}, ["1f1b", "zb-h1"])
    assert (split.timelines[0].schedule.name, split.as_fast()) == ("zb-h1", ["1f1b"])  # B was not measured
    assert ppsim.compare(case, ["gpipe", "eager-1f1b", "naive"]).as_fast() == ["gpipe"]
    assert found.rows()[0]["interval"] == found.timelines[0].interval
    config = tmp_path / "config.yaml"
    config.write_text("schedule: {name: 1f1b, devices: 4, microbatches: 8}\ncosts: {profile: profile.yaml}\n")
    for names, said in (
        ("zb-h1,gpipe", "certain: all others are slower than the first"),
        ("eager-1f1b,gpipe", "may be as fast as the first: gpipe"),
    ):
        assert said in " ".join(command("compare", config, "--schedules", names, "-v").out.split())


def test_halves_of_a_lone_backward_widen_the_interval_of_schedules_that_split_it():
    profile = calibrate([trace("1f1b", noise=0.02)])
    whole, split = (ppsim.simulate(ppsim.build(name, devices=4, microbatches=8), profile) for name in ("1f1b", "zb-h1"))
    assert whole.interval[1] / whole.makespan == pytest.approx(split.interval[1] / split.makespan / math.exp(0.1))
    assert "I and W as halves of B" in split.summary(verbose=True, costs=True)
    assert "I and W as halves of B" not in whole.summary(verbose=True, costs=True)


def test_a_backward_as_the_sum_of_its_parts_widens_the_interval_and_is_said(tmp_path):
    profile = calibrate([trace("zb-h1", noise=0.02)])
    whole, split = (ppsim.simulate(ppsim.build(name, devices=4, microbatches=8), profile) for name in ("1f1b", "zb-h1"))
    factor = math.exp(SUMMED_ERROR)
    assert whole.interval[1] / whole.makespan == pytest.approx(split.interval[1] / split.makespan * factor)
    assert PRICED_BY_OTHERS["summed"] in whole.to_dict()["assumptions"]
    assert "assumed for B as I + W" in " ".join(whole.summary(verbose=True, costs=True).split())
    assert split.to_dict()["assumptions"] == []
    by_hand = replace(profile, steps=None)
    assert PRICED_BY_OTHERS["summed"] in ppsim.simulate(whole.schedule, by_hand).to_dict()["assumptions"]
    write_profile(profile, tmp_path / "profile.yaml")
    assert read_profile(tmp_path / "profile.yaml").steps.summed


def test_a_held_out_run_with_whole_backwards_that_are_shorter_than_their_parts_is_within_the_interval():
    """B takes 18.9 ms, I and W together 24.3 ms; the step of 1F1B is predicted a fifth too long."""
    whole = trace("1f1b", ppsim.Costs(forward=0.0095, backward=0.0189), noise=0.01)
    split = trace("zb-h1", ppsim.Costs(forward=0.0095, input_grad=0.0145, weight_grad=0.0098), noise=0.01)
    found = evaluate([whole], calibrate([split]))
    assert found.runs[0].error == pytest.approx(0.19, abs=0.02)
    assert found.runs[0].inside == found.runs[0].steps
    assert found.assumptions == [PRICED_BY_OTHERS["summed"]]
    assert evaluate([whole], calibrate([whole])).assumptions == []


def test_errors_of_kinds_that_are_priced_by_others_are_at_least_twice_the_largest_of_the_recorded_runs():
    errors = backward_errors()
    assert 0.02 < 2 * errors["summed"] <= SUMMED_ERROR
    assert 0.02 < 2 * errors["halved"] <= HALVED_ERROR
    assert f"up to {math.exp(errors['B']) - 1:.0%} from" in PRICED_BY_OTHERS["summed"].replace(" %", "%")


@pytest.mark.parametrize("runs", [2, 3, 5, 8, 12, 30])
@pytest.mark.parametrize("noise", [0.3, 1.0, 2.0])
def test_the_interval_holds_nine_in_ten_steps_of_an_unseen_run_however_few_were_left_out(runs, noise):
    """Errors of runs and noise of steps are normal here, in units of the errors."""
    generator = np.random.default_rng(0)
    drawn = generator.normal(size=(600, runs + 1, 1)) + noise * generator.normal(size=(600, runs + 1, 8))
    inside = [np.mean(np.abs(unseen) <= interval_reach(left_out)) for *left_out, unseen in drawn]
    assert 0.87 <= np.mean(inside) <= 0.95


def test_the_noise_of_a_busy_machine_is_in_its_profile():
    assert calibrate(recorded("mlp/2")).steps.noise > 0.1 > calibrate(recorded("sleep/2")).steps.noise


def test_refusals():
    with pytest.raises(ppsim.CostError, match="no traces to calibrate on"):
        calibrate([])
    with pytest.raises(ppsim.CostError, match=r"the traces ran on \[2, 4\] devices"):
        calibrate([trace("1f1b", devices=2), trace("1f1b")])
    with pytest.raises(ppsim.CostError, match="no seconds of B, I, W"):
        Profile(devices=1, seconds={"F": [1.0]}).table(ppsim.build("1f1b", devices=1, microbatches=2))


def test_the_command_writes_the_profile_and_tells_units_and_intervals(tmp_path):
    short = command("calibrate", RECORDED / "sleep" / "1f1b.json", "-o", tmp_path / "profile.yaml").out.splitlines()
    assert " ".join(short).startswith(f"{tmp_path / 'profile.yaml'}: costs of 4 devices and 4")
    assert [line.split()[0] for line in short if line[:1].strip()][-5:] == ["F", "B", "transfer", "overhead", "trust"]
    done = command("calibrate", RECORDED / "sleep" / "1f1b.json", "-o", tmp_path / "profile.yaml", "-v")
    assert done.status == 0
    assert done.err == f"wrote {tmp_path / 'profile.yaml'}\n"
    assert "F by part of the model" in done.out
    assert "±" in done.out
    assert "latency of a transfer" in done.out
    assert read_profile(tmp_path / "profile.yaml").devices == 4
    again = command("calibrate", RECORDED / "sleep" / "1f1b.json", "-o", tmp_path / "profile.yaml", "--json", "-")
    document = json.loads(again.out)
    assert document["schema"] == "ppsim.calibrate/1"
    assert document["profile"]["seconds"].keys() >= {"F", "B"}
    wrong = command("calibrate", tmp_path / "profile.yaml", "-o", tmp_path / "other.yaml")
    assert wrong.status == 2
    assert "not a trace" in wrong.err
    assert not (tmp_path / "other.yaml").exists()


GOOD = "schema: ppsim.profile/1\ndevices: 2\nseconds: {F: [1.0, 1.0], B: [2.0, 2.0]}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a profile"),
        ("schema: ppsim.trace/1", "schema is 'ppsim.trace/1', expected 'ppsim.profile/1'"),
        (GOOD.replace("devices: 2\n", ""), "devices: is missing"),
        (GOOD.replace("devices: 2", "devices: two"), "devices: 'two' must be a whole number of at least 1"),
        (GOOD.replace("F:", "G:"), "seconds.G: 'G' is not known; use one of: F, B, I, W"),
        (GOOD.replace("[1.0, 1.0]", "[1.0]"), "the kinds have lists of different lengths"),
        (GOOD.replace("[1.0, 1.0]", "[]"), "list one time a part of the model"),
        (GOOD.replace("[1.0, 1.0]", "[1.0, -1.0]"), "seconds.F[1]: -1.0 must be a finite number from 0 to 1e+100"),
        (GOOD.replace("[1.0, 1.0]", "[1.0, 1e308]"), "seconds.F[1]: 1e+308 must be a finite number from 0 to 1e+100"),
        (GOOD + "once: {F: [-1e308, 0.0]}", "once.F: -1e+308 must be a finite number from -1e+100 to 1e+100"),
        (GOOD.replace("[1.0, 1.0]", "[1.0, .nan]"), "seconds.F[1]: nan must be a finite number"),
        (GOOD + "bandwidth: 0", "bandwidth: 0 must be a number of bytes per second above 0"),
        (GOOD + "links: {0-9: 1.0}", "links: '0-9' must be two of the 2 devices, such as 0-1"),
        (GOOD + "interval: {F: [1.0]}", "interval.F[0]: 1.0 must be two numbers"),
        (GOOD + "link_fit: 3", "not a profile"),
        (GOOD + "latencies: 1e-5", "latencies: unknown key; did you mean latency?"),
        (GOOD + "colour: red", "colour: unknown key; the keys here are: schema, units"),
        (GOOD + "steps: {eror: []}", "steps: eror: unknown key; did you mean errors?"),
    ],
)
def test_a_faulty_profile_gets_one_sentence(tmp_path, text, said):
    (tmp_path / "profile.yaml").write_text(text)
    with pytest.raises(ppsim.ConfigError) as caught:
        read_profile(tmp_path / "profile.yaml")
    assert said in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "profile.yaml"))
    assert "\n" not in str(caught.value)


def test_every_fault_of_a_profile_is_said_with_its_place(tmp_path):
    huge = "9" * 400
    (tmp_path / "profile.yaml").write_text(
        f"schema: ppsim.profile/1\ndevices: 0\nseconds: {{F: 3.0, B: [{huge}]}}\ninterval: 3\nonce: [1]\nlinks: x\n"
        "bandwidth: no\nfitted: 3\nlatency: true\nlink_fit: {sizes: [1], seconds: [x], latency: [0, 1]}\n"
    )
    with pytest.raises(ppsim.ConfigError) as caught:
        read_profile(tmp_path / "profile.yaml")
    places = [fault.partition(": ")[0] for fault in caught.value.faults]
    assert {*places} == {
        "devices", "seconds.F", "seconds.B[0]", "interval", "once", "links", "bandwidth", "fitted", "latency",
        "link_fit.seconds[0]", "link_fit.residual", "link_fit.bandwidth",
    }  # fmt: skip


def test_transfers_of_which_one_end_was_not_recorded_say_nothing_of_the_link():
    document = trace_document("1f1b", ppsim.Costs(forward=0.02, backward=0.05, latency=0.001), overhead=0.0005)
    for step in document["steps"]:
        for column in ("start", "end"):
            step[column][2] = step[column][2][:10]
    cut = read_document(document, "cut")
    profile = calibrate([cut])
    assert max(profile.links.values()) == pytest.approx(0.001, rel=0.01)
    assert profile.overhead == pytest.approx(0.0005, rel=0.01)


def test_an_action_that_ends_before_it_starts_is_refused_before_a_profile_is_written(tmp_path):
    document = trace_document("1f1b", ppsim.Costs(forward=1.0, backward=2.0))
    document["steps"][1]["end"][0][0] = document["steps"][1]["start"][0][0] - 1.0
    (tmp_path / "trace.json").write_text(json.dumps(document))
    outcome = command("calibrate", tmp_path / "trace.json", "-o", tmp_path / "profile.yaml")
    assert outcome.status == 2
    assert "step 1, 0F0 on device 0 starts at" in outcome.err
    assert not (tmp_path / "profile.yaml").exists()
