"""`ppsim list`: every schedule family in one line, or one family in full."""

from __future__ import annotations

from itertools import chain
from typing import Annotated

import typer

from ppsim.base.tables import aligned, paragraph
from ppsim.base.units import counted
from ppsim.commands.cells import LEGEND, letters
from ppsim.commands.options import JsonTarget
from ppsim.commands.reporting import answer, command
from ppsim.families import registry
from ppsim.families.registry import RegisteredFamily
from ppsim.frameworks import frameworks_running
from ppsim.search import find_family

LABEL_WIDTH = 18


@command
def families(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="One family, shown in full.", show_default=False)
    ] = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print one line per schedule, with its title.")
    ] = False,
    json: JsonTarget = None,
) -> None:
    """List the schedule families, or show one in full."""
    chosen = [find_family(name)] if name else list(registry.families().values())
    document = {"schema": "ppsim.schedules/1", "schedules": [_document(family) for family in chosen]}
    answer(document, json, lambda: _described(chosen[0]) if name else _overview(chosen, verbose))


def _document(family: RegisteredFamily) -> dict[str, object]:
    return {
        **family.describe(),
        "group": family.group,
        "stages_per_device": family.stages_per_device,
        "asynchronous": family.asynchronous,
        "options": _option_texts(family),
    }


def _option_texts(family: RegisteredFamily) -> dict[str, str]:
    return {
        key: "required" if parameter.default is parameter.empty else f"default {parameter.default}"
        for key, parameter in family.options.items()
    }


def _overview(chosen: list[RegisteredFamily], verbose: bool) -> str:
    lines = [f"{counted(len(chosen), 'schedule')}; `ppsim list NAME` shows one; * a framework runs it"]
    if verbose:
        rows = [(_marked(one), letters(frameworks_running(one.name, experts=True)), one.title) for one in chosen]
        return "\n".join([f"{lines[0]}; {LEGEND}", "", *aligned(rows)])
    groups = dict.fromkeys([*(one.group for one in chosen if one.group != "other"), "other"])
    rows = [(group, " ".join(_marked(one) for one in chosen if one.group == group)) for group in groups]
    width = max(map(len, groups))
    return "\n".join([*lines, "", *(line for group, names in rows for line in paragraph(names, f"{group:<{width}}  "))])


def _marked(family: RegisteredFamily) -> str:
    return family.name + "*" * bool(frameworks_running(family.name, experts=True))


def _described(family: RegisteredFamily) -> str:
    """Return all facts about a family, as labelled paragraphs."""
    facts = {
        **family.describe(),
        "options": "; ".join(f"{k} ({t})" for k, t in _option_texts(family).items()) or "none",
    }
    lines = (paragraph(text, f"{label.replace('_', ' '):<{LABEL_WIDTH}}") for label, text in facts.items())
    return "\n".join(chain.from_iterable(lines))
