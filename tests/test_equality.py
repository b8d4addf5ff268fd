"""Every result holds arrays, and two results are equal where all that they hold is."""

from dataclasses import replace

import numpy as np
import pytest
from synthetic_traces import read_document, trace_document
from timelines import stepped

import ppsim
from ppsim import Jitter
from ppsim.base.immutable import distinct, equal
from ppsim.config import as_config
from ppsim.costs import Profile
from ppsim.studies import (
    Tolerance,
    break_even,
    calibrate,
    changes,
    config_findings,
    evaluate,
    gate_numbers,
    predict,
    slow_device_losses,
)
from ppsim.studies.optimum import optimum

SCHEDULE = ppsim.build("1f1b", devices=2, microbatches=3)
COSTS = ppsim.Costs(forward=1, backward=2, latency=0.5)


@pytest.mark.parametrize(
    ("result", "other"),
    [
        (lambda: stepped().plan, lambda: replace(stepped().plan, blocking=True)),
        (lambda: stepped().plan, lambda: replace(stepped().plan, row_lengths=stepped().plan.seconds + 1)),
        (lambda: stepped().plan.gathers, lambda: replace(stepped().plan.gathers, seconds=np.ones(2))),
        (lambda: stepped().reductions, lambda: stepped().unshards),
        (lambda: stepped().table, lambda: replace(stepped().table, overlap=np.ones((2, 2)))),
        (lambda: ppsim.simulate(SCHEDULE, COSTS).ledger(), lambda: ppsim.simulate(SCHEDULE).ledger()),
        (lambda: ppsim.simulate(SCHEDULE, COSTS).sensitivities(), lambda: ppsim.simulate(SCHEDULE).sensitivities()),
        (lambda: ppsim.simulate_many(SCHEDULE, COSTS), lambda: ppsim.simulate_many(SCHEDULE)),
        (lambda: Jitter(slow_devices={0: 2.0}), lambda: Jitter(slow_devices={0: 3.0})),
    ],
)
def test_results_are_equal_where_all_that_they_hold_is(result, other):
    assert result() == result()
    assert result() != other()
    assert result() != 1


@pytest.mark.parametrize("column", ["reduce_end", "step_start", "unshard_end", "row_start", "transfer_end"])
def test_timelines_differ_where_any_time_differs(column):
    run = stepped()
    other = run.times._replace(**{column: getattr(run, column) + 1})
    assert run == stepped()
    assert ppsim.Timeline(run.plan, run.table, run.costs, other, engine=run.engine) != run


def test_nan_is_equal_to_nan_and_types_count():
    assert equal(np.array([np.nan]), np.array([np.nan]))
    assert not equal(np.array([1.0]), [1.0])
    assert not equal((1, 2), (1, 2, 3))
    assert equal({"a": [np.ones(2)]}, {"a": [np.ones(2)]})


def test_what_the_caller_changes_later_does_not_change_a_jitter():
    factors = {0: 2.0}
    jitter = Jitter(slow_devices=factors)
    factors[0] = -1.0
    assert jitter.slow_devices == {0: 2.0}


