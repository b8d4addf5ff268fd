"""Studies of changes: a run before and after a change, break-even points of two schedules, slow and failed devices.

Rerouting: a device fails in one of several data-parallel copies of the pipeline. Its peers, the devices with the same
number in the other copies, run its actions in their bubbles. Microbatches go to the peers in turn (arXiv 2405.14009).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ppsim.analysis.bubbles import iteration_time
from ppsim.analysis.measures import shown_in
from ppsim.analysis.memory import fit_of
from ppsim.base.errors import BuildError, ConfigError, PpsimError
from ppsim.config import Config
from ppsim.costs.pairs import between_devices
from ppsim.costs.table import TableCosts
from ppsim.plan.jitter import Jitter
from ppsim.run.schedules import Schedule
from ppsim.run.simulation import simulate
from ppsim.run.timelines import Timeline
from ppsim.schedule.columns import ScheduleColumns
from ppsim.search import families
from ppsim.studies.compare import Comparison, asynchronous, compare
from ppsim.studies.points import NOISE, change_between, peak_of

Numbers = dict[str, tuple[float | None, str]]  # name -> (value, unit)

SCAN_POINTS = 48
MAX_STEPS = 100
BUSY = "busy"
IDLE = "idle: "  # prefix of the names of the ledger's rows
IDLE_UNIT = "device-seconds"
_EQUAL_STEPS = 1e-12  # of the step time: schedules that differ by at most this are equally fast


def known_change(before: float | None, after: float | None) -> float | None:
    """Return after - before; 0 if only rounding differs, None if either is not known."""
    return None if before is None or after is None else change_between(before, after)


def run_numbers(run: Timeline, *others: Timeline) -> Numbers:
    """Return the headline numbers of a run, its busy seconds and its idle seconds by cause: name -> (value, unit).

    A headline number is included if it is shown for the run, or for one of the `others` that it is compared with.
    """
    numbers: Numbers = {
        measure.name: (measure.number(run), measure.unit)
        for measure in shown_in("what-if")
        if any(map(measure.is_shown_for, (run, *others)))
    }
    numbers[BUSY] = (float(run.device_busy.sum()), IDLE_UNIT)
    noise = NOISE * run.makespan * run.schedule.devices
    for cause, seconds in run.ledger().by_cause.items():
        numbers[f"{IDLE}{cause}"] = (seconds if seconds > noise else 0.0, IDLE_UNIT)
    return numbers


def changes(before: Timeline, after: Timeline) -> list[dict[str, Any]]:
    """Return every headline number and every cause of idle time: name, unit, before, after and difference."""
    old, new = run_numbers(before, after), run_numbers(after, before)
    return [
        {"name": name, "unit": unit, "before": value, "after": new[name][0]}
        | {"difference": known_change(value, new[name][0])}
        for name, (value, unit) in old.items()
    ]


@dataclass(frozen=True)
class BreakEven:
    """Break-even point of two schedules."""

    # the smallest value of the cost at which the order changes; None if one schedule is never slower in the range
    value: float | None
    # the schedule that is faster (or equally fast) below the value and above it; equal if `value` is None
    faster_below: str
    faster_above: str
    # low, high: the range that was searched
    low: float
    high: float


def break_even(
    first: str, second: str, step_time: Callable[[str, float], float], low: float, high: float, whole: bool = False
) -> BreakEven:
    """Search the smallest value in [low, high] at which the order of two step times changes.

    `step_time(name, value)` returns seconds. The range is scanned at `SCAN_POINTS` values, denser at the low end. The
    first change is then narrowed down to rounding; two changes between neighbouring values are missed. For `whole`
    numbers, such as microbatches, the value is the first number after the change.

    Raises
    ------
    ConfigError
        The range is empty, or the two schedules are the same.
    """
    if first == second:
        raise ConfigError(f"{first} is always as fast as itself; name two schedules")
    if not (math.isfinite(low) and math.isfinite(high) and 0 <= low < high):
        raise ConfigError(f"the range {low:g} to {high:g} is empty; give two numbers >= 0, the lower one first")

    def gain(value: float) -> float:
        """Return the seconds by which the first schedule is shorter."""
        try:
            return step_time(second, value) - step_time(first, value)
        except BuildError:
            if not whole:
                raise
            return 0.0  # one of the families does not allow this number

    def faster(gained: float) -> str:
        return first if gained >= 0 else second

    tolerance = _EQUAL_STEPS * max(step_time(first, low), 1e-300)
    points = [low + (high - low) * (index / SCAN_POINTS) ** 3 for index in range(SCAN_POINTS + 1)]
    if whole:
        points = sorted({*map(round, points)})
    last, last_gain = low, 0.0
    for point in points:
        here = gain(point)
        if abs(here) <= tolerance:
            continue  # equally fast here; a later point shows whether the order changes
        if here * last_gain < 0:
            if whole:
                value = next(one for one in range(int(last) + 1, int(point) + 1) if gain(one) * last_gain < 0)
            else:
                value = _zero_between(gain, (last, last_gain), (point, here), tolerance)
            return BreakEven(value, faster(last_gain), faster(here), low, high)
        last, last_gain = point, here
    return BreakEven(None, faster(last_gain), faster(last_gain), low, high)


def _zero_between(
    gain: Callable[[float], float], low: tuple[float, float], high: tuple[float, float], tolerance: float
) -> float:
    """Return the value at which `gain` is zero, between two pairs (value, gain) of different sign.

    Step times are piecewise linear in most costs, so the secant soon finds the value. Every other step halves the range
    instead, in case the secant does not.
    """
    for step in range(MAX_STEPS):
        (left, at_left), (right, at_right) = low, high
        middle = (left + right) / 2 if step % 2 else left + (right - left) * (at_left / (at_left - at_right))
        if not left < middle < right:
            return middle
        here = gain(middle)
        if abs(here) <= tolerance:
            return middle
        if (here > 0) == (at_left > 0):
            low = (middle, here)
        else:
            high = (middle, here)
    return (low[0] + high[0]) / 2


@dataclass(frozen=True)
class Loss:
    """Loss of a schedule; steps in seconds, peaks in bytes of the fullest device, or in activations if unknown.

    `part` is after / before - 1, of the steps. `asynchronous` steps train on old weights and without a drain. `fit` is
    "fits", "tight" or "over" afterwards, "" if the device's memory is not known.
    """

    schedule: str
    asynchronous: bool
    before: float
    after: float
    part: float
    peak_before: float
    peak_after: float
    fit: str


@dataclass(frozen=True)
class Losses:
    """Losses of schedules, shortest step after the change first; then those over the memory, and asynchronous ones.

    `refused` says why others cannot run.
    """

    rows: list[Loss]
    refused: Mapping[str, str]


def slow_device_losses(config: Config, slow: Mapping[int, float], names: Iterable[str] | None = None) -> Losses:
    """Compare schedules at the sizes and costs of `config`, before and after some devices become slower by a factor.

    `slow` maps devices to factors above 0; `names` lists families (default: all, also those that search). Raises
    ConfigError for a device that does not exist.
    """
    names = [*(names or ())]
    before = _compared(config, names)
    for device in slow:
        _require_device(device, max((run.schedule.devices for run in before.timelines), default=device + 1))
    factors = {**(config.jitter.slow_devices if config.jitter else {}), **slow}
    return _losses(before, _compared(config.changed({"jitter.slow_devices": factors}), names))


def _compared(config: Config, names: list[str]) -> Comparison:
    """Return the runs of these schedules, or of all families and of the config's own lists."""
    found = compare(config, names or families())
    if names or "csv" not in config.schedule or found.current is None:
        return found
    others = (run for run in found.timelines if run.schedule.name != found.current.schedule.name)
    return replace(found, timelines=[found.current, *others])


