"""What fits: of a config whose peak is above the device's memory, the first changes that bring it below."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ppsim.base.errors import PpsimError
from ppsim.config import Config
from ppsim.costs.layers import RECOMPUTE
from ppsim.run.schedules import schedules
from ppsim.run.timelines import Timeline


@dataclass(frozen=True)
class Fitting:
    """A way to run a config within the memory of its devices.

    Attributes
    ----------
    changes : mapping of dotted config key to value
        Empty where the config fits as it is.
    run : Timeline
    spare : float
        Bytes left on the fullest device below its memory less the headroom.
    """

    changes: Mapping[str, Any]
    run: Timeline
    spare: float


def what_fits(config: Config, headroom: float = 0.1) -> list[Fitting]:
    """The config as it is if it fits; else, each with all else as it is, the first that fits of the recompute levels
    (none, selective, full), of fewer microbatches (halving), and of other schedules the one with the shortest step.

    Empty where none of these fits. Raises CostError where the costs do not say what is held or name no device.
    """
    as_it_is = _try(config, {}, headroom)
    if as_it_is.spare >= 0:
        return [as_it_is]
    found = [
        _first(config, ({"layout.recompute": level, "layout.recompute_stages": None} for level in RECOMPUTE), headroom),
        _first(config, _fewer_microbatches(config), headroom),
        _best_schedule(config, headroom),
    ]
    return [fitting for fitting in found if fitting is not None]


def _try(config: Config, changes: Mapping[str, Any], headroom: float) -> Fitting:
    run = (config.changed(changes) if changes else config).simulate()
    return Fitting(changes, run, float(run.memory().spare(headroom).min()))


def _first(config: Config, candidates: Iterator[Mapping[str, Any]], headroom: float) -> Fitting | None:
    for changes in candidates:
        try:
            fitting = _try(config, changes, headroom)
        except PpsimError:
            continue
        if fitting.spare >= 0:
            return fitting
    return None


def _fewer_microbatches(config: Config) -> Iterator[Mapping[str, Any]]:
    microbatches = config.schedule.get("microbatches", 0) // 2
    while microbatches:
        yield {"schedule.microbatches": microbatches}
        microbatches //= 2


def _best_schedule(config: Config, headroom: float) -> Fitting | None:
    """Of the families that need no search, the shortest step that fits."""
    best = None
    for family in schedules().values():
        if "costs" in family.options or family.name == config.schedule.get("name"):
            continue
        changes = {"schedule.name": family.name, "schedule.options": None, "schedule.stages_per_device": None}
        try:
            fitting = _try(config, changes, headroom)
        except PpsimError:
            continue
        if fitting.spare >= 0 and (best is None or fitting.run.makespan < best.run.makespan):
            best = fitting
    return best
