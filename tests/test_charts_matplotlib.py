"""Charts by matplotlib: what is drawn, where, and the files."""

import base64
import functools
import io
import re
import sys
import xml.etree.ElementTree as ElementTree
import zlib
from itertools import combinations, pairwise
from typing import Any, cast

import numpy as np
import pytest
from charts import (
    COLOURS,
    DARK,
    GREY,
    LIGHT,
    ON_DARK,
    THEMES,
    PixelColumns,
    areas,
    costs_text,
    draw,
    draw_bars,
    draw_front,
    draw_lines,
    make_boxes,
    picture,
)  # fmt: skip
from colour_distances import lighter
from command_line import ROOT
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.image import imread
from matplotlib.text import Annotation, Text
from pages import unpacked
from timelines import stepped

import ppsim
from ppsim.actions import Kind


def run(name="1f1b", devices=4, microbatches=8, costs=None, **options):
    return ppsim.simulate(ppsim.build(name, devices=devices, microbatches=microbatches, **options), costs)


def compared(timelines, **options):
    return ppsim.compare(timelines).plot(**options)


def rows_of(figure):
    """The artists that draw the rows of a figure."""
    return [part for axes in figure.axes for part in axes.get_children() if type(part).__name__ == "ChartRows"]


def numbers_of(figure, block=0):
    return [text.get_text() for text in rows_of(figure)[block].numbers()]


def words_of(figure):
    """All texts that stand in a figure outside its axes, notes one by one."""
    texts = [*figure.texts, *(part for part in figure.artists if isinstance(part, Text))]
    return [part for text in texts for part in (text.get_text(), *text.get_text().split(" · "))]


def lines_of_axes(axes):
    return [part for part in axes.collections if isinstance(part, LineCollection)]


def path_of(axes):
    """Points of the critical path, (points, 2), and the width of each line between two of them in points."""
    halo, path = (lines for lines in axes.collections if lines.get_gid() == "critical path")
    ends = np.array(path.get_segments())
    assert np.array_equal(ends[:-1, 1], ends[1:, 0])
    assert np.all(np.array(halo.get_linewidth()) >= path.get_linewidth())
    return np.concatenate([ends[:1, 0], ends[:, 1]]), np.array(path.get_linewidth())


def test_one_timeline_has_its_step_its_distance_to_the_bound_and_its_idle_part():
    words = words_of(run("zb-v", costs=ppsim.Costs(forward=1, input_grad=1, weight_grad=1, latency=0.1)).plot())
    assert {"step", "vs bound", "idle", "26.8 s", "+1.5 %", "10.4 %"} <= set(words)
    assert "at bound" in words_of(run().plot())
    assert {"at bound", "27.3 % idle", "peak 4 act."} <= set(words_of(run().plot(width=3.3)))  # no line of headings
    many = compared([run("gpipe", 2, 1500), run("1f1b", 2, 1500)], memory=True)
    assert "1,500" in words_of(many)
    ticks = [[label.get_text() for label in axes.get_yticklabels()] for axes in many.axes[1:4:2]]
    assert ticks == [["0", "1,500 act."]] * 2  # of one scale, so that a low peak does not meet 0


def test_the_title_is_followed_by_the_costs():
    costs = ppsim.Costs(forward=1, input_grad=1, weight_grad=1, latency=0.1)
    assert "F, I, W 1 s · transfer 0.1 s · numbers are microbatches" in words_of(run("zb-h1", costs=costs).plot())
    assert {"F 1 s", "B 2 s", "=", "=: less than 1 % apart"} <= {*words_of(compared([run(), run("gpipe")]))}


def test_names_of_areas_are_on_one_row_where_rows_have_gaps():
    model = ppsim.load_config(ROOT / "configs" / "llama-3-70b-64xh100.yaml")
    for options in ({"memory": True}, {"width": 3.3}):
        names = rows_of(model.simulate().plot(**options))[0].numbers()
        assert {"F + B", "B"} <= {name.get_text() for name in names}
        assert len({name.get_position()[1] for name in names}) == 1


@pytest.mark.parametrize("width", [3.3, 5, 7])
def test_words_and_rows_have_one_left_edge_and_a_legend_parts_no_group(width):
    schedule = {"name": "1f1b", "devices": 8, "microbatches": 16}
    found = ppsim.compare({"schedule": schedule, "memory_limit": 6}, ["1f1b", "zb-v", "dualpipe"])
    figure = found.plot(memory=True, width=width)
    left, legend = figure.axes[0].get_position().x0, [text for text in figure.texts if text.get_gid() == "legend"]
    outside = [text for text in figure.texts if text not in legend and text.get_ha() == "left"]
    words = [text for text in outside if not text.get_text().startswith("per device")]  # beside the title
    assert {text.get_text() for text in words} >= {"8 devices, 16 microbatches", "1f1b", "zb-v", "dualpipe"}
    swatches = [part.get_window_extent().x0 for part in figure.artists if type(part).__name__ == "Rectangle"]
    for x in (*(text.get_position()[0] for text in words), min(swatches) / figure.bbox.width):
        assert x == pytest.approx(left)
    lines = {text.get_text().split(",")[0].split(" of ")[0]: text.get_position()[1] for text in legend}
    for group in ({"activations", "limit 6 activations", "over the limit"}, {"2nd stage", "enters at the other end"}):
        assert len({lines[name] for name in group & {*lines}}) == 1


def test_areas_of_narrow_actions_have_the_names_of_their_kinds():
    costs = ppsim.Costs(forward=1, input_grad=1, weight_grad=1)
    for theme in ("light", "grey"):
        figure = run("zb-h1", 64, 256, costs).plot(theme=theme)
        assert "narrow actions mix their colours" not in words_of(figure)  # they have names
        assert sorted(numbers_of(figure)) == ["F", "F + I", "F + I + W", "I + W", "W"]
    for microbatches in (128, 256):  # actions without gaps in rows that touch
        assert {"F", "F + B", "B + idle"} == {*numbers_of(run("1f1b", 64, microbatches).plot())}
    delayed = ppsim.Costs(forward=1, input_grad=1, weight_grad=1, latency=0.1)
    column = run("zb-v", 64, 256, delayed).plot(width=3.3)  # low for some of them
    assert {"I +\nidle", "I +\nW +\nidle", "F + I + W", "W"} <= set(numbers_of(column))
    split = run("interleaved-1f1b", 16, 64, delayed, stages_per_device=4).plot(width=3.3)
    assert sorted(numbers_of(split)) == ["F", "F + B"]  # once, and in one line where rows have gaps
    alike = compared([run("1f1b", 16, 32), *(run(name, 16, 32, costs) for name in ("zb-h1", "zb-v"))], width=3.3)
    assert "F + B" in numbers_of(alike)  # the actions of this chart are wider
    column = compared([run(name, 8, 32, delayed) for name in ("1f1b", "zb-h1", "zb-v")], width=3.3)
    legend = {text.get_text() for text in column.texts if text.get_gid() == "legend"}
    assert {"I + idle", "I + W + idle"} <= legend  # they have no space in the rows
    assert not {"F + I + W", "narrow actions mix their colours"} & legend
    bare = run("zb-h1", 64, 256, costs).plot(labels=False)
    assert {"F + I", "F + I + W", "I + W"} <= {*words_of(bare)}
    few = run("zb-h1", costs=costs).plot()
    assert set(numbers_of(few)) == {*map(str, range(8))}


def test_actions_that_no_stage_repeats_are_mixed_over_their_own_length():
    boxes = make_boxes(run("1f1b", 64, 1))
    assert boxes.period == boxes.median
    assert areas(boxes) == []


def test_actions_of_no_length_are_drawn_beside_optimizer_steps():
    costs = ppsim.Costs(forward=1.0, input_grad=1.0, weight_grad=0.0, optimizer_step=1.0)
    schedule = ppsim.build("zb-h1", devices=2, microbatches=4)
    assert ppsim.simulate(schedule, costs, optimizer="sync").plot().savefig(io.BytesIO()) is None


@pytest.mark.parametrize("name", ["1f1b", "zb-v", "dualpipe"])
def test_an_area_without_idle_time_in_its_name_has_the_tone_of_its_kinds(name):
    costs = ppsim.Costs(forward=1, input_grad=1, weight_grad=1, latency=0.1)
    for area in areas(make_boxes(run(name, 64, 256, costs))):
        busy = {kind: part / (1 - area.parts[None]) for kind, part in area.parts.items() if kind is not None}
        for theme in (LIGHT, DARK, GREY):
            tone, alone = (one.colour(theme) for one in (area, area._replace(parts=busy)))
            assert "idle" in area.words or lighter(tone, alone) < 5


def test_an_area_has_the_mean_colour_of_its_parts():
    boxes = make_boxes(run("zb-h1", 64, 128, ppsim.Costs(forward=1, input_grad=1, weight_grad=1)))
    found = {area.words: area for area in areas(boxes)}
    assert found["F + I + W"].parts == pytest.approx({Kind.F: 1 / 3, Kind.I: 1 / 3, Kind.W: 1 / 3, None: 0}, abs=0.01)
    assert found["W"].colour(GREY) == GREY.kinds[Kind.W]
    for area in (found[name] for name in ("F", "F + I", "F + I + W", "I + W", "W")):  # means around its middle have it
        middle = (area.first + area.last) / 2
        columns = PixelColumns(middle - 4, middle + 4, 1)
        seen = picture(boxes, GREY, columns, 64)[int((area.top + area.bottom) / 2), 0]
        assert np.abs(seen.astype(int) - [*bytes.fromhex(area.colour(GREY)[1:])]).max() <= 4


def test_costs_of_schedules_with_different_stages_are_those_of_a_device_and_medians_where_they_differ():
    costs = ppsim.Costs(forward=1, input_grad=1, weight_grad=1)
    every = [make_boxes(run(name, costs=costs)) for name in ("zb-h1", "zb-v")]
    assert [costs_text([one]) for one in every] == ["F, I, W 1 s", "per stage: F, I, W 0.5 s"]
    assert costs_text(every) == "per device: F, I, W 1 s"
    head = ppsim.Costs(forward=[0.01, 1, 1, 2], backward=[0.01, 2, 2, 4])  # an empty stage, and the head
    assert costs_text([make_boxes(run(costs=head))]) == "F 1–2 s · B 2–4 s"
    assert costs_text([make_boxes(run(costs=ppsim.Costs(forward=[1, 1, 1, 3])))]) == "F 1–3 s · B 2 s"
    jitter = ppsim.Jitter(actions=0.1, slow_devices={1: 1.3})
    noisy = ppsim.simulate(ppsim.build("1f1b", devices=4, microbatches=8), jitter=jitter)
    assert costs_text([make_boxes(noisy)]) == "F 1 s · B 2 s · device 1 takes 1.3 x as long · jitter of actions 10 %"


def test_slow_devices_of_a_measured_step_have_bold_numbers_and_the_legend_says_so():
    figure = draw([run(costs=ppsim.Costs(forward=[1, 3, 1, 1])), run()], slow=[1], lead="1F2 takes 3 s")
    assert {"bold number: slowest device", "1F2 takes 3 s"} <= set(words_of(figure))
    weights = [label.get_fontweight() for label in figure.axes[0].get_yticklabels()]
    assert weights == ["normal", "bold", "normal", "normal"]


def test_a_fused_slot_shows_both_parts_with_their_numbers():
    schedule = ppsim.Schedule.from_orders([["0F0", "0F1", "(0F2;0B0)OVERLAP_F_B", "0B1", "0B2"]])
    rows = rows_of(ppsim.simulate(schedule, ppsim.Costs(overlap=2.0)).plot(width=7))[0]
    texts, place = rows.numbers(), rows.place()
    assert sorted(text.get_text() for text in texts) == ["0", "0", "1", "1", "2", "2"]
    slot = [text for text in texts if 2 < (text.get_position()[0] - place.left) / place.second < 4]
    assert [text.get_text() for text in sorted(slot, key=lambda text: -text.get_position()[1])] == ["2", "0"]
    halves = ppsim.simulate(ppsim.build("dualpipe", devices=4, microbatches=8), ppsim.Costs(overlap=2.6))
    numbers = rows_of(halves.plot())[0].numbers()
    assert len(numbers) == len(halves.schedule.kind)
    assert {text.get_fontsize() for text in numbers} == {4.5}  # of halves, and so of whole rows


def test_each_chart_of_a_picture_has_the_numbers_that_fit():
    costs = ppsim.Costs(forward=1, input_grad=1, weight_grad=1, latency=0.2)
    runs = [run(name, 12, 24, costs) for name in ("1f1b", "zb-h1")]  # W has no space
    for theme in ("light", "grey"):
        first, second = ({*numbers_of(compared(runs, theme=theme), at)} for at in (0, 1))
        assert {*map(str, range(24))} == first != second
    assert all("numbers are microbatches" in words_of(figure) for figure in (run().plot(), compared(runs)))
    assert "numbers are microbatches" not in words_of(run().plot(labels=False))


