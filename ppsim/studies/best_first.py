"""The search behind choose: best first, until no point that is left can be ranked or stand on the front."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from ppsim.base.progress import Bar
from ppsim.config import Source
from ppsim.costs.derive import DerivedCosts
from ppsim.studies.opening import Opener, devices_of
from ppsim.studies.points import Point as Measured
from ppsim.studies.points import fastest_partitions, run_points
from ppsim.studies.ranking import Candidate, front_of, rank, rounded
from ppsim.studies.space import MICROBATCHES, PARTITION, Point, Space
from ppsim.studies.store import Store
from ppsim.studies.worker_pool import LEFT_OUT, Crew, Here, places

MOST_AT_ONCE = 64  # items of a round; of more, many would be done that the first of them make needless
# Layouts opened for each place in a round: nearly all are opened in the end, and those of equal sizes share schedules.
LAYOUTS_AT_ONCE = 16
SHOWN = ("iteration_time", "tokens_per_second", "mfu", "peak_memory", "bubble_fraction", "peak_activations")


@dataclass(frozen=True)
class _Group:
    """The points of one layout: every schedule that keeps activations, or does not, and partition of it."""

    layout: Point
    keeping: bool
    points: int
    memory: float


@dataclass(frozen=True)
class _Open:
    """A point that may matter, with its least bytes."""

    changes: Point
    memory: float
    points: int = 1


class Search:
    """What has the lowest bound on its step is opened or simulated next, a round of the executor's size at a time."""

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
        self.limit = costs.cluster.device.memory * (1 - headroom) if isinstance(costs, DerivedCosts) else np.inf
        self.source = Source(space.config.data, space.config.path)
        self.opener = Opener(space, self.limit)
        alone = isinstance(executor, Here)
        self.at_once = 1 if alone else min(MOST_AT_ONCE, 4 * places(executor))
        self.layouts_at_once = 1 if alone else min(MOST_AT_ONCE, LAYOUTS_AT_ONCE * places(executor))
        self.counts: Counter[str] = Counter(points=0, simulated=0, memory=0, step=0, refused=0)
        self.left_out: list[Point] = []
        self.fitting: list[Candidate] = []
        self.replaced: list[Candidate] = []
        self.too_large: list[Candidate] = []
        self.reach = np.inf
        self.ranked: list[Candidate] = []
        self.front: list[Candidate] = []
        self.numbers = itertools.count()
        self.heap: list[tuple[float, int, _Group | _Open]] = []

    def run(self) -> None:
        """Look through the whole space."""
        self._add_layouts()
        with Bar("choosing", self.counts["points"]) as bar:
            while self.heap:
                groups, points = self._round()
                self._open(groups)
                self._simulate(points)
                bar.update(self.counts.total() - self.counts["points"])
        if self.space.is_cut_anew:
            self._cut_anew()

    def _add_layouts(self) -> None:
        """Count every point; those of a layout whose weights alone are too large, or whose sizes do not fit, out."""
        number: dict[tuple[int, bool], int] = {}
        for layout, keeping in itertools.product(self.space.layouts(), (True, False)):
            devices = devices_of(self.space, layout)
            if (devices, keeping) not in number:
                schedules = sum(1 for _ in self.space.schedules(devices, keeping))
                number[devices, keeping] = schedules * len(self.space.partitions)
            points = number[devices, keeping]
            self.counts["points"] += points
            least = self.opener.least(layout, keeping)
            if least is None or least[1] > self.limit:
                self.counts["refused" if least is None else "memory"] += points
            elif points:
                self._push(least[0], _Group(layout, keeping, points, least[1]))

    def _push(self, step: float, item: _Group | _Open) -> None:
        heapq.heappush(self.heap, (step, next(self.numbers), item))

    def _round(self) -> tuple[list[_Group], list[_Open]]:
        """The next layouts and points that may matter."""
        groups: list[_Group] = []
        points: list[_Open] = []
        while self.heap and len(groups) < self.layouts_at_once and len(points) < self.at_once:
            step, _, item = heapq.heappop(self.heap)
            if not self._matters(step, item.memory):
                self.counts["step"] += item.points
            elif isinstance(item, _Group):
                groups.append(item)
            else:
                points.append(item)
        return groups, points

    def _matters(self, step: float, memory: float) -> bool:
        """Whether a point with at least this step and memory can be ranked or stand on the front."""
        if rounded(step) <= self._last_ranked():
            return True
        return self.with_front and not any(one.step <= step and one.memory <= memory for one in self.front)

    def _open(self, groups: list[_Group]) -> None:
        """Bounds of every point of these layouts."""
        items = [(one.layout, one.keeping) for one in groups]
        crew = Crew(self.opener, items, self.executor, self.store, self.opener.key, beside=self._sizes)
        for group, found in zip(groups, crew.in_order(), strict=True):
            if "open" not in found:
                self.counts["refused"] += group.points
                self.left_out.append(group.layout)
                continue
            self.counts.update({name: found[name] for name in ("refused", "memory")})
            self.counts["points"] -= found["same"]
            for step, memory, changes in found["open"]:
                self._push(step, _Open({**group.layout, **changes}, memory))

    def _sizes(self, item: tuple[Point, bool]) -> str:
        """What layouts whose schedules are the same have in common."""
        layout, keeping = item
        return f"{devices_of(self.space, layout)} {layout[MICROBATCHES]} {keeping}"

    def _simulate(self, points: list[_Open]) -> None:
        for point in self._measured([self._plain(one.changes) for one in points]):
            if point.measures is None:
                self.counts["refused"] += 1
                if point.refused == LEFT_OUT:
                    self.left_out.append(dict(point.changes))
                continue
            self.counts["simulated"] += 1
            memory = point.measures["peak_memory"]
            fits = memory is None or memory <= self.limit
            (self.fitting if fits else self.too_large).append(Candidate(point.changes, point.measures))
        self._rank()

    def _rank(self) -> None:
        near = [one for one in self.fitting if rounded(one.step) <= self.reach]
        self.ranked, self.front = rank(near, self.top), front_of([*self.fitting, *self.replaced])
        last = self._last_ranked()
        front = {id(one) for one in self.front}
        self.fitting = [one for one in self.fitting if rounded(one.step) <= last or id(one) in front]

    def _last_ranked(self) -> float:
        """The step, `rounded`, above which nothing can be ranked any more."""
        return rounded(self.ranked[-1].step) if len(self.ranked) == self.top else self.reach

    def _measured(self, points: list[Point]) -> Iterator[Measured]:
        means = {"executor": self.executor, "store": self.store, "label": None, "fast": True, "measures": SHOWN}
        return run_points(self.source, points, **means)

    def _cut_anew(self) -> None:
        """Seek the fastest stages of all that is ranked, until all has them, and of what is as fast but too large.

        Where two of them become one, the rank ends before the first step that was left aside as too long.
        """
        self.reach = self._last_ranked()
        cut: list[Point] = []
        while olds := [one for one in self._worth_cutting() if one.changes not in cut]:
            cut += [dict(one.changes) for one in olds]
            found = fastest_partitions(
                self.source, [one.changes for one in olds], self.limit, self.executor, self.store
            )
            pairs = [(old, {**old.changes, PARTITION: text}) for old, text in zip(olds, found, strict=True) if text]
            fresh: list[Point] = []
            for _, new in pairs:
                if new not in cut and new not in fresh:
                    fresh.append(new)
            cut += fresh
            known = [Candidate(one.changes, one.measures) for one in self._measured(fresh) if one.measures is not None]
            for old, changes in pairs:
                new = next((one for one in (*known, *self.fitting) if one.changes == changes), None)
                if new is not None and new.memory <= self.limit:
                    self._replace(old, new)
            self._rank()

    def _worth_cutting(self) -> list[Candidate]:
        last = self._last_ranked()
        near = sorted((one for one in self.too_large if rounded(one.step) <= last), key=lambda one: one.rank)
        return [*self.ranked, *near[: self.top]]

    def _replace(self, old: Candidate, new: Candidate) -> None:
        """Rank a point with its new stages where these are better; its old ones stand on the front as before."""
        worse = [one for one in self.fitting if one.changes == old.changes]
        if all(new.rank < one.rank for one in worse):
            others = (one for one in self.fitting if one.changes not in (old.changes, new.changes))
            self.fitting = [*others, new]
            self.replaced += worse

    def _plain(self, changes: Point) -> Point:
        """The changes that a config takes: without keys of the layout where no model is known."""
        if isinstance(self.space.config.costs, DerivedCosts):
            return changes
        return {key: value for key, value in changes.items() if key.startswith("schedule.")}
