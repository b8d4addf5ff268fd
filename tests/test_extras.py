"""Extras: a core install does all but what needs pandas, plotly or OR-Tools, and says how to add those."""

import re
import sys
import tomllib

import pytest
from command_line import ROOT, UNIT_COSTS, ppsim

import ppsim as library
from ppsim import compare
from ppsim.base.host import DISTRIBUTION, EXTRA_OF
from ppsim.studies.optimum import optimum

RUN = library.simulate(library.build("1f1b", devices=2, microbatches=2), engine="event")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture
def core_install(monkeypatch):
    for name in list(sys.modules):
        if name.partition(".")[0] in EXTRA_OF:
            monkeypatch.delitem(sys.modules, name)
    for library_name in EXTRA_OF:
        monkeypatch.setitem(sys.modules, library_name, None)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (RUN.to_frame, "pandas"),
        (lambda: RUN.ledger().to_frame(), "pandas"),
        (lambda: library.simulate_many(RUN.schedule, engine="event").to_frame(), "pandas"),
        (lambda: compare([RUN, RUN]).to_frame(), "pandas"),
        (RUN.to_plotly, "plotly"),
        (lambda: optimum(2, 2), "ortools"),
    ],
)
@pytest.mark.usefixtures("core_install")
def test_what_is_missing_is_said_with_the_pip_line_that_adds_it(call, name):
    extra = EXTRA_OF[name]
    with pytest.raises(library.ConfigError, match=rf"needs {name}: pip install '{DISTRIBUTION}\[{extra}\]'$"):
        call()


@pytest.mark.usefixtures("core_install")
def test_a_simulation_is_drawn_and_written_without_extras(tmp_path):
    names = {"gantt": "g.png", "trace": "t.pftrace", "csv": "s.csv", "table": "a.csv", "ledger-chart": "l.svg"}
    options = [part for option, name in names.items() for part in (f"--{option}", tmp_path / name)]
    done = ppsim("simulate", UNIT_COSTS, *options, "--text", "--ledger")
    assert done.status == 0, done.err
    for suffix in ("svg", "pdf", "html"):
        assert ppsim("simulate", UNIT_COSTS, "--gantt", tmp_path / f"g.{suffix}").status == 0
    assert len([path for path in tmp_path.iterdir() if path.stat().st_size]) == len(names) + 3


@pytest.mark.usefixtures("core_install")
def test_a_notebook_shows_a_run_without_extras():
    assert "svg" in RUN._repr_html_() or "<" in RUN._repr_html_()


def test_the_table_of_extras_is_what_the_project_declares():
    declared = {
        re.split(r"[<>=]", requirement)[0]: extra
        for extra, requirements in PROJECT["optional-dependencies"].items()
        if extra not in ("all", "docs", "parsers", "test")
        for requirement in requirements
    }
    assert declared == EXTRA_OF
    assert PROJECT["optional-dependencies"]["all"] == [f"{DISTRIBUTION}[{','.join(sorted(set(EXTRA_OF.values())))}]"]
    assert PROJECT["name"] == DISTRIBUTION
