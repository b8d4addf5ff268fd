"""Schedules that trade time for memory: R, or OFFLOAD and RELOAD, put into the lists of any schedule."""

from __future__ import annotations

import re

import numpy as np

from ppsim.actions import Kind, is_backward
from ppsim.base.errors import BuildError, shown
from ppsim.lowering.rows import insert_rows, row_tables
from ppsim.schedule.columns import ScheduleColumns

_FIRST = re.compile(r"first:([0-9]{1,9})")


def recomputed(schedule: ScheduleColumns, stages: str) -> ScheduleColumns:
    """The schedule with an R directly before each B or I of the chosen stages; see `ppsim.with_recompute`."""
    _require_plain_lists(schedule, "recompute")
    rows = np.flatnonzero(is_backward(schedule.kind) & _chosen(schedule, stages, "recompute"))
    return _inserted(schedule, rows, np.full(len(rows), Kind.R), 2 * (rows - schedule.joined[rows]))


def offloaded(schedule: ScheduleColumns, stages: str) -> ScheduleColumns:
    """The schedule with OFFLOAD and RELOAD for the chosen stages; see `ppsim.with_offload`.

    Source of the place of a RELOAD: sail-sg/zero-bubble-pipeline-parallelism, zerobubble/scheduler/offloading.py
    (Wan et al. 2025, PipeOffload, arXiv 2503.01328).
    """
    _require_plain_lists(schedule, "offload")
    backward = np.flatnonzero(is_backward(schedule.kind))
    own = np.flatnonzero(is_backward(schedule.kind) & _chosen(schedule, stages, "offload"))
    forward = row_tables(schedule)[0][schedule.stage[own], schedule.microbatch[own]]
    before = np.append(-1, backward)[np.searchsorted(backward, own)]  # the backward before each, on any device
    back = np.where(before > forward, before, own)
    leaves = forward + np.append(schedule.joined, False)[forward + 1]  # a fused slot is not torn apart
    return _inserted(
        schedule,
        np.concatenate([forward, own]),
        np.repeat([Kind.OFFLOAD, Kind.RELOAD], len(own)),
        np.concatenate([2 * leaves + 2, 2 * (back - schedule.joined[back])]),
    )


def _inserted(schedule: ScheduleColumns, rows: np.ndarray, kind: np.ndarray, anchor: np.ndarray) -> ScheduleColumns:
    """The lists with an action of each kind for the stage and microbatch of each row; row i has anchor 2 i + 1."""
    anchors = np.concatenate([2 * np.arange(len(schedule.kind)) + 1, anchor])
    return insert_rows(
        schedule, schedule.device[rows], kind, schedule.stage[rows], schedule.microbatch[rows], (anchors,)
    )  # fmt: skip


def _require_plain_lists(schedule: ScheduleColumns, what: str) -> None:
    found = next((name for name in ("is_program", "recomputes") if getattr(schedule, name)), None)
    if len(schedule.evicted):
        raise BuildError(f"{what}: schedule {schedule.name!r} evicts activations to other devices; use such as '1f1b'")
    if found:
        words = {"is_program": "transfers, sharding actions or copies", "recomputes": "R"}
        raise BuildError(f"{what}: the lists of {schedule.name!r} hold {words[found]}; give a schedule without them")


def _chosen(schedule: ScheduleColumns, stages: str, what: str) -> np.ndarray:
    """Whether each row belongs to the chosen stages of its device, bool."""
    devices, counts = np.unique(schedule.holdings[:, 0], return_counts=True)
    first_of_device = np.cumsum(counts) - counts
    held = schedule.holdings[:, 0].astype(np.int64) * schedule.num_stages + schedule.holdings[:, 1]
    number = np.searchsorted(held, schedule.device.astype(np.int64) * schedule.num_stages + schedule.stage)
    local = number - first_of_device[np.searchsorted(devices, schedule.device)]
    match = _FIRST.fullmatch(stages) if isinstance(stages, str) else None
    if stages != "all" and not match:
        raise BuildError(f"{what}={shown(stages)} is not known; use 'all', or 'first:1' for one stage of each device")
    most = int(counts.max())
    first = int(match[1]) if match else most
    if not 1 <= first <= most:
        raise BuildError(f"{what}={shown(stages)}: each device has {most} stage(s); use 'first:1' to 'first:{most}'")
    return local < first
