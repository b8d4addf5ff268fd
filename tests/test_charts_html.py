"""Interactive charts: plotly figures, the page for timelines of any size, and what a notebook shows."""

import base64
import html
import io
import json
import re
import zlib
from collections import Counter
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from charts import DARK, LIGHT, THEMES
from matplotlib.image import imread
from pages import BEFORE, INPUT, LISTED, page_of, texts, unpacked
from timelines import stepped

import ppsim
from ppsim.actions import Kind

LANES = ("gathers", "reductions", "optimizer steps")
LANE_TITLES = ["weight gather", "gradient reduction", "optimizer step"]
USUAL = (Kind.F, Kind.I, Kind.W)
FUSED = [["0F0", "0F1", "0B0", "0B1"], ["1F0", "(1F1;1B0)OVERLAP_F_B", "1B1"]]


def run(name="1f1b", devices=4, microbatches=8, costs=None, **options) -> Any:
    return ppsim.simulate(ppsim.build(name, devices=devices, microbatches=microbatches, **options), costs)


def large() -> Any:
    return run(devices=8, microbatches=512, costs=ppsim.Costs(forward=1.1, backward=2.3, latency=0.07))


def test_a_kind_has_the_same_fill_in_all_drawing_code(tmp_path):
    timeline = run("zb-h1", devices=2, microbatches=2)
    wanted = {kind.name: LIGHT.kinds[kind] for kind in (Kind.F, Kind.I, Kind.W)}
    page = page_of(timeline)
    viewer = json.loads(re.findall(r"const THEMES = (.*?);\n", texts(page)[1])[0])["light"]
    assert {name: viewer["kinds"][name] for name in wanted} == wanted
    assert viewer["idle"] == LIGHT.idle
    timeline.save(tmp_path / "chart.png")
    pixels = np.rint(255 * imread(tmp_path / "chart.png")[..., :3]).astype(np.uint8).reshape(-1, 3)
    seen = Counter("#" + bytes(pixel).hex() for pixel in pixels)
    assert all(seen[colour] > 1000 for colour in (*wanted.values(), LIGHT.idle))
    bars = {trace.name.split()[0]: trace.marker.color for trace in timeline.to_plotly().data}
    assert bars == {**wanted, "idle": LIGHT.idle}
    text, picture, cells = timeline.to_text(color=True), timeline.plot().to_svg(), timeline.schedule._repr_html_()
    for kind, colour in wanted.items():
        red, green, blue = bytes.fromhex(DARK.kinds[Kind[kind]][1:])  # a terminal is dark
        assert f"48;2;{red};{green};{blue}m" in text
        assert colour in picture
        assert colour in cells


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_plotly_and_pages_have_the_colours_of_each_theme(theme):
    timeline = run("zb-h1", devices=2, microbatches=2)
    figure: Any = timeline.to_plotly(theme=theme.name)
    assert {trace.marker.color for trace in figure.data} == {theme.idle, *(theme.kinds[kind] for kind in USUAL)}
    assert (figure.layout.paper_bgcolor, figure.layout.font.color) == (theme.paper, theme.text)
    assert ("F0" in [text for trace in figure.data for text in trace.text]) is (theme.name == "grey")
    overview: Any = large().to_plotly(theme=theme.name)
    assert (overview.layout.plot_bgcolor, overview.data[0].type) == (theme.paper, "heatmap")
    assert f'"theme": "{theme.name}"' in page_of(timeline, theme=theme.name)


def test_a_plotly_chart_has_one_trace_a_kind_and_one_for_idle_time():
    figure = run("zb-h1").to_plotly()
    assert [trace.name for trace in figure.data] == [
        "idle", "F forward", "I input gradient", "W weight gradient"
    ]  # fmt: skip
    assert [line.x0 for line in figure.layout.shapes] == [27.0]  # the end of the step


def test_plotly_draws_idle_time_as_gaps_so_that_hidden_kinds_do_not_look_idle():
    timeline = run("1f1b", costs=ppsim.Costs(latency=0.1))
    idle = timeline.to_plotly().data[0]
    found = [0.0] * 4
    for device, length in zip(idle.y, idle.x, strict=True):
        found[device] += length
    assert found == pytest.approx(timeline.device_idle)


def test_plotly_numbers_boxes_with_space_and_zooms_in_time_alone():
    few, many = run("zb-h1").to_plotly(), run("zb-h1", microbatches=100).to_plotly()
    assert all(text for trace in few.data[1:4] for text in trace.text)
    assert not any(text for trace in many.data[1:4] for text in trace.text)
    assert few.layout.yaxis.fixedrange is True
    assert not few.layout.xaxis.fixedrange


