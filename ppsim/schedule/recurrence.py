"""Recurrence of engines, lowering and checks: a row starts when its inputs are there, and ends its length later.

Ends follow from each other by max and + alone. The event model performs the same operations, so both give equal bits.
If lists stop before their end, the second part of this module explains why, as a cycle of waits.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ppsim.base.compiling import call_compiled, call_fastest, kernel
from ppsim.base.immutable import list_numbers, read_only
from ppsim.schedule.barriers import find_barriers, with_barriers
from ppsim.schedule.columns import ScheduleColumns

_NO_KIND, _NO_STAGE = read_only(np.empty(0, np.int8)), read_only(np.empty(0, np.int32))


class Lengths(NamedTuple):
    """Seconds of each row (`seconds`), and of the transfer from its source to it (`waits`).

    Both are flat columns by [kind, stage]; if `stages` is 0, by row.
    """

    kind: np.ndarray
    stage: np.ndarray
    stages: int
    seconds: np.ndarray
    waits: np.ndarray

    @classmethod
    def by_row(cls, seconds: np.ndarray, waits: np.ndarray | None = None) -> Lengths:
        """Return lengths with one entry per row; by default no transfer takes time."""
        return cls(_NO_KIND, _NO_STAGE, 0, seconds, np.zeros(len(seconds)) if waits is None else waits)


def run_lists(
    offsets: np.ndarray,  # int (lists + 1,): list i owns rows `offsets[i]:offsets[i + 1]`
    source: np.ndarray,  # int (rows,): the row that the row waits for, or -1
    lengths: Lengths | None = None,  # default: nothing takes time
    fused: np.ndarray | None = None,  # bool (rows,): the row starts and ends together with the row before it
    always_compiled: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Run lists as far as possible, if each row waits for the row before it and for at most one other row.

    Return three columns: the row at which each list has stopped (`offsets[i + 1]` at its end); the end of each row,
    float64, negative if it has not run; and the sum of the lengths of the rows that each list has run. Lists with
    `fused` rows need lengths by row.
    """
    lengths = Lengths.by_row(np.zeros(len(source))) if lengths is None else lengths
    if fused is not None and fused.any():
        return _run_slots(offsets, source, lengths, fused, always_compiled)
    rows = len(source)
    position, end, busy = offsets[:-1].copy(), np.full(rows, -1.0), np.zeros(len(offsets) - 1)
    arguments = offsets, source, lengths, position, end, busy
    if always_compiled:
        call_compiled(run_rows, *arguments)
    else:
        call_fastest(run_rows, rows, *arguments)
    return position, end, busy


