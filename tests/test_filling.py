"""Work in idle time: what fits, checked piece by piece and against the best of all placements of small cases."""

import itertools
import json
from typing import Any

import make_fill_docs
import numpy as np
import pytest
from command_line import LLAMA, UNIT_COSTS, ppsim
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.text import Text
from pages import texts

from ppsim import ConfigError, CostError, Costs, FillItem, build, load_config, simulate

# F = B = 1, two devices, two microbatches, 1F1B: device 0 runs F0 F1 . B0 . B1, device 1 . F0 B0 F1 B1 .
SMALL = simulate(build("1f1b", devices=2, microbatches=2), Costs(forward=1.0, backward=1.0))
MEMORY: Any = {"activation_bytes": 4.0, "weight_bytes": 10.0, "gradient_bytes": 0.0, "optimizer_bytes": 0.0}


def placed(filling):
    """Each piece as (item, device, start, end)."""
    columns = (filling.item, filling.device, filling.start, filling.end)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def check(run, filling, usable=0.0):
    """Every piece is in idle time, alone, after its release, on its device, and within the memory."""
    for item, device, start, end in placed(filling):
        one, rows = filling.items[item], run.schedule.rows(device)
        assert end - start == pytest.approx(one.duration)
        assert start >= run.device_start.min() + one.release - 1e-9
        assert one.device in (None, device)
        assert not np.any((run.row_start[rows] < end - 1e-9) & (run.row_end[rows] > start + 1e-9))
        assert run.device_start.min() - 1e-9 <= start
        assert end <= run.device_end.max() + 1e-9
        if one.memory:
            times, levels = run.memory_over_time(device)
            within = (times < end - 1e-9) & (np.append(times[1:], np.inf) > start + 1e-9)
            assert (levels[within] + one.memory <= usable + 1e-6).all()
    for (_, device, _, end), (_, other, start, _) in itertools.pairwise(placed(filling)):
        assert device < other or end <= start + 1e-9
    wanted = [one.count for one in filling.items if not one.is_endless]
    assert (filling.placed + filling.left_over).tolist() == wanted or len(wanted) < len(filling.items)


def test_pieces_fill_the_bubbles_of_a_worked_out_case():
    filling = SMALL.fill({"duration": 0.5, "count": 5})
    assert SMALL.makespan == 6.0
    assert filling.idle.tolist() == [2.0, 2.0]
    assert placed(filling) == [
        (0, 0, 2.0, 2.5), (0, 0, 2.5, 3.0), (0, 0, 4.0, 4.5), (0, 0, 4.5, 5.0), (0, 1, 0.0, 0.5),
    ]  # fmt: skip
    assert (filling.left_over.tolist(), filling.used_fraction, filling.step) == ([0], 0.625, 6.0)
    check(SMALL, filling)


def test_what_fits_nowhere_is_left_over_and_a_count_of_max_takes_what_there_is():
    filling = SMALL.fill([FillItem(1.5, count=2), FillItem(0.6, count="max", name="small")])
    assert (filling.placed.tolist(), filling.left_over.tolist()) == ([0, 4], [2, 0])
    assert filling.too_short.sum() == pytest.approx(4 * 0.4)
    check(SMALL, filling)


def test_a_piece_waits_for_its_release_and_keeps_to_its_device():
    filling = SMALL.fill([{"duration": 1, "release": 2.5}, {"duration": 0.5, "device": 1, "count": 9}])
    assert placed(filling) == [(0, 0, 4.0, 5.0), *((1, 1, start, start + 0.5) for start in (0.0, 0.5, 5.0, 5.5))]
    assert filling.left_over.tolist() == [0, 5]


def test_memory_in_use_limits_when_a_piece_runs():
    """Device 0 holds two activations of 2 bytes and 5 of weights from time 1 to 4, one until 6."""
    run = simulate(build("1f1b", devices=2, microbatches=2), Costs(forward=1.0, backward=1.0, **MEMORY))
    times, levels = run.memory_over_time(0)
    assert dict(zip(times.tolist(), levels.tolist(), strict=True))[1.0] == max(levels)
    most = float(max(levels))
    filling = run.fill(FillItem(1.0, memory=2.0, count="max", device=0), capacity=most + 1.0, headroom=0.0)
    assert placed(filling) == [(0, 0, 4.0, 5.0)]
    assert filling.too_little_memory.tolist()[0] == pytest.approx(1.0)
    assert filling.peak_after is not None
    assert filling.peak_after.tolist()[0] == most
    check(run, filling, most + 1.0)
    assert len(run.fill(FillItem(1.0, memory=1.0, count="max", device=0), capacity=most + 1.0, headroom=0.0)) == 2


