"""Moves of evicted activations: whether the time that they are away is long enough to go and come back."""

from __future__ import annotations

import numpy as np

from ppsim.schedule.evicted import evicted_rows
from ppsim.timeline import TimelineColumns


def unhidden_moves(timeline: TimelineColumns) -> np.ndarray:
    """Seconds by which each device's evicted activations need longer to move out and back than they are away.

    A move takes latency + bytes / bandwidth of the link between the device and the host, alone on that link; an
    activation is away from the end of its F to the start of its backward. One float64 a device: 0 where all moves hide,
    else the least by which the step grows if the device waits for each. Without activation_bytes a move is its latency.
    """
    schedule, table = timeline.schedule, timeline.table
    leave, back = evicted_rows(schedule)
    stage, _, host = schedule.evicted.T
    owner = schedule.device[leave]
    held = np.zeros(schedule.num_stages) if table.activation_bytes is None else table.activation_bytes
    sent = held[stage] / schedule.slices * table.scale_of(schedule, stage, schedule.evicted[:, 1])
    moves = [table.latency[ends] + sent * table.seconds_per_byte[ends] for ends in ((owner, host), (host, owner))]
    away = timeline.row_start[back] - timeline.row_end[leave]
    return np.bincount(owner, np.maximum(sum(moves) - away, 0.0), minlength=schedule.devices)
