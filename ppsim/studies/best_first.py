"""Best-first search of `choose`: it ends when no remaining point can be ranked or be on the Pareto front."""

from __future__ import annotations

import functools
import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ppsim.analysis.memory import usable_bytes
from ppsim.analysis.static_bounds import ScheduleSummary, layout_bounds, memory_bound, step_bound
from ppsim.base.errors import BuildError, PpsimError
from ppsim.base.progress import Bar
from ppsim.config import config_source
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.partition import BALANCED, LayoutString
from ppsim.costs.table import CostTable
from ppsim.search import find_family
from ppsim.search.memory_actions import MEMORY_ACTIONS
from ppsim.search.partitions import balanced_within, pieces_of
from ppsim.studies.free_keys import (
    DEVICES,
    EXCHANGE,
    GROUPED,
    MICROBATCHES,
    OVERLAP,
    OVERLAP_DATA,
    OVERLAP_TENSOR,
    PARTITION,
    RECOMPUTE_BLOCKS,
    RECOMPUTE_LEVEL,
    Changes,
)
from ppsim.studies.points import (
    SAME,
    Candidate,
    fastest_partitions,
    front_of,
    idea_of,
    rank,
    rounded,
    run_points,
    scope,
)
from ppsim.studies.space import Space
from ppsim.studies.store import Store, store_key
from ppsim.studies.worker_pool import InProcess, JobRunner, Outcome, capacity, is_left_out

MAX_ROUND = 64  # items per round: results of the first items of a longer round would exclude many others
LAYOUTS_PER_WORKER = 16  # layouts per round: nearly all are expanded in the end
# Knobs that change no size of a layout: of its memory only the activations, which are least with full recompute.
KNOBS = (RECOMPUTE_LEVEL, EXCHANGE, GROUPED, OVERLAP, OVERLAP_TENSOR, OVERLAP_DATA)
RANKED = ("iteration_time", "tokens_per_second", "mfu", "peak_memory", "bubble_fraction", "peak_activations")


@dataclass(frozen=True)
class _LayoutItem:
    """A layout to expand: its points are every schedule that keeps activations, or does not, and every partition."""

    changes: Changes
    keeping: bool
    points: int
    memory: float


@dataclass(frozen=True)
class _PointItem:
    """A point to simulate, with the lower bound on its bytes."""

    changes: Changes
    memory: float
    points: int = 1


