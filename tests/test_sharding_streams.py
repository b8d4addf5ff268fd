"""UNSHARD and REDUCE_GRAD on streams of their own: whole timelines of cases computed by hand."""

from dataclasses import replace

import numpy as np
import pytest
from timelines import actions, transfers

import ppsim
from ppsim.lowering import TRANSPORTS

ENGINES = ("event", "compiled")


def spans(found):
    """Each span as device, stage, start and end."""
    columns = (found.device, found.stage, found.start, found.end)
    return list(zip(*(column.tolist() for column in columns), strict=True))


ONE_DEVICE = [
    ["0UNSHARD", "1UNSHARD", "0F0", "1F0", "1B0", "1REDUCE_GRAD", "1RESHARD", "0B0", "0REDUCE_GRAD", "0RESHARD"]
]


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_gathers_run_one_after_the_other_and_hold_up_only_the_first_action_of_their_stage(transport, engine):
    costs = ppsim.Costs(forward=1, backward=2, unshard=3, reduce_grad=4, per="stage")
    run = ppsim.simulate(ppsim.Program.from_orders(ONE_DEVICE), costs, transport=transport, engine=engine)
    assert actions(run) == ["0F0 3-4  1F0 6-7  1B0 7-9  0B0 9-11"]
    assert spans(run.unshards) == [(0, 0, 0, 3), (0, 1, 3, 6)]
    assert spans(run.reductions) == [(0, 1, 9, 13), (0, 0, 13, 17)]
    assert (run.device_start[0], run.device_end[0], run.makespan) == (0, 17, 17)
    assert run.device_busy[0] == 6


@pytest.mark.parametrize("engine", ENGINES)
def test_starts_at_time_zero_are_floats_too(engine):
    program = ppsim.lower(ppsim.build("1f1b", devices=2, microbatches=2), sharded=True)
    assert ppsim.simulate(program, ppsim.Costs(unshard=3), engine=engine).unshards.start.dtype == np.float64


def test_a_gather_waits_for_the_actions_that_stand_before_it():
    orders = [["0UNSHARD", "0F0", "1UNSHARD", "1F0", "1B0", "1RESHARD", "0B0", "0RESHARD"]]
    run = ppsim.simulate(ppsim.Program.from_orders(orders), ppsim.Costs(forward=2, backward=2, unshard=1, per="stage"))
    assert actions(run) == ["0F0 1-3  1F0 4-6  1B0 6-8  0B0 8-10"]
    assert spans(run.unshards) == [(0, 0, 0, 1), (0, 1, 3, 4)]
    assert spans(run.reductions) == []


def test_a_stage_that_was_resharded_is_gathered_again():
    orders = [["0UNSHARD", "0F0", "0RESHARD", "1UNSHARD", "1F0", "1B0", "1RESHARD", "0UNSHARD", "0B0", "0RESHARD"]]
    run = ppsim.simulate(ppsim.Program.from_orders(orders), ppsim.Costs(forward=1, backward=1, unshard=1, per="stage"))
    assert actions(run) == ["0F0 1-2  1F0 3-4  1B0 4-5  0B0 6-7"]
    assert spans(run.unshards) == [(0, 0, 0, 1), (0, 1, 2, 3), (0, 0, 5, 6)]


@pytest.mark.parametrize("engine", ENGINES)
def test_the_last_stage_waits_for_the_later_of_its_weights_and_its_input(engine):
    program = ppsim.lower(ppsim.build("1f1b", devices=2, microbatches=2), sharded=True)
    costs = ppsim.Costs(forward=1, backward=2, unshard=[1, 4], latency=0.5, per="stage")
    run = ppsim.simulate(program, costs, engine=engine)
    assert actions(run) == [
        "0F0 1-2  0F1 2-3  0B0 7.5-9.5  0B1 10.5-12.5",
        "1F0 4-5  1B0 5-7  1F1 7-8  1B1 8-10",
    ]
    assert transfers(run) == {"1F0": (2, 2.5), "1F1": (3, 3.5), "0B0": (7, 7.5), "0B1": (10, 10.5)}


def test_a_fused_slot_waits_for_the_weights_of_both_of_its_stages():
    orders = [["0UNSHARD", "0F0", "1UNSHARD", "(1F0;0F1)OVERLAP_F_B"]]
    with pytest.raises(ppsim.ScheduleError):
        ppsim.Program.from_orders(orders).validate()
    orders = [
        ["0UNSHARD", "0F0", "1UNSHARD", "1F0", "1B0", "0RESHARD", "0UNSHARD", "(1F1;0B0)OVERLAP_F_B"],
        ["0UNSHARD", "0F1", "0B1", "0RESHARD"],
    ]
    orders[0] += ["1B1", "1RESHARD", "0RESHARD"]
    costs = ppsim.Costs(forward=1, backward=1, overlap=1.5, unshard=[3, 1], per="stage")
    run = ppsim.simulate(ppsim.Program.from_orders(orders), costs, engine="compiled")
    assert actions(run) == [
        "0F0 3-4  1F0 5-6  1B0 6-7  1F1 10-11.5  0B0 10-11.5  1B1 11.5-12.5",
        "0F1 3-4  0B1 12.5-13.5",
    ]
    event = ppsim.simulate(ppsim.Program.from_orders(orders), costs, engine="event")
    assert actions(event) == actions(run)


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("engine", ENGINES)
def test_free_gathers_change_no_bit(transport, engine):
    schedule = ppsim.build("interleaved-1f1b", devices=4, microbatches=8)
    program = ppsim.lower(schedule, sharded=True)
    costs = ppsim.Costs(forward=0.7, backward=1.3, latency=0.11)
    plain = ppsim.simulate(program, costs, transport=transport, engine=engine)
    free = ppsim.simulate(program, replace(costs, unshard=0.0), transport=transport, engine=engine)
    for column in ("row_start", "row_end", "transfer_start", "transfer_end"):
        assert getattr(free, column).tobytes() == getattr(plain, column).tobytes()


