"""Actions of sharded data parallelism: UNSHARD, RESHARD and REDUCE_GRAD are inserted into lists."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import numpy as np

from ppsim.actions import NO_MICROBATCH, Kind, is_copy, is_vocabulary
from ppsim.base.documents import as_python
from ppsim.base.errors import ConfigError, shown
from ppsim.base.immutable import cached_on
from ppsim.base.rules import argument, rule, whole_number
from ppsim.lowering.rows import insert_rows
from ppsim.schedule.columns import ScheduleColumns

MAX_ACTIVE_STAGES = 3
FULL, AUTO = "full", "auto"
NO_STAGE = -1
_LEGAL = "use full, auto, a number of stages, or a list of one number per device"
_distance = rule(lambda value: type(value) is int and value >= 1, f"must be a whole number of at least 1; {_LEGAL}")


@dataclass(frozen=True)
class Window:
    """Limits of gathering: how many stages of a device hold whole weights, and how early their gathers start.

    `ppsim.lower` defines both. Source of `look_ahead`: pytorch/pytorch pull request 196706 (September 2026).
    ConfigError for a distance that is no positive int, or is above `max_active_stages`.
    """

    max_active_stages: int = MAX_ACTIVE_STAGES
    look_ahead: str | int | Sequence[int] = FULL

    def __post_init__(self) -> None:
        argument("max_active_stages", self.max_active_stages, whole_number())
        given = as_python(self.look_ahead, "look_ahead")
        object.__setattr__(self, "look_ahead", tuple(given) if isinstance(given, list) else given)
        if given in (FULL, AUTO):
            return
        for distance in given if isinstance(given, list) else (given,):
            if argument("look_ahead", distance, _distance) > self.max_active_stages:
                raise ConfigError(
                    f"look_ahead={distance} is above max_active_stages={self.max_active_stages}; a stage that is "
                    f"gathered earlier than it may stay would be dropped again; {_LEGAL}"
                )

    def distances(self, devices: int) -> list[int]:
        """Return the look-ahead of each device; ConfigError for a list of another length."""
        limit, given = self.max_active_stages, self.look_ahead
        if isinstance(given, int):
            return [given] * devices
        if isinstance(given, str):
            return [limit if given == FULL else min(device + 2, limit) for device in range(devices)]
        if len(given) != devices:
            raise ConfigError(f"look_ahead={shown(list(given))} must have one number per device, {devices} in all")
        return list(given)


DEFAULT_WINDOW = Window()
WINDOW = tuple(field.name for field in fields(Window))  # keywords of `ppsim.lower`, and keys of a config's schedule


@cached_on
def insert_sharding(schedule: ScheduleColumns, window: Window = DEFAULT_WINDOW) -> ScheduleColumns:
    """Return the schedule with the weights of each device's next stages gathered ahead of use.

    Before each slot the stages that are not among the next `window.max_active_stages` are resharded, and those that
    newly are within the look-ahead are unsharded; REDUCE_GRAD follows the last B or W of each stage on its device.
    Source of the order: PyTorch, torch/distributed/pipelining/schedules.py, `_add_unshard_reshard`, `_add_reduce_grad`.
    """
    last = last_backwards(schedule)
    device, stage = schedule.device[last].tolist(), schedule.stage[last].tolist()
    kind = [Kind.REDUCE_GRAD] * len(last)
    before = (last + 1 + np.append(schedule.joined, False)[last + 1]).tolist()  # a fused slot is not split
    for one, distance in enumerate(window.distances(schedule.devices)):
        for row, action, of_stage in _gathers(schedule, one, window.max_active_stages, distance):
            device.append(one)
            kind.append(action)
            stage.append(of_stage)
            before.append(row)
    rows = len(schedule.kind)
    is_compute = np.arange(rows + len(device)) < rows
    return insert_rows(
        schedule,
        np.array(device, np.int32),
        np.array(kind, np.int8),
        np.array(stage, np.int32),
        NO_MICROBATCH,
        (is_compute, np.concatenate([np.arange(rows), np.array(before, np.int64)])),
    )


def last_backwards(schedule: ScheduleColumns, of_each_iteration: bool = False) -> np.ndarray:
    """Return the row of the last B or W by device and stage, and by iteration if `of_each_iteration`.

    A later S or T counts too: it adds to the gradients of a part of the output layer.
    """
    makes_gradients = (schedule.kind == Kind.B) | (schedule.kind == Kind.W) | is_vocabulary(schedule.kind)
    rows = np.flatnonzero(makes_gradients)[::-1]
    of = schedule.device[rows].astype(np.int64) * schedule.num_stages + schedule.stage[rows]
    if of_each_iteration:
        of = of * schedule.iterations + schedule.iteration[rows]
    _, last = np.unique(of, return_index=True)
    return rows[last]


def _gathers(schedule: ScheduleColumns, device: int, limit: int, distance: int) -> Iterator[tuple[int, Kind, int]]:
    """Yield the UNSHARD and RESHARD of one device in order: the row after each, its kind and its stage."""
    # PyTorch evicts in the iteration order of a set of stage numbers, which depends on what the set held before. So
    # `resident` is the set of PyTorch, whatever the look-ahead.
    resident: set[int] = set()
    gathered: set[int] = set()
    for row, upcoming, wanted in _upcoming_stages(schedule, device, limit, distance):
        for stage in [stage for stage in resident if stage not in upcoming]:
            resident.remove(stage)
            gathered.remove(stage)
            yield row, Kind.RESHARD, stage
        resident.update(upcoming)
        for stage in [stage for stage in wanted if stage not in gathered]:
            gathered.add(stage)
            yield row, Kind.UNSHARD, stage
    for stage in resident:
        yield int(schedule.offsets[device + 1]), Kind.RESHARD, stage


def _upcoming_stages(
    schedule: ScheduleColumns, device: int, limit: int, distance: int
) -> list[tuple[int, list[int], list[int]]]:
    """Return the next `limit` and the next `distance` stages, nearest first, at each row where one of them changes.

    A fused slot counts as a whole, so it can add one more stage.
    """
    first, last = schedule.offsets[device : device + 2]
    rows = first + np.flatnonzero(~is_copy(schedule.kind[first:last]))  # copies need no weights
    joined, never = np.append(schedule.joined, False), len(schedule.joined)
    held, column = np.unique(schedule.stage[rows], return_inverse=True)
    following = np.full((len(rows), len(held)), never)  # row in which each stage comes next
    following[np.arange(len(rows)), column] = rows
    following = np.minimum.accumulate(following[::-1])[::-1]
    nearest = np.argsort(following, axis=1)[:, : limit + 1]
    following = np.take_along_axis(following, nearest, axis=1)
    stages = np.where(following < never, held[nearest], NO_STAGE)
    begins = ~joined[rows]
    rows, slots, stages = rows[begins], (following - joined[following])[begins], stages[begins]
    windows = [_nearest(stages, slots, count) for count in (limit, distance)]
    changes = np.ones(len(rows), bool)
    changes[1:] = False
    for window in windows:
        members = np.sort(window, axis=1)
        changes[1:] |= (members[1:] != members[:-1]).any(axis=1)
    resident, wanted = (
        [[stage for stage in row if stage != NO_STAGE] for row in window[changes].tolist()] for window in windows
    )
    return list(zip(rows[changes].tolist(), resident, wanted, strict=True))


def _nearest(stages: np.ndarray, slots: np.ndarray, count: int) -> np.ndarray:
    """Return the first `count` stages of each row, and the next one if its slot is the same."""
    found = stages[:, : count + 1].copy()
    if found.shape[1] > count:
        found[slots[:, count] > slots[:, count - 1], count] = NO_STAGE
    return found
