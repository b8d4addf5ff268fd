"""What each row of a schedule adds to what its device holds, and what it frees: activations, or their bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from ppsim.actions import Kind
from ppsim.costs.table import CostTable
from ppsim.plan.lengths import by_kind_and_stage
from ppsim.schedule.columns import ScheduleColumns


def changes_by_kind(whole: Any, for_weight: Any, stored: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return what F, B, I, W, R, S and T add at their start and free at their end, two arrays of one row per kind.

    Parameters
    ----------
    whole : array of any shape
        What one activation holds.
    for_weight : array of that shape
        The part of it that lives until W; the rest ends with I.
    stored : array of that shape
        The stored input from which an R makes the activation again. An F whose R follows adds this instead of `whole`.
    """
    nothing = np.zeros_like(whole)
    adds = [whole, nothing, nothing, nothing, whole - stored, nothing, nothing]
    frees = [nothing, whole, whole - for_weight, for_weight, nothing, nothing, nothing]
    return np.stack(adds), np.stack(frees)


def parts_of(table: CostTable, whole: np.ndarray) -> np.ndarray:
    """Return an activation's size, its part for W and its stored input by stage, float64 (3, stages).

    `whole` is what one microbatch holds on each stage, in any unit.
    """
    stored = np.zeros_like(whole) if table.input_fraction is None else whole * table.input_fraction
    return np.stack([whole, whole * table.weight_grad_fraction, stored])


class Holding:
    """What the rows of a schedule add and free, in the unit of `weight`, which one whole microbatch holds by stage."""

    def __init__(self, schedule: ScheduleColumns, table: CostTable, weight: np.ndarray):
        self.schedule, self.table = schedule, table
        parts = parts_of(table, weight / schedule.slices)
        self.stored = parts[2]
        self.adds, self.frees = changes_by_kind(*parts)

    def changes(self, rows: slice = slice(None)) -> tuple[np.ndarray, np.ndarray]:
        """Return what each of these rows adds at its start and frees at its end."""
        schedule = self.schedule
        adds, frees = (by_kind_and_stage(schedule, values, rows) for values in (self.adds, self.frees))
        if schedule.recomputes:
            short = schedule.recomputed[rows] & (schedule.kind[rows] == Kind.F)
            adds[short] = self.stored[schedule.stage[rows][short]]
        scale = self.table.scale_of(schedule, schedule.stage[rows], schedule.microbatch[rows])
        return adds * scale, frees * scale
