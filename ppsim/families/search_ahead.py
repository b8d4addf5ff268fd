"""Search over settings of list scheduling: how far each stage may run ahead, what goes first, when a device waits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ppsim.families.list_scheduling import ALWAYS, DUE, NEVER, OTHER
from ppsim.families.synthesis_problem import Problem

PACES = (0.0, 0.5, 1.0, 2.0)  # periods by which a microbatch's actions are due after those of the one before
SCALES = (1.0, 1.15, 1.3, 1.5, 1.75, 2.0, 3.0, 100.0)  # times the least that each stage must run ahead
POOL = 8  # settings that a search goes on with


@dataclass(frozen=True, eq=False)
class Setting:
    """One way to schedule greedily.

    Attributes
    ----------
    most_ahead : int64 (stages,)
        F that a stage may run ahead of its backwards.
    switches : tuple of four ints
        As `schedule_greedily` takes them.
    pace : int
        Number of the entry of `PACES`.
    patience : float
    """

    most_ahead: np.ndarray
    switches: tuple[int, int, int, int]
    pace: int
    patience: float


class SettingSearch:
    """A pool of settings, the best first drawn, then each changed a little and kept where it is not longer.

    Limits on how far each stage runs ahead decide what the memory of a device is spent on, which is what makes a
    schedule on several stages a device good: the deeper a stage, the fewer microbatches it needs in flight.
    """

    def __init__(self, problem: Problem, seed: int):
        self.problem = problem
        self.random = np.random.default_rng(seed)
        self.pool: list[tuple[float, Setting]] = []
        self.best = problem.greedy((OTHER, NEVER, 1, 1))  # held back by the memory alone

    def start(self, count: int) -> None:
        """Draw `count` settings, by turns from little to much that runs ahead."""
        for number in range(count):
            scale = SCALES[number % len(SCALES)]
            most_ahead = np.maximum(1, np.ceil(scale * self._least_ahead - 1e-9)).astype(np.int64)
            first = number < len(SCALES)
            switches = (OTHER, NEVER, 1, 1) if first else self._some_switches()
            self.pool.append(
                self._tried(
                    Setting(most_ahead, switches, 2, 0.0)
                    if first
                    else Setting(most_ahead, switches, self._below(len(PACES)), float(self._below(2)))
                )
            )
        self.pool.sort(key=lambda pair: pair[0])
        del self.pool[POOL:]

    def advance(self, count: int) -> None:
        """Change settings of the pool `count` times."""
        for _ in range(count):
            place = self._below(len(self.pool))
            tried = self._tried(self._changed(self.pool[place][1]))
            if tried[0] <= self.pool[place][0]:
                self.pool[place] = tried

    @property
    def least_makespan(self) -> float:
        """Seconds that no order beats: a device's work after its least fill and before its least drain."""
        problem, stages, way = self.problem, self.problem.stages, self._ways
        end = way[stages:] + problem.lengths[stages : 2 * stages]
        drain = np.zeros(stages) if problem.split else end[0] - end  # a W may come last, and nothing waits for it
        before, after = np.full(problem.devices, np.inf), np.full(problem.devices, np.inf)
        np.minimum.at(before, problem.device_of, way[:stages])
        np.minimum.at(after, problem.device_of, drain)
        work = np.bincount(problem.device_of, problem.lengths.reshape(3, stages).sum(axis=0)) * problem.m
        return float((before + work + after).max())

    @cached_property
    def _least_ahead(self) -> np.ndarray:
        """Microbatches in flight at each stage where every microbatch takes its shortest way, float64 (stages,)."""
        lengths, stages = self.problem.lengths, self.problem.stages
        way = self._ways
        per_device = np.bincount(self.problem.device_of, lengths.reshape(3, stages).sum(axis=0))
        return (way[stages:] + lengths[stages : 2 * stages] - way[:stages]) / max(per_device.max(), 1e-300)

    @cached_property
    def _ways(self) -> np.ndarray:
        """Least seconds before each F and each I or B of a microbatch, float64 (2 x stages,)."""
        lengths, waits, stages = self.problem.lengths, self.problem.waits, self.problem.stages
        steps = lengths[: stages - 1] + waits[: stages - 1]
        forward = np.append(0.0, np.cumsum(steps))
        back = (lengths[stages : 2 * stages] + waits[stages:])[:0:-1]
        backward = forward[-1] + lengths[stages - 1] + np.append(0.0, np.cumsum(back))
        return np.append(forward, backward[::-1])

    @cached_property
    def _dues(self) -> list[np.ndarray]:
        m, stages, way = self.problem.m, self.problem.stages, self._ways
        period = np.bincount(self.problem.device_of, self.problem.lengths.reshape(3, stages).sum(axis=0)).max()
        of_action = np.append(way, way[stages:])[:, None]
        return [(of_action + pace * period * np.arange(m)).ravel() for pace in PACES]

    def _tried(self, setting: Setting) -> tuple[float, Setting]:
        due = self._dues[setting.pace]
        lists = self.problem.greedy(setting.switches, due, setting.most_ahead, setting.patience)
        if lists.makespan < self.best.makespan:
            self.best = lists
        return lists.makespan, setting

    def _changed(self, setting: Setting) -> Setting:
        """The setting with one of its parts changed, most often how far stages run ahead."""
        part = self.random.random()
        if part < 0.7:
            return replace(setting, most_ahead=self._shifted(setting.most_ahead))
        if part < 0.85:
            return replace(setting, switches=self._some_switches())
        if part < 0.95:
            return replace(setting, pace=self._below(len(PACES)))
        return replace(setting, patience=float(self._below(2)))

    def _shifted(self, most_ahead: np.ndarray) -> np.ndarray:
        """One more or one fewer ahead, on one stage or on a run of them."""
        first = self._below(len(most_ahead))
        last = first + 1 if self.random.random() < 0.5 else first + 1 + self._below(len(most_ahead) - first)
        shifted = most_ahead.copy()
        shifted[first:last] += 1 if self.random.random() < 0.5 else -1
        return np.clip(shifted, 1, self.problem.m + 1)

    def _some_switches(self) -> tuple[int, int, int, int]:
        return self._below(DUE + 1), self._below(ALWAYS + 1), self._below(2), self._below(2)

    def _below(self, end: int) -> int:
        return int(self.random.integers(end))
