"""Writes the tables of docs/ that come from the declarations in ppsim/costs."""

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from published_models import CONFIGS, MEGATRON_FLOPS, counted_parameters, flops_as_megatron_counts

from ppsim.base.files import write_atomically
from ppsim.base.rules import declarations
from ppsim.base.units import percent_text
from ppsim.costs import Cluster, Costs, DeviceSheet, EncoderTower, Layout, LinkSheet, Model
from ppsim.costs.operators import OperatorLaw
from ppsim.costs.packing import SequenceLengths

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = ("config.md", "cost-model.md")
KEYS = {
    "costs": Costs,
    "model": Model,
    "hardware": Cluster,
    "device": DeviceSheet,
    "link": LinkSheet,
    "layout": Layout,
    "operators": OperatorLaw,
    "encoder": EncoderTower,
    "lengths": SequenceLengths,
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
    if name == "models":
        return [("model", "blocks", "parameters", "published", "difference", "source"), *map(_model, CONFIGS)]
    if name == "model_flops":
        return [("model", "attention in full", "half", "Megatron-LM", "difference"), *map(_flops, MEGATRON_FLOPS)]
    return [
        ("key", "value", "default", "example"),
        *((f"`{item.name}`", item.metadata["what"], _default(item), _code(item)) for item in declarations(KEYS[name])),
    ]


def _model(name: str) -> tuple[str, ...]:
    """The row of a published model: its blocks by the letters of their sublayers, and its parameters."""
    published = CONFIGS[name]
    model, count = Model.from_huggingface(published.config), published.parameters
    counted, blocks = counted_parameters(name, model), Counter(model.block_letters)
    letters = ", ".join(f"{count} `{letters}`" for letters, count in blocks.items())
    stored, difference = f"{count:,}", percent_text(counted / count - 1, 3, signed=True)
    if published.rounded:
        stored = f"{count / 1e9:g} billion (rounded: ±{percent_text(published.rounded / count, 2)})"
        difference += ", " + ("within" if abs(counted - count) < published.rounded else "beyond") + " the rounding"
    stored += f", {published.counts}" if published.counts else ""
    return name, letters, f"{counted:,}", stored, difference, published.source


def _flops(name: str) -> tuple[str, ...]:
    """The FLOPs of a step of one sequence of a published model, by both conventions, and as Megatron-LM counts."""
    model, theirs = Model.from_huggingface(CONFIGS[name].config, sequence=4096), MEGATRON_FLOPS[name]
    flops = (model.step_flops(), model.step_flops() - model.masked_flops(), theirs)
    difference = percent_text(flops_as_megatron_counts(name) / theirs - 1, 3, signed=True)
    return name, *(f"{one / 1e12:,.2f} TFLOP" for one in flops), difference


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
    cells = ([cell.replace("|", "\\|") for cell in row] for row in (header, ("---",) * len(header), *rest))
    return "".join(f"| {' | '.join(row)} |\n" for row in cells)


if __name__ == "__main__":
    main()