def _run_slots(
    offsets: np.ndarray, source: np.ndarray, lengths: Lengths, fused: np.ndarray, always_compiled: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Run lists with fused rows: the first gets length 0, the second the slot's length, and others wait for it."""
    second = np.flatnonzero(fused)
    seconds = lengths.seconds.copy()
    seconds[second], seconds[second - 1] = seconds[second - 1], 0.0
    is_second = np.append(fused, False)
    moved = (source + is_second[source + 1]).astype(source.dtype)
    slots = lengths._replace(seconds=read_only(seconds))
    position, end, busy = run_lists(offsets, read_only(moved), slots, None, always_compiled)
    end[second - 1] = end[second]
    return position - is_second[position], end, busy


@kernel(allocates=True)
def run_rows(offsets, source, lengths, position, row_end, busy):
    """Fill `row_end`, `busy` (the sum of each list's lengths) and `position` (the row at which each list has stopped).

    The end of a row that has not run is -1, or -2 - d if list d waits for it. `also_waiting[d]` then holds the entry
    that d has replaced, so that all lists that wait for one row form a chain. Only ends are stored: the fewer columns a
    list reads and writes between two waits, the fewer cache misses. `0 <= row` spares Numba a test for negative ones.
    """
    kind, stage, stages, seconds, waits = lengths
    lists = len(offsets) - 1
    free_at, also_waiting = np.zeros(lists), np.zeros(lists)
    stack = np.arange(lists - 1, -1, -1)
    height = lists
    while height > 0:
        height -= 1
        device = stack[height]
        first, last, row, free = offsets[device], offsets[device + 1], position[device], free_at[device]
        work = busy[device]
        while 0 <= row < last:
            cell = kind[row] * stages + stage[row] if stages else row
            needed = source[row]
            if needed >= 0:
                sent = row_end[needed]
                if sent < 0:
                    also_waiting[device] = sent
                    row_end[needed] = -2.0 - device
                    break
                if needed < first or needed >= last:
                    free = max(free, sent + waits[cell])
            free += seconds[cell]
            work += seconds[cell]
            waiting = row_end[row]
            row_end[row] = free
            row += 1
            while waiting < -1.0:
                woken = int(-2.0 - waiting)
                stack[height] = woken
                height += 1
                waiting = also_waiting[woken]
        position[device], free_at[device], busy[device] = row, free, work


# Where lists have stopped, as a cycle of waits


def run_with_barriers(
    schedule: ScheduleColumns, lengths: Lengths | None = None, fused: np.ndarray | None = None
) -> tuple[np.ndarray, list[str]]:
    """Return the end of each row, as `run_lists`, and the cycle of waits in which the lists have stopped.

    The cycle has one line per wait; it is empty if every action has run. Barriers take no time. In invalid lists
    missing actions count as done, and the last of a doubled action counts.
    """
    rows, source = len(schedule.kind), schedule.source
    offsets, needed = with_barriers(schedule, source)
    if lengths is not None and len(needed) > rows:
        zeros = np.zeros(len(needed) - rows)
        lengths = Lengths.by_row(np.append(lengths.seconds, zeros), np.append(lengths.waits, zeros))
        fused = None if fused is None else np.append(fused, zeros > 0)
    position, end, _ = run_lists(offsets, needed, lengths, fused)
    position = position[: schedule.devices]
    if np.array_equal(position, schedule.offsets[1:]):
        return end[:rows], []
    lacking = (needed >= 0) & (end.take(needed) < 0)
    blocked = blocked_rows(schedule, position, lacking[:rows], fused)
    return end[:rows], waiting_cycle(schedule, blocked, awaited_rows(schedule, source, position))


def awaited_rows(schedule: ScheduleColumns, source: np.ndarray, position: np.ndarray) -> np.ndarray:
    """Return for each row the row that it waits for, or -1: its source, or the first missing row of its barrier.

    Devices have stopped at the rows `position`. The missing row may belong to an earlier barrier of the stream. A row
    waits for nothing if all rows of its barrier, and of the earlier barriers of the stream, have run.
    """
    barriers = find_barriers(schedule)
    if barriers is None:
        return source
    missing = np.flatnonzero(barriers.producer >= position[schedule.device[barriers.producer]])
    of_stream = np.searchsorted(missing, barriers.first[barriers.streams[:-1]])
    head = np.append(missing, len(barriers.producer))[of_stream][list_numbers(barriers.streams)]
    blocked = np.flatnonzero(head < barriers.first[1:])
    first = np.full(len(barriers), -1, np.int64)
    first[blocked] = barriers.producer[head[blocked]]
    return np.where(barriers.needs >= 0, first[barriers.needs], source)


def wait_text(schedule: ScheduleColumns, row: int, needed: int, note: str = "") -> str:
    """Return what a row waits for in words; `needed` may be an input of a collective that comes before its own."""
    barriers = find_barriers(schedule)
    if barriers is not None and barriers.needs[row] >= 0:
        own = int(barriers.needs[row])
        if needed not in barriers.producer[barriers.first[own] : barriers.first[own + 1]]:
            note += f" (its collective runs before the one for {schedule.label(row)})"
    return (
        f"device {schedule.device[row]} waits at {schedule.label(row)} for {schedule.label(needed)} of device "
        f"{schedule.device[needed]}{note}"
    )


def blocked_rows(
    schedule: ScheduleColumns, position: np.ndarray, waits: np.ndarray, fused: np.ndarray | None = None
) -> dict[int, int]:
    """Return the row at which each blocked device waits, by device; -1 if it waits for something else.

    Each device has stopped at the slot whose first row is its `position`; `offsets[d + 1]` if it has finished. `waits`,
    bool, is True for a row that lacks an input, `fused` for a row that shares the slot of the row before it.
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
        note = "" if need == head else f", which comes after {schedule.label(head)}"
        if need == head - 1 and schedule.joined[head]:
            note = f", which shares a fused slot with {schedule.label(head)}"
        lines.append(wait_text(schedule, blocked[waiting], need, note))
    return lines


def waiting_message(subject: str, cycle: list[str]) -> str:
    """Return the message of one error for a waiting cycle."""
    return f"{subject}, each waits for the next in a cycle:\n" + "\n".join(f"    {line}" for line in cycle)
