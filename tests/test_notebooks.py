"""The lessons in notebooks/ run from first to last cell, and are stored with what they show."""

import re
import time

import make_notebooks
import nbformat
import pytest
from make_notebooks import ANSWERS, LESSONS
from matplotlib.font_manager import get_font_names

MAX_FILE_BYTES = 600_000  # of a stored lesson
MAX_COLUMNS = 100  # of a cell in a notebook program beside its list of files
FONT = "Liberation Sans"  # of the stored pictures; without it matplotlib draws them in its own
PICTURE = re.compile(r"""base64,[^"')]*|atob\("[^"]*"|ppsim-[0-9a-f]{12}""")  # and the name of its place
TIMED = {"02-choosing-a-schedule": 20}  # seconds that a lesson may take


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.alone] * (path.stem in TIMED)) for path in LESSONS],
)
def test_a_lesson_runs_in_time_and_shows_what_is_stored(path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "")  # which the run sets, and the test puts back
    begun = time.monotonic()
    stored, now = nbformat.read(path, as_version=4), make_notebooks.run(path)
    seconds = time.monotonic() - begun
    assert texts(now) == texts(stored), f"{path.name} is out of date; run `make docs`"
    assert pictures(now) == pictures(stored)
    assert pictures(stored)
    assert path.stat().st_size < MAX_FILE_BYTES
    assert seconds < TIMED.get(path.stem, make_notebooks.SECONDS)


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_says_what_one_learns_and_numbers_its_sections(path):
    lesson = nbformat.read(path, as_version=4)
    number = int(path.stem.split("-")[0])
    headings = [cell.source.splitlines()[0] for cell in lesson.cells if cell.source.startswith("#")]
    assert headings[0].startswith(f"# {number}. ")
    assert "You learn to " in lesson.cells[0].source
    sections = [line for cell in lesson.cells for line in cell.source.splitlines() if line.startswith("## ")]
    assert [heading.split()[1] for heading in sections] == [f"{number}.{part}" for part in range(1, len(sections) + 1)]


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_names_all_lessons_and_ends_with_questions_whose_answers_are_folded(path):
    lesson = nbformat.read(path, as_version=4)
    heading, _, *_ = lines = lesson.cells[0].source.splitlines()
    linked = re.findall(r"\]\((\S+)\.ipynb\)", next(line for line in lines if line.startswith("Lessons: ")))
    assert linked == [other.stem for other in LESSONS if other != path], heading
    assert any(re.match(r"\*\d+ minutes", line) for line in lines)
    last = lesson.cells[-1] if ANSWERS.search(lesson.cells[-1].source) else lesson.cells[-2]
    questions = re.findall(r"^\d\. ", last.source.partition("<details>")[0], re.M)
    printed = ANSWERS.search(last.source)[2].splitlines()
    assert [line[:3] for line in printed] == questions
    assert len(questions) > 1


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_a_lesson_needs_no_network_for_formulas_and_has_no_checks_for_its_authors(path):
    for cell in nbformat.read(path, as_version=4).cells:
        assert "$" not in cell.source
        assert "assert " not in cell.source


def test_the_second_lesson_predicts_both_published_steps():
    errors = [re.findall(r"published.*: ([+-][\d.]+) %", output.get("text", "")) for output in outputs(
        nbformat.read(LESSONS[1], as_version=4))]  # fmt: skip
    (published,), (recomputed,) = filter(None, errors)
    assert max(abs(float(published)), abs(float(recomputed))) < 5


def test_the_first_lesson_opens_with_a_chart():
    lesson = nbformat.read(LESSONS[0], as_version=4)
    assert "image/png" in lesson.cells[1].outputs[0].data


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_pictures_are_shown_also_in_a_notebook_that_is_not_trusted(path):
    """Until its reader runs it, JupyterLab shows no SVG of a notebook, and takes SVG and scripts out of its HTML."""
    shown = [output.get("data", {}) for output in outputs(nbformat.read(path, as_version=4))]
    assert all("image/png" in data for data in shown if "image/svg+xml" in data)
    assert all("<svg" not in data["text/html"].partition("<script>")[0] for data in shown if "text/html" in data)


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_source_and_printed_lines_fit_into_a_cell(path):
    lesson = nbformat.read(path, as_version=4)
    sources = [cell.source for cell in lesson.cells if cell.cell_type == "code"]
    sources += ["".join(found) for cell in lesson.cells for found in ANSWERS.findall(cell.source)]
    printed = [output.text for output in outputs(lesson) if output.output_type == "stream"]
    assert [line for text in (*sources, *printed) for line in text.splitlines() if len(line) > MAX_COLUMNS] == []


def texts(lesson):
    """Return what each cell shows, and the words with the answers; pictures only if this machine has `FONT`."""
    left_out = re.compile("(?!)") if FONT in get_font_names() else PICTURE
    parts = [(output.get("text"), output.get("data", {})) for output in outputs(lesson)]
    shown = [(text, data.get("text/plain"), left_out.sub("", data.get("text/html", ""))) for text, data in parts]
    return [*shown, *(cell.source for cell in lesson.cells if cell.cell_type == "markdown")]


def pictures(lesson):
    """The cells that show a picture."""
    shown = enumerate(output.get("data", {}) for output in outputs(lesson))
    return [place for place, data in shown if any(kind.startswith("image/") for kind in data)]


def outputs(lesson):
    return [output for cell in lesson.cells for output in cell.get("outputs", [])]
