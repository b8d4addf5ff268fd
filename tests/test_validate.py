"""The validator: one test for every rule, and all faults of a schedule in one error."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_schedules import schedules
from strategies import damaged_orders

import ppsim
from ppsim import DeadlockError, Schedule, ScheduleError
from ppsim.actions import Kind


def faults(orders, **options):
    with pytest.raises(ScheduleError) as caught:
        Schedule.from_orders(orders, **options).validate()
    return caught.value.faults


@given(schedules())
def test_a_schedule_that_can_run_is_valid(schedule):
    assert schedule.validate() is None


@given(schedules(fused=False))
def test_a_lowered_schedule_is_valid(schedule):
    assert Schedule.from_orders(ppsim.lower(schedule, sharded=True).orders()).validate() is None


@pytest.mark.parametrize("orders", [[], [[]], [[], []], [[None, ""]], [["0SEND_F0"]], [["0UNSHARD", "0RESHARD"]]])
def test_a_schedule_without_compute_actions_is_empty(orders):
    assert faults(orders) == [
        "schedule 'custom' is empty: it needs at least one device with at least one compute action, such as "
        "[['0F0', '0B0']]"
    ]


def test_a_device_without_actions():
    assert faults([["0F0", "0B0"], [], [None]]) == [
        "device 1 (row 2) has no actions; every device runs at least one stage",
        "device 2 (row 3) has no actions; every device runs at least one stage",
    ]


def test_a_missing_forward():
    assert faults([["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1B1"]]) == [
        "1F1 is missing: 2 stages x 2 microbatches each need one F"
    ]


def test_a_missing_backward():
    assert faults([["0F0", "0F1", "0B1"]]) == ["the backward of 0F0 is missing: add 0B0, or 0I0 and 0W0"]


def test_a_missing_input_gradient():
    assert faults([["0F0", "0W0"]]) == ["0I0 is missing: 0W0 needs it"]


def test_a_missing_weight_gradient():
    assert faults([["0F0", "0I0"]]) == ["0W0 is missing: 0I0 needs it"]


@pytest.mark.parametrize("kind", ["F", "B"])
def test_a_doubled_action(kind):
    order = ["0F0", "0B0"]
    assert faults([[*order, f"0{kind}0"]]) == [
        f"0{kind}0 appears twice: row 1, column {order.index(f'0{kind}0') + 1} and row 1, column 3; each action "
        f"appears once"
    ]


def test_a_fault_of_a_file_names_its_cell_as_a_spreadsheet_does(tmp_path):
    """Rows and columns count from 1 whatever is wrong, and idle cells count."""
    (tmp_path / "a.csv").write_text("0F0,,0G1,0B0\n")
    with pytest.raises(ScheduleError, match=r"a.csv: row 1, column 3: '0G1'"):
        Schedule.from_csv(tmp_path / "a.csv")
    (tmp_path / "a.csv").write_text("0F1,,0F0,0B0,0B1\n,,0B0\n")
    with pytest.raises(ScheduleError, match="0B0 appears twice: row 1, column 4 and row 2, column 3;"):
        Schedule.from_csv(tmp_path / "a.csv").validate()
    assert faults([["", "0B0", "", "0F0"]]) == [
        "0B0 (row 1, column 2) comes before 0F0 (row 1, column 4): a backward follows its forward"
    ]


def test_a_fault_among_the_compute_actions_of_a_program_names_the_cell_of_the_program():
    assert faults([["0UNSHARD", "0B0", "", "0F0", "0RESHARD"]]) == [
        "0B0 (row 1, column 2) comes before 0F0 (row 1, column 4): a backward follows its forward"
    ]
    fused = [["0F0", "0UNSHARD", "", "(0F1;0B0)OVERLAP_F_B", "0RESHARD", "0B1", "0B1"]]
    assert "0B1 appears twice: row 1, column 6 and row 1, column 7; each action appears once" in faults(fused)


def test_an_action_doubled_on_another_device_is_also_split():
    assert faults([["0F0", "0I0", "0W0"], ["0W0"]]) == [
        "0W0 appears twice: row 1, column 3 and row 2, column 1; each action appears once",
        "0W0 is on device 0 and 0W0 on device 1: all actions of one stage and microbatch run on one device",
    ]


@pytest.mark.parametrize(("parts", "named"), [(["0I0", "0W0"], "0I0"), (["0I0"], "0I0"), (["0W0"], "0W0")])
def test_a_full_backward_beside_its_parts(parts, named):
    assert faults([["0F0", "0B0", *parts]]) == [
        f"0B0 and {named} exclude each other: a microbatch's backward is either one B or one I and one W"
    ]


def test_a_backward_before_its_forward():
    assert faults([["0B0", "0F0"]]) == [
        "0B0 (row 1, column 1) comes before 0F0 (row 1, column 2): a backward follows its forward"
    ]
    assert faults([["0I0", "0F0", "0W0"]]) == [
        "0I0 (row 1, column 1) comes before 0F0 (row 1, column 2): a backward follows its forward"
    ]


def test_a_weight_gradient_before_its_forward_and_its_input_gradient():
    assert faults([["0W0", "0F0", "0I0"]]) == [
        "0W0 (row 1, column 1) comes before 0F0 (row 1, column 2): a backward follows its forward",
        "0W0 (row 1, column 1) comes before 0I0 (row 1, column 3): W follows the I of its microbatch",
    ]


def test_a_slot_may_not_hold_a_backward_before_its_own_forward():
    assert faults([["(0B0;0F0)OVERLAP_F_B"]]) == [
        "0B0 (row 1, column 1) comes before 0F0 (row 1, column 1): a backward follows its forward"
    ]


@pytest.mark.parametrize("lists", [
    [["0F0", "0I0", "0W0", "1W0"], ["1F0", "1I0"]], [["1F0", "1I0"], ["0F0", "0I0", "0W0", "1W0"]],
])  # fmt: skip
def test_a_weight_gradient_is_on_the_device_of_its_microbatch(lists):
    (fault,) = faults(lists)
    assert fault.endswith("on device 1: all actions of one stage and microbatch run on one device")


def test_a_stage_and_microbatch_on_two_devices():
    assert faults([["0F0", "1B0"], ["1F0", "0B0"]])[:2] == [
        "0F0 is on device 0 and 0B0 on device 1: all actions of one stage and microbatch run on one device",
        "1B0 is on device 0 and 1F0 on device 1: all actions of one stage and microbatch run on one device",
    ]


def test_two_devices_may_hold_one_stage_for_different_microbatches():
    both_ways = [["0F0", "1F1", "1B1", "0B0"], ["0F1", "1F0", "1B0", "0B1"]]
    assert Schedule.from_orders(both_ways).validate() is None


def test_slices_of_a_microbatch_come_in_order_and_make_whole_microbatches():
    assert Schedule.from_orders([["0F0", "0F1", "0B1", "0B0"]], slices=2).validate() is None
    assert faults([["0F1", "0F0", "0B0", "0B1"]], slices=2) == [
        "0F0 (row 1, column 2) comes too late: a slice's F follows the F of the slice before it",
        "0B1 (row 1, column 4) comes too late: a slice's backward follows the backward of the slice after it",
    ]
    assert faults([["0F0", "0B0"]], slices=2) == ["1 slices do not make whole microbatches of 2 slices each"]
    assert faults([["0F0", "0B0"]], slices=2**31 - 1) == [
        "1 slices do not make whole microbatches of 2147483647 slices each"
    ]


def test_numbers_with_huge_gaps_are_named_and_cost_no_memory():
    tracemalloc.start()
    try:
        assert faults([["0F0", "0B0", "2147483646F2147483646", "2147483646B2147483646"]]) == [
            "2147483646F2147483646 (row 1, column 3) names stage 2147483646, but no action names stage 1; stage "
            "numbers run 0, 1, 2 ... without gaps",
            "2147483646F2147483646 (row 1, column 3) names microbatch 2147483646, but no action names microbatch "
            "1; microbatch numbers run 0, 1, 2 ... without gaps",
        ]
        diagonal = [f"{number}{kind}{number}" for kind in "FB" for number in range(3000)]
        assert faults([diagonal])[-1] == "8996950 more F are missing"
        assert faults([[*diagonal, "0SEND_F0"]])[-1].startswith("0SEND_F0 (row 1, column 6001) carries nothing")
        assert tracemalloc.get_traced_memory()[1] < 2e7
    finally:
        tracemalloc.stop()


def test_all_faults_stand_in_one_error():
    program = [
        ["0F0", "0F0", "0B1", "0F1", "0SEND_F0"],
        ["1F0", "1B0", "1W0"],
        [],
        ["2F0", "2B0", "1W1"],
    ]
    with pytest.raises(ScheduleError) as caught:
        Schedule.from_orders(program, name="broken").validate()
    assert caught.value.faults == [
        "device 2 (row 3) has no actions; every device runs at least one stage",
        "0F0 appears twice: row 1, column 1 and row 1, column 2; each action appears once",
        "1F1 is missing: 3 stages x 2 microbatches each need one F",
        "2F1 is missing: 3 stages x 2 microbatches each need one F",
        "1B0 and 1W0 exclude each other: a microbatch's backward is either one B or one I and one W",
        "1I1 is missing: 1W1 needs it",
        "the backward of 0F0 is missing: add 0B0, or 0I0 and 0W0",
        "0B1 (row 1, column 3) comes before 0F1 (row 1, column 4): a backward follows its forward",
        "2SEND_B0 is missing on device 3: 2B0 makes what is needed by 1B0 of device 1",
        "1SEND_F0 is missing on device 1: 1F0 makes what is needed by 2F0 of device 3",
        "1RECV_F0 is missing on device 1: 1F0 needs what is made by 0F0 of device 0",
        "1RECV_B0 is missing on device 1: 1B0 needs what is made by 2B0 of device 3",
        "2RECV_F0 is missing on device 3: 2F0 needs what is made by 1F0 of device 1",
    ]
    assert str(caught.value).startswith("schedule 'broken' has 13 faults:\n  - device 2 (row 3) has no actions")


def test_of_one_rule_the_first_50_are_told_and_the_rest_counted():
    assert faults([[f"0F{k}" for k in range(80)]])[49:] == [
        "the backward of 0F49 is missing: add 0B49, or 0I49 and 0W49",
        "30 more faults like: the backward of 0F79 is missing: add 0B79, or 0I79 and 0W79",
    ]


def cycle(orders):
    with pytest.raises(DeadlockError) as caught:
        Schedule.from_orders(orders).validate()
    assert str(caught.value) == "\n".join(
        [
            "schedule 'custom' deadlocks, each waits for the next in a cycle:",
            *(f"    {line}" for line in caught.value.cycle),
        ]
    )
    return caught.value.cycle


def test_two_devices_that_wait_for_each_other():
    assert cycle([["0F0", "0B0", "0F1", "0B1"], ["1F1", "1F0", "1B0", "1B1"]]) == [
        "device 0 waits at 0B0 for 1B0 of device 1, which comes after 1F1",
        "device 1 waits at 1F1 for 0F1 of device 0, which comes after 0B0",
    ]


def ring(devices):
    """Microbatch d runs its stage 0 on device d and stage 1 on the next; each device takes stage 1 first."""
    before = [(d - 1) % devices for d in range(devices)]
    return [[f"1F{k}", f"0F{d}", f"1B{k}", f"0B{d}"] for d, k in enumerate(before)]


def test_three_devices_in_a_ring():
    assert cycle(ring(3)) == [
        "device 0 waits at 1F2 for 0F2 of device 2, which comes after 1F1",
        "device 2 waits at 1F1 for 0F1 of device 1, which comes after 1F0",
        "device 1 waits at 1F0 for 0F0 of device 0, which comes after 1F2",
    ]


def test_devices_that_only_wait_for_a_cycle_are_no_part_of_it():
    orders = [
        ["0F0", "0F1", "0B0", "0B1"],
        ["1F0", "1B0", "1F1", "1B1"],
        ["2F1", "2F0", "2B0", "2B1"],
    ]
    assert cycle(orders) == [
        "device 1 waits at 1B0 for 2B0 of device 2, which comes after 2F1",
        "device 2 waits at 2F1 for 1F1 of device 1, which comes after 1B0",
    ]


def test_a_device_may_wait_for_itself():
    assert cycle([["1F0", "0F0", "1B0", "0B0"]]) == ["device 0 waits at 1F0 for 0F0 of device 0, which comes after 1F0"]
    assert cycle([["0F0", "1F0", "0B0", "1B0"]]) == ["device 0 waits at 0B0 for 1B0 of device 0, which comes after 0B0"]


def test_a_cycle_is_told_beside_other_faults():
    told = faults([["0F0", "0B0", "0F1", "0B1"], ["1F1", "1F0", "1B0"]])
    assert told[0] == "the backward of 1F1 is missing: add 1B1, or 1I1 and 1W1"
    assert told[1].startswith("schedule 'custom' deadlocks, each waits for the next in a cycle:\n    device 0 waits")


def test_a_ring_of_ten_thousand_devices_is_told_without_recursion():
    assert len(cycle(ring(10_000))) == 10_000


def verdict(orders, slices):
    try:
        schedule = Schedule.from_orders(orders, slices=slices)
        schedule.validate()
    except ScheduleError as error:
        return str(error)
    return schedule.source.tolist()


@settings(deadline=None, max_examples=200)
@given(damaged_orders(), st.sampled_from([1, 1, 2, 3]))
def test_large_schedules_are_judged_by_the_same_pass(orders, slices):
    expected = verdict(orders, slices)
    with pytest.MonkeyPatch.context() as patch:
        for rows in ("ROWS_WORTH_LOADING", "ROWS_WORTH_COMPILING"):
            patch.setattr(f"ppsim.base.compiling.{rows}", 0)
        assert verdict(orders, slices) == expected


@pytest.mark.parametrize("slices", [1, 2])
@pytest.mark.parametrize("column", ["stage", "microbatch"])
def test_numbers_below_0_are_named(column, slices):
    numbers = {"stage": np.zeros(4, np.int32), "microbatch": np.array([0, 1, 1, 0], np.int32)}
    numbers[column][2] = -3
    kinds = np.array([Kind.F, Kind.F, Kind.B, Kind.B], np.int8)
    schedule = Schedule(kinds, **numbers, offsets=np.array([0, 4]), slices=slices)
    with pytest.raises(ScheduleError, match=rf"\(row 1, column 3\) names {column} -3"):
        schedule.validate()
