"""The recurrence behind engines and lowering: a row ends its length after the last of what it waits for.

Ends follow from each other by max and + alone, in the same operations as in the event model, so both give equal bits.
"""

import numpy as np

from ppsim.base.compiling import compiled


@compiled
def walk(offsets, seconds, fused, any_fused, source, remote, transfer_seconds, position, row_end):
    """Work out the end of each row where nothing queues; `position` ends at the row where each device stands.

    Only the ends are kept here: the fewer columns a device touches between two waits, the fewer caches it misses. A row
    that has not run has -1 as its end, or -2 - d where device d waits for it.
    """
    devices = len(offsets) - 1
    free_at = np.zeros(devices, np.float64)
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
                row_end[missing] = -2.0 - device
                break
            free = start + seconds[row]
            for part in range(row, stop):
                waiting = row_end[part]
                row_end[part] = free
                if waiting < -1.0:
                    stack[height] = int(-2.0 - waiting)
                    height += 1
            row = stop
        position[device] = row
        free_at[device] = free
