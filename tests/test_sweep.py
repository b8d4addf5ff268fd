"""Sweeps: every combination in order, values as text, the table, the document and the charts."""

import json
import signal
import time

import pytest
from command_line import LLAMA, UNIT_COSTS, ppsim, start

import ppsim as library
from ppsim.analysis import pareto_front
from ppsim.studies.sweep import parse_values

NAMES = ["1f1b", "zb-h1", "interleaved-1f1b:4"]
OVER = {"schedule.name": NAMES, "schedule.microbatches": [8, 16]}
FLAGS = ("--over", "schedule.name=1f1b,zb-h1,interleaved-1f1b:4", "--over", "schedule.microbatches=8:16:x2")


def test_every_combination_is_there_in_order():
    table = library.sweep(UNIT_COSTS, over=OVER)
    assert [tuple(point.changes.values()) for point in table.points] == [(name, m) for name in NAMES for m in (8, 16)]
    assert [point.measures["makespan"] for point in table.points[:2]] == [33, 57]
    frame = table.to_frame()
    assert frame["makespan"].tolist() == [point.measures["makespan"] for point in table.points]
    assert (frame["peak_memory"].dtype, frame["mfu"].max()) == (float, pytest.approx(float("nan"), nan_ok=True))


def test_the_document_is_the_same_whoever_works_and_holds_what_the_library_says(tmp_path):
    found = [ppsim("sweep", UNIT_COSTS, *FLAGS, *more, "--json", "-") for more in (
        [], ["--workers", 2], ["--store", tmp_path / "runs.sqlite"], ["--store", tmp_path / "runs.sqlite"],
    )]  # fmt: skip
    assert {(one.status, one.err) for one in found} == {(0, "")}
    assert len({one.out for one in found}) == 1
    document = json.loads(found[0].out)
    assert document["schema"] == "ppsim.sweep/1"
    assert document == library.sweep(UNIT_COSTS, over=OVER).to_dict()
    assert document["points"][0]["over"] == {"schedule.name": "1f1b", "schedule.microbatches": 8}
    assert document["points"][0]["makespan"] == 33


def test_impossible_points_stand_in_the_table_with_their_rule():
    outcome = ppsim(
        "sweep", "--devices", 3, "--microbatches", 8, "--over", "schedule.name=1f1b,dualpipe", "--json", "-"
    )
    first, second = json.loads(outcome.out)["points"]
    assert first["makespan"] == 30
    assert "devices=3 is odd" in second["refused"]
    text = ppsim("sweep", "--devices", 3, "--microbatches", 8, "--over", "schedule.name=1f1b,dualpipe").out
    assert "not run  dualpipe: dualpipe: devices=3 is odd" in text
    assert "best: 1f1b; step 30.0 s; 1 of 2 ran" in text


def test_flags_may_leave_to_the_sweep_what_it_varies():
    outcome = ppsim("sweep", "--over", "schedule.devices=2,4", "--over", "schedule.name=1f1b", "--microbatches", 8)
    assert outcome.status == 0, outcome.err
    assert outcome.out.splitlines()[1:] == [
        "bubble fraction       2        4 devices",
        "1f1b             11.1 %   27.3 %",
    ]


def test_the_best_that_fits_comes_first_then_a_table_of_both_keys():
    over = ("--over", "schedule.name=1f1b,zb-h1,zb-h2,dualpipe", "--over", "schedule.microbatches=8,16")
    lines = ppsim("sweep", LLAMA, *over).out.splitlines()
    assert lines[0] == "best that fits: 1f1b, microbatches=16; step 2.89 s, 45,368 tokens/s; 6 of 8 ran"
    assert lines[1].split() == ["tokens/s", "8", "16", "microbatches"]
    assert [line.split()[0] for line in lines[2:6]] == ["1f1b", "zb-h1", "zb-h2", "dualpipe"]
    assert lines[4].split()[1:] == ["-", "53,308!"]
    assert lines[6] == "* tight in memory, ! does not fit"
    assert [line.split(":")[0] for line in lines[7:] if line.startswith("not run")] == [
        "not run  zb-h2, microbatches=8", "not run  dualpipe, microbatches=8",
    ]  # fmt: skip


def test_of_three_keys_the_best_rows_are_shown():
    over = ("schedule.microbatches=8:32:x2", "layout.microbatch_size=1,2", "schedule.name=1f1b,zb-h1,zb-v")
    over = [word for one in over for word in ("--over", one)]
    lines = ppsim("sweep", LLAMA, *over).out.splitlines()
    assert (len(lines) <= 24, max(map(len, lines)) <= 100) == (True, True)
    assert lines[1].split()[-3:] == ["tokens/s", "bubble", "memory"]
    assert lines[0].startswith("best that fits: microbatches=8, microbatch_size=1, zb-v;")
    assert lines[2].split()[:3] == ["8", "1", "zb-v"]  # what fits comes before what is tight or over
    assert "and 4 more; -v prints all" in lines


def test_the_text_fits_100_columns():
    over = ("--over", "layout.recompute=none,selective,full", "--over", "schedule.name=1f1b,dualpipe:7,zb-h1")
    outcome = ppsim("sweep", LLAMA, *over, "-v")
    assert outcome.status == 0, outcome.err
    assert max(map(len, outcome.out.splitlines())) <= 100
    assert "tokens/s" in outcome.out


