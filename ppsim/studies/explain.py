"""Why a measured step takes as long as it does: against its simulation, and against what it could be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ppsim.actions import KIND_NAMES, Kind
from ppsim.analysis.ledger import averaged
from ppsim.base.errors import ConfigError, PpsimError
from ppsim.costs.profile import Profile
from ppsim.costs.step_spread import HALVES
from ppsim.engines.running import run_plan
from ppsim.families.registry import families
from ppsim.interop.result import plain
from ppsim.plan.resolve import Plan
from ppsim.run.schedules import Schedule
from ppsim.run.simulation import simulate
from ppsim.run.timelines import Timeline

SCHEMA = "ppsim.explain/1"
SLOW_STAGE, SLOW_LINK, SLOW_ACTION = 1.05, 1.25, 1.5  # times what is expected
SLOW_MICROBATCH = 1.03
ROBUST = 4.0  # standard deviations, 1.4826 x median absolute deviation, that a straggler is away from the others
MOST_ACTIONS_SHOWN = 10

DIFFERENCE = {
    "schedule": "the simulated run has another schedule than the measured one, or steps and noise beside its actions",
    "queues": "the simulated transport queues transfers; what is measured has their waits in its own times",
    **{kind: f"{kind} takes another time than the costs say, by stage" for kind in ("F", "B", "I", "W")},
    "transfers": "transfers take another time than the costs say, by link",
    "noise": "single actions and transfers take more or less than the median of their stage or link",
    "overhead": "devices start actions later than all they need is there: launches, the host, the clocks",
}
VARIANTS = {
    "no overhead": "every action starts when all it needs is there",
    "no stragglers": "no action takes longer than the median of its kind and stage, no transfer than its link's",
    "equal stages": "every action takes the mean of its kind over all stages",
    "free links": "transfers take no time",
    "all of these": "",
}


@dataclass(frozen=True)
class Slow:
    """Something that takes longer than it should.

    Attributes
    ----------
    what : {"stage", "microbatch", "link", "action"}
    where : str
        Such as `7F` (stage and kind), `microbatch 3`, `0-1` (sender and receiver), `3F7`.
    seconds, expected : float
        Measured and expected seconds: of one action or transfer; of a microbatch, of all its actions.
    excess : float
        Device-seconds of the step beyond what is expected, all together.
    """

    what: str
    where: str
    seconds: float
    expected: float
    excess: float

    @property
    def ratio(self) -> float:
        """Measured over expected."""
        return self.seconds / self.expected if self.expected > 0 else float("inf")


@dataclass(frozen=True)
class Better:
    """A schedule that would be faster at no larger activation peak and with no more weights, at the measured costs.

    Attributes
    ----------
    schedule : str
    stages_per_device : int
    step, step_now : float
        Seconds of this schedule and of the measured order, both simulated at the measured costs.
    peak, peak_now : float
        Largest activation peaks, in microbatches through one device share.
    """

    schedule: str
    stages_per_device: int
    step: float
    step_now: float
    peak: float
    peak_now: float


@dataclass(frozen=True)
class Explanation:
    """What `ppsim.explain` returns; times in seconds.

    Attributes
    ----------
    measured : Timeline
    simulated : Timeline or None
    difference : mapping cause -> float
        Measured minus simulated step by cause (`DIFFERENCE` defines each); they sum to it. Empty without a simulation.
    replayed : float
        The step when every action and transfer takes its own measured time and every start the usual overhead: how far
        a simulation of these times is from the step they are of.
    variants : mapping -> float
        What the measured step would be (`VARIANTS` defines each).
    slow : list of Slow
        Worst first.
    communication : mapping -> float
        Device-seconds of transfers in the step ("total") and those in which a device was idle for them ("exposed").
    better : Better or None
        None where no family is faster within the same peak.
    notes : list of str
        What is taken and not measured.
    """

    measured: Timeline
    simulated: Timeline | None
    difference: dict[str, float]
    replayed: float
    variants: dict[str, float]
    slow: list[Slow]
    communication: dict[str, float]
    better: Better | None
    notes: list[str] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain Python values (schema ppsim.explain/1)."""
        return plain(
            {
                "schema": SCHEMA,
                "units": {"time": "seconds", "idle": "device-seconds", "peak": "microbatches of a device share"},
                "schedule": self.measured.schedule.name,
                "devices": self.measured.schedule.devices,
                "microbatches": self.measured.schedule.microbatches_of_a_step,
                "measured": _headline(self.measured),
                "simulated": self.simulated and _headline(self.simulated),
                "replayed": self.replayed,
                "difference": self.difference,
                "variants": self.variants,
                "slow": [{**vars(one), "ratio": one.ratio} for one in self.slow],
                "communication": self.communication,
                "better": self.better and vars(self.better),
                "definitions": {**DIFFERENCE, **{name: text for name, text in VARIANTS.items() if text}},
                "notes": self.notes,
            }
        )