class BestFirstSearch:
    """Best-first search: the layout or point with the lowest step-time bound is expanded or simulated next.

    A round has as many layouts or points as the executor needs. `run` fills `ranked`, `front`, `counts` and `left_out`,
    as `ppsim.studies.choose.Choice` describes them.
    """

    def __init__(
        self,
        space: Space,
        headroom: float,
        top: int,
        executor: Executor,
        store: Store | None = None,
        with_front: bool = True,
    ):
        self.space, self.top, self.executor, self.store, self.with_front = space, top, executor, store, with_front
        costs = space.config.costs
        self.limit = np.inf
        if isinstance(costs, DerivedCosts):
            self.limit = usable_bytes(costs.cluster.device.capacity, headroom)
        self.source = config_source(space.config)
        self.expansion = Expansion(space, self.limit)
        in_process = isinstance(executor, InProcess)
        self.max_points = 1 if in_process else min(MAX_ROUND, 4 * capacity(executor))
        self.max_layouts = 1 if in_process else min(MAX_ROUND, LAYOUTS_PER_WORKER * capacity(executor))
        self.counts: Counter[str] = Counter(points=0, simulated=0, memory=0, step=0, refused=0)
        self.left_out: list[Changes] = []
        self.fitting: list[Candidate] = []
        self.fastest: dict[tuple[str, ...], float] = {}  # seconds of the fastest known point of each idea
        self.replaced: list[Candidate] = []
        self.too_large: list[Candidate] = []
        self.longest = np.inf  # rounded seconds; a longer step is not ranked
        self.ranked: list[Candidate] = []
        self.front: list[Candidate] = []
        self.numbers = itertools.count()
        self.heap: list[tuple[float, int, _LayoutItem | _PointItem]] = []

    def run(self) -> None:
        """Search the whole space."""
        self._add_layouts()
        with Bar("choosing", self.counts["points"]) as bar:
            while self.heap:
                layouts, points = self._next_round()
                self._expand(layouts)
                self._simulate(points)
                bar.update(self.counts.total() - self.counts["points"])
        if self.space.searches_blocks:
            self._search_blocks()
        if self.space.searches_partitions:
            self._search_partitions()

    def _add_layouts(self) -> None:
        """Count every point, and queue the layouts except those that do not fit the model or the memory."""
        points_of: dict[Any, int] = {}
        least_of: dict[Any, tuple[float, float] | None] = {}  # bounds of all layouts of equal sizes
        for layout, keeping in itertools.product(self.space.layouts(), (True, False)):
            of = devices_of(self.space, layout), keeping, self.space.combines(layout)
            if of not in points_of:
                points_of[of] = sum(1 for _ in self.space.schedules(*of)) * len(self.space.partitions)
            points = points_of[of]
            if not points:
                continue
            self.counts["points"] += points
            sizes = tuple((key, value) for key, value in layout.items() if key not in KNOBS), keeping
            if sizes not in least_of:
                least_of[sizes] = self.expansion.bounds(_with_least_memory(layout), keeping)
            bounds = least_of[sizes]
            if bounds is not None and bounds[1] <= self.limit:
                bounds = self.expansion.bounds(layout, keeping)
            if bounds is None or bounds[1] > self.limit:
                self.counts["refused" if bounds is None else "memory"] += points
            else:
                self._push(bounds[0], _LayoutItem(layout, keeping, points, bounds[1]))

    def _push(self, step: float, item: _LayoutItem | _PointItem) -> None:
        heapq.heappush(self.heap, (step, next(self.numbers), item))

    def _next_round(self) -> tuple[list[_LayoutItem], list[_PointItem]]:
        """Return the next layouts and points that can be ranked or be on the front."""
        layouts: list[_LayoutItem] = []
        points: list[_PointItem] = []
        while self.heap and len(layouts) < self.max_layouts and len(points) < self.max_points:
            step, _, item = heapq.heappop(self.heap)
            if not self._matters(step, item):
                self.counts["step"] += item.points
            elif isinstance(item, _LayoutItem):
                layouts.append(item)
            else:
                points.append(item)
        return layouts, points

    def _matters(self, step: float, item: _LayoutItem | _PointItem) -> bool:
        """Return True if a point with at least this step and memory can be ranked or be on the front."""
        own = self.fastest.get(idea_of(item.changes), np.inf) if isinstance(item, _PointItem) else np.inf
        if rounded(step) <= min(self._last_ranked(), rounded(own * (1 + SAME))):
            return True
        return self.with_front and not any(one.step <= step and one.memory <= item.memory for one in self.front)

    def _expand(self, layouts: list[_LayoutItem]) -> None:
        """Queue the points of these layouts with their bounds."""
        items = [(one.changes, one.keeping) for one in layouts]
        outcomes = JobRunner(
            self.expansion, items, self.executor, self.store, self.expansion.key, scope(self.source), self.space.files,
            _is_expansion,
        ).in_order()  # fmt: skip
        for layout, found in zip(layouts, outcomes, strict=True):
            if "points" not in found:
                self.counts["refused"] += layout.points
                self.left_out.append({**layout.changes, **found})
                continue
            self.counts.update({name: found[name] for name in ("refused", "memory")})
            self.counts["points"] -= found["same"]
            for step, memory, changes in found["points"]:
                self._push(step, _PointItem({**layout.changes, **changes}, memory))

    def _simulate(self, points: list[_PointItem]) -> None:
        for one in self._measured([self._own_keys(point.changes) for point in points]):
            if one.measures is None:
                self.counts["refused"] += 1
                self._note_left_out(one)
                continue
            self.counts["simulated"] += 1
            memory = one.measures["peak_memory"]
            fits = memory is None or memory <= self.limit
            (self.fitting if fits else self.too_large).append(one)
            if fits:
                idea = idea_of(one.changes)
                self.fastest[idea] = min(one.step, self.fastest.get(idea, np.inf))
        self._rank()

    def _rank(self) -> None:
        near = [one for one in self.fitting if rounded(one.step) <= self.longest]
        self.ranked, self.front = rank(near, self.top), front_of([*self.fitting, *self.replaced])
        last = self._last_ranked()
        front = {id(one) for one in self.front}
        self.fitting = [one for one in self.fitting if rounded(one.step) <= last or id(one) in front]

    def _last_ranked(self) -> float:
        """Return the rounded step of the last ranked point; a longer step cannot be ranked any more."""
        if len(self.ranked) < self.top or not self.top:
            return self.longest
        return rounded(self.ranked[-1].step * (1 + SAME))

    def _measured(self, points: list[Changes]) -> Iterator[Candidate]:
        options = {"executor": self.executor, "store": self.store, "label": None, "fast": True, "measures": RANKED}
        return run_points(self.source, points, **options)

    def _search_blocks(self) -> None:
        """Try to recompute some blocks of each stage, for ranked points and for faster ones that do not fit.

        Such points are not counted: they are not among the layouts.
        """
        tried: list[Changes] = []
        for one in [*self.ranked, *self._nearly_fitting()]:
            blocks = self.space.config.model.num_layers if self.space.config.model else 0
            most = blocks // (one.changes[DEVICES] * (one.changes.get("schedule.stages_per_device") or 1))
            for count in (1, 2, 3, 4, 6, 8, 12):
                changes = {**one.changes, RECOMPUTE_LEVEL: "full", RECOMPUTE_BLOCKS: count}
                if count < most and changes not in tried:
                    tried.append(changes)
        for one in self._measured(tried):
            self._note_left_out(one)
            if one.measures is not None and one.memory <= self.limit:
                self.fitting.append(one)
        self._rank()

    def _nearly_fitting(self) -> list[Candidate]:
        """Return points as fast as ranked ones that need too much memory, the simplest first."""
        last = self._last_ranked()
        near = sorted((one for one in self.too_large if rounded(one.step) <= last), key=lambda one: one.rank)
        return near[: self.top]

    def _search_partitions(self) -> None:
        """Search the fastest stages of every ranked point, and of points that are as fast but too large.

        A point that improves is ranked again, until the stages of every ranked point have been searched. If two points
        become one, the rank gets shorter: points with steps above `longest` were dropped before.
        """
        self.longest = self._last_ranked()
        searched: list[Changes] = []
        while olds := [one for one in self._worth_searching() if one.changes not in searched]:
            before = [dict(one.changes) for one in olds]
            searched += before
            found = fastest_partitions(self.source, before, self.limit, self.executor, self.store)
            self.left_out += [{**old, **one} for old, one in zip(before, found, strict=True) if "stages" not in one]
            texts = [one.get("stages") for one in found]
            pairs = [(old, {**old.changes, PARTITION: text}) for old, text in zip(olds, texts, strict=True) if text]
            fresh: list[Changes] = []
            for _, new in pairs:
                if new not in searched and new not in fresh:
                    fresh.append(new)
            searched += fresh
            measured = [*self._measured(fresh)]
            for one in measured:
                self._note_left_out(one)
            known = [one for one in measured if one.measures is not None]
            for old, changes in pairs:
                new = next((one for one in (*known, *self.fitting) if one.changes == changes), None)
                if new is not None and new.memory <= self.limit:
                    self._replace(old, new)
            self._rank()

    def _note_left_out(self, one: Candidate) -> None:
        if is_left_out(one.refused):
            self.left_out.append({**one.changes, "refused": one.refused})

    def _worth_searching(self) -> list[Candidate]:
        return [*self.ranked, *self._nearly_fitting()]

    def _replace(self, old: Candidate, new: Candidate) -> None:
        """Rank a point with its new stages if they are better; the old point may still be on the front."""
        worse = [one for one in self.fitting if one.changes == old.changes]
        if all(new.rank < one.rank for one in worse):
            others = (one for one in self.fitting if one.changes not in (old.changes, new.changes))
            self.fitting = [*others, new]
            self.replaced += worse

    def _own_keys(self, changes: Changes) -> Changes:
        """Return the changes that the config allows: without a model, those of the schedule only."""
        if isinstance(self.space.config.costs, DerivedCosts):
            return changes
        return {key: value for key, value in changes.items() if key.startswith("schedule.")}


