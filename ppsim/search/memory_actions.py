"""Schedules that trade time for memory: R, or OFFLOAD and RELOAD, put into the lists of any schedule."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from ppsim.actions import Kind, is_backward
from ppsim.base.errors import BuildError, shown
from ppsim.costs.given import Costs
from ppsim.costs.table import CostModel, CostTable, check_table, is_cost_model
from ppsim.families.registry import require_choice
from ppsim.lowering.rows import insert_at, row_tables
from ppsim.schedule.columns import ScheduleColumns
from ppsim.search.idle_time import held_at_most, in_idle_time
from ppsim.search.needed import needed_recomputes
from ppsim.search.problem import limits_of

NEEDED = "needed"
MEMORY_ACTIONS = ("recompute", "recompute_placing", "offload")  # what `with_memory_actions` is asked for
PLACINGS = ("backward", "idle", "idle+forwards")

FIRST = re.compile(r"first:([0-9]{1,9})")


def with_memory_actions(
    schedule: ScheduleColumns,
    recompute: str | None = None,
    recompute_placing: str = "backward",
    offload: str | None = None,
    **given: Any,
) -> ScheduleColumns:
    """The schedule with R, or OFFLOAD and RELOAD, where they are asked for; `given` are costs and limit of R."""
    if recompute is not None:
        schedule = recomputed(schedule, recompute, recompute_placing, **given)
    elif recompute_placing != "backward":
        raise BuildError(f"recompute_placing={shown(recompute_placing)} says where R goes; give recompute='all' too")
    return schedule if offload is None else offloaded(schedule, offload)


def recomputed(
    schedule: ScheduleColumns,
    stages: str = "all",
    placing: str = "backward",
    costs: CostModel | None = None,
    memory_limit: float | Sequence[float] | None = None,
) -> ScheduleColumns:
    """The schedule with R for the chosen stages; see `ppsim.with_recompute`."""
    _require_plain_lists(schedule, "recompute")
    require_choice("placing", placing, PLACINGS)
    backward = is_backward(schedule.kind)
    if stages != NEEDED and placing == "backward":
        return _with_r(schedule, np.flatnonzero(backward & _chosen(schedule, stages, "recompute")))
    table = priced(schedule, costs)
    if stages == NEEDED:
        if memory_limit is None:
            raise BuildError("recompute='needed' recomputes what does not fit; give memory_limit= such as 4.0")
        rows = needed_recomputes(schedule, table, limits_of(schedule.devices, memory_limit))
    else:
        rows = np.flatnonzero(backward & _chosen(schedule, stages, "recompute") & ~_behind_its_forward(schedule))
    made = _with_r(schedule, rows)
    if placing == "backward":
        return made
    limit = held_at_most(schedule, table) if memory_limit is None else limits_of(schedule.devices, memory_limit)
    return in_idle_time(made, table, limit, placing == "idle+forwards")


def _with_r(schedule: ScheduleColumns, rows: np.ndarray) -> ScheduleColumns:
    """An R directly before each of these backwards."""
    return insert_at(schedule, rows, np.full(len(rows), Kind.R), 2 * (rows - schedule.joined[rows]))


def _behind_its_forward(schedule: ScheduleColumns) -> np.ndarray:
    """Where a backward directly follows its own forward, whose activations then are still there; bool."""
    same = (np.diff(schedule.stage) == 0) & (np.diff(schedule.microbatch) == 0) & (schedule.kind[:-1] == Kind.F)
    return np.append(False, same)


def priced(schedule: ScheduleColumns, costs: CostModel | None) -> CostTable:
    """The costs of a schedule; by default F, I and W of a device share take 1 s each."""
    costs = Costs(forward=1.0, input_grad=1.0, weight_grad=1.0) if costs is None else costs
    if not is_cost_model(costs):
        raise BuildError(f"costs={shown(costs)} cannot price a schedule; give ppsim.Costs(forward=..., backward=...)")
    table = costs.table(schedule)
    check_table(table, schedule)
    return table


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
    return insert_at(
        schedule,
        np.concatenate([forward, own]),
        np.repeat([Kind.OFFLOAD, Kind.RELOAD], len(own)),
        np.concatenate([2 * leaves + 2, 2 * (back - schedule.joined[back])]),
    )


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
    match = FIRST.fullmatch(stages) if isinstance(stages, str) else None
    if stages != "all" and not match:
        needed = ", or 'needed' for what does not fit" if what == "recompute" else ""
        raise BuildError(
            f"{what}={shown(stages)} is not known; use 'all', or 'first:1' for one stage of each device{needed}"
        )
    most = int(counts.max())
    first = int(match[1]) if match else most
    if not 1 <= first <= most:
        raise BuildError(f"{what}={shown(stages)}: each device has {most} stage(s); use 'first:1' to 'first:{most}'")
    return local < first
