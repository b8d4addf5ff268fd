"""Outline: what the least seconds and bytes of a schedule follow from, no larger than its stages are many."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ppsim.actions import Kind, is_copy
from ppsim.base.compiling import run_where_it_pays
from ppsim.base.distinct import distinct
from ppsim.schedule.columns import ScheduleColumns

PICKS = 3  # of the moments at which a device holds most, for each stage and way: the first, a middle and the last one
# Under which weights such moments are looked for: of the part of an activation that waits for W, and of the last stage.
WEIGHTS = ((1.0, 1.0), (1.0, 4.0), (0.5, 1.0))
# What a row adds at its start and frees at its end, as `ppsim.plan.holding.Holding` has it in bytes: whole
# activations, parts of them that wait for W, stored inputs. The last two are an F before an R, and what moves away.
SHORT_F, AWAY = len(Kind), len(Kind) + 1
ADDS, FREES = np.zeros((2, AWAY + 1, 3))
ADDS[[Kind.F, Kind.R, SHORT_F]] = (1, 0, 0), (1, 0, -1), (0, 0, 1)
FREES[[Kind.B, Kind.I, Kind.W]] = (1, 0, 0), (1, -1, 0), (0, 1, 0)


class Moments(NamedTuple):
    """Moments in which an action runs on a device, and what the device holds then; several a device, by device.

    Attributes
    ----------
    device : int64 (moments,)
    stage : int64 (moments, stages)
        The stages of that device; the last ones, of devices with fewer, hold nothing.
    held : float64 (3, moments, stages)
        Microbatches of each stage that it holds whole, whose part for W it holds, and whose stored input it holds.
    again : float64 (moments, stages)
        1 at the stage whose backward runs.
    """

    device: np.ndarray
    stage: np.ndarray
    held: np.ndarray
    again: np.ndarray


@dataclass(frozen=True, eq=False)
class Outline:
    """A schedule without its order, and the moments at which its devices hold most.

    Attributes
    ----------
    actions : ScheduleColumns
        Of compute actions that are alike in device, kind, stage and slice one.
    times : int64, one entry a row of `actions`
        How often it runs.
    moments : Moments
    """

    actions: ScheduleColumns
    times: np.ndarray
    moments: Moments

    def __len__(self) -> int:
        return len(self.times)

    @classmethod
    def of(cls, schedule: ScheduleColumns, whole: bool = False) -> Outline:
        """The outline of a valid schedule or program; `whole` keeps every action, for microbatches that differ."""
        compute = schedule.compute
        actions, times = (compute, np.ones(len(compute.kind), np.int64)) if whole else _thinned(compute)
        return cls(actions, times, _moments(compute, _moved(schedule)))


def _thinned(schedule: ScheduleColumns) -> tuple[ScheduleColumns, np.ndarray]:
    """One action of each that are alike, and how often each of its rows is in the schedule."""
    first, joined = schedule.first_rows, np.append(schedule.joined, False)
    alike = (schedule.kind.astype(np.int64) * schedule.num_stages + schedule.stage) * schedule.slices
    alike += schedule.microbatch % schedule.slices
    own = _numbered(alike)
    key = own[first]
    if schedule.joined.any():
        other = np.where(joined[first + 1], own[np.minimum(first + 1, len(own) - 1)] + 1, 0)
        key = _numbered(key * (int(own.max()) + 2) + other)
    number = _numbered(schedule.device[first].astype(np.int64) * (int(key.max(initial=0)) + 1) + key)
    times = np.bincount(number)
    chosen = np.empty(len(times), np.int64)
    chosen[number] = first
    parts = 1 + joined[chosen + 1]
    rows = np.repeat(chosen, parts) + (np.arange(parts.sum()) - np.repeat(np.cumsum(parts) - parts, parts))
    offsets = np.searchsorted(schedule.device[rows], np.arange(schedule.devices + 1))
    kind, stage, microbatch = (column[rows] for column in (schedule.kind, schedule.stage, schedule.microbatch))
    actions = ScheduleColumns(kind, stage, microbatch, offsets, joined=schedule.joined[rows], **schedule.traits)
    return actions, np.repeat(times, parts)


def _numbered(values: np.ndarray) -> np.ndarray:
    """The number of each value among the distinct ones in rising order, from 0."""
    size = int(values.max(initial=-1)) + 1
    if size > 4 * len(values) + 1000:
        return np.searchsorted(distinct(values), values)
    there = np.bincount(values, minlength=size) > 0
    return (np.cumsum(there) - 1)[values]


def _moved(schedule: ScheduleColumns) -> np.ndarray | None:
    """Whether an activation leaves its device before its backward, bool (stages, microbatches); None: none."""
    copied = is_copy(schedule.kind)
    if not len(schedule.evicted) and not copied.any():
        return None
    moved = np.zeros((schedule.num_stages, schedule.microbatches), bool)
    moved[schedule.stage[copied], schedule.microbatch[copied]] = True
    moved[schedule.evicted[:, 0], schedule.evicted[:, 1]] = True
    return moved


def _moments(schedule: ScheduleColumns, moved: np.ndarray | None) -> Moments:
    """The moments in which a device holds most while a forward, or a backward, of each of its stages runs."""
    does = schedule.kind.copy()
    if schedule.recomputes:
        does[schedule.recomputed & (does == Kind.F)] = SHORT_F
    if moved is not None:
        does[moved[schedule.stage, schedule.microbatch]] = AWAY
    holding = _numbered(schedule.device.astype(np.int64) * schedule.num_stages + schedule.stage)
    backward = (does == Kind.B) | (does == Kind.I)
    rows = _fullest(schedule, does, 2 * holding + backward)
    device, stage = schedule.holdings.T
    first = np.searchsorted(device, np.arange(schedule.devices))
    most = int(np.bincount(device, minlength=1).max())
    of_moment = schedule.device[rows].astype(np.int64)
    stages = np.pad(stage, (0, most))[first[of_moment, None] + np.arange(most)].astype(np.int64)
    place = holding - first[schedule.device]
    held = np.zeros(3 * len(rows) * most)
    columns = schedule.offsets, does, place, most, rows, ADDS.ravel(), FREES.ravel(), np.zeros(3 * most), held
    run_where_it_pays(hold, len(does), *columns)
    again = np.zeros((len(rows), most))
    again[np.arange(len(rows)), place[rows]] = backward[rows]
    return Moments(of_moment, stages, held.reshape(len(rows), 3, most).transpose(1, 0, 2), again)


def _fullest(schedule: ScheduleColumns, does: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Of each group of rows some of those during which most is held, in rising order."""
    last, groups = schedule.stage == schedule.num_stages - 1, int(group.max(initial=-1)) + 1
    found = []
    for waiting, of_last in WEIGHTS if (does == Kind.I).any() else WEIGHTS[:-1]:
        adds, frees = (side @ (1.0, waiting, 1 / 64) for side in (ADDS, FREES))
        rows = np.full(groups * PICKS, -1)
        columns = does, group, last, of_last, adds, frees, np.full(groups, -1.0), np.zeros(groups, np.int64), rows
        run_where_it_pays(find_fullest, len(does), *columns)
        found.append(rows)
    rows = distinct(np.concatenate(found))
    return rows[rows >= 0]


