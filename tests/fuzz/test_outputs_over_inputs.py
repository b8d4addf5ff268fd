"""No output option of any command replaces a file that the call reads, under any spelling or link of its name.

The options come from the commands' declarations, and the inputs from what each call is seen to open: a new option, or
a new file that a config names, is covered without a change here.
"""

import gzip
import inspect
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from command_line import ENVIRONMENT, LLAMA, ROOT, ppsim
from primus_dumps import write_dump
from published_models import CONFIGS
from typer.models import OptionInfo

import ppsim as library
from ppsim.cli import COMMANDS
from tests.fuzz.cases import COUNTS, EXAMPLES
from tests.fuzz.test_commands import SERVES, write_inputs

FEW = EXAMPLES // 3  # random cases of a test
ALL_CASES = EXAMPLES >= 500

# Calls that work. Together they read a file by every option and key that names one.
CALLS = {
    "simulate": ["unit.yaml", "files.yaml", "derived.yaml", "--schedule order.csv"],
    "compare": ["unit.yaml --schedules 1f1b,order.csv", "derived.yaml --schedules 1f1b"],
    "sweep": ["files.yaml --over costs.latency=0,1", "csv.yaml --over schedule.csv=order.csv,other.csv",
              "derived.yaml --over schedule.microbatches=2,4"],
    "what-if": ["files.yaml --set costs.latency=2ms"],
    "choose": ["derived.yaml --free schedule.name=1f1b"],
    "advise": ["derived.yaml"],
    "fits": ["derived.yaml"],
    "fill": ["files.yaml --with items.yaml", "derived.yaml --work 1ms"],
    "export": ["derived.yaml -o made.yaml"],
    "import": ["megatron launch.sh -o made.yaml", "torchtitan job.toml -o made.yaml"],
    "check": ["unit.yaml files.yaml --max-bubble 99%", "unit.yaml --baseline baseline.json"],
    "optimum": ["tiny.yaml"],
    "calibrate": ["trace.json -o made.yaml", "dump -o made.yaml", "--operators measured.json -o made.yaml",
                  "--steps runs.yaml -o made.yaml"],
    "evaluate": ["trace.json --profile profile.yaml"],
    "explain": ["trace.json files.yaml", "dump", "kineto"],
    "validate": ["order.csv other.csv", "packed.csv.gz"],
    "list": [],
    "hardware": [],
    "glossary": [],
}  # fmt: skip


def command_of(name):
    return getattr(import_module(f"ppsim.commands.{COMMANDS[name][0]}"), COMMANDS[name][0])


def options_of(name):
    """The options of a command that name a file: flag -> the option, which has `only_with` if the file is written."""
    found = {}
    for parameter in inspect.signature(command_of(name), eval_str=True).parameters.values():
        for option in getattr(parameter.annotation, "__metadata__", ()):
            if isinstance(option, OptionInfo) and ("Path" in str(parameter.annotation) or hasattr(option, "only_with")):
                words = [option.default, *(option.param_decls or ()), f"--{parameter.name.replace('_', '-')}"]
                found[next(word for word in words if str(word).startswith("--"))] = option
    return found


def outputs_of(name):
    """The options of a command that always write: flag -> an ending that it takes."""
    found = {}
    for flag, option in options_of(name).items():
        if getattr(option, "only_with", None) == "":
            ending = re.search(r"FILE(\.\w+)|(?:FILE)?(\.yaml)", f"{option.help} {option.metavar}")
            found[flag] = (ending[1] or ending[2]) if ending else ".json"
    return found


