"""Charts by matplotlib: what is drawn, where, and the files."""

import sys
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from command_line import ROOT
from matplotlib.collections import LineCollection, PolyCollection, QuadMesh
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.text import Text
from pages import lane_colours, page_of, unpacked
from timelines import stepped

import ppsim
from ppsim.plots import gantt
from ppsim.plots.many_runs import draw_front

FORWARD, BACKWARD = "#2853a3", "#ffd426"
ACTIVATIONS = "live activations\n(microbatches,\none device share)"


def run(name="1f1b", devices=4, microbatches=8, costs=None, **options):
    return ppsim.simulate(ppsim.build(name, devices=devices, microbatches=microbatches, **options), costs)


def compared(timelines, **options):
    return ppsim.compare(timelines).plot(**options)


def kind_collections(figure):
    return [part for part in figure.axes[0].collections if isinstance(part, PolyCollection)][
        1:
    ]  # the first is idle time


def texts_in(axes):
    return [text.get_text() for text in labels_in(axes)]


def labels_in(axes):
    """The texts in the boxes, without the idle shares at the rows' ends."""
    return [text for text in axes.texts if "%" not in text.get_text()]


def test_each_row_ends_with_its_idle_part():
    shares = [text.get_text() for text in run().plot().axes[0].texts if "%" in text.get_text()]
    assert shares == ["27.3 % idle", "27.3 %", "27.3 %", "27.3 %"]


def test_a_fused_slot_shows_both_parts_with_their_numbers():
    schedule = ppsim.Schedule.from_orders([["0F0", "0F1", "(0F2;0B0)OVERLAP_F_B", "0B1", "0B2"]])
    figure = ppsim.simulate(schedule, ppsim.Costs(overlap=2.0)).plot()
    upper, lower = (
        [path for part in kind_collections(figure) if to_hex(part.get_facecolor()[0]) == colour
         for path in part.get_paths() if np.ptp(path.vertices[:, 1]) < 0.5]
        for colour in (FORWARD, BACKWARD)
    )  # fmt: skip
    assert upper[0].vertices[:, 1].max() <= lower[0].vertices[:, 1].min()
    assert sorted(texts_in(figure.axes[0])) == ["0", "0", "1", "1", "2", "2"]


@pytest.mark.parametrize(("name", "kinds"), [("1f1b", 2), ("zb-h1", 3), ("gpipe", 2)])
def test_each_kind_is_one_collection(name, kinds):
    assert len(kind_collections(run(name).plot())) == kinds


def test_boxes_lie_where_and_when_their_actions_run():
    timeline = run()
    corners = np.concatenate([
        [path.vertices[:4] for path in part.get_paths()] for part in kind_collections(timeline.plot())
    ])  # fmt: skip
    drawn = sorted(zip(np.rint(corners[:, 0, 1] + 0.43), corners[:, 0, 0], corners[:, 1, 0], strict=True))
    device = timeline.schedule.device
    assert drawn == sorted(zip(device, timeline.start, timeline.end, strict=True))


def test_devices_go_from_top_to_bottom_and_time_has_a_unit():
    axes = run(costs=ppsim.Costs(forward=1e-4, backward=2e-4)).plot().axes[0]
    assert axes.get_ylim() == (3.5, -0.5)
    assert axes.get_xlabel() == "time (ms)"
    assert axes.get_title(loc="left") == "1f1b, 4 devices, 8 microbatches: makespan 3.3 ms, bubble fraction 27.3 %"


def test_microbatches_are_labelled_where_they_fit():
    assert sorted(map(int, texts_in(run().plot().axes[0]))) == sorted([*range(8)] * 8)
    assert texts_in(run().plot(labels=False).axes[0]) == []
    assert texts_in(run(devices=64, microbatches=128).plot().axes[0]) == []


def test_labels_lie_inside_their_boxes():
    timeline = run("interleaved-1f1b", 4, 16, stages_per_device=2)
    figure = timeline.plot()
    figure.draw_without_rendering()
    axes = figure.axes[0]
    pixels_per_second = axes.get_window_extent().width / timeline.makespan
    for text in labels_in(axes):
        centre = text.get_position()
        box = np.flatnonzero(
            (timeline.schedule.device == centre[1]) & (timeline.start <= centre[0]) & (timeline.end >= centre[0])
        )
        assert len(box) == 1
        assert text.get_window_extent().width <= (timeline.end - timeline.start)[box[0]] * pixels_per_second