def test_data_parallel_reductions_overlap_the_rest_of_the_backward():
    schedule = ppsim.build("interleaved-1f1b", devices=2, microbatches=2, stages_per_device=2)
    run = ppsim.simulate(schedule, ppsim.Costs(forward=1, backward=1, reduce_grad=3, per="stage"))
    assert actions(run) == [
        "0F0 0-1  0F1 1-2  2F0 2-3  2F1 3-4  2B0 5-6  2B1 7-8  0B0 8-9  0B1 9-10",
        "1F0 1-2  1F1 2-3  3F0 3-4  3B0 4-5  3F1 5-6  3B1 6-7  1B0 7-8  1B1 8-9",
    ]
    assert spans(run.reductions) == [(0, 2, 8, 11), (0, 0, 11, 14), (1, 3, 7, 10), (1, 1, 10, 13)]
    assert run.device_end.tolist() == [14, 13]


def test_a_program_reduces_where_its_reduce_grad_stands():
    orders = [["0F0", "1F0", "1B0", "0B0", "1REDUCE_GRAD", "0REDUCE_GRAD"]]
    costs = ppsim.Costs(forward=1, backward=1, reduce_grad=2, per="stage")
    assert spans(ppsim.simulate(ppsim.Program.from_orders(orders), costs).reductions) == [(0, 1, 4, 6), (0, 0, 6, 8)]


def test_seconds_are_of_a_device_share():
    schedule = ppsim.build("interleaved-1f1b", devices=2, microbatches=4, stages_per_device=4)
    table = ppsim.Costs(unshard=4.0, reduce_grad=8.0, optimizer_step=2.0).table(schedule)
    assert table.unshard_seconds.tolist() == [1.0] * 8
    assert table.reduce_seconds.tolist() == [2.0] * 8
    assert table.optimizer_seconds.tolist() == [0.5] * 8


def test_the_ledger_calls_exposed_gathers_and_reductions_sharding():
    costs = ppsim.Costs(forward=1, backward=2, unshard=3, reduce_grad=4, per="stage")
    ledger = ppsim.simulate(ppsim.Program.from_orders(ONE_DEVICE), costs).ledger()
    assert {cause: seconds.tolist() for cause, seconds in ledger.items() if seconds.any()} == {"sharding": [11.0]}


def test_a_device_behind_one_that_gathers_waits_for_sharding_too():
    program = ppsim.lower(ppsim.build("1f1b", devices=2, microbatches=1), sharded=True)
    run = ppsim.simulate(program, ppsim.Costs(forward=1, backward=2, unshard=[0, 4], per="stage"))
    # Device 1 gathers until 4, from 1 on without need of anything else; device 0 waits for its backward.
    assert actions(run) == ["0F0 0-1  0B0 7-9", "1F0 4-5  1B0 5-7"]
    ledger = run.ledger()
    assert ledger["sharding"].tolist() == [3, 3]
    assert ledger["fill"].tolist() == [0, 1]
    assert ledger["dependency"].tolist() == [3, 0]
    assert ledger["drain"].tolist() == [0, 2]


def test_the_critical_path_goes_through_gathers_and_reductions():
    costs = ppsim.Costs(forward=1, backward=2, unshard=3, reduce_grad=4, per="stage")
    run = ppsim.simulate(ppsim.Program.from_orders(ONE_DEVICE), costs)
    assert run.critical_path().tolist() == [1, 2]
    assert run.slack().tolist() == [2, 0, 0, 2]
    kind = run.sensitivities().kind
    assert {name: kind[name] for name in ("F", "B", "UNSHARD", "REDUCE_GRAD")} == {
        "F": 1,
        "B": 1,
        "UNSHARD": 2,
        "REDUCE_GRAD": 2,
    }


def test_bad_seconds_are_refused():
    for name in ("unshard", "reduce_grad", "optimizer_step"):
        with pytest.raises(ppsim.CostError, match=f"{name}=-1"):
            ppsim.Costs(**{name: -1})
    with pytest.raises(ppsim.CostError, match="unshard lists 2 values, but the schedule has 4 stages"):
        ppsim.simulate(ppsim.build("1f1b", devices=4, microbatches=4), ppsim.Costs(unshard=[1, 2]))


def test_batches_know_gathers_and_reductions():
    program = ppsim.lower(ppsim.build("1f1b", devices=2, microbatches=4), sharded=True)
    costs = [ppsim.Costs(unshard=seconds, reduce_grad=seconds) for seconds in (0.0, 0.5, 3.0)] + [ppsim.Costs()]
    batch = ppsim.simulate_many(program, costs, optimizer="sync")
    single = [ppsim.simulate(program, one, optimizer="sync").makespan for one in costs]
    assert np.array_equal(batch.makespan, single)
    assert len(set(single)) == 3
