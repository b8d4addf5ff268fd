"""Schedule: ordered actions per device as columns, made from lists and given back as lists."""

import copy
import gc
import pickle
import sys
import weakref
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from random_schedules import schedules
from strategies import cells, things

import ppsim
from ppsim import Program, Schedule, ScheduleError
from ppsim.actions import Action, Kind
from ppsim.schedule import Block, ScheduleColumns, concatenate, fuse

FUSED = [["0F0", "0F1", "0B0", "0B1"], ["1F0", "(1F1;1B0)OVERLAP_F_B", "1B1"]]


@given(schedules())
def test_lists_come_back_as_they_were_given(schedule):
    again = Schedule.from_orders(schedule.orders())
    assert again.orders() == schedule.orders()
    assert again == schedule


@given(schedules(fused=False))
def test_a_program_comes_back_as_it_was_given(schedule):
    program = ppsim.lower(schedule, sharded=True)
    again = Schedule.from_orders(program.orders())
    assert isinstance(again, Program)
    assert again == program
    assert again.schedule == schedule


def test_columns_hold_one_row_an_action_and_two_a_slot():
    schedule = Schedule.from_orders(FUSED)
    assert schedule.kind.tolist() == [Kind.F, Kind.F, Kind.B, Kind.B, Kind.F, Kind.F, Kind.B, Kind.B]
    assert schedule.stage.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert schedule.microbatch.tolist() == [0, 1, 0, 1, 0, 1, 0, 1]
    assert schedule.joined.tolist() == [False] * 6 + [True, False]
    assert schedule.offsets.tolist() == [0, 4, 8]
    assert schedule.device.tolist() == [0] * 4 + [1] * 4
    assert (schedule.devices, schedule.num_stages, schedule.microbatches, len(schedule)) == (2, 2, 2, 7)
    assert repr(schedule) == "<Schedule custom: 2 devices, 2 stages, 2 microbatches, 7 actions>"


def test_actions_are_made_when_someone_looks_at_them():
    schedule = Schedule.from_orders(FUSED)
    assert [str(action) for action in schedule.actions(1)] == FUSED[1]
    assert next(schedule.actions(0)) == Action(Kind.F, 0, 0)
    assert [schedule.label(row) for row in range(4, 8)] == ["1F0", "1F1", "1B0", "1B1"]


@pytest.mark.parametrize("device", [-1, 2, 10**30, None, "0", 0.0])
def test_a_device_that_does_not_exist_is_named(device):
    with pytest.raises(ScheduleError, match="does not exist; the devices are 0 to 1"):
        list(Schedule.from_orders(FUSED).actions(device))


def test_a_source_is_the_neighbouring_stages_action_of_the_same_direction():
    schedule = Schedule.from_orders([["0F0", "0I0", "0W0"], ["1F0", "1B0"]])
    assert schedule.source.tolist() == [-1, 4, -1, 0, -1]


def test_a_stage_held_by_two_devices_is_listed_for_both():
    both_ways = Schedule.from_orders([["0F0", "1F1", "1B1", "0B0"], ["0F1", "1F0", "1B0", "0B1"]])
    assert both_ways.holdings.tolist() == [[0, 0], [0, 1], [1, 0], [1, 1]]


def test_none_and_the_empty_text_are_idle_slots():
    schedule = Schedule.from_orders([["0F0", None, "", "0B0"], [None, "1F0", "1B0", "  "]])
    assert schedule.orders() == [["0F0", "0B0"], ["1F0", "1B0"]]
    assert schedule.idle.tolist() == [[0, 1], [0, 2], [1, 0], [1, 3]]
    assert schedule == Schedule.from_orders([["0F0", "0B0"], ["1F0", "1B0"]])


def test_a_line_of_actions_is_the_list_of_a_device():
    schedule = Schedule.from_orders(["0F0 0F1  0B0 0B1", "1F0,,1B0, 1F1,1B1"])
    assert schedule.orders() == [["0F0", "0F1", "0B0", "0B1"], ["1F0", "1B0", "1F1", "1B1"]]
    assert schedule.idle.tolist() == [[1, 1]]
    with pytest.raises(ScheduleError, match="row 1: expected a list of actions, got '0F0'"):
        Schedule.from_orders(["0F0", "0B0"])


def test_anything_whose_text_is_an_action_is_taken():
    class Foreign:
        def __init__(self, text):
            self.text = text

        def __str__(self):
            return self.text

    orders = [(Foreign("0F0"), Action(Kind.B, 0, 0)), np.array(["1F0", "1B0"]), iter([np.str_("2F0"), "2B0"])]
    assert Schedule.from_orders(order for order in orders).orders() == [["0F0", "0B0"], ["1F0", "1B0"], ["2F0", "2B0"]]


def test_lists_with_transfers_are_a_program():
    program = Schedule.from_orders([["0F0", "0SEND_F0", "0RECV_B0", "0B0"], ["1RECV_F0", "1F0", "1B0", "1SEND_B0"]])
    assert isinstance(program, Program)
    assert program.is_program
    assert program.schedule.orders() == [["0F0", "0B0"], ["1F0", "1B0"]]
    assert not program.schedule.is_program


