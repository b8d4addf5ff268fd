"""The constraint solver, OR-Tools' CP-SAT: the best order of some rows, searches for a time, and the exact optimum."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np

from ppsim.base.errors import ConfigError
from ppsim.base.host import need
from ppsim.base.progress import Bar
from ppsim.schedule.blocks import occurrence
from ppsim.search.local_search import THRESHOLDS, LocalSearch, search_briefly, usual_rounds
from ppsim.search.problem import Problem, TimedLists

TICKS = 100_000  # maximum number of ticks in the longest action
GRAINS = 1_000_000  # grains of the largest activation; amounts are rounded down to grains
WINDOW = 120  # rows of a window
WINDOW_WORK = 0.2  # the solver's deterministic time on a window; a unit is about a second
EXACT_THREADS = 2  # threads of the solver that looks for the exact optimum
FOR_ROUNDS = 0.75  # fraction of the time for rounds, if windows follow


def require_solver(purpose: str) -> Any:
    """Return the module of CP-SAT; ConfigError if OR-Tools is not installed."""
    return need("ortools.sat.python.cp_model", purpose)


class WindowModel:
    """The free rows as intervals in integer ticks: one after the other on a device, within its limit.

    Rows before them keep their times. Rows after them keep their order; they are the tails of the free rows.
    """

    def __init__(self, lists: TimedLists, free: np.ndarray):
        self.cp_model = require_solver("a search for the best order")
        self.lists, self.problem, self.free = lists, lists.problem, free
        problem, codes = self.problem, lists.codes
        self.tick, self.exact = tick_of([*problem.seconds.tolist(), *problem.wait.tolist()])
        self.seconds, self.wait = (self._ticks(by_code)[codes] for by_code in (problem.seconds, problem.wait))
        self.row_of = np.empty((3 * problem.stages, problem.m), np.int64)
        number = occurrence(codes)
        self.row_of[codes, number] = np.arange(problem.rows)
        source = problem.source[codes]
        self.source = np.where(source >= 0, self.row_of[source, number], -1)
        self.device = problem.device_of[codes % problem.stages]
        self.ends = self._ticks(lists.ends)
        self.free_rows = [
            (np.flatnonzero(free[first:last]) + first).tolist()
            for first, last in pairwise(problem.list_offsets.tolist())
        ]
        self.model = self.cp_model.CpModel()
        # Ticks in which everything can run one after the other.
        self.horizon = int(self._ticks(problem.seconds).sum() + self._ticks(problem.wait).sum()) * problem.m + 1
        rows = np.flatnonzero(free).tolist()
        self.begin = {row: self.model.new_int_var(self._earliest(row), self.horizon, "") for row in rows}
        self.end = {row: self.begin[row] + int(self.seconds[row]) for row in rows}
        self._add_dependencies()
        for rows in self.free_rows:  # each device runs one row at a time
            slots = ((self.begin[row], int(self.seconds[row])) for row in rows)
            self.model.add_no_overlap([self.model.new_fixed_size_interval_var(*slot, "") for slot in slots])
        for device in np.flatnonzero(problem.limits < math.inf).tolist():
            self._add_limit(device)
        self._add_makespan()

    def _ticks(self, seconds: np.ndarray) -> np.ndarray:
        """Return integer ticks; rounded down if times are no multiples of the tick, so that the bound remains valid."""
        ticks = seconds / self.tick
        return (np.rint(ticks) if self.exact else np.floor(ticks * (1 + 1e-12))).astype(np.int64)

    def _earliest(self, row: int) -> int:
        """Return the first tick at which the rows that are not free let a row start."""
        before = self.free_rows[self.device[row]][0] - 1
        on_device = int(self.ends[before]) if before >= self.problem.list_offsets[self.device[row]] else 0
        source = int(self.source[row])
        if source < 0 or self.free[source]:
            return on_device
        return max(on_device, int(self.ends[source] + self.wait[row]))

    def _add_dependencies(self) -> None:
        """Let a row start after the previous row of its code, and after its input."""
        number = occurrence(self.lists.codes)
        for row, begin in self.begin.items():
            before = int(self.row_of[self.lists.codes[row], number[row] - 1]) if number[row] else -1
            if before in self.end:
                self.model.add(begin >= self.end[before])
            source = int(self.source[row])
            if source in self.end:
                self.model.add(begin >= self.end[source] + int(self.wait[row]))

    def _add_limit(self, device: int) -> None:
        """Let a device hold at most its limit: an activation from F to the backward, and the part that W needs to W."""
        problem, stages, rows = self.problem, self.problem.stages, self.free_rows[device]
        own, share = np.flatnonzero(problem.device_of == device), problem.held[: problem.stages]
        unit = share[own].max() or 1.0
        free = min(problem.limits[device], share[own].sum() * problem.m) / unit
        cap = math.floor(GRAINS * free + 1e-3)  # 1e-3 exceeds the sum of the rounding errors of the amounts
        held, demands = [], []
        for stage in own.tolist() if rows else ():
            for code in (stages + stage, 2 * stages + stage):
                amount = math.floor(GRAINS * -problem.held[code] / unit + 1e-6)
                if amount <= 0:
                    continue
                first, last = self.row_of[stage], self.row_of[code]
                there = (first <= rows[-1]) & (last >= rows[0])
                within = there & ((first >= rows[0]) | (last <= rows[-1]))
                cap -= amount * int((there & ~within).sum())
                held += [
                    self._interval(*pair) for pair in zip(first[within].tolist(), last[within].tolist(), strict=True)
                ]
                demands += [amount] * int(within.sum())
        if sum(demands) > cap:
            grain = math.gcd(*demands)
            self.model.add_cumulative(held, [demand // grain for demand in demands], cap // grain)

    def _interval(self, first: int, last: int) -> Any:
        """Return the interval from the start of one row to the end of another; it is open at a row that is not free."""
        size = self.model.new_int_var(0, self.horizon, "")
        return self.model.new_interval_var(self.begin.get(first, 0), size, self.end.get(last, self.horizon), "")

    def _add_makespan(self) -> None:
        """Minimise the last end of the free rows and their tails."""
        makespan = self.model.new_int_var(0, self.horizon, "makespan")
        for row, ticks in self._tails().items():
            self.model.add(makespan >= self.end[row] + ticks)
        self.model.minimize(makespan)

    def _tails(self) -> dict[int, int]:
        """Return the ticks from the end of each free row to the end of all, through rows that are not free."""
        tails = dict.fromkeys(self.begin, 0)
        if self.free.all():
            return tails
        from_start = self._ticks(self.problem.tails(self.lists) + self.problem.seconds[self.lists.codes])
        for d, rows in enumerate(self.free_rows):
            if rows and rows[-1] + 1 < self.problem.list_offsets[d + 1]:
                tails.update(dict.fromkeys(rows, int(from_start[rows[-1] + 1])))
        later = np.flatnonzero(~self.free & (self.source >= 0))
        for row in later[self.free[self.source[later]]].tolist():
            source = int(self.source[row])
            tails[source] = max(tails[source], int(self.wait[row] + from_start[row]))
        return tails

    def solve(self, **parameters: Any) -> tuple[TimedLists | None, float]:
        """Return the best lists found in time, and a lower bound for all orders of the free rows, if the others stay.

        The times of the lists are a hint; `parameters` are the solver's. The bound, in seconds, is accurate to a tick
        per action.
        """
        for row, begin in self.begin.items():
            self.model.add_hint(begin, int(self._ticks(self.lists.starts[row])))
        solver = self.cp_model.CpSolver()
        for name, value in parameters.items():
            setattr(solver.parameters, name, value)
        solver.parameters.catch_sigint_signal = False  # it would keep Ctrl-C from Python
        with ThreadPoolExecutor(1) as thread:  # signals are not heard in the solver's own code
            solving = thread.submit(solver.solve, self.model)
            try:
                status = solving.result()
            except BaseException:
                solver.stop_search()
                raise
        found = status in (self.cp_model.OPTIMAL, self.cp_model.FEASIBLE)
        lists = self.problem.timed(self._codes(solver)) if found else None
        return lists, solver.best_objective_bound * self.tick

    def _codes(self, solver: Any) -> np.ndarray:
        """Return the codes in the order of the solver's times."""
        codes = self.lists.codes.copy()
        for rows in self.free_rows:
            order = sorted(
                rows, key=lambda row: (solver.value(self.begin[row]), solver.value(self.end[row]), codes[row])
            )
            codes[rows] = self.lists.codes[order]
        return codes


