"""Writes the tables of words, measures and causes of idle time of docs/glossary.md from their registries."""

import re
from collections.abc import Mapping
from pathlib import Path

from ppsim.analysis.ledger import CAUSES, PHASES
from ppsim.analysis.measures import MEASURES, Measure
from ppsim.base.files import write_atomically
from ppsim.commands.glossary import WORDS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "glossary.md"


def words() -> str:
    """A row a word."""
    rows = [f"| {word} | {meaning} |" for word, meaning in WORDS.items()]
    return "\n".join(["| word | meaning |", "|---|---|", *rows]) + "\n"


def measures() -> str:
    """A row a measure: name, unit, formula and definition, and who uses it."""
    rows = ["| name | unit | definition | in use by |", "|---|---|---|---|"]
    rows += [f"| {_names(row)} | {row.unit} | {_quoted(row.meaning)} | {row.used_by} |" for row in MEASURES.values()]
    return "\n".join(rows) + "\n"


def causes() -> str:
    """A row a cause of idle time."""
    return _table("cause", CAUSES)


def phases() -> str:
    """A row a phase in which a device waits for another one to compute."""
    return _table("phase", PHASES)


TABLES = {table.__name__: table for table in (words, measures, causes, phases)}


def _table(head: str, meanings: Mapping[str, str]) -> str:
    rows = [f"| {head} | the device is idle |", "|---|---|"]
    return "\n".join([*rows, *(f"| `{name}` | {meaning} |" for name, meaning in meanings.items())]) + "\n"


def _names(measure: Measure) -> str:
    """The name of a measure, and what stands above its column where that is another."""
    return f"`{measure.name}`" + (f", {measure.heading}" if measure.heading else "")


def _quoted(text: str) -> str:
    """The text with the names of measures that hold an underscore as code."""
    return re.sub("|".join(name for name in MEASURES if "_" in name), r"`\g<0>`", text)


def page(text: str) -> str:
    """The page with the tables as the registries have them now."""
    for name, table in TABLES.items():
        begin, end = f"<!-- {name}: written by scripts/make_glossary.py -->\n", f"<!-- end of {name} -->"
        before, begin, rest = text.partition(begin)
        _, end, after = rest.partition(end)
        text = before + begin + table() + end + after
    return text


if __name__ == "__main__":
    write_atomically(PAGE, page(PAGE.read_text(encoding="utf-8")))