OUTPUTS = {name: outputs_of(name) for name in COMMANDS if name != SERVES}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with every file that a call names; no test changes it."""
    folder = tmp_path_factory.mktemp("inputs")
    before = Path.cwd()
    os.chdir(folder)
    write_inputs()
    (folder / "tiny.yaml").write_text("schedule: {name: 1f1b, devices: 2, microbatches: 2}\n")
    library.build("gpipe", devices=2, microbatches=2).to_csv("other.csv")
    Path("packed.csv.gz").write_bytes(gzip.compress(Path("order.csv").read_bytes()))
    costs = library.Costs(forward=0.02, backward=0.05, latency=0.001)
    write_dump(folder / "dump", library.simulate(library.Schedule.from_csv("order.csv"), costs))
    shutil.copytree(ROOT / "tests" / "data" / "kineto", "kineto")
    Path("measured.json").write_text(json.dumps(measured_operators()))
    assert ppsim("calibrate", "--operators", "measured.json", "-o", "operators.yaml").status == 0
    Path("csv.yaml").write_text("schedule: {csv: order.csv}\n")
    Path("files.yaml").write_text("schedule: {csv: order.csv}\ncosts: {profile: profile.yaml}\n")
    model = {**CONFIGS["meta-llama/Llama-2-7b"][0], "num_hidden_layers": 4}
    Path("llama").mkdir()
    Path("llama", "config.json").write_text(json.dumps(model))
    Path("job.toml").write_text(library.to_launch(library.load_config(LLAMA), "torchtitan"))
    Path("items.yaml").write_text("[{duration: 1ms, count: 2}]\n")
    Path("runs.yaml").write_text("- {config: derived.yaml, seconds: 1.5}\n- {config: model.yaml, seconds: 4}\n")
    Path("derived.yaml").write_text(
        "model: {huggingface: llama, sequence: 512}\n"
        "hardware: {device: {peak: 2 TFLOP/s, memory: 900 GB, operators: operators.yaml}, link: NVLink 4}\n"
        "schedule: {name: 1f1b, devices: 2, microbatches: 2}\n"
    )
    yield folder
    os.chdir(before)


def measured_operators():
    sizes = list(itertools.product((64, 512, 4096), repeat=3))
    return {
        "schema": "ppsim.measured-operators/1", "device": "ours", "data_type": "bfloat16", "value_bytes": 2,
        "products": [
            {"rows": m, "columns": n, "depth": k, "seconds": 1e-5 + 2 * m * n * k / 1e12} for m, n, k in sizes
        ],
        "attention": [
            {"batch": 1, "heads": 1, "width": 64, "tokens": s, "causal": False, "seconds": 2e-5 + s * s * 2e-9}
            for s in (512, 2048, 8192)
        ],
        "streams": [{"bytes": 10**9, "seconds": 0.01}],
    }  # fmt: skip


_opened = []
_watched = []


def _note_open(event, arguments):
    if _watched and event == "open" and isinstance(arguments[0], str) and str(arguments[1]).startswith("r"):
        _opened.append(os.path.realpath(arguments[0]))


sys.addaudithook(_note_open)


def seen(folder, *words):
    """The outcome of a call, and the files under `folder` that it opens to read."""
    _watched.append(True)
    _opened.clear()
    try:
        outcome = ppsim(*words)
    finally:
        _watched.clear()
    return outcome, {path for path in _opened if path.startswith(f"{folder}/")}


def contents(folder):
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def spellings(path, ending, links):
    """Names of one file: plain ones, and links with an `ending` that an option accepts."""
    relative = os.path.relpath(path)
    plain = [relative, f"./{relative}", str(path), f"links/../{relative}", f"../{Path.cwd().name}/{relative}",
             f"/proc/self/cwd/{relative}", f"{Path(path).parent}//{Path(path).name}"]  # fmt: skip
    for name, make in (("soft", os.symlink), ("hard", os.link)):
        link = links / f"{name}{ending}"
        link.unlink(missing_ok=True)
        make(path, link)
        plain.append(str(link))
    double = links / f"double{ending}"
    double.unlink(missing_ok=True)
    double.symlink_to(links / f"soft{ending}")
    return [*plain, str(double)]


@pytest.mark.parametrize("name", [name for name in CALLS if CALLS[name]])
def test_no_output_replaces_a_file_that_the_call_reads(name, folder):
    links = folder / "links"
    links.mkdir(exist_ok=True)
    cases = []
    for call in CALLS[name]:
        outcome, opened = seen(folder, name, *call.split())
        assert outcome.status == 0, (call, outcome)
        cases += itertools.product([call], sorted(opened), OUTPUTS[name].items(), range(10))
    (folder / "made.yaml").unlink(missing_ok=True)
    order = np.random.default_rng(len(cases)).permutation(len(cases))
    cases = [cases[index] for index in order]
    if not ALL_CASES:
        each_pair_once = list({case[:3]: case for case in cases}.values())
        cases = each_pair_once if EXAMPLES >= 100 else each_pair_once[:FEW]
    for call, file, (option, ending), number in cases:
        before = contents(folder)
        target = spellings(file, ending, links)[number]
        with_links = contents(folder)
        words = [word for word in call.split() if (word, option) != ("-o", "--output")]
        if option == "--output" and "made.yaml" in words:
            words.remove("made.yaml")
        outcome = ppsim(name, *words, option, target)
        assert outcome.status == 2, (call, option, target, outcome)
        assert outcome.err.startswith("ppsim: "), outcome
        assert contents(folder) == with_links, (call, option, target)
        shutil.rmtree(links)
        links.mkdir()
        assert {path: before[path] for path in contents(folder)} == contents(folder)
        COUNTS["outputs aimed at files that are read"]["refusals"] += 1


@pytest.mark.parametrize("name", [name for name in CALLS if len(OUTPUTS[name]) > 1 and CALLS[name]])
def test_no_two_outputs_are_one_file(name, folder):
    call = CALLS[name][0].replace(" -o made.yaml", "").split()
    links = folder / "links"
    shutil.rmtree(links, ignore_errors=True)
    links.mkdir()
    for first, second in itertools.permutations(OUTPUTS[name], 2):
        before = contents(folder)
        target, link = folder / f"new{OUTPUTS[name][first]}", links / f"link{OUTPUTS[name][second]}"
        link.symlink_to(target)
        outcome = ppsim(name, *call, first, target, second, link)
        assert outcome.status == 2, outcome
        assert {first, "both", second} <= set(outcome.err.split()), outcome
        link.unlink()
        assert contents(folder) == before
        COUNTS["two outputs aimed at one file"]["refusals"] += 1


def test_every_option_that_names_an_input_is_in_a_call():
    for name in OUTPUTS:
        for flag in options_of(name).keys() - OUTPUTS[name].keys():
            assert any(flag in call for call in CALLS[name]), (name, flag)


@pytest.mark.parametrize("spelling", [str, lambda path: f"./{path}", os.path.abspath])
def test_a_baseline_alone_is_replaced_by_update(spelling, folder):
    baseline = (folder / "baseline.json").read_bytes()
    for target in ("unit.yaml", "order.csv", "profile.yaml", "trace.json", "kineto/rank-0.json.gz"):
        before = contents(folder)
        outcome = ppsim("check", "unit.yaml", "--baseline", spelling(target), "--update")
        assert outcome.status == 2, target
        assert contents(folder) == before
    for option in ("--junit", "--json"):
        for more in ([], ["--update"]):
            outcome = ppsim(
                "check", "unit.yaml", "--baseline", "baseline.json", option, spelling("baseline.json"), *more
            )
            assert outcome.status == 2
            assert (folder / "baseline.json").read_bytes() == baseline
    assert ppsim("check", "unit.yaml", "--baseline", spelling("baseline.json"), "--update").status == 0
    assert (folder / "baseline.json").read_bytes() == baseline


def test_what_the_shell_appends_to_is_an_output_too(folder):
    before = contents(folder)
    with (folder / "unit.yaml").open("a") as file:
        done = subprocess.run([sys.executable, "-m", "ppsim", "simulate", "unit.yaml"], stdout=file, env=ENVIRONMENT,
                              stderr=subprocess.PIPE, check=False, text=True)  # fmt: skip
    assert (done.returncode, "stdout: would replace a file that this call reads" in done.stderr) == (2, True)
    assert contents(folder) == before


def test_the_summary_of_a_workflow_is_an_output_too(folder, monkeypatch):
    before = contents(folder)
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "unit.yaml")
    assert "from GITHUB_STEP_SUMMARY" in ppsim("check", "unit.yaml", "--max-bubble", "99%").err
    assert contents(folder) == before


def test_files_that_worker_processes_read_are_inputs_too(folder):
    before = contents(folder)
    for more in (["--workers", "2"], ["--store", "s.sqlite"], ["--store", "s.sqlite"]):
        call = ["sweep", "csv.yaml", "--over", "schedule.csv=order.csv,other.csv", *more]
        assert ppsim(*call, "--table", "other.csv").status == 2, more
        assert ppsim(*call).status == 0
    for name in ("s.sqlite", "s.sqlite-wal", "s.sqlite-shm"):
        (folder / name).unlink(missing_ok=True)
    assert contents(folder) == before
