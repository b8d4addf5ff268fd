"""Explanation of a measured step: its differences from a simulation, slow parts, and a faster schedule."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ppsim.actions import Kind
from ppsim.analysis.interval import step_interval, surely_faster
from ppsim.analysis.ledger import averaged
from ppsim.base.errors import BuildError, ConfigError, PpsimError
from ppsim.base.immutable import short_repr
from ppsim.base.rules import argument, checked_call, declared, described, instance
from ppsim.base.tables import page_table
from ppsim.base.units import percent_text, seconds_text
from ppsim.costs import CostModel
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.profile import Profile
from ppsim.frameworks import SCHEDULES
from ppsim.interop.result import plain
from ppsim.interop.traces import Trace
from ppsim.plan.resolve import Plan
from ppsim.plots.boxes import sizes_text
from ppsim.run.schedules import Schedule
from ppsim.run.simulation import simulate
from ppsim.run.timelines import Timeline
from ppsim.schedule.columns import ScheduleColumns
from ppsim.search import families
from ppsim.studies.calibration import undivided_seconds
from ppsim.studies.free_keys import schedules_run_by
from ppsim.studies.slow_parts import (
    MeasuredStep,
    Slow,
    in_measured_order,
    replayed_plan,
    slow_parts,
    stalls,
    start_overhead,
    step_of,
    usual_seconds,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCHEMA = "ppsim.explain/1"

DIFFERENCE = {
    "schedule": "the simulated run has another schedule than the measured one, or also optimizer steps and noise",
    "queues": "the simulated transport queues transfers; measured transfers contain these waits",
    **{kind: f"{kind} takes longer or shorter than the costs give, by stage" for kind in ("F", "B", "I", "W")},
    "transfers": "transfers take longer or shorter than the costs give, by link",
    "noise": "single actions and transfers take more or less than the median of their stage or link",
    "overhead": "devices start actions later than their inputs arrive: launches, the host, the clocks",
}
VARIANTS = {
    "no overhead": "every action starts when all it needs is there",
    "no stragglers": "no action takes longer than the median of its kind and stage, no transfer than its link's",
    "equal stages": "every action takes the mean of its kind over all stages",
    "free links": "transfers take no time",
    "all of these": "",
}
REPLAYED_WELL = 0.05  # fraction of the measured step by which the replayed one may differ
ROUGH = (
    "the replayed step is more than 5 % off the measured one, so that the gains are rough: actions waited for "
    "something that the trace does not show, such as the host, other work on the machine or a missing rank"
)
OUTSIDE = "the measured step"  # first words of the note on a step outside the simulated interval
COMMUNICATION = {
    "total": "device-seconds that transfers between devices take in the step, hidden or not",
    "exposed": "device-seconds in which a device only waits for a transfer",
}


@described
@dataclass(frozen=True)
class Explanation:
    """Explanation of a measured step, in seconds; the result of `ppsim.explain`."""

    measured: Timeline = declared("the measured step")
    simulated: Timeline | None = declared("its simulation, if there is one")
    difference: dict[str, float] = declared(
        "seconds by cause (`DIFFERENCE` defines each); they sum to measured minus simulated step. Empty without a "
        "simulation."
    )
    replayed: float = declared(
        "simulated step if every action and transfer takes its measured time and every start the usual overhead. Its "
        "distance from the measured step shows how well a simulation of these times reproduces the step."
    )
    variants: dict[str, float] = declared("seconds of each hypothetical step by name; `VARIANTS` defines each")
    slow: list[Slow] = declared("stages, microbatches, links, actions and waits that are slow, largest excess first")
    communication: dict[str, float] = declared(
        'device-seconds of transfers ("total"), and device-seconds in which a device waits for one ("exposed"); '
        "`COMMUNICATION` defines both"
    )
    better: Better | None = declared(
        "a faster schedule; None if no schedule that the framework runs is faster within the same peak"
    )
    notes: list[str] = declared("assumptions, and limits of the measurement", factory=list)
    recognized: Recognized | None = declared(
        "the family whose order is the nearest to the measured one; None if none has the same actions per device",
        default=None,
    )
    steps: Steps | None = declared("all recorded steps of the run; None for a timeline without its trace", default=None)
    pipelines: list[Pipeline] = declared("the other recorded pipelines of the same job", factory=list)
    stalls: list[Slow] = declared(
        "the longest waits of devices within the step, beyond those of a step with the usual seconds of all parts",
        factory=list,
    )

    @property
    def drawn(self) -> dict[str, Timeline]:
        """The measured step and its simulation by title; without one, the step at the medians of its own times."""
        name = "simulated" if self.simulated else "simulated at its median times"
        other = self.simulated or simulate(self.measured.schedule, self.measured.costs)
        return {"measured": self.measured, name: other}

    @property
    def heading(self) -> str:
        """The family and sizes of the measured step; without an equal family, the name of the recording."""
        sizes, found = sizes_text(self.measured.schedule), self.recognized
        return sizes if found is None or found.moved else f"{found.family}, {sizes.partition(', ')[2]}"

    @property
    def step(self) -> MeasuredStep:
        """The measured step with what is marked in it."""
        return MeasuredStep(self.measured, self.slow, self.stalls)

    @checked_call(hint="plot().savefig(path) writes a file")
    def plot(
        self, *, width: float | None = None, title: str | None = None, memory: bool | str = False,
        transfers: bool = False, critical_path: bool = False, theme: str | None = None,
    ) -> Figure:  # fmt: skip
        """Draw the measured step above its simulation as a matplotlib figure, with the options of `Timeline.plot`.

        The numbers of the slowest devices are bold.
        """
        from ppsim.plots.gantt import draw

        error = percent_text(self.replayed / (self.measured.makespan or 1.0) - 1, signed=True).replace("-", "−")
        drawn = self.drawn
        notes = [f"replayed from its own times {error}", *({*drawn} - {"measured", "simulated"})]
        return draw(
            [*drawn.values()], titles=["measured", "simulated"], width=width, memory=memory, transfers=transfers,
            title=self.heading if title is None else title, note=" · ".join(notes),
            critical_path=critical_path, theme=theme, lead=self.step.in_words, slow=self.step.marks.devices,
        )  # fmt: skip

    def _repr_html_(self) -> str:
        whole = self.measured.makespan
        causes = [
            {"why longer than simulated": cause, "by": seconds, "that is": DIFFERENCE.get(cause, "")}
            for cause, seconds in {**self.difference, "all": sum(self.difference.values())}.items()
            if abs(seconds) > 1e-5 * whole
        ]
        cases = [{"if": "as measured", "step": whole, "vs measured": "base", "that is": ""}] + [
            {"if": name, "step": seconds, "vs measured": seconds / whole - 1, "that is": VARIANTS[name]}
            for name, seconds in self.variants.items()
        ]
        units = {"by": "seconds", "step": "seconds", "vs measured": "change"}
        return "".join(page_table(rows, units) for rows in (causes, cases) if rows)

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as plain Python values (schema ppsim.explain/1)."""
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
                "stalls": [{**vars(one), "ratio": one.ratio} for one in self.stalls],
                "communication": self.communication,
                "better": self.better and vars(self.better),
                "recognized": self.recognized and vars(self.recognized),
                "steps": self.steps and vars(self.steps),
                "pipelines": [vars(one) for one in self.pipelines],
                "definitions": {
                    **DIFFERENCE,
                    **{name: text for name, text in VARIANTS.items() if text},
                    **{f"communication {name}": text for name, text in COMMUNICATION.items()},
                },
                "notes": self.notes,
            }
        )


