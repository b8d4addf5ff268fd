"""Prints a coverage run; status 1 where it entered no line of a function and docs/data/uncovered.yaml has no reason."""

import json
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

REASONS = Path(__file__).resolve().parents[1] / "docs" / "data" / "uncovered.yaml"


def reasons() -> dict[str, list[str]]:
    """Reason -> places: a file of ppsim/, or a file and a function in it, which counts with all that stands in it."""
    return {part["reason"]: part["where"] for part in YAML(typ="safe").load(REASONS)}


def never_entered(report: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(file, function) of each function of which no line was run; `report` is the document of `coverage json`."""
    for path, file in report["files"].items():
        for function, found in file["functions"].items():
            if function and found["missing_lines"] and not found["executed_lines"]:
                yield path.removeprefix("ppsim/"), function


def is_named(file: str, function: str, places: Iterable[str]) -> bool:
    """Whether one of the places is the file, the function, or one that it stands in."""
    for place in places:
        name, _, outer = place.partition(" ")
        if file == name and (not outer or f"{function}.".startswith(f"{outer}.")):
            return True
    return False


def main() -> int:
    """Print the table of files, then the functions without a reason; the exit status."""
    import coverage

    run = coverage.Coverage()
    run.load()
    run.report()
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        run.json_report(outfile=file.name)
        found = list(never_entered(json.loads(Path(file.name).read_text())))
    places = [place for of_reason in reasons().values() for place in of_reason]
    without = [one for one in found if not is_named(*one, places)]
    for file, function in without:
        print(f"ppsim/{file} {function}: no traced test enters it; write one, or its reason into {REASONS}")
    print(f"{len(found)} functions are not entered, {len(without)} of them without a reason")
    return 1 if without else 0


if __name__ == "__main__":
    sys.exit(main())
