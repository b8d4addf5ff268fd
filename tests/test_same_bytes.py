"""The same call writes the same bytes: every output of every command, in two processes that hash text differently."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from command_line import CONFIGS, ENVIRONMENT, ROOT
from synthetic_traces import trace_document

import ppsim

UNIT = "unit.yaml"
CALLS = {
    "simulate": f"simulate {UNIT} --json simulate.json --gantt gantt.svg --trace trace.pftrace --csv order.csv"
    " --program program.csv --table table.csv --bubbles bubbles.csv --ledger-chart ledger.svg --text",
    "print": f"simulate {UNIT} --gantt gantt.pdf --trace trace.json --ledger --json -",
    "page": f"simulate {UNIT} --gantt gantt.html",
    "noise": f"simulate {UNIT} --set jitter.actions=0.1 --set jitter.links=0.2 --set jitter.devices=0.1 --json -",
    "compare": f"compare {UNIT} --json compare.json --gantt compare.html",
    "comparison": f"compare {UNIT} --schedules 1f1b,zb-h1 --gantt compare.png",
    "sweep": f"sweep {UNIT} --over schedule.name=1f1b,zb-h1,gpipe --over schedule.microbatches=4,8 --workers 2"
    " --json sweep.json --table sweep.csv --chart sweep.svg --front front.svg",
    "choose": "choose model.yaml --free schedule.name --json choose.json --csv chosen.csv",
    "advise": f"advise {UNIT} --json advise.json",
    "what-if": f"what-if {UNIT} --set costs.latency=2ms --json what-if.json",
    "check": f"check {UNIT} model.yaml --baseline baseline.json --update",
    "gate": f"check {UNIT} model.yaml --baseline baseline.json --junit junit.xml --json check.json",
    "fits": "fits model.yaml --json fits.json",
    "calibrate": "calibrate measured.json -o profile.yaml",
    "evaluate": "evaluate measured.json --profile profile.yaml --json evaluate.json --csv evaluate.csv"
    " --chart evaluate.svg",
    "explain": f"explain measured.json {UNIT} --json explain.json --gantt explain.html --profile explained.yaml",
    "optimum": "optimum --devices 2 --microbatches 2 --json optimum.json --csv optimum.csv",
    "validate": "validate order.csv",
    "list": "list --json -",
    "hardware": "hardware --json -",
}
ENDINGS = {".json", ".csv", ".svg", ".png", ".pdf", ".html", ".pftrace", ".xml", ".yaml"}
RUN = """
import contextlib, io, json, sys
from pathlib import Path
from ppsim.cli import app
for name, words in json.loads(sys.argv[1]).items():
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        status = app(words.split(), prog_name="ppsim", standalone_mode=False)
    Path(f"{name}.out").write_text(f"{status}: {printed.getvalue()}")
"""


def run_all(folder, seed):
    """All calls in one process, and what lies in the folder then."""
    folder.mkdir()
    (folder / UNIT).write_text((CONFIGS / "unit-costs.yaml").read_text())
    (folder / "model.yaml").write_text((CONFIGS / "llama-3-8b-8xh100.yaml").read_text())
    costs = ppsim.Costs(forward=0.02, backward=0.05, latency=0.001)
    document = trace_document("1f1b", costs, devices=4, microbatches=8, steps=3)
    (folder / "measured.json").write_text(json.dumps(document))
    environment = {**ENVIRONMENT, "PYTHONHASHSEED": str(seed), "PYTHONPATH": os.pathsep.join([str(ROOT), "."])}
    ended = subprocess.run(
        [sys.executable, "-c", RUN, json.dumps(CALLS)], cwd=folder, env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """What two processes wrote."""
    folder = tmp_path_factory.mktemp("same")
    return [run_all(folder / str(seed), seed) for seed in (1, 2)]


@pytest.mark.parametrize("name", CALLS)
def test_the_same_call_writes_the_same_bytes(name, written):
    one, other = written
    for file in [f"{name}.out", *(word for word in CALLS[name].split() if Path(word).suffix in ENDINGS)]:
        assert one[file] == other[file], file
        assert one[file], file