@checked_call()
def explain(
    measured: Timeline, run: Timeline | None = None, *, framework: str | None = None, profile: Profile | None = None,
    trace: Trace | None = None,
) -> Explanation:  # fmt: skip
    """Explain the time of a measured step, and its difference from a simulation.

    Parameters
    ----------
    measured : Timeline
        The result of `ppsim.Timeline.from_trace(path)`, for example.
    run : Timeline, optional
        The simulation of the same step, with equal numbers of devices and microbatches.
    framework : {"Megatron-LM", "Primus", "PyTorch"}, optional
        Search a better schedule among those that it runs; default: the framework of the trace.
    profile : Profile, optional
        The costs for the better schedule, such as `calibrate` returns; default: the costs of the measured step.
    trace : Trace, optional
        All steps and pipelines that were recorded with the measured step.

    Raises
    ------
    ConfigError
        `measured` or `run` is not a timeline, their sizes differ, or the framework is unknown.
    CostError
        The costs of `run` do not fit the measured order.

    Notes
    -----
    The difference is split by cause in steps from the simulation to the measured step. Each step replaces one property
    by its measured value and simulates again; the change of the step time is the seconds of that cause. The seconds
    depend on the order if causes interact, so the order is fixed: that of `DIFFERENCE`.
    """
    is_timeline = instance(Timeline, "ppsim.Timeline.from_trace(path) and ppsim.simulate(...) return one")
    argument("measured", measured, is_timeline)
    if run is not None:
        argument("run", run, is_timeline)
    framework = measured.framework if framework is None else framework
    better = better_schedule(measured, framework, profile)
    replay, overhead = replayed_plan(measured), start_overhead(measured)
    replayed = step_of(replace(replay, row_lengths=replay.seconds + overhead)) - overhead
    other_pipelines = [
        Pipeline(one.document.get("ranks", []), float(np.median(one.step_seconds)),
                 Timeline.of(one.timeline()).bubble_fraction)
        for one in (trace.others if trace else ())
    ]  # fmt: skip
    return Explanation(
        measured, run, {} if run is None else _difference(measured, replay, run), replayed, _variants(measured, replay),
        slow_parts(measured, replay, run),
        {"total": float(replay.transfer_seconds.sum()), "exposed": float(measured.exposed_communication.sum())},
        better, [*_notes(measured, run, profile, replayed), assumed(framework)], recognized_family(measured.schedule),
        None if trace is None else _steps(trace), other_pipelines, stalls(measured, replay),
    )  # fmt: skip


