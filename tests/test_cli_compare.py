"""`ppsim compare`: equal work, one row a schedule, shortest step first, and a reason for each that cannot run."""

import json
import re

import pytest
from charts import DARK
from command_line import CONFIGS, LLAMA, UNIT_COSTS, ppsim
from matplotlib.text import Text
from pages import texts

import ppsim as library
from ppsim import compare
from ppsim.analysis import shown_in

SIZED = {"schedule": {"name": "1f1b", "devices": 4, "microbatches": 8}}
SIZES = ("--devices", 4, "--microbatches", 8)


def document(*arguments):
    outcome = ppsim("compare", *arguments, "--json", "-")
    assert outcome.err == ""
    return json.loads(outcome.out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


def test_schedules_are_sorted_by_step_time():
    result = document(UNIT_COSTS, "--schedules", "gpipe,zb-h1,naive,dualpipe")
    assert result["schema"] == "ppsim.comparison/1"
    assert [(row["schedule"], row["makespan"]) for row in result["schedules"]] == [
        ("dualpipe", 25), ("zb-h1", 27), ("gpipe", 33), ("naive", 96),
    ]  # fmt: skip


def test_every_schedule_does_the_same_work():
    comparison = compare(SIZED)
    for timeline in comparison.timelines:
        busy = timeline.device_busy.sum() / timeline.schedule.iterations
        assert busy == pytest.approx(4 * 8 * 3), timeline.schedule.name


def test_all_means_every_family():
    result = document(*SIZES)
    assert {row["schedule"] for row in result["schedules"]} | result["refused"].keys() == library.schedules().keys()


def test_a_row_holds_what_the_timeline_says():
    row = document(UNIT_COSTS, "--schedules", "dualpipe")["schedules"][0]
    run = library.simulate(library.build("dualpipe", devices=4, microbatches=8))
    names = (measure.name for measure in shown_in("compare"))
    beside = ["fits", "step_difference", "interval", "layout_string"]
    assert list(row) == ["schedule", "asynchronous", *names, *beside]
    assert row["span_bubble_fraction"] == run.span_bubble_fraction
    assert row["peak_activations"] == run.peak_activations.max() == 5


def test_a_stage_held_twice_counts_its_weights_twice():
    rows = {row["schedule"]: row for row in document(UNIT_COSTS, "--schedules", "1f1b,dualpipe,zb-v")["schedules"]}
    assert {name: row["weight_copies"] for name, row in rows.items()} == {"1f1b": 1, "zb-v": 1, "dualpipe": 2}


def test_asynchronous_schedules_are_compared_by_their_pace_and_hold_old_weights():
    rows = {
        row["schedule"]: row for row in document(UNIT_COSTS, "--schedules", "1f1b,pipedream,pipedream-2bw")["schedules"]
    }
    assert {name: row["iteration_time"] for name, row in rows.items()} == {
        "1f1b": 33,
        "pipedream": 24,
        "pipedream-2bw": 24,
    }
    assert {name: row["weight_copies"] for name, row in rows.items()} == {"1f1b": 1, "pipedream": 4, "pipedream-2bw": 2}
    assert rows["pipedream"]["steady_bubble_fraction"] == 0
    lines = ppsim("compare", UNIT_COSTS, "--schedules", "pipedream").out.splitlines()
    assert lines[3].split()[1:6] == ["pipedream", "(asynchronous)", "24.0", "s", "-27"]
    assert any(line.startswith("asynchronous (steps follow each other without a drain") for line in lines)


def test_transfers_are_counted_at_the_busiest_sender():
    rows = {row["schedule"]: row for row in document(UNIT_COSTS, "--schedules", "1f1b,interleaved-1f1b")["schedules"]}
    assert rows["1f1b"]["transfers"] == 2 * 8
    assert rows["interleaved-1f1b"]["transfers"] == 2 * 2 * 8


def test_a_schedule_that_cannot_run_is_listed_with_its_reason():
    outcome = ppsim("compare", "--schedules", "1f1b,dualpipe", "--devices", 3, "--microbatches", 8)
    assert outcome.status == 0
    assert "not run:" in outcome.out
    assert "dualpipe: devices=3 is odd" in outcome.out
    assert outcome.out.startswith("1f1b, the config's schedule, is the fastest that fits\n")
    alone = ppsim("compare", "--schedules", "dualpipe", "--devices", 3, "--microbatches", 8)
    assert (alone.status, alone.out.splitlines()[0]) == (1, "no schedule can run")


def test_a_slower_schedule_is_not_called_the_fastest_where_the_configs_own_is_not_named():
    base = ("compare", UNIT_COSTS, "--set", "schedule.name=zb-h1", "--schedules")  # p=4, m=8: 27 s; 1F1B and GPipe 33 s
    assert ppsim(*base, "1f1b").out.startswith("1f1b takes 22 % longer than zb-h1 (config)\n")
    first = ppsim(*base, "1f1b,gpipe").out.splitlines()[0]
    assert first == "1f1b is the fastest of these and takes 22 % longer than zb-h1 (config)"
    assert ppsim(*base, "dualpipe").out.startswith("dualpipe is the fastest (-7 %)")


@pytest.mark.parametrize(
    ("limit", "clause"),
    [
        (None, "dualpipe is the fastest, and zb-v the fastest that a framework runs"),
        (4, "zb-v is the fastest that fits"),
        (3, "none of these fits the memory"),
    ],
)
def test_one_clause_is_below_the_title_of_a_page_and_a_column_names_frameworks(tmp_path, limit, clause):
    limited = ["--memory-limit", limit] if limit else []
    path = tmp_path / "x.html"
    ppsim(
        "compare", "--schedules", "1f1b,zb-v,dualpipe", "--devices", 4, "--microbatches", 8, *limited, "--gantt", path
    )
    page = path.read_text(encoding="utf-8")
    assert f"<p><span>{clause}</span></p>" in page
    charts = texts(page)[2][0]
    assert [chart["runs"] for chart in charts] == ["Megatron-LM, Primus, PyTorch", "Primus, PyTorch", "no framework"]


@pytest.mark.parametrize(
    ("config", "schedule", "letters", "names"),
    [
        ("mixtral-8x7b-64xh100", "combined-1f1b", "M", "Megatron-LM"),  # for a model with experts
        ("qwen3.5-vl-27b-17xh100", "1f1b", "M", "Megatron-LM"),  # beside an encoder on devices of its own
        ("qwen3.5-vl-27b-17xh100", "zb-h1", "-", "no framework"),
    ],
)
def test_a_page_names_the_frameworks_of_the_table(tmp_path, config, schedule, letters, names):
    path = CONFIGS / f"{config}.yaml"
    outcome = ppsim("compare", path, "--schedules", schedule, "--gantt", tmp_path / "x.html")
    assert outcome.out.splitlines()[3].split()[-1] == letters
    assert texts((tmp_path / "x.html").read_text(encoding="utf-8"))[2][0][0]["runs"] == names


def test_none_that_can_run_is_status_1():
    outcome = ppsim("compare", "--schedules", "dualpipe", "--devices", 3, "--microbatches", 8)
    assert outcome.status == 1
    assert "dualpipe: devices=3 is odd" in outcome.out


def test_the_stages_of_the_config_go_to_the_families_that_take_them():
    rows = document(UNIT_COSTS, "--schedules", "interleaved-1f1b,1f1b,zb-v", "--stages-per-device", 4)["schedules"]
    assert {row["schedule"]: row["stages_per_device"] for row in rows} == {"interleaved-1f1b": 4, "1f1b": 1, "zb-v": 2}


def test_the_configs_own_schedule_keeps_its_one_stage_per_device():
    changes = {"schedule.name": "interleaved-1f1b", "schedule.stages_per_device": 1}
    config = library.load_config(UNIT_COSTS, overrides=changes)
    [row] = library.compare(config, ["interleaved-1f1b"]).rows()
    assert row["makespan"] == config.simulate().makespan


def test_memory_above_the_devices_is_marked():
    outcome = ppsim("compare", LLAMA, "--schedules", "1f1b,gpipe", "-v")
    rows = [line.split() for line in outcome.out.splitlines()]
    assert [next("over" in row for row in rows if row[1:2] == [name]) for name in ("1f1b", "gpipe")] == [False, True]


def test_every_schedule_is_held_against_what_the_config_runs():
    result = document(LLAMA, "--schedules", "zb-h1,1f1b,gpipe")
    now = library.load_config(LLAMA).simulate()
    assert result["current"] == "1f1b"
    assert now.table.workload is not None
    for row in result["schedules"]:
        assert row["step_difference"] == pytest.approx(row["iteration_time"] - now.iteration_time, abs=1e-12)
        assert row["tokens_per_second"] == pytest.approx(now.table.workload.tokens * 32 / row["iteration_time"])
        assert 0.3 < row["mfu"] < 0.45
        assert row["fits"] == (row["peak_memory"] <= 80e9)
    text = ppsim("compare", LLAMA, "--schedules", "zb-h1,gpipe", "-v").out
    assert "vs 1f1b" in text
    assert {"-8", "=", "mfu"} <= set(text.split())


def test_with_headroom_only_what_fits_is_left():
    result = document(LLAMA, "--schedules", "1f1b,zb-h1,gpipe", "--headroom", "10%")
    assert [row["schedule"] for row in result["schedules"]] == ["1f1b"]
    assert result["refused"]["gpipe"].startswith("does not fit: 237.1 GB too much")


@pytest.mark.parametrize("config", [LLAMA, UNIT_COSTS])
def test_no_line_is_wider_than_a_page(config):
    outcome = ppsim("compare", config, "--stages-per-device", 3, "--microbatches", 16, "-v")
    assert max(map(len, outcome.out.splitlines())) <= 100
    assert " ".join(outcome.out.split()).count("uses a search; runs only if named in --schedules") == 1


def test_the_answer_comes_first_and_fits_one_screen():
    lines = ppsim("compare", LLAMA).out.splitlines()
    assert (len(lines) <= 24, max(map(len, lines)) <= 100) == (True, True)
    assert lines[0] == (
        "vocab-1f1b is the fastest (-27 %); no framework runs it, nor a faster one that fits at these stages"
    )
    assert lines[2].split() == ["#", "schedule", "step", "vs", "1f1b", "bubble", "memory", "runs", "in"]
    ranks = [line.split()[0] for line in lines[3:] if line.lstrip()[:1].isdigit()]
    assert ranks[:3] == ["1", "2", "3="]
    assert any(line.startswith("not run: v-half, v-min, ") for line in lines)
    own = next(line for line in lines if "(config)" in line)
    assert own.split()[-3:] == ["M", "T", "P"]
    assert any(line.startswith("over the memory of a device: dualpipe") for line in lines)


def test_a_reason_is_said_once():
    outcome = ppsim("compare", LLAMA, "--set", "layout.recompute=[full, none]", "-v")
    assert outcome.status == 1
    assert " ".join(outcome.out.split()).count("recompute lists 2 levels") == 2  # of 8 and of 16 stages


def test_a_schedule_of_ones_own_is_compared(tmp_path):
    file = tmp_path / "mine.csv"
    library.build("zb-h1", devices=4, microbatches=8).to_csv(file)
    rows = document("--schedules", f"1f1b,{file}", *SIZES)["schedules"]
    assert [row["makespan"] for row in rows] == [27, 33]
    refused = document("--schedules", f"1f1b,{file}", "--devices", 4, "--microbatches", 9)["refused"]
    assert "4 devices and 8 microbatches" in refused[str(file)]
    shown = ppsim("compare", "--schedules", f"1f1b,{file}", *SIZES).out
    assert {line.split()[-1] for line in shown.splitlines() if "mine.csv  " in line} == {"T"}


def test_the_configs_slow_device_slows_every_schedule():
    slow = ("--set", "jitter.slow_devices={1: 1.5}")
    rows = {
        row["schedule"]: row["makespan"]
        for row in document(UNIT_COSTS, "--schedules", "1f1b,zb-h1", *slow)["schedules"]
    }
    assert rows["1f1b"] > 33
    assert rows["zb-h1"] > 27


def test_the_chart_takes_the_options_of_drawing_and_without_a_chart_they_are_refused(tmp_path):
    drawing = ["--memory", "--critical-path", "--theme", "dark"]
    outcome = ppsim("compare", UNIT_COSTS, "--schedules", "1f1b,zb-h1", "--gantt", tmp_path / "x.svg", *drawing)
    assert outcome.status == 0
    text = (tmp_path / "x.svg").read_text()
    assert ">critical path<" in text
    assert ">activations of the fullest device (0); thin: others<" in text
    assert DARK.paper in text
    assert "needs --gantt" in ppsim("compare", UNIT_COSTS, "--theme", "dark").err


def test_the_chart_of_all_schedules_has_the_base_and_the_fastest_and_says_how_many_are_left_out(tmp_path):
    count = len(document(UNIT_COSTS)["schedules"])
    outcome = ppsim("compare", UNIT_COSTS, "--gantt", tmp_path / "all.svg")
    words = re.findall(">([^<]+)<", (tmp_path / "all.svg").read_text())
    assert any(word.startswith(f"{count - 6} others are drawn if you name them · per device: F") for word in words)
    assert f"({count - 6} more: name them with --schedules)" in outcome.out + outcome.err
    assert len(compare(UNIT_COSTS).plot().axes) == 6 + 1  # with the axis of time
    assert sum(word == "base" or re.fullmatch(r"[+−]?[\d.]+ %", word) is not None for word in words) == 12


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([UNIT_COSTS, "--schedules", "1f1b,zb-h9"], "unknown schedule 'zb-h9'"),
        ([UNIT_COSTS, "--schedules", ","], "names none"),
        ([UNIT_COSTS, "--gantt", "chart.gif"], "must end in one of: .png, .svg, .pdf"),
        (["--schedules", "1f1b"], "nothing to simulate without --devices, --microbatches"),
        (["--microbatches", "8"], "flags such as --devices 4\n"),  # compare has no --schedule
        ([UNIT_COSTS, "--schedules", "none.csv"], "none.csv: cannot be read"),
    ],
)
def test_a_wrong_call_is_one_message_and_status_2(arguments, message):
    outcome = ppsim("compare", *arguments)
    assert (outcome.status, outcome.out) == (2, "")
    assert message in outcome.err


