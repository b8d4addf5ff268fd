"""The command line as a whole: help, list, validate, pipes and interrupts."""

import json
import re
import shlex
from importlib import import_module

import pytest
import typer
from charts import DARK
from command_line import ROOT, UNIT_COSTS, ppsim, start

import ppsim as library
from ppsim.cli import COMMANDS, GROUPS, PLAIN, LazyCommand


def test_help_names_every_command_and_the_exit_statuses():
    outcome = ppsim("--help")
    assert outcome.status == 0
    for word in ("simulate", "compare", "list", "validate", "0 done", "2 wrong"):
        assert word in outcome.out


SWEPT = ["sweep", UNIT_COSTS, "--over", "schedule.microbatches=8,16"]
STEP = str(ROOT / "validation" / "data" / "cpu" / "mlp" / "4" / "1f1b.json")


@pytest.mark.parametrize(
    "arguments",
    [
        ["simulate", UNIT_COSTS, "--gantt"], ["simulate", UNIT_COSTS, "--ledger-chart"], [*SWEPT, "--chart"],
        [*SWEPT, "--front"], ["compare", UNIT_COSTS, "--schedules", "1f1b,gpipe", "--gantt"],
        ["fill", UNIT_COSTS, "--work", "1s", "--gantt"], ["explain", STEP, "--gantt"],
    ],
)  # fmt: skip
def test_every_chart_has_the_same_options(arguments, tmp_path):
    drawing, chart = ["--theme", "dark", "--width", "5", "--title", "mine"], tmp_path / "chart.svg"
    assert ppsim(*arguments, chart, *drawing).status == 0
    text = chart.read_text()
    assert DARK.paper in text
    assert 'width="360pt"' in text
    assert ">mine<" in text
    outcome = ppsim(*arguments[:-1], *drawing)
    assert outcome.status == 2
    assert "--theme changes a drawing; it needs --" in outcome.err
    assert arguments[-1] in outcome.err


def test_help_names_every_command_once():
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(COMMANDS)
    lines = ppsim("--help").out.splitlines()
    assert (len(lines) <= 24, max(map(len, lines)) <= 100) == (True, True)


@pytest.mark.parametrize("name", COMMANDS)
def test_the_help_of_a_command_has_a_sentence_its_usage_three_examples_and_options_in_groups(name):
    lines = ppsim(name, "--help").out.splitlines()
    assert (len(lines) <= 24, max(map(len, lines)) <= 100) == (True, True)
    assert " ".join(lines[: lines.index("")]).count(".") == 1
    assert lines[lines.index("") + 1].startswith(f"Usage: ppsim {name}")
    examples = [line.strip() for line in lines if line.startswith("  ppsim ")]
    assert len(examples) == 3
    for example in examples:  # parsed, not run
        LazyCommand(name, callback=None).make_context(name, shlex.split(example)[2:])
    text = ppsim(name, "--help-all").out
    shown = {
        word for line in lines for word in line.split() if word.startswith("--") and not line.startswith("  ppsim")
    }
    assert shown - {"--help-all"} == set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", text, re.MULTILINE))
    only = typer.Typer(**PLAIN)
    only.command(name)(getattr(import_module(f"ppsim.commands.{COMMANDS[name][0]}"), COMMANDS[name][0]))
    options = [one for one in typer.main.get_command(only).params if one.param_type_name == "option"]
    assert {max(one.opts, key=len) for one in options} == shown - {"--help", "--help-all"}  # each has a group


def test_version():
    assert ppsim("--version").out == f"ppsim {library.__version__}\n"


def test_an_unknown_command_is_status_2():
    outcome = ppsim("simulat")
    assert outcome.status == 2
    assert "simulate" in outcome.err


def test_list_shows_every_family_by_group_on_one_screen():
    lines = ppsim("list").out.splitlines()
    names = [name for line in lines[2:] for name in line.partition("  ")[2].replace("*", "").split()]
    assert sorted(names) == sorted(library.schedules())
    assert lines[2].split() == ["basic", "naive", "gpipe*", "1f1b*", "eager-1f1b"]
    assert (len(lines) <= 24, max(map(len, lines)) <= 100) == (True, True)