def test_equal_schedules_have_equal_actions_slots_and_slices():
    assert Schedule.from_orders(FUSED, name="one") == Schedule.from_orders(FUSED, name="other")
    assert Schedule.from_orders([["0F0", "0B0"]]) != Schedule.from_orders([["0F0"], ["0B0"]])
    plain = [FUSED[0], ["1F0", "1F1", "1B0", "1B1"]]
    assert Schedule.from_orders(FUSED) != Schedule.from_orders(plain)
    assert Schedule.from_orders(plain, slices=2) != Schedule.from_orders(plain)
    assert Schedule.from_orders(plain) != plain


def test_schedules_of_equal_lists_differ_by_what_else_they_hold():
    one = ppsim.build("1f1b", devices=4, microbatches=8)
    assert one != ppsim.build("bpipe", devices=4, microbatches=8)  # evictions
    assert one == ppsim.build("1f1b", devices=4, microbatches=8)

    def changed(**traits):
        joined = traits.pop("joined", one.joined)
        return Schedule(one.kind, one.stage, one.microbatch, one.offsets, joined=joined, **{**one.traits, **traits})

    assert changed(name="other") == one
    assert changed(slices=2) != one
    assert changed(iterations=2) != one
    assert changed(weight_versions=np.array([4, 3, 2, 1])) != one
    assert changed(evicted=np.array([[0, 0, 3]])) != one
    assert changed(joined=np.arange(len(one)) == 5) != one


def through_a_pickle(schedule):
    return pickle.loads(pickle.dumps(schedule))  # noqa: S301 - our own bytes


COLUMNS = ("kind", "stage", "microbatch", "offsets", "joined", "idle", "weight_versions", "evicted")
VIEWS = ("device", "holdings", "source")
MADE = {
    "built": lambda: ppsim.build("1f1b", devices=2, microbatches=4),
    "read": lambda: Schedule.from_orders(FUSED),
    "lowered": lambda: ppsim.lower(Schedule.from_orders(FUSED), sharded=True, receive="just-in-time"),
    "compute": lambda: ppsim.lower(ppsim.build("bpipe", devices=4, microbatches=8)).schedule,
    "copied": lambda: copy.deepcopy(ppsim.build("gpipe", devices=2, microbatches=4)),
    "pickled": lambda: through_a_pickle(ppsim.build("gpipe", devices=2, microbatches=4)),
}


@pytest.mark.parametrize("made", MADE)
def test_nothing_of_a_schedule_can_be_written(made):
    schedule = MADE[made]()
    for name in (*COLUMNS, *VIEWS):
        column = getattr(schedule, name)
        with pytest.raises(ValueError, match="read-only"):
            column[...] = 0
        with pytest.raises(ValueError, match="WRITEABLE"):
            column.flags.writeable = True
        with pytest.raises(AttributeError, match=f"{name} cannot be set"):
            setattr(schedule, name, column)


def test_a_column_is_no_window_on_what_its_maker_can_still_write():
    kinds = np.array([Kind.F, Kind.B, Kind.F], np.int8)
    closed = kinds[:2]
    closed.flags.writeable = False
    numbers, offsets = np.zeros(2, np.int32), np.array([0, 2])
    schedule = Schedule(closed, numbers, numbers, offsets)
    kinds[:] = Kind.W
    assert schedule.orders() == [["0F0", "0B0"]]


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, through_a_pickle])
def test_a_copy_is_equal_and_carries_no_views(copied):
    for schedule in (ppsim.build("bpipe", devices=4, microbatches=8), ppsim.lower(Schedule.from_orders(FUSED))):
        assert schedule.source.shape == schedule.kind.shape
        again = copied(schedule)
        assert (type(again), again.name, again.orders()) == (type(schedule), schedule.name, schedule.orders())
        assert again == schedule
        assert not set(VIEWS) & set(vars(again))
        assert ppsim.simulate(again).makespan == ppsim.simulate(schedule).makespan


@given(schedules())
def test_the_validator_finds_the_same_sources_as_the_columns_themselves(schedule):
    unseen = Schedule.from_orders(schedule.orders()).source.tolist()
    schedule.validate()
    assert schedule.source.tolist() == unseen


def test_every_cell_that_is_no_action_is_named_in_one_error():
    with pytest.raises(ScheduleError) as caught:
        Schedule.from_orders([["0F0", "0G0"], [7, "1B"]])
    assert caught.value.faults == [
        "row 1, column 2: '0G0' is not an action; write one such as 2F0, 3I1, 1SEND_F4, 0UNSHARD or "
        "(3F1;2B0)OVERLAP_F_B",
        "row 2, column 1: '7' is not an action; write one such as 2F0, 3I1, 1SEND_F4, 0UNSHARD or (3F1;2B0)OVERLAP_F_B",
        "row 2, column 2: '1B': the microbatch is missing; write one after the kind, such as '1B0'",
    ]
    assert str(caught.value).startswith("3 cell(s) are not actions:\n  - row 1, column 2: '0G0'")


