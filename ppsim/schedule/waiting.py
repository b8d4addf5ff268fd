"""Who waits for what: runs a schedule without time and turns a standstill into the cycle that explains it."""

from collections.abc import Mapping, Sequence

import numpy as np

from ppsim.actions import Kind
from ppsim.schedule.columns import ScheduleColumns


def find_waiting_cycle(schedule: ScheduleColumns) -> list[str]:
    """The waits that hold each other up, one line each; empty when every action can run.

    Actions that are missing are taken as done and of doubled ones the last counts, so that the cycle can be told beside
    other faults. Linear in the number of actions.
    """
    source = lenient_source(schedule)
    offsets = schedule.offsets.tolist()
    position = offsets[:-1]
    waiters: dict[int, list[int]] = {}
    ready = list(range(schedule.devices))
    done = bytearray(len(source))
    needs = source.tolist()
    while ready:
        device = ready.pop()
        row, last = position[device], offsets[device + 1]
        while row < last:
            need = needs[row]
            if need >= 0 and not done[need]:
                waiters.setdefault(need, []).append(device)
                break
            done[row] = 1
            if row in waiters:
                ready.extend(waiters.pop(row))
            row += 1
        position[device] = row
    blocked = {device: row for device, row in enumerate(position) if row < offsets[device + 1]}
    return waiting_cycle(schedule, blocked, needs) if blocked else []


def waiting_cycle(
    schedule: ScheduleColumns, blocked: Mapping[int, int], needs: Sequence[int] | None = None
) -> list[str]:
    """One line for each wait of a cycle among devices that stand still.

    Parameters
    ----------
    schedule : ScheduleColumns
        Whose devices wait.
    blocked : device -> row
        The row at which each device waits for the row that it needs.
    needs : sequence, one entry a row
        That row, by row; default `schedule.source`.
    """
    need_of = schedule.source.tolist() if needs is None else needs
    device_of = schedule.device
    path: dict[int, None] = {}
    device = min(blocked)
    while device not in path:
        path[device] = None
        device = int(device_of[need_of[blocked[device]]])
    devices = list(path)
    lines = []
    for waiting in devices[devices.index(device) :]:
        need = need_of[blocked[waiting]]
        holder = int(device_of[need])
        head = blocked[holder]
        where = "" if need == head else f", which stands behind {schedule.label(head)}"
        if need == head - 1 and schedule.joined[head]:
            where = f", which shares a fused slot with {schedule.label(head)}"
        lines.append(
            f"device {waiting} waits at {schedule.label(blocked[waiting])} for {schedule.label(need)} of device "
            f"{holder}{where}"
        )
    return lines


def waiting_message(subject: str, cycle: list[str]) -> str:
    """The one-error form of a waiting cycle."""
    return f"{subject}, each waits for the next in a cycle:\n" + "\n".join(f"    {line}" for line in cycle)


def lenient_source(schedule: ScheduleColumns) -> np.ndarray:
    """`schedule.source` for lists that may miss or double actions: found by sorting, not in a dense table."""
    microbatches = schedule.microbatches
    pairs = schedule.stage.astype(np.int64) * microbatches + schedule.microbatch
    source = np.full(len(pairs), -1, np.int64)
    forward = np.flatnonzero(schedule.kind == Kind.F)
    backward = np.flatnonzero((schedule.kind == Kind.B) | (schedule.kind == Kind.I))
    for rows, step in ((forward, -microbatches), (backward, microbatches)):
        keys, last = np.unique(pairs[rows][::-1], return_index=True)
        wanted = pairs[rows] + step
        found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        hit = np.flatnonzero(keys[found] == wanted) if len(keys) else np.empty(0, np.int64)
        source[rows[hit]] = rows[::-1][last[found[hit]]]
    return source