def test_an_optimizer_step_is_no_idle_time():
    config = load_config(LLAMA).changed({"optimizer": "sync"})
    run = config.simulate()
    filling = run.fill(FillItem(1e-3, count="max"))
    assert run.step_start.size
    for device in range(8):
        mine = filling.device == device
        assert not np.any((filling.end[mine] > run.step_start[device]) & (filling.start[mine] < run.step_end[device]))


def _best(spans, durations):
    """Most seconds of pieces that fit in spans of idle time: every assignment is tried."""
    best = 0.0
    for places in itertools.product(range(-1, len(spans)), repeat=len(durations)):
        room = list(spans)
        for place, duration in zip(places, durations, strict=True):
            if place >= 0:
                room[place] -= duration
        if min(room) >= -1e-9:
            best = max(best, sum(one for one, place in zip(durations, places, strict=True) if place >= 0))
    return best


runs = st.builds(
    lambda forward, backward, latency, microbatches: simulate(
        build("1f1b", devices=2, microbatches=microbatches),
        Costs(forward=forward / 4, backward=backward / 4, latency=latency / 8),
    ),
    st.integers(1, 8), st.integers(1, 12), st.integers(0, 4), st.integers(1, 2),
)  # fmt: skip


@given(runs, st.lists(st.integers(1, 16), min_size=1, max_size=5))
@settings(max_examples=40, deadline=None)
def test_no_piece_is_placed_wrongly_and_at_least_half_of_the_best_is_used(run, eighths):
    durations = [one / 8 for one in eighths]
    filling = run.fill([{"duration": one} for one in durations])
    check(run, filling)
    spans = run.bubbles().seconds.tolist()
    best = _best(spans, durations)
    assert best / 2 - 1e-9 <= filling.used.sum() <= best + 1e-9


@given(runs, st.integers(1, 16), st.integers(1, 5))
@settings(max_examples=40, deadline=None)
def test_equal_pieces_are_placed_as_well_as_possible(run, eighths, count):
    filling = run.fill({"duration": eighths / 8, "count": count})
    assert filling.used.sum() == pytest.approx(_best(run.bubbles().seconds.tolist(), [eighths / 8] * count))


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_items_of_all_sorts_keep_to_their_rules(data):
    devices, microbatches = data.draw(st.integers(2, 4)), data.draw(st.integers(2, 6))
    costs = Costs(forward=1.0, backward=data.draw(st.floats(1.0, 3.0)), latency=0.1, **MEMORY)
    run = simulate(
        build(data.draw(st.sampled_from(["1f1b", "gpipe"])), devices=devices, microbatches=microbatches), costs
    )
    item = st.builds(
        FillItem, st.floats(0.05, 3.0), st.sampled_from([0.0, 1.0, 2.5]), st.sampled_from([0.0, 3.3]),
        st.sampled_from([None, 0, 1]), st.sampled_from([1, 3, 40, "max"]),
    )  # fmt: skip
    usable = float(max(run.memory().peak)) + 1.0
    filling = run.fill(data.draw(st.lists(item, min_size=1, max_size=6)), capacity=usable, headroom=0.0)
    check(run, filling, usable)
    rest = filling.idle - filling.used - filling.too_short - filling.too_little_memory
    assert rest.min() >= -1e-9
    if filling.peak_after is not None:
        assert (filling.peak_after >= filling.peak_before).all()


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([], r"items: is empty; list items, such as \{duration"),
        (3, "items: 3 must be a list of items"),
        ("40 ms", "must be a list of items"),
        ([4], r"items\[0\]: 4 must be an item"),
        ([{"memory": 1}], r"items\[0\]: duration is missing"),
        ([{"duration": "40 mm"}], r"items\[0\]: duration='40 mm': 'mm' is not a unit of seconds"),
        ([{"duration": 0}], r"items\[0\]: duration=0 must be a number of seconds above 0"),
        ({"duration": "-1 s"}, "items: duration='-1 s' must be a number of seconds above 0"),
        ([{"duration": 1}, {"duration": 1, "count": 0}], r"items\[1\]: count=0 must be a whole number from 1 to"),
        ([{"duration": 1, "device": 2}], r"items\[0\]: device=2 does not exist; the run has devices 0 to 1"),
        ([{"duration": 1, "memroy": 2}], r"items\[0\]: memroy: unknown key; did you mean memory\?"),
    ],
)
def test_a_wrong_item_is_one_clear_error(items, message):
    with pytest.raises(ConfigError, match=message):
        SMALL.fill(items)