def failed_device_losses(config: Config, device: int, copies: int, names: Iterable[str] | None = None) -> Losses:
    """Compare schedules with the config's sizes and costs before and after a device of one of `copies` pipelines fails.

    Under `async`; before and after, no transfers share network cards. A device or link has the same jitter in every
    copy. Peers run their lists, with the actions that they take over, as priorities (dispatch "ready"). Raises
    ConfigError if there is no such device, no peer, or no peer with whole weights.
    """
    if copies < 2:
        raise ConfigError(f"copies={copies}: peers in other copies take over a failed device's work; use at least 2")
    if config.sharded:
        raise ConfigError(
            "weights are sharded over the copies, so that no peer has those of a failed device; "
            "use layout.sharded=false"
        )
    before = _compared(config, [*(names or ())])
    _require_device(device, max((run.schedule.devices for run in before.timelines), default=device + 1))
    healthy = [
        run if run.plan.ports is None
        else _simulated(run, config, run.schedule, np.arange(run.schedule.devices), 1, "list")
        for run in before.timelines
    ]  # fmt: skip
    runs, refused = [], dict(before.refused)
    for run in healthy:
        try:
            runs.append(rerouted(run, device, copies, config))
        except PpsimError as error:
            refused[run.schedule.name] = str(error)
    return _losses(Comparison(healthy, before.refused), Comparison(runs, refused))