def test_asynchronous_schedules_are_marked_and_ranked_after_the_synchronous_ones(tmp_path):
    names = "1f1b,pipedream,zb-h1,pipedream-2bw"
    marks = {family.name for family in library.schedules().values() if family.asynchronous}
    assert marks == {"pipedream", "pipedream-2bw"}
    rows = document(UNIT_COSTS, "--schedules", names)["schedules"]
    assert [(row["schedule"], row["asynchronous"]) for row in rows] == [
        ("zb-h1", False), ("1f1b", False), ("pipedream", True), ("pipedream-2bw", True),
    ]  # fmt: skip
    frame = library.compare(SIZED, names.split(",")).to_frame()
    assert frame["asynchronous"].tolist() == [False, False, True, True]
    assert frame["peak_memory"].dtype == float
    text = ppsim("compare", UNIT_COSTS, "--schedules", names, "--gantt", tmp_path / "all.svg", "-v").out
    ranked = [line.split()[1:3] for line in text.split("\n\n")[1].splitlines()[1:]]
    assert [name for name, _ in ranked] == ["zb-h1", "1f1b", "pipedream", "pipedream-2bw"]
    assert [mark == "(asynchronous)" for _, mark in ranked] == [False, False, True, True]
    picture = (tmp_path / "all.svg").read_text()
    assert ">pipedream (asynchronous)<" in picture
    ppsim("compare", UNIT_COSTS, "--schedules", names, "--gantt", tmp_path / "all.html")
    assert "zb-h1 is the fastest synchronous schedule<" in (tmp_path / "all.html").read_text()
    assert ">1f1b<" in picture