def test_memory_that_nobody_knows_is_an_error_only_if_an_item_needs_it():
    assert len(SMALL.fill(FillItem(1.0)))
    with pytest.raises(CostError, match="memory is not known"):
        SMALL.fill(FillItem(1.0, memory=1.0))


def test_charts_show_the_pieces_among_the_actions(tmp_path):
    filled = SMALL.fill({"duration": 1.0, "count": 3, "name": "encoder"}).run
    assert "==" in filled.to_text(width=60, unicode=False)
    assert "= work in idle time" in filled.to_text(width=60, unicode=False)
    names = [trace.name for trace in filled.to_plotly().data]
    assert "work in idle time" in names
    for name in ("chart.svg", "chart.html"):
        filled.save(tmp_path / name)
    assert "work in idle time" in (tmp_path / "chart.svg").read_text(encoding="utf-8")
    assert "work in idle time" in json.dumps(texts((tmp_path / "chart.html").read_text(encoding="utf-8"))[2])
    assert "encoder" in (tmp_path / "chart.svg").read_text(encoding="utf-8")
    words = [text.get_text() for text in filled.plot().findobj(Text)]
    assert any(" → " in word for word in words)
    assert any("3 pieces of work in" in word for word in words)
    assert filled == SMALL
    assert filled.bubble_fraction == SMALL.bubble_fraction


def test_the_command_answers_first_and_fits_a_screen(tmp_path):
    outcome = ppsim("fill", LLAMA, "--work", "40ms,6GB")
    lines = outcome.out.splitlines()
    assert outcome.status == 0
    assert lines[0] == "322 pieces fit in 12.9 s of 16.4 s idle (79 %); step stays 5.14 s"
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    assert len(ppsim("fill", LLAMA, "--work", "40ms", "-v").out.splitlines()) > len(lines) + 8


def test_the_command_reads_items_and_writes_document_chart_and_table(tmp_path):
    items = tmp_path / "items.yaml"
    items.write_text(
        "- {name: encoder, duration: 120 ms, memory: 2 GB, count: 40}\n- {duration: 60 ms, release: 1 s}\n"
    )
    table, chart = tmp_path / "pieces.csv", tmp_path / "step.svg"
    outcome = ppsim("fill", LLAMA, "--with", items, "--json", "-", "--table", table, "--gantt", chart)
    document = json.loads(outcome.out)
    assert document["schema"] == "ppsim.fill/1"
    assert [one["placed"] + one["left_over"] for one in document["items"]] == [40, 1]
    assert len(document["pieces"]) == sum(one["placed"] for one in document["items"])
    assert document["pieces"][0].keys() == {"item", "device", "start", "end"}
    assert set(document["units"]) >= {"step", "duration", "start", "peak_after"}
    rows = table.read_text().splitlines()
    assert rows[0] == "item,name,device,start,end"
    assert len(rows) == 1 + len(document["pieces"])
    assert "work in idle time" in chart.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "nothing to place: give --with ITEMS.yaml, or --work such as 40ms,6GB"),
        (("--work", "40mm"), "--work '40mm': duration='40mm': 'mm' is not a unit of seconds"),
        (("--work", "40ms,6Gs"), "--work '40ms,6Gs': memory='6Gs': 'Gs' is not a unit of bytes"),
        (("--work", "1s,1B"), "memory is not known"),
    ],
)
def test_a_wrong_call_is_one_clear_error(arguments, message):
    outcome = ppsim("fill", UNIT_COSTS, *arguments)
    assert (outcome.status, outcome.out) == (2, "")
    assert message in outcome.err


def test_the_page_compares_published_steps_with_ours():
    page = make_fill_docs.PAGE.read_text(encoding="utf-8")
    assert make_fill_docs.refreshed(page) == page, "docs/howto/fill.md is out of date; run `make docs`"


@pytest.mark.parametrize("command", ["simulate", "fill"])
def test_a_table_is_csv_and_has_this_ending(tmp_path, command):
    outcome = ppsim(command, LLAMA, *["--work", "40ms"] * (command == "fill"), "--table", tmp_path / "x.tex")
    assert outcome.status == 2
    assert "--table" in outcome.err
    assert ".csv" in outcome.err
    assert not (tmp_path / "x.tex").exists()
