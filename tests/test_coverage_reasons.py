"""What `make coverage` does not enter has a reason: the list names what is there, and what it lacks is found."""

import ast
from pathlib import Path

import pytest
from check_coverage import is_named, never_entered, reasons

PPSIM = Path(__file__).resolve().parents[1] / "ppsim"


def functions(body, within=""):
    """Names of functions with the classes and functions that they stand in."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield f"{within}{node.name}"
            yield from functions(node.body, f"{within}{node.name}.")


@pytest.mark.parametrize("place", sorted({place for places in reasons().values() for place in places}))
def test_a_reason_names_a_file_or_a_function_that_is_there(place):
    file, _, function = place.partition(" ")
    assert not function or function in functions(ast.parse((PPSIM / file).read_text()).body)


def test_a_function_of_which_no_line_was_run_is_found_and_one_that_was_entered_is_not():
    found = {
        "": {"missing_lines": [9], "executed_lines": []},
        "entered": {"missing_lines": [3], "executed_lines": [2]},
        "Class.never": {"missing_lines": [5, 6], "executed_lines": []},
        "abstract": {"missing_lines": [], "executed_lines": []},
    }
    assert list(never_entered({"files": {"ppsim/plan/a.py": {"functions": found}}})) == [("plan/a.py", "Class.never")]


@pytest.mark.parametrize(
    ("place", "named"),
    [("a.py", True), ("a.py outer", True), ("a.py outer.inner", True), ("a.py out", False), ("b.py outer", False)],
)
def test_a_place_names_a_file_a_function_and_what_stands_in_it(place, named):
    assert is_named("a.py", "outer.inner", [place]) == named
