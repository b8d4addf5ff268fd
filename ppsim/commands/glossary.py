"""`ppsim glossary`: the definition of a word, a measure, a cause of idle time or a cost."""

from __future__ import annotations

from importlib.resources import files
from json import loads
from typing import Annotated

import typer

from ppsim.analysis.ledger import CAUSES, PHASES
from ppsim.analysis.measures import MEASURES
from ppsim.base.documents import known_keys
from ppsim.base.errors import UnknownNameError, shown
from ppsim.base.tables import paragraph
from ppsim.commands.options import JsonTarget
from ppsim.commands.reporting import answer, command
from ppsim.costs.given import PARAMETERS

SCHEMA = "ppsim.glossary/1"
WORDS: dict[str, str] = loads(files("ppsim.commands").joinpath("words.json").read_text(encoding="utf-8"))


@command
def glossary(
    word: Annotated[
        str | None, typer.Argument(metavar="WORD", help="A word, such as bubble_ratio.", show_default=False)
    ] = None,
    json: JsonTarget = None,
) -> None:
    """Define a word, or list all words."""
    meanings = _meanings()
    if word is None:
        lines = [*paragraph(", ".join(meanings)), "", "`ppsim glossary WORD` defines one."]
        answer({"schema": SCHEMA, "words": meanings}, json, lambda: "\n".join(lines))
        return
    found = {name: text for name, text in meanings.items() if _plain(word) in map(_plain, name.split(", "))}
    if not found:
        near = known_keys(word, list(meanings), "`ppsim glossary` lists all words")
        raise UnknownNameError(f"{shown(word)} is not in the glossary; {near}")
    lines = [line for name, text in found.items() for line in (name, *paragraph(text, "  "))]
    answer({"schema": SCHEMA, "words": found}, json, lambda: "\n".join(lines))


def _meanings() -> dict[str, str]:
    """Return the meaning of each word: those of WORDS, then measures, causes and phases of idle time, and costs."""
    measures = {name: f"{measure.meaning} [{measure.unit}]" for name, measure in MEASURES.items()}
    idle = {name: f"idle time: {text}" for name, text in {**CAUSES, **PHASES}.items()}
    costs = {name: f"cost: {one['note']} [{one['unit']}]" for name, one in PARAMETERS.items() if "note" in one}
    return WORDS | measures | idle | costs


def _plain(word: str) -> str:
    return word.strip().lower().replace("_", " ").replace("-", " ")
