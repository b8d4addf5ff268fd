"""simulate(): the meaning of time, on whole timelines of small cases computed by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_schedules import schedules
from strategies import seconds
from timelines import actions, transfers

import ppsim
from ppsim import ConfigError, CostError, Costs, DeadlockError, Schedule, build


def simulate(orders, costs=None, **options):
    schedule = orders if isinstance(orders, Schedule) else Schedule.from_orders(orders)
    return ppsim.simulate(schedule, costs, engine="event", **options)


def test_without_costs_a_forward_takes_1_second_and_a_backward_2():
    assert actions(simulate([["0F0", "0B0"]])) == ["0F0 0-1  0B0 1-3"]


def test_an_action_waits_for_its_neighbouring_stage_and_for_its_device_alone():
    # Device 2 is done with 2B1 before device 0 has started 0F1's backward: list order on one device binds no other.
    run = simulate([["0F1", "0F0", "0B0", "0B1"], ["1F0", "1F1", "1B1", "1B0"]])
    assert actions(run) == ["0F1 0-1  0F0 1-2  0B0 8-10  0B1 10-12", "1F0 2-3  1F1 3-4  1B1 4-6  1B0 6-8"]


def test_the_last_stages_backward_waits_for_its_own_forward():
    run = simulate([["0F0", "0F1", "0B1", "0B0"], ["1F0", "1F1", "1B0", "1B1"]], Costs(forward=[1, 5], backward=1))
    assert actions(run)[1] == "1F0 1-6  1F1 6-11  1B0 11-12  1B1 12-13"


def test_split_backwards_pass_on_the_input_gradient_and_keep_the_weight_gradient():
    run = simulate(
        [["0F0", "0I0", "0W0"], ["1F0", "1I0", "1W0"]], Costs(forward=1, input_grad=2, weight_grad=4, latency=1)
    )
    assert actions(run) == ["0F0 0-1  0I0 6-8  0W0 8-12", "1F0 2-3  1I0 3-5  1W0 5-9"]
    assert transfers(run) == {"1F0": (1, 2), "0I0": (5, 6)}


def test_full_and_split_backwards_of_neighbouring_stages_mix():
    run = simulate(
        [["0F0", "0B0"], ["1F0", "1I0", "1W0"], ["2F0", "2B0"]], Costs(forward=1, input_grad=1, weight_grad=1)
    )
    assert actions(run) == ["0F0 0-1  0B0 6-8", "1F0 1-2  1I0 5-6  1W0 6-7", "2F0 2-3  2B0 3-5"]


def test_two_ends_of_a_pipeline_may_send_microbatches_at_once():
    both_ways = [["0F0", "1F1", "1B1", "0B0"], ["0F1", "1F0", "1B0", "0B1"]]
    run = simulate(both_ways, Costs(forward=1, backward=1, latency=0.5))
    assert actions(run) == ["0F0 0-1  1F1 1.5-2.5  1B1 2.5-3.5  0B0 4-5", "0F1 0-1  1F0 1.5-2.5  1B0 2.5-3.5  0B1 4-5"]


def test_a_transfer_takes_latency_and_bytes_over_bandwidth_beside_the_computation():
    costs = Costs(forward=1, backward=1, latency=0.5, transfer_bytes=10, bandwidth=4)
    run = simulate([["0F0", "0F1", "0B0", "0B1"], ["1F0", "1F1", "1B0", "1B1"]], costs)
    assert actions(run) == ["0F0 0-1  0F1 1-2  0B0 10-11  0B1 11-12", "1F0 4-5  1F1 5-6  1B0 6-7  1B1 7-8"]
    assert transfers(run) == {"1F0": (1, 4), "1F1": (2, 5), "0B0": (7, 10), "0B1": (8, 11)}


def test_bytes_are_those_of_the_sending_stage():
    costs = Costs(forward=1, backward=1, transfer_bytes=[1, 2, 3], bandwidth=1)
    run = simulate([["0F0", "0B0"], ["1F0", "1B0"], ["2F0", "2B0"]], costs)
    assert transfers(run) == {"1F0": (1, 2), "2F0": (3, 5), "1B0": (7, 10), "0B0": (11, 13)}


def test_neighbouring_stages_of_one_device_pay_no_transfer():
    v_shape = [["0F0", "3F0", "3B0", "0B0"], ["1F0", "2F0", "2B0", "1B0"]]
    run = simulate(v_shape, Costs(forward=1, backward=1, latency=10, per="stage"))
    assert actions(run) == ["0F0 0-1  3F0 23-24  3B0 24-25  0B0 47-48", "1F0 11-12  2F0 12-13  2B0 35-36  1B0 36-37"]
    assert transfers(run) == {"1F0": (1, 11), "3F0": (13, 23), "2B0": (25, 35), "0B0": (37, 47)}


def test_under_directed_transfers_of_one_direction_stand_in_line():
    orders = [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1F1", "1B0", "1B1"]]
    costs = Costs(forward=1, backward=1, latency=3)
    assert transfers(simulate(orders, costs)) == {"1F0": (1, 4), "1F1": (2, 5), "0B0": (7, 10), "0B1": (8, 11)}
    run = simulate(orders, costs, transport="directed")
    # Device 1 posts the receive of 1F1 only behind 1F0 (PyTorch's order), device 0 that of 0B1 only behind 0B0.
    program = ppsim.lower(Schedule.from_orders(orders)).orders()
    assert program[1] == ["1RECV_F0", "1F0", "1RECV_F1", "1F1", "1B0", "1SEND_B0", "1B1", "1SEND_B1"]
    assert transfers(run) == {"1F0": (1, 4), "1F1": (5, 8), "0B0": (10, 13), "0B1": (14, 17)}
    assert actions(run) == ["0F0 0-1  0F1 1-2  0B0 13-14  0B1 17-18", "1F0 4-5  1F1 8-9  1B0 9-10  1B1 10-11"]


def test_a_program_with_early_receives_runs_as_under_async_until_two_transfers_meet():
    program = [
        ["0F0", "0SEND_F0", "0F1", "0SEND_F1", "0RECV_B0", "0RECV_B1", "0B0", "0B1"],
        ["1RECV_F0", "1RECV_F1", "1F0", "1F1", "1B0", "1SEND_B0", "1B1", "1SEND_B1"],
    ]
    run = simulate(program, Costs(forward=1, backward=1, latency=3), transport="directed")
    assert transfers(run) == {"1F0": (1, 4), "1F1": (4, 7), "0B0": (9, 12), "0B1": (12, 15)}
    assert actions(run) == ["0F0 0-1  0F1 1-2  0B0 12-13  0B1 15-16", "1F0 4-5  1F1 7-8  1B0 8-9  1B1 9-10"]


def test_uneven_stages_take_their_own_times():
    costs = Costs(forward=[1, 3], backward=[2, 4])
    run = simulate(build("1f1b", devices=2, microbatches=2), costs)
    assert actions(run) == ["0F0 0-1  0F1 1-2  0B0 8-10  0B1 15-17", "1F0 1-4  1B0 4-8  1F1 8-11  1B1 11-15"]
    assert run.device_busy.tolist() == [6, 14]
    assert run.makespan == 17


def test_equal_work_gives_each_of_two_stages_half_of_a_device_share():
    run = simulate(build("looped-bfs", devices=1, microbatches=1, stages_per_device=2), Costs(forward=1, backward=2))
    assert actions(run) == ["0F0 0-0.5  1F0 0.5-1  1B0 1-2  0B0 2-3"]
    per_stage = Costs(forward=1, backward=2, per="stage")
    run = simulate(build("looped-bfs", devices=1, microbatches=1, stages_per_device=2), per_stage)
    assert actions(run) == ["0F0 0-1  1F0 1-2  1B0 2-4  0B0 4-6"]


def test_actions_of_no_length_stand_in_their_order():
    run = simulate([["0F0", "0B0"], ["1F0", "1B0"]], Costs(forward=0, backward=0))
    assert actions(run) == ["0F0 0-0  0B0 0-0", "1F0 0-0  1B0 0-0"]
    assert (run.makespan, run.span, run.bubble_fraction, run.bubble_ratio, run.span_bubble_fraction) == (0, 0, 0, 0, 0)


SLOW_LAST = Costs(forward=[1, 3], backward=[2, 4])


def fused(order):
    return [["0F0", "0F1", "0B0", "0B1"], ["1F0", order, "1B1"]]


def test_without_overlap_a_slot_runs_its_parts_one_after_the_other_in_the_order_written():
    plain = simulate([["0F0", "0F1", "0B0", "0B1"], ["1F0", "1F1", "1B0", "1B1"]], SLOW_LAST)
    run = simulate(fused("(1F1;1B0)OVERLAP_F_B"), SLOW_LAST)
    assert actions(run) == actions(plain)
    assert actions(run)[1] == "1F0 1-4  1F1 4-7  1B0 7-11  1B1 11-15"
    run = simulate(fused("(1B0;1F1)OVERLAP_F_B"), SLOW_LAST)
    assert actions(run) == ["0F0 0-1  0F1 1-2  0B0 8-10  0B1 15-17", "1F0 1-4  1B0 4-8  1F1 8-11  1B1 11-15"]
    assert run.start.tolist() == [0, 1, 8, 15, 1, 4, 11]
    assert run.end.tolist() == [1, 2, 10, 17, 4, 11, 15]


def test_the_second_part_of_an_untimed_slot_waits_for_its_own_input_and_the_first_does_not():
    run = simulate(fused("(1B0;1F1)OVERLAP_F_B"), Costs(forward=1, backward=1, latency=5))
    # 1B0 starts when 1F0 ends, at 7; 1F1 arrived at 7 already.
    assert actions(run)[1] == "1F0 6-7  1B0 7-8  1F1 8-9  1B1 9-10"
    late = [["0F0", "0B0", "0F1", "0B1"], ["1F0", "(1B0;1F1)OVERLAP_F_B", "1B1"]]
    run = simulate(late, Costs(forward=1, backward=1, latency=5))
    assert actions(run) == ["0F0 0-1  0B0 13-14  0F1 14-15  0B1 27-28", "1F0 6-7  1B0 7-8  1F1 20-21  1B1 21-22"]


@pytest.mark.parametrize("order", ["(1F1;1B0)OVERLAP_F_B", "(1B0;1F1)OVERLAP_F_B"])
def test_with_overlap_a_slot_starts_when_both_parts_may_and_both_end_at_its_end(order):
    run = simulate(fused(order), Costs(forward=1, backward=2, overlap=2.5, latency=0.25))
    assert sorted(actions(run)[1].split("  ")) == ["1B0 2.25-4.75", "1B1 4.75-6.75", "1F0 1.25-2.25", "1F1 2.25-4.75"]
    assert actions(run)[0] == "0F0 0-1  0F1 1-2  0B0 5-7  0B1 7-9"
    assert run.start.tolist() == [0, 1, 5, 7, 1.25, 2.25, 4.75]
    assert run.end.tolist() == [1, 2, 7, 9, 2.25, 4.75, 6.75]
    assert run.device_busy.tolist() == [6, 5.5]


def test_a_timed_slot_waits_for_the_later_of_its_inputs():
    run = simulate(fused("(1F1;1B0)OVERLAP_F_B"), Costs(forward=[3, 1], backward=1, overlap=2))
    assert actions(run)[1] == "1F0 3-4  1F1 6-8  1B0 6-8  1B1 8-9"


def test_a_timed_slot_deadlocks_where_its_forward_needs_its_backward():
    orders = [["0F0", "0B0", "0F1", "0B1"], ["1F0", "(1B0;1F1)OVERLAP_F_B", "1B1"]]
    assert simulate(orders).makespan > 0
    with pytest.raises(DeadlockError) as caught:
        simulate(orders, Costs(overlap=2))
    assert caught.value.cycle == [
        "device 0 waits at 0B0 for 1B0 of device 1, which shares a fused slot with 1F1",
        "device 1 waits at 1F1 for 0F1 of device 0, which comes after 0B0",
    ]


def test_a_slot_is_priced_by_the_stages_of_its_parts():
    two_stages = [["0F0", "1F0", "(0F1;1B0)OVERLAP_F_B", "0B0", "1F1", "1B1", "0B1"]]
    run = simulate(two_stages, Costs(forward=[1, 3], backward=[2, 4], per="stage"))
    assert actions(run) == ["0F0 0-1  1F0 1-4  0F1 4-5  1B0 5-9  0B0 9-11  1F1 11-14  1B1 14-18  0B1 18-20"]
    matrix = [[0, 7], [0, 0]]  # a forward of stage 0 beside a backward of stage 1
    run = simulate(two_stages, Costs(forward=[1, 3], backward=[2, 4], overlap=matrix, per="stage"))
    assert actions(run) == ["0F0 0-1  1F0 1-4  0F1 4-11  1B0 4-11  0B0 11-13  1F1 13-16  1B1 16-20  0B1 20-22"]
    run = simulate(two_stages, Costs(overlap=[2, 4], per="stage"))  # of a list the mean of both stages
    assert "0F1 2-5  1B0 2-5" in actions(run)[0]
    run = simulate(two_stages, Costs(overlap=3))  # like other costs, of a device share: here two stages
    assert "0F1 1-2.5  1B0 1-2.5" in actions(run)[0]


@given(schedules(), seconds, seconds, seconds, seconds)
def test_every_dependency_holds_and_every_action_starts_as_soon_as_it_may(schedule, F, I, W, c):  # noqa: E741
    costs = Costs(forward=F, input_grad=I, weight_grad=W, latency=c)
    run = simulate(schedule, costs)
    table = costs.table(schedule)
    for row, source in enumerate(schedule.source.tolist()):
        first_of_device = row in schedule.offsets
        ready = 0.0 if first_of_device else run.row_end[row - 1]
        if source >= 0:
            remote = schedule.device[source] != schedule.device[row]
            assert np.isnan(run.transfer_start[row]) != remote
            ready = max(ready, run.row_end[source] + c * remote)
        assert run.row_start[row] == ready
        assert run.row_end[row] == ready + table.seconds[schedule.kind[row], schedule.stage[row]]


@given(schedules(), st.sampled_from(["async", "directed", "rank"]))
def test_a_run_is_reproducible(schedule, transport):
    try:
        first = simulate(schedule, Costs(latency=0.3, overlap=2.7), transport=transport)
    except DeadlockError as deadlock:
        with pytest.raises(DeadlockError) as again:
            simulate(schedule, Costs(latency=0.3, overlap=2.7), transport=transport)
        assert again.value.cycle == deadlock.cycle  # noqa: PT017 - either outcome is right if it comes twice
        return
    second = simulate(schedule, Costs(latency=0.3, overlap=2.7), transport=transport)
    assert np.array_equal(first.row_start, second.row_start)
    assert np.array_equal(first.transfer_start, second.transfer_start, equal_nan=True)


def test_a_chain_of_two_thousand_stages_needs_no_recursion():
    run = simulate([[f"{s}F0", f"{s}B0"] for s in range(2000)], Costs(forward=1, backward=1))
    assert run.makespan == 4000


@pytest.mark.parametrize(
    ("options", "error", "sentence"),
    [
        (
            {"transport": "tcp"},
            ConfigError,
            "transport='tcp' is not known; use one of: async, directed, directions, pair, rank, block",
        ),
        ({"transport": None}, ConfigError, "transport=None is not known"),
        ({"transport": np.array(["async", "rank"])}, ConfigError, "is not known"),
        ({"engine": "fast"}, ConfigError, "engine='fast' is not known; use one of: auto, event, compiled"),
        ({"costs": 1.0}, CostError, "costs=1.0 cannot price a schedule; give ppsim.Costs(forward=..., backward=...)"),
        ({"costs": {"forward": 1}}, CostError, "costs={'forward': 1} cannot price a schedule"),
        (
            {"costs": Costs(forward=[1, 2, 3])},
            CostError,
            "forward lists 3 values, but the schedule has 2 stages; list 2",
        ),
        ({"schedule": [["0F0", "0B0"]]}, ConfigError, "simulate takes a Schedule or a Program, not list"),
        (
            {"schedule": "1f1b"},
            ConfigError,
            "simulate takes a Schedule or a Program, not str; see ppsim.build, Schedule.from",
        ),
    ],
    ids=range(9),
)
def test_a_wrong_call_is_told_with_what_is_legal(options, error, sentence):
    with pytest.raises(error) as caught:
        ppsim.simulate(**{"schedule": build("1f1b", devices=2, microbatches=2), **options})
    assert sentence in str(caught.value)


def test_an_invalid_schedule_does_not_run():
    with pytest.raises(ppsim.ScheduleError, match="the backward of 0F0 is missing"):
        simulate([["0F0"]])
