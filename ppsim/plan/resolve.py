"""Plan: schedule, costs and transport resolved into the columns that both engines walk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import CostError
from ppsim.base.immutable import EqualColumns, unwritable
from ppsim.checks.deadlock import refuse_slots_that_need_themselves
from ppsim.costs.table import CostTable
from ppsim.costs.table_check import check_table
from ppsim.lowering.posts import Posts, queued_posts, unqueued_posts
from ppsim.lowering.rows import crosses_devices, has_transfers
from ppsim.lowering.transfers import insert_transfers
from ppsim.plan.host_copies import Copies, copy_seconds, find_copies
from ppsim.plan.ports import Ports, make_ports
from ppsim.plan.streams import Gathers, Reductions, find_gathers, find_reductions, optimizer_seconds
from ppsim.schedule.columns import ScheduleColumns, Slots


@dataclass(frozen=True, eq=False)
class Plan(EqualColumns):
    """What an engine needs, one entry a row of the compute schedule; its columns are never written to again.

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
        None under `async`, where nothing queues; with gathers, copies or ports also there, each end in its own queue.
    blocking : bool
        Whether a device's next compute action waits for the SENDs posted before it.
    gathers : Gathers or None
        UNSHARDs that take time.
    copies : Copies or None
        OFFLOADs and RELOADs.
    dispatch : str
        "ready" where the order of the lists is the one that devices chose, else "list".
    reductions : Reductions or None
    optimizer : str or None
        "sync", "post-validated", or None where the step ends with the last action and reduction.
    optimizer_seconds : float64 (devices,) or None
        None without an optimizer step.
    ports : Ports or None
        What transfers share beside their queues.
    noise : mapping or None
        The jitter, seed and number of the sample that the lengths were drawn from; None where they are the costs.

    Raises
    ------
    CostError
        A length is not finite, or all of them together are not.
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
    copies: Copies | None = None
    dispatch: str = "list"

    def __post_init__(self) -> None:
        for column in fields(self):
            value = getattr(self, column.name)
            if isinstance(value, np.ndarray):
                object.__setattr__(self, column.name, unwritable(value))
        _check_lengths(self)

    @cached_property
    def slots(self) -> Slots:
        """The rows of the timed OVERLAP_F_B slots."""
        return self.schedule.slots if self.fused.any() else Slots(*np.empty((4, 0), np.int64))

    @cached_property
    def first_rows(self) -> np.ndarray:
        """The rows that start on their own, int64: every row but the second of a timed slot."""
        return np.flatnonzero(~self.fused)

    @cached_property
    def slot_of_row(self) -> np.ndarray:
        """For each row the row that it starts with, int64: of a timed slot's second row the first, else itself."""
        return np.arange(len(self.fused)) - self.fused

    @cached_property
    def kind(self) -> np.ndarray:
        """Code of each row's kind, int64; OVERLAP_F_B at the first row of a timed slot."""
        kind = self.schedule.kind.astype(np.int64)
        kind[self.slots.first] = Kind.OVERLAP_F_B
        return unwritable(kind)


def make_plan(schedule: ScheduleColumns, table: CostTable, transport: str, optimizer: str | None = None) -> Plan:
    """Resolve a valid schedule or program; under a queued transport a schedule is lowered first.

    Raises CostError where the table does not fit the schedule, DeadlockError where a slot would wait for itself.
    """
    compute = schedule.compute
    check_table(table, compute)
    source = compute.source
    remote = crosses_devices(compute)
    fused = compute.joined if table.overlap is not None else np.zeros(len(source), bool)
    if table.overlap is not None:
        refuse_slots_that_need_themselves(compute, fused)
    program = schedule
    if transport != "async" and remote.any() and not has_transfers(schedule):
        program = insert_transfers(schedule)
    gathers = find_gathers(program, table)
    copies = find_copies(program, table)
    ports = make_ports(compute, table, remote)
    posts = None
    if transport != "async":
        posts = queued_posts(program, transport)
    elif not (gathers is None and ports is None and copies is None):
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
        copies=copies,
    )