def test_list_verbose_shows_titles_in_the_order_of_the_registry():
    legend, _, *lines = ppsim("list", "-v").out.splitlines()
    assert legend.endswith("M Megatron-LM, T PyTorch, P Primus")
    assert max(map(len, [legend, *lines])) <= 100
    assert [line.split()[0].rstrip("*") for line in lines] == list(library.schedules())
    assert "  M T P  1F1B" in next(line for line in lines if line.startswith("1f1b* "))


@pytest.mark.parametrize("name", library.schedules())
def test_list_shows_one_family_in_full(name):
    family = library.schedules()[name]
    shown = " ".join(ppsim("list", name).out.split())
    for text in (family.idea, family.constraints, family.makespan, family.source):
        assert " ".join(text.split()) in shown


def test_list_as_json():
    document = json.loads(ppsim("list", "--json", "-").out)
    assert document["schema"] == "ppsim.schedules/1"
    assert [entry["name"] for entry in document["schedules"]] == list(library.schedules())


def test_list_of_an_unknown_family_names_near_ones():
    outcome = ppsim("list", "zb-h3")
    assert (outcome.status, outcome.out) == (2, "")
    assert "did you mean zb-h" in outcome.err


def test_hardware_shows_every_sheet_with_its_source():
    document = json.loads(ppsim("hardware", "--json", "-").out)
    text = ppsim("hardware", "-v", "--costs").out
    assert max(map(len, text.splitlines())) <= 100
    assert ["H100", "SXM", "989", "TFLOP/s", "1.979", "PFLOP/s", "80", "GB", "3.35", "TB/s", "78", "%", "50", "%"] in [
        line.split() for line in text.splitlines()
    ]
    shown = " ".join(text.split())
    for sheet in (*document["devices"], *document["links"]):
        assert sheet["name"] in shown
        assert sheet["source"] in shown


@pytest.mark.parametrize("name", ["1f1b", "interleaved-1f1b", "dualpipe"])
def test_validate_passes_what_the_families_make(tmp_path, name):
    library.build(name, devices=4, microbatches=8).to_csv(tmp_path / "order.csv")
    outcome = ppsim("validate", tmp_path / "order.csv")
    assert (outcome.status, outcome.err) == (0, "")
    assert "a valid schedule: 4 devices" in outcome.out


def test_validate_passes_a_program(tmp_path):
    library.lower(library.build("1f1b", devices=2, microbatches=2)).to_csv(tmp_path / "program.csv")
    assert "a valid program: 2 devices" in ppsim("validate", tmp_path / "program.csv").out


def test_validate_shows_every_fault_of_every_file(tmp_path):
    (tmp_path / "a.csv").write_text("0F0,0B0,0F0\n1F0\n")
    (tmp_path / "b.csv").write_text("0F0,zero\n1B,1F0\n")
    library.build("1f1b", devices=2, microbatches=2).to_csv(tmp_path / "good.csv")
    outcome = ppsim("validate", tmp_path / "a.csv", tmp_path / "b.csv", tmp_path / "good.csv")
    assert outcome.status == 1
    for part in ("0F0", "add 1B0", "row 1, column 2", "'zero'", "row 2, column 1", "the microbatch is missing"):
        assert part in outcome.out
    assert "good.csv: a valid schedule" in outcome.out
    document = json.loads(ppsim("validate", tmp_path / "a.csv", tmp_path / "good.csv", "--json", "-").out)
    bad, good = document["files"]
    assert document["schema"] == "ppsim.validate/1"
    assert (bad["valid"], good["valid"]) == (False, True)
    assert any("add 1B0" in fault for fault in bad["faults"])
    assert (good["devices"], good["actions"]) == (2, 8)


@pytest.mark.parametrize(
    ("content", "status", "message"),
    [
        (b"", 1, "empty"),
        (b"\xff\xfe\x00", 2, "not a UTF-8 text file"),
        (b'"0F0', 1, "not a CSV file"),
        (b"0F0,1F0,1B0,0B0\n", 0, ""),
    ],
)
def test_validate_of_odd_files(tmp_path, content, status, message):
    (tmp_path / "order.csv").write_bytes(content)
    outcome = ppsim("validate", tmp_path / "order.csv")
    assert outcome.status == status
    assert message in (outcome.err if status == 2 else outcome.out)


