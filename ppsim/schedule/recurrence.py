"""The recurrence behind engines, lowering and checks: a row ends its length after the last of what it waits for.

Ends follow from each other by max and + alone, in the same operations as in the event model, so both give equal bits.
"""

from typing import NamedTuple

import numpy as np

from ppsim.base.compiling import call_fastest, kernel


def run_lists(
    offsets: np.ndarray,
    source: np.ndarray,
    seconds: np.ndarray | None = None,
    wait: np.ndarray | None = None,
    fused: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Run lists in which each row waits for the row before it and for one row elsewhere, as far as they run.

    Parameters
    ----------
    offsets : int array, lists + 1
        List i owns rows `offsets[i]:offsets[i + 1]`.
    source : int array, one entry a row
        The row that the row waits for, or -1.
    seconds, wait : float64 arrays, one entry a row, optional
        Length of the row, and what passes between the end of its source and its start; default 0: lists without time.
    fused : bool array, one entry a row, optional
        True where the row starts and ends together with the row before it.

    Returns
    -------
    position : int64 array, one entry a list
        The row at which the list stands; `offsets[i + 1]` where it has run to its end.
    end : float64 array, one entry a row
        Below 0 where the row has not run.
    """
    rows = len(source)
    position, end = offsets[:-1].copy(), np.full(rows, -1.0)
    nothing = np.zeros(rows)
    call_fastest(
        walk,
        rows,
        offsets,
        nothing if seconds is None else seconds,
        np.zeros(rows, bool) if fused is None else fused,
        fused is not None and bool(fused.any()),
        source,
        source >= 0,
        nothing if wait is None else wait,
        position,
        end,
    )
    return position, end


@kernel(allocates=True)
def walk(offsets, seconds, fused, any_fused, source, remote, transfer_seconds, position, row_end):
    """Work out the end of each row where nothing queues; `position` ends at the row where each device stands.

    Devices go on from `position`, behind rows that have run.
    Only the ends are kept here: the fewer columns a device touches between two waits, the fewer caches it misses. A row
    that has not run has -1 as its end, or -2 - d where device d waits for it; `beside[d]` is the end of the row as
    another device left it that waits for the same row.
    """
    devices = len(offsets) - 1
    free_at = np.zeros(devices, np.float64)
    for device in range(devices):
        if position[device] > offsets[device]:
            free_at[device] = row_end[position[device] - 1]
    beside = np.full(devices, -1.0)
    stack = np.arange(devices - 1, -1, -1)
    height = devices
    while height > 0:
        height -= 1
        device = stack[height]
        row, last, free = position[device], offsets[device + 1], free_at[device]
        while row < last:
            stop = row + 2 if any_fused and row + 1 < last and fused[row + 1] else row + 1
            start = free
            missing = -1
            for part in range(row, stop):
                if remote[part]:
                    sent = row_end[source[part]]
                    if sent < 0:
                        missing = source[part]
                        break
                    start = max(start, sent + transfer_seconds[part])
            if missing >= 0:
                beside[device] = row_end[missing]
                row_end[missing] = -2.0 - device
                break
            free = start + seconds[row]
            for part in range(row, stop):
                waiting = row_end[part]
                row_end[part] = free
                while waiting < -1.0:
                    woken = int(-2.0 - waiting)
                    stack[height] = woken
                    height += 1
                    waiting = beside[woken]
            row = stop
        position[device] = row
        free_at[device] = free


class PricedLists(NamedTuple):
    """Lists whose lengths follow from [kind, stage]: rows, and seconds of rows and of their transfers."""

    offsets: np.ndarray
    kind: np.ndarray
    stage: np.ndarray
    source: np.ndarray
    seconds: np.ndarray
    transfer_seconds: np.ndarray


@kernel(allocates=True)
def sweep(lists, position, row_end, busy):
    """Like `walk`, for `PricedLists`: over all devices, up and down, each as far as it can run.

    `busy`, by device, becomes the sum of the lengths of what ran. Without lists of who waits for whom this takes two
    thirds of the time of `walk`. It leaves the rest to that where few devices can run in a sweep, so that the time does
    not grow with the number of sweeps.
    """
    offsets, kind, stage, source, seconds, transfer_seconds = lists
    devices, stages = len(offsets) - 1, seconds.shape[1]
    length, passing = seconds.ravel(), transfer_seconds.ravel()
    free_at = np.zeros(devices, np.float64)
    left, visits, step = offsets[-1], -64 * devices, 1
    while left > 0 and visits <= 8 * (offsets[-1] - left):
        before = left
        device = 0 if step > 0 else devices - 1
        while 0 <= device < devices:
            first, last, begin, free = offsets[device], offsets[device + 1], position[device], free_at[device]
            row, work = begin, busy[device]
            while row < last:
                cell, needed = kind[row] * stages + stage[row], source[row]
                if needed >= 0:
                    sent = row_end[needed]
                    if sent < 0:
                        break
                    if needed < first or needed >= last:
                        free = max(free, sent + passing[cell])
                free += length[cell]
                work += length[cell]
                row_end[row] = free
                row += 1
            position[device], free_at[device], busy[device] = row, free, work
            left -= row - begin
            device += step
        if left == before:
            return
        visits += devices
        step = -step
