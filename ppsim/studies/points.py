"""Many points of one config: the measures of each, or the rule that refuses it, through an executor and a store."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass
from os import PathLike
from typing import Any

from ppsim.analysis.measures import MEASURES
from ppsim.base.compiling import can_compile
from ppsim.base.errors import ConfigError, PpsimError
from ppsim.base.progress import track
from ppsim.config import Config, Source, source_of
from ppsim.families.registry import find_family, split_stages
from ppsim.run.schedules import Schedule
from ppsim.studies.executors import Here, Workers, as_one_batch, is_death, places
from ppsim.studies.store import Store, key_of

FEW = 64  # points that are done before other processes have started
MOST_IN_CHUNK = 32
MOST_ROWS_KEPT = 2_000_000  # of the schedules that a worker keeps: about 100 MB
KILLS = 2
# The ledger behind this one takes longer than build, simulation and all the others together.
MEASURED = {name: measure for name, measure in MEASURES.items() if name != "exposed_communication"}
LEFT_OUT = f"left out: its worker died {KILLS} times; simulate it by itself to see why"

Outcome = dict[str, Any]  # {"measures": ...} or {"refused": ...}


@dataclass(frozen=True)
class Point:
    """What became of one point.

    Attributes
    ----------
    changes : mapping of dotted config key to value
        As they were given.
    measures : mapping of measure to number, or None
        Those of docs/glossary.md but exposed_communication, of all devices together; None where the point is refused.
    refused : str or None
        The rule that refuses it.
    """

    changes: Mapping[str, Any]
    measures: Mapping[str, Any] | None
    refused: str | None = None


def run_points(
    config: Config | Source | str | PathLike[str] | Mapping[str, Any],
    points: Iterable[Mapping[str, Any]],
    *,
    executor: Executor | None = None,
    workers: int | None = None,
    store: str | PathLike[str] | None = None,
    label: str = "simulating",
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
    store : path, optional
        An SQLite file in which results are kept and found again.
    label : str
        Above the progress bar.

    Raises
    ------
    ConfigError
        The config or the store cannot be read. What is wrong with a point is its `refused`.
    """
    source, changes = source_of(config), [dict(point) for point in points]
    kept = Store(store) if store is not None else None
    own = None if executor is not None else _own_executor(len(changes), workers)
    runner = executor or own or Here()
    crew = _Crew(source, changes, runner, kept)
    try:
        yield from _in_order(track(crew.outcomes(), len(changes), label), changes)
    finally:
        crew.leave()
        if own is not None:
            own.shutdown()
        if kept is not None:
            kept.close()


def _own_executor(points: int, workers: int | None) -> Executor:
    if workers is not None and (isinstance(workers, bool) or not isinstance(workers, int) or workers < 1):
        raise ConfigError(f"workers={workers!r} must be a whole number of at least 1")
    return Here() if workers is None and points < FEW else Workers(workers)


def _in_order(outcomes: Iterable[tuple[int, Outcome]], changes: list[dict[str, Any]]) -> Iterator[Point]:
    early: dict[int, Outcome] = {}
    following = 0
    for index, outcome in outcomes:
        early[index] = outcome
        while following in early:
            found = early.pop(following)
            yield Point(changes[following], found.get("measures"), found.get("refused"))
            following += 1


