"""R, OFFLOAD and RELOAD in every output: lanes of charts, the page, text, traces and what they waited for."""

import itertools
import json

import pytest
from pages import page_of, unpacked
from test_perfetto import Decoded, annotations

import ppsim

COMES_BACK, LEAVES = "activation reload", "activation offload"
LISTS = [
    ["0F0", "0OFFLOAD0", "0F1", "0R1", "0RELOAD0", "0B0", "0B1"],
    ["1F0", "1B0", "1F1", "1B1"],
]  # fmt: skip


@pytest.fixture(scope="module")
def run():
    costs = ppsim.Costs(forward=1, backward=2, recompute=0.5, offload_latency=0.75)
    return ppsim.simulate(ppsim.Schedule.from_orders(LISTS), costs)


def test_copies_have_lanes_of_their_own_along_the_edges_of_a_row(run):
    about, columns = unpacked(page_of(run))
    assert [part["sort"] for part in about["lanes"]] == ["reloads", "offloads"]
    boxes = {trace.name: [facts[0] for facts in trace.customdata] for trace in run.to_plotly().data[1:]}
    for sort, title, name, start, end in (
        ("offloads", LEAVES, "0OFFLOAD0", 1, 1.75),
        ("reloads", COMES_BACK, "0RELOAD0", 2.5, 3.25),
    ):
        assert boxes[title] == [name]
        assert columns[f"{sort} microbatch"].tolist() == [0]
        (begun,), (length,) = columns[f"{sort} start"], columns[f"{sort} length"]
        assert (begun * about["tick"], (begun + length) * about["tick"]) == pytest.approx(
            (start, end), abs=about["tick"]
        )
    assert "R" in [kind["letter"] for kind in about["kinds"]]
    back, out = (part["lane"] for part in about["lanes"])
    top, bottom = about["band"]
    assert back[1] <= top < bottom <= out[0]


def test_lanes_on_one_edge_do_not_touch():
    program = ppsim.lower(ppsim.Schedule.from_orders(LISTS), sharded=True)
    costs = ppsim.Costs(offload_latency=0.75, unshard=0.3, reduce_grad=0.5, optimizer_step=0.4)
    about, _ = unpacked(page_of(ppsim.simulate(program, costs, optimizer="sync")))
    lanes = {part["sort"]: part["lane"] for part in about["lanes"]}
    assert list(lanes) == ["gathers", "reloads", "reductions", "offloads", "optimizer steps"]
    assert lanes.pop("optimizer steps") == about["band"]
    edges = sorted([*lanes.values(), about["band"]])
    assert all(one[1] < other[0] for one, other in itertools.pairwise(edges))


def test_charts_and_page_name_them_in_their_legends(run):
    words = [text.get_text() for text in run.plot().texts if text.get_gid() == "legend"]
    assert {"R recompute", COMES_BACK, LEAVES} <= set(words)
    assert {COMES_BACK, LEAVES} <= {trace.name for trace in run.to_plotly().data}
    about, columns = unpacked(page_of(run))
    assert [(part["name"], part["numbered"]) for part in about["lanes"]] == [("RELOAD", True), ("OFFLOAD", True)]
    assert columns["offloads microbatch"].tolist() == [0]


def test_text_shows_a_copy_where_its_device_waits(run):
    assert "< activation reload" in run.to_text()
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
