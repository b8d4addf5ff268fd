"""Simulation: a schedule, costs and a transport give a timeline."""

from __future__ import annotations

from collections.abc import Sequence

from ppsim.base.errors import ConfigError, CostError, shown
from ppsim.base.rules import checked_call
from ppsim.checks.faults import validate
from ppsim.costs.given import Costs
from ppsim.costs.table import CostModel, is_cost_model
from ppsim.engines.running import ENGINES, dispatched, run_for_timeline
from ppsim.lowering.posts import TRANSPORTS
from ppsim.plan.jitter import Jitter, JitteredPlan, check_jitter
from ppsim.plan.resolve import make_plan
from ppsim.plan.streams import OPTIMIZERS
from ppsim.run.timelines import Timeline
from ppsim.schedule.columns import ScheduleColumns
from ppsim.search.partitions import with_stages_of_run


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
        Unknown transport, engine, optimizer or dispatch; invalid jitter, seed or limit; `engine="compiled"` if Numba
        cannot be imported.
    """
    check_call(schedule, transport, engine, optimizer)
    check_jitter(jitter, seed)
    costs = with_stages_of_run(checked_costs(costs), schedule, transport, optimizer)
    table = costs.table(schedule.compute)
    plan = make_plan(schedule, table, transport, optimizer)
    if jitter is not None:
        plan = JitteredPlan(plan, jitter, int(seed)).sample(0)
    plan = dispatched(plan, table, dispatch, memory_limit, engine)
    engine, times = run_for_timeline(plan, engine)
    return Timeline(plan, table, costs, times, engine=engine)


def checked_costs(costs: CostModel | None) -> CostModel:
    """Return a cost model, `Costs()` for None; CostError for anything else."""
    if costs is not None and not is_cost_model(costs):
        raise CostError(f"costs={shown(costs)} cannot price a schedule; give ppsim.Costs(forward=..., backward=...)")
    return Costs() if costs is None else costs


def check_call(schedule: ScheduleColumns, transport: str, engine: str, optimizer: str | None = None) -> None:
    """Raise ConfigError for unknown names, ScheduleError for an invalid schedule."""
    words = [("transport", transport, TRANSPORTS), ("engine", engine, ENGINES)]
    if optimizer is not None:
        words.append(("optimizer", optimizer, OPTIMIZERS))
    for word, value, legal in words:
        if not isinstance(value, str) or value not in legal:
            raise ConfigError(f"{word}={shown(value)} is not known; use one of: {', '.join(legal)}")
    if not isinstance(schedule, ScheduleColumns):
        raise ConfigError(f"simulate takes a Schedule or a Program, not {type(schedule).__name__}; see ppsim.build")
    if optimizer is not None and schedule.iterations > 1:
        raise ConfigError(
            f"optimizer={optimizer!r} does not go with schedule {schedule.name!r}: its iterations follow each other "
            f"without a common end; leave it out"
        )
    validate(schedule)
