"""What fits: of a config whose peak is above the device's memory, the first changes that bring it below."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ppsim.base.errors import PpsimError
from ppsim.base.short_repr import short_repr
from ppsim.config import Config
from ppsim.costs.layers import RECOMPUTE
from ppsim.run.schedules import schedules
from ppsim.run.timelines import Timeline
from ppsim.studies.best_first import Search
from ppsim.studies.space import DEVICES, MICROBATCH_SIZE, PARTITION, SHARDING, TENSOR, open_space
from ppsim.studies.what_if import NOISE
from ppsim.studies.worker_pool import Here

LAYOUT = (
    TENSOR,
    DEVICES,
    MICROBATCH_SIZE,
    "layout.recompute",
    SHARDING,
    PARTITION,
)  # free where a layout is looked for
ENDS = ("layout.first_stage_layers", "layout.last_stage_layers", "layout.recompute_stages")  # go with one partition


def fits_within(run: Timeline, headroom: float = 0.0) -> bool | None:
    """Whether a run stays within its devices' memory less the headroom; None where memory or device is not known."""
    if run.table.workload is None or run.peak_memory is None:
        return None
    return bool(run.memory().fits(headroom))


def step_difference(before: float, after: float) -> float:
    """Seconds by which a step became longer; 0 where only rounding differs."""
    return 0.0 if abs(after - before) <= NOISE * before else after - before


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

    __repr__ = short_repr


def what_fits(config: Config, headroom: float = 0.1) -> list[Fitting]:
    """Ways to run a config within the memory of its devices.

    The config as it is if it fits; else, each with all else as it is, the first that fits of the recompute levels
    (none, selective, full), of fewer microbatches (halving), and of other schedules the one with the shortest step; and
    of other layouts of its own schedule on the same GPUs and batch the fastest one.

    Parameters
    ----------
    config : Config
        Its costs must say what is held.
    headroom : float
        Part of each device's memory that must stay free, from 0 to below 1.

    Returns
    -------
    list of Fitting
        Empty where none of these fits.

    Raises
    ------
    CostError
        The costs do not say what is held, or name no device.
    """
    as_it_is = _try(config, {}, headroom)
    if as_it_is.spare >= 0:
        return [as_it_is]
    found = [
        _first(config, ({"layout.recompute": level, "layout.recompute_stages": None} for level in RECOMPUTE), headroom),
        _first(config, _fewer_microbatches(config), headroom),
        _best_schedule(config, headroom),
        _best_layout(config, headroom),
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
        if fitting.spare >= 0 and (best is None or fitting.run.iteration_time < best.run.iteration_time):
            best = fitting
    return best


def _best_layout(config: Config, headroom: float) -> Fitting | None:
    """The fastest layout of the config's GPUs that fits, with its schedule and batch."""
    stages = config.schedule.get("stages_per_device")
    free = dict.fromkeys(LAYOUT) | {"schedule.name": [config.schedule.get("name")]}
    try:
        space = open_space(config, {key: values or () for key, values in free.items()})
    except PpsimError:
        return None
    search = Search(space, headroom, top=1, executor=Here(), with_front=False)
    search.run()
    if not search.ranked:
        return None
    keys = {**dict.fromkeys(ENDS), **search.ranked[0].changes, "schedule.stages_per_device": stages}
    changes = {key: value for key, value in keys.items() if value != _given(config, key)}
    return _try(config, changes, headroom)


def _given(config: Config, key: str) -> Any:
    section, name = key.split(".")
    return (config.data.get(section) or {}).get(name)