@pytest.mark.parametrize(("name", "microbatches"), [("1f1b", 32), ("zb-v", 16), ("interleaved-1f1b", 32)])
@pytest.mark.parametrize("width", [7, 11, 15])
def test_either_every_row_is_numbered_or_none(name, microbatches, width):
    schedule = ppsim.build(name, devices=8, microbatches=microbatches)
    for sigma in (0.0, 0.05):
        timeline = ppsim.simulate(schedule, ppsim.Costs(latency=0.1), jitter=ppsim.Jitter(actions=sigma))
        numbered = {text.get_position()[1] for text in labels_in(timeline.plot(width=width).axes[0])}
        assert len(numbered) in (0, 8)


def test_too_many_actions_are_shown_as_busy_shares_of_time():
    figure = run(microbatches=2048).plot()
    assert kind_collections(figure) == []
    (shares,) = (part.get_array() for part in figure.axes[0].collections if isinstance(part, QuadMesh))
    assert shares.shape[0] == 2 * 4 - 1
    assert np.nanmin(shares) >= 0
    assert np.nanmax(shares) == pytest.approx(1)
    assert "part of its time in which a device computes" in figure.axes[-1].get_xlabel()


def test_fill_and_drain_of_a_large_chart_are_enlarged():
    axes = run(devices=64, microbatches=1024).plot().axes[0]
    fill, steady = (axes.transData.transform([(first, 0), (last, 0)])[:, 0] for first, last in ((0, 189), (189, 3072)))
    assert np.ptp(fill) > np.ptp(steady)
    assert [text.get_text().split(",")[0] for text in labels_in(axes)] == ["fill", "steady part", "drain"]


def test_fill_and_drain_of_large_comparisons_are_enlarged_on_one_scale():
    figure = compared([run(name, devices=16, microbatches=1024) for name in ("1f1b", "zb-h1")])
    for axes in figure.axes[:2]:
        fill, steady = (axes.transData.transform([(a, 0), (b, 0)])[:, 0] for a, b in ((0, 45), (45, 3072)))
        assert np.ptp(fill) > 0.5 * np.ptp(steady)
    assert "from the first drain on" in [text.get_text() for text in figure.axes[0].texts]
    same = compared([run(name, devices=16, microbatches=1024) for name in ("1f1b", "gpipe")])
    assert same.axes[0].get_xscale() == "linear"  # all of gpipe is fill and drain


def test_one_outlier_of_a_comparison_is_cut_with_a_mark():
    figure = compared([run("1f1b"), run("gpipe"), run("naive")])
    assert [axes.get_xlim()[1] for axes in figure.axes] == pytest.approx([33 * 1.15] * 3)
    assert any("cut here" in text.get_text() for text in figure.axes[2].texts)


def test_a_comparison_says_how_far_each_is_from_the_first():
    costs = ppsim.Costs(forward=1, input_grad=1, weight_grad=1)
    figure = compared([run("1f1b", costs=costs), run("zb-h1", costs=costs)])
    assert any(text.get_text().strip() == "-18.2 %" for text in figure.axes[1].texts)


def test_where_a_number_would_lie_on_boxes_the_title_has_it():
    figure = compared([run("1f1b", microbatches=8), run("1f1b", microbatches=9)], titles=["one", "other"])
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["one", "other; step +9.1 %"]  # 36 s after 33 s
    assert texts_in(figure.axes[1]) == [*texts_in(run("1f1b", microbatches=9).plot().axes[0])]


def test_three_iterations_are_compared_by_the_step_and_not_by_the_makespan():
    every = [run("1f1b", microbatches=8), run("pipedream", microbatches=8)]
    assert [one.iteration_time for one in every] == [33, 24]
    assert every[1].makespan > 33
    axes = compared(every, titles=["1f1b", "pipedream"]).axes[1]
    assert axes.get_title(loc="left") == "pipedream; step -27.3 %"