def test_plotly_marks_later_stages_and_draws_slots_in_two_halves():
    marks = [trace for trace in run("zb-v").to_plotly().data if trace.type == "scatter" and trace.mode == "lines"]
    assert [trace.line.color for trace in marks] == [LIGHT.on[kind] for kind in (Kind.F, Kind.I, Kind.W)]
    for name, keys in (("zb-v", {"device"}), ("dualpipe", {"end"}), ("1f1b", set())):
        named = {
            trace.name.split()[-1] for trace in run(name).to_plotly().data if (trace.name or "").startswith("line")
        }
        assert named == keys
    slots = ppsim.simulate(ppsim.Schedule.from_orders(FUSED), ppsim.Costs(overlap=2.5)).to_plotly()
    upper, lower = (trace for trace in slots.data if trace.name == "F and B in one slot")
    assert [trace.marker.color for trace in (upper, lower)] == [LIGHT.kinds[kind] for kind in (Kind.F, Kind.B)]
    assert upper.offset + upper.width == pytest.approx(lower.offset)
    assert [(*trace.text,) for trace in (upper, lower)] == [("1",), ("0",)]
    assert not any(trace.showlegend for trace in (upper, lower))  # they have the colours of other boxes


def test_plotly_names_every_large_area_of_an_overview():
    delayed = ppsim.Costs(forward=1, input_grad=1, weight_grad=1, latency=0.1)
    names = [one.text for one in run("zb-v", 64, 256, delayed).to_plotly().layout.annotations]
    assert sorted(names) == ["F", "F", "F + I + W", "F + I + W + idle", "I + W +<br>idle", "I + idle", "W"]


def test_hover_tells_action_device_times_and_what_it_waited_for():
    figure = run(devices=2, microbatches=2, costs=ppsim.Costs(forward=1e-3, backward=2e-3, latency=1e-4)).to_plotly()
    facts = [list(row) for trace in figure.data[1:] if trace.customdata is not None for row in trace.customdata]
    assert ["1F0", "1.1 ms", "1 ms", "2.1 ms", "its input from 0F0 on device 0"] in facts
    assert ["0F1", "1 ms", "1 ms", "2 ms", "the device, busy with 0F0"] in facts
    assert "device %{y}" in figure.data[1].hovertemplate
    assert figure.layout.xaxis.ticksuffix == " ms"


def waits_of(timeline):
    """Return by name what each action of a plotly figure started after."""
    traces = (trace.customdata for trace in timeline.to_plotly().data if trace.customdata is not None)
    return {row[0]: row[4] for rows in traces for row in rows if len(row) > 4}


def test_a_box_knows_whether_it_waited_for_its_device_or_its_input():
    assert waits_of(run(devices=2, microbatches=2, costs=ppsim.Costs(latency=0.5))) == {
        "0F0": "nothing, the first of its device",
        "0F1": "the device, busy with 0F0",
        "0B0": "its input from 1B0 on device 1",
        "0B1": "its input from 1B1 on device 1",
        "1F0": "its input from 0F0 on device 0",
        "1B0": "the device, busy with 1F0",
        "1F1": "the device, busy with 1B0",
        "1B1": "the device, busy with 1F1",
    }


def test_a_blocking_send_is_named_as_what_held_the_next_action_up():
    schedule = ppsim.build("1f1b", devices=2, microbatches=2)
    waits = waits_of(ppsim.simulate(schedule, ppsim.Costs(latency=0.5), transport="blocking"))
    assert waits["0F1"] == "the SENDs of its own device"


def test_a_slot_waits_for_the_later_of_its_two_inputs():
    schedule = ppsim.Schedule.from_orders(
        [["0F0", "0F1", "0B0", "0B1"], ["1F0", "(1F1;1B0)OVERLAP_F_B", "1B1"], ["2F0", "2B0", "2F1", "2B1"]]
    )
    waits = waits_of(ppsim.simulate(schedule, ppsim.Costs(overlap=3.0)))
    assert waits["(1F1;1B0)OVERLAP_F_B"] == "its input from 2B0 on device 2"


