"""Whether a schedule has a fault, in one pass over its rows that also finds who waits for whom."""

from __future__ import annotations

import numpy as np

from ppsim.actions import Kind
from ppsim.base.compiling import call_fastest, kernel
from ppsim.schedule.columns import ScheduleColumns

_F, _I, _W, _R = (int(kind) for kind in (Kind.F, Kind.I, Kind.W, Kind.R))


def source_of_valid(schedule: ScheduleColumns) -> np.ndarray | None:
    """`schedule.source` where compute actions have no fault and run to their end, None otherwise; int32.

    Lists with S or T, of which some wait for many at once, are left to the other checks too.
    """
    stages, microbatches, rows = schedule.num_stages, schedule.microbatches, len(schedule.kind)
    cells = stages * microbatches
    if (
        schedule.cuts_vocabulary or not 0 < 2 * cells <= rows
    ):  # each needs an F and a backward, and the tables stay as small as the columns
        return None
    source, row_of = np.empty(rows, np.int32), np.full(2 * cells, -1, np.int32)
    weights, again = np.full(cells, False, bool), np.zeros(cells if schedule.recomputes else 0, bool)
    valid = call_fastest(
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


@kernel(allocates=True)
def follow(offsets, kind, stage, microbatch, stages, microbatches, row_of, weights, again, source):
    """Walk the lists and fill `source`; False at the first fault or a standstill. Compiled, or plain on lists.

    Sweeps over the devices, up and down, let each run as far as it can. `row_of`, by stage * microbatches + microbatch,
    first F and then B or I, holds the row once it has run, -1 before; `weights` says whether W has run, `again` whether
    R has. Beside `recurrence.walk` this walk stays because it finds the source of a row, checks the row and runs it
    while the row is at hand, in less time than finding the sources alone would take. Lists that let few devices run in
    a sweep are left to the other checks, whose time does not grow with the number of sweeps.
    """
    devices, cells = len(offsets) - 1, stages * microbatches
    position = offsets[:-1].copy()
    forwards = inputs = weight_grads = recomputes = 0
    left, visits, step = offsets[-1], -64 * devices, 1
    while left > 0:
        before = left
        device = 0 if step > 0 else devices - 1
        while 0 <= device < devices:
            first, last, begin = offsets[device], offsets[device + 1], position[device]
            if first == last:
                return False
            row = begin
            while row < last:
                code, at, number = kind[row], stage[row], microbatch[row]
                if at < 0 or number < 0:
                    return False
                own = at * microbatches + number
                need = -1
                if code == _W:
                    made = row_of[cells + own]
                    if made < first or kind[made] != _I or weights[own]:
                        return False
                    weights[own] = True
                    weight_grads += 1
                elif code == _R:
                    if row_of[own] < first or row_of[own] >= last or row_of[cells + own] >= 0 or again[own]:
                        return False
                    again[own] = True
                    recomputes += 1
                else:
                    if code == _F:
                        if at > 0:
                            need = row_of[own - microbatches]
                            if need < 0:
                                break
                        forwards += 1
                    else:
                        if row_of[own] < first or row_of[own] >= last:
                            return False
                        own += cells
                        if at + 1 < stages:
                            need = row_of[own + microbatches]
                            if need < 0:
                                break
                        inputs += code == _I
                    if row_of[own] >= 0:
                        return False
                    row_of[own] = row
                source[row] = need
                row += 1
            position[device] = row
            left -= row - begin
            device += step
        visits += devices
        if left == before or visits > 8 * (offsets[-1] - left):
            return False
        step = -step
    counted = 2 * forwards + inputs + recomputes == offsets[-1]
    return counted and forwards == cells and inputs == weight_grads
