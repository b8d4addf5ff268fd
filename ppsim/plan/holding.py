"""What each row of a schedule adds to what its device holds, and what it frees: activations, or their bytes."""

from __future__ import annotations

import numpy as np

from ppsim.actions import Kind
from ppsim.costs.table import CostTable
from ppsim.plan.resolve import by_kind_and_stage
from ppsim.schedule.columns import ScheduleColumns


class Holding:
    """Prices of what rows hold; `weight` is of a whole microbatch by stage.

    Where an R follows, the F adds the stored input alone and the R what it makes again.
    """

    def __init__(self, schedule: ScheduleColumns, table: CostTable, weight: np.ndarray):
        self.schedule, self.table = schedule, table
        whole, kept = weight / schedule.slices, table.weight_grad_fraction
        nothing = np.zeros_like(whole)
        self.stored = whole * (nothing if table.input_fraction is None else table.input_fraction)
        adds = [whole, nothing, nothing, nothing, whole - self.stored, nothing, nothing]  # by code of F to T
        frees = [nothing, whole, whole * (1.0 - kept), whole * kept, nothing, nothing, nothing]
        self.adds, self.frees = np.stack(adds), np.stack(frees)

    def changes(self, rows: slice) -> tuple[np.ndarray, np.ndarray]:
        """What each of these rows adds at its start and frees at its end."""
        schedule = self.schedule
        adds, frees = (by_kind_and_stage(schedule, values, rows) for values in (self.adds, self.frees))
        if schedule.recomputes:
            short = schedule.recomputed[rows] & (schedule.kind[rows] == Kind.F)
            adds[short] = self.stored[schedule.stage[rows][short]]
        scale = self.table.scale_of(schedule, schedule.stage[rows], schedule.microbatch[rows])
        return adds * scale, frees * scale
