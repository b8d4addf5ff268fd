"""Which activations are made again where a device's memory does not hold all of them: as few as that takes."""

from __future__ import annotations

import heapq

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import BuildError
from ppsim.costs.table import CostTable
from ppsim.lowering.rows import row_tables
from ppsim.schedule.columns import ScheduleColumns

_ROUNDING = 1e-9


def needed_recomputes(schedule: ScheduleColumns, table: CostTable, limits: np.ndarray) -> np.ndarray:
    """The backwards that need an R directly before them so that no device holds more than its limit, sorted rows.

    In the order of the list, and without looking at time, an activation that does not fit goes in favour of those whose
    backwards come sooner; of equal activations no choice makes fewer R (Belady 1966, doi 10.1147/sj.52.0078, for
    intervals). `limits` are in activations of one device share, float64 (devices,).

    Raises
    ------
    BuildError
        A limit does not hold one activation and the stored inputs of the others.
    """
    rows = [_needed_on(schedule, table, device, float(limits[device])) for device in range(schedule.devices)]
    return np.sort(np.concatenate(rows)).astype(np.int64)


def _needed_on(schedule: ScheduleColumns, table: CostTable, device: int, limit: float) -> list[int]:
    span = schedule.rows(device)
    stage, microbatch = schedule.stage[span], schedule.microbatch[span]
    backward = row_tables(schedule)[1][stage, microbatch].tolist()
    whole = table.stage_share[stage] / schedule.slices * table.scale_of(schedule, stage, microbatch)
    stored = (whole * (0.0 if table.input_fraction is None else table.input_fraction[stage])).tolist()
    kept, kinds, whole = table.weight_grad_fraction[stage].tolist(), schedule.kind[span].tolist(), whole.tolist()
    held: list[tuple[int, float]] = []  # by the last backward first: minus its row, and what dropping it frees
    dropped: set[int] = set()
    level = 0.0
    for number, kind in enumerate(kinds):
        row, own = span.start + number, backward[number]
        if kind == Kind.F:
            level += whole[number]
            heapq.heappush(held, (-own, whole[number] - stored[number]))
        elif row == own and row in dropped:
            level += whole[number] - stored[number]
        while level > limit + _ROUNDING:
            if not held or -held[0][0] <= row:
                whole = ", or whole backwards: what waits for its W cannot be made again" if Kind.W in kinds else ""
                raise BuildError(
                    f"memory_limit={limit:g} on device {device}: with all recomputed it still holds {level:g} "
                    f"activations at {schedule.label(row)}; use at least {level:g}{whole}"
                )
            last, freed = heapq.heappop(held)
            dropped.add(-last)
            level -= freed
        if kind != Kind.F:
            part = {Kind.B: 1.0, Kind.I: 1.0 - kept[number], Kind.W: kept[number]}
            level -= whole[number] * part.get(Kind(kind), 0.0)
    return sorted(dropped)