def test_a_notebook_shows_the_columns_in_which_something_is_known():
    page = compare(SIZED, ["1f1b", "zb-h1"])._repr_html_()
    assert "<td style='text-align:left;white-space:nowrap'><b>1f1b</b></td>" in page
    heads = re.findall("<th[^>]*>([^<]*)</th>", page)
    assert heads[:5] == ["schedule", "step (s)", "vs 1f1b (%)", "idle (%)", "peak activations"]
    assert ">base</td>" in page
    assert ">−18.2</td>" in page
    assert "<td style='text-align:right;white-space:nowrap'>27</td>" in page
    assert not any(name in page for name in ("asynchronous", "peak memory", "mfu"))
    apart = compare(SIZED, ["1f1b", "pipedream-2bw"])._repr_html_()
    assert ">asynchronous</th>" in apart
    assert ">yes</td>" in apart


def test_a_notebook_marks_a_run_over_the_memory_of_its_devices():
    page = compare(LLAMA, ["1f1b", "gpipe", "zb-v"])._repr_html_()
    rows = dict(re.findall("<tr><td[^>]*>(?:<b>)?([^<]*)<(.*?)</tr>", page))
    assert {name: re.findall(">(over|tight)<", row) for name, row in rows.items()} == {
        "1f1b": [], "gpipe": ["over"], "zb-v": ["tight"],
    }  # fmt: skip