def _with_least_memory(layout: Changes) -> Changes:
    """Return the layout of equal sizes that holds least: full recompute frees everything but the inputs of blocks."""
    return {**layout, RECOMPUTE_LEVEL: "full"} if RECOMPUTE_LEVEL in layout else layout


def devices_of(space: Space, layout: Changes) -> int:
    """Return the devices of the pipeline."""
    return layout.get(DEVICES, space.config.schedule["devices"])


def costs_of(space: Space, layout: Changes, partition: Any = None) -> Any:
    """Return the costs in a layout; None if it does not fit the model."""
    costs = space.config.costs
    if not isinstance(costs, DerivedCosts):
        return costs
    changes = {key.removeprefix("layout."): value for key, value in layout.items() if key.startswith("layout.")}
    if partition is not None:
        changes["partition"] = partition
    try:
        return costs.with_layout(replace(costs.layout, **changes))
    except PpsimError:
        return None


@dataclass(frozen=True)
class Expansion:
    """Expansion of layouts: every schedule and partition of each, with lower bounds on seconds and bytes. Picklable.

    Attributes
    ----------
    space : Space
        The free keys and their values.
    limit : bytes
        Memory of a device; points with a higher lower bound are only counted.
    """

    space: Space
    limit: float

    def __call__(self, layouts: Iterable[tuple[Changes, bool]]) -> list[Outcome]:
        """Expand each layout, with the schedules that keep activations or with the others.

        Each outcome has "points", a list of (seconds, bytes, changes), and counts of other points: "refused", too large
        for the "memory", or the "same" as another point.
        """
        return [_ExpandedLayout(self, *one).expanded() for one in layouts]

    def key(self, one: tuple[Changes, bool]) -> str:
        """Return the store key of an expanded layout."""
        given = {"layout": one, "free": self.space.values, "limit": self.limit, "config": self.space.config.data}
        return store_key(given)

    def bounds(self, layout: Changes, keeping: bool) -> tuple[float, float] | None:
        """Return lower bounds on seconds and bytes of all points of a layout; None if it does not fit the model."""
        costs = costs_of(self.space, layout)
        if costs is None:
            return None
        config = self.space.config
        devices, microbatches = devices_of(self.space, layout), layout[MICROBATCHES]
        step, memory = layout_bounds(costs, devices, microbatches, config.optimizer, keeping)
        return step * self.jitter_factor, memory

    @property
    def jitter_factor(self) -> float:
        """Factor by which jitter scales a lower bound on the step time."""
        jitter = self.space.config.jitter
        return 1.0 if jitter is None else jitter.least_factor


