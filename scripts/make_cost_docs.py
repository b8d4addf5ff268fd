"""Writes the tables of docs/ that come from the declarations in ppsim/costs."""

import dataclasses
import re
from collections.abc import Iterable
from pathlib import Path

from ppsim.base.files import write_atomically
from ppsim.base.rules import declarations
from ppsim.costs import Cluster, Costs, DeviceSheet, Layout, LinkSheet, Model
from ppsim.costs.effects import EFFECTS
from ppsim.costs.operators import OperatorLaw

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = ("config.md", "cost-model.md", "glossary.md")
KEYS = {
    "costs": Costs,
    "model": Model,
    "hardware": Cluster,
    "device": DeviceSheet,
    "link": LinkSheet,
    "layout": Layout,
    "operators": OperatorLaw,
}
_PLACE = re.compile(r"(<!-- made by make_cost_docs.py: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    """Refresh the tables of all pages."""
    for name in PAGES:
        write_atomically(DOCS / name, refreshed((DOCS / name).read_text(encoding="utf-8")))


def refreshed(page: str) -> str:
    """A page with its tables made anew, each between its two comments."""
    return _PLACE.sub(lambda place: place[1] + _lines(_rows(place[2])) + place[3], page)


def _rows(name: str) -> list[tuple[str, ...]]:
    if name == "effects":
        rows = [(_keys(effect.key), effect.unit, effect.formula, effect.source) for effect in EFFECTS]
        return [("key", "of what", "formula", "source"), *rows]
    return [
        ("key", "value", "default", "example"),
        *((f"`{item.name}`", item.metadata["what"], _default(item), _code(item)) for item in declarations(KEYS[name])),
    ]


def _keys(text: str) -> str:
    return ", ".join(f"`{key}`" for key in text.split(", "))


def _default(item: dataclasses.Field) -> str:
    if "default_text" in item.metadata:
        return item.metadata["default_text"]
    if item.default is dataclasses.MISSING:
        return "needed"
    return f"`{str(item.default).lower() if isinstance(item.default, bool) else item.default}`"


def _code(item: dataclasses.Field) -> str:
    return f"`{item.metadata['example']}`"


def _lines(rows: Iterable[tuple[str, ...]]) -> str:
    header, *rest = rows
    return "".join(f"| {' | '.join(row)} |\n" for row in (header, ("---",) * len(header), *rest))


if __name__ == "__main__":
    main()
