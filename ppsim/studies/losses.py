"""Stragglers and failures: what every schedule loses by a slow device, or by one whose peers take over its work.

Rerouting: in one of several data-parallel copies of the pipeline a device fails; its actions go to the devices of the
same rank in the other copies, microbatch by microbatch in turn, which fill their bubbles with them (arXiv 2405.14009).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ppsim.analysis.bubbles import iteration_time
from ppsim.analysis.memory import peak_activations
from ppsim.base.errors import ConfigError, PpsimError
from ppsim.config import Config
from ppsim.costs.pairs import between_devices
from ppsim.costs.table import CostModel, CostTable
from ppsim.plan.jitter import Jitter
from ppsim.run.schedules import Schedule
from ppsim.run.simulation import simulate
from ppsim.run.timelines import Timeline
from ppsim.schedule.columns import ScheduleColumns
from ppsim.search import families
from ppsim.studies.compare import Comparison, asynchronous, compare


@dataclass(frozen=True)
class Loss:
    """Loss of a schedule; steps in seconds, peaks in activations of one device share.

    `part` is after / before - 1. Asynchronous schedules pay for their steps with old weights and no drain.
    """

    schedule: str
    asynchronous: bool
    before: float
    after: float
    part: float
    peak_before: float
    peak_after: float


@dataclass(frozen=True)
class Losses:
    """Losses of schedules, the shortest step afterwards first, asynchronous ones last; and why others cannot run."""

    rows: list[Loss]
    refused: Mapping[str, str]


def slowed(case: Config, slow: Mapping[int, float], which: Iterable[str] | None = None) -> Losses:
    """Compare every schedule instead of the case's own, before and after some devices become slower by a factor.

    `slow` maps devices to factors above 0; `which` names families (default: all). Raises ConfigError for other devices.
    """
    which = [*(which or families())]  # all, those that search too
    before = compare(case, which)
    for device in slow:
        _require_device(device, max((run.schedule.devices for run in before.timelines), default=device + 1))
    factors = {**(case.jitter.slow_devices if case.jitter else {}), **slow}
    return _losses(before, compare(case.changed({"jitter.slow_devices": factors}), which))


def failed(case: Config, device: int, copies: int, which: Iterable[str] | None = None) -> Losses:
    """Compare every schedule instead of the case's own, before and after a device of one of `copies` pipelines fails.

    Under `async`; before and after, no transfers share network cards. The jitter of a device or link is that of the
    same one in every copy. The peers take each list, with what they took over in it, as a priority (dispatch "ready").
    Raises ConfigError where there is no such device, no peer, or no peer with whole weights.
    """
    if copies < 2:
        raise ConfigError(f"copies={copies}: a failed device needs a peer in another copy; use at least 2")
    if case.sharded:
        raise ConfigError(
            "weights are sharded over the copies, so that no peer has those of a failed device; "
            "use layout.sharded=false"
        )
    before = compare(case, [*(which or families())])
    _require_device(device, max((run.schedule.devices for run in before.timelines), default=device + 1))
    healthy = [_with_own_cards(run, case) for run in before.timelines]
    runs, refused = [], dict(before.refused)
    for run in healthy:
        try:
            runs.append(rerouted(run, device, copies, case))
        except PpsimError as error:
            refused[run.schedule.name] = str(error)
    return _losses(Comparison(healthy, before.refused), Comparison(runs, refused))


def _with_own_cards(run: Timeline, case: Config) -> Timeline:
    """Simulate the run again without queues at shared network cards."""
    if run.plan.ports is None:
        return run
    schedule = run.schedule
    costs = _CopiedCosts(run.costs, schedule, np.arange(schedule.devices), 1)
    how = {"transport": case.transport, "engine": case.engine, "optimizer": case.optimizer}
    return simulate(Schedule.of(schedule), costs, jitter=case.jitter, seed=case.seed, **how)


def _losses(before: Comparison, after: Comparison) -> Losses:
    healthy = {run.schedule.name: run for run in before.timelines}
    rows = []
    for run in after.timelines:
        old = healthy[run.schedule.name]
        steps = iteration_time(old), iteration_time(run)
        peaks = (float(peak_activations(one).max()) for one in (old, run))
        rows.append(Loss(run.schedule.name, asynchronous(old), *steps, steps[1] / (steps[0] or 1.0) - 1.0, *peaks))
    return Losses(sorted(rows, key=lambda row: (row.asynchronous, row.after, row.schedule)), after.refused)


def rerouted(run: Timeline, device: int, copies: int, case: Config) -> Timeline:
    """Simulate the step of all copies after `device` of the last one failed; `run` is a healthy step of one copy.

    Devices are numbered copy by copy, the failed one left out, and so are microbatches.
    """
    schedule = run.schedule.compute
    _require_device(device, schedule.devices)
    lists, owner = _merged(schedule, device, copies)
    costs = _CopiedCosts(run.costs, schedule, owner, copies)
    how = {"transport": case.transport, "engine": case.engine, "optimizer": case.optimizer}
    jitter = None if case.jitter is None else _of_copies(case.jitter, owner)
    return simulate(Schedule.of(lists), costs, dispatch="ready", jitter=jitter, seed=case.seed, **how)


def _require_device(device: int, devices: int) -> None:
    if not 0 <= device < devices:
        raise ConfigError(f"device {device} does not exist; the devices are 0 to {devices - 1}")


def _of_copies(jitter: Jitter, owner: np.ndarray) -> Jitter:
    """Return the jitter of one copy for the devices of all; `owner` gives each device's number in its copy."""
    devices = {own: np.flatnonzero(owner == own).tolist() for own in np.unique(owner).tolist()}
    return replace(
        jitter,
        slow_devices={one: factor for own, factor in jitter.slow_devices.items() for one in devices[own]},
        slow_links={
            (one, other): factor
            for (first, second), factor in jitter.slow_links.items()
            for one in devices[first]
            for other in devices[second]
        },
    )


