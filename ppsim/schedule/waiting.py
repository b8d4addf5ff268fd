"""Explanation of a deadlock as a cycle of waits."""

from collections.abc import Mapping

import numpy as np

from ppsim.actions import Kind, is_backward
from ppsim.schedule.barriers import turn_of_collectives
from ppsim.schedule.columns import ScheduleColumns


def blocked_rows(
    schedule: ScheduleColumns, position: np.ndarray, waits: np.ndarray, fused: np.ndarray | None = None
) -> dict[int, int]:
    """Return the row at which each blocked device waits, by device; -1 if it waits for something else.

    Parameters
    ----------
    schedule : ScheduleColumns
        The schedule that has stopped.
    position : int array, one entry per device
        The first row of the slot at which the device has stopped; `offsets[d + 1]` if it has finished.
    waits : bool array, one entry per row
        True if an input of the row is missing.
    fused : bool array, one entry per row, optional
        True if the row shares the slot of the row before it.
    """
    rows = {}
    for device in np.flatnonzero(position < schedule.offsets[1:]).tolist():
        row = int(position[device])
        shares = fused is not None and row + 1 < schedule.offsets[device + 1] and fused[row + 1]
        rows[device] = next((part for part in (row, row + 1)[: 2 if shares else 1] if waits[part]), -1)
    return rows


def waiting_cycle(schedule: ScheduleColumns, blocked: Mapping[int, int], source: np.ndarray) -> list[str]:
    """Return one line for each wait of a cycle among blocked devices.

    `blocked` has the row at which each blocked device waits, `source` the row that each row needs.
    """
    path: dict[int, None] = {}
    device = min(blocked)
    while device not in path:
        path[device] = None
        device = int(schedule.device[source[blocked[device]]])
    devices = list(path)
    lines = []
    for waiting in devices[devices.index(device) :]:
        need = int(source[blocked[waiting]])
        holder = int(schedule.device[need])
        head = blocked[holder]
        note = "" if need == head else f", which stands behind {schedule.label(head)}"
        if need == head - 1 and schedule.joined[head]:
            note = f", which shares a fused slot with {schedule.label(head)}"
        lines.append(
            f"device {waiting} waits at {schedule.label(blocked[waiting])} for {schedule.label(need)} of device "
            f"{holder}{note}{turn_of_collectives(schedule, blocked[waiting], need)}"
        )
    return lines


def waiting_message(subject: str, cycle: list[str]) -> str:
    """Return the message of one error for a waiting cycle."""
    return f"{subject}, each waits for the next in a cycle:\n" + "\n".join(f"    {line}" for line in cycle)


def lenient_source(schedule: ScheduleColumns) -> np.ndarray:
    """Return `schedule.source` for lists in which actions may be missing or doubled; it sorts, without a dense table.

    A row whose source is missing gets -1; the last of a doubled source counts.
    """
    microbatches = schedule.microbatches
    pairs = schedule.stage.astype(np.int64) * microbatches + schedule.microbatch
    source = np.full(len(pairs), -1, np.int64)
    forward, backward = np.flatnonzero(schedule.kind == Kind.F), np.flatnonzero(is_backward(schedule.kind))
    for rows, step in ((forward, -microbatches), (backward, microbatches)):
        keys, last = np.unique(pairs[rows][::-1], return_index=True)
        wanted = pairs[rows] + step
        found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        hit = np.flatnonzero(keys[found] == wanted) if len(keys) else np.empty(0, np.int64)
        source[rows[hit]] = rows[::-1][last[found[hit]]]
    return schedule.without_prefetched(source)