def test_devices_go_from_top_to_bottom_and_time_has_a_unit():
    figure = run(costs=ppsim.Costs(forward=1e-4, backward=2e-4)).plot()
    assert figure.axes[0].get_ylim() == (3.5, -0.5)
    assert figure.axes[-1].get_xticklabels()[-1].get_text() == "3.0 ms"
    assert "1f1b, 4 devices, 8 microbatches" in words_of(figure)
    assert run().plot(width=3.3).axes[-1].get_xticklabels()[-1].get_text() == "30 s"
    ticks = run("1f1b", 4, 4, ppsim.Costs(forward=0.1, backward=0.2)).plot().axes[-1].get_xticklabels()
    assert [label.get_text() for label in ticks] == ["0", "0.5", "1.0", "1.5", "2.0 s"]


def test_microbatches_are_numbered_where_they_fit():
    assert sorted(map(int, numbers_of(run().plot()))) == sorted([*range(8)] * 8)
    figure = run().plot(labels=False)
    assert rows_of(figure)[0].labels is False
    assert not {*"0123456789"} & {*numbers_of(run(devices=64, microbatches=128).plot())}


def test_equal_boxes_have_numbers_alike():
    # boxes of a kind that do not hold numbers of two digits have none: forwards of 24, and all of 48
    for microbatches, numbered in ((16, 2 * 16), (24, 24), (48, 0)):
        texts = rows_of(run("1f1b", 4, microbatches).plot())[0].numbers()
        assert len(texts) == 4 * numbered
        assert len({text.get_fontsize() for text in texts}) == (numbered > 0)


def test_boxes_that_are_nearly_as_wide_as_the_usual_box_of_their_device_have_numbers_as_that():
    noisy = ppsim.simulate(ppsim.build("1f1b", devices=4, microbatches=8), jitter=ppsim.Jitter(actions=0.05), seed=1)
    least = 9.0 * 0.56 + 2.5  # pixels that one digit needs
    for boxes in (make_boxes(run()), make_boxes(noisy)):
        usual = boxes.usual[Kind.F, False]
        for device, second in ((d, part * least / usual[d]) for d in range(4) for part in (0.98, 1.02)):
            sizes, *_ = boxes.numbers(second, 20.0).get((Kind.F, False), (np.zeros(len(boxes.row)),))
            mine = (boxes.kind == Kind.F) & (boxes.device == device)
            assert len(set((sizes[mine] > 0).tolist())) == 1


def test_boxes_have_numbers_without_regard_to_other_kinds_and_devices():
    narrow = ppsim.Costs(forward=0.2, backward=2)
    assert sorted(map(int, numbers_of(run("1f1b", 4, 16, costs=narrow).plot()))) == sorted([*range(16)] * 4)
    most = ppsim.Costs(forward=1, backward=[2, 2, 2, 2, 0.2], per="stage")
    assert len(numbers_of(run("1f1b", 5, 8, costs=most).plot())) == 5 * 8 + 4 * 8
    head = ppsim.Costs(forward=1, input_grad=[1, 1, 1, 0.05], weight_grad=1, per="stage")
    assert len(numbers_of(run("zb-v", 2, 4, costs=head).plot())) == 3 * 4 * 4 - 4  # of I too


def test_numbers_of_the_grey_theme_name_their_kinds():
    assert {"F0", "B0"} <= set(numbers_of(run().plot(theme="grey")))
    assert {"F0", "I0", "W11"} <= {*numbers_of(run("zb-h1", 8, 12).plot(theme="grey"))}
    for name, devices, microbatches in (("1f1b", 8, 32), ("zb-h1", 8, 32)):
        narrow = run(name, devices, microbatches)  # without space for letters: the numbers that other themes have
        assert numbers_of(narrow.plot(theme="grey")) == numbers_of(narrow.plot())
    assert not numbers_of(run().plot(theme="grey", width=3.3))
    every = compared([run(name, 4, 8) for name in ("1f1b", "zb-h1", "zb-v")], theme="grey", width=7)
    assert {text.get_text().isdigit() for rows in rows_of(every) for text in rows.numbers()} == {
        True
    }  # zb-v has no space
    (family,) = {str(text.get_fontfamily()) for text in rows_of(run("zb-h1", 4, 8).plot(theme="grey"))[0].numbers()}
    assert "Serif" not in family


def test_numbers_lie_upright_inside_their_boxes():
    timeline = run("interleaved-1f1b", 4, 16, stages_per_device=2)
    figure = timeline.plot(width=15)
    rows = rows_of(figure)[0]
    place, texts = rows.place(), rows.numbers()
    assert texts
    for text in texts:
        assert text.get_rotation() == 0
        second = (text.get_position()[0] - place.left) / place.second
        box = np.flatnonzero((timeline.start <= second) & (timeline.end >= second))
        wide = (timeline.end - timeline.start)[box].min() * place.second
        assert text.get_window_extent().width <= wide


def test_time_is_linear_for_any_number_of_actions():
    for axes in run(devices=16, microbatches=1024).plot().axes:
        assert axes.get_xscale() == "linear"


def test_a_timeline_more_than_three_times_as_long_as_the_others_is_cut_with_its_end():
    figure = compared([run("1f1b"), run("gpipe"), run("naive", microbatches=16)])
    assert [axes.get_xlim()[1] for axes in figure.axes] == pytest.approx([33 * 1.05] * 4)
    assert {text.get_text() for text in figure.axes[2].texts} == {"→"}
    assert compared([run("1f1b"), run("naive")]).axes[0].get_xlim()[1] == 96


def test_two_outliers_do_not_set_the_scale():
    figure = draw([run(microbatches=m) for m in (4, 5, 6, 64, 80)])
    assert figure.axes[0].get_xlim()[1] == pytest.approx(27 * 1.05)
    gradual = draw([run(microbatches=m) for m in (4, 8, 16, 32, 64)])
    assert gradual.axes[0].get_xlim()[1] == run(microbatches=64).makespan


def test_a_long_name_of_the_base_heads_its_column():
    figure = draw([run("interleaved-1f1b", stages_per_device=2), run()])
    assert "vs interleaved-1f1b" in words_of(figure)


def test_a_comparison_names_its_base_and_says_how_far_each_is_from_it():
    costs = ppsim.Costs(forward=1, input_grad=1, weight_grad=1)
    words = words_of(compared([run("1f1b", costs=costs), run("zb-h1", costs=costs)]))
    assert {"4 devices, 8 microbatches", "1f1b", "zb-h1", "vs 1f1b", "base", "−18.2 %"} <= set(words)


def test_three_iterations_are_compared_by_the_step_and_not_by_the_makespan():
    every = [run("1f1b", microbatches=8), run("pipedream", microbatches=8)]
    assert [one.iteration_time for one in every] == [33, 24]
    assert every[1].makespan > 33
    assert {"33.0 s", "24.0 s", "−27.3 %"} <= set(words_of(compared(every, titles=["1f1b", "pipedream"])))


def test_pairs_are_compared_each_with_its_own_first():
    four = [run("1f1b", microbatches=count) for count in (8, 9, 16, 17)]  # 33, 36, 57 and 60 s
    words = words_of(draw(four, titles=[*"abcd"], group=2))
    assert {"vs first", "base", "+9.1 %", "+5.3 %"} <= set(words)


def test_names_of_a_front_do_not_meet_and_both_ends_have_theirs():
    points = [(1.0 + step / 1000, 2.0 - step / 1000) for step in range(100)] + [(5.0, 1.0)]
    figure = draw_front(points, [f"schedule {number}" for number in range(101)], "peak memory", "bytes")
    figure.draw_without_rendering()
    names = [text for text in figure.axes[0].texts if text.get_text()]
    boxes = [name.get_window_extent() for name in names]
    assert {"schedule 0", "schedule 100"} <= {name.get_text() for name in names}
    assert not any(one.overlaps(other) for number, one in enumerate(boxes) for other in boxes[:number])


def test_actions_of_zero_length_are_ticks():
    figures = [run(costs=ppsim.Costs(forward=f, backward=1)).plot(labels=False) for f in (0, 1e-9)]
    files = [io.BytesIO() for _ in figures]
    for figure, file in zip(figures, files, strict=True):
        figure.savefig(file, format="png")
    assert files[0].getvalue() != files[1].getvalue()


def test_short_reductions_are_equal_ticks_of_two_pixels_that_end_with_the_step():
    large, small = (ROOT / "configs" / f"llama-3-{name}.yaml" for name in ("70b-64xh100", "8b-8xh100"))
    slots = ppsim.compare(ppsim.load_config(small), ["dualpipe"]).timelines[0]
    for timeline, width in ((ppsim.load_config(large).simulate(), 3.3), (slots, 7.0)):
        figure = timeline.plot(width=width)
        rows, (lane,) = rows_of(figure)[0], [one for one in make_boxes(timeline).lanes if one.sort == "reductions"]
        finish, pixel = timeline.makespan, 1 / (rows.place().second / rows.place().pixel)
        begin, end = lane.ticks(2.0 * pixel, finish)
        assert end.max() <= finish * (1 + 1e-9)
        wide = np.maximum(lane.length, 2 * pixel)
        assert end - begin == pytest.approx(wide, rel=0.2)  # in a column half the way to the next
        assert np.ptp((end - begin)[lane.length < 1.5 * pixel]) < 1e-9
        columns = PixelColumns(0.0, finish, round(4 * finish / pixel))
        seen = picture(make_boxes(timeline), LIGHT, columns, 800, dense=4.0)
        colour = [*bytes.fromhex(LIGHT.lanes["reductions"][1:])]
        for at in ((begin + end) / 2 * 4 / pixel)[lane.device == 0].astype(int):  # of full strength
            assert colour in seen[: 800 // timeline.schedule.devices, at].tolist()
    assert rows.boxes.sorts == frozenset()  # they take less than 1 % of the step, so rows have no space for their lane


def test_transfers_run_from_sender_to_receiver():
    figure = run(devices=2, microbatches=1, costs=ppsim.Costs(latency=0.5)).plot(transfers=True)
    parts = [part for part in figure.axes[0].collections if isinstance(part, LineCollection)]
    forward, backward = (part.get_segments() for part in parts)
    assert forward[0][:, 0].tolist() == [1.0, 1.5]
    assert forward[0][0, 1] < forward[0][1, 1]
    assert backward[0][:, 0].tolist() == [4.5, 5.0]
    assert backward[0][0, 1] > backward[0][1, 1]
    _, high = figure.axes[0].get_window_extent().size / figure.dpi * 72
    dash, space = parts[1].get_linestyle()[0][1]  # points
    assert abs(forward[0][1, 1] - forward[0][0, 1]) * high / 2 >= 2 * dash + space  # two dashes between the rows


def test_the_critical_path_is_a_line_along_its_boxes():
    timeline = run()
    axes = timeline.plot(critical_path=True).axes[0]
    points, wide = path_of(axes)
    path, pixel = timeline.critical_path(), 33 / (axes.get_window_extent().width / axes.figure.dpi * 144)
    exact = np.array([time for one in path for time in (timeline.start[one], timeline.end[one])])
    assert points[:, 0] == pytest.approx(exact, abs=2 * pixel)
    assert np.rint(points[::2, 1] - 0.43).astype(int).tolist() == timeline.schedule.device[path].tolist()
    rows = points[:, 1].reshape(-1, 2)
    moved = rows[1:, 0] != rows[:-1, 1]
    into, out = points[2::2, 0][moved], points[1:-1:2, 0][moved]
    assert into == pytest.approx(out)  # it changes rows upright, beside boxes of its own, if their device is idle there
    down = (rows[1:, 0] > rows[:-1, 1])[moved]
    assert np.all(np.where(down, into < exact[2::2][moved], out > exact[1:-1:2][moved]))
    assert wide == pytest.approx(1.1)
    assert len(path_of(timeline.plot(critical_path=[0, 5]).axes[0])[0]) == 4


@pytest.mark.parametrize(
    ("costs", "memory", "tick", "peak"),
    [
        (ppsim.Costs(), True, "4 act.", "4"),
        (ppsim.Costs(activation_bytes=1e9, weight_bytes=2e9), True, "6 GB", "6.00 GB"),
        (ppsim.Costs(activation_bytes=1e9, weight_bytes=2e9), "activations", "4 act.", "6.00 GB"),
        (ppsim.Costs(activation_bytes=1e6, weight_bytes=2e6), "bytes", "6 MB", "6.00 MB"),
    ],
)  # fmt: skip
def test_memory_over_time_stands_under_the_chart_with_its_unit(costs, memory, tick, peak):
    timeline = run(costs=costs)
    figure = timeline.plot(memory=memory)
    name = "memory" if tick.endswith("B") else "activations"
    head = "peak" if peak.endswith("B") else "peak activations"
    assert {f"{name} of the fullest device (0); thin: others", head, peak} <= set(words_of(figure))
    for drawn in (figure, timeline.plot(memory=memory, width=3.3)):
        labels = [label.get_text() for label in drawn.axes[1].get_yticklabels()]
        assert (labels[0], labels[-1]) == ("0", tick)  # level words, as a rotated name is longer than a low strip
    assert figure.axes[1].get_xlim() == (0, timeline.makespan)


def lines_in(axes):
    return [part.get_segments() for part in lines_of_axes(axes)]


def test_the_memory_curve_reaches_the_peak_and_the_fullest_device_is_an_area():
    figure = run().plot(memory=True)
    axes = figure.axes[1]
    assert "activations of the fullest device (0); thin: others" in words_of(figure)
    assert sorted(curve[:, 1].max() for curves in lines_in(axes) for curve in curves) == [1, 2, 3, 4]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "2", "4 act."]
    (area,) = (part for part in axes.collections if not isinstance(part, LineCollection))
    assert area.get_alpha() == 0.12
    odd = run(devices=5, microbatches=8).plot(memory=True).axes[1]  # a half of 2.5 would have a decimal more
    assert [label.get_text() for label in odd.get_yticklabels()] == ["0", "5 act."]


