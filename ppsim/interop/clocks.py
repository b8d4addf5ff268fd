"""Sets the clocks of ranks whose recordings each begin at a moment of their own."""

from __future__ import annotations

import numpy as np

from ppsim.actions import FIRST_TRANSFER
from ppsim.lowering.rows import crosses_devices
from ppsim.schedule.columns import ScheduleColumns


def on_one_clock(
    program: ScheduleColumns, start: np.ndarray, end: np.ndarray, hosts: int
) -> tuple[np.ndarray, np.ndarray, float]:
    """The times with the ranks' clocks set where they need it, and the largest move in seconds.

    They need it on several hosts, and where an action would start before its input is made.

    Parameters
    ----------
    program : ScheduleColumns
        With or without transfers.
    start, end : float64 (steps, rows)
        Seconds; nan where nothing was recorded.
    hosts : int
        On which the ranks ran.
    """
    compute = np.flatnonzero(program.kind < FIRST_TRANSFER)
    shift, soonest = clock_shifts(program.compute, start[:, compute], end[:, compute])
    if hosts == 1 and soonest >= 0:
        return start, end, 0.0
    by_row = shift[program.device]
    return start + by_row, end + by_row, float(np.abs(shift).max(initial=0.0))


def clock_shifts(schedule: ScheduleColumns, start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, float]:
    """Seconds to add to each device's times, and how soon after its input was made any action starts, as recorded.

    Between two devices that feed each other, the shortest time from the end of what one makes to the start of what
    needs it is taken to be equal in both directions, as clocks are set over a network (Mills 1991, Internet time
    synchronization). Devices are set one after the other along such pairs from device 0; what no pair reaches stays.

    Parameters
    ----------
    schedule : ScheduleColumns
        Compute actions only.
    start, end : float64 (steps, rows)
        Seconds; nan where nothing was recorded.
    """
    consumer = np.flatnonzero(crosses_devices(schedule))
    producer = schedule.source[consumer]
    least = np.full((schedule.devices, schedule.devices), np.inf)
    shortest = np.fmin.reduce(start[:, consumer] - end[:, producer], axis=0, initial=np.inf)
    np.minimum.at(least, (schedule.device[producer], schedule.device[consumer]), shortest)
    return _shifts(least), float(least.min(initial=np.inf))


def _shifts(least: np.ndarray) -> np.ndarray:
    """Seconds to add to each device's times."""
    shift, known = np.zeros(len(least)), [0]
    for device in known:
        for other in np.flatnonzero(np.isfinite(least[device]) & np.isfinite(least[:, device])).tolist():
            if other not in known:
                # a clock that is late by x makes what comes to it x longer, and what comes from it x shorter
                late = (least[device, other] - least[other, device]) / 2
                shift[other] = shift[device] - late
                known.append(other)
    return shift
