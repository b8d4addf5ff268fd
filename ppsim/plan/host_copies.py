"""Activations on their way to host memory and back: what is copied, when it is posted and how long it takes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ppsim.actions import FIRST_TRANSFER, Kind, is_copy
from ppsim.base.immutable import EqualColumns
from ppsim.base.lists import DeviceLists
from ppsim.costs.table import CostTable
from ppsim.lowering.rows import row_tables
from ppsim.schedule.columns import ScheduleColumns

OFFLOADS, RELOADS = 0, 1


@dataclass(frozen=True, eq=False)
class Copies(DeviceLists, EqualColumns):
    """The OFFLOADs and RELOADs in program order; device d owns `offsets[d]:offsets[d + 1]`.

    A device has a copy engine for each way, on which copies run one after the other. Each is posted when the compute
    actions that stand before it have ended; a RELOAD also waits for the end of its OFFLOAD.

    Attributes
    ----------
    offsets : int64 (devices + 1,)
    stage, microbatch : int32 (copies,)
    way : int8 (copies,)
        OFFLOADS or RELOADS.
    before : int32 (copies,)
        Posted after all rows of its device below this one.
    origin : int32 (copies,)
        Of a RELOAD the copy that it brings back; else -1.
    user : int32 (copies,)
        Of a RELOAD the row that waits for it: the first R or backward of its activation; else -1.
    seconds : float64 (copies,)
    """

    offsets: np.ndarray
    stage: np.ndarray
    microbatch: np.ndarray
    way: np.ndarray
    before: np.ndarray
    origin: np.ndarray
    user: np.ndarray
    seconds: np.ndarray

    @property
    def behind(self) -> np.ndarray:
        """The copy before each on its copy engine, or -1; int64."""
        order = np.lexsort((self.way, self.device))  # stable, so in program order
        same = (np.diff(self.way[order]) == 0) & (np.diff(self.device[order]) == 0)
        behind = np.full(len(order), -1, np.int64)
        behind[order[1:][same]] = order[:-1][same]
        return behind


def find_copies(program: ScheduleColumns, table: CostTable) -> Copies | None:
    """The OFFLOADs and RELOADs of a valid program, or None where there are none."""
    row = np.flatnonzero(is_copy(program.kind))
    if not len(row):
        return None
    compute = program.compute
    stage, microbatch = program.stage[row], program.microbatch[row]
    way = (program.kind[row] == Kind.RELOAD).astype(np.int8)
    cell = stage.astype(np.int64) * program.microbatches + microbatch
    number = np.arange(len(row))
    offload_of = np.full(program.num_stages * program.microbatches, -1, np.int32)
    offload_of[cell[way == OFFLOADS]] = number[way == OFFLOADS]
    before = np.cumsum(program.kind < FIRST_TRANSFER).astype(np.int32)[row]
    return Copies(
        np.searchsorted(row, program.offsets),
        stage,
        microbatch,
        way,
        before,
        np.where(way == RELOADS, offload_of[cell], -1),
        np.where(way == RELOADS, _first_users(compute)[stage, microbatch], -1),
        copy_seconds(compute, table, stage, microbatch),
    )


def _first_users(compute: ScheduleColumns) -> np.ndarray:
    """Row of R, or where there is none of the backward, by [stage, microbatch]."""
    users = row_tables(compute)[1].astype(np.int32)
    again = np.flatnonzero(compute.kind == Kind.R)
    users[compute.stage[again], compute.microbatch[again]] = again
    return users


def copy_seconds(compute: ScheduleColumns, table: CostTable, stage: np.ndarray, microbatch: np.ndarray) -> np.ndarray:
    """Seconds of a copy of each (stage, microbatch), one way: latency + bytes / bandwidth."""
    held = table.offload_bytes if table.offload_bytes is not None else table.activation_bytes
    if held is None:
        return np.full(len(stage), table.offload_latency)
    moved = held[stage] * stored_part(compute, table, stage, microbatch) / compute.slices
    moved = moved * table.scale_of(compute, stage, microbatch)
    return table.offload_latency + moved * table.offload_seconds_per_byte


def copied_part(compute: ScheduleColumns, table: CostTable, stage: np.ndarray, microbatch: np.ndarray) -> np.ndarray:
    """Part of the whole activation of each (stage, microbatch) that leaves the device with an OFFLOAD."""
    part = stored_part(compute, table, stage, microbatch)
    if table.offload_bytes is None or table.activation_bytes is None:
        return part
    most = np.maximum(table.activation_bytes, table.offload_bytes)
    return part * np.divide(table.offload_bytes, most, out=np.ones_like(most), where=most > 0)[stage]


def stored_part(compute: ScheduleColumns, table: CostTable, stage: np.ndarray, microbatch: np.ndarray) -> np.ndarray:
    """Part of its activation that each (stage, microbatch) holds after F: all, or where an R follows its input."""
    again = np.zeros((compute.num_stages, compute.microbatches), bool)
    rows = np.flatnonzero(compute.kind == Kind.R)
    again[compute.stage[rows], compute.microbatch[rows]] = True
    stored = np.zeros(compute.num_stages) if table.input_fraction is None else table.input_fraction
    return np.where(again[stage, microbatch], stored[stage], 1.0)
