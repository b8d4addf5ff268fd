"""R, OFFLOAD and RELOAD in every output: lanes of charts, the page, text, traces and what they waited for."""

import itertools
import json

import pytest
from test_charts_html import unpacked
from test_perfetto import Decoded, annotations

import ppsim
from ppsim.actions import Kind
from ppsim.plots import palette
from ppsim.plots.boxes import make_boxes
from ppsim.plots.lanes import GATHERS, OFFLOADS, REDUCTIONS, RELOADS, STEPS, TITLES, LaneSpans, band, lane_edges
from ppsim.plots.viewer import viewer_html

LISTS = [
    ["0F0", "0OFFLOAD0", "0F1", "0R1", "0RELOAD0", "0B0", "0B1"],
    ["1F0", "1B0", "1F1", "1B1"],
]  # fmt: skip


@pytest.fixture(scope="module")
def run():
    costs = ppsim.Costs(forward=1, backward=2, recompute=0.5, offload_latency=0.75)
    return ppsim.simulate(ppsim.Schedule.from_orders(LISTS), costs)


def test_copies_have_lanes_of_their_own_along_the_edges_of_a_row(run):
    boxes = make_boxes(run)
    assert [part.sort for part in boxes.lanes] == [RELOADS, OFFLOADS]
    back, out = boxes.lanes
    assert (out.name(0), out.label(0), out.start.tolist(), out.end.tolist()) == ("0OFFLOAD0", "0", [1], [1.75])
    assert (back.name(0), back.start.tolist(), back.end.tolist()) == ("0RELOAD0", [2.5], [3.25])
    assert Kind.R in boxes.kinds
    top, bottom = boxes.band
    assert lane_edges(back, boxes.lanes)[1] <= top < bottom <= lane_edges(out, boxes.lanes)[0]


def test_lanes_on_one_edge_do_not_touch():
    every = [LaneSpans(*[[]] * 4, sort) for sort in (GATHERS, RELOADS, REDUCTIONS, OFFLOADS, STEPS)]
    edges = sorted([*(lane_edges(part, every) for part in every[:-1]), band(every)])
    assert all(one[1] < other[0] for one, other in itertools.pairwise(edges))


def test_charts_and_page_name_them_in_their_legends(run):
    words = [text.get_text() for text in run.plot().legends[0].get_texts()]
    assert {palette.TITLES[Kind.R], TITLES[RELOADS], TITLES[OFFLOADS]} <= set(words)
    assert {TITLES[RELOADS], TITLES[OFFLOADS]} <= {trace.name for trace in run.to_plotly().data}
    about, columns = unpacked(viewer_html(make_boxes(run)))
    assert [(part["name"], part["numbered"]) for part in about["lanes"]] == [("RELOAD", True), ("OFFLOAD", True)]
    assert columns[f"{OFFLOADS} microbatch"].tolist() == [0]


def test_text_shows_a_copy_where_its_device_waits(run):
    assert "< activation comes back (RELOAD)" in run.to_text()
    assert "R1" in run.to_text()


def test_traces_have_a_track_for_each_way_and_say_what_waited_for_a_copy(run, tmp_path):
    run.to_perfetto(tmp_path / "run.pftrace")
    run.to_perfetto(tmp_path / "run.json")
    shown = Decoded(tmp_path / "run.pftrace").by_path()
    named = {path: [name for name, *_ in boxes] for path, boxes in shown.items()}
    assert named["device 0 / activations to host memory"] == ["0OFFLOAD0"]
    assert named["device 0 / activations from host memory"] == ["0RELOAD0"]
    assert named["device 0 / compute"] == ["0F0", "0F1", "0R1", "0B0", "0B1"]
    given = annotations(tmp_path / "run.pftrace")
    assert given["0RELOAD0"] == {"stage": 0, "microbatch": 0, "waited for": "0R1"}
    events = json.loads((tmp_path / "run.json").read_text())["traceEvents"]
    assert {event["name"]: event["args"] for event in events if event["ph"] == "X"} == given


def test_frames_and_json_have_them(run):
    assert "0R1" in run.to_frame()["action"].tolist()
    costs = run.to_dict()["costs"]
    assert costs["offload_latency"]["value"] == 0.75
    assert costs["recompute"]["value"] == [0.5, 0.5]
    assert run.sensitivities().kind["R"] >= 0
