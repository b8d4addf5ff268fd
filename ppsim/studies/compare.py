"""Several schedules on the same work: one run each, sorted by step time, and why the others cannot run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ppsim.base.errors import BuildError, PpsimError
from ppsim.base.extras import need
from ppsim.costs import CostModel
from ppsim.families.registry import Family, find_family
from ppsim.run.schedules import Schedule, schedules
from ppsim.run.simulation import simulate
from ppsim.run.timelines import Timeline

if TYPE_CHECKING:
    import pandas

SCHEMA = "ppsim.comparison/1"
COLUMNS = {  # name -> unit or definition
    "schedule": "family, or the name of a schedule that was given",
    "stages_per_device": "stages that the device with most of them runs",
    "iterations": "training steps that the run holds; 1 in every synchronous schedule",
    "iteration_time": "seconds of one step: the makespan, or the pace of an asynchronous schedule",
    "makespan": "seconds",
    "bubble_fraction": "fraction: idle / total",
    "bubble_ratio": "fraction: idle / ideal",
    "span_bubble_fraction": "fraction: 1 - max(busy) / span",
    "steady_bubble_fraction": "fraction: idle / total between fill and drain, for steps without a drain",
    "peak_activations": "of the fullest device, in microbatches through one device share of the model",
    "peak_memory": "of the fullest device, in bytes; null where the costs do not say what is held",
    "transfers": "sent in one step by the device that sends most",
    "weight_copies": "weights of the fullest device with all their versions, in device shares of the model",
}


@dataclass(frozen=True)
class Comparison:
    """What `compare` returns.

    Attributes
    ----------
    timelines : list of Timeline
        Shortest step first; of equal steps the one with the smaller activation peak first.
    refused : mapping of schedule name to str
        Why each of the others cannot run at this size.
    """

    timelines: list[Timeline]
    refused: Mapping[str, str]

    def rows(self) -> list[dict[str, Any]]:
        """One row a schedule, in the order of `timelines`, with the keys of `COLUMNS`."""
        return [_row(timeline) for timeline in self.timelines]

    def to_frame(self) -> pandas.DataFrame:
        """The rows as a pandas table."""
        pandas = need("pandas", "a table of schedules")
        return pandas.DataFrame(self.rows(), columns=list(COLUMNS))

    def _repr_html_(self) -> str:
        return self.to_frame().to_html(index=False, float_format="{:.4g}".format)

    def to_dict(self) -> dict[str, Any]:
        """Rows and refusals as plain Python values (schema ppsim.comparison/1)."""
        return {"schema": SCHEMA, "schedules": self.rows(), "refused": dict(self.refused), "units": dict(COLUMNS)}


def compare(
    which: Iterable[str | Schedule] | None = None,
    *,
    devices: int,
    microbatches: int,
    stages_per_device: int | None = None,
    costs: CostModel | None = None,
    options: Mapping[str, Mapping[str, Any]] | None = None,
    transport: str = "async",
    engine: str = "auto",
    run: Callable[[Schedule], Timeline] | None = None,
) -> Comparison:
    """Run schedules at equal work: same devices, microbatches, costs and transport.

    Parameters
    ----------
    which : iterable of family names and schedules, optional
        Default: every family of the registry.
    devices, microbatches : int
        As in `ppsim.build`.
    stages_per_device : int, optional
        For the families that take more than one; from 1 upwards. The others, and all when it is 1 or not given, run
        their own number.
    costs : CostModel, optional
        As in `ppsim.simulate`.
    transport, engine : str
        As in `ppsim.simulate`.
    options : mapping of family name to its options, optional
        Such as `{"interleaved-1f1b": {"group_size": 8}}`.
    run : function of a schedule, optional
        Runs one, such as `Config.simulate` with its jitter. Default: `ppsim.simulate` with the above.

    Raises
    ------
    BuildError
        For a name that is no family. A schedule that cannot run at this size is no error: it is listed with its reason.
    """
    if run is None:
        run = functools.partial(simulate, costs=costs, transport=transport, engine=engine)
    chosen = [find_family(item) if isinstance(item, str) else item for item in which or schedules()]
    timelines: list[Timeline] = []
    refused: dict[str, str] = {}
    for item in chosen:
        if item.name in refused or any(timeline.schedule.name == item.name for timeline in timelines):
            continue
        try:
            if isinstance(item, Family):
                own = dict((options or {}).get(item.name, {}))
                schedule = _built(item, devices, microbatches, stages_per_device, costs, own)
            else:
                schedule = _of_size(item, devices, microbatches)
            timelines.append(run(schedule))
        except PpsimError as error:
            refused[item.name] = str(error).removeprefix(f"{item.name}: ")
    timelines.sort(key=lambda run: (run.iteration_time, run.peak_activations.max(), run.schedule.name))
    return Comparison(timelines, refused)


def _built(
    family: Family,
    devices: int,
    microbatches: int,
    stages_per_device: int | None,
    costs: CostModel | None,
    options: dict[str, Any],
) -> Schedule:
    if "costs" in family.options and costs is not None:
        options.setdefault("costs", costs)
    stages = None if family.fixed_stages or stages_per_device == 1 else stages_per_device
    return Schedule.of(family.columns(devices, microbatches, stages, **options))


def _of_size(schedule: Schedule, devices: int, microbatches: int) -> Schedule:
    """`schedule`, or BuildError where it is other work than what it is compared with."""
    compute = schedule.compute
    count = compute.microbatches_of_a_step
    if (compute.devices, count) != (devices, microbatches):
        raise BuildError(
            f"it has {compute.devices} devices and {count} microbatches; compared are schedules of {devices} devices "
            f"and {microbatches} microbatches"
        )
    return schedule


def _row(timeline: Timeline) -> dict[str, Any]:
    schedule, memory = timeline.schedule, timeline.peak_memory
    return {
        "schedule": schedule.name,
        "stages_per_device": int(stages_held(timeline).max()),
        "iterations": schedule.iterations,
        "iteration_time": timeline.iteration_time,
        "makespan": timeline.makespan,
        "bubble_fraction": timeline.bubble_fraction,
        "bubble_ratio": timeline.bubble_ratio,
        "span_bubble_fraction": timeline.span_bubble_fraction,
        "steady_bubble_fraction": timeline.steady_bubble_fraction,
        "peak_activations": float(timeline.peak_activations.max()),
        "peak_memory": None if memory is None else float(memory.max()),
        "transfers": int(transfers_sent(timeline).max()) // schedule.iterations,
        "weight_copies": float(schedule.weight_copies.max()),
    }


def stages_held(timeline: Timeline) -> np.ndarray:
    """Stages that each device runs."""
    return np.bincount(timeline.schedule.holdings[:, 0], minlength=timeline.schedule.devices)


def transfers_sent(timeline: Timeline) -> np.ndarray:
    """Transfers that each device sends in the whole run."""
    schedule, plan = timeline.schedule, timeline.plan
    return np.bincount(schedule.device[plan.source[plan.remote]], minlength=schedule.devices)
