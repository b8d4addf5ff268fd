"""Search by windows: some rows of good lists at a time are put in their best order by the solver."""

from __future__ import annotations

import numpy as np

from ppsim.search.problem import Lists
from ppsim.search.solver import WindowModel

WINDOW = 120  # rows that are free at a time
WORK = 0.2  # of the solver on a window, in its own count of work, which is about seconds


class WindowSearch:
    """Lists of which a window at a time gets its best order; what is not longer stays.

    A window is a stretch of time on all devices. The solver's work is counted, not timed, and done by one thread: the
    same seed gives the same lists.
    """

    def __init__(self, lists: Lists, seed: int):
        self.best, self.seed, self.turn = lists, seed, 0
        self.random = np.random.default_rng(seed)

    def advance(self) -> None:
        """One window."""
        self.turn += 1
        model = WindowModel(self.best, self._window())
        solved = model.solve(max_deterministic_time=WORK, num_workers=1, random_seed=(self.seed + self.turn) % 2**31)
        found = None if solved.codes is None else self.best.problem.timed(solved.codes)
        if found is not None and found.makespan <= self.best.makespan:
            self.best = found

    def _window(self) -> np.ndarray:
        """Which rows are free: those that start next, from a time drawn on; bool."""
        starts, free = self.best.starts, np.zeros(len(self.best.starts), bool)
        order = np.argsort(starts, kind="stable")
        first = int(self.random.integers(max(len(order) - WINDOW // 2, 1)))
        free[order[first : first + WINDOW]] = True
        return free