def test_pairs_are_compared_each_with_its_own_first():
    four = [run("1f1b", microbatches=count) for count in (8, 9, 16, 17)]  # 33, 36, 57 and 60 s
    titles = [axes.get_title(loc="left") for axes in gantt.draw_comparison(four, titles=[*"abcd"], group=2).axes]
    assert (titles[2], titles[3]) == ("c", "d; step +5.3 %")


def test_names_of_a_front_do_not_meet_and_both_ends_have_theirs():
    points = [(1.0 + step / 1000, 2.0 - step / 1000) for step in range(100)] + [(5.0, 1.0)]
    figure = draw_front(points, [f"schedule {number}" for number in range(101)], "peak memory", "bytes")
    figure.draw_without_rendering()
    names = [text for text in figure.axes[0].texts if text.get_text()]
    boxes = [name.get_window_extent() for name in names]
    assert {"schedule 0", "schedule 100"} <= {name.get_text() for name in names}
    assert not any(one.overlaps(other) for number, one in enumerate(boxes) for other in boxes[:number])


def test_actions_of_zero_length_are_ticks():
    figure = run(costs=ppsim.Costs(forward=0, backward=1)).plot()
    ticks = [part for part in figure.axes[0].collections if isinstance(part, LineCollection)]
    assert len(ticks[0].get_segments()) == 32


def test_transfers_run_from_sender_to_receiver():
    figure = run(devices=2, microbatches=1, costs=ppsim.Costs(latency=0.5)).plot(transfers=True)
    lines = [part.get_segments() for part in figure.axes[0].collections if isinstance(part, LineCollection)]
    forward, backward = lines
    assert forward[0][:, 0].tolist() == [1.0, 1.5]
    assert forward[0][0, 1] < forward[0][1, 1]
    assert backward[0][:, 0].tolist() == [4.5, 5.0]
    assert backward[0][0, 1] > backward[0][1, 1]


def test_the_critical_path_is_outlined():
    timeline = run()
    *_, outlines, line = timeline.plot(critical_path=True).axes[0].collections
    assert len(outlines.get_paths()) == len(timeline.critical_path())
    assert len(line.get_segments()) == len(timeline.critical_path()) - 1
    *_, chosen, _ = timeline.plot(critical_path=[0, 5]).axes[0].collections
    assert len(chosen.get_paths()) == 2


@pytest.mark.parametrize(
    ("costs", "memory", "label"),
    [
        (ppsim.Costs(), True, ACTIVATIONS),
        (ppsim.Costs(activation_bytes=1e9, weight_bytes=2e9), True, "memory (GB)"),
        (ppsim.Costs(activation_bytes=1e9, weight_bytes=2e9), "activations", ACTIVATIONS),
        (ppsim.Costs(activation_bytes=1e6, weight_bytes=2e6), "bytes", "memory (MB)"),
    ],
)  # fmt: skip
def test_memory_over_time_stands_under_the_chart_with_its_unit(costs, memory, label):
    timeline = run(costs=costs)
    axes = timeline.plot(memory=memory).axes[1]
    assert axes.get_ylabel() == label
    assert axes.get_xlim() == (0, timeline.makespan)
    assert [len(part.get_segments()) for part in axes.collections] == [3, 1]


def test_the_memory_curve_reaches_the_peak():
    axes = run().plot(memory=True).axes[1]
    others, fullest = (part.get_segments() for part in axes.collections)
    assert [curve[:, 1].max() for curve in (*fullest, *others)] == [4, 3, 2, 1]
    assert [text.get_text() for text in axes.texts] == ["device 0: 4"]


def test_memory_of_many_devices_is_the_fullest_and_one_area_of_the_others():
    area, line = run("1f1b", devices=17, microbatches=17).plot(memory=True).axes[1].collections
    corners = area.get_paths()[0].vertices
    assert (corners[:, 1].min(), corners[:, 1].max()) == (0, 16)  # of device 16 at first, and of device 1
    assert line.get_segments()[0][:, 1].max() == 17


def test_what_does_not_fit_is_seen_in_the_memory_chart():
    config = ppsim.load_config(ROOT / "configs" / "llama-3-8b-8xh100.yaml")
    for memory, words in (("80 GB", "one device"), ("50 GB", "does not fit")):
        axes = config.changed({"hardware.device.memory": memory}).simulate().plot(memory=True).axes[1]
        assert any(text.get_text() == f"{memory}\n{words}" for text in axes.texts)