def test_a_message_shows_the_first_20_faults_and_the_error_holds_all():
    with pytest.raises(ScheduleError) as caught:
        Schedule.from_orders([["x"] * 30])
    assert str(caught.value).endswith("  - and 10 more")
    assert len(caught.value.faults) == 30


@pytest.mark.parametrize("orders", ["0F0", b"0F0", None, 5, object()])
def test_orders_that_are_no_lists_are_refused(orders):
    with pytest.raises(ScheduleError, match="orders must be one list of actions per device"):
        Schedule.from_orders(orders)


def test_a_device_that_is_no_list_is_named():
    with pytest.raises(ScheduleError, match="row 2: expected a list of actions, got '1F0'"):
        Schedule.from_orders([["0F0"], "1F0"])


@pytest.mark.parametrize("slices", [0, -1, 1.0, "1", None, True, 2**31, 10**30])
def test_slices_are_a_whole_number_of_at_least_1(slices):
    with pytest.raises(
        ScheduleError, match=r"must be a whole number of at least 1$|is too large; use at most 2147483647"
    ):
        Schedule.from_orders([["0F0", "0B0"]], slices=slices)


def test_cells_whose_text_cannot_be_made_are_no_actions():
    class Broken:
        def __str__(self):
            raise RuntimeError

        __repr__ = __str__

    with pytest.raises(ScheduleError, match=r"2 cell\(s\) are not actions"):
        Schedule.from_orders([[Broken(), 10**5000]])


@given(st.one_of(things, st.lists(st.one_of(things, st.lists(st.one_of(cells, things), max_size=5)), max_size=4)))
def test_only_ppsim_errors_leave_from_orders_and_validate(orders):
    with suppress(ppsim.PpsimError):
        schedule = Schedule.from_orders(orders)
        schedule.orders()
        schedule.validate()


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved-1f1b", "zb-h1"])
def test_a_generator_makes_a_million_actions_without_python_work_for_each(name):
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += 1

    family = ppsim.schedules()[name]
    family.build(8, 65_536)  # what checks it is loaded and compiled once
    sys.setprofile(count)
    try:
        schedule = family.build(8, 65_536)
    finally:
        sys.setprofile(None)
    assert len(schedule) >= 1_000_000
    assert calls < 10_000


def test_columns_of_a_schedule_take_ten_bytes_an_action():
    schedule = ppsim.build("1f1b", devices=4, microbatches=1000)
    columns = (schedule.kind, schedule.stage, schedule.microbatch, schedule.joined)
    assert sum(column.itemsize for column in columns) == 10
    assert all(len(column) == len(schedule) for column in columns)


def test_the_columns_of_a_schedule_are_those_of_its_blocks():
    blocks = [Block(Kind.F, 0, range(5)), Block(Kind.B, 0, range(5)), Block(Kind.F, 1, range(7))]
    schedule = ScheduleColumns.from_blocks(iter(blocks))
    assert schedule.kind.tolist() == [0] * 5 + [1] * 5 + [0] * 7
    assert schedule.microbatch.tolist() == [*range(5), *range(5), *range(7)]
    assert schedule.offsets.tolist() == [0, 5, 10, 17]
    assert (schedule.kind.dtype, schedule.stage.dtype, schedule.joined.dtype) == (np.int8, np.int32, bool)


def test_a_block_holds_large_and_negative_numbers():
    block = concatenate(
        fuse(Block(Kind.F, 7, range(9)), Block(Kind.W, 0, range(9))), Block(Kind.S, 2**20, [-1, 2**29 - 1])
    )
    assert block.joined.tolist() == [False, True] * 9 + [False] * 2
    assert block.stage[-2:].tolist() == [2**20] * 2
    assert block.microbatch[-2:].tolist() == [-1, 2**29 - 1]


@pytest.mark.parametrize(("engine", "transport"), [("compiled", "rank"), ("event", "async"), ("event", "rank")])
def test_a_schedule_and_its_run_are_freed_when_nobody_holds_them_any_more(engine, transport):
    gc.collect()
    gc.disable()
    try:
        schedule = ppsim.build("interleaved-1f1b", devices=2, microbatches=4)
        run = ppsim.simulate(schedule, transport=transport, engine=engine)
        assert run.bubble_fraction > 0
        held = [weakref.ref(thing) for thing in (schedule, run, run.plan, run.row_end)]
        del schedule, run
        assert [thing() for thing in held] == [None] * 4
    finally:
        gc.enable()


def test_a_schedule_knows_one_version_of_the_weights_a_device_and_the_microbatches_of_a_step():
    schedule = ppsim.build("seq1f1b", devices=3, microbatches=4, slices=2)
    assert schedule.weight_versions.tolist() == [1, 1, 1]
    assert (schedule.microbatches, schedule.microbatches_of_a_step) == (8, 4)
