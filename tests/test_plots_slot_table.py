"""The table of time slots and devices: each action once, idle slots kept."""

import re

import pytest
from hypothesis import given
from strategies import damaged_orders

import ppsim


def rows_of(table):
    return [line.split() for line in table.splitlines()[3:]]


def test_1f1b_of_four_devices_takes_fourteen_slots_and_shows_each_action_once():
    table = (ppsim.build("1f1b", devices=4, microbatches=4)).to_text()
    assert rows_of(table) == [
        ["0", "0F0", ".", ".", "."],
        ["1", "0F1", "1F0", ".", "."],
        ["2", "0F2", "1F1", "2F0", "."],
        ["3", "0F3", "1F2", "2F1", "3F0"],
        ["4", ".", ".", ".", "3B0"],
        ["5", ".", ".", "2B0", "3F1"],
        ["6", ".", "1B0", "2F2", "3B1"],
        ["7", "0B0", "1F3", "2B1", "3F2"],
        ["8", ".", "1B1", "2F3", "3B2"],
        ["9", "0B1", ".", "2B2", "3F3"],
        ["10", ".", "1B2", ".", "3B3"],
        ["11", "0B2", ".", "2B3", "."],
        ["12", ".", "1B3", ".", "."],
        ["13", "0B3", ".", ".", "."],
    ]


def test_idle_slots_of_a_schedule_keep_their_places():
    schedule = ppsim.Schedule.from_orders([["0F0", "", "", "0B0"], ["", "1F0", "1B0"]])
    assert rows_of(schedule.to_text()) == [
        ["0", "0F0", "."],
        ["1", ".", "1F0"],
        ["2", ".", "1B0"],
        ["3", "0B0", "."],
    ]


def test_a_fused_slot_stands_in_one_cell():
    schedule = ppsim.Schedule.from_orders([["0F0", "0F1", "0B0", "0B1"], ["1F0", "(1F1;1B0)OVERLAP_F_B", "1B1"]])
    assert ["2", ".", "(1F1;1B0)"] in rows_of(schedule.to_text())


def test_slices_take_one_slot_each():
    table = (ppsim.build("seq1f1b", devices=2, microbatches=2, slices=2)).to_text()
    assert rows_of(table)[:3] == [["0", "0F0", "."], ["1", "0F1", "1F0"], ["2", "0F2", "1F1"]]


def test_programs_and_schedules_that_cannot_run_are_shown_as_they_stand():
    program = ppsim.lower(ppsim.build("1f1b", devices=2, microbatches=1))
    assert rows_of(program.to_text())[1] == ["1", "0SEND_F0", "1F0"]
    stuck = ppsim.Schedule.from_orders([["0B0", "0F0"]])
    assert rows_of(stuck.to_text()) == [["0", "0B0"], ["1", "0F0"]]


@pytest.mark.parametrize("name", sorted(ppsim.schedules()))
def test_each_action_of_every_family_stands_in_the_table_once(name):
    schedule = ppsim.build(name, devices=4, microbatches=8)
    shown = re.findall(r"[0-9]+[FBIW][0-9]+", "".join(schedule.to_text().splitlines(True)[3:]))
    wanted = re.findall(r"[0-9]+[FBIW][0-9]+", str(schedule.orders()))
    assert sorted(shown) == sorted(wanted)


@given(damaged_orders())
def test_whatever_can_be_read_can_be_shown(orders):
    try:
        schedule = ppsim.Schedule.from_orders(orders)
    except ppsim.PpsimError:
        return
    page = schedule._repr_html_()
    table = schedule.to_text()
    for order in schedule.orders():
        for action in order:
            cell = action.removesuffix("OVERLAP_F_B")
            assert cell in table
            assert cell in page


def test_a_huge_schedule_is_cut_and_says_what_is_left_out():
    page = ppsim.build("1f1b", devices=64, microbatches=1024)._repr_html_()
    assert "not shown: devices 32 to 63 and slots 100 to 2,047 of 131,072 actions" in page
    assert len(page) < 250_000


def test_the_key_names_what_the_cells_show():
    page = ppsim.build("interleaved-1f1b", devices=2, microbatches=4).to_html("light")
    assert re.findall(r"</span> (.+?)(?: \u2002|<br>)", page) == ["F forward", "B backward", "idle"]
    assert "line below: later stage" in page
    full = ppsim.Schedule.from_orders([["0F0", "0B0"]]).to_html("light")
    assert "idle" not in full.partition("</table>")[2].partition("each action")[0]
    assert "line below" not in full


def test_names_cannot_put_markup_into_a_notebook():
    schedule = ppsim.Schedule.from_orders([["0F0", "0B0"]], name="<script>alert(1)</script>")
    assert "<script" not in schedule._repr_html_()
    assert "<script>alert" not in ppsim.simulate(schedule)._repr_html_()