def test_a_comparison_has_one_time_axis_and_a_block_a_timeline():
    timelines = [run("gpipe"), run("zb-h1", costs=ppsim.Costs(forward=1, input_grad=1, weight_grad=1))]
    figure = compared(timelines, titles=["first", "second"])
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["first", "second"]
    assert {axes.get_xlim() for axes in figure.axes} == {(0, 33)}
    assert figure.axes[-1].get_xlabel() == "time (s)"


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
        gantt.draw_comparison([run()] * timelines if timelines else [], titles=titles)


@pytest.mark.parametrize("group", [0, -2, True, "2"])
def test_a_group_holds_at_least_one(group):
    with pytest.raises(ppsim.ConfigError, match="such as 2 for pairs"):
        gantt.draw_comparison([run()], group=group)


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
        (lambda: run().plot(witdh=3), r"plot\(witdh=...\): there is no such option; the options are: ax, width"),
        (lambda: run().plot(width="wide"), "width='wide' is not a figure width; use a number of inches from 1"),
        (lambda: run().plot(ax="axes"), "ax='axes' must be matplotlib Axes"),
        (lambda: run().plot(title=3), "title=3 must be text"),
        (lambda: run().plot(transfers="yes"), "transfers='yes' must be True or False"),
        (lambda: run().plot(critical_path="all"), "critical_path must be True or a list of action numbers"),
        (lambda: run().save(), r"save\(\): missing a required argument: 'path'; the options are: path, width"),
        (lambda: run().save("a.png", "b.png"), r"save\('b.png'\): options are given by name"),
        (lambda: run().save("a.png", dpi=0), "dpi=0 must be the pixels per inch"),
        (lambda: run().save("a.html", width=9), "width=... is for .png, .svg, .pdf; 'a.html' is a page"),
        (lambda: run().to_text(80), r"to_text\(80\): options are given by name; the options are: width, unicode"),
        (lambda: run().plot_ledger("a.png"), "there are no options"),
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
    assert '["transfers", "critical", "memory"]' in page
    both = ppsim.compare([run().named("first"), run("gpipe")])
    both.save(tmp_path / "both.svg")
    both.save(tmp_path / "both.html", titles=["one", "other"])
    assert "first: 1f1b" in (tmp_path / "both.svg").read_text(encoding="utf-8")
    assert '"other"' in (tmp_path / "both.html").read_text(encoding="utf-8")


def test_a_folder_that_is_missing_is_an_error(tmp_path):
    with pytest.raises(ppsim.ConfigError, match="cannot be written"):
        run().save(tmp_path / "missing" / "chart.png")


def test_vector_charts_hold_text_as_text_and_are_the_same_each_time(tmp_path):
    for name in ("a.svg", "b.svg"):
        run().save(tmp_path / name)
    first, second = ((tmp_path / name).read_bytes() for name in ("a.svg", "b.svg"))
    assert first == second
    words = "".join(ElementTree.fromstring(first).itertext())  # noqa: S314 - our own file
    assert "B full backward" in words
    assert "time (s)" in words


def test_titles_carry_the_name_of_a_config_once():
    config = ppsim.load_config("configs/llama-3-8b-8xh100.yaml")
    run_, other = config.simulate(), config.simulate(ppsim.build("gpipe", devices=8, microbatches=32))
    sizes = "1f1b, 8 devices, 32 microbatches: "
    assert run_.plot().axes[0].get_title(loc="left").startswith(f"{config.data['name']}: {sizes}")
    assert run_.plot_ledger().axes[0].get_title(loc="left").startswith(f"{config.data['name']}: {sizes}")
    titles = [axes.get_title(loc="left") for axes in compared([run_, other]).axes]
    assert titles[0].startswith(f"{config.data['name']}: {sizes}")
    assert titles[1].startswith("gpipe, 8 devices, 32 microbatches: ")
    assert run().plot().axes[0].get_title(loc="left").startswith("1f1b, 4 devices, 8 microbatches: ")


def test_names_with_dollars_are_no_formulas():
    schedule = ppsim.Schedule.from_orders([["0F0", "0B0"]], name="a$b_$")
    figure = ppsim.simulate(schedule).plot()
    figure.draw_without_rendering()
    assert figure.axes[0].get_title(loc="left").startswith("a$b_$, 1 device")


