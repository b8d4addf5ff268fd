"""The first advice for each config of docs/data/advice_cases.yaml, compared with every single change: a brute force."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import ppsim
from ppsim import PpsimError
from ppsim.base.compiling import can_compile
from ppsim.config import as_config
from ppsim.config.config import Config
from ppsim.frameworks import SCHEDULES
from ppsim.studies.points import fits_within

CASES = Path(__file__).resolve().parents[1] / "docs" / "data" / "advice_cases.yaml"
LEVELS = ("none", "full", "norms", "activations", "up", "core", "norms+activations")
FLAGS = ("sequence_parallel", "overlap_data", "overlap_tensor", "scatter_transfers", "fused", "grouped_experts")
RUN = tuple(dict.fromkeys(name for names in SCHEDULES.values() for name in names))


@dataclass(frozen=True)
class Advised:
    """Steps of one case: as it is, with the first advice, and with the best single change; None if it does not fit."""

    name: str
    step: float | None
    advised: float | None
    best: float
    words: str

    @property
    def behind(self) -> float:
        """By how much the first advice is slower than the best single change, relative."""
        return (self.advised or float("inf")) / self.best - 1


def cases() -> dict[str, Config]:
    """The configs by name."""
    data = yaml.safe_load(CASES.read_text(encoding="utf-8"))
    base = data["base"]
    return {
        name: as_config({**base, **case, "model": {**base["model"], **case.get("model", {})}, "name": name})
        for name, case in data["cases"].items()
    }


def advised(name: str, config: Config) -> Advised:
    """Compare the first advice with every single change."""
    config = config.changed({"engine": "compiled"}) if can_compile() else config
    found = ppsim.advise(config)
    first = found.better[0] if found.better else None
    kept = found.run.iteration_time if found.fits is not False else None
    step = first.step if first else kept
    best = min(steps_of_single_changes(config), default=float("inf"))
    return Advised(name, kept, step, min(best, kept or best), first.words if first else "nothing")


def steps_of_single_changes(config: Config) -> Iterator[float]:
    """The steps of all single changes that fit."""
    for keys in single_changes(config.data):
        try:
            run = config.changed(keys).simulate()
        except PpsimError:
            continue
        if fits_within(run) is not False:
            yield run.iteration_time


def single_changes(data: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Every value of every key, and every pair of other group sizes on the same GPUs, with the batch as it is."""
    schedule, layout = data["schedule"], data.get("layout", {})
    sizes = {"layout.tensor": layout.get("tensor", 1), "layout.context": layout.get("context", 1),
             "schedule.devices": schedule["devices"], "layout.data": layout.get("data", 1)}  # fmt: skip
    sequences = schedule["microbatches"] * layout.get("microbatch_size", 1)
    for size in range(1, 17):
        if sequences % size == 0:
            yield {"layout.microbatch_size": size, "schedule.microbatches": sequences // size}
    for one, other in itertools.combinations(sizes, 2):
        product = sizes[one] * sizes[other]
        for size in (size for size in range(1, product + 1) if product % size == 0):
            yield from _groups({**sizes, one: size, other: product // size}, sizes, schedule["microbatches"], layout)
    for name, stages in itertools.product(RUN, (None, *range(2, 17))):
        yield {"schedule.name": name, "schedule.stages_per_device": stages}
    for level in LEVELS:
        yield {"layout.recompute": level}
    for count in range(1, 16):
        yield {"layout.recompute": "full", "layout.recompute_blocks": count}
    for partition in ("even", "balanced", "optimal"):
        yield {"layout.partition": partition}
    for name in FLAGS:
        yield {f"layout.{name}": True}
    for keys in ((True, False), (False, True), (False, False)):
        yield {"layout.distributed_optimizer": keys[0], "layout.sharded": keys[1]}
    for size in (1, 2, 4, 8, 16):
        yield {"layout.expert": size}
    for exchange in ("all-to-all", "hierarchical"):
        yield {"layout.expert_exchange": exchange}


def _groups(
    new: dict[str, int], old: Mapping[str, int], microbatches: int, layout: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """The keys of other group sizes, and what must follow: microbatches, and what is usual with such groups."""
    count, rest = divmod(microbatches * old["layout.data"], new["layout.data"])
    if rest or not count or new["layout.tensor"] > 8:
        return
    keys: dict[str, Any] = {**new, "schedule.microbatches": count}
    if (new["layout.tensor"] > 1) != (old["layout.tensor"] > 1):
        keys["layout.sequence_parallel"] = new["layout.tensor"] > 1
    if new["layout.data"] * new["layout.context"] > 1:
        keys["layout.distributed_optimizer"] = True
    if new["schedule.devices"] == 1:
        keys |= {"schedule.name": "1f1b", "schedule.stages_per_device": None}
    for expert in range(layout.get("expert", 1), 0, -1):
        if new["layout.data"] * new["layout.context"] % expert == 0:
            yield {**keys, "layout.expert": expert}
            return
