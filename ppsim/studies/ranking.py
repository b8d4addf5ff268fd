"""Candidates, and the one order that choose ranks them in: by step, and of equal steps the simplest first."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ppsim.analysis.measures import pareto_front
from ppsim.base.short_repr import short_repr
from ppsim.search import find_family
from ppsim.studies.frameworks import RUNS, TORCHTITAN
from ppsim.studies.space import DEVICES, PARTITION, RECOMPUTE_LEVEL

DIGITS = 5  # to which steps are compared: those that read the same are at most 0.01 % apart


@dataclass(frozen=True)
class Candidate:
    """One point that was simulated and fits.

    Attributes
    ----------
    changes : mapping of dotted key to value
        What makes the point out of the config.
    measures : mapping of measure name to number
        `ppsim.studies.best_first.SHOWN`; None where it is not known.
    alike : int
        Where it is ranked: how many other points take the same step.
    """

    changes: Mapping[str, Any]
    measures: Mapping[str, Any]
    alike: int = 0

    __repr__ = short_repr

    @property
    def step(self) -> float:
        """Seconds of one training step."""
        return self.measures["iteration_time"]

    @property
    def memory(self) -> float:
        """Bytes of the fullest device; live activations where bytes are not known."""
        return self.measures["peak_memory" if self.measures["peak_memory"] is not None else "peak_activations"]

    @property
    def rank(self) -> tuple[Any, ...]:
        """What candidates are ordered by: `rounded` step, then how simple they are, then step and memory.

        Simple is, in this order: few devices in a pipeline, few stages a device, a schedule that Megatron-LM runs or
        else PyTorch, no recompute, an even partition.
        """
        name = self.changes["schedule.name"]
        stages = self.changes.get("schedule.stages_per_device") or find_family(name).stages_per_device
        makers = 0 if name in RUNS["Megatron-LM"] else 1 if name in TORCHTITAN else 2
        recomputes = self.changes.get(RECOMPUTE_LEVEL, "none") != "none"
        uneven = self.changes.get(PARTITION, "even") != "even"
        simple = self.changes.get(DEVICES, 1), stages, makers, recomputes, uneven
        return rounded(self.step), *simple, self.step, self.memory, str(sorted(self.changes.items(), key=_key))


def _key(item: tuple[str, Any]) -> str:
    return item[0]


def rounded(step: float) -> float:
    """Seconds to `DIGITS` significant digits; points whose steps are equal in them are alike."""
    return float(f"{step:.{DIGITS}g}")


def rank(candidates: Iterable[Candidate], top: int) -> list[Candidate]:
    """The first `top` of those that differ in their step; of those alike the simplest, which counts the others."""
    ordered = sorted(candidates, key=lambda one: one.rank)
    ranked = []
    for _, group in itertools.islice(itertools.groupby(ordered, key=lambda one: rounded(one.step)), top):
        first, *others = group
        ranked.append(replace(first, alike=len(others)))
    return ranked


def front_of(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Those than which no other is as fast and as small, fastest first; of points alike in both the simplest."""
    simplest = sorted(candidates, key=lambda one: one.rank)
    return [simplest[index] for index in pareto_front([(one.step, one.memory) for one in simplest])]
