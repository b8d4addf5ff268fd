"""How far derived step times lie from measured ones: a table by class of run, widened where a run is unlike them.

The table, `spread.json`, is written by scripts/make_accuracy_docs.py from the published runs of docs/accuracy.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ppsim.costs.setup import Setup

TABLE = Path(__file__).with_name("spread.json")
DIMENSIONS = ("hidden", "block_flops", "gpus", "peak")
PER_DOUBLING = 1.1  # assumed: each doubling beyond what was measured moves both ends apart by a tenth
SMALL = 2048  # hidden size up to which a model counts as small
FP8 = ("fp8, dense", "fp8, mixture of experts", f"fp8, small (hidden up to {SMALL})")
DENSE = {"dense on A100": 312e12, "dense on H100": 989e12, "dense on B200 and GB200": 2250e12}


@dataclass(frozen=True)
class Spread:
    """The 90 % interval of measured / predicted seconds of a step, and where it comes from.

    Attributes
    ----------
    low, middle, high : float
        P5, P50 and P95, to be multiplied with the predicted seconds.
    group : str
        The class of run that it is of.
    runs, sources : int
        Published runs of that class, and sources that published them.
    doublings : float
        How far the run lies outside of what was measured; 0 inside.
    """

    low: float
    middle: float
    high: float
    group: str
    runs: int
    sources: int
    doublings: float

    @property
    def sentence(self) -> str:
        """Where the interval comes from."""
        far = f", {self.doublings:.1f} doublings beyond them" if self.doublings >= 0.05 else ""
        return f"derived costs: spread of {self.runs} published runs of its class, {self.group}{far}"


def spread_of(setup: Setup, devices: int) -> Spread:
    """The spread of published runs of the class of a pipeline of `devices` devices."""
    group = class_of(setup, devices)
    row, own = _table()["classes"][group], scales(setup, devices)
    doublings = sum(_outside(own[name], *row["measured"][name]) for name in DIMENSIONS)
    wider = PER_DOUBLING**doublings
    return Spread(row["low"] / wider, row["middle"], row["high"] * wider, group, row["runs"], row["sources"], doublings)


def order_of_schedules() -> tuple[float, int]:
    """The factor that the ratio of two derived steps, of one model by two schedules, is off by at 90 %; of how many."""
    row = _table()["order"]
    return row["apart"], row["pairs"]


def class_of(setup: Setup, devices: int) -> str:
    """The class of a run: the first that fits of fp8 (small model, experts, neither), experts, small model, sharded
    weights without pipeline, device.

    A dense model belongs to the device of `DENSE` whose peak is nearest.
    """
    if setup.layout.casts:
        return FP8[2 if setup.model.hidden <= SMALL else bool(setup.model.experts)]
    if setup.model.experts:
        return "mixture of experts"
    if setup.model.hidden <= SMALL:
        return f"small (hidden up to {SMALL})"
    if setup.layout.sharded and devices == 1:
        return "FSDP without pipeline"
    return min(DENSE, key=lambda name: abs(math.log(DENSE[name] / setup.cluster.device.peak)))


def scales(setup: Setup, devices: int) -> dict[str, float]:
    """What a run is compared by: hidden size, forward FLOPs of a block on one GPU, GPUs and their dense peak."""
    layout, block = setup.layout, setup.model.layers[1 : 1 + setup.model.num_layers][-1]
    return {
        "hidden": setup.model.hidden,
        "block_flops": block.forward * layout.microbatch_size / (layout.tensor * layout.context),
        "gpus": devices * layout.gpus_per_device,
        "peak": setup.cluster.device.peak,
    }


def _outside(value: float, least: float, most: float) -> float:
    """Doublings between a value and the nearest end of a range; 0 inside, where ends are rounded to four digits."""
    return max(math.log2(least / value), math.log2(value / most), 0.0)


@cache
def _table() -> Mapping[str, Any]:
    return json.loads(TABLE.read_text(encoding="utf-8"))
