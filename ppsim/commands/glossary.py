"""`ppsim glossary`: the definition of a word, a measure, a cause of idle time or a cost."""

from __future__ import annotations

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
WORDS = {
    "stage": "A contiguous slice of the model's layers. There are `num_stages` of them, numbered from 0.",
    "device": (
        "One position in the pipeline, with one compute stream; `devices` of them, numbered from 0. With tensor or "
        "context parallelism it represents a group of GPUs that do the same work. 'Rank', PyTorch's word, is used "
        "only for PyTorch's formats."
    ),
    "device share": "1/`devices` of the model: one device's part, if each device had one equal stage.",
    "microbatch": (
        "A part of the batch that moves through the pipeline on its own, numbered from 0. Bidirectional schedules "
        "share one numbering between both directions."
    ),
    "slice": "A part of one microbatch, cut along the sequence. Its number is `microbatch x slices` + its index.",
    "action": "(kind, stage, microbatch): one operation of a device.",
    "kind": "F, B, I, W, R, a transfer, a sharding action, a copy to host memory or back, or OVERLAP_F_B; see below.",
    "schedule": "The ordered list of compute actions of each device. A schedule is data, without times.",
    "program": "A lowered schedule: its lists also contain transfers and sharding actions.",
    "placement": (
        "Which device runs (stage, microbatch). It follows from the lists; common shapes are `loop` (stage s on "
        "device s mod p), `v` (down and back up: stages r and 2p-1-r on device r), `wave` (several V) and "
        "`bidirectional` (each stage on two devices, one for each direction)."
    ),
    "costs": "The seconds of each action, and the bytes that it sends and holds.",
    "provenance": (
        "Where a cost comes from: *given* by the caller, *derived* from a model and a device sheet, *measured* on "
        "devices, or *default* if none of these."
    ),
    "timeline": "The result of a simulation: start and end of each action and transfer, as columns.",
    "warm-up, steady part, cool-down": "The fill, the repeating part and the drain of a device's list.",
    "transport": "How transfers queue; see below.",
    "step, iteration": "One pass over all microbatches of a batch, up to the last action of the pipeline.",
    "usable, headroom, tight": (
        "Usable is a device's memory less the headroom (10 % by default), which the framework and fragments need. "
        "A run is tight if it needs more than that, but not more than the device has."
    ),
    "asynchronous": (
        "A schedule whose iterations follow each other without a drain, on several versions of the weights."
    ),
    "bubble": "Idle time of devices within a step; `simulate` gives it as a fraction of all device time.",
}


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
