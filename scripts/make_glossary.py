"""Writes the table of measures of docs/glossary.md from the registry of measures."""

import re
from pathlib import Path

from ppsim.analysis.measures import MEASURES
from ppsim.base.files import write_atomically

PAGE = Path(__file__).resolve().parents[1] / "docs" / "glossary.md"
BEGIN, END = "<!-- measures: written by scripts/make_glossary.py -->\n", "<!-- end of measures -->"


def table() -> str:
    """A row a measure: name, unit, formula and definition, and who uses it."""
    rows = ["| name | unit | definition | in use by |", "|---|---|---|---|"]
    rows += [f"| `{name}` | {row.unit} | {_quoted(row.meaning)} | {row.used_by} |" for name, row in MEASURES.items()]
    return "\n".join(rows) + "\n"


def _quoted(text: str) -> str:
    """The text with the names of measures that hold an underscore as code."""
    return re.sub("|".join(name for name in MEASURES if "_" in name), r"`\g<0>`", text)


def page(text: str) -> str:
    """The page with the table as the registry has it now."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    return before + begin + table() + end + after


if __name__ == "__main__":
    write_atomically(PAGE, page(PAGE.read_text(encoding="utf-8")))