def test_slots_are_named_by_place_and_by_kind():
    orders = [["0F0", "0F1", "(0B0;0F2)OVERLAP_F_B", "0B1", "0B2"], ["1F0", "1B0", "1F1", "1B1", "1F2", "1B2"]]
    schedule = ppsim.Schedule.from_orders(orders)
    assert [rows.tolist() for rows in schedule.slots] == [[2], [3], [3], [2]]
    assert schedule.first_rows.tolist() == [0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11]
    assert schedule.action_of_row.tolist() == [0, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    timed = ppsim.simulate(schedule, ppsim.Costs(overlap=2.0)).plan
    assert [rows.tolist() for rows in timed.slots] == [[2], [3], [3], [2]]
    assert timed.slot_of_row.tolist() == [0, 1, 2, 2, 4, 5, 6, 7, 8, 9, 10, 11]
    untimed = ppsim.simulate(schedule).plan
    assert all(not len(rows) for rows in untimed.slots)
    assert untimed.slot_of_row.tolist() == list(range(12))


HELD = {"activation_bytes": 10.0, "weight_bytes": 100.0}
MODEL = {"num_layers": 4, "hidden": 1024, "heads": 16, "vocabulary": 32000, "sequence": 2048}
CLUSTER = {"device": "H100 SXM", "link": "NVLink 4", "network": "InfiniBand NDR", "gpus": 4}


def config(**costs):
    schedule = {"name": "zb-h1", "devices": 2, "microbatches": 4}
    return as_config({"schedule": schedule, "costs": {"forward": 1.0, "backward": 2.0, **HELD, **costs}})


def run(**costs):
    return config(**costs).simulate()


def trace(**costs):
    return read_document(trace_document("1f1b", ppsim.Costs(**costs), noise=0.01), "trace.json")


def of_model(latency=0.0, **schedule):
    data = {"model": MODEL, "hardware": CLUSTER, "batch": 8, "costs": {"latency": latency}, "schedule": schedule}
    return {**data, "layout": {"microbatch_size": 1}}


def equal_steps(latency=0.0):
    return break_even("one", "other", lambda name, value: value if name == "one" else latency + 0.25, 0.0, 1.0)


RESULTS = {
    "config": config,
    "timeline": run,
    "memory": lambda **costs: run(**costs).memory(),
    "ledger": lambda **costs: run(**costs).ledger(),
    "lower bound": lambda **costs: run(**costs).lower_bound(),
    "sensitivities": lambda **costs: run(**costs).sensitivities(),
    "bubbles": lambda **costs: run(**costs).bubbles(),
    "batch": lambda **costs: ppsim.simulate_many(config().build(), [ppsim.Costs(**costs)]),
    "sweep": lambda **costs: ppsim.sweep(config(**costs), over={"schedule.microbatches": [4, 8]}),
    "comparison": lambda **costs: ppsim.compare(config(**costs), ["1f1b", "zb-h1"]),
    "advice": lambda **costs: ppsim.advise(config(**costs)),
    "choice": lambda **costs: ppsim.choose(of_model(**costs), ["schedule.name"]),
    "fits": lambda **costs: ppsim.what_fits(as_config(of_model(**costs, name="1f1b", devices=4, microbatches=8))),
    "interval": lambda **costs: predict(trace(), calibrate([trace(**costs)])).interval,
    "explanation": lambda **costs: ppsim.explain(run(**costs), run()),
    "what-if": lambda **costs: changes(run(), run(**costs)),
    "break-even": equal_steps,
    "losses": lambda **costs: slow_device_losses(config(**costs), {1: 1.5}, ["1f1b", "gpipe"]),
    "optimum": lambda **costs: optimum(2, 2, ppsim.Costs(**costs)),
    "gate": lambda **costs: config_findings(
        "a.yaml", gate_numbers(run(**costs)), None, Tolerance(), {"bubble_fraction": 0.1}
    ),
    "trace": trace,
    "calibration": lambda **costs: calibrate([trace(**costs)]),
    "evaluation": lambda **costs: evaluate([trace(**costs)], calibrate([trace()])),
}


@pytest.mark.parametrize("made", RESULTS.values(), ids=list(RESULTS))
def test_two_of_the_same_are_equal_and_of_other_costs_are_not(made):
    assert made(latency=0.5) == made(latency=0.5)
    assert made(latency=0.5) != made(latency=0.0)
    assert made() != "something else"


def test_a_profile_equals_one_of_the_same_costs():
    assert Profile(2, {"F": [1.0], "B": [2.0]}) == Profile(2, {"F": [1.0], "B": [2.0]})
    assert Profile(2, {"F": [1.0], "B": [2.0]}) != Profile(2, {"F": [1.0], "B": [3.0]})


def test_a_device_that_never_has_a_value_still_equals_itself():
    memory = run().memory()
    assert memory == type(memory)(**{**vars(memory), "moment": memory.moment.copy()})
    unknown = np.full(2, np.nan)
    assert type(memory)(*[unknown] * 6) == type(memory)(*[unknown.copy()] * 6)


def test_what_is_sorted_out_by_hand_is_what_numpy_calls_unique():
    for column in ([], [3], [2, 2], [5, 1, 5, 3, 1]):
        assert distinct(np.array(column, np.int64)).tolist() == sorted(set(column))
