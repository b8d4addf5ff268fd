"""Every word that the program prints is in docs/glossary.md, costs in docs/config.md: measures, causes, table heads."""

import importlib
import pkgutil
import re
import sys

import make_glossary
import pytest
from command_line import ROOT, ppsim

import ppsim as library
from ppsim.analysis import CAUSES, MEASURES, PHASES
from ppsim.base import tables
from ppsim.costs import PARAMETERS

PAGE = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
COSTS = (ROOT / "docs" / "config.md").read_text(encoding="utf-8").partition("## `costs`")[2].partition("\n## ")[0]
SLEEP = "validation/data/cpu/sleep"
COMMANDS = [
    "simulate configs/llama-3-8b-8xh100.yaml --ledger -v --costs",
    "simulate --schedule pipedream --devices 4 --microbatches 8 -v",
    "compare configs/unit-costs.yaml --schedules 1f1b,pipedream",
    "what-if configs/unit-costs.yaml --set costs.latency=0.1 -v",
    "what-if configs/unit-costs.yaml --set costs.latency=0.1",
    "what-if configs/unit-costs.yaml --slow 0=1.1",
    "sweep configs/unit-costs.yaml --over schedule.microbatches=4,8",
    "advise configs/unit-costs.yaml",
    "choose configs/llama-3-8b-8xh100.yaml --free schedule.stages_per_device",
    "fits configs/llama-3-8b-8xh100.yaml",
    "hardware -v",
    "hardware",
    "check configs/unit-costs.yaml --baseline configs/baseline.json --set costs.latency=0.1",
    f"evaluate {SLEEP}/1f1b.json {SLEEP}/zb-h1.json --profile {SLEEP}/profile.yaml",
    f"evaluate {SLEEP}/1f1b.json {SLEEP}/zb-h1.json --profile {SLEEP}/profile.yaml -v",
    f"explain {SLEEP}/1f1b.json configs/unit-costs.yaml -v",
]


@pytest.fixture
def printed(monkeypatch):
    """The tables that commands print, as (columns that are flush left, rows)."""
    found, real = [], tables.aligned

    def spy(rows, left=None, **options):
        found.append((left, [tuple(row) for row in rows]))
        return real(rows, left, **options)

    for layer in ("analysis", "plots", "studies", "commands"):
        package = importlib.import_module(f"ppsim.{layer}")
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"ppsim.{layer}.{module.name}")
    for module in list(sys.modules.values()):
        if getattr(module, "aligned", None) is real:
            monkeypatch.setattr(module, "aligned", spy)
    return found


def words():
    """Return the first cells, split at commas, of the glossary's tables and of the table of costs that it links."""
    assert "(config.md#costs)" in PAGE
    cells = re.findall(r"^\| ([^|]+) \|", PAGE + COSTS, re.MULTILINE)
    return {plain(word) for cell in cells for word in cell.split(",")}


def plain(word):
    """Return a term without marks and the unit in which a column gives it."""
    return re.sub(r" \((s|ms|µs|ns|GB|%)\)$", "", word.replace("`", "").replace("_", " ").strip())


def test_what_the_registries_name_is_defined():
    assert make_glossary.page(PAGE) == PAGE, "docs/glossary.md is out of date; run `make docs`"
    titles = {measure.title for measure in MEASURES.values()}
    named = {plain(word) for word in {*MEASURES, *titles, *CAUSES, *PHASES, *PARAMETERS, *library.Costs().provenance}}
    assert named <= words()


def test_the_labels_of_printed_lists_are_defined(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    lists = [
        *(f"list {name}" for name in library.schedules()),
        f"calibrate {SLEEP}/1f1b.json {SLEEP}/zb-h1.json -o {tmp_path}/profile.yaml -v",
        "optimum --devices 2 --microbatches 2 -v",
    ]
    printed = "".join(ppsim(*line.split()).out for line in lists)
    labels = set(re.findall(r"^(\S.*?) {2,}\S", printed, re.MULTILINE))
    assert {"constraints", "F by part of the model", "drift within a run", "makespan"} <= labels
    found = {plain(re.sub("^[FBIW] by", "KIND by", label)) for label in labels if not label.isdigit()}
    assert found <= words()


def test_the_words_of_printed_tables_are_defined(printed, monkeypatch):
    monkeypatch.chdir(ROOT)
    for command in COMMANDS:
        outcome = ppsim(*command.split())
        assert outcome.status in (0, 1), outcome.err
    lists = [rows for left, rows in printed if left is None or isinstance(left, set)]
    heads = {cell for _, rows in printed if rows not in lists for cell in rows[0]}
    labels = {row[0] for rows in lists for row in rows if rows[0][0] != "the step would be"}  # its rows are sentences
    causes = {
        row[0].removeprefix("idle: ") for left, rows in printed if left == 1 for row in rows if "idle: " in row[0]
    }
    assert {"idle / makespan", "verdict", "per action", "bandwidth"} <= heads
    assert {"transfers", "cool-down", "makespan"} <= {plain(label) for label in labels}
    found = {"vs SCHEDULE" if word.startswith("vs ") else plain(word) for word in heads | labels | causes}
    data = {"", "microbatches", "4", "8"} | {plain(name) for name in library.schedules()}  # keys, values, schedules
    assert found - data <= words()


def test_a_table_wider_than_the_page_has_one_blank_between_its_columns():
    rows = [["schedule", "recompute", "memory"], ["x" * 40, "y" * 40, "z" * 18]]
    assert [len(line) for line in tables.aligned(rows, 1, narrow=True)] == [100, 100]
    assert len(tables.aligned(rows, 1)[1]) == 102  # a last column of text wraps later
    assert tables.aligned([["a", "b"], ["c", "d"]], narrow=True) == ["a  b", "c  d"]
