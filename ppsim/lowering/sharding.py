"""Actions of sharded data parallelism: UNSHARD, RESHARD and REDUCE_GRAD are inserted into lists."""

from collections.abc import Iterator

import numpy as np

from ppsim.actions import NO_MICROBATCH, Kind, is_copy, is_vocabulary
from ppsim.base.immutable import cached_on
from ppsim.lowering.rows import insert_rows
from ppsim.schedule.columns import ScheduleColumns

LOOK_AHEAD = 3
NO_STAGE = -1


@cached_on
def insert_sharding(schedule: ScheduleColumns) -> ScheduleColumns:
    """Return the schedule with the weights of each device's next three stages gathered ahead of use.

    Before each slot the stages that are not among the next three to compute are resharded and those that newly are
    among them are unsharded; REDUCE_GRAD follows the last B or W of each stage on its device.
    Source of the order: PyTorch, torch/distributed/pipelining/schedules.py, `_add_unshard_reshard`, `_add_reduce_grad`.
    """
    last = last_backwards(schedule)
    device, stage = schedule.device[last].tolist(), schedule.stage[last].tolist()
    kind = [Kind.REDUCE_GRAD] * len(last)
    before = (last + 1 + np.append(schedule.joined, False)[last + 1]).tolist()  # a fused slot is not split
    for one in range(schedule.devices):
        for row, action, of_stage in _gathers(schedule, one):
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


def _gathers(schedule: ScheduleColumns, device: int) -> Iterator[tuple[int, Kind, int]]:
    """Yield the UNSHARD and RESHARD of one device in order: the row after each, its kind and its stage."""
    # PyTorch evicts in the iteration order of a set of stage numbers; the same set here gives the same order.
    gathered: set[int] = set()
    for row, upcoming in _upcoming_stages(schedule, device):
        fetched = [stage for stage in upcoming if stage not in gathered]
        for stage in [stage for stage in gathered if stage not in upcoming]:
            gathered.remove(stage)
            yield row, Kind.RESHARD, stage
        for stage in fetched:
            gathered.add(stage)
            yield row, Kind.UNSHARD, stage
    for stage in list(gathered):
        yield int(schedule.offsets[device + 1]), Kind.RESHARD, stage


def _upcoming_stages(schedule: ScheduleColumns, device: int) -> list[tuple[int, tuple[int, ...]]]:
    """Return the next stages to compute, nearest first, at each row where the set of them changes.

    A fused slot counts as a whole, so it can add a fourth stage.
    """
    first, last = schedule.offsets[device : device + 2]
    rows = first + np.flatnonzero(~is_copy(schedule.kind[first:last]))  # copies need no weights
    joined, never = np.append(schedule.joined, False), len(schedule.joined)
    held, column = np.unique(schedule.stage[rows], return_inverse=True)
    following = np.full((len(rows), len(held)), never)  # row in which each stage comes next
    following[np.arange(len(rows)), column] = rows
    following = np.minimum.accumulate(following[::-1])[::-1]
    nearest = np.argsort(following, axis=1)[:, : LOOK_AHEAD + 1]
    following = np.take_along_axis(following, nearest, axis=1)
    stages = np.where(following < never, held[nearest], NO_STAGE)
    if stages.shape[1] > LOOK_AHEAD:
        slot = following - joined[following]
        stages[slot[:, LOOK_AHEAD] > slot[:, LOOK_AHEAD - 1], LOOK_AHEAD] = NO_STAGE
    begins = ~joined[rows]
    rows, stages = rows[begins], stages[begins]
    changes, members = np.ones(len(rows), bool), np.sort(stages, axis=1)
    changes[1:] = (members[1:] != members[:-1]).any(axis=1)
    return [
        (row, tuple(stage for stage in upcoming if stage != NO_STAGE))
        for row, upcoming in zip(rows[changes].tolist(), stages[changes].tolist(), strict=True)
    ]
