"""The schedule that would do better than a measured one: of those that its framework runs, in no more memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from ppsim.analysis.interval import step_interval, surely_faster
from ppsim.base.errors import BuildError, PpsimError
from ppsim.base.short_repr import short_repr
from ppsim.costs import CostModel
from ppsim.costs.profile import Profile
from ppsim.run.schedules import Schedule
from ppsim.run.simulation import simulate
from ppsim.run.timelines import Timeline
from ppsim.search import families
from ppsim.studies.calibration import whole_parts
from ppsim.studies.frameworks import RUNS, runnable
from ppsim.studies.measured_plan import start_overhead


@dataclass(frozen=True)
class Better:
    """A schedule that would be faster at no larger activation peak and with no more weights, at the measured costs.

    Attributes
    ----------
    schedule : str
    stages_per_device : int
    step, step_now : float
        Seconds of this schedule and of the measured order, both simulated at the measured costs.
    interval : (low, high) or None
        Seconds between which a real step of this schedule lies at 90 %; None where the costs state none.
    certain : bool
        Whether the intervals of both do not meet.
    peak, peak_now : float
        Largest activation peaks, in microbatches through one device share.
    """

    schedule: str
    stages_per_device: int
    step: float
    step_now: float
    interval: tuple[float, float] | None
    certain: bool
    peak: float
    peak_now: float

    __repr__ = short_repr


def assumed(framework: str) -> str:
    """What a better schedule is looked for among, and at what costs."""
    who = framework or f"{', '.join(RUNS)} (the measured run does not say which ran it)"
    names = ", ".join(runnable(framework or None))
    return (
        f"a better schedule is one of {names}, which {who} can run; at the measured medians: a stage's seconds and "
        f"activations split evenly over its chunks, but for what the last stage takes above the others (the head), and "
        f"every action, however short, pays the measured overhead"
    )


def better_schedule(measured: Timeline, framework: str, profile: Profile | None = None) -> Better | None:
    """The shortest step of the families of `framework` at the measured costs, within the measured peak and weights.

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
            continue  # the measured costs have no price for it
        if run.schedule.weight_copies.max() > copies:
            continue  # its weights take more memory
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
    """Costs of a measured step, with what shorter actions do not take less of: the overhead of each, and the head."""
    costs = measured.costs
    if not isinstance(costs, Profile) or costs.fitted:
        return costs
    once = {kind: whole_parts(seconds) for kind, seconds in costs.seconds.items()}
    return replace(costs, overhead=start_overhead(measured), once=once)


def _candidates(measured: Timeline, framework: str) -> Iterator[Schedule]:
    """The schedules of each family that allows these sizes, with its own and the measured number of stages."""
    devices, microbatches = measured.schedule.devices, measured.schedule.microbatches_of_a_step
    stages = measured.schedule.num_stages // devices
    for name in runnable(framework or None):
        family = families()[name]
        counts = {family.stages_per_device} if family.fixed_stages else {family.stages_per_device, max(stages, 2)}
        for count in sorted(counts):
            try:
                yield Schedule.of(family.columns(devices, microbatches, count))
            except BuildError:
                continue
