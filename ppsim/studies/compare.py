"""Several schedules on the same work: one run each, ranked by step time, and why the others cannot run."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ppsim.analysis.measures import shown_in
from ppsim.analysis.occupancy import peak_activations
from ppsim.analysis.steady import iteration_time
from ppsim.base.errors import BuildError, PpsimError
from ppsim.base.extras import need
from ppsim.costs import CostModel
from ppsim.families.registry import Family, families, find_family
from ppsim.run.schedules import Schedule, schedules
from ppsim.run.simulation import simulate
from ppsim.run.timelines import Timeline
from ppsim.timeline import TimelineColumns

if TYPE_CHECKING:
    import pandas

SCHEMA = "ppsim.comparison/1"


@dataclass(frozen=True)
class Comparison:
    """What `compare` returns.

    Attributes
    ----------
    timelines : list of Timeline
        Shortest step first; of equal steps the one with the smaller activation peak first. Asynchronous schedules,
        which pay for their steps with old weights and no drain, come after all others.
    refused : mapping of schedule name to str
        Why each of the others cannot run at this size.
    """

    timelines: list[Timeline]
    refused: Mapping[str, str]

    def rows(self) -> list[dict[str, Any]]:
        """One row a schedule, in the order of `timelines`: its name, whether it is asynchronous, and its measures."""
        measures = shown_in("compare")
        return [
            {"schedule": run.schedule.name, "asynchronous": asynchronous(run)}
            | {measure.name: measure.number(run) for measure in measures}
            for run in self.timelines
        ]

    def to_frame(self) -> pandas.DataFrame:
        """The rows as a pandas table."""
        pandas = need("pandas", "a table of schedules")
        names = ["schedule", "asynchronous", *(measure.name for measure in shown_in("compare"))]
        return pandas.DataFrame(self.rows(), columns=names)

    def _repr_html_(self) -> str:
        return self.to_frame().to_html(index=False, float_format="{:.4g}".format)

    def to_dict(self) -> dict[str, Any]:
        """Rows and refusals as plain Python values, with units and definitions (schema ppsim.comparison/1)."""
        measures = shown_in("compare")
        return {
            "schema": SCHEMA,
            "schedules": self.rows(),
            "refused": dict(self.refused),
            "units": {measure.name: measure.unit for measure in measures},
            "definitions": {measure.name: measure.meaning for measure in measures}
            | {"asynchronous": "whether steps follow each other without a drain, on old weights"},
        }


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
    return Comparison(sorted(timelines, key=_rank), refused)


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


def asynchronous(run: TimelineColumns) -> bool:
    """Whether steps follow each other without a drain: by the schedule's family, or because it holds several."""
    family = families().get(run.schedule.name)
    return run.schedule.iterations > 1 or (family is not None and family.asynchronous)


def _rank(run: TimelineColumns) -> tuple[Any, ...]:
    return asynchronous(run), iteration_time(run), peak_activations(run).max(), run.schedule.name
