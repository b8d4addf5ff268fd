"""Collectives of an output layer cut over devices, in every chart: when they run, and who waits for them."""

import pytest

import ppsim
from ppsim.plots.boxes import legend_entries, make_boxes
from ppsim.plots.lanes import COLLECTIVES, COLOURS, TITLES
from ppsim.plots.page_data import page_data


@pytest.fixture(scope="module")
def run():
    """F to 1 and, sent, 2.1 s; broadcast to 2.2; S to 2.5 and 2.6; statistics to 2.9; T to 3.5; gradient to 3.8."""
    costs = ppsim.Costs(
        forward=1.0, backward=2.0, latency=0.1, vocabulary_forward=0.4, vocabulary_backward=0.6, vocabulary_reduce=0.3
    )
    return ppsim.simulate(ppsim.build("vocab-1f1b", devices=2, microbatches=1), costs)


def test_a_collective_runs_on_every_device_that_takes_part(run):
    (part,) = make_boxes(run).lanes
    assert part.sort == COLLECTIVES
    assert part.device.tolist() == [0, 0, 0, 1, 1, 1]
    assert part.start == pytest.approx([2.1, 2.6, 3.5] * 2)
    assert part.end == pytest.approx([2.2, 2.9, 3.8] * 2)
    assert [part.name(span) for span in range(6)] == [
        "broadcast 0",
        "reduction of statistics 0",
        "reduction of gradient 0",
    ] * 2
    assert part.label(0) == "0"


def test_they_have_a_lane_below_the_actions_and_stand_in_the_legend(run):
    boxes = make_boxes(run)
    assert boxes.laned
    assert boxes.band == (-0.43, pytest.approx(0.43 - 0.2))
    assert (COLOURS[COLLECTIVES], TITLES[COLLECTIVES]) in legend_entries([boxes])


def test_text_shows_one_where_a_device_waits_for_it(run):
    lines = run.to_text(width=90).splitlines()
    assert "c" in lines[1].removeprefix("device 0")
    assert "c collective of the output layer" in "\n".join(lines)


def test_the_page_follows_a_wait_through_them(run):
    data = page_data(make_boxes(run))
    (part,) = data["lanes"]
    assert part["names"] == ["broadcast ", "reduction of statistics ", "reduction of gradient "]
    assert (part["numbered"], part["staged"]) == (True, False)
    assert ["collectives microbatch", 6, 4, True] in data["columns"]
    assert run.to_plotly() is not None


def test_what_takes_no_time_is_not_drawn():
    free = ppsim.simulate(ppsim.build("vocab-1f1b", devices=2, microbatches=1), ppsim.Costs(forward=1.0, backward=2.0))
    assert make_boxes(free).lanes == []