@pytest.mark.parametrize("options", [{}, {"width": 3.3}])
@pytest.mark.parametrize("devices", [1, 2, 4])
def test_the_name_of_devices_touches_no_tick_and_no_tick_leaves_the_figure(devices, options):
    figure = compared([run(devices=devices)] * (2 if options else 1), memory=True, **options)
    figure.draw_without_rendering()
    (name,) = (Text.get_window_extent(text) for text in figure.texts if text.get_rotation() == 90)
    ticks = [label.get_window_extent() for axes in figure.axes for label in axes.get_yticklabels() if label.get_text()]
    assert not any(name.overlaps(tick) for tick in ticks)
    assert min(tick.x0 for tick in ticks) >= 0


def test_low_rows_have_the_memory_of_the_fullest_device_alone():
    figure = run("zb-h1", devices=64, microbatches=64).plot(memory=True)
    assert "activations of the fullest device (0)" in words_of(figure)
    assert len(lines_in(figure.axes[1])) == 1


@pytest.mark.parametrize("limit", [3, 4])
def test_a_limit_on_activations_is_drawn_and_a_peak_over_it_has_its_colour(limit):
    schedule = {"name": "1f1b", "devices": 4, "microbatches": 8}
    found = ppsim.compare({"schedule": schedule, "memory_limit": limit}, ["1f1b"])
    figure = compared([*found.timelines, *found.timelines], memory=True)
    named = {f"limit {limit} activations", *["over the limit"] * (limit == 3)}  # of the dashes, in the legend
    assert {words for words in words_of(figure) if "limit" in words} == named
    (peak, _) = (text for text in figure.texts if text.get_text() == f"4 of {limit}" + " over" * (limit == 3))
    assert (to_hex(peak.get_color()) == LIGHT.limit) == (limit == 3)


def test_a_peak_over_the_limit_of_its_own_device_has_its_colour_and_unequal_limits_no_line():
    config = {"schedule": {"name": "1f1b", "devices": 4, "microbatches": 8}, "memory_limit": [4, 2, 4, 4]}
    figure = ppsim.load_config(config).simulate().plot(memory=True)
    (peak,) = (text for text in figure.texts if "3 of 2" in text.get_text())
    assert to_hex(peak.get_color()) == LIGHT.limit
    assert not [words for words in words_of(figure) if "limit" in words]


def test_what_does_not_fit_is_bold_and_its_part_over_the_limit_has_the_colour_of_the_limit():
    config = ppsim.load_config(ROOT / "configs" / "llama-3-8b-8xh100.yaml")
    for memory, usable, weight, fit in (
        (80, 72, "normal", ""),
        (65, 58.5, "bold", " tight"),
        (50, 45, "bold", " over"),
    ):
        figure = config.changed({"hardware.device.memory": f"{memory} GB"}).simulate().plot(memory=True)
        axes = figure.axes[1]
        named = {f"usable {usable} of {memory} GB", *["more than usable"] * (weight == "bold")}
        assert {words for words in words_of(figure) if "usable" in words} == named
        assert [line.get_color() for line in axes.lines] == [LIGHT.limit]
        (peak,) = (text for text in figure.texts if text.get_text() == f"62.2 of {usable:.1f} GB{fit}")
        assert peak.get_fontweight() == weight
        (area,) = (part for part in axes.collections if not isinstance(part, LineCollection))
        assert to_hex(area.get_facecolor()[0]) == LIGHT.memory  # no fill over the limit
        lines = [part for part in axes.collections if isinstance(part, LineCollection)]
        over = [part for part in lines if to_hex(part.get_colors()[0]) == LIGHT.limit]
        assert [np.nanmin(part.get_segments()[0][:, 1]) > 45 for part in over] == [True] * (weight == "bold")


def test_a_comparison_has_one_time_axis_and_a_block_a_timeline():
    timelines = [run("gpipe"), run("zb-h1", costs=ppsim.Costs(forward=1, input_grad=1, weight_grad=1))]
    figure = compared(timelines, titles=["first", "second"], memory=True)
    assert {"first", "second", "activations of the fullest device (0); thin: others"} <= set(words_of(figure))
    assert {axes.get_xlim() for axes in figure.axes} == {(0, 33)}
    assert len(figure.axes) == 5


@pytest.mark.parametrize("theme", ["light", "dark", "grey"])
def test_a_theme_has_its_own_paper(theme):
    figure = run().plot(theme=theme)
    paper = {"dark": DARK.paper, "grey": GREY.paper}.get(theme, "#ffffff")
    assert figure.get_facecolor()[:3] == pytest.approx([int(paper[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    with pytest.raises(ppsim.ConfigError, match="use one of: light, dark, grey"):
        run().plot(theme="blue")


def test_a_chart_can_be_drawn_into_given_axes():
    axes = Figure().subplots()
    figure = run().plot(ax=axes, title="mine")
    assert axes.figure is figure
    assert axes.get_title(loc="left") == "mine"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "from 1 to 200"),
        ({"width": "wide"}, "from 1 to 200"),
        ({"labels": "all"}, "use 'auto', True or False"),
        ({"memory": "gb"}, "'activations' or 'bytes'"),
        ({"memory": "bytes"}, "activation_bytes"),
        ({"critical_path": [99999]}, "action numbers from 0 to 63"),
        ({"critical_path": "all"}, "action numbers from 0 to 63"),
        ({"critical_path": [[1], [2, 3]]}, "action numbers from 0 to 63"),
    ],
)
def test_wrong_options_are_named(options, message):
    with pytest.raises(ppsim.ConfigError, match=message):
        run().plot(**options)


def test_memory_needs_a_figure_of_its_own():
    with pytest.raises(ppsim.ConfigError, match="leave ax out"):
        run().plot(ax=Figure().subplots(), memory=True)


@pytest.mark.parametrize(
    ("timelines", "titles", "message"), [([], None, "at least one"), (1, ["a", "b"], "give one each")]
)
def test_comparisons_of_nothing_or_with_wrong_titles_are_refused(timelines, titles, message):
    with pytest.raises(ppsim.ConfigError, match=message):
        draw([run()] * timelines if timelines else [], titles=titles)


@pytest.mark.parametrize("group", [0, -2, True, "2"])
def test_a_group_holds_at_least_one(group):
    with pytest.raises(ppsim.ConfigError, match="such as 2 for pairs"):
        draw([run()], group=group)


@pytest.mark.parametrize(
    ("suffix", "magic"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF"), (".PNG", b"\x89PNG")]
)
def test_the_ending_of_the_path_says_the_format(tmp_path, suffix, magic):
    path = tmp_path / f"chart{suffix}"
    run().save(path)
    assert path.read_bytes().startswith(magic)
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("path", ["chart.jpg", "chart", None, 5])
def test_another_ending_is_refused_before_anything_is_drawn(path):
    with pytest.raises(ppsim.ConfigError, match=r"use one of: \.png, \.svg, \.pdf"):
        run().save(path)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: run().plot("a.png"), r"plot\('a.png'\): options are given by name; .*width, memory.*; save\(path\)"),
        (
            lambda: run().save("x.png", lead="a"),
            r"save\(lead=...\): there is no such option; the options are: path, width",
        ),
        (lambda: run().save("x.png", titles=["a"]), r"save\(titles=...\): there is no such option"),
        (lambda: run().plot(witdh=3), r"plot\(witdh=...\): there is no such option; the options are: ax, width"),
        (lambda: run().plot(width="wide"), "width='wide' is not a figure width; use a number of inches from 1"),
        (lambda: run().plot(ax="axes"), "ax='axes' must be matplotlib Axes"),
        (lambda: run().plot(title=3), "title=3 must be text"),
        (lambda: run().plot(transfers="yes"), "transfers='yes' must be True or False"),
        (lambda: run().plot(critical_path="all"), "critical_path must be True or a list of action numbers"),
        (lambda: run().save(), r"save\(\): missing a required argument: 'path'; the options are: path; the others"),
        (lambda: run().save("a.png", "b.png"), r"save\('b.png'\): options are given by name"),
        (lambda: run().save("a.png", dpi=0), "dpi=0 must be the pixels per inch"),
        (lambda: run().save("a.html", width=9), "width=... is for .png, .svg, .pdf; 'a.html' is a page"),
        (lambda: run().to_text(80), r"to_text\(80\): options are given by name; the options are: width, unicode"),
        (lambda: run().plot_ledger("a.png"), "options are given by name; the options are: width, title"),
        (lambda: ppsim.compare([run()]).plot("a.png"), r"plot\('a.png'\): options are given by name"),
        (lambda: ppsim.compare([run()]).plot(titles=["a", "b"]), "titles lists 2 texts for 1 timelines"),
    ],
)
def test_a_wrong_argument_is_an_error_that_names_it_and_what_is_legal(draw, message):
    with pytest.raises(ppsim.PpsimError, match=message):
        draw()


