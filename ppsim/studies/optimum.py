"""The exact optimum of tiny cases, proven by a constraint solver (needs the extra `solver`)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import ConfigError, CostError, shown
from ppsim.base.extras import need
from ppsim.costs import CostModel, Costs, CostTable
from ppsim.families.round_search import searched_briefly
from ppsim.families.synthesis_problem import Problem, limits_of
from ppsim.run.schedules import build
from ppsim.run.simulation import simulate
from ppsim.run.timelines import Timeline
from ppsim.schedule.blocks import Block
from ppsim.schedule.columns import ScheduleColumns

MOST_ACTIONS = 1500
FINEST = 100_000  # ticks in the longest action, at most
GRAINS = 1_000_000  # parts of an activation; what is held is rounded down to them


@dataclass(frozen=True)
class Optimum:
    """The best schedule found, and a proven lower bound.

    Attributes
    ----------
    run : Timeline
        The schedule found, simulated under the costs given; `run.schedule.to_csv(path)` keeps it.
    makespan, bound : float
        Seconds of the schedule found, and what no schedule of these actions under this cap can beat.
    proven : bool
        Whether the two are equal: the schedule is optimal.
    exact : bool
        Whether all times are multiples of the solver's tick, so that nothing was rounded.
    """

    run: Timeline
    makespan: float
    bound: float
    proven: bool
    exact: bool


def optimum(
    devices: int,
    microbatches: int,
    costs: CostModel | None = None,
    *,
    memory_limit: float | None = None,
    split: bool = True,
    time_limit: float = 60.0,
    workers: int = 2,
) -> Optimum:
    """The shortest schedule with one stage a device, where transfers never queue (transport `async`).

    Parameters
    ----------
    devices : int
        One stage each.
    microbatches : int
        Of one step.
    costs : Costs or any CostModel, optional
        Default: F, I and W of one second each.
    memory_limit : activations, optional
        Cap on the `peak_activations` of each device, in microbatches through one device share: held from the start of F
        to the end of B, or of I and W in the parts that the costs say. Default: none.
    split : bool
        Backward as I and W (the default), or as B.
    time_limit : seconds
        The solver stops then, with the best schedule and bound so far.
    workers : int
        Threads of the solver.

    Raises
    ------
    ConfigError
        OR-Tools is not installed, the case is too large, the cap holds no activation, or a limit is no number above 0.
    """
    _check_limits(memory_limit, time_limit, workers)
    start = build("zb-h1" if split else "1f1b", devices=devices, microbatches=microbatches)
    if len(start.kind) > MOST_ACTIONS:
        raise ConfigError(f"{len(start.kind)} actions are too many to solve exactly; use at most {MOST_ACTIONS}")
    costs = Costs(forward=1.0, input_grad=1.0, weight_grad=1.0) if costs is None else costs
    run = simulate(start, costs)  # refuses costs that do not fit
    if run.table.microbatch_scale is not None:
        raise CostError("the exact optimum takes microbatches as alike; leave microbatch_scale out")
    problem = _Problem(start, run.table, memory_limit)
    limits = limits_of(devices, math.inf if memory_limit is None else memory_limit)
    search = Problem.of(devices, microbatches, np.arange(devices), costs, split, limits)
    bases = [search.replayed(start)] if search.holds(start) else []
    known = simulate(searched_briefly(search, bases).columns(), costs)
    return problem.solve(known, search.least_makespan, time_limit, workers)


def _check_limits(memory_limit: Any, time_limit: Any, workers: Any) -> None:
    for name, value in (("memory_limit", memory_limit), ("time_limit", time_limit)):
        if value is None and name == "memory_limit":
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ConfigError(f"{name}={shown(value)} must be a finite number above 0, such as 4")
    if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
        raise ConfigError(f"workers={shown(workers)} must be a whole number of at least 1, such as 2")


class _Problem:
    """The scheduling problem in whole ticks: one interval an action, one no-overlap a device, one cap a device."""

    def __init__(self, start: ScheduleColumns, table: CostTable, memory_limit: float | None):
        self.cp_model = need("ortools.sat.python.cp_model", "the exact optimum")
        self.start, self.table = start, table
        self.stages, self.microbatches = start.num_stages, start.microbatches
        self.split = bool((start.kind == Kind.W).any())
        self.kinds = (Kind.F, Kind.I, Kind.W) if self.split else (Kind.F, Kind.B)
        seconds = table.seconds[list(self.kinds)]
        transfers = [self._transfer_seconds(*way) for way in self._ways()]
        self.tick, self.exact = _tick([*seconds.ravel().tolist(), *transfers])
        self.ticks = {kind: [self._whole_ticks(time) for time in table.seconds[kind].tolist()] for kind in self.kinds}
        self.model = self.cp_model.CpModel()
        self.horizon = self._horizon()
        self.begin: dict[tuple[Kind, int, int], Any] = {}
        self.interval: dict[tuple[Kind, int, int], Any] = {}
        self.end: dict[tuple[Kind, int, int], Any] = {}
        self._add_actions()
        self._add_dependencies()
        self._add_devices(memory_limit)

    def _horizon(self) -> int:
        """Ticks in which everything can run one after the other."""
        ticks = sum(map(sum, self.ticks.values())) + sum(self._transfer(*way) for way in self._ways())
        return ticks * self.microbatches + 1

    def _whole_ticks(self, seconds: float) -> int:
        """Whole ticks; rounded down where times are no multiples of it, so that the bound stays one."""
        return round(seconds / self.tick) if self.exact else math.floor(seconds / self.tick)

    def _add_actions(self) -> None:
        for kind in self.kinds:
            for stage, length in enumerate(self.ticks[kind]):
                for microbatch in range(self.microbatches):
                    key = (kind, stage, microbatch)
                    self.begin[key] = self.model.new_int_var(0, self.horizon, f"{stage}{kind.name}{microbatch}")
                    self.interval[key] = self.model.new_fixed_size_interval_var(self.begin[key], length, "")
                    self.end[key] = self.begin[key] + length

    def _add_dependencies(self) -> None:
        backward = Kind.I if self.split else Kind.B
        for stage in range(self.stages):
            for microbatch in range(self.microbatches):
                here = (stage, microbatch)
                self._follows((backward, *here), (Kind.F, *here), 0)
                if self.split:
                    self._follows((Kind.W, *here), (Kind.I, *here), 0)
                if stage:
                    above = (stage - 1, microbatch)
                    self._follows((Kind.F, *here), (Kind.F, *above), self._transfer(stage - 1, stage))
                    self._follows((backward, *above), (backward, *here), self._transfer(stage, stage - 1))
        # Microbatches are alike, so each stage may run them in order.
        for kind, stage, microbatch in self.begin:
            if microbatch:
                self._follows((kind, stage, microbatch), (kind, stage, microbatch - 1), 0)

    def _follows(self, later: tuple, earlier: tuple, ticks: int) -> None:
        self.model.add(self.begin[later] >= self.end[earlier] + ticks)

    def _ways(self) -> list[tuple[int, int]]:
        """(sending, receiving) stage of each transfer of one microbatch; a stage's device has its number."""
        up = [(stage, stage + 1) for stage in range(self.stages - 1)]
        return up + [(receiver, sender) for sender, receiver in up]

    def _transfer_seconds(self, sender: int, receiver: int) -> float:
        table = self.table
        sent = table.transfer_bytes[int(sender > receiver), sender]
        return float(table.latency[sender, receiver] + sent * table.seconds_per_byte[sender, receiver])

    def _transfer(self, sender: int, receiver: int) -> int:
        return self._whole_ticks(self._transfer_seconds(sender, receiver))

    def _add_devices(self, memory_limit: float | None) -> None:
        last = self.kinds[-1]
        self.makespan = self.model.new_int_var(0, self.horizon, "makespan")
        for stage in range(self.stages):
            own = [key for key in self.interval if key[1] == stage]
            self.model.add_no_overlap([self.interval[key] for key in own])
            self.model.add(self.makespan >= self.end[last, stage, self.microbatches - 1])
            if memory_limit is not None:
                self._add_cap(stage, memory_limit)
        self.model.minimize(self.makespan)

    def _add_cap(self, stage: int, memory_limit: float) -> None:
        """At most `memory_limit` held: all from F to the backward, of which the part that W needs stays until W."""
        share = float(self.table.stage_share[stage])
        kept = float(self.table.weight_grad_fraction[stage]) if self.split else 0.0
        memory_limit = min(memory_limit, share * self.microbatches)  # more than all is no limit
        amounts = [math.floor(GRAINS * part + 1e-6) for part in (1.0 - kept, kept)]
        cap = math.floor(GRAINS * memory_limit / share + 1e-3)  # above the sum of what the amounts gain by rounding
        if cap < sum(amounts):
            raise ConfigError(
                f"memory_limit={memory_limit!r} holds no microbatch of stage {stage}; use at least {share:g}"
            )
        grain = math.gcd(*amounts) or 1
        held, demands = [], []
        for amount, ending in zip(amounts, self.kinds[1:], strict=False):
            for microbatch in range(self.microbatches if amount else 0):
                first, freed = self.begin[Kind.F, stage, microbatch], self.end[ending, stage, microbatch]
                size = self.model.new_int_var(0, self.horizon, "")
                held.append(self.model.new_interval_var(first, size, freed, ""))
                demands.append(amount // grain)
        self.model.add_cumulative(held, demands, cap // grain)

    def _hint(self, run: Timeline) -> None:
        """Start the search at a known schedule."""
        schedule = run.schedule
        keys = zip(schedule.kind.tolist(), schedule.stage.tolist(), schedule.microbatch.tolist(), strict=True)
        for (kind, stage, microbatch), start in zip(keys, run.row_start.tolist(), strict=True):
            self.model.add_hint(self.begin[Kind(kind), stage, microbatch], self._whole_ticks(start))

    def solve(self, known: Timeline, least: float, time_limit: float, workers: int) -> Optimum:
        """The best schedule of the solver, or the known one where that is shorter or time ran out before the first.

        No schedule takes less than `least` seconds.
        """
        self._hint(known)
        solver = self.cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = float(time_limit)
        solver.parameters.num_workers = workers
        status = solver.solve(self.model)
        found = status in (self.cp_model.OPTIMAL, self.cp_model.FEASIBLE)
        run = simulate(self._schedule(solver), known.costs) if found else known
        run = min(known, run, key=lambda run: run.makespan)
        bound = max(solver.best_objective_bound * self.tick, least)
        proven = run.makespan <= bound * (1 + 1e-9)
        return Optimum(run, run.makespan, min(bound, run.makespan), proven, self.exact)

    def _schedule(self, solver: Any) -> ScheduleColumns:
        blocks = []
        for stage in range(self.stages):
            own = sorted(
                (key for key in self.begin if key[1] == stage),
                key=lambda key: (solver.value(self.begin[key]), solver.value(self.end[key]), key),
            )
            columns = np.array([(kind, stage, microbatch) for kind, _, microbatch in own]).T
            blocks.append(Block(*columns))
        return ScheduleColumns.from_blocks(blocks, name="optimum")


def _tick(times: list[float]) -> tuple[float, bool]:
    """The solver's unit in seconds, and whether every time is a multiple of it."""
    longest = max(times)
    if longest <= 0:
        raise ConfigError("all times are 0; there is nothing to optimise")
    shares = [Fraction(time / longest).limit_denominator(FINEST) for time in times]
    denominator = math.lcm(*(share.denominator for share in shares))
    exact = denominator <= FINEST and all(
        abs(float(share) - time / longest) < 1e-12 for share, time in zip(shares, times, strict=True)
    )
    return longest / (denominator if exact else FINEST), exact