def test_drawing_leaves_pyplot_and_its_settings_alone():
    import matplotlib

    before = dict(matplotlib.rcParams)
    run().plot()._repr_png_()
    assert dict(matplotlib.rcParams) == before
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()


def test_rows_of_many_devices_stay_within_a_page():
    one, many, most = (
        run(devices=devices, microbatches=count).plot(width=15).get_figheight()
        for devices, count in ((1, 8), (64, 8), (1000, 1))
    )
    assert one == pytest.approx(0.6 + 0.73, abs=0.05)  # a row, and what stands around all rows
    assert many - one == pytest.approx(64 * 0.11 - 0.6)
    assert most - one == pytest.approx(40.0 - 0.6)  # an image that viewers open


def test_thousands_of_devices_are_rows_of_neighbours():
    figure = run(devices=1500, microbatches=2).plot()
    shares = figure.axes[0].collections[0].get_array()
    assert len(shares) == 2 * 750 - 1  # a row for two devices, with nothing between rows


def spans_of(collection):
    """(middle of the row, top, bottom, start, end) of each box of a collection."""
    corners = [path.vertices[:4] for path in collection.get_paths()]
    return [(round(box[:, 1].mean()), *box[:, 1][[0, 2]].round(2), *box[:, 0][:2].round(6)) for box in corners]


def test_gathers_and_reductions_have_lanes_and_optimizer_steps_stand_among_the_actions():
    figure = stepped().plot()
    collections = [part for part in figure.axes[0].collections if isinstance(part, PolyCollection)]
    drawn = {to_hex(part.get_facecolor()[0]): spans_of(part) for part in collections}
    colours = lane_colours(stepped())
    assert drawn[colours["gathers"]] == [(0, -0.43, -0.25, 0.0, 0.3), (1, 0.57, 0.75, 0.0, 0.3)]
    assert drawn[colours["reductions"]] == [(0, 0.25, 0.43, 6.3, 6.8), (1, 1.25, 1.43, 4.3, 4.8)]
    assert drawn[colours["optimizer steps"]] == [(0, -0.23, 0.23, 6.8, 7.2), (1, 0.77, 1.23, 6.8, 7.2)]
    assert {(top, bottom) for row, top, bottom, *_ in drawn[FORWARD] if row == 0} == {(-0.23, 0.23)}
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend[-3:] == ["weight gather (UNSHARD)", "gradient reduction (REDUCE_GRAD)", "optimizer step"]


@pytest.mark.parametrize("width", [2.5, 4, 7, 12])
def test_legend_and_title_lie_within_figures_of_every_width(width):
    timelines = [run("dualpipe"), run("interleaved-1f1b"), run("zb-h1"), stepped()]
    figures = [compared(timelines, width=width), timelines[0].plot(width=width, transfers=True)]
    for figure in figures:
        figure.draw_without_rendering()
        headings = [axes.get_title(loc="left") for axes in figure.axes]
        titles = [text for text in figure.findobj(Text) if text.get_text() in headings]
        assert len(titles) == len(headings)
        for part in (*figure.legends, *titles):
            box = part.get_window_extent()
            assert box.x0 >= 0
            assert box.x1 <= figure.bbox.width + 0.5
            assert box.y0 >= 0
        assert min(axes.get_window_extent().height for axes in figure.axes) > 0.5 * figure.dpi


def test_the_overview_of_many_actions_shows_what_runs_beside_them():
    schedule = ppsim.build("1f1b", devices=8, microbatches=1600)
    timeline = ppsim.simulate(schedule, ppsim.Costs(reduce_grad=30, optimizer_step=20), optimizer="sync")
    axes = timeline.plot().axes[0]
    assert any(isinstance(part, QuadMesh) for part in axes.collections)
    colours = [to_hex(part.get_facecolor()[0]) for part in axes.collections if isinstance(part, PolyCollection)]
    assert set(lane_colours(timeline).values()) <= set(colours)
    assert set(lane_colours(timeline)) == {"reductions", "optimizer steps"}
    assert axes.get_xlim()[1] == timeline.makespan == timeline.optimizer_steps.end.max()