def test_a_page_and_a_comparison_are_saved_by_their_ending(tmp_path):
    run().save(tmp_path / "chart.html", transfers=True, critical_path=True, title="mine")
    page = (tmp_path / "chart.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "mine" in page
    assert '["transfers", "critical", "memory", "ledger"]' in page
    both = ppsim.compare([run().named("first"), run("gpipe")])
    both.save(tmp_path / "both.svg")
    both.save(tmp_path / "both.html", titles=["one", "other"])
    assert "gpipe" in (tmp_path / "both.svg").read_text(encoding="utf-8")
    assert unpacked((tmp_path / "both.html").read_text(encoding="utf-8"), 1)[0]["short"] == "other"


def test_a_folder_that_is_missing_is_an_error(tmp_path):
    with pytest.raises(ppsim.ConfigError, match="cannot be written"):
        run().save(tmp_path / "missing" / "chart.png")


def test_vector_charts_hold_text_as_text_and_are_the_same_each_time(tmp_path):
    for name in ("a.svg", "b.svg"):
        run().save(tmp_path / name)
    first, second = ((tmp_path / name).read_bytes() for name in ("a.svg", "b.svg"))
    assert first == second
    words = "".join(ElementTree.fromstring(first).itertext())  # noqa: S314 - our own file
    assert "B backward" in words
    assert "30 s" in words
    wide = re.findall(rb'textLength="([\d.]+)"[^>]*font-size: ([\d.]+)px[^>]*>B backward<', first)
    ((length, size),) = wide  # so that another font does not move what follows
    assert 0.4 < float(length) / (float(size) * len("B backward")) < 0.7


def test_rows_of_vector_charts_are_equally_high(tmp_path):
    run("zb-h1", 8, 16).save(tmp_path / "chart.svg", width=3.3)
    drawn = (tmp_path / "chart.svg").read_text(encoding="utf-8")
    idle = re.findall(rf"M \S+ (\S+)[^>]*L \S+ (\S+) \nz[^>]*fill: {LIGHT.idle}", drawn)[:8]
    assert idle == [(f"{top:g}", f"{top + 6.5:g}") for top in np.arange(21, 81, 7.5)]


def test_titles_carry_the_name_of_a_config_once():
    config = ppsim.load_config("configs/llama-3-8b-8xh100.yaml")
    run_, other = config.simulate(), config.simulate(ppsim.build("gpipe", devices=8, microbatches=32))
    sizes = "1f1b, 8 devices, 32 microbatches"
    assert f"{config.data['name']}: {sizes}" in words_of(run_.plot())
    assert f"{config.data['name']}: {sizes}" in words_of(run_.plot_ledger())
    words = words_of(compared([run_, other]))
    assert {f"{config.data['name']}: 8 devices, 32 microbatches", "1f1b", "gpipe"} <= set(words)


def test_names_with_dollars_are_no_formulas():
    schedule = ppsim.Schedule.from_orders([["0F0", "0B0"]], name="a$b_$")
    figure = ppsim.simulate(schedule).plot()
    figure.draw_without_rendering()
    assert any(text.startswith("a$b_$, 1 device") for text in words_of(figure))


def test_a_notebook_shows_an_svg_within_its_page_or_a_png_and_in_large_ones_the_rows_with_two_pixels_per_pixel():
    small, details = run().plot(width=3.5)._repr_mimebundle_()
    assert 'width="490"' in small["text/html"].partition("<script>")[0]  # 140 per inch
    assert "<svg" not in small["text/html"]  # which programs that do not trust a notebook take out, but for its texts
    assert "<svg" in on_page(run().plot(width=3.5))
    sharp = imread(io.BytesIO(base64.b64decode(small["image/png"])))
    assert (list(details), details["image/png"]["width"], sharp.shape[1]) == (["image/png"], 490, 980)
    large = run(devices=16, microbatches=64).plot(transfers=True).to_svg()
    pixels = imread(io.BytesIO(base64.b64decode(re.findall(r"base64,([^\"]*)", large)[0]))).shape[1]
    ends = re.findall(r'clipPath id="\w+">\s*<rect x="([0-9.]+)" y="[0-9.]+" width="([0-9.]+)"', large)[0]
    assert pixels == pytest.approx(2 * float(ends[1]) / 72 * 140, rel=0.01)
    assert len(small["text/html"]) < 60_000


def test_the_alt_text_of_a_chart_in_a_notebook_says_what_it_shows():
    sizes = "4 devices, 8 microbatches"
    for figure, alt in (
        (run().plot(), f"Gantt chart: 1f1b, {sizes}"),  # neither costs nor numbers
        (compared([run(), run("gpipe")]), f"Gantt chart of 1f1b, gpipe: {sizes}"),
        (run().plot_ledger(), f"idle time by device and cause: 1f1b, {sizes}"),
    ):
        assert f'<img alt="{alt}"' in figure._repr_mimebundle_()[0]["text/html"]


STRAGGLING = ROOT / "validation" / "data" / "cpu" / "mlp" / "4" / "1f1b.json"
SWEPT = ppsim.sweep(
    {"schedule": {"name": "1f1b", "devices": 4, "microbatches": 8}}, over={"schedule.microbatches": [4, 8]}
)


@pytest.mark.parametrize("drawing", [
    lambda: run().plot,
    lambda: functools.partial(run().plot, memory=True, critical_path=True),
    lambda: run(devices=16, microbatches=64).plot,
    lambda: run().plot_ledger,
    lambda: ppsim.compare([run("1f1b"), run("zb-h1")]).plot,
    lambda: ppsim.explain(ppsim.Timeline.from_trace(STRAGGLING)).plot,
    lambda: functools.partial(SWEPT.plot, "bubble_fraction"),
    lambda: SWEPT.plot_front,
])  # fmt: skip
def test_a_chart_in_a_notebook_is_light_or_dark_as_the_page_around_it(drawing):
    draw = drawing()
    light, dark = on_page(draw()).split(f'<div style="{ON_DARK}">')
    for seen, theme, name in ((light, LIGHT, "light"), (dark, DARK, "dark")):
        assert theme.paper in seen
        assert WORDS.findall(seen) == WORDS.findall(draw(theme=name).to_svg())


def test_a_chart_whose_theme_is_given_keeps_it():
    assert "var(" not in on_page(run().plot(theme="dark"))


def test_a_chart_that_its_user_changes_stays_light():
    figure: Any = run().plot()
    figure.axes[0].set_title("mine")
    assert "var(" not in on_page(figure)


WORDS = re.compile(r">([^<]+)</text>")


def on_page(figure):
    """Return what a notebook's script puts into its page."""
    page = figure._repr_mimebundle_()[0]["text/html"]
    return zlib.decompress(base64.b64decode(re.findall(r'atob\("([^"]*)', page)[0])).decode()


def test_drawing_leaves_pyplot_and_its_settings_alone():
    import matplotlib

    before = dict(matplotlib.rcParams)
    run().plot()._repr_mimebundle_()
    assert dict(matplotlib.rcParams) == before
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_rows_of_many_devices_stay_within_a_page():
    for devices, count in ((1, 8), (64, 8), (1000, 1)):
        assert run(devices=devices, microbatches=count).plot().get_figheight() < 4.5


def test_a_column_of_a_paper_has_low_rows_without_numbers_and_its_words_above_them():
    figure = compared([run("1f1b"), run("zb-h1")], width=3.3, memory=True)
    assert figure.get_figwidth() == 3.3
    assert not any(rows.numbers() for rows in rows_of(figure))
    rows = figure.axes[0].get_window_extent().height / figure.dpi * 72 / 4
    assert rows == pytest.approx(7.5)  # points: a row of 6.75 and its gap
    assert {"27.3 % idle", "peak 4 act."} <= set(words_of(figure))


def test_a_column_of_four_schedules_with_memory_is_as_low_as_a_third_of_a_page():
    costs = ppsim.Costs(forward=1, input_grad=1, weight_grad=1, latency=0.1)
    runs = [run(name, costs=costs) for name in ("1f1b", "zb-h1", "zb-v", "dualpipe")]
    figure = compared(runs, width=3.3, memory=True)
    assert figure.get_figheight() < 4.0
    rows, memory = (axes.get_window_extent().height for axes in figure.axes[:2])
    assert rows / 4 < memory < rows / 3


def test_headings_of_numbers_are_beside_the_title_where_they_fit():
    for figure in (run().plot(), compared([run(), run("gpipe")])):
        places = {text.get_text(): text.get_position()[1] for text in figure.texts}
        assert places["step"] == pytest.approx(max(places.values()))  # the title's line
    model = ppsim.load_config(ROOT / "configs" / "nemotron-4-340b-6144xh100.yaml").simulate().plot()
    places = {text.get_text(): text.get_position()[1] for text in model.texts}
    assert places["step"] == pytest.approx(max(y for text, y in places.items() if text.startswith("90 %")))
    places = {text.get_text(): text.get_position()[1] for text in run().plot(width=3.3).texts}
    assert places["33.0 s"] == pytest.approx(places["F 1 s · B 2 s"])  # in a column numbers have no headings


@pytest.mark.parametrize("width", [2.5, 3.3, 7])
def test_all_words_lie_within_figures_of_every_width(width):
    timelines = [run("dualpipe"), run("interleaved-1f1b"), run("zb-h1"), stepped()]
    figures = [compared(timelines, width=width), timelines[0].plot(width=width, transfers=True, memory=True)]
    for figure in figures:
        figure.draw_without_rendering()
        beyond = figure.dpi / 300
        for part in figure.findobj(lambda one: isinstance(one, Text) and one.get_text() != ""):
            box = part.get_window_extent()
            assert box.x0 >= -beyond, part
            assert box.x1 <= figure.bbox.width + beyond, part
            assert box.y0 >= -beyond, part
            assert box.y1 <= figure.bbox.height + beyond, part


def test_the_legend_names_lanes_and_lines_only_where_they_are_drawn():
    legend = [text.get_text() for text in stepped().plot().texts if text.get_gid() == "legend"]
    assert legend[-3:] == ["weight gather", "gradient reduction", "optimizer step"]
    lined = [text.get_text() for text in run().plot(critical_path=True, transfers=True).texts]
    assert {"critical path", "transfer of a forward", "transfer of a backward"} <= set(lined)
    mixed = words_of(run("zb-v", devices=64, microbatches=256).plot())
    assert "second stage of the device" not in mixed
    narrow = words_of(compared([run("1f1b", 8, 32), run("zb-v", 8, 64)]))  # whose marks would be dots
    assert "second stage of the device" not in narrow
    assert "second stage of the device" in words_of(run("zb-v").plot())
    assert not {"W weight gradient", "optimizer step"} & {*words_of(run("zb-h1").plot(until=5.0))}
    for timeline, idle in ((run(devices=1), 0), (run("pipedream", 4, 12), 1)):  # the steady part of this has none
        legend = [text.get_text() for text in timeline.plot().texts if text.get_gid() == "legend"]
        assert legend.count("idle") == idle
    fused = run("dualpipe", 64, 256, ppsim.Costs(forward=1, backward=2, overlap=2.6)).plot()
    assert "enters at the other end" not in words_of(fused)  # low rows show slots in one colour, without marks
    short = ppsim.Costs(forward=1, backward=2, optimizer_step=0.5)
    figure = ppsim.simulate(ppsim.build("1f1b", devices=64, microbatches=256), short, optimizer="sync").plot()
    assert "optimizer step shorter than a pixel" in words_of(figure)


def test_the_legend_says_if_marks_of_stages_are_in_wide_actions_alone():
    charts = [run("interleaved-1f1b", 8, 16), run("zb-v", 8, 16)]  # zb-v has no space for marks
    assert "2nd stage in wide actions" in words_of(compared(charts, width=3.3))
    assert "2nd stage in wide actions" in words_of(charts[0].plot(width=3.3))  # its forwards have none
    assert "2nd stage" in words_of(run("interleaved-1f1b").plot(width=3.3))


def test_slices_are_labelled_with_microbatch_and_piece():
    figure = run("seq1f1b", slices=2).plot(width=14)
    labels = numbers_of(figure)
    assert "numbers are microbatch.slice" in words_of(figure)
    assert sorted(labels) == sorted([f"{microbatch}.{piece}" for microbatch in range(8) for piece in (0, 1)] * 8)
    beside = rows_of(compared([run("1f1b"), run("seq1f1b")]))[1].numbers()  # one meaning in all charts of a picture
    assert {text.get_text() for text in beside} == {*map(str, range(8))}
    narrow = words_of(compared([run("1f1b", 8, 16), run("seq1f1b", 8, 16)]))
    assert "numbers are microbatches" in narrow  # slices are too narrow
    assert "seq1f1b: 2 slices per microbatch" in narrow


def test_evictions_are_lanes_of_the_device_that_evicts_and_the_costs_name_them():
    figure = run("bpipe", costs=ppsim.Costs(forward=1, backward=2, latency=0.25)).plot()
    lanes = {lane.title: lane for lane in rows_of(figure)[0].boxes.lanes}
    assert {*lanes} == {"eviction to another device (0 to 3)", "return of an eviction"} <= {*words_of(figure)}
    assert all({*lane.device.tolist()} == {0} and lane.length == pytest.approx(0.25) for lane in lanes.values())
    assert "transfer, return, eviction 0.25 s" in words_of(figure)


def test_transfers_to_far_devices_are_lines_next_to_their_ends_alone():
    timeline = run("interleaved-1f1b", costs=ppsim.Costs(latency=0.5))
    figure = timeline.plot(transfers=True)
    forward, backward = [part for part in figure.axes[0].collections if isinstance(part, LineCollection)]
    assert max(forward.get_zorder(), backward.get_zorder()) < rows_of(figure)[0].get_zorder()
    plan, device = timeline.plan, timeline.schedule.device
    mine = np.flatnonzero(plan.remote & (timeline.schedule.kind == Kind.F))
    times = np.stack([timeline.transfer_start[mine], timeline.transfer_end[mine]], axis=1)
    far = np.abs(device[plan.source[mine]].astype(int) - device[mine]) > 1
    drawn = np.array(forward.get_segments())
    begins, ends = drawn[: len(mine)], drawn[len(mine) :]
    assert len(ends) == far.sum() > 0
    assert begins[~far, :, 0] == pytest.approx(times[~far])
    assert np.stack([begins[far, 0, 0], ends[:, 1, 0]], axis=1) == pytest.approx(times[far])
    assert np.ptp(drawn[:, :, 1], axis=1) == pytest.approx(np.full(len(drawn), np.ptp(begins[~far, :, 1][0])))
    assert np.rint(begins[:, 0, 1] + 0.15) == pytest.approx(device[plan.source[mine]])
    assert np.rint(ends[:, 1, 1] + 0.15) == pytest.approx(device[mine][far])


def test_low_rows_show_actions_alone_and_the_legend_says_so():
    evicted = run("bpipe", 64, 128, ppsim.Costs(latency=0.1)).plot(transfers=True)
    assert not [part for part in evicted.axes[0].collections if isinstance(part, LineCollection)]
    assert "rows too low for eviction to another device, return of an eviction" in words_of(evicted)
    assert rows_of(evicted)[0].boxes.lanes == []
    assert not any("rows too low" in word for word in words_of(run("bpipe").plot(transfers=True)))


def test_narrow_actions_have_no_lines_between_rows_and_no_room_for_them(capsys):
    narrow = run("1f1b", 8, 500, ppsim.Costs(latency=0.1)).plot(transfers=True)
    assert not [part for part in narrow.axes[0].collections if isinstance(part, LineCollection)]
    assert capsys.readouterr().err == "transfers are not drawn: actions are too narrow, or rows too low\n"
    plain = run("1f1b", 8, 500, ppsim.Costs(latency=0.1)).plot()
    assert narrow.get_size_inches().tolist() == plain.get_size_inches().tolist()  # no room for lines


def test_a_peak_far_over_the_limit_leaves_the_other_strips_their_height_and_reasons_share_their_text():
    config = ppsim.load_config(ROOT / "configs" / "zero-bubble-28b-32xa100.yaml")  # its partition has 32 stages
    figure = ppsim.compare(config, ["1f1b", "zb-v", "v-half", "gpipe"]).plot(memory=True)
    strips = [axes for axes in figure.axes if "76.5 GB" in [label.get_text() for label in axes.get_yticklabels()]]
    assert [[label.get_text() for label in axes.get_yticklabels()] for axes in strips] == [["0", "76.5 GB"]] * 2
    assert [[text.get_text() for text in axes.texts] for axes in strips] == [[], ["↑"]]
    assert "not run: zb-v, v-half: the partition lists 32 stages, but the schedule has 64" in words_of(figure)
    config = ppsim.load_config(ROOT / "configs" / "kimi-k2-256xh100.yaml")  # dualpipe needs 1.9 times the limit
    figure = ppsim.compare(config, ["1f1b", "dualpipe"]).plot(memory=True)
    tops = {
        axes.get_ylim()[1] for axes in figure.axes if "76.4 GB" in [text.get_text() for text in axes.get_yticklabels()]
    }
    assert [*tops] == pytest.approx([1.5 * 1.12 * 76.4], rel=1e-3)


def test_a_comparison_has_a_column_of_peaks_and_marks_those_over_the_limit():
    config = ppsim.load_config(ROOT / "configs" / "llama-3-8b-8xh100.yaml")
    figure = ppsim.compare(config, ["1f1b", "zb-h1"]).plot()
    peaks = [text for text in figure.texts if text.get_text() in ("62.2 of 76.4 GB", "84.8 of 76.4 GB tight")]
    assert [text.get_color() == LIGHT.limit for text in peaks] == [False, True]  # the base is first
    strips = ppsim.compare(config, ["1f1b", "gpipe"]).plot(memory=True).axes[1:4:2]
    ticks = [[label.get_text() for label in axes.get_yticklabels()] for axes in strips]
    assert ticks == [["0", "76.4 GB"]] * 2  # a peak of 314 GB is cut


def test_in_a_column_names_and_numbers_share_a_line_and_low_strips_keep_their_zero():
    config = ppsim.load_config(ROOT / "configs" / "llama-3-8b-8xh100.yaml")
    figure = ppsim.compare(config, ["1f1b", "interleaved-1f1b", "dualpipe"]).plot(memory=True, width=3.3)
    places = {text.get_text(): text.get_position()[1] for text in figure.texts}
    assert places["interleaved-1f1b"] == places["78.3 of 76.4 GB tight"]
    ticks = [[label.get_text() for label in axes.get_yticklabels()] for axes in figure.axes[1:6:2]]
    assert ticks == [["0", "76.4 GB"]] * 3  # though the highest peak is 99.9 GB


def test_an_optimizer_step_begins_with_a_line():
    timeline = ppsim.simulate(
        ppsim.build("1f1b", devices=4, microbatches=32), ppsim.Costs(optimizer_step=0.8), optimizer="sync"
    )
    for theme in (GREY, LIGHT):
        figure = timeline.plot(theme=theme.name, width=3.3)
        figure.set_dpi(288)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        pixels = np.asarray(canvas.buffer_rgba())[..., :3]
        axes = figure.axes[0]
        step = [(timeline.iteration_time - 0.8, 0), (timeline.iteration_time, 0)]
        (left, y), (right, _) = axes.transData.transform(step)
        shown = pixels[len(pixels) - round(y), round(left) - 1 : round(right) - 4]
        colours = {f"#{bytes(one).hex()}" for one in shown}
        assert theme.lanes["optimizer steps"] in colours
        assert theme.text in colours


def test_the_line_of_the_critical_path_runs_forward_through_every_box_of_it():
    timeline = run("dualpipe", 8, 20, costs=ppsim.Costs(forward=1, input_grad=1, weight_grad=1, latency=0.1))
    times = path_of(timeline.plot(critical_path=True).axes[0])[0][:, 0]
    assert (np.diff(times) >= -1e-9).all()
    assert times[0] == 0
    assert times[-1] == timeline.makespan


def test_the_legend_names_dashes_of_a_critical_path_only_if_some_are_drawn():
    figure = ppsim.load_config(ROOT / "configs" / "llama-3-70b-64xh100.yaml").simulate().plot(critical_path=True)
    _, path = [one for one in figure.axes[0].collections if one.get_gid() == "critical path"]
    assert {style[1] for style in path.get_linestyle()} == {None}
    assert "critical path" in words_of(figure)


def test_a_critical_path_is_one_dashed_line_over_the_rows_between_its_devices_beside_their_numbers():
    timeline = run("interleaved-1f1b", costs=ppsim.Costs(forward=1.0, backward=2.0, latency=0.1))
    figure = timeline.plot(critical_path=True)
    figure.draw_without_rendering()
    halo, path = [one for one in figure.axes[0].collections if one.get_gid() == "critical path"]
    jumps = [np.ptp(part[:, 1]) > 1.5 for part in halo.get_segments()]
    assert sum(jumps) == 2
    assert "critical path; dashed: past other devices" in words_of(figure)
    assert [style[1] is not None for style in path.get_linestyle()] == jumps
    (rows,) = rows_of(figure)
    half = halo.get_linewidth()[0] / 2 * figure.dpi / 72
    for x, high in (figure.axes[0].transData.transform(part).T for part in halo.get_segments()):
        crossed = [text.get_window_extent() for text in rows.numbers()]
        crossed = [box for box in crossed if high.min() < (box.y0 + box.y1) / 2 < high.max()]
        assert all(box.x1 <= x[0] - half + 1 or x[0] + half - 1 <= box.x0 for box in crossed)


def test_names_of_areas_are_beside_the_critical_path():
    costs = ppsim.Costs(forward=1.0, input_grad=1.0, weight_grad=1.0)
    figure = run("dualpipe", 64, 256, costs).plot(critical_path=True)
    figure.draw_without_rendering()
    axes, (rows,) = figure.axes[0], rows_of(figure)
    path = next(lines for lines in axes.collections if lines.get_gid() == "critical path")
    lines = [axes.transData.transform_path(part) for part in path.get_paths()]
    names = [(text.get_text(), text.get_window_extent()) for text in rows.numbers()]
    assert {"F", "F + B", "F + B + idle"} <= {name for name, _ in names}
    assert not [name for name, box in names if any(line.intersects_bbox(box, filled=False) for line in lines)]


@pytest.mark.parametrize(("microbatches", "width", "missing"), [(16, 7.0, 0), (18, 6.6, 0)])
def test_no_number_is_below_the_halo_of_the_critical_path(microbatches, width, missing):
    costs = ppsim.Costs(forward=1.0, input_grad=1.0, weight_grad=1.0, latency=0.1)
    figure = run("zb-h1", 8, microbatches, costs).plot(width=width, critical_path=True)
    figure.draw_without_rendering()
    axes, (rows,) = figure.axes[0], rows_of(figure)
    halo = next(lines for lines in axes.collections if lines.get_gid() == "critical path")
    half = halo.get_linewidth()[0] / 2 * figure.dpi / 72
    lines = [axes.transData.transform(part) for part in halo.get_segments() if part[0, 0] == part[1, 0]]
    numbers = [text.get_window_extent() for text in rows.numbers()]
    assert len(numbers) == 3 * 8 * microbatches - missing
    for (x, one), (_, other) in lines:
        crossed = [box for box in numbers if min(one, other) < box.y0 + box.height / 2 < max(one, other)]
        assert all(box.x1 <= x - half + 1 or x + half - 1 <= box.x0 for box in crossed)  # a pixel of 300 an inch


def test_a_mix_of_many_areas_is_named_once():
    timeline = ppsim.load_config(ROOT / "configs" / "mt-nlg-530b-280xa100.yaml").simulate()
    found = [area.words for area in areas(make_boxes(timeline))]
    names = [name.replace("\n", " ") for name in numbers_of(timeline.plot())]
    assert found.count("F + B + idle") > 3
    assert found.count("F + B") == 1  # in one area with all its spikes
    for mix in ("F + B", "F + B + idle"):
        assert names.count(mix) == 1


def test_names_between_low_rows_with_lanes_lie_on_the_colour_of_their_area():
    config = ppsim.load_config(ROOT / "configs" / "nemotron-4-340b-6144xh100.yaml")
    timeline = config.changed({"schedule.name": "interleaved-zb"}).simulate()
    named = rows_of(compared([timeline] * 4, width=4.1))[0].numbers()
    assert {"F + idle", "F + I + W", "I + W"} <= {text.get_text() for text in named}
    assert all(text.get_bbox_patch() and "\n" not in text.get_text() for text in named)


def test_a_legend_names_the_marks_of_boxes_that_are_high_enough():
    assert "enters at the other end" in words_of(run("chimera", 32, 32).plot())
    assert "enters at the other end" not in words_of(run("chimera", 64, 64).plot())


def test_a_critical_path_is_one_step_where_it_turns_back_and_forth_after_few_pixels():
    config = ppsim.load_config(ROOT / "configs" / "llama-3-70b-64xh100.yaml")  # its path changes rows each 0.7 pixels
    lines = [one for one in config.simulate().plot(critical_path=True).axes[0].collections if one.get_gid()]
    for ends in (np.array(part.get_segments()) for part in lines):
        begin = ends[ends[:, :, 0].max(axis=1) < 0.29]
        assert np.rint(begin[:, :, 1] - 0.45).tolist() == [[0, 0], [0, 3], [3, 3]]  # it goes from 0 to 3 five times
        assert len(ends) > 20
    config = ppsim.load_config(ROOT / "configs" / "llama-3-405b-16384xh100.yaml")  # from 15 to 0, past the others
    path = config.simulate().plot(critical_path=True).axes[0].collections[-1]
    dashed = [np.ptp(part[:, 1]) > 1.5 for part in path.get_segments()]
    assert dashed == [style[1] is not None for style in path.get_linestyle()]
    assert sum(dashed) > 10


@pytest.mark.parametrize(("devices", "points"), [(4, 1.1), (64, 0.7)])
def test_a_critical_path_is_thinner_in_low_rows(devices, points):
    timeline = run("1f1b", devices, 2 * devices, ppsim.Costs(latency=0.1))
    assert path_of(timeline.plot(critical_path=True).axes[0])[1] == pytest.approx(points)


def test_a_critical_path_between_lanes_and_marks_of_stages_is_thin():
    costs = ppsim.Costs(forward=1.0, backward=2.0, reduce_grad=0.5)
    for name, points in (("1f1b", 1.1), ("interleaved-1f1b", 0.7)):
        axes = run(name, costs=costs).plot(critical_path=True).axes[0]
        path = next(lines for lines in reversed(axes.collections) if lines.get_gid() == "critical path")
        assert path.get_linewidth()[0] == pytest.approx(points)


def test_a_critical_path_crosses_no_lane_below_its_boxes():
    costs = ppsim.Costs(forward=1.0, backward=2.0, reduce_grad=3.0)
    figure = run(costs=costs).plot(critical_path=True)
    points, _ = path_of(figure.axes[0])
    _, bottom = rows_of(figure)[0].boxes.band
    assert bottom < 0.43  # there are lanes
    assert 0.2 < max(points[:, 1] - np.rint(points[:, 1])) < bottom


def test_marks_of_stages_are_decided_by_kind_on_all_devices_alike():
    config = ppsim.load_config(ROOT / "configs" / "mixtral-8x7b-64xh100.yaml")  # I of device 0 is 10 % longer
    boxes = make_boxes(config.changed({"schedule.name": "zb-v"}).simulate())
    for second in np.linspace(100, 300, 60):  # pixels; marks appear there
        on = boxes.device[boxes.has_marks(second) & (boxes.kind == Kind.I)]
        assert len({*on.tolist()}) in (0, 4)
    seconds = [3, 0.3, 0.3, 1, 0.6, 0.3, 0.5, 3]
    costs = ppsim.Costs(forward=seconds, input_grad=seconds, weight_grad=0.3, latency=0.1)
    assert "second stage of the device in wide actions" in words_of(run("zb-v", costs=costs).plot())


def test_figures_can_share_one_time_scale():
    assert run().plot().axes[0].get_xlim() == (0, 33)
    assert run().plot(until=99.0).axes[0].get_xlim() == (0, 99)
    figure = run().plot(until=9.0)
    assert "1f1b, 4 devices, 8 microbatches, first 9 s of 33 s" in words_of(figure)
    assert figure.axes[-1].get_xticklabels()[-1].get_text() == "9 s"
    with pytest.raises(ppsim.ConfigError, match="seconds above 0"):
        run().plot(until=0)


@pytest.mark.parametrize("theme", ["light", "dark", "grey"])
def test_bars_of_the_ledger_are_as_long_as_idle_time_and_say_its_part_of_the_step(theme):
    timeline, colours = run("interleaved-1f1b"), THEMES[theme]
    figure = timeline.plot_ledger(theme=theme)
    (axes,) = figure.axes
    ends = {bar.get_y(): bar.get_x() + bar.get_width() for bar in axes.patches}
    assert list(ends.values()) == pytest.approx(100 * timeline.device_idle / timeline.makespan)
    assert axes.get_xlabel() == "idle time (% of the step)"
    idle = f"{timeline.bubble_fraction:.1%}".replace("%", " %")
    assert any(f"{idle} idle on each device" in words for words in words_of(figure))  # equal sums are said once
    assert not [text for text in axes.texts if isinstance(text, Annotation)]
    assert {text.get_text() for text in axes.texts} > {"dependency 10.5 %", "15.8 %", "drain 7.0 %", "10.5 %"}
    assert axes.get_xlim()[1] == pytest.approx(max(ends.values()))  # bars fill the width
    names = [text.get_text() for text in run("1f1b", 64, 128).plot_ledger(theme=theme).axes[0].texts]
    assert names == ["fill", "drain", "dependency"]  # as a Gantt chart of 64 devices names its areas
    uneven = ppsim.load_config(ROOT / "configs" / "llama-3-8b-8xh100.yaml").simulate()
    ends = [text.get_text() for text in uneven.plot_ledger().axes[0].texts if isinstance(text, Annotation)]
    assert ends == [f"{part:.1%}".replace("%", " %") for part in uneven.device_idle / uneven.makespan]
    assert {to_hex(bar.get_facecolor()) for bar in axes.patches} <= set(colours.causes.values())
    assert to_hex(figure.get_facecolor()) == colours.paper


def test_the_ledger_has_the_rows_names_and_its_causes_in_reading_order():
    config = ppsim.load_config(ROOT / "configs" / "qwen3.5-vl-27b-17xh100.yaml")
    timeline = config.simulate()
    figure = timeline.plot_ledger()
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["ViT 0", "backbone 1", "backbone 2"]
    legend = [text for text in figure.texts if text.get_gid() == "legend"]
    causes = [text.get_text().partition(" ")[0] for text in sorted(legend, key=lambda one: one.get_position()[::-1])]
    assert [text.get_text().partition(" ")[0] for text in legend] == [
        one for one in ppsim.analysis.CAUSES if one in causes
    ]
    idle = f"{timeline.bubble_fraction:.1%}".replace("%", " %")
    assert f"step {timeline.makespan:.2f} s, {idle} idle on average, by cause below" in words_of(figure)


def test_figures_of_many_runs_have_a_theme_and_a_width():
    sweep = ppsim.sweep(
        ROOT / "configs" / "unit-costs.yaml",
        over={"schedule.name": ["1f1b", "zb-h1"], "schedule.microbatches": [4, 8, 16]}, workers=1,
    )  # fmt: skip
    for theme in ("dark", "grey"):
        for figure in (sweep.plot("bubble_fraction", width=3.3, theme=theme), sweep.plot_front(width=3.3, theme=theme)):
            assert to_hex(figure.get_facecolor()) == THEMES[theme].paper
            assert figure.get_size_inches()[0] == 3.3
            drawn = {to_hex(line.get_color()) for line in figure.axes[0].lines}
            assert drawn <= set(COLOURS[theme])
            assert not drawn & set(THEMES[theme].kinds.values())
    with pytest.raises(ppsim.ConfigError, match="theme='blue' is not known; use one of: light, dark, grey"):
        sweep.plot_front(theme="blue")
    with pytest.raises(
        ppsim.ConfigError, match=r"width=0\.5 is not a figure width; use a number of inches from 1 to 200"
    ):
        sweep.plot("bubble_fraction", width=0.5)


def test_charts_embed_fonts_and_follow_the_users_font_size(tmp_path):
    import matplotlib

    run().save(tmp_path / "chart.pdf")
    assert b"/FontFile2" in (tmp_path / "chart.pdf").read_bytes()
    usual = run().plot().texts[0].get_fontsize()
    with matplotlib.rc_context({"font.size": 12}):
        assert run().plot().texts[0].get_fontsize() == pytest.approx(1.2 * usual)


def test_lines_over_numbers_that_double_have_a_logarithmic_axis_and_names_at_their_ends():
    lines = {name: [(m, value / m) for m in (4, 8, 16, 32)] for name, value in (("1f1b", 3.0), ("zb-h1", 1.0))}
    figure = draw_lines(lines, "schedule.microbatches", "bubble fraction", "fraction", width=3.3)
    (axes,) = figure.axes
    assert axes.get_xscale() == "log"
    assert axes.get_xlabel() == "microbatches, logarithmic"
    assert {text.get_text() for text in axes.texts} == {"1f1b", "zb-h1"}
    assert axes.get_legend() is None
    assert figure.get_figwidth() == 3.3


def test_lines_of_seconds_or_bytes_that_crowd_at_the_lower_end_have_a_logarithmic_axis_and_parts_begin_at_zero():
    lines = {"a": [(4, 0.2), (8, 0.21), (16, 0.22)], "b": [(4, 0.3), (8, 0.9), (16, 0.02)]}
    (axes,) = draw_lines(lines, "m", "idle time", "fraction").axes
    assert (axes.get_yscale(), axes.get_ylim()[0]) == ("linear", 0)
    (axes,) = draw_lines({"a": [(4, 6e10), (8, 6e10)], "b": [(4, 9e10), (8, 4e11)]}, "m", "peak", "bytes").axes
    assert (axes.get_yscale(), axes.get_ylabel()) == ("log", "peak (GB), logarithmic")


def test_lines_that_coincide_have_one_line_and_names_in_its_colour_that_do_not_meet():
    steps = {"gpipe": 10.0, "zb-h1": 9.9, "1f1b": 10.0, "zb-v": 9.8}
    figure = draw_lines({name: [(4, 1.0), (8, step)] for name, step in steps.items()}, "m", "step time", "seconds")
    figure.draw_without_rendering()
    (axes,) = figure.axes
    names = sorted(axes.texts, key=lambda text: -text.get_window_extent().y0)
    assert [text.get_text() for text in names] == ["gpipe, 1f1b", "zb-h1", "zb-v"]
    assert {text.get_color() for text in names} == {line.get_color() for line in axes.lines}
    boxes = [Text.get_window_extent(text) for text in names]
    assert not any(one.overlaps(other) for one, other in pairwise(boxes))


def test_a_front_of_one_point_is_no_line_and_crowded_axes_are_logarithmic():
    points = [(4.0, 20.0 + step) for step in range(9)] + [(64.0, 200.0)]
    figure = draw_front(points, [str(place) for place in range(10)], "memory", "bytes")
    (axes,), (legend,) = figure.axes, figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["Pareto front"]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert axes.get_xlabel() == "memory (B), logarithmic"


def test_more_lines_than_colours_are_dashed_and_none_repeats_another_on_any_paper():
    names = ["1f1b", "zb-h1", "zb-v", "v-half", "v-min", "hanayo", "chimera", "gpipe", "zb-h2"]
    lines = {name: [(4, 1.0 + at), (8, 2.0 * at)] for at, name in enumerate(names)}
    for theme in THEMES:
        (axes,) = draw_lines(lines, "m", "step time", "seconds", theme=theme).axes
        assert len({(line.get_color(), line.get_marker()) for line in axes.lines}) == len(names)
        looks = {(line.get_color(), line.get_linestyle()) for line in axes.lines}
        assert len(looks) == min(len(names), 2 * len(COLOURS[theme][:-1]))  # dashed and dotted are one style here


@pytest.mark.parametrize("theme", ["light", "dark", "grey"])
def test_no_two_of_24_runs_have_symbol_and_colour_and_the_legend_has_the_order_of_their_ends(theme):
    names = ["1f1b", "zb-v", *(f"variant {number}" for number in range(22))]
    lines = {name: [(4, 1.0), (8, 2.0 + at)] for at, name in enumerate(names)} | {"same": [(4, 1.0), (8, 2.0)]}
    figure = draw_lines(lines, "m", "step time", "seconds", theme=theme)
    assert len({(line.get_color(), line.get_marker()) for line in figure.axes[0].lines}) == len(names) == 24
    assert [line.get_label() for line in figure.axes[0].lines] == [*reversed(names[1:]), f"{names[0]}, same"]


def test_a_schedule_has_one_look_in_all_charts_and_its_variants_have_others():
    alone = draw_lines({"zb-v": [(4, 1.0), (8, 2.0)]}, "m", "step time", "seconds").axes[0].lines[0]
    names = ["interleaved-1f1b:3", "own", "interleaved-1f1b:6", "1f1b", "zb-v"]
    (axes,) = draw_lines({name: [(4, at), (8, 2.0)] for at, name in enumerate(names)}, "m", "step", "seconds").axes
    looks = {line.get_label(): (line.get_color(), line.get_marker()) for line in axes.lines}
    assert looks["zb-v"] == (alone.get_color(), alone.get_marker())
    assert looks["1f1b"] == (COLOURS["light"][0], "o")
    assert len({*looks.values()}) == len(names)
    (axes,) = draw_front([(4.0, 2.0), (5.0, 1.0)], ["", ""], "memory", "bytes", groups=["1f1b", "zb-v"]).axes
    inks = {
        part.get_label(): to_hex(part.get_facecolor()[0]) for part in axes.collections if not len(part.get_offsets())
    }
    assert {name: inks[name] for name in ("1f1b", "zb-v")} == {name: looks[name][0] for name in ("1f1b", "zb-v")}
    lines = {"hanayo": [(4, 4.0)], "gpipe": [(4, 1.0)], "1f1b": [(4, 1.0)]}  # coincide: the look of the more usual one
    (axes,) = draw_lines(lines, "m", "step", "seconds").axes
    assert {line.get_label(): line.get_marker() for line in axes.lines}["gpipe, 1f1b"] == "o"
    (axes,) = (
        ppsim.sweep({"schedule": {"name": "zb-v", "devices": 4}}, {"schedule.microbatches": [8, 16]}, workers=1)
        .plot()
        .axes
    )
    assert (axes.lines[0].get_color(), axes.lines[0].get_marker()) == looks["zb-v"]


def test_eleven_lines_have_names_at_their_ends_and_as_many_colours_as_there_are():
    lines = {f"schedule-{number}": [(4, 9.0), (8, 1.0 + number / 9)] for number in range(11)}
    figure = draw_lines({**lines, "one that coincides": lines["schedule-3"]}, "m", "step", "seconds")
    names = {text.get_text() for text in figure.axes[0].texts}
    assert names == {*lines} - {"schedule-3"} | {"schedule-3, one that\ncoincides"}
    assert not figure.legends
    assert len({line.get_color() for line in figure.axes[0].lines}) == len(COLOURS["light"]) - 1
    figure.draw_without_rendering()
    boxes = sorted((Text.get_window_extent(text) for text in figure.axes[0].texts), key=lambda box: box.y0)
    assert not any(one.overlaps(other) for one, other in pairwise(boxes))
    keys = [(line.get_color(), line.get_marker()) for line in figure.axes[0].lines[11:]]  # before the names
    assert len({*keys}) == len(keys) == 11


def test_a_sweep_is_drawn_over_a_key_with_several_numbers_that_ran():
    config, over = {"schedule": {"name": "dualpipe"}}, {"schedule.microbatches": [8, 16], "schedule.devices": [4, 5]}
    figure = ppsim.sweep(config, over, workers=1).plot()
    assert figure.axes[0].get_xlabel() == "microbatches"
    assert [text.get_text() for text in figure.axes[0].texts] == ["4 devices"]
    (text,) = figure.legends[0].get_texts()
    assert text.get_text() == "refused: 5 devices"  # both that have them
    assert text.get_window_extent().x0 < 0.1 * figure.bbox.x1  # without a symbol, as the chart has none


def test_entries_of_a_legend_follow_each_other_without_holes():
    names = ["a", "a much longer name than others", *(f"line {number}" for number in range(40))]
    figure = draw_lines({name: [(4, 1.0), (8, 2.0 + at)] for at, name in enumerate(names)}, "m", "step", "seconds")
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.legends[0].get_texts()]
    gaps = [other.x0 - one.x1 for one, other in pairwise(boxes) if abs(one.y0 - other.y0) < 1]
    assert max(gaps) == pytest.approx(min(gaps), abs=3)


