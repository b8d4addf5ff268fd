"""Plan: schedule, costs and transport resolved into the columns that both engines walk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ppsim.actions import Kind
from ppsim.checks.deadlock import refuse_slots_that_need_themselves
from ppsim.costs.table import CostTable
from ppsim.lowering.posts import Posts, queued_posts, unqueued_posts
from ppsim.lowering.rows import crosses_devices, has_transfers
from ppsim.lowering.transfers import insert_transfers
from ppsim.plan.ports import Ports, make_ports
from ppsim.plan.streams import Gathers, Reductions, find_gathers, find_reductions, optimizer_seconds
from ppsim.schedule.columns import ScheduleColumns


@dataclass(frozen=True)
class Plan:
    """What an engine needs, one entry a row of the compute schedule.

    Attributes
    ----------
    seconds : float64
        Length of the row; of a timed fused slot the first row holds the slot's length and the second 0.
    fused : bool
        True where the row starts and ends together with the row before it (a timed OVERLAP_F_B slot).
    source : int32
        Row that the row needs, or -1.
    remote : bool
        True where that row sits on another device: a transfer, named by the row that consumes it.
    transfer_seconds : float64
        Latency + bytes / bandwidth of the row's transfer, 0 where it has none.
    posts : Posts or None
        None under `async`, where nothing queues; with gathers or ports also there, each end in a queue of its own.
    blocking : bool
        Whether a device's next compute action waits for the SENDs posted before it.
    gathers : Gathers or None
        UNSHARDs that take time.
    reductions : Reductions or None
    optimizer : str or None
        "sync", "post-validated", or None where the step ends with the last action and reduction.
    optimizer_seconds : float64 (devices,) or None
        None without an optimizer step.
    ports : Ports or None
        What transfers share beside their queues.
    noise : mapping or None
        The jitter, seed and number of the sample that the lengths were drawn from; None where they are the costs.
    """

    schedule: ScheduleColumns
    transport: str
    seconds: np.ndarray
    fused: np.ndarray
    source: np.ndarray
    remote: np.ndarray
    transfer_seconds: np.ndarray
    posts: Posts | None = None
    blocking: bool = False
    gathers: Gathers | None = None
    reductions: Reductions | None = None
    optimizer: str | None = None
    optimizer_seconds: np.ndarray | None = None
    ports: Ports | None = None
    noise: Mapping[str, Any] | None = None


def make_plan(schedule: ScheduleColumns, table: CostTable, transport: str, optimizer: str | None = None) -> Plan:
    """Resolve a valid schedule or program; under a queued transport a schedule is lowered first."""
    compute = schedule.compute
    source = compute.source
    remote = crosses_devices(compute)
    fused = compute.joined if table.overlap is not None else np.zeros(len(source), bool)
    refuse_slots_that_need_themselves(compute, fused)
    program = schedule
    if transport != "async" and remote.any() and not has_transfers(schedule):
        program = insert_transfers(schedule)
    gathers = find_gathers(program, table)
    ports = make_ports(compute, table, remote)
    posts = None
    if transport != "async":
        posts = queued_posts(program, transport)
    elif gathers is not None or ports is not None:
        posts = unqueued_posts(compute, remote)
    return Plan(
        compute,
        transport,
        row_seconds(compute, table),
        fused,
        source,
        remote,
        _transfer_seconds(compute, table, source, remote),
        posts,
        transport == "blocking",
        gathers,
        find_reductions(program, table),
        optimizer,
        None if optimizer is None else optimizer_seconds(compute, table),
        ports,
    )


def repriced(plan: Plan, table: CostTable) -> Plan:
    """The same plan under other costs of the same `structure`; who waits for whom stays."""
    gathers, reductions = plan.gathers, plan.reductions
    if gathers is not None and table.unshard_seconds is not None:
        gathers = replace(gathers, seconds=table.unshard_seconds[gathers.stage])
    if reductions is not None and table.reduce_seconds is not None:
        reductions = replace(reductions, seconds=table.reduce_seconds[reductions.stage])
    return replace(
        plan,
        seconds=row_seconds(plan.schedule, table),
        transfer_seconds=_transfer_seconds(plan.schedule, table, plan.source, plan.remote),
        gathers=gathers,
        reductions=reductions,
        optimizer_seconds=None if plan.optimizer is None else optimizer_seconds(plan.schedule, table),
        ports=make_ports(plan.schedule, table, plan.remote),
        noise=None,
    )


def structure(table: CostTable) -> tuple[bool, ...]:
    """What of a table says who waits for whom: whether fused slots, UNSHARDs and reductions take time, and ports."""
    ports = None if table.port_capacity is None else table.link_ports
    return tuple(column is not None for column in (table.overlap, table.unshard_seconds, table.reduce_seconds, ports))


def by_kind_and_stage(schedule: ScheduleColumns, values: np.ndarray, rows: slice = slice(None)) -> np.ndarray:
    """For each of these rows of a compute schedule its entry in `values`, F, B, I and W by stage, (4, stages)."""
    cell = schedule.kind[rows].astype(np.int64)
    cell *= schedule.num_stages  # in place: at a million rows fresh memory costs more than the sums
    cell += schedule.stage[rows]
    return values.ravel().take(cell)


def row_seconds(schedule: ScheduleColumns, table: CostTable) -> np.ndarray:
    """Seconds of each row; of a timed fused slot the first row holds the slot's length and the second 0."""
    seconds = by_kind_and_stage(schedule, table.seconds)
    if schedule.slices > 1:
        seconds *= _slice_fraction(schedule, table, slice(None))
    if table.overlap is not None:
        second = np.flatnonzero(schedule.joined)
        first = second - 1
        forward = np.where(schedule.kind[first] == Kind.F, first, second)
        backward = first + second - forward
        seconds[first] = table.overlap[schedule.stage[forward], schedule.stage[backward]]
        if schedule.slices > 1:
            seconds[first] *= _slice_fraction(schedule, table, forward)
        seconds[second] = 0.0
    return seconds


def _slice_fraction(schedule: ScheduleColumns, table: CostTable, rows: slice | np.ndarray) -> np.ndarray:
    """Part of a microbatch's time in the slice of each of these rows."""
    return table.slice_fraction[schedule.microbatch[rows] % schedule.slices]


def transfer_bytes(schedule: ScheduleColumns, table: CostTable, producer: np.ndarray) -> np.ndarray:
    """Bytes that each of the rows `producer` sends to another device."""
    backward = schedule.kind.take(producer) != Kind.F
    cell = backward.astype(np.int64) * schedule.num_stages + schedule.stage.take(producer)
    return table.transfer_bytes.ravel().take(cell) / schedule.slices


def _transfer_seconds(
    schedule: ScheduleColumns, table: CostTable, source: np.ndarray, remote: np.ndarray
) -> np.ndarray:
    latency, per_byte = table.latency.ravel(), table.seconds_per_byte.ravel()
    sent = table.transfer_bytes / schedule.slices
    if all(np.all(column == column.flat[0]) for column in (latency, per_byte, sent)):
        return np.where(remote, latency[0] + sent.flat[0] * per_byte[0], 0.0)
    device = schedule.device
    link = device.take(source).astype(np.int64) * schedule.devices + device
    seconds = transfer_bytes(schedule, table, source)
    seconds *= per_byte.take(link)
    seconds += latency.take(link)
    return np.where(remote, seconds, 0.0)