def repriced(plan: Plan, table: CostTable) -> Plan:
    """The same plan under other costs of the same `structure`; who waits for whom stays; CostError as `make_plan`."""
    check_table(table, plan.schedule)
    gathers, reductions = plan.gathers, plan.reductions
    if gathers is not None and table.unshard_seconds is not None:
        gathers = replace(gathers, seconds=table.unshard_seconds[gathers.stage])
    if reductions is not None and table.reduce_seconds is not None:
        reductions = replace(reductions, seconds=table.reduce_seconds[reductions.stage])
    copies = plan.copies
    if copies is not None:
        seconds = copy_seconds(plan.schedule, table, copies.stage, copies.microbatch)
        copies = replace(copies, seconds=seconds)
    return replace(
        plan,
        copies=copies,
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
    """For each of these rows of a compute schedule its entry in `values`, F, B, I and W by stage, (4, stages).

    An R takes the entry of F, or that of a fifth row.
    """
    if schedule.recomputes and len(values) == Kind.R:
        values = np.concatenate([values, values[:1]])
    cell = schedule.kind[rows].astype(np.int64)
    cell *= schedule.num_stages  # in place: at a million rows fresh memory costs more than the sums
    cell += schedule.stage[rows]
    return values.ravel().take(cell)


def row_seconds(schedule: ScheduleColumns, table: CostTable) -> np.ndarray:
    """Seconds of each row; of a timed fused slot the first row holds the slot's length and the second 0."""
    again = table.recompute_seconds
    seconds = by_kind_and_stage(schedule, table.seconds if again is None else np.vstack([table.seconds, again]))
    overhead = None if table.overhead is None else by_kind_and_stage(schedule, table.overhead)
    if schedule.slices > 1:
        seconds = _sliced(seconds, overhead, slice_fraction(schedule, table))
    if table.overlap is not None:
        first, second, forward, backward = schedule.slots
        slot = table.overlap[schedule.stage[forward], schedule.stage[backward]]
        if schedule.slices > 1:
            of_slot = None if overhead is None else np.maximum(overhead[first], overhead[second])
            slot = _sliced(slot, of_slot, slice_fraction(schedule, table)[forward])
        seconds[first], seconds[second] = slot, 0.0
    return seconds


def slice_fraction(schedule: ScheduleColumns, table: CostTable) -> np.ndarray:
    """Part of a microbatch's time in the slice of each row."""
    return table.slice_fraction[schedule.microbatch % schedule.slices]


def _sliced(seconds: np.ndarray, overhead: np.ndarray | None, fraction: np.ndarray) -> np.ndarray:
    """Seconds of a slice of actions that last `seconds` uncut: its part of all but their overhead, and that whole."""
    if overhead is None:
        return seconds * fraction
    overhead = np.minimum(overhead, seconds)
    return (seconds - overhead) * fraction + overhead


def _check_lengths(plan: Plan) -> None:
    """CostError where a length is not finite, or their sum, which no time of the step exceeds."""
    optimizer, gathers, reductions = plan.optimizer_seconds, plan.gathers, plan.reductions
    lengths = {
        "actions": plan.seconds,
        "transfers": plan.transfer_seconds,
        "gathers": None if gathers is None else gathers.seconds,
        "gradient reductions": None if reductions is None else reductions.seconds,
        "copies to host memory and back": None if plan.copies is None else plan.copies.seconds,
        "optimizer steps": optimizer,
    }
    with np.errstate(over="ignore", invalid="ignore"):
        sums = {what: float(column.sum()) for what, column in lengths.items() if column is not None}
        total = sum(sums.values()) * plan.schedule.devices  # the idle time of all devices together, too, stays below it
    if not np.isfinite(total):
        what = next((what for what, seconds in sums.items() if not np.isfinite(seconds)), "actions")
        raise CostError(
            f"the {what} of schedule {plan.schedule.name!r} take {sums[what]:g} s together, and a step must take a "
            f"finite time; give smaller costs, such as ppsim.Costs(forward=1.0), or less jitter"
        )


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
