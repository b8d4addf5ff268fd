"""A search for so many seconds: rounds, then ever longer ones, then windows where the solver is installed."""

from __future__ import annotations

import time

from ppsim.base.errors import ConfigError
from ppsim.base.progress import Bar
from ppsim.search.round_search import HEATS, RoundSearch, usual_rounds
from ppsim.search.solver import solver_of
from ppsim.search.window_search import WindowSearch

FOR_ROUNDS = 0.75  # part of the time, where windows follow


class TimedSearch:
    """A search by rounds that goes on until a time is over or the best lists are proven shortest.

    Short rounds leave lists that single moves hardly improve any more. Longer ones, in which lists may get longer by up
    to twice a mean action at first, find better ones; so the moves of a round double once for every heat. The last part
    of the time goes to windows.
    """

    def __init__(self, search: RoundSearch, seconds: float):
        self.search, self.seconds, self.began = search, seconds, time.monotonic()
        self.windows: WindowSearch | None = None

    def run(self) -> None:
        """Go on until the time is over; the search has the best lists, also where Ctrl-C ends it."""
        with Bar("search, tenths of a second", int(10 * self.seconds)) as bar:
            self._run_rounds(self.seconds * (FOR_ROUNDS if _has_solver() else 1.0), bar)
            if self.is_open(self.seconds):
                self._run_windows(bar)

    def is_open(self, until: float) -> bool:
        """Whether there is time left, and something to find."""
        return self.passed < until and not self.search.problem.is_least(self.search.best.makespan)

    @property
    def passed(self) -> float:
        """Seconds since the search began."""
        return time.monotonic() - self.began

    def _run_rounds(self, until: float, bar: Bar) -> None:
        usual, longer = max(usual_rounds(self.search.problem), len(HEATS)), 1
        while self.is_open(until):
            begun = self.passed
            self.search.advance(longer)
            of_one = (self.passed - begun) / longer
            more = self.search.turn - usual
            if more >= 0 and more % len(HEATS) == 0:
                longer *= 2
            longer = max(min(longer, int((until - self.passed) / 2 / max(of_one, 1e-6))), 1)
            bar.update(int(10 * self.passed))

    def _run_windows(self, bar: Bar) -> None:
        self.windows = WindowSearch(self.search.best, self.search.seed)
        while self.is_open(self.seconds):
            self.windows.advance()
            self.search.best = self.windows.best
            bar.update(int(10 * self.passed))


def _has_solver() -> bool:
    try:
        solver_of("a search by windows")
    except ConfigError:
        return False
    return True
