"""Batches: one schedule under many costs, and samples of jitter with common random numbers."""

import io
import math

import numpy as np
import pytest

import ppsim
import ppsim.base.progress
from ppsim.analysis import shown_in
from ppsim.lowering import TRANSPORTS
from ppsim.plan import JitteredPlan, make_plan

COSTS = ppsim.Costs(forward=1.0, input_grad=1.0, weight_grad=0.5, latency=0.1)
NOISE = ppsim.Jitter(actions=0.1, transfers=0.2, devices=0.05, links=0.3)


@pytest.fixture(scope="module")
def one_f_one_b():
    return ppsim.build("1f1b", devices=4, microbatches=8)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_each_run_of_a_batch_is_the_simulation_of_its_costs(transport):
    schedule = ppsim.build("1f1b-overlap", devices=4, microbatches=8)
    many = [ppsim.Costs(forward=1 + k / 7, latency=k / 3, overlap=2.5 if k % 2 else None) for k in range(6)]
    batch = ppsim.simulate_many(schedule, many, transport=transport)
    assert len(batch) == 6
    assert batch.engine == "compiled"
    for index, costs in enumerate(many):
        run = ppsim.simulate(schedule, costs, transport=transport, engine="event")
        for measure in shown_in("batch"):
            assert getattr(batch, measure.name)[index] == measure.number(run), measure.name
        assert (batch.makespan[index], batch.peak_activations[index]) == (run.makespan, run.peak_activations.max())


def test_a_batch_lists_the_samples_of_each_costs_in_turn(one_f_one_b):
    batch = ppsim.simulate_many(one_f_one_b, [COSTS, ppsim.Costs()], jitter=NOISE, samples=3)
    assert batch.case.tolist() == [0, 0, 0, 1, 1, 1]
    assert batch.sample.tolist() == [0, 1, 2, 0, 1, 2]
    frame = batch.to_frame()
    assert list(frame) == ["case", "sample", *(measure.name for measure in shown_in("batch"))]
    assert {"makespan", "span", "bubble_fraction", "bubble_ratio", "span_bubble_fraction"} <= {*frame}
    assert len(frame) == 6


def test_equal_seeds_give_equal_samples_and_other_seeds_others(one_f_one_b):
    first, again, other = (
        ppsim.simulate_many(one_f_one_b, COSTS, jitter=NOISE, samples=20, seed=seed).makespan for seed in (1, 1, 2)
    )
    assert np.array_equal(first, again)
    assert not np.any(first == other)


def test_both_engines_give_equal_samples(one_f_one_b):
    event, compiled = (
        ppsim.simulate_many(one_f_one_b, COSTS, jitter=NOISE, samples=5, engine=engine)
        for engine in ("event", "compiled")
    )
    assert np.array_equal(event.makespan, compiled.makespan)


def test_more_samples_begin_with_the_same_ones(one_f_one_b):
    few, many = (ppsim.simulate_many(one_f_one_b, COSTS, jitter=NOISE, samples=count) for count in (5, 10))
    assert np.array_equal(few.makespan, many.makespan[:5])


def test_a_slow_device_is_one_with_longer_stages(one_f_one_b):
    slow = ppsim.simulate_many(one_f_one_b, COSTS, jitter=ppsim.Jitter(slow_devices={2: 1.5}))
    uneven = ppsim.Costs(
        forward=[1, 1, 1.5, 1], input_grad=[1, 1, 1.5, 1], weight_grad=[0.5, 0.5, 0.75, 0.5], latency=0.1
    )
    assert len(slow) == 1
    assert slow.makespan[0] == pytest.approx(ppsim.simulate(one_f_one_b, uneven).makespan, rel=1e-12)


def test_a_slow_link_lengthens_the_transfers_between_its_devices_both_ways():
    schedule = ppsim.build("naive", devices=3, microbatches=1)
    slow = ppsim.simulate_many(schedule, COSTS, jitter=ppsim.Jitter(slow_links={(2, 1): 5.0}))
    assert slow.makespan[0] == pytest.approx(3 * 2.5 + 2 * (0.1 + 0.5))


def test_noise_is_lognormal_with_mean_one(one_f_one_b):
    table = COSTS.table(one_f_one_b)
    plan = make_plan(one_f_one_b, table, "async")
    jittered = JitteredPlan(plan, ppsim.Jitter(actions=0.2), seed=0)
    forward = one_f_one_b.kind == 0
    factors = np.concatenate([jittered.sample(k).seconds[forward] for k in range(400)])
    assert factors.mean() == pytest.approx(1, abs=0.01)
    assert np.log(factors).std() == pytest.approx(0.2, abs=0.01)
    assert np.log(factors).mean() == pytest.approx(-0.02, abs=0.01)


@pytest.mark.parametrize("name", ["1f1b", "zb-h1"])
def test_every_kind_has_the_noise_that_was_asked_for(name):
    schedule = ppsim.build(name, devices=4, microbatches=8)
    jittered = JitteredPlan(make_plan(schedule, COSTS.table(schedule), "async"), ppsim.Jitter(actions=0.1), seed=0)
    samples = [jittered.sample(k).seconds for k in range(200)]
    for kind in np.unique(schedule.kind):
        assert np.log([seconds[schedule.kind == kind] for seconds in samples]).std() == pytest.approx(0.1, rel=0.05)