def explain(measured: Timeline, run: Timeline | None = None) -> Explanation:
    """Say where the time of a measured step goes, and where it differs from its simulation.

    Parameters
    ----------
    measured : Timeline
        Such as `ppsim.Timeline.from_trace(path)` gives.
    run : Timeline, optional
        The simulation of the same step, with as many devices and microbatches.

    Raises
    ------
    ConfigError
        Where `measured` or `run` is no timeline, or they are of different sizes.
    CostError
        Where the costs of `run` cannot price the measured order.

    Notes
    -----
    The difference is taken apart by exchanging one thing after the other, from the simulation to the measured step,
    and simulating each time: a cause is what its exchange moves. Who goes first matters where causes meet (they do not
    add up), so the order is fixed: that of `DIFFERENCE`.
    """
    for name, value in (("measured", measured), ("run", run)):
        if not isinstance(value, Timeline) and not (name == "run" and value is None):
            raise ConfigError(
                f"{name} must be a Timeline, such as ppsim.Timeline.from_trace(path) or ppsim.simulate(...)"
            )
    own, usual = _replayed(measured), start_overhead(measured)
    return Explanation(
        measured,
        run,
        {} if run is None else _difference(measured, own, run),
        _seconds(replace(own, seconds=own.seconds + usual)) - usual,
        _variants(measured, own),
        _slow(measured, own, run),
        _communication(measured, own),
        _better(measured),
        _notes(measured),
    )


def _headline(run: Timeline) -> dict[str, Any]:
    return {
        "step": run.makespan,
        "bubble_fraction": run.bubble_fraction,
        "busy": float(run.device_busy.sum()),
        "idle": {cause: float(seconds.sum()) for cause, seconds in run.ledger().items()},
    }


def _seconds(plan: Plan) -> float:
    """Step time of a plan."""
    _, times = run_plan(plan, "auto")
    return float(times.row_end.max() - times.row_start.min())


def _replayed(measured: Timeline) -> Plan:
    """The measured step as a plan of its actions' and transfers' own lengths, nothing queueing.

    The end of a transfer for which no device waited is not known: it is taken to last no longer than the median of
    those of its link (or of all links) for which one did.
    """
    plan = measured.plan
    seconds, waited = plan.transfer_seconds.copy(), _waited(measured)
    links = _links(measured)
    of_all = float(np.median(seconds[waited])) if waited.any() else 0.0
    for link in np.unique(links[plan.remote]):
        mine = (links == link) & plan.remote
        known = seconds[mine & waited]
        usual = float(np.median(known)) if len(known) else of_all
        seconds = np.where(mine & ~waited, np.minimum(seconds, usual), seconds)
    return replace(
        plan, transport="async", transfer_seconds=seconds, posts=None, ports=None, gathers=None, reductions=None,
        blocking=False, optimizer=None, optimizer_seconds=None,
    )  # fmt: skip


def start_overhead(run: Timeline) -> float:
    """Median seconds from the end of an action to the start of the next on its device, which waited for no transfer.

    0 where every action waited for one.
    """
    following = np.ones(len(run.row_start), bool)
    following[run.schedule.offsets[:-1]] = False
    gaps = (run.row_start[1:] - run.row_end[:-1])[(following & ~_waited(run))[1:]]
    return max(0.0, float(np.median(gaps))) if len(gaps) else 0.0


def _waited(run: Timeline) -> np.ndarray:
    """Rows for whose transfer an idle device waited."""
    before = np.concatenate([[-np.inf], run.row_end[:-1]])
    before[run.schedule.offsets[:-1]] = -np.inf
    return run.plan.remote & (np.nan_to_num(run.transfer_end, nan=-np.inf) > before)


def _links(run: Timeline) -> np.ndarray:
    """A number for the (sender, receiver) of each row's transfer."""
    device = run.schedule.device.astype(np.int64)
    return device[run.plan.source] * run.schedule.devices + device


def _groups(plan: Plan) -> np.ndarray:
    """A number for the kind and stage of each row."""
    return plan.kind * plan.schedule.num_stages + plan.schedule.stage


