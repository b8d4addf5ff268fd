"""Runs the lessons in notebooks/ from first to last cell and stores them with what they show: `make docs`."""

import os
import re
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from ppsim.base.files import write_atomically

ROOT = Path(__file__).resolve().parents[1]
LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SECONDS = 300  # that a cell may take
ANSWERS = re.compile(r"<details><summary>.*?```python\n(.*?)```\n\n```text\n(.*?)```", re.S)  # program, printed


def run(path: Path) -> nbformat.NotebookNode:
    """A lesson with the outputs that its cells give now, as this repository's library makes them.

    Folded answers are Markdown: their program runs too, and what it prints stands below it.
    """
    lesson = nbformat.read(path, as_version=4)
    folded = [cell for cell in lesson.cells if ANSWERS.search(cell.source)]
    for cell in folded:
        cell.cell_type, cell.words, cell.source = "code", cell.source, ANSWERS.search(cell.source)[1]
        cell.outputs, cell.execution_count = [], None
    os.environ["PYTHONPATH"] = str(ROOT)  # which the kernel inherits
    place = {"metadata": {"path": str(path.parent)}}
    NotebookClient(lesson, timeout=SECONDS, coalesce_streams=True, resources=place).execute()
    for cell in folded:
        printed = "".join(output.text for output in cell.outputs if output.get("name") == "stdout")
        start, end = ANSWERS.search(cell.words).span(2)
        cell.source = cell.words[:start] + printed + cell.words[end:]
        cell.cell_type = "markdown"
        for key in ("words", "outputs", "execution_count"):
            cell.pop(key)
    for cell in lesson.cells:
        cell.metadata.clear()  # when it ran
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
            for data in (output.get("data", {}) for output in cell.outputs):
                if any(kind.startswith("image/") for kind in data):
                    data.pop("text/plain", None)
    lesson.metadata.language_info = {"name": "python"}
    return lesson


def main(names: list[str]) -> None:
    """Refresh the lessons of these names, or all."""
    for path in LESSONS:
        if not names or path.stem in names:
            write_atomically(path, nbformat.writes(run(path)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
