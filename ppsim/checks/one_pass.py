"""Whether a schedule has a fault, in one pass over its rows that also finds who waits for whom."""

from __future__ import annotations

import numpy as np

from ppsim.actions import Kind
from ppsim.base.compiling import run_where_it_pays
from ppsim.schedule.columns import ScheduleColumns

_F, _I, _W, _R = (int(kind) for kind in (Kind.F, Kind.I, Kind.W, Kind.R))


def source_of_valid(schedule: ScheduleColumns) -> np.ndarray | None:
    """`schedule.source` where compute actions have no fault and run to their end, None otherwise; int32."""
    stages, microbatches, rows = schedule.num_stages, schedule.microbatches, len(schedule.kind)
    cells = stages * microbatches
    if not 0 < 2 * cells <= rows:  # each needs an F and a backward, and the tables stay as small as the columns
        return None
    source, row_of = np.empty(rows, np.int32), np.full(2 * cells, -1, np.int32)
    weights, again = np.zeros(cells, bool), np.zeros(cells if schedule.recomputes else 0, bool)
    valid = run_where_it_pays(
        follow, rows, schedule.offsets, schedule.kind, schedule.stage, schedule.microbatch, stages, microbatches,
        row_of, weights, again, source,
    )  # fmt: skip
    return source if valid and _slices_in_order(schedule, row_of) else None


def _slices_in_order(schedule: ScheduleColumns, row_of: np.ndarray) -> bool:
    """Whether the slices of each microbatch go forward in rising and backward in falling order."""
    if schedule.slices == 1:
        return True
    if schedule.microbatches % schedule.slices:
        return False
    forward, backward = np.diff(row_of.reshape(2, -1, schedule.slices))
    return bool((forward > 0).all() and (backward < 0).all())


def follow(offsets, kind, stage, microbatch, stages, microbatches, row_of, weights, again, source):
    """Walk the lists and fill `source`; False at the first fault or a standstill. Compiled, or plain on lists.

    `row_of`, by stage * microbatches + microbatch, first F and then B or I, holds the row once it has run, -1 before,
    or -2 - d where device d waits for it; `weights` says whether W has run, `again` whether R has. Beside
    `recurrence.walk` this walk stays because it finds the source of a row, checks the row and runs it while the row is
    at hand, in less time than finding the sources alone would take.
    """
    devices, cells = len(offsets) - 1, stages * microbatches
    position, stack = offsets[:-1].copy(), offsets[:-1].copy()
    for device in range(devices):
        if offsets[device] == offsets[device + 1]:
            return False
        stack[device] = devices - 1 - device
    height = devices
    done = forwards = inputs = weight_grads = recomputes = 0
    while height > 0:
        height -= 1
        device = stack[height]
        first, last, row = offsets[device], offsets[device + 1], position[device]
        while row < last:
            if stage[row] < 0 or microbatch[row] < 0:
                return False
            own = stage[row] * microbatches + microbatch[row]
            need = -1
            if kind[row] == _W:
                before = row_of[cells + own]
                if before < first or before >= row or kind[before] != _I or weights[own]:
                    return False
                weights[own] = True
                weight_grads += 1
            elif kind[row] == _R:
                if row_of[own] < first or row_of[own] >= row or row_of[cells + own] >= 0 or again[own]:
                    return False
                again[own] = True
                recomputes += 1
            else:
                if kind[row] == _F:
                    inside, neighbour = stage[row] > 0, own - microbatches
                else:
                    if row_of[own] < first or row_of[own] >= row:
                        return False
                    own += cells
                    inside, neighbour = stage[row] + 1 < stages, own + microbatches
                if inside:
                    need = row_of[neighbour]
                    if need < 0:
                        row_of[neighbour] = -2 - device
                        break
                waiting = row_of[own]
                if waiting >= 0:
                    return False
                if waiting < -1:
                    stack[height] = -2 - waiting
                    height += 1
                row_of[own] = row
                forwards += kind[row] == _F
                inputs += kind[row] == _I
            source[row] = need
            row += 1
        done += row - position[device]
        position[device] = row
    counted = 2 * forwards + inputs + recomputes == done
    return done == offsets[-1] and counted and forwards == cells and inputs == weight_grads
