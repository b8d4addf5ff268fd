"""Opening a layout: every schedule and partition of it, each with the least seconds and bytes that it takes."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from ppsim.analysis.least import least_memory, least_step
from ppsim.analysis.least_of_layout import least_of_layout
from ppsim.base.errors import BuildError, PpsimError
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.table import CostTable
from ppsim.families.memory_actions import MEMORY_ACTIONS
from ppsim.families.registry import find_family
from ppsim.run.schedules import Schedule
from ppsim.studies.balancing import balanced_partition
from ppsim.studies.crew import Outcome
from ppsim.studies.space import BALANCED, DEVICES, MICROBATCHES, PARTITION, Point, Space
from ppsim.studies.store import key_of

MOST_SCHEDULES = 1024  # that a process keeps


@dataclass(frozen=True)
class Opener:
    """Opens layouts of a space; goes to other processes whole.

    Attributes
    ----------
    space : Space
    limit : bytes
        Of a device; a point that needs more, at least, is only counted.
    """

    space: Space
    limit: float

    def __call__(self, layouts: Iterable[Point]) -> list[Outcome]:
        """Of each layout: "open", a list of (seconds, bytes, changes), and how many points are "refused" or too large
        for the "memory".
        """
        return [_OpenedLayout(self.space, self.limit, layout).opened() for layout in layouts]

    def key(self, layout: Point) -> str:
        """Under which a store keeps what becomes of a layout."""
        given = {"open": layout, "free": self.space.values, "limit": self.limit, "config": self.space.config.data}
        return key_of(given, self.space.config.path)

    def least(self, layout: Point) -> tuple[float, float] | None:
        """Least seconds and bytes of all points of a layout; None where it does not fit the model."""
        costs = costs_of(self.space, layout)
        if costs is None:
            return None
        return least_of_layout(costs, devices_of(self.space, layout), layout[MICROBATCHES], self.space.config.optimizer)


def devices_of(space: Space, layout: Point) -> int:
    """Devices of the pipeline."""
    return layout.get(DEVICES, space.config.schedule["devices"])


def costs_of(space: Space, layout: Point, partition: Any = None) -> Any:
    """The costs in a layout; None where it does not fit the model."""
    costs = space.config.costs
    if not isinstance(costs, DerivedCosts):
        return costs
    changes = {key.removeprefix("layout."): value for key, value in layout.items() if key.startswith("layout.")}
    if partition is not None:
        changes["partition"] = partition
    try:
        return replace(costs, layout=replace(costs.layout, **changes))
    except PpsimError:
        return None


class _OpenedLayout:
    """One layout while it is opened."""

    def __init__(self, space: Space, limit: float, layout: Point):
        self.space, self.limit, self.layout = space, limit, layout
        self.devices = devices_of(space, layout)
        self.least = Opener(space, limit).least(layout) or (0.0, 0.0)
        self.tables: dict[Any, CostTable] = {}

    def opened(self) -> Outcome:
        points, refused, too_large = [], 0, 0
        for changes, schedule, partition in self._points():
            try:
                if schedule is None:
                    raise BuildError("the family does not allow these sizes")
                settled, costs = self._partitioned(schedule, partition)
                step, memory = self._least(costs, schedule)
            except PpsimError:
                refused += 1
                continue
            if memory > self.limit:
                too_large += 1
            else:
                points.append((step, memory, self._plain({**changes, **settled})))
        return {"open": points, "refused": refused, "memory": too_large}

    def _points(self) -> Iterator[tuple[Point, Schedule | None, Any]]:
        for chosen in self.space.schedules(self.devices):
            name, stages = chosen["schedule.name"], chosen["schedule.stages_per_device"]
            schedule = _schedule(name, self.devices, self.layout[MICROBATCHES], stages, self._options(name))
            for partition in self.space.partitions:
                yield {DEVICES: self.devices, **chosen}, schedule, partition

    def _options(self, name: str) -> tuple[tuple[str, Any], ...]:
        """The config's options of its own family."""
        section = self.space.config.schedule
        return tuple(section.get("options", {}).items()) if name == section.get("name") else ()

    def _partitioned(self, schedule: Schedule, partition: Any) -> tuple[Point, Any]:
        """The partition settled, as a change, and the costs with it."""
        costs = costs_of(self.space, self.layout, "even" if partition == BALANCED else partition)
        if partition is None:
            return {}, costs
        if partition == BALANCED:
            partition = balanced_partition(costs, schedule, self._table(costs, schedule), self.limit)
            costs = costs_of(self.space, self.layout, partition)
        return {PARTITION: str(partition)}, costs

    def _least(self, costs: Any, schedule: Schedule) -> tuple[float, float]:
        """Least seconds and bytes of a point; those of its layout where simulation settles the partition."""
        if isinstance(costs, DerivedCosts) and costs.layout.partition == "optimal":
            return self.least
        table = self._table(costs, schedule)
        sharded = isinstance(costs, DerivedCosts) and costs.layout.sharded
        step = least_step(schedule, table, self.space.config.optimizer, sharded)
        # Lists that are priorities, or without the R and copies to come, do not say what a device holds at least.
        config = self.space.config
        is_told = config.dispatch == "list" and not any(key in config.schedule for key in MEMORY_ACTIONS)
        held = least_memory(schedule, table) if is_told else None
        return max(step, self.least[0]), max(0.0 if held is None else float(held.max()), self.least[1])

    def _table(self, costs: Any, schedule: Schedule) -> CostTable:
        """The cost table; schedules of equal holdings share it."""
        if not isinstance(costs, DerivedCosts):
            return costs.table(schedule)
        key = (costs.layout, schedule.holdings.tobytes(), schedule.devices, schedule.slices)
        if key not in self.tables:
            self.tables[key] = costs.table(schedule)
        return self.tables[key]

    def _plain(self, changes: Point) -> Point:
        """The changes that a config takes: without the partition where no model is known."""
        if isinstance(self.space.config.costs, DerivedCosts):
            return changes
        return {key: value for key, value in changes.items() if key != PARTITION}


@functools.lru_cache(MOST_SCHEDULES)
def _schedule(
    name: str, devices: int, microbatches: int, stages_per_device: int | None, options: tuple[tuple[str, Any], ...]
) -> Schedule | None:
    """The schedule; None where the family does not allow its sizes."""
    try:
        return Schedule.of(find_family(name).columns(devices, microbatches, stages_per_device, **dict(options)))
    except BuildError:
        return None
