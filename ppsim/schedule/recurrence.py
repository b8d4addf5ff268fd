"""Recurrence of engines, lowering and checks: a row starts when its inputs are there, and ends its length later.

Ends follow from each other by max and + alone. The event model performs the same operations, so both give equal bits.
"""

from typing import NamedTuple

import numpy as np

from ppsim.base.compiling import call_compiled, call_fastest, kernel
from ppsim.base.immutable import unwritable

_NO_KIND, _NO_STAGE = unwritable(np.empty(0, np.int8)), unwritable(np.empty(0, np.int32))


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
    def by_row(cls, seconds: np.ndarray, waits: np.ndarray) -> "Lengths":
        """Return lengths with one entry per row."""
        return cls(_NO_KIND, _NO_STAGE, 0, seconds, waits)


def run_lists(
    offsets: np.ndarray,  # int (lists + 1,): list i owns rows `offsets[i]:offsets[i + 1]`
    source: np.ndarray,  # int (rows,): the row that the row waits for, or -1
    seconds: np.ndarray | None = None,  # float64 (rows,): length; default 0
    wait: np.ndarray | None = None,  # float64 (rows,): from the end of a source in another list to the start; default 0
    fused: np.ndarray | None = None,  # bool (rows,): the row starts and ends together with the row before it
) -> tuple[np.ndarray, np.ndarray]:
    """Run lists as far as possible, if each row waits for the row before it and for at most one other row.

    Return the row at which each list has stopped, `offsets[i + 1]` if it has run to its end; and the end of each row,
    float64, negative if the row has not run.
    """
    columns = (np.zeros(len(source)) if column is None else column for column in (seconds, wait))
    return run_with_lengths(offsets, source, Lengths.by_row(*columns), fused)[:2]


def run_with_lengths(
    offsets: np.ndarray,
    source: np.ndarray,
    lengths: Lengths,
    fused: np.ndarray | None = None,
    always_compiled: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the results of `run_lists`, and for each list the sum of the lengths of its rows that have run.

    `fused` rows need lengths by row.
    """
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
    slots = lengths._replace(seconds=unwritable(seconds))
    position, end, busy = run_with_lengths(offsets, unwritable(moved), slots, None, always_compiled)
    end[second - 1] = end[second]
    return position - is_second[position], end, busy


@kernel(allocates=True)
def run_rows(offsets, source, lengths, position, row_end, busy):
    """Fill `row_end`, `busy` (the sum of each list's lengths) and `position` (the row at which each list has stopped).

    The end of a row that has not run is -1, or -2 - d if list d waits for it. `also_waiting[d]` then has the value
    before: the next list that waits for the row. Only ends are stored: the fewer columns a list reads and writes
    between two waits, the fewer cache misses. `0 <= row` spares Numba a test for negative indices, 6 % of a call.
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
