"""The fixture `ppsim_check`: the gate inside a test suite, and how little it costs a suite that does not use it."""

import subprocess
import sys

import pytest
from command_line import ENVIRONMENT, UNIT_COSTS

pytest_plugins = ["pytester", "ppsim.pytest_plugin"]


@pytest.fixture
def suite(pytester):
    """A project with one config and its baseline, and a conftest that names the plugin."""
    (pytester.path / "a.yaml").write_text(UNIT_COSTS.read_text())
    pytester.makeconftest("pytest_plugins = ['ppsim.pytest_plugin']")
    return pytester


def run(suite, call):
    suite.makepyfile(f"def test_schedule(ppsim_check):\n    {call}\n")
    return suite.runpytest_inprocess("-p", "no:cacheprovider")


def test_it_passes_within_limits(suite):
    run(suite, "ppsim_check('a.yaml', max_bubble='30%', max_step_time=33)").assert_outcomes(passed=1)


def test_it_fails_with_the_table_and_no_traceback(suite):
    result = run(suite, "ppsim_check('a.yaml', max_bubble=0.2)")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["ppsim check", "*config*measure*verdict*", "a.yaml*27.27 %*20.00 %*over the limit*"])
    result.stdout.no_fnmatch_line("*pytest_plugin.py*")


def test_it_compares_with_a_baseline_under_overrides_and_tolerances(suite):
    from ppsim.studies import update_baseline

    update_baseline([suite.path / "a.yaml"], suite.path / "b.json")
    call = "ppsim_check('a.yaml', baseline='b.json', overrides={'costs.latency': 0.01}"
    run(suite, f"{call}, tolerance_rel='5%')").assert_outcomes(passed=1)
    result = run(suite, f"{call}, tolerance_abs={{'makespan': '1 s'}})")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*bubble_fraction*regression*", "time that changed in a.yaml*"])


def test_a_broken_baseline_is_the_errors_own_message_without_a_traceback(suite):
    (suite.path / "b.json").write_text("{}")
    result = run(suite, "ppsim_check('a.yaml', baseline='b.json')")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["ppsim check", "*b.json: not a baseline*"])
    result.stdout.no_fnmatch_line("*gate.py*")
    result.stdout.no_fnmatch_line("During handling of the above exception*")


def test_a_config_that_is_no_path_is_one_clear_error(suite):
    result = run(suite, "ppsim_check({'schedule': {}}, max_bubble=0.2)")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["ppsim check", "{'schedule': {}} must be the path of a config, *"])


def test_it_checks_the_configs_of_a_pattern(suite):
    (suite.path / "c.yaml").write_text(UNIT_COSTS.read_text())
    result = run(suite, "ppsim_check('*.yaml', max_bubble=0.2)")
    result.stdout.fnmatch_lines(["FAIL  2 checks failed, in 2 of 2 configs"])
    run(suite, "ppsim_check('no-*.yaml', max_bubble=0.2)").stdout.fnmatch_lines(["*no-*.yaml: cannot be read*"])


def test_a_pattern_is_for_the_configs_not_for_the_folder_of_the_tests(suite, monkeypatch):
    folder = suite.path / "job[1]"
    folder.mkdir()
    monkeypatch.chdir(folder)
    (suite.path / "a.yaml").rename(folder / "a.yaml")
    (folder / "test_it.py").write_text("def test_it(ppsim_check):\n    ppsim_check('*.yaml', max_bubble='30%')\n")
    suite.runpytest_inprocess("-p", "no:cacheprovider", "--rootdir", folder, ".").assert_outcomes(passed=1)


def test_loading_the_plugin_loads_nothing_heavy():
    code = "import sys, ppsim.pytest_plugin; print(' '.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ENVIRONMENT)
    loaded = {name.split(".")[0] for name in done.stdout.split()}
    assert not loaded & {"matplotlib", "pandas", "pydantic", "numba", "simpy", "typer", "ruamel", "ortools"}