def _usual(measured: Timeline, own: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of actions and of transfers, each the median of its kind and stage, or link."""
    links = np.where(own.remote, _links(measured), -1)
    return _medians(own.seconds, _groups(own)), _medians(own.transfer_seconds, links)


def _priced(measured: Timeline, run: Timeline) -> Timeline:
    """The measured order under the costs of a simulation; itself where that is what was simulated."""
    plain_run = run.plan.noise is None and run.plan.optimizer is None and run.plan.reductions is None
    if run.schedule == measured.schedule and plain_run and run.plan.gathers is None:
        return run
    return simulate(measured.schedule, run.costs, transport=run.transport)


def _difference(measured: Timeline, own: Plan, run: Timeline) -> dict[str, float]:
    sizes = [(one.schedule.devices, one.schedule.microbatches) for one in (measured, run)]
    if sizes[0] != sizes[1]:
        raise ConfigError(
            f"the measured step has (devices, microbatches) = {sizes[0]} and the simulation {sizes[1]}; simulate the "
            f"same sizes, such as with --set schedule.devices={sizes[0][0]} --set schedule.microbatches={sizes[0][1]}"
        )
    priced = _priced(measured, run)
    seconds, transfers = _usual(measured, own)
    plan = replace(own, seconds=priced.plan.seconds, transfer_seconds=priced.plan.transfer_seconds)
    if priced.plan.fused.any():
        plan = replace(plan, fused=priced.plan.fused)
    steps = {"schedule": priced.makespan, "queues": _seconds(plan)}
    for kind in (Kind.F, Kind.B, Kind.I, Kind.W):
        plan = replace(plan, seconds=np.where(own.kind == kind, seconds, plan.seconds), fused=own.fused)
        steps[kind.name] = _seconds(plan)
    plan = replace(plan, transfer_seconds=transfers)
    steps["transfers"] = _seconds(plan)
    steps["noise"] = _seconds(own)
    steps["overhead"] = measured.makespan
    before = [run.makespan, *steps.values()]
    return {cause: step - last for (cause, step), last in zip(steps.items(), before, strict=False)}


def _variants(measured: Timeline, own: Plan) -> dict[str, float]:
    medians = _usual(measured, own)
    usual, quick = np.minimum(own.seconds, medians[0]), np.minimum(own.transfer_seconds, medians[1])
    free = np.zeros_like(quick)
    plans = {
        "no overhead": own,
        "no stragglers": replace(own, seconds=usual, transfer_seconds=quick),
        "equal stages": replace(own, seconds=averaged(own, own.kind)),
        "free links": replace(own, transfer_seconds=free),
        "all of these": replace(own, seconds=averaged(replace(own, seconds=usual), own.kind), transfer_seconds=free),
    }
    whole, replayed = measured.makespan, _seconds(own)
    steps = {name: whole - (replayed - _seconds(plan)) for name, plan in plans.items()}
    return {**steps, "no overhead": replayed, "all of these": steps["all of these"] - (whole - replayed)}


def _medians(values: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Each value replaced by the median of its group."""
    _, group = np.unique(groups, return_inverse=True)
    order = np.lexsort((values, group))
    counts = np.bincount(group)
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    ranked = values[order]
    middle = (ranked[first + (counts - 1) // 2] + ranked[first + counts // 2]) / 2
    return middle[group]


def _slow(measured: Timeline, own: Plan, run: Timeline | None) -> list[Slow]:
    expected = None if run is None else _priced(measured, run).plan
    found = [
        *_slow_stages(own, None if expected is None or expected.fused.any() else expected.seconds),
        *_slow_actions(own),
        *_slow_microbatches(own),
        *_slow_links(measured, own, None if expected is None else expected.transfer_seconds),
    ]
    return sorted(found, key=lambda one: -one.excess)


def _slow_stages(own: Plan, priced: np.ndarray | None) -> list[Slow]:
    """Kinds of a stage whose median is above what the costs say, or else above the median of all stages."""
    medians = _medians(own.seconds, _groups(own))
    found = []
    for kind in np.unique(own.kind):
        mine = own.kind == kind
        stages, row = np.unique(own.schedule.stage[mine], return_index=True)
        values = medians[mine][row]
        usual = np.full(len(stages), np.median(values)) if priced is None else priced[mine][row]
        counts = np.bincount(own.schedule.stage[mine], minlength=own.schedule.num_stages)[stages]
        for stage, seconds, expected, count in zip(stages.tolist(), values, usual, counts, strict=True):
            if seconds > SLOW_STAGE * expected:
                excess = float((seconds - expected) * count)
                found.append(Slow("stage", f"{stage}{KIND_NAMES[kind]}", float(seconds), float(expected), excess))
    return found


def _slow_microbatches(own: Plan) -> list[Slow]:
    """Microbatches whose actions are longer than the medians of their kinds and stages, and the others' are not."""
    medians, which = _medians(own.seconds, _groups(own)), own.schedule.microbatch
    seconds, expected = np.bincount(which, own.seconds), np.bincount(which, medians)
    excess = seconds - expected
    apart = ROBUST * 1.4826 * np.median(np.abs(excess - np.median(excess)))
    chosen = np.flatnonzero((seconds > SLOW_MICROBATCH * expected) & (excess - np.median(excess) > apart))
    return [
        Slow(
            "microbatch", f"microbatch {number}", float(seconds[number]), float(expected[number]), float(excess[number])
        )
        for number in chosen.tolist()
    ]


def _slow_links(measured: Timeline, own: Plan, priced: np.ndarray | None) -> list[Slow]:
    """Links whose transfers, where a device waited for them, take longer than the costs say, or than other links'."""
    waited, links = _waited(measured), _links(measured)
    medians = {
        link: float(np.median(own.transfer_seconds[waited & (links == link)])) for link in np.unique(links[waited])
    }
    usual = float(np.median(list(medians.values()))) if medians else 0.0
    found = []
    for link, seconds in medians.items():
        mine = waited & (links == link)
        expected = usual if priced is None else float(np.median(priced[mine]))
        if seconds > SLOW_LINK * expected:
            sender, receiver = divmod(int(link), own.schedule.devices)
            excess = (seconds - expected) * int(mine.sum())
            found.append(Slow("link", f"{sender}-{receiver}", seconds, expected, excess))
    return found


def _slow_actions(own: Plan) -> list[Slow]:
    """Single actions far longer than the median of their kind and stage: the worst of them."""
    medians = _medians(own.seconds, _groups(own))
    excess = own.seconds - medians
    worst = np.argsort(-excess, kind="stable")[:MOST_ACTIONS_SHOWN]
    return [
        Slow("action", own.schedule.label(row), float(own.seconds[row]), float(medians[row]), float(excess[row]))
        for row in worst.tolist()
        if own.seconds[row] > SLOW_ACTION * medians[row] > 0
    ]


def _communication(measured: Timeline, own: Plan) -> dict[str, float]:
    return {
        "total": float(own.transfer_seconds.sum()),
        "exposed": float(measured.exposed_communication.sum()),
    }


def _better(measured: Timeline) -> Better | None:
    """The shortest step of all families at the measured costs, within the measured order's peak and weights."""
    schedule, costs = measured.schedule, measured.costs
    now = simulate(schedule, costs)
    limit, copies = float(now.peak_activations.max()) * (1 + 1e-9), schedule.weight_copies.max()
    best = now
    for build in _candidates(measured):
        try:
            run = simulate(build(), costs)
        except PpsimError:
            continue  # a family that does not allow these sizes
        if run.schedule.weight_copies.max() > copies:
            continue  # its weights take more memory
        if run.peak_activations.max() <= limit and run.makespan < best.makespan * (1 - 1e-9):
            best = run
    if best is now:
        return None
    stages = best.schedule.num_stages // best.schedule.devices
    return Better(
        best.schedule.name, stages, best.makespan, now.makespan, float(best.peak_activations.max()),
        float(now.peak_activations.max()),
    )  # fmt: skip


def _candidates(measured: Timeline) -> list[Callable[[], Schedule]]:
    """Builders of every synchronous family that needs no search, with its own and the measured number of stages."""
    devices, microbatches = measured.schedule.devices, measured.schedule.microbatches_of_a_step
    stages = measured.schedule.num_stages // devices
    builders: list[Callable[[], Schedule]] = []
    for family in families().values():
        if family.asynchronous or {"seconds", "costs"} & set(family.options):
            continue
        counts = {family.stages_per_device} if family.fixed_stages else {family.stages_per_device, max(stages, 2)}
        builders += [
            lambda family=family, count=count: Schedule.of(family.columns(devices, microbatches, count))
            for count in sorted(counts)
        ]
    return builders


def _notes(measured: Timeline) -> list[str]:
    costs = measured.costs
    halved = isinstance(costs, Profile) and "B" in costs.seconds and not {"I", "W"} <= costs.seconds.keys()
    return [HALVES] if halved else []
