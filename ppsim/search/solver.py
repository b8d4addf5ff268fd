"""Rows of lists in their best order by a constraint solver, OR-Tools' CP-SAT; all other rows stay as they are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np

from ppsim.base.errors import ConfigError
from ppsim.base.host import need
from ppsim.schedule.blocks import occurrence
from ppsim.search.problem import Lists

FINEST = 100_000  # ticks in the longest action, at most
GRAINS = 1_000_000  # parts of an activation; what is held is rounded down to them


def solver_of(purpose: str) -> Any:
    """The module of CP-SAT; ConfigError where OR-Tools is not installed."""
    return need("ortools.sat.python.cp_model", purpose)


@dataclass(frozen=True)
class Solved:
    """What the solver found.

    Attributes
    ----------
    codes : int32, one entry a row, optional
        As in `Lists`; None where it found nothing in time.
    bound : float
        Seconds that no order of the free rows beats while the others keep theirs, within a tick for each action.
    """

    codes: np.ndarray | None
    bound: float


class WindowModel:
    """The free rows as intervals in whole ticks: one after the other on a device, within what it may hold.

    Rows before them keep their times; those behind keep their order, and what is behind a free row is a tail of it.
    """

    def __init__(self, lists: Lists, free: np.ndarray):
        self.cp_model = solver_of("a search for the best order")
        self.lists, self.problem, self.free = lists, lists.problem, free
        problem = self.problem
        self.tick, self.exact = tick_of([*problem.lengths.tolist(), *problem.waits.tolist()])
        self.lengths, self.waits = self._ticks(problem.lengths), self._ticks(problem.waits)
        self.number = occurrence(lists.codes)
        self.row_of = np.empty((3 * problem.stages, problem.m), np.int64)
        self.row_of[lists.codes, self.number] = np.arange(problem.rows)
        self.source = self._sources()
        self.device = problem.device_of[lists.codes % problem.stages]
        self.ends = self._ticks(lists.ends)
        self.free_rows = [
            (np.flatnonzero(free[first:last]) + first).tolist()
            for first, last in pairwise(problem.list_offsets.tolist())
        ]
        self.model = self.cp_model.CpModel()
        self.horizon = self._horizon()
        rows = np.flatnonzero(free).tolist()
        self.begin = {row: self.model.new_int_var(self._earliest(row), self.horizon, "") for row in rows}
        self.end = {row: self.begin[row] + int(self.lengths[lists.codes[row]]) for row in rows}
        self._follow()
        self._one_at_a_time()
        for d in np.flatnonzero(problem.limits < math.inf).tolist():
            self._hold(d)
        self._minimize()

    def _ticks(self, seconds: np.ndarray) -> np.ndarray:
        """Whole ticks; rounded down where times are no multiples of it, so that the bound stays one."""
        ticks = seconds / self.tick
        return (np.rint(ticks) if self.exact else np.floor(ticks * (1 + 1e-12))).astype(np.int64)

    def _horizon(self) -> int:
        """Ticks in which everything can run one after the other."""
        return int(self.lengths.sum() + self.waits.sum()) * self.problem.m + 1

    def _sources(self) -> np.ndarray:
        """The row of another stage or kind that each row waits for, or -1."""
        stages, codes = self.problem.stages, self.lists.codes.astype(np.int64)
        kind, stage = np.divmod(codes, stages)
        needed = np.select([kind == 0, kind == 2, stage == stages - 1], [codes - 1, codes - stages, stage], codes + 1)
        return np.where((kind == 0) & (stage == 0), -1, self.row_of[needed, self.number])

    def _wait(self, row: int) -> int:
        """Ticks from the end of a row's source to its arrival."""
        source = int(self.lists.codes[self.source[row]])
        same_stage = source % self.problem.stages == int(self.lists.codes[row]) % self.problem.stages
        return 0 if same_stage else int(self.waits[source])

    def _earliest(self, row: int) -> int:
        """The tick from which rows that are not free let it start."""
        before = self.free_rows[self.device[row]][0] - 1
        at_first = 0 if before < self.problem.list_offsets[self.device[row]] else int(self.ends[before])
        source = self.source[row]
        return at_first if source < 0 or self.free[source] else max(at_first, int(self.ends[source]) + self._wait(row))

    def _follow(self) -> None:
        """Each free row starts after its source, and after the one before it of its kind and stage: they are alike."""
        for row, begin in self.begin.items():
            number = self.number[row]
            before = int(self.row_of[self.lists.codes[row], number - 1]) if number else -1
            if before in self.end:
                self.model.add(begin >= self.end[before])
            source = int(self.source[row])
            if source in self.end:
                self.model.add(begin >= self.end[source] + self._wait(row))

    def _one_at_a_time(self) -> None:
        for d in range(self.problem.devices):
            intervals = [
                self.model.new_fixed_size_interval_var(self.begin[row], int(self.lengths[self.lists.codes[row]]), "")
                for row in self.free_rows[d]
            ]
            self.model.add_no_overlap(intervals)

    def _hold(self, device: int) -> None:
        """At most the limit is held: from F to the backward, and the part that W needs until W."""
        problem, stages, rows = self.problem, self.problem.stages, self.free_rows[device]
        own = np.flatnonzero(problem.device_of == device)
        unit = problem.share[own].max() or 1.0
        room = min(problem.limits[device], problem.share[own].sum() * problem.m) / unit
        cap = math.floor(GRAINS * room + 1e-3)  # above the sum of what the amounts gain by rounding
        kept = problem.kept if problem.split else np.zeros(stages)
        held, demands = [], []
        for stage in own.tolist() if rows else ():
            for kind, part in ((1, 1.0 - kept[stage]), (2, kept[stage])):
                amount = math.floor(GRAINS * part * problem.share[stage] / unit + 1e-6)
                first, last = self.row_of[stage], self.row_of[kind * stages + stage]
                there = (first <= rows[-1]) & (last >= rows[0]) & (amount > 0)
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
        """From the start of one row to the end of another, as far as they are free."""
        size = self.model.new_int_var(0, self.horizon, "")
        return self.model.new_interval_var(self.begin.get(first, 0), size, self.end.get(last, self.horizon), "")

    def _minimize(self) -> None:
        """The makespan: the last end of a free row and of what is behind it."""
        makespan = self.model.new_int_var(0, self.horizon, "makespan")
        for row, ticks in self._behind().items():
            self.model.add(makespan >= self.end[row] + ticks)
        self.model.minimize(makespan)

    def _behind(self) -> dict[int, int]:
        """Ticks from the end of each free row to the end of all by rows that are not free."""
        behind = dict.fromkeys(self.begin, 0)
        if self.free.all():
            return behind
        tails = self.problem.tails(self.lists) + self.problem.lengths[self.lists.codes]
        for d in range(self.problem.devices):
            rows = self.free_rows[d]
            if rows and rows[-1] + 1 < self.problem.list_offsets[d + 1]:
                ticks = int(self._ticks(tails[rows[-1] + 1]))
                behind.update(dict.fromkeys(rows, ticks))
        later = np.flatnonzero(~self.free & (self.source >= 0))
        for row in later[self.free[self.source[later]]].tolist():
            source = int(self.source[row])
            behind[source] = max(behind[source], self._wait(row) + int(self._ticks(tails[row])))
        return behind

    def solve(self, **parameters: Any) -> Solved:
        """Solve from the lists' own times on; `parameters` are the solver's."""
        for row, begin in self.begin.items():
            self.model.add_hint(begin, int(self._ticks(self.lists.starts[row])))
        solver = self.cp_model.CpSolver()
        for name, value in parameters.items():
            setattr(solver.parameters, name, value)
        status = solver.solve(self.model)
        found = status in (self.cp_model.OPTIMAL, self.cp_model.FEASIBLE)
        return Solved(self._codes(solver) if found else None, solver.best_objective_bound * self.tick)

    def _codes(self, solver: Any) -> np.ndarray:
        codes = self.lists.codes.copy()
        for d in range(self.problem.devices):
            rows = self.free_rows[d]
            begun = sorted(
                rows, key=lambda row: (solver.value(self.begin[row]), solver.value(self.end[row]), codes[row])
            )
            codes[rows] = self.lists.codes[begun]
        return codes


def tick_of(times: list[float]) -> tuple[float, bool]:
    """The solver's unit in seconds, and whether every time is a multiple of it."""
    longest = max(times)
    if longest <= 0:
        raise ConfigError("all times are 0; there is nothing to optimise")
    times = sorted(set(times))
    shares = [Fraction(time / longest).limit_denominator(FINEST) for time in times]
    denominator = math.lcm(*(share.denominator for share in shares))
    exact = denominator <= FINEST and all(
        abs(float(share) - time / longest) < 1e-12 for share, time in zip(shares, times, strict=True)
    )
    return longest / (denominator if exact else FINEST), exact
