"""Writes what README.md and the pages show: the picture, and below each `$ ppsim ...` what the command prints."""

import contextlib
import io
import os
import re
from pathlib import Path
from unittest.mock import patch

from ppsim.base.units import counted
from ppsim.cli import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "docs" / "start.md", *sorted((ROOT / "docs" / "howto").glob("*.md"))]
PICTURE = ROOT / "docs" / "images" / "comparison.svg"
SHOWN = ("1f1b", "zb-h1", "dualpipe")
CI_PAGE = ROOT / "docs" / "ci.md"
_CONSOLE = re.compile(r"(?<=```console\n)\$ (?P<command>ppsim [^\n]*)\n(?P<old>.*?)(?=^```$)", re.DOTALL | re.MULTILINE)


def refreshed(text: str) -> str:
    """A page with each console block's output as the command prints it now."""
    return _CONSOLE.sub(lambda block: f"$ {block['command']}\n{cut(output(block['command']), block['old'])}", text)


def with_count(text: str) -> str:
    """Return the page about CI with the number of configs that the repository has today."""
    return re.sub(r"(?<=baseline\.json: )\d+ configs?", counted(len(list(ROOT.glob("configs/*.yaml"))), "config"), text)


def cut(text: str, old: str) -> str:
    """What is printed; where the page has `...` for paragraphs left out, as many at both ends as stand there."""
    paragraphs, kept = (one.removesuffix("\n").split("\n\n") for one in (text, old))
    if "..." in kept:
        place = kept.index("...")
        paragraphs[place : len(paragraphs) - len(kept) + place + 1] = ["..."]
    return "\n\n".join(paragraphs) + "\n"


def output(command: str) -> str:
    """Return what a `ppsim ...` line prints, run in the repository's root; blanks that end a line are left out."""
    words, printed = command.split(), io.StringIO()
    with contextlib.chdir(ROOT), patch.dict(os.environ, COLUMNS="100"), contextlib.redirect_stdout(printed):
        status = app(words[1:], prog_name=words[0], standalone_mode=False)
    if status:
        raise RuntimeError(f"{command}: status {status}")
    return "".join(f"{line.rstrip()}\n" for line in printed.getvalue().splitlines())


def draw_picture() -> None:
    """Three schedules of the same work on one time axis, as docs/schedules.md has them."""
    from make_schedule_docs import simulated

    import ppsim
    from ppsim.plots.chart_files import save_gantt

    timelines = [simulated(ppsim.schedules()[name]) for name in SHOWN]
    save_gantt(timelines, PICTURE)


def main() -> None:
    """Refresh the pages and the README's picture."""
    for page in PAGES:
        page.write_text(refreshed(page.read_text(encoding="utf-8")), encoding="utf-8")
    CI_PAGE.write_text(with_count(CI_PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    draw_picture()


if __name__ == "__main__":
    main()