class _Crew:
    """Points on their way through an executor, in chunks; those of a worker that died are done again one by one."""

    def __init__(self, source: Source, changes: list[dict[str, Any]], executor: Executor, store: Store | None):
        self.source, self.changes, self.executor, self.store = source, changes, executor, store
        self.fast = len(changes) >= FEW
        self.keys: dict[int, str] = {}
        # Points of one schedule beside each other: their worker builds it once.
        order = sorted(range(len(changes)), key=lambda index: _schedule_part(changes[index]))
        size = max(1, min(MOST_IN_CHUNK, len(order) // (4 * places(executor))))
        self.waiting = deque(order[first : first + size] for first in range(0, len(order), size))
        self.suspects: deque[list[int]] = deque()
        self.running: dict[Future, list[int]] = {}
        self.kills: Counter[int] = Counter()

    def outcomes(self) -> Iterator[tuple[int, Outcome]]:
        """Index and outcome of every point, as they come."""
        while self.waiting or self.suspects or self.running:
            yield from self._submit()
            done = wait(self.running, return_when=FIRST_COMPLETED).done if self.running else ()
            died = False
            for future in done:
                chunk = self.running.pop(future)
                error = future.exception()
                if error is None:
                    yield from self._keep(chunk, future.result())
                elif is_death(error):
                    died = True
                    yield from self._suspect(chunk)
                else:
                    raise error
            if died and isinstance(self.executor, Workers):
                yield from self._replace_workers(self.executor)

    def leave(self) -> None:
        """Give up what has not begun."""
        for future in self.running:
            future.cancel()

    def _submit(self) -> Iterator[tuple[int, Outcome]]:
        """Hand out chunks; what the store holds already is yielded. A suspect runs while nothing else does."""
        if self.suspects:
            if not self.running:
                self._start(self.suspects.popleft())
            return
        found: list[tuple[int, Outcome]] = []
        most = 1 if isinstance(self.executor, Here) else 2 * places(self.executor)
        with as_one_batch(self.executor):
            while self.waiting and len(self.running) < most:
                known, chunk = self._known(self.waiting.popleft())
                found += known
                if chunk:
                    self._start(chunk)
                if len(found) >= MOST_IN_CHUNK:
                    break
        yield from found

    def _start(self, chunk: list[int]) -> None:
        changes = [self.changes[index] for index in chunk]
        try:
            future = self.executor.submit(measure_points, self.source, changes, self.fast)
        except Exception as error:
            if not is_death(error):
                raise
            future = Future()
            future.set_exception(error)
        self.running[future] = chunk

    def _known(self, chunk: list[int]) -> tuple[list[tuple[int, Outcome]], list[int]]:
        """Of a chunk what the store holds, and the rest."""
        if self.store is None:
            return [], chunk
        for index in chunk:
            self.keys[index] = _key(self.source, self.changes[index])
        held = self.store.find([self.keys[index] for index in chunk])
        known = [(index, held[self.keys[index]]) for index in chunk if self.keys[index] in held]
        return known, [index for index in chunk if self.keys[index] not in held]

    def _keep(self, chunk: list[int], outcomes: list[Outcome]) -> Iterator[tuple[int, Outcome]]:
        if self.store is not None:
            self.store.keep({self.keys[index]: outcome for index, outcome in zip(chunk, outcomes, strict=True)})
        yield from zip(chunk, outcomes, strict=True)

    def _suspect(self, chunk: list[int]) -> Iterator[tuple[int, Outcome]]:
        """Of a worker that died: which of its points it was, each shows by itself."""
        for index in chunk:
            self.kills[index] += 1
            if self.kills[index] < KILLS:
                self.suspects.append([index])
            else:
                yield index, {"refused": LEFT_OUT}

    def _replace_workers(self, workers: Workers) -> Iterator[tuple[int, Outcome]]:
        """A pool that lost a process fails whatever it has: collect that, then start new processes."""
        wait(self.running)
        for future, chunk in list(self.running.items()):
            if future.exception() is None:
                yield from self._keep(chunk, future.result())
            else:
                yield from self._suspect(chunk)
        self.running.clear()
        workers.replace()


def _schedule_part(changes: Mapping[str, Any]) -> str:
    return repr([(key, value) for key, value in sorted(changes.items()) if key.startswith("schedule.")])


def _key(source: Source, changes: Mapping[str, Any]) -> str:
    try:
        return key_of(source.changed(own_changes(source, changes)).data, source.place)
    except PpsimError:  # refused before it is a config; its own text is its key
        return key_of({"base": source.data, "changes": dict(changes)}, source.place)


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


def measure_points(source: Source, points: Sequence[Mapping[str, Any]], fast: bool) -> list[Outcome]:
    """The outcome of each point; `fast` takes the compiled engine where the config leaves the engine open."""
    if fast and source.data.get("engine", "auto") == "auto" and can_compile():
        source = source.changed({"engine": "compiled"})
    schedules = _Schedules()
    return [_outcome(source, changes, schedules) for changes in points]


def _outcome(source: Source, changes: Mapping[str, Any], schedules: _Schedules) -> Outcome:
    try:
        config = source.config(own_changes(source, changes))
        run = config.simulate(schedules.of(config))
        return {"measures": {name: measure.number(run) for name, measure in MEASURED.items()}}
    except PpsimError as error:
        return {"refused": str(error).removeprefix(f"{source.place}: ")}
    except MemoryError:
        return {"refused": "not enough memory for this many actions; use fewer microbatches"}


class _Schedules:
    """Schedules that are built already, of families that do not look at costs."""

    def __init__(self):
        self._kept: dict[str, Schedule] = {}
        self._rows = 0

    def of(self, config: Config) -> Schedule:
        """The config's schedule."""
        section = config.schedule
        if "csv" in section or "costs" in find_family(section["name"]).options:
            return config.build()
        key = json.dumps(section, sort_keys=True, default=str)
        if key not in self._kept:
            made = config.build()
            self._rows += len(made)
            if self._rows > MOST_ROWS_KEPT:
                self._kept.clear()
                self._rows = len(made)
            self._kept[key] = made
        return self._kept[key]