def test_titles_of_sweeps_have_the_costs_and_units_of_stills():
    sizes = {"name": "1f1b", "devices": 4, "microbatches": 8}
    for costs in ({}, {"latency": 0.1}, {"latency": 0.05}, {"forward": 0.2}, {"forward": 2e-3}):
        config = {"schedule": sizes, "costs": costs}
        still = run(costs=ppsim.Costs(**costs)).plot(labels=False)
        title = ppsim.sweep(config, {"schedule.devices": [4]}, workers=1).name  # of any schedule, also without B
        assert title.partition(" · ")[2] in [text.get_text() for text in still.texts]


def test_schedules_off_a_front_are_named_at_their_slowest_run_and_equal_ones_are_one():
    names = ["1f1b", "gpipe", "zb-h1", "bpipe", "v-min", "zb-v", "v-half", "chimera"]
    runs = [(4.0 + 4 * at, 9.0 - at * (at > 6) - m) for at, _ in enumerate(names) for m in (1, 2, 3)]
    runs[3:6], groups, values = runs[:3], [name for name in names for _ in range(3)], [8, 16, 32] * 8
    figure = draw_front(runs, [""] * 24, "memory", "bytes", groups=groups, varied=("microbatches", values))
    written = {text.get_text() for text in figure.axes[0].texts}
    assert {"1f1b, gpipe, 32", "zb-h1, 8", "v-half, 8", "chimera, 32"} <= written
    assert not {"zb-h1, 32", "gpipe, 8"} & written
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["runs between", "Pareto front"]
    sizes = [part.get_sizes()[0] for part in figure.axes[0].collections for _ in part.get_offsets()]
    assert sizes.count(max(sizes)) == 2 * 2 + 5  # both ends of lines with a point on the front, one of others


