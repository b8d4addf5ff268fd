"""Gantt charts in text: whole small charts, and that nothing overlaps or is lost in any of them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from timelines import stepped

import ppsim
from ppsim.plots.text import gantt_text


def chart(name="1f1b", devices=4, microbatches=8, costs=None, width=100, options=None, **drawing):
    schedule = ppsim.build(name, devices=devices, microbatches=microbatches, **(options or {}))
    return gantt_text(ppsim.simulate(schedule, costs), width, **drawing)


def rows_of(text):
    return [line.split(maxsplit=2)[2] for line in text.splitlines() if line.startswith("device ")]


def test_1f1b_of_two_devices_looks_like_this():
    assert chart(devices=2, microbatches=3, width=60) == (
        "1f1b, 2 devices, 3 microbatches: makespan 12 s, bubble fraction 25.0 %\n"
        "device 0 │F0 │F1 ········│B0     │F2 │B1     ····│B2     \n"
        "device 1 ····│F0 │B0     │F1 │B1     │F2 │B2     ········\n"
        "         └───────────────────┬───────────────────┬────────\n"
        "         0                   5                   10  time (s)\n"
        "F forward; B full backward; · idle\n"
        "numbers: microbatch after the kind, where they fit\n"
    )


def test_what_runs_beside_the_actions_stands_where_the_device_is_idle():
    assert gantt_text(stepped(), 60) == (
        "gpipe, 2 devices, 1 microbatch: makespan 7.2 s, bubble fraction 58.3 %\n"
        "device 0 uu│F0   ··················│B0         rrr│O\n"
        "device 1 uu······│F0   │B0         rrr············│O\n"
        "         └─────────────────────────────┬─────────────\n"
        "         0                             5  time (s)\n"
        "F forward; B full backward; · idle\n"
        "where no action runs: u weight gather (UNSHARD); r gradient reduction (REDUCE_GRAD); O optimizer step\n"
        "numbers: microbatch after the kind, where they fit\n"
    )


def test_long_steps_show_in_a_chart_of_letters():
    costs = ppsim.Costs(reduce_grad=200, optimizer_step=100)
    timeline = ppsim.simulate(ppsim.build("1f1b", devices=2, microbatches=400), costs, optimizer="sync")
    for row in rows_of(gantt_text(timeline, 60)):
        assert re.search("r+·*O+$", row)


def test_one_device_and_one_microbatch():
    assert chart(devices=1, microbatches=1, width=40).splitlines()[1] == "device 0 │F0   │B0         "


def test_actions_of_one_column_keep_their_letter_and_no_edge():
    text = chart("interleaved-1f1b", devices=2, microbatches=4, width=40, options={"stages_per_device": 2})
    assert rows_of(text) == ["FFFFF·B0FB1FB0FB1·B2·B3B2B3", "·FFFB0FB1FB0FB1FB2FB3B2B3··"]


def test_a_timed_slot_names_both_microbatches():
    schedule = ppsim.Schedule.from_orders([["0F0", "0F1", "0B0", "0B1"], ["1F0", "(1F1;1B0)OVERLAP_F_B", "1B1"]])
    assert "│X1/0 " in gantt_text(ppsim.simulate(schedule, ppsim.Costs(overlap=2.5)), 80)
    assert "│F1   │B0         │" in gantt_text(ppsim.simulate(schedule), 80)


def test_latency_shows_as_idle_columns():
    text = chart(devices=2, microbatches=1, costs=ppsim.Costs(forward=1, backward=1, latency=0.5), width=60)
    assert rows_of(text) == [
        "│F0   " + "·" * 18 + "│B0   ",
        "·" * 9 + "│F0   │B0   " + "·" * 9,
    ]


@given(
    name=st.sampled_from(["1f1b", "gpipe", "zb-h1", "interleaved-1f1b", "zb-v", "v-min"]),
    devices=st.integers(1, 12),
    groups=st.integers(1, 3),
    width=st.integers(40, 200),
    forward=st.floats(0.1, 3),
    backward=st.floats(0.1, 3),
    latency=st.floats(0, 1),
)
def test_rows_are_as_wide_as_each_other_and_within_the_width(name, devices, groups, width, forward, backward, latency):
    costs = ppsim.Costs(forward=forward, backward=backward, latency=latency)
    text = chart(name, devices, devices * groups, costs, width)
    lines = [line for line in text.splitlines() if line.startswith("device ")]
    assert len(lines) == devices
    assert len({len(line) for line in lines}) == 1
    assert len(lines[0]) <= width


@given(devices=st.integers(1, 6), microbatches=st.integers(1, 8), width=st.integers(120, 240))
def test_every_action_appears_once_where_boxes_fit(devices, microbatches, width):
    text = chart(devices=devices, microbatches=microbatches, width=width)
    if "letters stand in proportion" in text:
        return
    for row in rows_of(text):
        assert len(re.findall("F", row)) == len(re.findall("B", row)) == microbatches


def test_a_crowded_chart_keeps_the_proportions_of_the_kinds_and_says_so():
    text = chart(devices=8, microbatches=256, width=110)
    assert "letters stand in proportion to the time in each kind" in text
    letters = "".join(row[20:80] for row in rows_of(text))
    assert letters.count("F") / letters.count("B") == pytest.approx(0.5, abs=0.05)


def test_zero_length_actions_are_counted_in_a_note():
    text = chart(devices=2, microbatches=3, costs=ppsim.Costs(forward=0, backward=1), width=60)
    assert "not shown: 6 action(s) of zero length" in text
    assert "F0" not in "".join(rows_of(text))
    assert "makespan 0 s" in chart(costs=ppsim.Costs(forward=0, backward=0))


def test_ascii_charts_hold_no_other_characters():
    text = chart(costs=ppsim.Costs(forward=1e-5, backward=2e-5), unicode=False)
    assert text.isascii()
    assert "time (us)" in text


def test_colour_adds_escapes_and_changes_nothing_else():
    plain, coloured = chart(), chart(color=True)
    assert "\x1b[48;2;" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


@pytest.mark.parametrize("width", [39, 0, -5])
def test_a_width_too_small_for_a_chart_is_refused(width):
    with pytest.raises(ppsim.ConfigError, match="at least 40"):
        chart(width=width)


@pytest.mark.parametrize("width", [True, 80.5, "80"])
def test_a_width_that_is_no_count_is_refused(width):
    with pytest.raises(ppsim.ConfigError, match="whole number"):
        chart(width=width)


def test_the_timeline_draws_itself():
    timeline = ppsim.simulate(ppsim.build("1f1b", devices=2, microbatches=2))
    assert timeline.to_text(width=60) == gantt_text(timeline, 60)
