"""A release installs: the wheel works in an empty environment, and says what an extra adds where it is missing."""

import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from command_line import ROOT
from packaging.requirements import Requirement

import ppsim


def required(distribution, found):
    """Add what a distribution requires without an extra, and what that requires, to the distributions `found`."""
    for text in distribution.requires or ():
        requirement = Requirement(text)
        if requirement.name not in found and (not requirement.marker or requirement.marker.evaluate({"extra": ""})):
            found[requirement.name] = metadata.distribution(requirement.name)
            assert requirement.specifier.contains(found[requirement.name].version, prereleases=True)
            required(found[requirement.name], found)
    return found


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """Python of an environment that holds the wheel and, as links, what it requires, and nothing else."""
    folder = tmp_path_factory.mktemp("release")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder, ROOT], check=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    (wheel,) = folder.glob("pipeline_ppsim-*.whl")
    subprocess.run([*pip, "--python", python, "install", "--no-deps", wheel], check=True)
    (packages,) = folder.glob("venv/lib/*/site-packages")
    (ours,) = metadata.distributions(name="pipeline-ppsim", path=[str(packages)])
    for distribution in required(ours, {}).values():
        for top in {file.parts[0] for file in distribution.files} - {"..", "__pycache__"}:
            (packages / top).symlink_to(Path(distribution.locate_file(top)))
    return python


def run(python, *arguments, **options):
    return subprocess.run([python, *arguments], capture_output=True, text=True, cwd=python.parent, **options)


def test_the_wheel_simulates_and_draws(installed, tmp_path):
    sizes = ["--schedule", "1f1b", "--devices", "4", "--microbatches", "8"]
    for suffix in ("png", "html"):
        chart = tmp_path / f"chart.{suffix}"
        done = run(installed.with_name("ppsim"), "simulate", *sizes, "--gantt", chart)
        assert done.returncode == 0, done.stderr
        assert "bubble" in done.stdout
        assert chart.stat().st_size > 1000
    assert run(installed, "-c", "import ppsim; print(ppsim.build('gpipe', devices=2, microbatches=2))").returncode == 0


@pytest.mark.parametrize(
    ("extra", "command"),
    [
        ("dask", "sweep CONFIG --over schedule.microbatches=4,8 --dask tcp://127.0.0.1:1"),
        ("slurm", "sweep CONFIG --over schedule.microbatches=4,8 --slurm slurm_partition=cpu"),
    ],
)
def test_what_a_command_needs_is_said_where_it_is_missing(installed, extra, command):
    arguments = command.replace("CONFIG", str(ROOT / "configs" / "unit-costs.yaml")).split()
    done = run(installed.with_name("ppsim"), *arguments)
    assert done.returncode == 2
    assert f"pip install 'pipeline-ppsim[{extra}]'" in done.stderr


def test_citation_and_recipe_have_the_version_and_the_requirements_of_the_package():
    recipe = (ROOT / "conda" / "meta.yaml").read_text()
    assert f'{{% set version = "{ppsim.__version__}" %}}' in recipe
    assert f"version: {ppsim.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = {str(one).replace(" ", "") for one in map(Requirement, project["dependencies"])}
    listed = re.findall(r"^    - (\S+) (>=\S+)$", recipe.partition("  run:")[2], re.MULTILINE)
    assert {name.removesuffix("-base") + bound for name, bound in listed} == needed | {
        f"python{project['requires-python']}"
    }