def test_a_run_looks_alike_in_the_lines_and_the_front_of_a_sweep_and_all_schedules_are_named():
    names = "1f1b gpipe eager-1f1b looped-bfs interleaved-1f1b 1f1b-v grouped-interleaved hanayo zb-h1 zb-h2 zb-v"
    names += " v-half v-min zb-1p zb-2p dualpipe dualpipe-v stp chimera bpipe interleaved-zb"
    over = {"schedule.name": names.split(), "schedule.microbatches": [16, 32, 64]}
    sweep = ppsim.sweep({"schedule": {"devices": 8}}, over, workers=1)
    lines, front = sweep.plot(), sweep.plot_front()
    looks = {line.get_label(): (line.get_color(), line.get_marker()) for line in lines.axes[0].lines}
    points = [part for part in front.axes[0].collections if not len(part.get_offsets())]  # of the legend
    symbols = {part.get_label(): part.get_paths()[0].vertices.tobytes() for part in points}
    assert len({(symbols[part.get_label()], to_hex(part.get_facecolor()[0])) for part in points}) == len(points)
    for part in points:
        if part.get_label() in looks:  # hanayo, chimera, stp, 1f1b-v, v-half, v-min, dualpipe
            assert to_hex(part.get_facecolor()[0]) == looks[part.get_label()][0]
    assert len({*looks} & {*symbols}) > 5
    *rest, _, _ = legend = [text.get_text() for text in front.legends[0].get_texts()]
    assert (len(rest), legend[-2:]) == (1, ["runs between", "Pareto front"])  # one name finds no space
    written = [text.get_text() for text in front.axes[0].texts]
    assert {*names.split()} <= {*re.split(r",?\s", " ".join([*written, *rest]))}
    assert not {"16", "64"} & {*written}  # alone, they might be those of another schedule of a column


