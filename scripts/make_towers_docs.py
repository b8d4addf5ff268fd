"""Writes the tables and the picture of docs/howto/towers.md: placements of an encoder, and published gains."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ppsim
from ppsim.base.files import write_atomically
from ppsim.base.units import percent_text, seconds_text

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "howto" / "towers.md"
PICTURE = ROOT / "docs" / "images" / "towers.svg"
PREFETCHED = PICTURE.with_name("towers-prefetch.svg")
CONFIG = ROOT / "configs" / "qwen3.5-vl-27b-17xh100.yaml"
FIRST = {"encoder.placement": "first", "encoder.layout": {"tensor": 4, "data": 2}, "hardware.gpus": 16}
FROZEN = {"encoder.frozen": True}
PREFETCH = FROZEN | {"encoder.prefetch": 2}
PLACEMENTS: dict[str, dict[str, Any]] = {
    "`first`": FIRST,
    "`phases`": FIRST | {"encoder.placement": "phases", "encoder.layout": {"data": 8}, "encoder.batch": 4},
    "`separate`": {},
    "`first`, frozen": FIRST | FROZEN,
    "`phases`, frozen": FIRST | FROZEN | {
        "encoder.placement": "phases", "encoder.layout": {"data": 8}, "encoder.batch": 4,
    },
    "`separate`, frozen": FROZEN,
    "`separate`, frozen, `prefetch: 2`": PREFETCH,
}  # fmt: skip
PUBLISHED = {(2048, 32): 27.6, (2048, 64): 35.0, (4096, 32): 23.7, (4096, 64): 27.9}  # sequence, batch: % of the step
_PLACE = re.compile(r"(<!-- made by make_towers_docs.py: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def main() -> None:
    """Write the page and its picture."""
    write_atomically(PAGE, refreshed(PAGE.read_text(encoding="utf-8")))
    config = ppsim.load_config(CONFIG)
    config.simulate().save(PICTURE)
    config.changed(PREFETCH).simulate().save(PREFETCHED)


def refreshed(page: str) -> str:
    """A page with its tables made anew, each between its two comments."""
    tables = {"placements": placements, "published": published}
    return _PLACE.sub(lambda place: place[1] + "".join(f"{row}\n" for row in tables[place[2]]()) + place[3], page)


def placements() -> Iterator[str]:
    """The step of each placement."""
    config = ppsim.load_config(CONFIG)
    yield "| placement | GPUs | step | bubble | MFU | most memory |"
    yield "| --- | --- | --- | --- | --- | --- |"
    for name, changes in PLACEMENTS.items():
        run = config.changed(changes).simulate()
        gpus, peak = run.table.workload.gpus, run.peak_memory.max() / 1e9
        yield (
            f"| {name} | {gpus} | {seconds_text(run.makespan, 3)} | {percent_text(run.bubble_fraction)} "
            f"| {percent_text(run.mfu)} | {peak:.1f} GB |"
        )


def published() -> Iterator[str]:
    """Published and predicted gains of the encoder's own GPU."""
    yield "| sequence, batch | published: shorter step | predicted | predicted steps |"
    yield "| --- | --- | --- | --- |"
    for (sequence, batch), gain, first, own in predictions():
        steps = f"{seconds_text(first, 3)}, {seconds_text(own, 3)}"
        yield f"| {sequence}, {batch} | -{gain} % | {percent_text(own / first - 1)} | {steps} |"


def predictions() -> Iterator[tuple[tuple[int, int], float, float, float]]:
    """Sequence and batch, published gain in % of the step, predicted seconds in the first stage and on an own GPU."""
    config = ppsim.load_config(CONFIG)
    for (sequence, batch), gain in PUBLISHED.items():
        sizes = {"model.sequence": sequence, "schedule.microbatches": batch // 2, "batch": batch}
        own, first = (config.changed(sizes | changes).simulate().makespan for changes in ({}, FIRST))
        yield (sequence, batch), gain, first, own


if __name__ == "__main__":
    main()