@dataclass(frozen=True)
class Recognized:
    """The family whose order is the nearest to a measured one."""

    family: str
    stages_per_device: int
    # moved, actions: actions that must move to give the family's order, and all actions
    moved: int
    actions: int

    __repr__ = short_repr


def recognized_family(schedule: ScheduleColumns) -> Recognized | None:
    """Return the nearest family with the same actions per device, except those that search; the first of equal ones."""
    devices, microbatches = schedule.devices, schedule.microbatches_of_a_step
    stages = max(1, schedule.num_stages // devices)
    best: Recognized | None = None
    for name, family in families().items():
        if family.searches:
            continue
        try:
            columns = family.columns(devices, microbatches, family.stages_per_device if family.fixed_stages else stages)
        except BuildError:
            continue
        moved = _moved_actions(schedule, columns)
        if moved is not None and (best is None or moved < best.moved):
            best = Recognized(name, stages, moved, len(schedule.kind))
        if moved == 0:
            break
    return best


def _moved_actions(schedule: ScheduleColumns, other: ScheduleColumns) -> int | None:
    """Return the minimum number of actions to move for the order of `other`; None if a device has other actions."""
    if len(schedule.kind) != len(other.kind) or not np.array_equal(schedule.offsets, other.offsets):
        return None
    columns = [np.stack([one.device, one.kind, one.stage, one.microbatch]) for one in (schedule, other)]
    sorting = [np.lexsort(one[::-1]) for one in columns]
    if (columns[0][:, sorting[0]] != columns[1][:, sorting[1]]).any():
        return None
    position = np.empty(len(schedule.kind), np.int64)
    position[sorting[0]] = sorting[1]
    unmoved = 0
    for first, last in pairwise(schedule.offsets.tolist()):
        increasing: list[int] = []  # the smallest last position of an increasing run of each length
        for place in position[first:last].tolist():
            index = bisect_left(increasing, place)
            increasing[index : index + 1] = [place]
        unmoved += len(increasing)
    return len(schedule.kind) - unmoved


@dataclass(frozen=True)
class Steps:
    """All recorded steps of a run, in seconds."""

    count: int
    # median, shortest, longest: seconds; the median of an even number of steps is the mean of the middle two
    median: float
    shortest: float
    longest: float
    # median seconds from the last action of a step to the first of the next one: the optimizer, data, reductions that
    # are not hidden, and whatever else runs there; None if the recording does not show it
    between: float | None

    __repr__ = short_repr


def _steps(trace: Trace) -> Steps:
    seconds, between = trace.step_seconds, trace.between_steps
    return Steps(
        len(seconds), float(np.median(seconds)), float(seconds.min()), float(seconds.max()),
        float(np.median(between)) if between else None,
    )  # fmt: skip


@dataclass(frozen=True)
class Pipeline:
    """Another recorded pipeline of the same job: its ranks, its median step in seconds, and that step's bubble."""

    ranks: list[int]
    step: float
    bubble_fraction: float

    __repr__ = short_repr


def _headline(run: Timeline) -> dict[str, Any]:
    return {
        "step": run.makespan,
        "bubble_fraction": run.bubble_fraction,
        "busy": float(run.device_busy.sum()),
        "idle": run.ledger().by_cause,
    }


def _difference(measured: Timeline, replay: Plan, run: Timeline) -> dict[str, float]:
    sizes = [(one.schedule.devices, one.schedule.microbatches) for one in (measured, run)]
    if sizes[0] != sizes[1]:
        raise ConfigError(
            f"the measured step has (devices, microbatches) = {sizes[0]} and the simulation {sizes[1]}; simulate the "
            f"same sizes, such as with --set schedule.devices={sizes[0][0]} --set schedule.microbatches={sizes[0][1]}"
        )
    reordered = in_measured_order(measured, run)
    seconds, transfers = usual_seconds(measured, replay)
    plan = replace(replay, row_lengths=reordered.plan.seconds, transfer_lengths=reordered.plan.transfer_seconds)
    if reordered.plan.fused.any():
        plan = replace(plan, fused=reordered.plan.fused)
    steps = {"schedule": reordered.makespan, "queues": step_of(plan)}
    for kind in (Kind.F, Kind.B, Kind.I, Kind.W):
        plan = replace(plan, row_lengths=np.where(replay.kind == kind, seconds, plan.seconds), fused=replay.fused)
        steps[kind.name] = step_of(plan)
    plan = replace(plan, transfer_lengths=transfers)
    steps["transfers"] = step_of(plan)
    steps["noise"] = step_of(replay)
    steps["overhead"] = measured.makespan
    before = [run.makespan, *steps.values()]
    return {cause: step - last for (cause, step), last in zip(steps.items(), before, strict=False)}


def _variants(measured: Timeline, replay: Plan) -> dict[str, float]:
    medians = usual_seconds(measured, replay)
    seconds, transfers = np.minimum(replay.seconds, medians[0]), np.minimum(replay.transfer_seconds, medians[1])
    no_transfers = np.zeros_like(transfers)
    plans = {
        "no overhead": replay,
        "no stragglers": replace(replay, row_lengths=seconds, transfer_lengths=transfers),
        "equal stages": replace(replay, row_lengths=averaged(replay, replay.kind)),
        "free links": replace(replay, transfer_lengths=no_transfers),
        "all of these": replace(
            replay,
            row_lengths=averaged(replace(replay, row_lengths=seconds), replay.kind),
            transfer_lengths=no_transfers,
        ),
    }
    whole, replayed = measured.makespan, step_of(replay)
    steps = {name: whole - (replayed - step_of(plan)) for name, plan in plans.items()}
    return {**steps, "no overhead": replayed, "all of these": steps["all of these"] - (whole - replayed)}


def _notes(measured: Timeline, run: Timeline | None, profile: Profile | None, replayed: float) -> list[str]:
    """Return notes on limits of the comparison: a poor replay, a step outside the interval, and inferred kinds."""
    rough = abs(replayed - measured.makespan) > REPLAYED_WELL * measured.makespan
    costs = profile or measured.costs
    priced = costs.assumptions() if isinstance(costs, Profile) else []
    if run is not None and isinstance(run.costs, Profile):
        priced += run.costs.assumptions(run.schedule)
    return [*([ROUGH] if rough else []), *_outside(measured, run), *dict.fromkeys(priced)]


def _outside(measured: Timeline, run: Timeline | None) -> list[str]:
    """Return the advice to calibrate if the measured step lies outside the interval of a derived simulation."""
    bounds = run.interval if run is not None and isinstance(run.costs, DerivedCosts) else None
    if bounds is None or bounds[0] <= measured.makespan <= bounds[1]:
        return []
    low, high = (seconds_text(one, 3) for one in bounds)
    return [
        f"{OUTSIDE} of {seconds_text(measured.makespan)} lies outside {low} to {high}, the 90 % interval of "
        "the simulated one. List this run and others with their measured seconds in RUNS.yaml, run `ppsim calibrate "
        "--steps RUNS.yaml -o calibration.yaml`, and set calibration: calibration.yaml in the config"
    ]


@dataclass(frozen=True)
class Better:
    """A schedule that would be faster at no larger activation peak and with no more weights, at the measured costs."""

    schedule: str
    stages_per_device: int
    # step, step_now: seconds of this schedule and of the measured order, both simulated at the measured costs
    step: float
    step_now: float
    # the 90 % interval of a real step of this schedule, in seconds; None if the costs give no interval
    interval: tuple[float, float] | None
    certain: bool  # True if this schedule is faster at 90 %
    # peak, peak_now: largest activation peaks, in microbatches through one device share
    peak: float
    peak_now: float

    __repr__ = short_repr


def assumed(framework: str) -> str:
    """Return the sentence about the assumptions behind a better schedule: which schedules are tried, at which costs."""
    runner = framework or f"{', '.join(SCHEDULES)} (the measured run does not say which ran it)"
    names = ", ".join(schedules_run_by(framework or None))
    return (
        f"a better schedule is one that {runner} can run: {names}. Its costs are the measured medians. A stage's "
        "seconds and activations are split evenly over its chunks; the last chunk also has the head. Every action pays "
        "the measured overhead"
    )


def better_schedule(measured: Timeline, framework: str, profile: Profile | None = None) -> Better | None:
    """Return the fastest schedule of a framework at the measured costs, within the measured peak and weights.

    The costs are those of `profile`, or else of the measured step.
    """
    schedule, costs = measured.schedule, profile or _costs(measured)
    now = simulate(schedule, costs)
    limit, copies = float(now.peak_activations.max()) * (1 + 1e-9), schedule.weight_copies.max()
    best = now
    for candidate in _candidates(measured, framework):
        try:
            run = simulate(candidate, costs)
        except PpsimError:
            continue  # the measured costs do not fit it
        if run.schedule.weight_copies.max() > copies:
            continue  # more copies of the weights take more memory
        if run.peak_activations.max() <= limit and run.makespan < best.makespan * (1 - 1e-9):
            best = run
    if best is now:
        return None
    stages = best.schedule.num_stages // best.schedule.devices
    return Better(
        best.schedule.name, stages, best.makespan, now.makespan, step_interval(best), surely_faster(best, now),
        float(best.peak_activations.max()), float(now.peak_activations.max()),
    )  # fmt: skip


def _costs(measured: Timeline) -> CostModel:
    """Return the costs of a measured step, with those that partitions do not divide: overhead, embedding, head."""
    costs = measured.costs
    if not isinstance(costs, Profile) or costs.fitted:
        return costs
    once = {kind: undivided_seconds(seconds) for kind, seconds in costs.seconds.items()}
    return replace(costs, overhead=start_overhead(measured), once=once)


def _candidates(measured: Timeline, framework: str) -> Iterator[Schedule]:
    """Yield schedules of each family that allows the sizes, with its default and with the measured number of stages."""
    devices, microbatches = measured.schedule.devices, measured.schedule.microbatches_of_a_step
    stages = measured.schedule.num_stages // devices
    for name in schedules_run_by(framework or None):
        family = families()[name]
        counts = {family.stages_per_device} if family.fixed_stages else {family.stages_per_device, max(stages, 2)}
        for count in sorted(counts):
            try:
                yield Schedule.of(family.columns(devices, microbatches, count))
            except BuildError:
                continue