def test_validate_shows_the_first_faults_of_a_file_and_with_verbose_all(tmp_path):
    (tmp_path / "order.csv").write_text("0F0,left,right,0B0,up,down\n")
    few, every = ppsim("validate", tmp_path / "order.csv").out, ppsim("validate", tmp_path / "order.csv", "-v").out
    faults = json.loads(ppsim("validate", tmp_path / "order.csv", "--json", "-").out)["files"][0]["faults"]
    assert len(faults) == 4
    assert few.startswith(f"FAIL  {tmp_path / 'order.csv'}: 4 faults\n      row 1, column 2: 'left' is not an action;")
    assert few.endswith("and 1 more fault; -v prints all\n")
    assert "column 6: 'down'" in every
    assert "column 6" not in few
    assert max(map(len, every.splitlines()[1:])) <= 100


@pytest.mark.parametrize("file", ["no-such-file.csv", "."])
def test_validate_of_a_file_that_cannot_be_read_is_status_2(file):
    outcome = ppsim("validate", file)
    assert outcome.status == 2
    assert "cannot be read" in outcome.err


def test_validate_takes_the_slices(tmp_path):
    assert "--slices 0" in ppsim("validate", "order.csv", "--slices", "0").err
    (tmp_path / "order.csv").write_text("0F0,0F1,0B1,0B0\n")
    outcome = ppsim("validate", tmp_path / "order.csv", "--slices", "2")
    assert "1 microbatch" in outcome.out


@pytest.mark.parametrize("slices", ["0", "-1", "2.0", "", "2147483648", "10000000001", "1" * 5000])
def test_validate_refuses_slices_that_are_no_number_of_pieces(tmp_path, slices):
    (tmp_path / "order.csv").write_text("0F0,0B0\n")
    outcome = ppsim("validate", tmp_path / "order.csv", "--slices", slices)
    assert outcome.status == 2
    for part in ("--slices", slices[:40], "at least 1", "at most 2147483647"):
        assert part in outcome.err


@pytest.mark.parametrize("slices", ["2147483647", "0002147483647"])
def test_validate_takes_the_largest_number_of_slices_as_it_is(tmp_path, slices):
    (tmp_path / "order.csv").write_text("0F0,0B0\n")
    assert "whole microbatches of 2147483647" in ppsim("validate", tmp_path / "order.csv", "--slices", slices).out


CROSSED = """0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1
1RECV_F1,1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1SEND_B1
"""


def test_validate_says_which_transport_cannot_run_a_valid_program(tmp_path):
    (tmp_path / "crossed.csv").write_text(CROSSED)
    assert ppsim("validate", tmp_path / "crossed.csv").status == 0
    outcome = ppsim("validate", tmp_path / "crossed.csv", "--transport", "rank")
    assert (outcome.status, outcome.err) == (1, "")
    for part in ("FAIL", "0SEND_F0 (row 1, column 2) meets 1RECV_F1", "it deadlocks under transport 'rank'"):
        assert part in outcome.out


def test_validate_says_what_pytorch_would_not(tmp_path):
    library.build("zb-v", devices=2, microbatches=4).to_csv(tmp_path / "schedule.csv")
    outcome = ppsim("validate", tmp_path / "schedule.csv", "--pytorch", "--transport", "pair")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.endswith("48 actions, runs under pair, fit for PyTorch\n")
    library.build("chimera", devices=2, microbatches=4).to_csv(tmp_path / "twice.csv")
    outcome = ppsim("validate", tmp_path / "twice.csv", "--pytorch")
    assert outcome.status == 1
    assert "stage 0 runs on devices 0, 1: PyTorch runs each stage on one device" in outcome.out


def test_validate_refuses_an_unknown_transport(tmp_path):
    outcome = ppsim("validate", tmp_path / "schedule.csv", "--transport", "bus")
    assert outcome.status == 2
    assert (
        "--transport='bus' is not known; use one of: async, directed, directions, pair, rank, blocking" in outcome.err
    )


def test_errors_of_a_process_are_one_message_without_a_traceback():
    process = start("simulate", UNIT_COSTS, "--set", "schedule.microbatches=none")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err.startswith("ppsim: ")
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize("name", ["order.csv", "or\tder.csv", "or\udcffder.csv"])
def test_a_file_that_is_not_there_is_named_once(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    outcome = ppsim("validate", name)
    assert outcome.status == 2
    assert outcome.err.count("der.csv") == 1
