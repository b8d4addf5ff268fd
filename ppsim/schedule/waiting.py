"""Who waits for what where lists stand still, told as the cycle of waits that explains it."""

from collections.abc import Mapping

import numpy as np

from ppsim.actions import Kind, is_backward
from ppsim.schedule.barriers import turn_of_collectives
from ppsim.schedule.columns import ScheduleColumns


def blocked_rows(
    schedule: ScheduleColumns, position: np.ndarray, waits: np.ndarray, fused: np.ndarray | None = None
) -> dict[int, int]:
    """The row at which each device that stands still waits, by device.

    Parameters
    ----------
    schedule : ScheduleColumns
        Whose devices wait.
    position : int array, one entry a device
        The first row of the slot at which the device stands; `offsets[d + 1]` where it has finished.
    waits : bool array, one entry a row
        Where a row waits for what has not come.
    fused : bool array, one entry a row, optional
        Where the row shares the slot of the row before it.

    A device that waits for something else has -1.
    """
    rows = {}
    for device in np.flatnonzero(position < schedule.offsets[1:]).tolist():
        row = int(position[device])
        shares = fused is not None and row + 1 < schedule.offsets[device + 1] and fused[row + 1]
        rows[device] = next((part for part in (row, row + 1)[: 2 if shares else 1] if waits[part]), -1)
    return rows


def waiting_cycle(schedule: ScheduleColumns, blocked: Mapping[int, int], source: np.ndarray) -> list[str]:
    """One line for each wait of a cycle among devices that stand still.

    Parameters
    ----------
    schedule : ScheduleColumns
        Whose devices wait.
    blocked : device -> row
        The row at which each device waits for the row that it needs.
    source : int array, one entry a row
        That row, by row.
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
        where = "" if need == head else f", which stands behind {schedule.label(head)}"
        if need == head - 1 and schedule.joined[head]:
            where = f", which shares a fused slot with {schedule.label(head)}"
        lines.append(
            f"device {waiting} waits at {schedule.label(blocked[waiting])} for {schedule.label(need)} of device "
            f"{holder}{where}{turn_of_collectives(schedule, blocked[waiting], need)}"
        )
    return lines


def waiting_message(subject: str, cycle: list[str]) -> str:
    """The one-error form of a waiting cycle."""
    return f"{subject}, each waits for the next in a cycle:\n" + "\n".join(f"    {line}" for line in cycle)


def lenient_source(schedule: ScheduleColumns) -> np.ndarray:
    """`schedule.source` for lists that may miss or double actions: found by sorting, not in a dense table.

    A row whose source is missing has none, and of a doubled source the last counts.
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
    return source
