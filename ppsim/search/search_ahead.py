"""Search over settings of list scheduling: how far each stage may run ahead, what goes first, when a device waits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ppsim.search.list_scheduling import ALWAYS, DUE, FIRST, FORWARD, NEVER, OTHER, Rules
from ppsim.search.problem import Lists, Problem

PACES = (0.0, 0.5, 1.0, 2.0)  # periods by which a microbatch's actions are due after those of the one before
SCALES = (1.0, 1.15, 1.3, 1.5, 1.75, 2.0, 3.0, 100.0)  # times the least that each stage must run ahead
POOL = 8  # settings that a search goes on with
FULL = 3  # of them that are run on all microbatches
TRIAL = 2  # microbatches a device on which settings are compared: filling and draining decide
MOST_AHEAD = 3.0  # times what a stage needs that a setting lets it run ahead
FILLED = (0.75, 0.5, 1.0, 0.25, 0.875, 0.625, 0.0)  # parts of the room above what stage 0 needs that it may fill
FIRST_RULES = (
    Rules(OTHER, NEVER, 1, 1),
    Rules(FORWARD, NEVER, 1, 0),
    Rules(FORWARD, NEVER, 0, 0),
    Rules(OTHER, FIRST, 0, 1),
)


@dataclass(frozen=True, eq=False)
class Setting:
    """One way to schedule greedily.

    Attributes
    ----------
    most_ahead : int64 (stages,)
        F that a stage may run ahead of its backwards.
    rules : Rules
    pace : int
        Number of the entry of `PACES`.
    """

    most_ahead: np.ndarray
    rules: Rules
    pace: int = 2


class SettingSearch:
    """A pool of settings, the best first drawn, then each changed a little and kept where it is not longer.

    Limits on how far each stage runs ahead decide what the memory of a device is spent on, which is what makes a
    schedule on several stages a device good: the deeper a stage, the fewer microbatches it needs in flight. Settings
    are compared on a few microbatches, and the best of them run on all.
    """

    def __init__(self, problem: Problem, seed: int):
        self.problem = problem
        self.trial = replace(problem, m=min(problem.m, TRIAL * problem.devices))
        self.random = np.random.default_rng(seed)
        self.pool: list[tuple[float, Setting]] = []
        self.found: list[Lists] = []  # the best so far, once something has run on all microbatches

    def start(self, count: int) -> None:
        """Draw `count` settings and run the best of them; the first alone where it is proven shortest."""
        first = self._tried(self._drawn(0))
        self.pool = [first]
        self._run(first[1])
        if self.problem.is_least(self.best.makespan):
            return
        tried = [first, *(self._tried(self._drawn(number)) for number in range(1, count))]
        self.pool = sorted(tried, key=lambda pair: pair[0])[:POOL]
        for _, setting in self.pool[:FULL]:
            self._run(setting)

    @property
    def best(self) -> Lists:
        """The shortest lists of all microbatches; after `start`."""
        return self.found[0]

    def advance(self, count: int) -> None:
        """Change settings of the pool `count` times; those that are shorter run on all microbatches."""
        for _ in range(count):
            place = self._below(len(self.pool))
            tried = self._tried(self._changed(self.pool[place][1]))
            if tried[0] < self.pool[place][0]:
                self._run(tried[1])
            if tried[0] <= self.pool[place][0]:
                self.pool[place] = tried

    @cached_property
    def _least_ahead(self) -> np.ndarray:
        """Microbatches in flight at each stage where every microbatch takes its shortest way, float64 (stages,)."""
        lengths, stages = self.problem.lengths, self.problem.stages
        way = self.problem.ways
        return (way[stages:] + lengths[stages : 2 * stages] - way[:stages]) / max(self.problem.period, 1e-300)

    @cached_property
    def _dues(self) -> dict[int, np.ndarray]:
        """By pace and microbatches: when each action is due, as `schedule_greedily` reads it."""
        return {}

    def _due(self, problem: Problem, pace: int) -> np.ndarray:
        key = pace + len(PACES) * problem.m
        if key not in self._dues:
            of_action = np.append(problem.ways, problem.ways[problem.stages :])[:, None]
            self._dues[key] = (of_action + PACES[pace] * problem.period * np.arange(problem.m)).ravel()
        return self._dues[key]

    def _greedy(self, problem: Problem, setting: Setting) -> Lists:
        return problem.greedy(setting.rules, self._due(problem, setting.pace), setting.most_ahead)

    def _tried(self, setting: Setting) -> tuple[float, Setting]:
        """The setting after its makespan on a few microbatches."""
        lists = self._greedy(self.trial, setting)
        if self.trial.m == self.problem.m:
            self._note(replace(lists, problem=self.problem))
        return lists.makespan, setting

    def _run(self, setting: Setting) -> None:
        if self.trial.m < self.problem.m:
            self._note(self._greedy(self.problem, setting))

    def _note(self, lists: Lists) -> None:
        if not self.found or lists.makespan < self.best.makespan:
            self.found = [lists]

    def _drawn(self, number: int) -> Setting:
        """One of the first settings: limits on how far stages run ahead, by turns little and much.

        The first two are held back by the memory alone. Half of the others fall evenly from stage 0 to the last, half
        are a multiple of what each stage needs.
        """
        need, half = self._least_ahead, number // 2
        if number < 2:
            return Setting(self._limits(np.full(len(need), np.inf)), FIRST_RULES[number])
        if number % 2:
            rules = FIRST_RULES[0] if half < len(SCALES) else self._some_rules()
            pace = 2 if half < len(SCALES) else self._below(len(PACES))
            return Setting(self._limits(SCALES[half % len(SCALES)] * need), rules, pace)
        depth = (need - need[-1]) / max(need[0] - need[-1], 1e-300)
        most = min(self.problem.m, self.problem.limits[self.problem.device_of[0]] / max(self.problem.share[0], 1e-300))
        room = min(most, MOST_AHEAD * need[0] + 1) - need[0]
        last, first = 1 + half % 2, need[0] + FILLED[half // 2 % len(FILLED)] * room
        rules = FIRST_RULES[half // 2 // len(FILLED) % len(FIRST_RULES)]
        return Setting(self._limits(np.rint(last + (first - last) * depth)), rules)

    def _limits(self, ahead: np.ndarray) -> np.ndarray:
        return np.clip(np.ceil(ahead - 1e-9), 1, self.problem.m + 1).astype(np.int64)

    def _changed(self, setting: Setting) -> Setting:
        """The setting with one of its parts changed, most often how far stages run ahead."""
        part = self.random.random()
        if part < 0.7:
            return replace(setting, most_ahead=self._shifted(setting.most_ahead))
        if part < 0.95:
            return replace(setting, rules=self._some_rules())
        return replace(setting, pace=self._below(len(PACES)))

    def _shifted(self, most_ahead: np.ndarray) -> np.ndarray:
        """One more or one fewer ahead, on one stage or on a run of them."""
        first = self._below(len(most_ahead))
        last = first + 1 if self.random.random() < 0.5 else first + 1 + self._below(len(most_ahead) - first)
        shifted = most_ahead.copy()
        shifted[first:last] += 1 if self.random.random() < 0.5 else -1
        return self._limits(shifted)

    def _some_rules(self) -> Rules:
        return Rules(
            self._below(DUE + 1), self._below(ALWAYS + 1), self._below(2), self._below(2), float(self._below(2))
        )

    def _below(self, end: int) -> int:
        return int(self.random.integers(end))