def test_the_fullest_device_stands_out_and_is_named():
    axes = run("dualpipe").plot(memory="activations").axes[1]
    others, fullest = axes.collections
    assert fullest.get_linewidths()[0] > others.get_linewidths()[0]
    assert [text.get_text() for text in axes.texts] == ["device 0: 5"]


@pytest.mark.parametrize(
    ("width", "step", "rotation"), [(4.5, 5, 0), (7, 1, 90), (9, 1, 90), (15, 1, 0)]
)  # fmt: skip
def test_a_row_is_labelled_whole_or_every_kth_of_it(width, step, rotation):
    axes = run(devices=4, microbatches=32).plot(width=width).axes[0]
    rows = {row: sorted(int(text.get_text()) for text in labels_in(axes) if text.get_position()[1] == row)
            for row in range(4)}  # fmt: skip
    assert {text.get_rotation() for text in labels_in(axes)} == {rotation}
    assert all(sorted(rows[row]) == sorted([*range(0, 32, step)] * 2) for row in range(3))
    assert sorted(set(rows[3])) == list(range(0, 32, step))  # where F and B are neighbours they may share a number


def test_slices_are_labelled_with_microbatch_and_piece():
    labels = texts_in(run("seq1f1b", slices=2).plot().axes[0])
    assert sorted(labels) == sorted([f"{microbatch}.{piece}" for microbatch in range(8) for piece in (0, 1)] * 8)


def test_every_second_iteration_is_paler():
    timeline = run("pipedream", iterations=3)
    _, columns = unpacked(page_of(timeline))
    assert ((columns["microbatch"] // 8) % 2 == columns["shade"]).all()
    legend = timeline.plot().legends[0].get_texts()
    assert "paler: every second iteration" in [text.get_text() for text in legend]


def test_evictions_go_to_their_host_and_come_back():
    timeline = run("bpipe", costs=ppsim.Costs(forward=1, backward=2, latency=0.25))
    out, back = [part for part in timeline.plot().axes[0].collections if isinstance(part, LineCollection)][-2:]
    hosts = timeline.schedule.evicted[:, 2].tolist()
    for lines, moves, outward in ((out, timeline.offloads, True), (back, timeline.reloads, False)):
        ways = list(zip(moves.device.tolist(), hosts, strict=True))
        drawn = [(line[:, 0].tolist(), tuple(line[:, 1].tolist())) for line in lines.get_segments()]
        assert [times for times, _ in drawn] == [list(both) for both in zip(moves.start, moves.end, strict=True)]
        assert [rows for _, rows in drawn] == [way if outward else way[::-1] for way in ways]


def test_the_line_of_the_critical_path_runs_forward_through_every_box_of_it():
    timeline = run("dualpipe", 8, 20, costs=ppsim.Costs(forward=1, input_grad=1, weight_grad=1, latency=0.1))
    *_, line = timeline.plot(critical_path=True).axes[0].collections
    times = np.concatenate([part[:, 0] for part in line.get_segments()])
    assert (np.diff(times) >= -1e-9).all()
    assert times[0] == 0
    assert times[-1] == timeline.makespan


def test_figures_can_share_one_time_scale():
    assert run().plot().axes[0].get_xlim() == (0, 33)
    assert run().plot(until=99.0).axes[0].get_xlim() == (0, 99)
    with pytest.raises(ppsim.ConfigError, match="seconds above 0"):
        run().plot(until=0)


def test_bars_of_the_ledger_are_as_long_as_the_step():
    timeline = run("interleaved-1f1b")
    (axes,) = timeline.plot_ledger().axes
    ends = {bar.get_y(): bar.get_x() + bar.get_width() for bar in axes.patches}
    assert list(ends.values()) == pytest.approx([timeline.makespan] * 4)
    (rest,) = (bars for bars in axes.containers if bars.get_label().startswith("not idle"))
    assert [bar.get_width() for bar in rest] == pytest.approx(timeline.makespan - timeline.device_idle)


def test_a_chart_drawn_twice_is_the_same_byte_by_byte():
    runs = [run(name) for name in ("1f1b", "gpipe", "zb-h1")]
    first, *others = [gantt.rendered(compared(runs), "svg") for _ in range(4)]
    assert all(other == first for other in others)