def test_a_large_timeline_is_an_overview_and_exact_in_a_window():
    overview: Any = large().to_plotly()
    assert overview.data[0].type == "heatmap"
    assert overview.layout.images[0].source.startswith("data:image/png;base64,")
    window: Any = large().to_plotly(start=100, end=130)
    names = [facts[0] for trace in window.data[1:] for facts in trace.customdata]
    timeline = large()
    inside = np.flatnonzero((timeline.end >= 100) & (timeline.start <= 130))
    assert sorted(names) == sorted(timeline.schedule.label(row) for row in inside.tolist())


@pytest.mark.parametrize(("start", "end"), [(5, 5), (6, 5), ("a", None), (0, float("nan")), (float("-inf"), 3)])
def test_a_window_that_is_none_is_refused(start, end):
    with pytest.raises(ppsim.ConfigError, match="must lie before"):
        run().to_plotly(start=start, end=end)


@pytest.mark.parametrize("name", ["@CHARTS@", "@SCRIPT@", "@STYLE@", "@TITLE@", "a\\1\\g<0>"])
def test_a_schedule_may_be_named_like_a_place_in_the_page(name):
    orders = ppsim.build("1f1b", devices=4, microbatches=8).orders()
    page = page_of(ppsim.simulate(ppsim.Schedule.from_orders(orders, name=name)))
    about, columns = unpacked(page)
    assert about["title"] == f"{name}, 4 devices, 8 microbatches"
    assert about["short"] == name
    assert f"<title>{html.escape(name)}, 4 devices, 8 microbatches</title>" in page
    assert len(columns["start"]) == 64


def four():
    costs = ppsim.Costs(latency=0.1)
    return [run(name, devices=8, microbatches=32, costs=costs) for name in ("1f1b", "zb-h1", "zb-v", "dualpipe")]


def test_all_slowest_devices_are_marked_unless_they_are_most_of_them():
    found = [unpacked(page_of(run(costs=ppsim.Costs(forward=one))))[0]["slow"] for one in ([2, 2, 1, 1], [2, 2, 2, 1])]
    words = "device 0 computes 14 % longer than the average device; device 1 as long"
    assert found == [{"0": words, "1": words}, {}]


@pytest.mark.parametrize(("timelines", "most"), [([run()], 60_000), (four(), 60_000), ([large()], 100_000)])
def test_charts_of_every_size_are_one_small_page_without_library_or_network(timelines, most):
    page = page_of(*timelines)
    assert len(page) < most
    assert "Plotly" not in page
    assert not re.search(r"""(src|href)=|https?:|@import|fetch\(|XMLHttpRequest|WebSocket""", page)
    assert len(unpacked(page)[1]["start"]) == len(timelines[0].start)