def test_the_text_has_every_refusal_whole():
    over = {"schedule.name": ["interleaved-1f1b:2"], "schedule.microbatches": [8, 9], "schedule.devices": [4]}
    found = library.sweep({"schedule": {}}, over=over)
    words = [word for key, values in over.items() for word in ("--over", f"{key}={','.join(map(str, values))}")]
    text = ppsim("sweep", UNIT_COSTS, *words, "-v").out
    assert found.points[1].refused in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 100


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2,4", [1, 2, 4]),
        ("1f1b,interleaved-1f1b:4", ["1f1b", "interleaved-1f1b:4"]),
        ("8:128:x2", [8, 16, 32, 64, 128]),
        ("8:100:x2,3", [8, 16, 32, 64, 3]),
        ("0:1ms:5", [0, 0.00025, 0.0005, 0.00075, 0.001]),
        ("2:10:3", [2, 6, 10]),
        ("schedule.microbatches=8:32:8", [8, 11, 15, 18, 22, 25, 29, 32]),
        ("layout.tensor=1:3:5", [1, 2, 3]),
        ("1ms,2 us", ["1ms", "2 us"]),
        ("[1, 2],[3, 4]", [[1, 2], [3, 4]]),
        ("true,null", [True, None]),
    ],
)
def test_values_as_text(text, values):
    key, sign, part = text.rpartition("=")
    found = parse_values(part, key) if sign else parse_values(text)
    assert found == pytest.approx(values) if isinstance(values[0], float) else found == values


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([UNIT_COSTS], "nothing to sweep"),
        ([UNIT_COSTS, "--over", "schedule.microbatches"], "write KEY=VALUE"),
        ([UNIT_COSTS, "--over", "schedule.microbatches=8,,16"], "a value is empty"),
        ([UNIT_COSTS, "--over", "schedule.microbatches=8:128:x1"], "a factor above 1"),
        ([UNIT_COSTS, "--over", "costs.latency=1:2:x1.000001"], "more than 100,000 values"),
        ([UNIT_COSTS, "--over", "costs.latency=1:2:x1.0000000000000002"], "more than 100,000 values"),
        ([UNIT_COSTS, "--over", "costs.latency=0:1:100001"], "more than 100,000 values"),
        ([UNIT_COSTS, "--over", "schedule.microbaches=8,16"], "unknown key; did you mean microbatches?"),
        ([UNIT_COSTS, *FLAGS, "--set", "transport=asinc"], "transport: 'asinc' is not known"),
        ([UNIT_COSTS, *FLAGS, "--table", "t.xls"], "must end in one of: .csv, .md, .tex"),
        ([UNIT_COSTS, *FLAGS, "--workers", 2, "--dask", "tcp://localhost:1"], "give one of them"),
    ],
)
def test_a_wrong_call_is_one_message_and_status_2(arguments, message):
    outcome = ppsim("sweep", *arguments)
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.count(message) == 1


def test_every_point_says_what_its_stages_hold():
    over = {"schedule.name": ["1f1b", "zb-v"], "schedule.microbatches": [16, 32]}
    found = library.sweep(LLAMA, over=over)
    eight, sixteen = "Et*4|(t*4|)*6t*4L", "Et*2|(t*2|)*14t*2L"
    assert [point["layout_string"] for point in found.to_dict()["points"]] == [eight, eight, sixteen, sixteen]
    assert "layout_string" not in library.sweep(UNIT_COSTS, over=OVER).to_dict()["points"][0]


def test_tables_and_charts_are_written(tmp_path):
    names = {"--table": ("t.csv", "t.md", "t.tex"), "--chart": ("c.svg",), "--front": ("f.png",)}
    for option, files in names.items():
        for file in files:
            outcome = ppsim("sweep", UNIT_COSTS, *FLAGS, option, tmp_path / file)
            assert outcome.status == 0, outcome.err
            assert (tmp_path / file).stat().st_size
    heads, *rows = (tmp_path / "t.csv").read_text().splitlines()
    assert heads.startswith("schedule.name,schedule.microbatches,stages_per_device,")
    assert len(rows) == 6
    assert (tmp_path / "t.md").read_text().count("\n") == 8
    tex = (tmp_path / "t.tex").read_text()
    assert r"\%" in tex
    assert tex.count(r"\\") == 7
    over = ("--over", "schedule.name=dualpipe,zb-v", "--over", "schedule.devices=3")
    done = ppsim("sweep", UNIT_COSTS, *over, "--over", "schedule.microbatches=2,4", "--table", tmp_path / "some.tex")
    assert done.status == 0, done.err
    assert "devices=3 is odd" in (tmp_path / "some.tex").read_text()
    assert "interleaved-1f1b:4" in (tmp_path / "c.svg").read_text()


def test_the_front_holds_what_no_other_beats():
    assert pareto_front([(3, 1), (1, 5), (2, 5), (2, 2), (4, 1), (1, 6)]) == [1, 3, 0]


def test_ctrl_c_leaves_and_says_how_to_go_on(tmp_path):
    store = tmp_path / "runs.sqlite"
    over = ("--over", "schedule.microbatches=8:2000:500", "--over", "costs.latency=0:1:40")
    run = start("sweep", UNIT_COSTS, *over, "--store", store, "--workers", 2)
    while not store.exists() and run.poll() is None:
        time.sleep(0.05)
    time.sleep(1.0)
    run.send_signal(signal.SIGINT)
    out, err = run.communicate(timeout=30)
    assert (run.returncode, out) == (130, "")
    assert "run the same command again to resume" in err
    assert "Traceback" not in err
