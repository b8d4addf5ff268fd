"""Sets the clocks of ranks whose recordings each begin at a moment of their own."""

from __future__ import annotations

import numpy as np

from ppsim.lowering.rows import crosses_devices
from ppsim.schedule.columns import ScheduleColumns


def aligned_clocks(
    schedule: ScheduleColumns, start: np.ndarray, end: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """The times with each device's clock moved, and the largest move, in seconds.

    Between two devices that feed each other, the shortest time from the end of what one makes to the start of what
    needs it is taken to be equal in both directions, as clocks are set over a network (Mills 1991, Internet time
    synchronization). Devices are set one after the other along such pairs from device 0; what no pair reaches stays.

    Parameters
    ----------
    schedule : ScheduleColumns
        Compute actions only.
    start, end : float64 (steps, rows)
        Seconds.
    """
    consumer = np.flatnonzero(crosses_devices(schedule))
    producer = schedule.source[consumer]
    least = np.full((schedule.devices, schedule.devices), np.inf)
    typical = np.min(start[:, consumer] - end[:, producer], axis=0) if len(consumer) else np.empty(0)
    np.minimum.at(least, (schedule.device[producer], schedule.device[consumer]), typical)
    shift = _shifts(least)
    by_row = shift[schedule.device]
    return start + by_row, end + by_row, float(np.abs(shift).max(initial=0.0))


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
