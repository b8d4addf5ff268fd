"""README.md and docs/: their code runs, what they show is what comes out, and their links lead to files."""

import doctest
import io
import re

import make_command_docs
import make_demo
import make_gallery
import make_pages
import make_schedule_docs
import matplotlib
import numpy as np
import pytest
from command_line import ROOT, UNIT_COSTS, ppsim
from matplotlib.colors import to_rgb
from matplotlib.image import imread, imsave

import ppsim as library

README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.DOTALL | re.MULTILINE)


def test_the_python_code_runs(capsys):
    matplotlib.use("agg")
    namespace = {}
    for block in blocks("python"):
        exec(block, namespace)  # noqa: S102 - the README's own code
    assert namespace["run"].makespan > 0
    assert "bubble" in capsys.readouterr().out


def test_the_demo_fits_one_screen_draws_two_pictures_and_says_what_to_do_next(tmp_path, capsys):
    make_demo.main(str(UNIT_COSTS), str(tmp_path / "demo"))
    assert {path.name for path in (tmp_path / "demo").iterdir()} == set(make_demo.PICTURES)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 24
    assert lines[-1] == f"try next: .venv/bin/ppsim advise {UNIT_COSTS}"


@pytest.mark.parametrize("page", make_pages.PAGES, ids=lambda page: page.name)
def test_the_commands_print_what_is_shown(page):
    text = page.read_text(encoding="utf-8")
    assert make_pages.refreshed(text) == text, f"{page.name} is out of date; run `make docs`"


def test_the_command_reference_is_what_the_program_says():
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert make_command_docs.page() == page, "docs/commands.md is out of date; run `make docs`"


REFERENCE = sorted((ROOT / "docs").glob("api*.md"))


@pytest.mark.parametrize("page", REFERENCE, ids=lambda page: page.stem)
def test_the_examples_of_the_reference_run(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    examples = "\n".join(re.findall(r"^```pycon\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE))
    test = doctest.DocTestParser().get_doctest(examples, {}, str(page), None, None)
    failed, tried = doctest.DocTestRunner(optionflags=doctest.IGNORE_EXCEPTION_DETAIL).run(test)
    assert (failed, tried >= 8) == (0, True)


def test_every_public_name_is_in_the_reference():
    text = "".join(page.read_text(encoding="utf-8") for page in REFERENCE)
    named = re.findall(r"^.. auto(?:class|function|exception):: ppsim\.(\w+)$", text, re.MULTILINE)
    assert sorted(named) == sorted(library.__all__)


RUN = [*make_pages.PAGES[1:], *(ROOT / "docs" / name for name in ("config.md", "communicators.md"))]


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.name)
def test_the_python_code_of_pages_runs(page, monkeypatch, tmp_path):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    namespace = {}
    for block in re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE):
        exec(block, namespace)  # noqa: S102 - the pages' own code


def test_the_other_commands_run(tmp_path, monkeypatch):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("ppsim ")]
    assert lines
    for line in lines:
        outcome = ppsim(*line.split()[1:])
        assert outcome.status == 0, outcome.err
    assert {path.name for path in tmp_path.iterdir()} == {"configs", "step.png", "step.html"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


def test_the_gallery_is_up_to_date_and_has_its_pictures():
    page = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")
    assert make_gallery.page() == page, "docs/gallery.md is out of date; run `make docs`"
    pictures = {picture.stem for picture in (ROOT / "docs" / make_gallery.PICTURES).iterdir()}
    charts = (*make_gallery.CHARTS, *make_gallery.PAGES, *make_gallery.OTHERS)
    assert pictures == {name for chart in charts for row in make_gallery.files(chart) for name in row}


@pytest.mark.parametrize("theme", make_gallery.THEMES)
def test_a_picture_of_few_colours_keeps_those_of_its_legend(theme, tmp_path, monkeypatch):
    monkeypatch.setattr(make_gallery, "DOCS", tmp_path)
    (tmp_path / make_gallery.PICTURES).mkdir(parents=True)
    legend = [to_rgb(colour) for colour in make_gallery.colours_of(theme)]
    others = np.random.default_rng(1).random((2000 - len(legend), 3))
    drawn, name = io.BytesIO(), f"collectives-64-{theme}"
    imsave(drawn, np.concatenate([legend, others]).reshape(40, 50, 3), format="png")
    make_gallery.save_picture(name, drawn.getvalue())
    kept = imread(tmp_path / make_gallery.PICTURES / f"{name}.png")[..., :3].reshape(-1, 3)
    assert kept[: len(legend)] == pytest.approx(np.asarray(legend), abs=1e-6)


def test_the_schedules_page_is_up_to_date():
    timelines = {name: make_schedule_docs.simulated(family) for name, family in library.schedules().items()}
    page = (ROOT / "docs" / "schedules.md").read_text(encoding="utf-8")
    assert make_schedule_docs.page(timelines) == page, "docs/schedules.md is out of date; run `make docs`"
