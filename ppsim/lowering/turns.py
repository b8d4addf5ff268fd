"""Whose turn is when in the walk over devices in which PyTorch's runtime puts SENDs and RECVs into the lists."""

import numpy as np

from ppsim.base.compiling import call_fastest, kernel
from ppsim.base.errors import DeadlockError
from ppsim.schedule.barriers import awaited_rows, with_barriers
from ppsim.schedule.columns import ScheduleColumns
from ppsim.schedule.recurrence import run_lists
from ppsim.schedule.waiting import standing, waiting_cycle, waiting_message


def rows_in_turn(schedule: ScheduleColumns) -> np.ndarray:
    """The rows of a valid schedule in the order in which the walk appends them, int32.

    The walk goes over the devices in order, one slot (or sharding action) a turn: a slot whose inputs have arrived is
    appended. A slot takes its turn at

        turn(slot) = max(turn(slot before) + 1, turn(producer) + [producer's device is not a lower one])

    `ppsim.lowering.posting.post_by_turns` walks so; here turns are found as a longest path, for lists with output
    layers that are cut over devices, and where so few devices take a turn that a walk over all would not end in time.
    Source of the order: PyTorch, torch/distributed/pipelining/schedules.py, `_add_send_recv`. DeadlockError where the
    two parts of a fused slot wait for each other through another device.
    """
    turns = _turns(schedule)
    order, first = np.empty(len(turns), np.int32), np.zeros(int(turns.max(initial=0)) + 2, np.int64)
    call_fastest(place_by_count, len(turns), turns, first, order)
    return order


@kernel
def place_by_count(turns, first, order):
    """Fill `order` with the rows by turn, those of a turn as they come; `first`, one entry a turn and one, is zeros."""
    for turn in turns:
        first[turn + 1] += 1
    for turn in range(1, len(first)):
        first[turn] += first[turn - 1]
    for row in range(len(turns)):
        turn = turns[row]
        order[first[turn]] = row
        first[turn] += 1


def _turns(schedule: ScheduleColumns) -> np.ndarray:
    """The turn of each row as a longest path; both parts of a fused slot share one.

    A turn is the start of a slot that lasts one turn; what a lower device makes is there within the turn, one earlier.
    """
    device, source = schedule.device, schedule.source
    rows = len(source)
    offsets, needed = with_barriers(schedule, source)
    seconds, wait = (np.append(column, np.zeros(len(needed) - rows)) for column in (np.ones(rows), np.zeros(rows)))
    wait[:rows][device.take(source) < device] = -1.0
    fused = np.append(schedule.joined, np.zeros(len(needed) - rows, bool))
    position, end = run_lists(offsets, needed, seconds, wait, fused)
    needed, position = needed[:rows], position[: schedule.devices]
    blocked = standing(schedule, position, (needed >= 0) & (end.take(needed) < 0), schedule.joined)
    if blocked:
        cycle = waiting_cycle(schedule, blocked, awaited_rows(schedule, source, position))
        raise DeadlockError(waiting_message(f"schedule {schedule.name!r} cannot be lowered", cycle), cycle)
    return end[:rows].astype(np.int64) - 1