def test_the_page_knows_the_marks_of_its_boxes():
    about, columns = unpacked(page_of(run("dualpipe")))
    assert about["locals"] == 1
    assert columns["reverse"].sum() == len(columns["start"]) / 2
    about, columns = unpacked(page_of(run("zb-v")))
    assert about["locals"] == 2
    assert "reverse" not in columns
    _, columns = unpacked(page_of(run("pipedream", iterations=3)))
    assert len(columns["begins"]) == 8
    assert unpacked(page_of(run("seq1f1b", slices=2)))[0]["slices"] == 2


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b"])
def test_a_page_of_131072_actions_stays_below_a_megabyte_even_when_no_two_times_are_alike(name):
    schedule = ppsim.build(name, devices=64, microbatches=1024 // (1 + (name != "1f1b")))
    jitter = ppsim.Jitter(actions=0.05, transfers=0.05)
    page = page_of(ppsim.simulate(schedule, ppsim.Costs(latency=0.1), jitter=jitter))
    assert len(unpacked(page)[1]["start"]) == 131_072
    assert len(page.encode()) < 900_000
    assert len(page_of(ppsim.simulate(schedule)).encode()) < 100_000


@pytest.mark.parametrize("microbatches", [512, 2048])
def test_the_page_rounds_times_to_a_tick_of_which_the_shortest_action_has_thousands(microbatches):
    costs = ppsim.Costs(forward=1.1, backward=2.3, latency=0.07)
    timeline = run(devices=8, microbatches=microbatches, costs=costs)
    shortest = float((timeline.end - timeline.start).min())
    about, columns = unpacked(page_of(timeline))
    start, length = columns["start"] * about["tick"], columns["length"] * about["tick"]
    assert 8_192 * about["tick"] <= shortest
    assert 256 * about["tick"] <= 0.07
    assert np.abs(start - timeline.start).max() <= 0.51 * about["tick"]
    assert np.abs(start + length - timeline.end).max() <= 0.51 * about["tick"]
    assert np.array_equal(columns["stage"], timeline.schedule.stage)
    assert np.array_equal(columns["microbatch"], timeline.schedule.microbatch)
    assert columns["offsets"].tolist() == timeline.schedule.offsets.tolist()
    assert [about["kinds"][code]["letter"] for code in columns["kind"][:3].astype(int)] == ["F", "F", "F"]


def test_the_page_knows_the_producer_that_a_box_waited_for():
    timeline = large()
    _, columns = unpacked(page_of(timeline))
    boxes = len(timeline.start)
    waiting = np.flatnonzero(columns["cause"][:boxes] == INPUT)
    target, back = (columns[f"transfer {name}"].astype(np.uint32).view(np.int32) for name in ("target", "source"))
    source = np.full(boxes, -1)
    source[target] = target + back
    assert len(waiting) > 500
    assert np.array_equal(source[waiting], timeline.plan.source[waiting])


def followed(about, columns, item):
    """The items from `item` back to the start, as the page's script follows them."""
    boxes, listed = len(columns["start"]), iter(columns["listed"].astype(int).tolist())
    lists = {place: next(listed) for place in np.flatnonzero(columns["cause"] == LISTED).tolist()}
    target, back = (columns[f"transfer {name}"].astype(np.uint32).view(np.int32) for name in ("target", "source"))
    chain = [item]
    while cause := int(columns["cause"][chain[-1]]):
        last = chain[-1]
        if cause == LISTED:
            chain.append(lists[last])
        elif last >= boxes:
            chain.append(int(target[last - boxes] + back[last - boxes]))
        else:
            first_input = boxes + int(np.searchsorted(target, last)) if cause != BEFORE else 0
            chain.append(last - 1 if cause == BEFORE else first_input + cause - INPUT)
    return chain[::-1]


@pytest.mark.parametrize("transport", ["async", "directed", "directions", "pair", "rank", "blocking"])
@pytest.mark.parametrize("name", ["1f1b", "zb-v", "dualpipe"])
def test_what_items_of_the_page_waited_for_leads_from_the_last_one_along_the_critical_path(name, transport):
    costs = ppsim.Costs(forward=1.1, backward=2.3, overlap=3.1, latency=0.07)
    timeline = ppsim.simulate(ppsim.build(name, devices=4, microbatches=8), costs, transport=transport)
    about, columns = unpacked(page_of(timeline))
    chain = followed(about, columns, about["last"])
    assert [item for item in chain if item < len(timeline.start)] == timeline.critical_path().tolist()


def test_the_chain_of_the_page_goes_through_optimizer_steps_reductions_and_gathers():
    timeline = stepped()
    about, columns = unpacked(page_of(timeline))
    chain = followed(about, columns, about["last"])
    actions = [item for item in chain if item < len(timeline.start)]
    assert actions == timeline.critical_path().tolist()
    beside = len(timeline.start) + len(columns["transfer target"])
    gathers, reductions, steps = (part["sort"] for part in about["lanes"])
    assert (gathers, reductions, steps) == LANES
    assert [item - beside for item in chain if item >= beside] == [0, 2, 4]


def test_the_page_holds_transfers_ledger_and_memory():
    timeline: Any = ppsim.load_config("configs/llama-3-8b-8xh100.yaml").simulate()
    about, columns = unpacked(page_of(timeline))
    remote = np.flatnonzero(timeline.plan.remote)
    length = columns["transfer length"] * about["tick"]
    assert length == pytest.approx((timeline.transfer_end - timeline.transfer_start)[remote], abs=about["tick"])
    assert {cause: sum(idle) for cause, idle in about["ledger"].items()} == pytest.approx(
        {cause: total for cause, total in timeline.ledger().to_dict()["total"].items() if total}, rel=1e-5
    )
    assert about["memory"]["peaks"] == pytest.approx(timeline.memory().peak, rel=1e-6)
    whole = timeline.memory().capacity
    assert (about["memory"]["capacity"], about["memory"]["device"]) == (0.9 * whole, whole)
    levels, first = columns["memory level"] / 65535 * about["memory"]["most"], columns["memory offsets"].astype(int)
    for device in range(timeline.schedule.devices):
        mine = levels[first[device] : first[device + 1]]
        assert mine.max() == pytest.approx(timeline.peak_memory[device], rel=1e-4)


def test_long_memory_curves_keep_their_peaks_in_the_page():
    timeline = run(devices=64, microbatches=1024)
    about, columns = unpacked(page_of(timeline))
    first = columns["memory offsets"].astype(int)
    levels = columns["memory level"] / 65535 * about["memory"]["most"]
    peaks = [levels[begin:end].max() for begin, end in pairwise(first)]
    assert np.diff(first).max() <= 1024
    assert peaks == pytest.approx(timeline.peak_activations, abs=0.01)


def test_several_schedules_stand_in_one_page_with_their_titles():
    timelines = [run("1f1b"), run("zb-h1")]
    page = page_of(*timelines, titles=["first", "second"])
    found = [unpacked(page, chart) for chart in (0, 1)]
    assert [about["short"] for about, _ in found] == ["first", "second"]
    assert [about["makespan"] for about, _ in found] == [timeline.makespan for timeline in timelines]
    assert "<title>4 devices, 8 microbatches</title>" in page


@pytest.mark.parametrize(("count", "titles"), [(0, None), (1, ["a", "b"]), (2, ["a"])])
def test_a_page_of_no_timelines_or_with_another_number_of_titles_is_refused(count, titles):
    with pytest.raises(ppsim.ConfigError, match=f"{count} timelines"):
        page_of(*[run()] * count, titles=titles)


def test_slots_keep_both_parts_in_the_page():
    timeline = ppsim.simulate(ppsim.Schedule.from_orders(FUSED), ppsim.Costs(overlap=2.5))
    about, columns = unpacked(page_of(timeline))
    slot = [code for code, kind in enumerate(about["kinds"]) if kind["slot"]]
    box = np.flatnonzero(columns["kind"] == slot[0])[0]
    parts = [
        int(columns[name][box]) for name in ("stage", "microbatch", "other_stage", "other_microbatch", "forward_first")
    ]
    assert parts == [1, 1, 1, 0, 1]


def still(display):
    """The part of a notebook's display that needs no script."""
    return display.partition("<script>")[0]


def test_a_notebook_shows_a_timeline_as_the_chart_that_plot_draws():
    page, chart = still(run()._repr_html_()), run().plot()
    png, size = chart.to_png()
    assert f'<img alt="Gantt chart: 1f1b, 4 devices, 8 microbatches" width="{size["width"]}"' in page
    assert f'src="data:image/png;base64,{png}"' in page
    assert "<svg" not in page  # which JupyterLab takes out of a notebook that it does not trust, but for its texts
    numbers = Counter(re.findall(r">([^<>]+)</text>", chart.to_svg()))
    assert sum(numbers[str(number)] for number in range(8)) == 64 + 4 + 2 + 1  # actions, devices, ticks 0 and 5, peak
    assert {"33.0 s", "27.3 %", "30 s"} <= set(numbers)
    assert len(page) < 60_000


def test_a_notebook_shows_the_viewer_where_scripts_run():
    display = run()._repr_html_()
    frame = json.loads(re.findall(r'frame.srcdoc = (".*?"); const dark', display)[0])
    _, columns = unpacked(frame)
    assert len(columns["start"]) == 64
    assert '"framed": true' in frame  # which leaves name and measures to the notebook
    assert 'frame.sandbox = "allow-scripts"' in display
    assert len(display) < 120_000


@pytest.mark.parametrize(("name", "microbatches"), [("1f1b", 128), ("zb-v", 64)])
def test_an_svg_of_many_boxes_has_an_image_of_its_rows(name, microbatches):
    timeline = run(name, devices=16, microbatches=microbatches)
    both = timeline.plot().to_svg()
    assert both.count("<image") == 1
    assert len(zlib.compress(both.encode())) < 150_000


def test_an_image_of_rows_has_few_colours_which_differ_little_from_those_drawn(monkeypatch):
    chart: Any = run("zb-v", devices=16, microbatches=64).plot(theme="dark")
    shown = chart.to_svg()
    monkeypatch.setattr("ppsim.plots.figures._in_few_colours", lambda png: base64.b64encode(png).decode())
    coded = (re.findall(r'base64,([^"]*)', text)[0] for text in (shown, chart.to_svg()))
    few, drawn = (imread(io.BytesIO(base64.b64decode(text))) for text in coded)
    few, opaque = few[len(few) - len(drawn) :], drawn[..., 3] >= 0.5  # an empty row may be above
    assert (few[..., 3] > 0).tolist() == opaque.tolist()
    assert abs(few - drawn)[opaque][:, :3].max() <= 3.5 / 255


@pytest.mark.parametrize("theme", THEMES)
def test_a_notebook_shows_pictures_and_tables_in_the_theme_that_is_asked_for(theme):
    colours, timeline = THEMES[theme], run()
    picture, table = still(timeline.to_html(theme)), timeline.schedule.to_html(theme)
    shown = imread(io.BytesIO(base64.b64decode(re.findall(r'base64,([^"]*)', picture)[0])))[..., :3]
    for kind in (Kind.F, Kind.B):
        drawn = np.array([*bytes.fromhex(colours.kinds[kind][1:])]) / 255
        assert (abs(shown - drawn).max(axis=2) <= 3.5 / 255).mean() > 0.05
        assert f'bgcolor="{colours.kinds[kind]}" style="color:{colours.on[kind]}"' in table
    assert "var(" not in picture + table
    assert f'"theme": "{theme}"' in json.loads(re.findall(r'frame.srcdoc = (".*?"); box', timeline.to_html(theme))[0])


def test_without_a_theme_a_notebook_is_light_or_dark_as_the_page_around_it():
    shown = run().schedule._repr_html_()
    for kind in (Kind.F, Kind.B):
        light, dark = LIGHT.kinds[kind], DARK.kinds[kind]
        name = f"--pp-{light[1:]}-{dark[1:]}"
        assert f"var({name},{light})" in shown
        assert shown.count(f"{name}:{dark}") == 2  # a dark system, a dark notebook
        assert shown.count(f"{name}:{light}") == 1  # a light notebook on a dark system


@pytest.mark.parametrize("shown", [run(), run().schedule], ids=["timeline", "schedule"])
def test_a_notebook_shows_html_in_another_theme_without_a_further_call(shown):
    assert shown.to_html("grey")._repr_html_() == shown.to_html("grey")
    with pytest.raises(ppsim.ConfigError, match="theme='sepia' is not known; use one of: light, dark, grey"):
        shown.to_html("sepia")


@pytest.mark.parametrize("costs", [ppsim.Costs(forward=0, backward=0), ppsim.Costs(forward=0, backward=1)])
def test_actions_of_zero_length_are_no_trouble(costs):
    timeline = run(costs=costs)
    assert timeline._repr_html_()
    assert timeline.to_plotly()
    assert page_of(timeline)


def test_a_plotly_chart_has_a_trace_for_each_sort_of_thing_beside_the_actions():
    figure: Any = stepped().to_plotly()
    gathers, reductions, steps = figure.data[-3:]
    assert [trace.name for trace in (gathers, reductions, steps)] == LANE_TITLES
    assert gathers.offset + gathers.width < steps.offset < 0 < steps.offset + steps.width < reductions.offset
    assert [list(row) for row in reductions.customdata] == [
        ["0REDUCE_GRAD", "6.3 s", "0.5 s", "6.8 s"],
        ["1REDUCE_GRAD", "4.3 s", "0.5 s", "4.8 s"],
    ]
    assert list(steps.base) == pytest.approx([6.8, 6.8])


def test_the_page_holds_gathers_reductions_and_optimizer_steps():
    timeline = stepped()
    about, columns = unpacked(page_of(timeline))
    assert [part["title"] for part in about["lanes"]] == LANE_TITLES
    for sort, spans in (("gathers", timeline.unshards), ("reductions", timeline.reductions)):
        assert columns[f"{sort} offsets"].tolist() == [0, 1, 2]
        assert columns[f"{sort} stage"].tolist() == spans.stage.tolist()
        assert columns[f"{sort} start"] * about["tick"] == pytest.approx(spans.start, abs=0.51 * about["tick"])
    ends = (columns["optimizer steps start"] + columns["optimizer steps length"]) * about["tick"]
    assert ends == pytest.approx([timeline.makespan] * 2, abs=1.1 * about["tick"])


def test_a_notebook_shows_what_runs_beside_the_actions_up_to_the_end_of_the_axis():
    page = stepped().plot(theme="light").to_svg()
    for sort in LANES:
        assert page.count(LIGHT.lanes[sort]) >= 2  # its paths and its legend entry
    path = re.findall(f'<path d="([^"]*)"[^>]*fill: {LIGHT.lanes["optimizer steps"]}', page)[0]
    axis = re.findall(r'clipPath id="\w+">\s*<rect x="([0-9.]+)" y="[0-9.]+" width="([0-9.]+)"', page)[0]
    right = float(re.findall(r"L ([0-9.]+)", path)[0])
    assert right == pytest.approx(sum(map(float, axis)), abs=1)