def test_comparisons_of_the_same_schedules_are_equal():
    once, again, other = (compare(SIZED, names) for names in (["1f1b"], ["1f1b"], ["zb-h1"]))
    assert once == again
    assert once != other


def test_a_config_and_names_with_their_stages_per_device_are_compared():
    names = ["1f1b", "interleaved-1f1b:4", "interleaved-1f1b:2", "dualpipe:3"]
    found = library.compare(UNIT_COSTS, names)
    assert [run.schedule.name for run in found.timelines] == ["interleaved-1f1b:4", "interleaved-1f1b:2", "1f1b"]
    assert [run.makespan for run in found.timelines] == [26.25, 28.5, 33]
    assert "stages_per_device=3 is not allowed" in found.refused["dualpipe:3"]
    assert (
        library.compare({"schedule": {"name": "1f1b", "devices": 4, "microbatches": 8}}, names).rows() == found.rows()
    )
    with pytest.raises(library.ConfigError, match="compare needs a config"):
        library.compare(names)


def test_asynchronous_schedules_are_marked_wherever_they_stand_among_others():
    names = "schedule.name=zb-v,pipedream-2bw"
    swept = ppsim("sweep", LLAMA, "--over", names).out
    assert "asynchronous (steps follow each other without a drain, on old weights): pipedream-2bw" in swept
    chosen = ppsim("choose", LLAMA, "--free", names, "--asynchronous").out
    assert "pipedream-2bw (asynchronous)" in chosen
    compared = ppsim("compare", LLAMA, "--schedules", "zb-v,pipedream-2bw", "-v").out
    assert compared.index("zb-v") < compared.index("pipedream-2bw") < compared.index("asynchronous (steps follow")


