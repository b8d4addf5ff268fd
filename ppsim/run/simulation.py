"""Simulation: a schedule, costs and a transport give a timeline; many costs or samples of jitter give a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ppsim.analysis.measures import MEASURES, shown_in
from ppsim.base.errors import ConfigError, CostError, shown
from ppsim.base.host import need
from ppsim.base.immutable import equal
from ppsim.base.progress import track
from ppsim.base.rules import argument, checked_call, checked_methods, choice, number, whole_number
from ppsim.base.units import seconds_text, value_text
from ppsim.checks.faults import validate
from ppsim.costs import CostModel, Costs, CostTable
from ppsim.costs.table import as_table, is_cost_model
from ppsim.engines.running import ENGINES, compiled_or, dispatched
from ppsim.lowering.posts import TRANSPORTS
from ppsim.plan.jitter import Jitter, JitteredPlan, check_jitter
from ppsim.plan.lengths import structure
from ppsim.plan.resolve import Plan, make_plan, repriced
from ppsim.plan.streams import OPTIMIZERS
from ppsim.run.schedules import Schedule
from ppsim.run.timelines import Timeline
from ppsim.schedule.columns import ScheduleColumns
from ppsim.search.partitions import with_stages_of_run
from ppsim.timeline import timeline_of_plan


@checked_call()
def simulate(
    schedule: ScheduleColumns,
    costs: CostModel | None = None,
    *,
    transport: str = "async",
    engine: str = "auto",
    optimizer: str | None = None,
    jitter: Jitter | None = None,
    seed: int = 0,
    dispatch: str = "list",
    memory_limit: float | Sequence[float] | None = None,
) -> Timeline:
    """Run a schedule or program and return its timeline.

    Parameters
    ----------
    schedule : Schedule or Program
        Validated first. Under a queued transport a schedule is lowered.
    costs : Costs or any CostModel, optional
        Default `Costs()`: forward 1 s, backward 2 s, free transfers.
    transport : {"async", "directed", "directions", "pair", "rank", "blocking"}
        How transfers queue; docs/glossary.md has the rules.
    engine : {"auto", "event", "compiled"}
        "event" is the SimPy model; "compiled" gives the same timeline bit for bit, faster. "auto" takes the compiled
        engine from 20,000 rows on, because loading Numba takes time; if the code must be compiled first, from 500,000
        rows over all calls of a process. Without Numba it takes the event model. `Timeline.engine` names the engine.
    optimizer : {"sync", "post-validated"}, optional
        End the step with an optimizer step, which lasts as long as the costs give. "sync" starts it when all devices
        have their gradients, as a global gradient norm needs; "post-validated" starts it on each device when its own
        gradients are there. Default: the step ends with the last action and gradient reduction.
    jitter : Jitter, optional
        One sample of the noise of actions, transfers, devices and links. `ppsim.simulate_many` draws many.
    seed : int >= 0
        Seed of the jitter; equal seeds give equal samples, the first of `ppsim.simulate_many`.
    dispatch : {"list", "ready"}
        "ready" takes each list as a priority. A device starts the first ready action after which the rest of its list
        could run in list order within the limit. `run.schedule` is then the order that ran. Only under `async`, for
        schedules without sharding, offloading and evictions.
    memory_limit : float or one per device, optional
        Limit of `dispatch="ready"`, in activations of one device share; default: the peak of each list in list order.

    Raises
    ------
    ScheduleError, DeadlockError
        The schedule is invalid, or its devices wait for each other under this transport.
    CostError
        The costs do not fit the schedule.
    ConfigError
        Unknown transport, engine, optimizer, dispatch; invalid jitter, seed, limit; `engine="compiled"` without Numba.
    """
    check_call(schedule, transport, engine, optimizer)
    check_jitter(jitter, seed)
    costs = Costs() if costs is None else costs
    if not is_cost_model(costs):
        raise CostError(f"costs={shown(costs)} cannot price a schedule; give ppsim.Costs(forward=..., backward=...)")
    plan, table, costs = next(_runs(schedule, [costs], transport, optimizer, jitter, int(seed), 1))
    plan = dispatched(plan, table, dispatch, memory_limit, engine)
    return timeline_of_plan(Timeline, plan, table, costs, engine)


def check_call(schedule: ScheduleColumns, transport: str, engine: str, optimizer: str | None = None) -> None:
    """Raise ConfigError for unknown names, ScheduleError for an invalid schedule."""
    argument("transport", transport, choice(*TRANSPORTS))
    argument("engine", engine, choice(*ENGINES))
    if optimizer is not None:
        argument("optimizer", optimizer, choice(*OPTIMIZERS))
    if not isinstance(schedule, ScheduleColumns):
        kind = type(schedule).__name__
        raise ConfigError(f"simulate takes a Schedule or a Program, not {kind}; see ppsim.build, Schedule.from_orders")
    if optimizer is not None and schedule.iterations > 1:
        raise ConfigError(
            f"optimizer={optimizer!r} excludes schedule {schedule.name!r}: its iterations follow each other "
            f"without a common end; leave it out"
        )
    validate(schedule)


# Batch of runs: one schedule under many costs or many samples of jitter; shared parts are computed once


if TYPE_CHECKING:
    import pandas

SAMPLES = 100
MAX_SAMPLES = 10_000_000  # the measures of this many take a gigabyte


@checked_methods
class Batch:
    """The measures of many runs of one schedule, one entry per run: the samples of each of the costs in turn.

    `measures` names the attributes with measures, float64 arrays such as `batch.bubble_fraction` (docs/glossary.md).
    `case` and `sample`, int64 arrays, are the indices of a run's costs in the given list and of its sample.
    There is one sample if nothing is random. `transport`, `engine` and `seed` are those of the runs.
    """

    makespan: np.ndarray
    span: np.ndarray
    bubble_fraction: np.ndarray
    bubble_ratio: np.ndarray
    span_bubble_fraction: np.ndarray
    peak_activations: np.ndarray

    def __init__(self, schedule: Schedule, transport: str, engine: str, cases: int, samples: int, seed: int):
        self.schedule, self.transport, self.engine = schedule, transport, engine
        self.seed, self.samples = seed, samples
        self.case = np.repeat(np.arange(cases), samples)
        self.sample = np.tile(np.arange(samples), cases)
        self.measures = [measure.name for measure in shown_in("batch")]
        for name in self.measures:
            setattr(self, name, np.empty(cases * samples))

    def __eq__(self, other: object) -> bool:
        """Return whether both hold equal measures of equal runs of one schedule."""
        return equal(vars(self), vars(other)) if isinstance(other, Batch) else NotImplemented

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self.case)

    def percentile(self, percent: float, measure: str = "makespan") -> float:
        """Return the value that `percent` % of all runs do not exceed, interpolated, in the measure's unit.

        Raises ConfigError for an unknown measure, or a percent outside 0 to 100.
        """
        argument("measure", measure, choice(*self.measures))
        argument("percent", percent, number(lambda value: 0 <= value <= 100, "must be a number from 0 to 100"))
        return float(np.percentile(getattr(self, measure), percent))

    @property
    def p5(self) -> float:
        """5th percentile of the makespan, seconds."""
        return self.percentile(5)

    @property
    def p50(self) -> float:
        """Median of the makespan, seconds."""
        return self.percentile(50)

    @property
    def p95(self) -> float:
        """95th percentile of the makespan, seconds."""
        return self.percentile(95)

    def summary(self) -> str:
        """Return percentiles of makespan and bubble fraction as readable text."""
        lines = [f"{self.schedule.name}: {len(self)} runs, transport {self.transport}, engine {self.engine}"]
        for name in ("makespan", "bubble_fraction"):
            values = [(percent, self.percentile(percent, name)) for percent in (5, 50, 95)]
            unit = MEASURES[name].unit
            lines.append(f"{name}: {', '.join(f'P{percent} {value_text(value, unit)}' for percent, value in values)}")
        return "\n".join(lines)

    def to_frame(self) -> pandas.DataFrame:
        """Return a table with one row per run and all columns (needs pandas)."""
        pandas = need("pandas", "a table of runs")
        names = ("case", "sample", *self.measures)
        return pandas.DataFrame({name: getattr(self, name) for name in names})

    def __repr__(self) -> str:
        p50, p95 = seconds_text(self.p50), seconds_text(self.p95)
        return f"<Batch {self.schedule.name}: {len(self)} runs, makespan P50 {p50}, P95 {p95}>"


@checked_call()
def simulate_many(
    schedule: Schedule,
    costs: CostModel | Sequence[CostModel] | None = None,
    *,
    transport: str = "async",
    optimizer: str | None = None,
    jitter: Jitter | None = None,
    samples: int | None = None,
    seed: int = 0,
    engine: str = "auto",
    progress: bool = True,
    dispatch: str = "list",
    memory_limit: float | Sequence[float] | None = None,
) -> Batch:
    """Run one schedule under many costs, or many times under jitter; computations without costs are shared.

    Parameters
    ----------
    schedule : Schedule or Program
        Validated first.
    costs : list of Costs or any CostModel, or one of them
        Default: `Costs()`.
    transport, optimizer, engine : str
        As in `ppsim.simulate`, but engine "auto" takes the compiled one at every size.
    jitter : Jitter, optional
        Noise of actions, transfers, devices and links.
    samples : int, optional
        Runs per entry of the costs; default 100 if the jitter is random, else 1.
    seed : int >= 0
        Equal seeds give equal samples for every schedule.
    progress : bool
        Show a progress bar on a terminal if the runs take long.
    dispatch, memory_limit
        As in `ppsim.simulate`.

    Raises
    ------
    ScheduleError, DeadlockError, CostError, ConfigError
        As in `ppsim.simulate`; also for invalid costs, samples or seed.

    Examples
    --------
    >>> jitter = ppsim.Jitter(actions=0.05, slow_devices={3: 1.2})
    >>> ppsim.simulate_many(schedule, costs, jitter=jitter, samples=1000).p95
    """
    check_call(schedule, transport, engine, optimizer)
    models = _models(costs)
    check_jitter(jitter, seed)
    samples = _samples(samples, jitter)
    engine = compiled_or(engine)
    batch = Batch(Schedule.of(schedule.compute), transport, engine, len(models), samples, int(seed))
    runs = (
        (dispatched(plan, table, dispatch, memory_limit, engine), table, model)
        for plan, table, model in _runs(schedule, models, transport, optimizer, jitter, int(seed), samples)
    )
    return _measured(batch, track(runs, len(batch), "simulating") if progress else runs)


def _models(costs: CostModel | Sequence[CostModel] | None) -> list[CostModel]:
    models: list[CostModel] = [*costs] if isinstance(costs, Iterable) else [Costs() if costs is None else costs]
    if not models:
        raise ConfigError("the list of costs is empty; give at least one, such as [ppsim.Costs()]")
    for index, model in enumerate(models):
        if not is_cost_model(model):
            raise ConfigError(f"costs[{index}] is {shown(model)}, which prices no schedule; give ppsim.Costs(...)")
    return models


def _samples(samples: int | None, jitter: Jitter | None) -> int:
    random = jitter is not None and jitter.is_random
    if samples is None:
        return SAMPLES if random else 1
    count: int = argument("samples", samples, whole_number(1, MAX_SAMPLES))
    if count > 1 and not random:
        raise ConfigError(f"samples={count} without random jitter are equal; give jitter=, or one sample")
    return count


def _runs(
    schedule: ScheduleColumns, models: list[CostModel], transport: str, optimizer: str | None, jitter: Jitter | None,
    seed: int, samples: int,
) -> Iterator[tuple[Plan, CostTable, CostModel]]:  # fmt: skip
    """Yield plan, table and costs of each run, the samples of each model in turn; plans share what has no costs."""
    known: dict[tuple[bool, ...], Plan] = {}
    for given in models:
        model = with_stages_of_run(given, schedule, transport, optimizer)
        table = as_table(model.table(schedule.compute))
        first = known.get(structure(table))
        plan = make_plan(schedule, table, transport, optimizer) if first is None else repriced(first, table)
        known.setdefault(structure(table), plan)
        if jitter is None:
            yield plan, table, model
            continue
        jittered = JitteredPlan(plan, jitter, seed)
        for sample in range(samples):
            yield jittered.sample(sample), table, model


def _measured(batch: Batch, runs: Iterable[tuple[Plan, CostTable, CostModel]]) -> Batch:
    """Return the batch with the measures of all its runs."""
    engine = batch.engine
    for index, (plan, table, model) in enumerate(runs):
        timeline = timeline_of_plan(Timeline, plan, table, model, engine)
        batch.engine = timeline.engine
        for measure in map(MEASURES.__getitem__, batch.measures):
            getattr(batch, measure.name)[index] = measure.number(timeline)
    return batch
