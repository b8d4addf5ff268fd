"""Every result holds arrays, and two results are equal where all that they hold is."""

from dataclasses import replace

import numpy as np
import pytest
from timelines import stepped

import ppsim
from ppsim.base.immutable import equal
from ppsim.costs.profile import Profile
from ppsim.plan.jitter import Jitter

SCHEDULE = ppsim.build("1f1b", devices=2, microbatches=3)
COSTS = ppsim.Costs(forward=1, backward=2, latency=0.5)


@pytest.mark.parametrize(
    ("result", "other"),
    [
        (lambda: stepped().plan, lambda: replace(stepped().plan, blocking=True)),
        (lambda: stepped().plan, lambda: replace(stepped().plan, seconds=stepped().plan.seconds + 1)),
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


def test_the_columns_of_a_plan_cannot_be_written_to():
    with pytest.raises(ValueError, match="read-only"):
        stepped().plan.seconds[0] = 7.0


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


def run(**costs):
    return ppsim.simulate(ppsim.build("zb-h1", devices=2, microbatches=4), ppsim.Costs(**HELD, **costs))


def batch(**costs):
    return ppsim.simulate_many(ppsim.build("1f1b", devices=2, microbatches=4), [ppsim.Costs(**costs)])


@pytest.mark.parametrize(
    "made",
    [
        run,
        lambda **costs: run(**costs).memory(),
        lambda **costs: run(**costs).ledger(),
        lambda **costs: run(**costs).lower_bound(),
        lambda **costs: run(**costs).sensitivities(),
        batch,
    ],
    ids=["timeline", "memory", "ledger", "lower bound", "sensitivities", "batch"],
)
def test_two_of_the_same_are_equal_and_of_other_costs_are_not(made):
    assert made(latency=0.5) == made(latency=0.5)
    assert made(latency=5.0, transfer_bytes=3.0) != made(latency=0.0)
    assert made() != "something else"


def test_a_profile_equals_one_of_the_same_costs():
    assert Profile(2, {"F": [1.0], "B": [2.0]}) == Profile(2, {"F": [1.0], "B": [2.0]})
    assert Profile(2, {"F": [1.0], "B": [2.0]}) != Profile(2, {"F": [1.0], "B": [3.0]})


def test_a_device_that_never_has_a_value_still_equals_itself():
    memory = run().memory()
    assert memory == type(memory)(**{**vars(memory), "moment": memory.moment.copy()})
    unknown = np.full(2, np.nan)
    assert type(memory)(*[unknown] * 6) == type(memory)(*[unknown.copy()] * 6)
