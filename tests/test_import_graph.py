"""What `import ppsim` and the start of the command line load: the light part only."""

import json
import subprocess
import sys

import pytest

HEAVY = ("matplotlib", "plotly", "pandas", "numba", "pydantic", "simpy", "rich", "ruamel", "torch", "ortools", "scipy")


def loaded_by(*lines: str) -> set[str]:
    code = "\n".join(
        [*lines, "import sys, json", "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})))"]
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_import_ppsim_loads_nothing_heavy():
    assert not loaded_by("import ppsim") & set(HEAVY)


def test_import_ppsim_does_not_load_the_command_line():
    assert "typer" not in loaded_by("import ppsim")


def test_starting_the_command_line_loads_nothing_heavy():
    assert not loaded_by("import ppsim.cli") & set(HEAVY)


@pytest.mark.parametrize("arguments", [["--help"], ["list"], ["simulate", "--help"], ["compare", "--help"]])
def test_help_and_list_load_nothing_heavy(arguments):
    lines = [
        "import contextlib, io",
        "from ppsim.cli import app",
        "with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):",
        f"    app({arguments!r}, prog_name='ppsim')",
    ]
    loaded_by_typer = {"pydantic"}
    assert not loaded_by(*lines) & (set(HEAVY) - loaded_by_typer)


def test_a_simulation_loads_no_charts_and_no_tables():
    run = "import ppsim\nppsim.simulate(ppsim.build('1f1b', devices=2, microbatches=2), engine='event').to_dict()"
    assert not loaded_by(run) & {"matplotlib", "plotly", "pandas", "numba", "pydantic"}


def test_an_html_chart_needs_no_chart_library(tmp_path):
    run = "import ppsim\nfrom ppsim.plots.viewer import save_html"
    write = f"save_html(ppsim.simulate(ppsim.build('1f1b', devices=2, microbatches=2)), {str(tmp_path / 'x.html')!r})"
    assert not loaded_by(run, write) & {"matplotlib", "plotly", "pandas"}
    assert (tmp_path / "x.html").exists()
