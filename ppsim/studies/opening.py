"""Opening a layout: every schedule and partition of it, each with the least seconds and bytes that it takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ppsim.analysis.static_bounds import ScheduleSummary, layout_bounds, memory_bound, step_bound
from ppsim.base.errors import BuildError, PpsimError
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.partition import LayoutString
from ppsim.costs.table import CostTable
from ppsim.search import find_family
from ppsim.search.memory_actions import MEMORY_ACTIONS
from ppsim.search.partitions import balanced_within, pieces_of
from ppsim.studies.kept_schedules import Kept
from ppsim.studies.space import BALANCED, DEVICES, MICROBATCHES, PARTITION, Point, Space
from ppsim.studies.store import key_of
from ppsim.studies.worker_pool import Outcome

MOST_ROWS_KEPT = 1_000_000  # of the summaries that a process keeps: about 100 MB


@dataclass(frozen=True)
class Opener:
    """Opens layouts of a space; goes to other processes whole.

    Attributes
    ----------
    space : Space
        What is open, and the values that each key may take.
    limit : bytes
        Of a device; a point that needs more, at least, is only counted.
    """

    space: Space
    limit: float

    def __call__(self, layouts: Iterable[tuple[Point, bool]]) -> list[Outcome]:
        """Of each layout, with the schedules that keep activations or those that do not: "open", a list of (seconds,
        bytes, changes), and how many points are "refused", too large for the "memory", or the "same" as one of the
        others.
        """
        return [_OpenedLayout(self.space, self.limit, *one).opened() for one in layouts]

    def key(self, one: tuple[Point, bool]) -> str:
        """Under which a store keeps what becomes of a layout."""
        given = {"open": one, "free": self.space.values, "limit": self.limit, "config": self.space.config.data}
        return key_of(given, self.space.config.path)

    def least(self, layout: Point, keeping: bool) -> tuple[float, float] | None:
        """Least seconds and bytes of all points of a layout; None where it does not fit the model."""
        costs = costs_of(self.space, layout)
        if costs is None:
            return None
        config = self.space.config
        devices, microbatches = devices_of(self.space, layout), layout[MICROBATCHES]
        step, memory = layout_bounds(costs, devices, microbatches, config.optimizer, keeping)
        return step * self.least_factor, memory

    @property
    def least_factor(self) -> float:
        """What jitter leaves of a bound on the step."""
        jitter = self.space.config.jitter
        return 1.0 if jitter is None else jitter.least_factor


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
    """One layout while it is opened: what its points share is worked out once."""

    def __init__(self, space: Space, limit: float, layout: Point, keeping: bool):
        self.space, self.limit, self.layout, self.keeping = space, limit, layout, keeping
        self.devices = devices_of(space, layout)
        opener = Opener(space, limit)
        self.least, self.least_factor = opener.least(layout, keeping) or (0.0, 0.0), opener.least_factor
        self.costs = costs_of(space, layout, None if space.partitions == [None] else "even")
        self.pieces = pieces_of(self.costs) if BALANCED in space.partitions else None
        self.whole = not isinstance(self.costs, DerivedCosts) or "microbatch_scale" in self.costs.given
        self.tables: dict[Any, CostTable] = {}
        self.even: dict[int, LayoutString | None] = {}
        self.held: tuple[ScheduleSummary | None, np.ndarray | None] = None, None

    def opened(self) -> Outcome:
        points, refused, too_large, same = [], 0, 0, 0
        for changes, summary, partition in self._points():
            try:
                if summary is None:
                    raise BuildError("the family does not allow these sizes")
                costs = self._partitioned(summary, partition)
                if costs is None:
                    same += 1
                    continue
                step, memory = self._least(costs, summary, changes["schedule.name"])
            except PpsimError:
                refused += 1
                continue
            if memory > self.limit:
                too_large += 1
            else:
                settled = {} if partition is None else {PARTITION: str(_written(costs, partition))}
                points.append((step, memory, self._plain({**changes, **settled})))
        return {"open": points, "refused": refused, "memory": too_large, "same": same}

    def _points(self) -> Iterator[tuple[Point, ScheduleSummary | None, Any]]:
        for chosen in self.space.schedules(self.devices, self.keeping):
            name, stages = chosen["schedule.name"], chosen["schedule.stages_per_device"]
            sizes = self.devices, self.layout[MICROBATCHES], stages
            summary = _summary(name, sizes, self._options(name), self.whole)
            for partition in self.space.partitions:
                yield {DEVICES: self.devices, **chosen}, summary, partition

    def _options(self, name: str) -> tuple[tuple[str, Any], ...]:
        """The config's options of its own family."""
        section = self.space.config.schedule
        return tuple(section.get("options", {}).items()) if name == section.get("name") else ()

    def _partitioned(self, summary: ScheduleSummary, partition: Any) -> Any:
        """The costs with a partition; None where the balanced one is the even one, which is a point already."""
        if partition is None or partition == "even":
            return self.costs
        if partition != BALANCED:
            return self.costs.with_partition(partition)
        schedule = summary.actions

        def table(found: LayoutString) -> CostTable:
            return self._table(self.costs.with_partition(found), summary)

        balanced = balanced_within(self.costs, summary, table, self.limit, self.pieces)
        if "even" in self.space.partitions and balanced == self._even(schedule.num_stages):
            return None
        return self.costs.with_partition(balanced)

    def _even(self, num_stages: int) -> LayoutString | None:
        """The stages of the even partition; None where there are more stages than layers."""
        if num_stages not in self.even:
            try:
                stages = self.costs.stage_layers(num_stages)
                self.even[num_stages] = LayoutString.of_stages([layer.name for layer in stage] for stage in stages)
            except PpsimError:
                self.even[num_stages] = None
        return self.even[num_stages]

    def _least(self, costs: Any, summary: ScheduleSummary, name: str) -> tuple[float, float]:
        """Least seconds and bytes of a point; those of its layout where simulation settles partition or lists."""
        settled_later = isinstance(costs, DerivedCosts) and costs.layout.partition == "optimal"
        if settled_later or "costs" in find_family(name).options:
            return self.least
        sharded = isinstance(costs, DerivedCosts) and costs.layout.sharded
        config = self.space.config
        step = step_bound(summary, self._table(costs, summary), config.optimizer, sharded) * self.least_factor
        # Lists that are priorities, or without the R and copies to come, do not say what a device holds at least.
        is_told = config.dispatch == "list" and not any(key in config.schedule for key in MEMORY_ACTIONS)
        held = self._held(summary, costs) if is_told else None
        return max(step, self.least[0]), max(0.0 if held is None else float(held.max()), self.least[1])

    def _held(self, summary: ScheduleSummary, costs: Any) -> np.ndarray | None:
        """Least bytes of each device; of even stages they are kept from one partition of a schedule to the next."""
        if costs is not self.costs:
            return memory_bound(summary, self._table(costs, summary))
        if self.held[0] is not summary:
            self.held = summary, memory_bound(summary, self._table(costs, summary))
        return self.held[1]

    def _table(self, costs: Any, summary: ScheduleSummary) -> CostTable:
        """The cost table; schedules of equal holdings share it."""
        schedule = summary.actions
        if not isinstance(costs, DerivedCosts):
            return costs.table(schedule)
        key = (costs.layout.partition, schedule.holdings.tobytes(), schedule.slices)
        if key not in self.tables:
            self.tables[key] = costs.table(schedule)
        return self.tables[key]

    def _plain(self, changes: Point) -> Point:
        """The changes that a config takes: without the partition where no model is known."""
        if isinstance(self.space.config.costs, DerivedCosts):
            return changes
        return {key: value for key, value in changes.items() if key != PARTITION}


def _written(costs: DerivedCosts, partition: Any) -> Any:
    """A partition as a config says it."""
    return costs.layout.partition if partition == BALANCED else partition


def _summary(
    name: str, sizes: tuple[int, int, int | None], options: tuple[tuple[str, Any], ...], whole: bool
) -> ScheduleSummary | None:
    """The summary of a schedule of so many devices, microbatches and stages per device; None where the family does not
    allow them.
    """

    def made() -> ScheduleSummary | None:
        try:
            return ScheduleSummary.of(find_family(name).columns(*sizes, **dict(options)), whole)
        except BuildError:
            return None

    return _KEPT.of((name, sizes, options, whole), made)


_KEPT: Kept[ScheduleSummary] = Kept(MOST_ROWS_KEPT)
