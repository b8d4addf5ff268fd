"""The lessons in notebooks/ run from first to last cell, and are kept without their outputs."""

import nbformat
import pytest
from command_line import ENVIRONMENT, ROOT
from nbclient import NotebookClient

LESSONS = sorted((ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_runs(path, monkeypatch):
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    lesson = nbformat.read(path, as_version=4)
    client = NotebookClient(lesson, timeout=120, resources={"metadata": {"path": str(path.parent)}})
    client.execute()
    errors = [output for cell in lesson.cells for output in cell.get("outputs", []) if output.output_type == "error"]
    assert not errors
    assert any(
        "image/png" in output.get("data", {}) or "text/html" in output.get("data", {}) for output in outputs(lesson)
    )


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_is_kept_without_outputs_and_numbers_its_sections(path):
    lesson = nbformat.read(path, as_version=4)
    assert not list(outputs(lesson))
    number = int(path.stem.split("-")[0])
    headings = [cell.source.splitlines()[0] for cell in lesson.cells if cell.source.startswith("#")]
    assert headings[0].startswith(f"# {number}. ")
    sections = [heading for heading in headings if heading.startswith("## ")]
    assert [heading.split()[1] for heading in sections] == [f"{number}.{part}" for part in range(1, len(sections) + 1)]


def outputs(lesson):
    return [output for cell in lesson.cells for output in cell.get("outputs", [])]
