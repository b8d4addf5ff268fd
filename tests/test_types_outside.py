"""Editors: a type checker sees ppsim's types from a project that only imports it (the package holds py.typed)."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ppsim

ASKED = {  # expression in a user's file -> the type that an editor shows
    "schedule": "Schedule",
    "schedule.orders()": "list[list[str]]",
    "ppsim.lower(schedule)": "Program",
    "ppsim.schedules()['1f1b'].build(2, 2)": "Schedule",
    "run": "Timeline",
    "run.makespan": "float",
    "run.ledger()": "Ledger",
    "run.memory()": "Memory",
    "run.plot()": "Figure",
    "run.summary()": "str",
    "ppsim.simulate_many(schedule)": "Batch",
    "ppsim.load_config('job.yaml')": "Config",
    "ppsim.load_config('job.yaml').simulate()": "Timeline",
    "ppsim.compare([run, run])": "Comparison",
    "ppsim.compare('job.yaml', ['1f1b']).timelines": "list[Timeline]",
    "ppsim.sweep('job.yaml', over={'transport': ['async']})": "Sweep",
    "ppsim.choose('job.yaml')": "Choice",
    "ppsim.advise('job.yaml')": "AdviceList",
    "ppsim.explain(run)": "Explanation",
}
WRONG = {  # line -> a word of the checker's message about it
    "run.plot(witdh=7.0)": "witdh",
    "run.plot('a.png')": "positional",
    "run.save(7)": "PathLike",
    "run.makspan": "makspan",
    "ppsim.simulate(schedule, transports='rank')": "transports",
    "ppsim.simulate('1f1b')": "ScheduleColumns",
    "ppsim.simulated(schedule)": "simulated",
    "ppsim.compare([run]).plot(heading='x')": "heading",
    "ppsim.Costs(forwards=1.0)": "forwards",
    "ppsim.simulate_many(schedule).p59": "p59",
}
START = [
    "import ppsim",
    "schedule = ppsim.build('1f1b', devices=4, microbatches=8)",
    "run = ppsim.simulate(schedule, ppsim.Costs(forward=1.0, backward=2.0))",
    "run.plot(width=7.0, memory=True, labels=False)",
    "run.save('chart.svg', title='mine')",
    "ppsim.compare([run, run]).plot(titles=['a', 'b'])",
]


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    """A folder with one file that uses ppsim, where the package is what `import ppsim` finds."""
    folder = tmp_path_factory.mktemp("project")
    lines = [*START, *(f"reveal_type({asked})" for asked in ASKED), *WRONG]
    (folder / "mine.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def pyright(folder):
    """Messages by line of the file, as pyright says them."""
    done = subprocess.run(
        [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, "mine.py"],
        cwd=folder, capture_output=True, text=True,
    )  # fmt: skip
    found = [(one["range"]["start"]["line"], one["message"]) for one in json.loads(done.stdout)["generalDiagnostics"]]
    return dict(reversed(found))


def test_a_project_that_imports_ppsim_sees_its_types(project):
    pytest.importorskip("pyright", reason="the extra `test` has it")
    said = pyright(project)
    assert not [said[line] for line in range(len(START)) if line in said]
    for line, (asked, kind) in enumerate(ASKED.items(), len(START)):
        assert re.sub(r"(\w+\.)+", "", said[line]).endswith(f'is "{kind}"'), (asked, said[line])
    for line, (wrong, word) in enumerate(WRONG.items(), len(START) + len(ASKED)):
        assert word in said.get(line, "not reported"), (wrong, said.get(line))


def test_the_package_says_that_it_is_typed():
    assert Path(ppsim.__file__).with_name("py.typed").exists()