def find_fullest(does, group, last, of_last, adds, frees, most, times, rows):
    """Write into `rows` of each group the first row at which most is held, the last, and one whose number is a power
    of two; `most` and `times` are what that is and how often.
    """
    level = 0.0
    for row in range(len(does)):
        weight = of_last if last[row] else 1.0
        level += adds[does[row]] * weight
        one = group[row]
        if level > most[one] + 1e-6:
            most[one], times[one] = level, 0
            for pick in range(PICKS):
                rows[one * PICKS + pick] = row
        elif level > most[one] - 1e-6:
            times[one] += 1
            rows[one * PICKS + PICKS - 1] = row
            if times[one] & (times[one] - 1) == 0:
                rows[one * PICKS + 1] = row
        level -= frees[does[row]] * weight


def hold(offsets, does, place, places, rows, adds, frees, now, held):
    """Write into `held` what a device holds, by part and place, while each of `rows` runs; `now` is scratch."""
    number = 0
    for device in range(len(offsets) - 1):
        for cell in range(len(now)):
            now[cell] = 0.0
        for row in range(offsets[device], offsets[device + 1]):
            for part in range(3):
                now[part * places + place[row]] += adds[does[row] * 3 + part]
            if number < len(rows) and rows[number] == row:
                for cell in range(len(now)):
                    held[number * len(now) + cell] = now[cell]
                number += 1
            for part in range(3):
                now[part * places + place[row]] -= frees[does[row] * 3 + part]
