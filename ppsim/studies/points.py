"""Many points of one config: the measures of each, or the rule that refuses it, through an executor and a store."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from os import PathLike
from typing import Any

from ppsim.analysis.measures import MEASURES
from ppsim.base.compiling import can_compile
from ppsim.base.errors import PpsimError
from ppsim.base.progress import track
from ppsim.base.short_repr import short_repr
from ppsim.config import Config, Source, source_of
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.partition import LayoutString
from ppsim.run.schedules import Schedule
from ppsim.search import find_family, split_stages
from ppsim.search.partitions import fastest_stages
from ppsim.studies.kept_schedules import Kept
from ppsim.studies.store import Store, key_of
from ppsim.studies.worker_pool import FEW, Crew, Outcome, means

PATIENCE = 4  # times the usual number of cuts for a ranked point
MOST_ROWS_KEPT = 500_000  # of the schedules that a process keeps: about 100 MB with their programs
# The ledger behind this one takes longer than build, simulation and all the others together.
MEASURED = {name: measure for name, measure in MEASURES.items() if name != "exposed_communication"}


@dataclass(frozen=True)
class Point:
    """What became of one point.

    Attributes
    ----------
    changes : mapping of dotted config key to value
        As they were given.
    measures : mapping of measure to number, or None
        Those asked for, of all devices together; by default those of docs/glossary.md but exposed_communication. None
        where the point is refused.
    refused : str or None
        The rule that refuses it.
    layout_string : str or None
        The stages in Megatron-LM's notation; None where no model is known.
    """

    changes: Mapping[str, Any]
    measures: Mapping[str, Any] | None
    refused: str | None = None
    layout_string: str | None = None

    __repr__ = short_repr


def run_points(
    config: Config | Source | str | PathLike[str] | Mapping[str, Any],
    points: Iterable[Mapping[str, Any]],
    *,
    executor: Executor | None = None,
    workers: int | None = None,
    store: str | PathLike[str] | Store | None = None,
    label: str | None = "simulating",
    fast: bool | None = None,
    measures: Sequence[str] = tuple(MEASURED),
) -> Iterator[Point]:
    """Simulate a config under many changes; yield one Point for each, in order.

    Parameters
    ----------
    config : Config, path or mapping
        What the changes are applied to; it may lack what they say.
    points : iterable of mappings of dotted config key to value
        As in `Config.changed`. A schedule may be named with its stages per device, such as `interleaved-1f1b:4`, and
        takes no options and stages of another family from the config.
    executor : concurrent.futures.Executor, optional
        Default: processes on this machine, or this process alone where the points are few. `Workers(2)` serves several
        calls.
    workers : int, optional
        Processes, where no executor is given.
    store : path or Store, optional
        An SQLite file in which results are kept and found again.
    label : str, optional
        Beside the progress bar; None shows none.
    fast : bool, optional
        Whether the compiled engine runs what leaves the engine open; default: where the points are many.
    measures : list of str
        Those of `MEASURED` that are wanted; some take as long as a simulation.

    Raises
    ------
    ConfigError
        The config or the store cannot be read. What is wrong with a point is its `refused`.
    """
    source, changes = source_of(config), [dict(point) for point in points]
    with means(len(changes), executor, workers, store) as (runner, kept):
        fast = len(changes) >= FEW if fast is None else fast
        work = functools.partial(measure_points, source, fast=fast, measures=measures)
        key = functools.partial(_key, source, measures)
        crew = Crew(work, changes, runner, kept, key=key, beside=_schedule_part)
        outcomes = crew.in_order() if label is None else track(crew.in_order(), len(changes), label)
        for change, found in zip(changes, outcomes, strict=True):
            yield Point(change, found.get("measures"), found.get("refused"), found.get("layout_string"))


def _schedule_part(changes: Mapping[str, Any]) -> str:
    return repr([(key, value) for key, value in sorted(changes.items()) if key.startswith("schedule.")])


def _key(source: Source, measures: Sequence[str], changes: Mapping[str, Any]) -> str:
    wanted = {} if len(measures) == len(MEASURED) else {"measures": list(measures)}
    try:
        return key_of({**source.changed(own_changes(source, changes)).data, **wanted}, source.place)
    except PpsimError:  # refused before it is a config; its own text is its key
        return key_of({"base": source.data, "changes": dict(changes), **wanted}, source.place)


def own_changes(source: Source, changes: Mapping[str, Any]) -> dict[str, Any]:
    """`changes`, and where they name another schedule also those that take away what belongs to the config's own one.

    Options are of one family; a family whose number of stages is fixed takes that; a CSV file says all by itself.
    """
    name = changes.get("schedule.name")
    if not isinstance(name, str):
        return dict(changes)
    section = source.data.get("schedule") or {}
    away = {"schedule.csv": None, "schedule.slices": None}
    if split_stages(name)[0] != split_stages(str(section.get("name")))[0]:
        away["schedule.options"] = None
    if find_family(split_stages(name)[0]).fixed_stages:
        away["schedule.stages_per_device"] = None
    held = {key: None for key in away if key.partition(".")[2] in section}
    return held | dict(changes)


def measure_points(
    source: Source, points: Sequence[Mapping[str, Any]], fast: bool, measures: Sequence[str]
) -> list[Outcome]:
    """The outcome of each point; `fast` takes the compiled engine where the config leaves the engine open."""
    if fast and source.data.get("engine", "auto") == "auto" and can_compile():
        source = source.changed({"engine": "compiled"})
    return [_outcome(source, changes, measures) for changes in points]


def _outcome(source: Source, changes: Mapping[str, Any], measures: Sequence[str]) -> Outcome:
    try:
        config = source.config(own_changes(source, changes))
        run = config.simulate(schedule_of(config))
        numbers = {name: MEASURED[name].number(run) for name in measures}
        return {"measures": numbers, "layout_string": run.layout_string}
    except PpsimError as error:
        return {"refused": str(error).removeprefix(f"{source.place}: ")}
    except MemoryError:
        return {"refused": "not enough memory for this many actions; use fewer microbatches"}


def schedule_of(config: Config) -> Schedule:
    """The config's schedule; of what does not look at costs it is built once for all points."""
    section = config.schedule
    if "csv" in section or "recompute" in section or "costs" in find_family(section["name"]).options:
        return config.build()
    found = _KEPT.of(json.dumps(section, sort_keys=True, default=str), config.build)
    assert found is not None  # noqa: S101 - build gives one or raises
    return found


