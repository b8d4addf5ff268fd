"""Collectives of an output layer cut over devices, in every chart: when they run, and who waits for them."""

import pytest
from pages import page_of, unpacked

import ppsim


@pytest.fixture(scope="module")
def run():
    """F to 1 and, sent, 2.1 s; broadcast to 2.2; S to 2.5 and 2.6; statistics to 2.9; T to 3.5; gradient to 3.8."""
    costs = ppsim.Costs(
        forward=1.0, backward=2.0, latency=0.1, vocabulary_forward=0.4, vocabulary_backward=0.6, vocabulary_reduce=0.3
    )
    return ppsim.simulate(ppsim.build("vocab-1f1b", devices=2, microbatches=1), costs)


def test_a_collective_runs_on_every_device_that_takes_part(run):
    about, columns = unpacked(page_of(run))
    (part,) = about["lanes"]
    assert part["sort"] == "collectives"
    assert columns["collectives offsets"].tolist() == [0, 3, 6]
    start = columns["collectives start"] * about["tick"]
    assert start == pytest.approx([2.1, 2.6, 3.5] * 2, abs=about["tick"])
    assert start + columns["collectives length"] * about["tick"] == pytest.approx(
        [2.2, 2.9, 3.8] * 2, abs=about["tick"]
    )
    collectives = run.to_plotly().data[-1]
    assert [name for name, *_ in collectives.customdata] == [
        "broadcast 0",
        "reduction of statistics 0",
        "reduction of gradient 0",
    ] * 2
    assert collectives.text[0] == "0"


def test_they_have_a_lane_below_the_actions_and_stand_in_the_legend(run):
    about, _ = unpacked(page_of(run))
    (part,) = about["lanes"]
    assert about["band"] == [0, pytest.approx(1 - 0.11 / 0.86)]
    assert about["band"][1] < part["lane"][0] < part["lane"][1] <= 1
    legend = [text.get_text() for text in run.plot().texts if text.get_gid() == "legend"]
    assert part["title"] == legend[-1] == "collective of the output layer"


def test_text_shows_one_where_a_device_waits_for_it(run):
    lines = run.to_text(width=90).splitlines()
    assert "c" in lines[1].removeprefix("device 0")
    assert "c collective of the output layer" in "\n".join(lines)


def test_the_page_follows_a_wait_through_them(run):
    about, columns = unpacked(page_of(run))
    (part,) = about["lanes"]
    assert part["names"] == ["broadcast ", "reduction of statistics ", "reduction of gradient "]
    assert (part["numbered"], part["staged"]) == (True, False)
    assert columns["collectives microbatch"].tolist() == [0] * 6
    assert ["collectives microbatch", 6, 4, True] in about["columns"]
    assert run.to_plotly() is not None


def test_what_takes_no_time_is_not_drawn():
    free = ppsim.simulate(ppsim.build("vocab-1f1b", devices=2, microbatches=1), ppsim.Costs(forward=1.0, backward=2.0))
    assert unpacked(page_of(free))[0]["lanes"] == []