def test_a_measure_that_is_unknown_is_not_drawn():
    sweep = ppsim.sweep({"schedule": {"name": "1f1b", "devices": 4}}, {"schedule.microbatches": [8, 16]}, workers=1)
    with pytest.raises(ppsim.ConfigError, match=r"cannot plot mfu .*: it needs sections model"):
        sweep.plot("mfu")


def test_a_front_far_beyond_a_limit_has_its_unit():
    (axes,) = draw_front([(60e9, 2.0), (1200e9, 1.0)], ["a", "b"], "peak memory", "bytes", limit=76.4e9).axes
    assert axes.get_xlabel().startswith("peak memory (GB)")
    words = [text.get_text() for text in axes.figure.legends[0].get_texts()]
    assert "usable 76.4 GB" in words
    assert not any("beyond" in text for text in words)  # its name and size are beside its arrow
    assert "b,\n1,200 GB" in [text.get_text() for text in axes.texts]
    assert axes.get_xlim()[1] < 100  # it does not stretch the axis
    (edge,) = (line for line in axes.lines if line.get_label().startswith("beyond"))
    assert edge.get_xydata().tolist() == [[1.0, 1.0]]  # at the right end of the axis, at its step


def test_charts_of_a_sweep_name_what_is_refused():
    over = {"schedule.name": ["1f1b", "dualpipe"], "schedule.microbatches": [4, 8, 16]}
    sweep = ppsim.sweep(ROOT / "configs" / "unit-costs.yaml", over=over, workers=1)
    for figure in (sweep.plot(), sweep.plot_front()):
        words = [text.get_text() for text in figure.legends[0].get_texts()]
        assert "refused: dualpipe, 4 microbatches" in words
    for refused, said in {("a, 1",): "a, 1", ("a, 1", "a, 2", "b, 1"): "a, 1 and 2 more runs"}.items():  # not all of a
        figure = draw_lines({"c": [(4, 1.0), (8, 2.0)]}, "m", "step time", "seconds", refused=refused)
        assert [text.get_text() for text in figure.legends[0].get_texts()] == [f"refused: {said}"]


def test_a_front_has_no_ties_and_only_points_that_fit_and_others_are_hollow():
    points = [(1.0, 2.0), (1.001, 1.5), (2.0, 1.499), (3.0, 1.0), (9.0, 0.5)]
    (axes,) = draw_front(points, [*"abcde"], "memory", "bytes", limit=8.0).axes
    (front,) = (line for line in axes.lines if line.get_label().startswith("Pareto"))
    assert front.get_label() == "Pareto front of what fits, without gains under 0.5 %"
    assert front.get_xydata().tolist() == [[1.001, 1.5], [3.0, 1.0]]  # neither 0.1 % less memory nor 0.1 % faster
    (dots,) = (part for part in axes.collections if len(part.get_offsets()) == 5)
    assert [to_hex(face) != LIGHT.paper for face in dots.get_facecolors().tolist()] == [True] * 4 + [False]


def test_points_that_are_tight_in_memory_or_do_not_fit_are_marked_in_lines_and_fronts():
    fits = {("a", 4): "tight", ("b", 4): "over"}
    figure = draw_lines({"a": [(2, 1.0), (4, 2.0)], "b": [(2, 3.0), (4, 5.0)]}, "m", "step", "seconds", fits=fits)
    words = ["half filled: tight in memory", "hollow: does not fit"]
    assert sorted(text.get_text() for text in figure.legends[0].get_texts()) == words
    assert {line.get_marker() for line in figure.axes[0].lines} == {"o", "s"}  # a hole in a star is not seen
    mine = [line for line in figure.axes[0].lines if line.get_color() == figure.axes[0].texts[0].get_color()]
    assert [line.get_markevery() for line in mine] == [[0], [1]]
    (half,) = figure.axes[0].collections  # upon the outline
    assert half.get_offsets().tolist() == [[4, 2.0]]
    assert not half.get_snap()  # else the half of a square is beside its outline
    figure = draw_front([(1.0, 2.0), (8.5, 1.0), (9.0, 0.5)], [*"abc"], "memory", "bytes", limit=8.0)
    within, over = (line for line in figure.axes[0].lines if "front" in line.get_label())
    assert within.get_xydata().tolist() == [[1.0, 2.0], [8.0, 2.0]]  # up to the limit
    assert over.get_xydata().tolist() == [[8.0, 2.0], [8.5, 1.0]]  # as `best` of the sweep, which may be tight
    assert (within.get_linestyle(), over.get_linestyle()) == ("-", "--")
    assert (within.get_markevery(), over.get_markevery()) == ([0], [1])
    assert "device 8.89 B" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_line_alone_has_no_name_at_its_end_and_axes_have_units():
    (axes,) = draw_lines({"step time": [(1, 1.0), (2, 3.0)]}, "costs.latency", "step time", "seconds").axes
    assert [text.get_text() for text in axes.texts] == []
    assert [line.get_marker() for line in axes.lines] == ["o"]
    assert axes.get_xlabel() == "latency (s)"
    assert [axes.xaxis.get_major_formatter()(tick) for tick in axes.get_xticks()] == ["1", "2"]
    latencies = {"step time": [(0.0, 1.0), (4e-4, 2.0), (1.2e-3, 3.0)]}
    (axes,) = draw_lines(latencies, "costs.latency", "step time", "seconds").axes
    assert axes.get_xlabel() == "latency (ms)"
    assert [axes.xaxis.get_major_formatter()(tick) for tick in axes.get_xticks()] == ["0", "0.4", "1.2"]
    latencies = {"step time": [(1e-9, 1.0), (1e-6, 2.0), (1e-3, 3.0)]}
    (axes,) = draw_lines(latencies, "costs.latency", "step time", "seconds").axes
    assert [axes.xaxis.get_major_formatter()(tick) for tick in axes.get_xticks()] == ["1 ns", "1 µs", "1 ms"]


def test_a_measure_whose_name_is_its_unit_names_it_once():
    (axes,) = draw_lines({"a": [(1, 1.0), (2, 3.0)]}, "devices", "tokens/s", "tokens per second").axes
    assert axes.get_ylabel() == "tokens/s"


def test_the_step_over_microbatches_is_that_of_one_microbatch():
    over = {"schedule.microbatches": [8, 16]}
    (axes,) = ppsim.sweep(ROOT / "configs" / "unit-costs.yaml", over=over, workers=1).plot().axes
    assert axes.get_ylabel() == "step time per microbatch (s), not from zero"
    assert axes.lines[0].get_ydata().tolist() == pytest.approx([33 / 8, 57 / 16])


@pytest.mark.parametrize(("limit", "drawn"), [(9e9, True), (20e9, False), (float("inf"), False), (None, False)])
def test_a_front_has_the_limit_of_memory_if_a_point_comes_near_it(limit, drawn):
    (axes,) = draw_front([(8e9, 2.0), (10e9, 1.0)], ["a", "b"], "peak memory", "bytes", limit=limit).axes
    assert ("usable 9 GB" in [text.get_text() for text in axes.figure.legends[0].get_texts()]) == drawn


def test_charts_of_many_runs_say_what_ran_and_name_their_axes():
    sweep = ppsim.sweep(
        ROOT / "configs" / "unit-costs.yaml", over={"schedule.name": ["1f1b", "zb-h1"], "schedule.devices": [2, 4]},
        workers=1,
    )  # fmt: skip
    lines, front = sweep.plot("bubble_fraction"), sweep.plot_front()
    assert lines.get_suptitle() == "unit costs, 8 microbatches"
    name = lines.axes[0].yaxis.label
    assert (name.get_text(), name.get_rotation()) == ("idle time (%)", 0)
    assert front.get_suptitle() == "unit costs, 8 microbatches"
    assert front.axes[0].get_ylabel() == "step time on 2 to 4 devices (s), not from zero · labels: devices"
    (legend,) = front.legends
    assert [text.get_text() for text in legend.get_texts()] == ["Pareto front"]
    assert {"zb-h1, 2", "1f1b, 4"} <= {text.get_text() for text in front.axes[0].texts}


@pytest.mark.parametrize(("width", "theme"), [(3.3, "light"), (7.0, "dark")])
def test_a_schedule_looks_alike_in_all_charts_of_a_sweep_whose_words_lie_within_their_figures(width, theme):
    over = {"schedule.name": ["gpipe", "1f1b", "zb-h1", "zb-v", "interleaved-1f1b", "dualpipe"]}
    sweep = ppsim.sweep(
        ROOT / "configs" / "unit-costs.yaml", over={**over, "schedule.microbatches": [16, 32, 64]}, workers=1
    )
    lines, front = sweep.plot(width=width, theme=theme), sweep.plot_front(limit=9.0, width=width, theme=theme)
    looks = {line.get_label(): (line.get_color(), line.get_marker()) for line in lines.axes[0].lines}
    keys = dict(zip(*reversed(front.axes[0].get_legend_handles_labels()), strict=True))
    assert "Pareto front" in keys
    assert "beyond the axis: gpipe, 16–64 microbatches per device" in keys
    shown = [name for name in over["schedule.name"] if name in keys]
    assert [*{*over["schedule.name"]} - {*shown}] == ["gpipe"]
    for name in shown:
        drawn = next(look for names, look in looks.items() if name in names.split(", "))
        assert to_hex(keys[name].get_facecolor()[0]) == drawn[0]
    assert len({to_hex(keys[name].get_facecolor()[0]) for name in shown}) == 5
    written = [text.get_text() for text in front.axes[0].texts]
    assert {"zb-v, 64", "zb-h1, 64", "1f1b, 64"} <= {*written}  # side by side, as they need the same memory
    xs = sorted(
        {text.xy[0] for text in front.axes[0].texts if text.get_text() in ("1f1b, 64", "zb-h1, 64", "zb-v, 64")}
    )
    assert xs[1] == pytest.approx(4.0)
    assert len(xs) == 3
    assert front.axes[0].get_xlabel().endswith("side by side if equal")
    assert "dualpipe, 64" in written  # the best gains less than 0.5 % over zb-v, and is on the front
    for figure in (lines, front):
        figure.draw_without_rendering()
        box = figure.get_tightbbox()
        assert (box.x0, box.y0) >= (-0.01, -0.01)
        assert box.x1 <= width + 0.01


def test_a_logarithmic_axis_has_a_tick_at_each_doubling_of_a_round_number():
    points = [(60.0 + step, 20.0) for step in range(9)] + [(270.0, 10.0)]
    (axes,) = draw_front(points, [str(place) for place in range(10)], "memory", "bytes").axes
    assert axes.get_xticks().tolist() == [50, 100, 200, 400]
    assert axes.get_xlim()[0] == 50
    for low, first in ((3.0, 2.0), (4.9, 4.0), (9.5, 8.0)):  # a tick is below all points, by less than a doubling
        points = [(low, 20.0), *((10.0 + step / 10, 19.0) for step in range(9)), (64.0, 10.0)]
        (axes,) = draw_front(points, [str(place) for place in range(11)], "memory", "bytes").axes
        assert (axes.get_xlim()[0], axes.get_xticks()[0]) == (pytest.approx(first, rel=0.02), first)


@pytest.mark.parametrize(
    ("numbers", "have_space"),
    [([8, 12, 16, 20, 24], True), ([0.0, 0.1, 0.2, 0.4], True), ([1, 2, 3, 100], True), ([0, 1, 2, 100], False)],
)
def test_ticks_of_a_sweep_are_its_numbers_where_they_have_space(numbers, have_space):
    (axes,) = draw_lines({"1f1b": [(number, 1.0 + number) for number in numbers]}, "costs.latency", "t", "seconds").axes
    assert (axes.get_xticks().tolist() == numbers) == have_space


def test_one_number_is_in_the_middle_and_a_constant_is_drawn_from_zero():
    (axes,) = draw_lines({"1f1b": [(8.0, 4.0)]}, "schedule.microbatches", "peak", "activations").axes
    assert axes.get_xticks().tolist() == [8] == [sum(axes.get_xlim()) / 2]
    (axes,) = draw_lines({"1f1b": [(8.0, 4.0), (9.0, 4.0)]}, "schedule.microbatches", "peak", "activations").axes
    assert axes.get_ylim()[0] == 0


def test_long_titles_break_into_lines_and_long_names_leave_all_numbers():
    title, name = (
        "Llama 3 70B on 64 H100 with tensor parallelism, 4 devices, 20 stages, 640 microbatches",
        "a long name " * 6,
    )
    figure = compared([run(), run("zb-h1")], width=3.3, title=title, titles=[name, "b"])
    lines = [text for text in figure.texts if len(text.get_text()) > 9 and text.get_text() in title]
    assert " ".join(text.get_text() for text in lines) == title
    assert len(lines) == 2
    assert "640 microbatches" in lines[1].get_text()  # a number stays with its noun
    assert {"27.3 % idle", "peak 4 act.", name} <= {*words_of(figure)}
    figure.draw_without_rendering()
    assert max(text.get_window_extent().x1 for text in figure.texts) < figure.bbox.x1