def _merged(schedule: ScheduleColumns, failed: int, copies: int) -> tuple[ScheduleColumns, np.ndarray]:
    """Return the lists of all copies, rerouted actions at their own positions, and each device's number in its copy.

    Each list is in the order of one copy's, of what stands at one place copy by copy: a circle of waits would be one in
    the lists of one copy, so the lists cannot deadlock.
    """
    rows, devices = len(schedule.kind), schedule.devices
    copy = np.repeat(np.arange(copies), rows)
    own = np.tile(schedule.device, copies).astype(np.int64)
    taken = (copy == copies - 1) & (own == failed)
    peer = np.tile(schedule.microbatch // schedule.slices % (copies - 1), copies)
    device = np.where(taken, peer, copy) * devices + own
    device -= device > (copies - 1) * devices + failed
    order = np.lexsort((copy, np.tile(np.arange(rows), copies), device))
    microbatch = np.tile(schedule.microbatch, copies) + copy * schedule.microbatches
    counts = np.bincount(device, minlength=devices * copies - 1)
    traits = {**schedule.traits, "weight_versions": None}
    lists = ScheduleColumns(
        np.tile(schedule.kind, copies)[order],
        np.tile(schedule.stage, copies)[order],
        microbatch[order].astype(np.int32),
        np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
        joined=(np.tile(schedule.joined, copies) & ~taken)[order],
        **traits,
    )
    return lists, np.delete(np.arange(devices * copies) % devices, (copies - 1) * devices + failed)


@dataclass(frozen=True)
class _CopiedCosts:
    """The costs of one copy for the lists of all; links between copies are as those inside one."""

    costs: CostModel
    schedule: ScheduleColumns
    owner: np.ndarray
    copies: int

    def table(self, schedule: ScheduleColumns) -> CostTable:
        table = self.costs.table(self.schedule)
        scale = table.microbatch_scale
        return replace(
            table,
            latency=between_devices(table.latency, self.owner),
            seconds_per_byte=between_devices(table.seconds_per_byte, self.owner),
            link_ports=None,
            port_capacity=None,
            microbatch_scale=None if scale is None else np.tile(scale, self.copies),
        )