def _is_expansion(found: Any) -> bool:
    """Return whether a stored value is an outcome of `Expansion`."""
    return isinstance(found, dict) and found.keys() == {"points", "refused", "memory", "same"}


class _ExpandedLayout:
    """Expansion of one layout; the values that its points share are computed once."""

    def __init__(self, expansion: Expansion, layout: Changes, keeping: bool):
        self.space, self.limit, self.layout, self.keeping = expansion.space, expansion.limit, layout, keeping
        self.devices = devices_of(self.space, layout)
        self.bounds, self.jitter_factor = expansion.bounds(layout, keeping) or (0.0, 0.0), expansion.jitter_factor
        self.costs = costs_of(self.space, layout, None if self.space.partitions == [None] else "even")
        self.pieces = pieces_of(self.costs) if BALANCED in self.space.partitions else None
        self.whole = not isinstance(self.costs, DerivedCosts) or "microbatch_scale" in self.costs.given
        self.tables: dict[Any, CostTable] = {}
        self.even: dict[int, LayoutString | None] = {}

    def expanded(self) -> Outcome:
        points, refused, too_large, same = [], 0, 0, 0
        for changes, summary, partition in self._points():
            try:
                if summary is None:
                    raise BuildError("the family does not allow these sizes")
                costs = self._partitioned(summary, partition)
                if costs is None:
                    same += 1
                    continue
                step, memory = self._bounds_of(costs, summary, changes)
            except PpsimError:
                refused += 1
                continue
            if memory > self.limit:
                too_large += 1
                continue
            if partition is not None and isinstance(costs, DerivedCosts):
                changes = {**changes, PARTITION: str(costs.layout.partition if partition == BALANCED else partition)}
            points.append((step, memory, changes))
        return {"points": points, "refused": refused, "memory": too_large, "same": same}

    def _points(self) -> Iterator[tuple[Changes, ScheduleSummary | None, Any]]:
        for chosen in self.space.schedules(self.devices, self.keeping, self.space.combines(self.layout)):
            summary = self._summary(chosen["schedule.name"], chosen["schedule.stages_per_device"])
            for partition in self.space.partitions:
                yield {DEVICES: self.devices, **chosen}, summary, partition

    def _summary(self, name: str, stages: int | None) -> ScheduleSummary | None:
        """Return the summary of a schedule, with the config's options if it is the config's family.

        None if the family does not allow the sizes.
        """
        section, sizes = self.space.config.schedule, (self.devices, self.layout[MICROBATCHES], stages)
        options = section.get("options") if name == section.get("name") else None
        try:
            if options or self.whole:
                return _summarise(name, *sizes, self.whole, **(options or {}))
            return _known_summary(name, *sizes)
        except BuildError:
            return None

    def _partitioned(self, summary: ScheduleSummary, partition: Any) -> Any:
        """Return the costs with a partition; None if the balanced partition equals the even one, a point already."""
        if partition is None or partition == "even":
            return self.costs
        if partition != BALANCED:
            return self.costs.with_partition(partition)

        def table(found: LayoutString) -> CostTable:
            return self._table(self.costs.with_partition(found), summary)

        balanced = balanced_within(self.costs, summary, table, self.limit, self.pieces)
        if "even" in self.space.partitions and balanced == self._even(summary.actions.num_stages):
            return None
        return self.costs.with_partition(balanced)

    def _even(self, num_stages: int) -> LayoutString | None:
        """Return the stages of the even partition; None if there are more stages than layers."""
        if num_stages not in self.even:
            try:
                self.even[num_stages] = LayoutString.parse(self.costs.megatron_layout(num_stages))
            except PpsimError:
                self.even[num_stages] = None
        return self.even[num_stages]

    def _bounds_of(self, costs: Any, summary: ScheduleSummary, changes: Changes) -> tuple[float, float]:
        """Return lower bounds on seconds and bytes of a point.

        If the simulation decides on the partition or the lists, they are the bounds of the layout.
        """
        decided_later = isinstance(costs, DerivedCosts) and costs.layout.partition == "optimal"
        if decided_later or "costs" in find_family(changes["schedule.name"]).options:
            return self.bounds
        sharded = isinstance(costs, DerivedCosts) and costs.layout.sharded
        config, table = self.space.config, self._table(costs, summary)
        step = step_bound(summary, table, config.optimizer, sharded) * self.jitter_factor
        # Priority lists, and lists to which R or copies are added later, give no lower bound on memory.
        added = any(key in config.schedule or f"schedule.{key}" in changes for key in MEMORY_ACTIONS)
        is_final = config.dispatch == "list" and not added
        held = memory_bound(summary, table) if is_final else None
        return max(step, self.bounds[0]), max(0.0 if held is None else float(held.max()), self.bounds[1])

    def _table(self, costs: Any, summary: ScheduleSummary) -> CostTable:
        """Return the cost table of a schedule; schedules with equal holdings share one."""
        schedule = summary.actions
        if not isinstance(costs, DerivedCosts):
            return costs.table(schedule)
        key = (costs.layout.partition, schedule.holdings.tobytes(), schedule.slices)
        if key not in self.tables:
            self.tables[key] = costs.table(schedule)
        return self.tables[key]


def _summarise(
    name: str, devices: int, microbatches: int, stages: int | None, whole: bool = False, **options: Any
) -> ScheduleSummary:
    """Return the summary of a family's schedule; BuildError if the family does not allow the sizes."""
    return ScheduleSummary.of(find_family(name).columns(devices, microbatches, stages, **options), whole)


_known_summary = functools.lru_cache(1024)(_summarise)  # layouts of equal sizes share their schedules