def test_schedules_of_the_same_stages_meet_the_same_work_in_the_same_sample(one_f_one_b):
    split = ppsim.build("zb-h1", devices=4, microbatches=8)
    busy = []
    for schedule in (one_f_one_b, split):
        table = COSTS.table(schedule)
        jittered = JitteredPlan(make_plan(schedule, table, "async"), NOISE, seed=3)
        busy.append(np.add.reduceat(jittered.sample(7).seconds, schedule.offsets[:-1]))
    assert busy[0] == pytest.approx(busy[1], rel=1e-12)


def test_runs_of_equal_seed_are_pairs_in_which_zero_bubble_beats_1f1b_nearly_always(one_f_one_b):
    plain = ppsim.simulate_many(one_f_one_b, COSTS, jitter=NOISE)
    split = ppsim.simulate_many(ppsim.build("zb-h1", devices=4, microbatches=8), COSTS, jitter=NOISE)
    assert len(plain) == 100
    assert np.mean(split.makespan < plain.makespan) > 0.95


def test_percentiles_are_in_order_and_interpolated(one_f_one_b):
    batch = ppsim.simulate_many(one_f_one_b, [ppsim.Costs(forward=k, backward=0.0) for k in (1, 2, 3)])
    assert batch.makespan.tolist() == [11, 22, 33]
    assert batch.p50 == 22
    assert batch.p5 == pytest.approx(12.1)
    assert batch.p95 == pytest.approx(31.9)
    assert "P50 22 s" in batch.summary()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"samples": 5}, "without random jitter are equal"),
        ({"samples": 0, "jitter": NOISE}, "samples=0 must be a whole number of at least 1"),
        ({"seed": -1}, "seed=-1 must be"),
        ({"jitter": 0.1}, "must be a ppsim.Jitter"),
        ({"costs": []}, "the list of costs is empty"),
        ({"costs": [1.0]}, r"costs\[0\] is 1.0"),
        ({"transport": "mail"}, "transport='mail' is not known"),
        ({"jitter": ppsim.Jitter(slow_devices={9: 2.0})}, "names device 9, but the schedule has devices 0 to 3"),
        ({"jitter": ppsim.Jitter(slow_links={3: 2.0})}, "name a pair of devices"),
        ({"jitter": ppsim.Jitter(slow_links={(1, 1): 2.0})}, "name a pair of devices"),
        ({"jitter": ppsim.Jitter(slow_links={(0, 1): 2.0, (1, 0): 3.0})}, "name a pair of devices once"),
    ],
)
def test_a_call_that_cannot_be_is_refused_with_what_is_legal(one_f_one_b, options, message):
    with pytest.raises(ppsim.PpsimError, match=message):
        ppsim.simulate_many(one_f_one_b, **options)


@pytest.mark.parametrize(
    "options",
    [{"actions": -0.1}, {"links": math.nan}, {"devices": "0.1"}, {"slow_devices": {0: 0}}, {"slow_devices": [1.2]}],
)
def test_jitter_takes_only_legal_numbers(options):
    with pytest.raises(ppsim.CostError, match="must"):
        ppsim.Jitter(**options)


def test_a_percentile_names_what_is_wrong(one_f_one_b):
    few = ppsim.simulate_many(one_f_one_b, COSTS, jitter=NOISE, samples=5)
    with pytest.raises(ppsim.ConfigError, match="percent=101"):
        few.percentile(101)
    with pytest.raises(ppsim.ConfigError, match="measure='length'"):
        few.percentile(50, "length")


def test_a_progress_bar_is_shown_only_on_a_terminal(one_f_one_b, monkeypatch, capsys):
    monkeypatch.setattr(ppsim.base.progress, "SECONDS_BEFORE_SHOWING", -1.0)
    ppsim.simulate_many(one_f_one_b, COSTS, jitter=NOISE, samples=3)
    assert capsys.readouterr().err == ""
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stderr", terminal)
    ppsim.simulate_many(one_f_one_b, COSTS, jitter=NOISE, samples=3)
    assert "simulating" in terminal.getvalue()


@pytest.mark.parametrize("percent", ["half", None, math.nan, True])
def test_a_percentile_needs_a_number(one_f_one_b, percent):
    with pytest.raises(ppsim.ConfigError, match="must be a number from 0 to 100"):
        ppsim.simulate_many(one_f_one_b, COSTS).percentile(percent)


def test_a_class_is_no_cost_model(one_f_one_b):
    with pytest.raises(ppsim.ConfigError, match="prices no schedule"):
        ppsim.simulate_many(one_f_one_b, ppsim.Costs)
    with pytest.raises(ppsim.CostError, match="cannot price a schedule"):
        ppsim.simulate(one_f_one_b, ppsim.Costs)