def test_a_list_of_timelines_is_compared_as_it_is_with_its_first():
    costs = library.Costs(forward=1.0, backward=2.0)
    slow = library.simulate(library.build("naive", devices=2, microbatches=4), costs).named("measured")
    found = library.compare([slow, library.simulate(library.build("1f1b", devices=2, microbatches=4), costs)])
    assert [row["schedule"] for row in found.rows()] == ["naive", "1f1b"]
    assert found.current is slow
    differences = [row["step_difference"] for row in found.rows()]
    assert differences == [0.0, found.timelines[1].iteration_time - slow.iteration_time]
    assert len(found.to_frame()) == 2
    assert any("naive" in text.get_text() for text in found.plot().findobj(Text))
    with pytest.raises(library.ConfigError, match="compare needs a config, or a list of timelines"):
        library.compare([slow, "1f1b"])
    with pytest.raises(library.ConfigError, match=r"schedules=\[\] must be a list of schedules, such as \['1f1b'"):
        library.compare(slow, [])


def test_one_run_is_compared_with_schedules_that_run_as_it_did():
    mine = library.Schedule.from_orders(["0F0 0F1 0B0 0B1", "1F0 1B0 1F1 1B1"], name="mine")
    costs = library.Costs(forward=1.0, backward=2.0, latency=0.5)
    run = library.simulate(mine, costs, transport="directed")
    found = compare(run, ["gpipe"])
    assert found.current is run
    assert [one.schedule.name for one in found.drawn] == ["mine", "gpipe"]
    gpipe = library.simulate(library.build("gpipe", devices=2, microbatches=2), costs, transport="directed")
    assert [one.makespan for one in found.drawn] == [run.makespan, gpipe.makespan]
    assert {"mine", "1f1b", "zb-h1"} < {one.schedule.name for one in compare(run).timelines}
    assert (
        compare(library.load_config(UNIT_COSTS).simulate(), ["gpipe"]).rows()
        == compare(UNIT_COSTS, ["1f1b", "gpipe"]).rows()
    )


def test_the_noise_of_a_run_applies_to_the_schedules_compared_with_it():
    schedule, jitter = library.build("1f1b", devices=2, microbatches=4), library.Jitter(actions=0.2)
    run = library.simulate(schedule, jitter=jitter, seed=3)
    assert compare(run, [schedule.named("again")]).timelines[1].makespan == run.makespan


def test_a_measured_step_is_explained_instead():
    measured = library.Timeline.from_trace("validation/data/cpu/sleep/1f1b.json")
    with pytest.raises(library.ConfigError, match="explain compares it"):
        compare(measured, ["1f1b"])


def test_a_files_lists_give_the_sizes(tmp_path):
    file = tmp_path / "mine.csv"
    library.build("zb-h1", devices=4, microbatches=6).to_csv(file)
    rows = document("--schedules", f"1f1b,{file}")["schedules"]
    assert [(row["schedule"], row["makespan"]) for row in rows] == [(str(file), 21), ("1f1b", 27)]