def _losses(before: Comparison, after: Comparison) -> Losses:
    healthy = {run.schedule.name: run for run in before.timelines}
    rows = []
    for run in after.timelines:
        old = healthy[run.schedule.name]
        steps = iteration_time(old), iteration_time(run)
        part = steps[1] / (steps[0] or 1.0) - 1.0
        rows.append(Loss(run.schedule.name, asynchronous(old), *steps, part, peak_of(old), peak_of(run), fit_of(run)))
    rows.sort(key=lambda row: (row.asynchronous, row.fit == "over", row.after, row.schedule))
    return Losses(rows, after.refused)


def rerouted(run: Timeline, device: int, copies: int, config: Config) -> Timeline:
    """Simulate the step of all copies after `device` of the last copy failed; `run` is a healthy step of one copy.

    Devices are numbered copy by copy without the failed one; microbatches are numbered copy by copy.
    """
    schedule = run.schedule.compute
    _require_device(device, schedule.devices)
    return _simulated(run, config, *_rerouted_lists(schedule, device, copies), copies, "ready")


def _simulated(
    run: Timeline, config: Config, lists: ScheduleColumns, device_in_copy: np.ndarray, copies: int, dispatch: str
) -> Timeline:
    """Simulate lists of all copies under the costs of `run`, one copy, given each device's number in its copy.

    Links between copies are like those inside one; no transfers share network cards.
    """
    table = run.costs.table(run.schedule.compute)
    table = replace(
        table,
        latency=between_devices(table.latency, device_in_copy),
        seconds_per_byte=between_devices(table.seconds_per_byte, device_in_copy),
        link_ports=None,
        port_capacity=None,
        microbatch_scale=None if table.microbatch_scale is None else np.tile(table.microbatch_scale, copies),
    )
    jitter = None if config.jitter is None else _jitter_of_copies(config.jitter, device_in_copy)
    after = simulate(
        Schedule.of(lists), TableCosts(table), transport=config.transport, engine=config.engine, dispatch=dispatch,
        optimizer=config.optimizer, jitter=jitter, seed=config.seed,
    )  # fmt: skip
    limit = config.memory_limit
    limit = [limit[device] for device in device_in_copy.tolist()] if isinstance(limit, list) else limit
    return after.changed(config=replace(config, memory_limit=limit))


def _require_device(device: int, devices: int) -> None:
    if not 0 <= device < devices:
        raise ConfigError(f"device {device} does not exist; the devices are 0 to {devices - 1}")


def _jitter_of_copies(jitter: Jitter, device_in_copy: np.ndarray) -> Jitter:
    """Return the jitter of one copy for the devices of all copies, given each device's number in its copy."""
    of = {number: np.flatnonzero(device_in_copy == number).tolist() for number in np.unique(device_in_copy).tolist()}
    devices = {device: factor for number, factor in jitter.slow_devices.items() for device in of[number]}
    links = {pair: factor for (first, second), factor in jitter.slow_links.items()
             for pair in itertools.product(of[first], of[second])}  # fmt: skip
    return replace(jitter, slow_devices=devices, slow_links=links)


def _rerouted_lists(schedule: ScheduleColumns, failed: int, copies: int) -> tuple[ScheduleColumns, np.ndarray]:
    """Return the lists of all copies, rerouted actions at their own positions, and each device's number in its copy.

    A list has the order of one copy's list; the actions of several copies at one position follow each other. A cycle of
    waits would also be a cycle in the lists of one copy, so the lists cannot deadlock.
    """
    rows, devices = len(schedule.kind), schedule.devices
    copy = np.repeat(np.arange(copies), rows)
    device_in_copy = np.tile(schedule.device, copies).astype(np.int64)
    taken = (copy == copies - 1) & (device_in_copy == failed)
    peer = np.tile(schedule.microbatch // schedule.slices % (copies - 1), copies)
    device = np.where(taken, peer, copy) * devices + device_in_copy
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
