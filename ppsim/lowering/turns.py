"""The walk over the devices in which PyTorch's runtime puts SENDs and RECVs into the lists: whose turn is when."""

import numpy as np

from ppsim.base.compiling import run_where_it_pays
from ppsim.base.errors import DeadlockError
from ppsim.base.kept_memory import empty_column
from ppsim.base.unsigned import from_the_start
from ppsim.schedule.barriers import awaited_rows, with_barriers
from ppsim.schedule.columns import ScheduleColumns
from ppsim.schedule.recurrence import run_lists
from ppsim.schedule.waiting import standing, waiting_cycle, waiting_message


def rows_in_turn(schedule: ScheduleColumns) -> np.ndarray:
    """The rows of a valid schedule in the order in which the walk appends them, int32.

    The walk goes over the devices in order, one slot (or sharding action) a turn: a slot whose inputs have arrived is
    appended. A slot takes its turn at

        turn(slot) = max(turn(slot before) + 1, turn(producer) + [producer's device is not a lower one])

    Source of the order: PyTorch, torch/distributed/pipelining/schedules.py, `_add_send_recv`. DeadlockError where the
    two parts of a fused slot wait for each other through another device.
    """
    order = empty_column(len(schedule.kind), np.int32)
    if not schedule.cuts_vocabulary and run_where_it_pays(
        take_turns, len(order), schedule.offsets, schedule.device, schedule.source, schedule.joined, order
    ):
        return order
    return np.argsort(_turns(schedule), kind="stable").astype(np.int32)


@from_the_start
def take_turns(offsets, device, source, joined, order):
    """Fill `order` by taking the turns; False where the walk stands still, or where most devices miss most turns."""
    devices, count = len(offsets) - 1, 0
    position, rows = offsets[:-1].copy(), offsets[-1]
    visits = -64 * devices
    while count < rows and visits <= 8 * count:
        before = count
        for one in range(devices):
            row, last = position[one], offsets[one + 1]
            stop = row + 2 if row + 1 < last and joined[row + 1] else row + 1
            ready = row < last
            for part in range(row, min(stop, last)):
                if source[part] >= 0 and source[part] >= position[device[source[part]]]:
                    ready = False
            if ready:
                for part in range(row, stop):
                    order[count] = part
                    count += 1
                position[one] = stop
        if count == before:
            return False
        visits += devices
    return count == rows


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