def fastest_partitions(
    source: Source, points: Sequence[Mapping[str, Any]], limit: float, executor: Executor, store: Store | None
) -> list[str | None]:
    """Return the layout string of each point's fastest stages with at most `limit` bytes per device.

    The point's own stages compete too. None if the point has no layers to cut, or its worker died.
    """

    def key(changes: Mapping[str, Any]) -> str:
        return key_of({"cut": changes, "limit": limit, "config": source.data}, source.place)

    work = functools.partial(_cut_points, source, limit)
    found = Crew(work, points, executor, store, key).in_order()
    return [one.get("stages") for one in found]


def _cut_points(source: Source, limit: float, points: Sequence[Mapping[str, Any]]) -> list[Outcome]:
    return [{"stages": _fastest_partition(source, limit, changes)} for changes in points]


def _fastest_partition(source: Source, limit: float, changes: Mapping[str, Any]) -> str | None:
    try:
        config = source.config(own_changes(source, changes))
        schedule, costs = config.lowered(schedule_of(config)), config.costs
        if not isinstance(costs, DerivedCosts):
            return None
        now = LayoutString.parse(costs.megatron_layout(schedule.num_stages))
        engine = "compiled" if can_compile() else "auto"
        options = {"engine": engine, "patience": PATIENCE, "starts": [now]}
        best = fastest_stages(costs, schedule, config.transport, config.optimizer, limit, **options)
        return best.megatron_layout(schedule.num_stages)
    except PpsimError:
        return None


_KEPT: Kept[Schedule] = Kept(MOST_ROWS_KEPT)  # points come in chunks and rounds; their schedules recur in later ones