@pytest.mark.parametrize("width", [3.3, 7.0])
def test_title_and_name_of_the_upright_axis_begin_at_one_edge(width):
    figure = draw_lines({"1f1b": [(8.0, 1e4), (9.0, 3e4)]}, "schedule.microbatches", "step", "seconds", width)
    figure.draw_without_rendering()
    title, name = figure.findobj(lambda part: getattr(part, "get_text", str)() in ("step", "step (s)"))
    assert title.get_window_extent().x0 == pytest.approx(name.get_window_extent().x0, abs=2)


def test_bars_keep_their_order_and_have_their_values_with_a_true_minus():
    (axes,) = draw_bars(["a", "b", "c"], [-0.1, -0.5, 0.0], ["DP 1 -> 2", "", ""], "Changes", "change").axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b", "c"]
    assert [text.get_text() for text in axes.texts if text.get_text()] == ["−10.0 %", "DP 1 → 2", "−50.0 %", "0.0 %"]
    assert axes.figure.get_suptitle() == "Changes"


def test_bars_without_notes_have_no_heading_of_notes():
    (axes,) = draw_bars(["a", "b"], [0.1, 0.5], ["", ""], "Changes", "change", "idle time").axes
    assert "idle time" not in {text.get_text() for text in axes.texts}


def test_lines_share_no_colour_while_another_is_free():
    for theme, names in {"light": ["1f1b", "zb-h1", "zb-v", "v-half"], "grey": ["1f1b", "zb-v", "v-half"]}.items():
        lines = {name: [(4, 1.0 + at), (8, 2.0 * at)] for at, name in enumerate(names)}
        (axes,) = draw_lines(lines, "m", "step time", "seconds", theme=theme).axes
        assert len({line.get_color() for line in axes.lines}) == len(names)


def test_all_charts_of_a_picture_are_boxes_or_all_are_areas():
    costs = ppsim.Costs(forward=1.0, input_grad=1.0, weight_grad=1.0)
    runs = [run(name, 16, 64, costs) for name in ("1f1b", "interleaved-1f1b", "zb-v")]
    figure = compared(runs)
    areas_of = [{text.get_text() for text in rows.numbers()} for rows in rows_of(figure)]
    assert [{"F", "F + B", "B + idle"} <= names for names in areas_of] == [True, True, False]
    assert {"F", "F + I + W", "I", "I + W", "W"} <= areas_of[2]
    assert "second stage of the device" not in words_of(figure)  # areas have no marks
    delayed = [run(name, 16, 32, ppsim.Costs(latency=0.1)) for name in ("1f1b", "interleaved-1f1b", "zb-v")]
    for whole in (runs[0].plot(), compared(delayed), compared(2 * delayed)):  # a third schedule changes nothing
        assert "narrow actions mix their colours" not in words_of(whole)
    long = run("1f1b", 4, 8, ppsim.Costs(forward=10.0, backward=20.0))  # its boxes stay boxes
    assert [len(rows.numbers()) for rows in rows_of(compared([long, run("1f1b", 64, 128)]))] == [64, 3]


def test_one_slow_device_leaves_areas_with_names_and_the_title_says_which():
    schedule = ppsim.build("1f1b", devices=64, microbatches=64)
    figure = ppsim.simulate(schedule, jitter=ppsim.Jitter(slow_devices={20: 1.3})).plot()
    assert {"F", "F + B", "F + B + idle", "B + idle"} <= {*numbers_of(figure)}
    assert "device 20 takes 1.3 x as long" in words_of(figure)


def test_the_period_of_a_mixture_is_that_of_its_steady_part():
    costs = ppsim.Costs(forward=1.0, input_grad=1.0, weight_grad=1.0)
    assert make_boxes(run("v-half", 64, 64, costs)).period == 3.0  # of 2 s in its long drain


def test_areas_of_a_run_with_jitter_have_their_names_once_and_their_edges_are_as_sharp_on_all_rows():
    schedule = ppsim.build("zb-h1", devices=64, microbatches=64)
    costs = ppsim.Costs(forward=1.0, input_grad=1.0, weight_grad=1.0, latency=0.2)
    noisy = ppsim.simulate(schedule, costs, jitter=ppsim.Jitter(actions=0.15), seed=3)
    boxes, columns = make_boxes(noisy), PixelColumns(0.0, noisy.makespan, 1000)
    for device in range(64):  # idle time up to the first action
        seen = picture(boxes, LIGHT, columns, 64)[device]
        begin = int(boxes.start[boxes.offsets[device]] * columns.per_second)
        assert np.all(seen[: max(begin - 2, 0)] == [*bytes.fromhex(LIGHT.idle[1:])])
    assert sorted(numbers_of(noisy.plot())) == ["F", "F + I + idle", "F + idle", "I + W + idle", "W"]


def test_a_kind_of_a_device_has_numbers_on_nearly_all_boxes_or_on_none():
    schedule = ppsim.build("1f1b", devices=8, microbatches=16)
    noisy = ppsim.simulate(schedule, ppsim.Costs(latency=0.3), jitter=ppsim.Jitter(actions=0.15), seed=3)
    assert sorted(map(int, numbers_of(noisy.plot()))) == sorted([*range(16)] * 8)  # backwards alone
    costs = ppsim.Costs(forward=1.0, input_grad=[2.0, 2.0, 0.5, 0.5], weight_grad=[1.0, 1.0, 0.2, 0.2])
    halves = numbers_of(run("dualpipe", 4, 20, costs).plot())  # each second backward holds one
    assert sorted(map(int, halves)) == sorted([*range(20)] * 4)  # forwards alone


def test_a_comparison_of_twelve_schedules_fits_on_a_page():
    assert compared([run("1f1b", 8, 16)] * 12).get_figheight() < 9.5


@pytest.mark.parametrize(
    ("stages", "microbatches", "words"),
    [
        (4, 8, "later stage: longer line"),
        (4, 24, "later stage: longer line in wide actions"),
        (8, 8, "later stage"),
    ],
)
def test_a_legend_promises_longer_marks_only_where_boxes_have_them(stages, microbatches, words):
    figure = run("interleaved-1f1b", 4, microbatches, stages_per_device=stages).plot()
    assert {text for text in words_of(figure) if text.startswith("later stage")} == {words}


@pytest.mark.parametrize("name", ["1f1b", "zb-h1", "zb-v", "dualpipe-v", "interleaved-1f1b"])
def test_neighbouring_areas_differ_in_grey(name):
    costs = ppsim.Costs(forward=1.0, input_grad=1.0, weight_grad=1.0)
    found = areas(make_boxes(run(name, 64, 256, costs)))
    shown = [*((area.words, area.colour(GREY), area.runs) for area in found), ("idle", GREY.idle, {})]
    for (words, colour, runs), (others, other, beside) in combinations(shown, 2):
        near = [row for row, run in runs.items() if row in beside and abs(run.last - beside[row].first) <= 4]
        if words != others and (len(near) > 4 or not beside):
            assert lighter(colour, other) >= 5, (words, others)


def test_areas_of_the_same_kinds_with_little_and_with_much_idle_time_have_a_name_each():
    costs = ppsim.Costs(forward=1.0, input_grad=1.0, weight_grad=1.0, latency=0.1)
    found = areas(make_boxes(run("v-half", 64, 256, costs)))
    little, much = sorted(area.parts[None] for area in found if area.words == "I + W + idle")
    assert little < 0.3
    assert much > 0.5
    tones = areas(make_boxes(run("zb-v", 64, 256, ppsim.Costs(forward=1.0, input_grad=1.0, weight_grad=1.0))))
    less, more = sorted(area.parts[Kind.F] for area in tones if area.words == "F + I + W")
    assert more == pytest.approx(1 / 3, abs=0.01)
    assert less == pytest.approx(1 / 5, abs=0.03)  # each second microbatch


def test_one_part_of_a_dualpipe_slot_enters_at_the_other_end():
    boxes = make_boxes(ppsim.simulate(ppsim.build("dualpipe", devices=4, microbatches=8), ppsim.Costs(overlap=2.6)))
    first, second = (boxes.stages_of_parts(half)[1][boxes.slot] for half in (0, 1))
    assert np.all(first != second)


def test_of_crowded_transfers_only_those_waited_for_are_drawn():
    costs = ppsim.Costs(latency=0.05)
    words = {}
    for stages in (1, 4):
        name = "1f1b" if stages == 1 else "interleaved-1f1b"
        options = {} if stages == 1 else {"stages_per_device": stages}
        timeline = ppsim.simulate(ppsim.build(name, devices=8, microbatches=16, **options), costs)
        words[stages] = words_of(timeline.plot(transfers=True))
    assert "transfer of a forward" in words[1]
    assert "transfer of a forward that a device waits for" in words[4]


def test_points_stand_at_their_true_memory_and_those_that_coincide_have_marks_one_upon_another():
    points, groups = [(4.0, 1.0), (4.0, 2.0), (4.0, 1.0), (5.0, 3.0)], ["1f1b", "1f1b", "zb-h1", "zb-h1"]
    (axes,) = draw_front(points, [*"abcd"], "peak activations", "act.", groups=groups).axes
    parts = [part for part in axes.collections if len(part.get_offsets())]
    assert {float(x) for part in parts for x, _ in part.get_offsets()} == {4.0, 5.0}
    assert len({size for part in parts for size in part.get_sizes()}) == 1  # size is no measure
    assert parts[0].get_zorder() > parts[1].get_zorder()  # the corners of a square are seen below a circle


def test_schedules_that_all_need_the_same_memory_are_side_by_side():
    over = {"schedule.name": ["1f1b", "zb-h1"], "schedule.microbatches": [4, 8]}
    (axes,) = ppsim.sweep(ROOT / "configs" / "unit-costs.yaml", over=over, workers=1).plot_front().axes
    assert axes.get_xlabel() == "peak activations: 4 microbatches per device in all runs"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1f1b", "zb-h1"]
    parts = [part for part in axes.collections if len(part.get_offsets())]
    assert {float(x) for part in parts for x, _ in part.get_offsets()} == {0.0, 1.0}
    assert [text.get_text() for text in axes.figure.legends[0].get_texts()] == ["fastest"]


def test_the_best_run_is_on_the_front_also_if_it_gains_little():
    points = [(1.0, 2.0), (2.0, 1.999), (3.0, 1.998), (4.0, 2.5)]
    for best, corners in ((None, [0, 2]), (2, [0, 2]), (1, [0, 1])):
        (axes,) = draw_front(points, [*"abcd"], "memory", "bytes", best=best).axes
        (front,) = (line for line in axes.lines if line.get_label().startswith("Pareto"))
        assert front.get_xydata().tolist() == [[*points[at]] for at in corners]


@pytest.mark.parametrize("width", [3.3, 7.0])
def test_words_of_other_charts_lie_within_their_figures(width):
    runs = [(4.0, 30.0), (8.0, 20.0)]
    unit = "microbatches per device"
    ledger = run("interleaved-1f1b", 16, 128, stages_per_device=2).plot_ledger(width=width)
    for figure in (ledger, draw_front(runs, ["1f1b", "zb-h1"], "peak activations", unit, width=width)):
        drawn = figure.get_tightbbox()
        assert drawn.x0 >= -0.01
        assert drawn.x1 <= width + 0.01


def test_low_rows_in_given_axes_have_a_legend_of_words():
    axes = Figure(figsize=(7, 3)).subplots()
    run("bpipe", 64, 128, ppsim.Costs(latency=0.1)).plot(ax=axes)
    assert any(text.get_text().startswith("rows too low for eviction") for text in axes.get_legend().get_texts())


def test_a_chart_of_named_schedules_keeps_their_order():
    names = ["gpipe", "zb-h1", "1f1b"]
    found = ppsim.compare(ROOT / "configs" / "unit-costs.yaml", names)
    assert [timeline.schedule.name for timeline in found.drawn] == names
    assert found.timelines[0].schedule.name == "zb-h1"


def test_a_front_and_lines_of_a_config_show_its_usable_memory():
    config, over = ROOT / "configs" / "llama-3-8b-8xh100.yaml", {"schedule.name": ["1f1b", "zb-v"]}
    sweep = ppsim.sweep(config, over={**over, "schedule.microbatches": [16, 32]}, workers=1)
    usable = 0.9 * cast(float, ppsim.load_config(config).simulate().memory().capacity)
    assert sweep.limit == pytest.approx(usable)
    keys = [{text.get_text() for text in one.legends[0].get_texts()} for one in (sweep.plot_front(), sweep.plot())]
    assert {f"usable {usable / 1e9:.3g} GB", "half filled: tight in memory"} <= keys[0]
    assert keys[1] == {"half filled: tight in memory"}
    assert ppsim.sweep(config, over={"hardware.gpus_per_node": [8, 4]}, workers=1).limit is None


def test_words_are_as_wide_at_few_dots_per_inch_as_at_many():
    figure, wide = run("zb-v", 4, 8).plot(), []
    for dpi in (100, 300):
        figure.savefig(io.BytesIO(), dpi=dpi)
        wide.append(figure.texts[0].get_window_extent(dpi=dpi).width / dpi)
    assert wide[0] == pytest.approx(wide[1], rel=0.01)