def tick_of(times: list[float]) -> tuple[float, bool]:
    """Return the tick in seconds, and if every time is a multiple of it."""
    longest = max(times)
    if longest <= 0:
        raise ConfigError("all times are 0; there is nothing to optimise")
    times = sorted(set(times))
    shares = [Fraction(seconds / longest).limit_denominator(TICKS) for seconds in times]
    denominator = math.lcm(*(share.denominator for share in shares))
    exact = denominator <= TICKS and all(
        abs(float(share) - seconds / longest) < 1e-12 for share, seconds in zip(shares, times, strict=True)
    )
    return longest / (denominator if exact else TICKS), exact


class WindowSearch:
    """Window search: the solver reorders one window at a time; a result is accepted unless it is longer.

    A window is an interval of time on all devices. One thread solves it, within a limit on deterministic time: the same
    seed gives the same lists.
    """

    def __init__(self, lists: TimedLists, seed: int):
        self.best, self.seed, self.turn = lists, seed, 0
        self.random = np.random.default_rng(seed)

    def advance(self) -> None:
        """Reorder one window."""
        self.turn += 1
        model = WindowModel(self.best, self._window())
        seed = (self.seed + self.turn) % 2**31
        found, _ = model.solve(max_deterministic_time=WINDOW_WORK, num_workers=1, random_seed=seed)
        if found is not None and found.makespan <= self.best.makespan:
            self.best = found

    def _window(self) -> np.ndarray:
        """Return a bool column: True for the rows that start first from a random time on."""
        order = np.argsort(self.best.starts, kind="stable")
        first = int(self.random.integers(max(len(order) - WINDOW // 2, 1)))
        free = np.zeros(len(order), bool)
        free[order[first : first + WINDOW]] = True
        return free


class TimedSearch:
    """A local search that ends when its time is over or the best lists are proven shortest.

    After the usual rounds, short rounds hardly improve the lists. Longer ones, with an acceptance threshold of up to
    two mean lengths, find better lists; so the moves of a round double after each cycle of all thresholds. Windows take
    the last part of the time, if the solver is installed.
    """

    def __init__(self, search: LocalSearch, seconds: float):
        self.search, self.seconds, self.began = search, seconds, time.monotonic()
        self.windows: WindowSearch | None = None

    def run(self) -> None:
        """Search until the time is over; the best lists are those of the search, also if Ctrl-C ends it."""
        with Bar("search, tenths of a second", int(10 * self.seconds)) as bar:
            self._run_rounds(self.seconds * (FOR_ROUNDS if _has_solver() else 1.0), bar)
            if self._goes_on(self.seconds):
                self._run_windows(bar)

    def _goes_on(self, until: float) -> bool:
        """Return if time is left and the best lists are not proven shortest."""
        return self._passed() < until and not self.search.problem.is_optimal(self.search.best.length)

    def _passed(self) -> float:
        return time.monotonic() - self.began

    def _run_rounds(self, until: float, bar: Bar) -> None:
        usual, longer = max(usual_rounds(self.search.problem), len(THRESHOLDS)), 1
        while self._goes_on(until):
            begin = self._passed()
            self.search.advance(longer)
            seconds_of_usual = (self._passed() - begin) / longer
            more = self.search.turn - usual
            if more >= 0 and more % len(THRESHOLDS) == 0:
                longer *= 2
            longer = max(min(longer, int((until - self._passed()) / 2 / max(seconds_of_usual, 1e-6))), 1)
            bar.update(int(10 * self._passed()))

    def _run_windows(self, bar: Bar) -> None:
        self.windows = WindowSearch(self.search.best, self.search.seed)
        while self._goes_on(self.seconds):
            self.windows.advance()
            self.search.best = self.windows.best
            bar.update(int(10 * self._passed()))


def _has_solver() -> bool:
    try:
        require_solver("a search by windows")
    except ConfigError:
        return False
    return True


def solve_exactly(problem: Problem, time_limit: float) -> tuple[TimedLists, float, bool]:
    """Return the shortest lists, a lower bound in seconds, and if all times were multiples of the solver's tick.

    The lists are those of a brief search if these are shorter, or if the solver found none in time.
    """
    known = search_briefly(problem, [])
    model = WindowModel(known, np.ones(problem.rows, bool))
    found, bound = model.solve(max_time_in_seconds=float(time_limit), num_workers=EXACT_THREADS)
    best = known if found is None or found.makespan > known.makespan else found
    return best, max(bound, problem.lower_bound), model.exact
