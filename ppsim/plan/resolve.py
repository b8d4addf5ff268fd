"""Plan: schedule, costs and transport resolved into the columns that both engines walk."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import CostError
from ppsim.base.immutable import Column, EqualColumns, unwritable
from ppsim.base.short_repr import short_repr
from ppsim.checks.deadlock import refuse_slots_that_need_themselves
from ppsim.costs.table import CostTable, check_table
from ppsim.lowering.posts import Posts, queued_posts, unqueued_posts
from ppsim.lowering.rows import crosses_devices
from ppsim.plan.host_copies import Copies, find_copies, with_costs
from ppsim.plan.lengths import (
    barrier_seconds,
    by_kind_and_stage,
    optimizer_step_seconds,
    received_by_kind,
    row_seconds,
    row_transfer_seconds,
    seconds_by_kind,
    timed_slots,
)
from ppsim.plan.ports import Ports, make_ports
from ppsim.plan.streams import Gathers, Reductions, find_gathers, find_reductions
from ppsim.schedule.barriers import Barriers, find_barriers
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
    transfer_seconds : float64
        Latency + bytes / bandwidth of the row's transfer, 0 where it has none.
    posts : Posts or None
        None under `async`, where nothing queues; with gathers, copies or ports also there, each end in its own queue.
    blocking : bool
        Whether a device's next compute action waits for the SENDs posted before it.
    gathers : Gathers or None
        UNSHARDs that take time.
    copies : Copies or None
        OFFLOADs and RELOADs, and the moves of evicted activations.
    barriers : Barriers or None
        The collectives of an output layer that is cut over devices.
    barrier_seconds : float64 (barriers,) or None
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
    seconds: np.ndarray = Column.field()
    transfer_seconds: np.ndarray = Column.field()
    fused: np.ndarray = Column.field()
    posts: Posts | None = None
    blocking: bool = False
    gathers: Gathers | None = None
    reductions: Reductions | None = None
    optimizer: str | None = None
    optimizer_seconds: np.ndarray | None = None
    ports: Ports | None = None
    noise: Mapping[str, Any] | None = None
    copies: Copies | None = None
    barriers: Barriers | None = None
    barrier_seconds: np.ndarray | None = None
    dispatch: str = "list"

    __repr__ = short_repr

    def __post_init__(self) -> None:
        if self.optimizer_seconds is not None:
            object.__setattr__(self, "optimizer_seconds", unwritable(self.optimizer_seconds))
        _check_lengths(self)

    @property
    def source(self) -> np.ndarray:
        """Row that each row needs, or -1; int32."""
        return self.schedule.source

    @property
    def remote(self) -> np.ndarray:
        """Where that row sits on another device: a transfer, named by the row that consumes it; bool."""
        return crosses_devices(self.schedule)

    @property
    def prices(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Seconds of rows and of their transfers by [kind, stage], where that is all that they depend on, else None."""
        given = vars(self)["seconds"], vars(self)["transfer_seconds"]
        if not all(isinstance(lengths, Priced) for lengths in given) or self.fused.any():
            return None
        return given[0].values, given[1].values

    @cached_property
    def device_seconds(self) -> np.ndarray:
        """Sum of each device's rows, float64: one after the other, as its ends grow, so that no idle time is rounding.

        The compiled engine may find it on its way (`keep_device_seconds`).
        """
        schedule, lengths = self.schedule, vars(self)["seconds"]
        known = not isinstance(lengths, Priced) or "column" in vars(lengths)
        sums = np.empty(schedule.devices)
        for device in range(schedule.devices):
            rows = schedule.rows(device)
            some = self.seconds[rows] if known else by_kind_and_stage(schedule, lengths.values, rows)
            sums[device] = np.add.accumulate(some)[-1] if len(some) else 0.0
        return sums

    def keep_device_seconds(self, seconds: np.ndarray) -> None:
        """Note the sums as an engine found them."""
        vars(self)["device_seconds"] = unwritable(seconds)

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


@dataclass(frozen=True, eq=False)
class Priced:
    """Lengths that follow from the kind and the stage of a row, and as a column where that is asked for.

    Attributes
    ----------
    schedule : ScheduleColumns
        Whose rows have the lengths.
    values : float64 (5, stages)
        Seconds by [code of F, B, I, W or R, stage].
    where : function of a schedule -> bool array, one entry a row
        The rows that have the length; the others have 0.
    """

    schedule: ScheduleColumns
    values: np.ndarray
    where: Callable[[ScheduleColumns], np.ndarray] | None = None

    @cached_property
    def column(self) -> np.ndarray:
        """Seconds of each row, float64."""
        seconds = by_kind_and_stage(self.schedule, self.values)
        if self.where is not None:
            np.copyto(seconds, 0.0, where=~self.where(self.schedule))
        return unwritable(seconds)


def make_plan(schedule: ScheduleColumns, table: CostTable, transport: str, optimizer: str | None = None) -> Plan:
    """Resolve a valid schedule or program; under a queued transport a schedule is lowered first.

    Raises CostError where the table does not fit the schedule, DeadlockError where a slot would wait for itself.
    """
    compute = schedule.compute
    check_table(table, compute)
    fused = timed_slots(compute, table)
    if fused.any():
        refuse_slots_that_need_themselves(compute, fused)
    gathers = find_gathers(schedule, table)
    copies = find_copies(schedule, table)
    barriers = find_barriers(compute)
    ports = make_ports(compute, table)
    posts = None
    if transport != "async":
        posts = queued_posts(schedule, transport)
    elif not (gathers is None and ports is None and copies is None and barriers is None):
        posts = unqueued_posts(compute, crosses_devices(compute))
    return Plan(
        compute,
        transport,
        _lengths(compute, table),
        _transfer_lengths(compute, table),
        fused,
        posts,
        transport == "blocking",
        gathers,
        find_reductions(schedule, table),
        optimizer,
        None if optimizer is None else optimizer_step_seconds(compute, table),
        ports,
        copies=copies,
        barriers=barriers,
        barrier_seconds=None if barriers is None else barrier_seconds(compute, table, barriers),
    )


def repriced(plan: Plan, table: CostTable) -> Plan:
    """The same plan under other costs of the same `structure`; who waits for whom stays; CostError as `make_plan`."""
    check_table(table, plan.schedule)
    gathers, reductions = plan.gathers, plan.reductions
    if gathers is not None and table.unshard_seconds is not None:
        gathers = replace(gathers, seconds=table.unshard_seconds[gathers.stage])
    if reductions is not None and table.reduce_seconds is not None:
        reductions = replace(reductions, seconds=table.reduce_seconds[reductions.stage])
    return replace(
        plan,
        copies=None if plan.copies is None else with_costs(plan.copies, plan.schedule, table),
        barrier_seconds=None if plan.barriers is None else barrier_seconds(plan.schedule, table, plan.barriers),
        seconds=_lengths(plan.schedule, table),
        transfer_seconds=_transfer_lengths(plan.schedule, table),
        gathers=gathers,
        reductions=reductions,
        optimizer_seconds=None if plan.optimizer is None else optimizer_step_seconds(plan.schedule, table),
        ports=make_ports(plan.schedule, table),
        noise=None,
    )


def structure(table: CostTable) -> tuple[bool, ...]:
    """What of a table says who waits for whom: whether fused slots, UNSHARDs and reductions take time, and ports."""
    ports = None if table.port_capacity is None else table.link_ports
    return tuple(column is not None for column in (table.overlap, table.unshard_seconds, table.reduce_seconds, ports))


def _lengths(schedule: ScheduleColumns, table: CostTable) -> Any:
    """Seconds of each row, as `Plan` takes them."""
    if schedule.slices > 1 or table.overlap is not None or table.microbatch_scale is not None:
        return row_seconds(schedule, table)
    return Priced(schedule, seconds_by_kind(schedule, table))


def _check_lengths(plan: Plan) -> None:
    """CostError where a length is not finite, or their sum, which no time of the step exceeds."""
    optimizer, gathers, reductions = plan.optimizer_seconds, plan.gathers, plan.reductions
    lengths = {
        "actions": vars(plan)["seconds"],
        "transfers": vars(plan)["transfer_seconds"],
        "gathers": None if gathers is None else gathers.seconds,
        "gradient reductions": None if reductions is None else reductions.seconds,
        "copies of activations": None if plan.copies is None else plan.copies.seconds,
        "collectives of the output layer": plan.barrier_seconds,
        "optimizer steps": optimizer,
    }
    with np.errstate(over="ignore", invalid="ignore"):
        sums = {what: _no_less_than_sum(column) for what, column in lengths.items() if column is not None}
        total = sum(sums.values()) * plan.schedule.devices  # the idle time of all devices together, too, stays below it
    if not np.isfinite(total):
        what = next((what for what, seconds in sums.items() if not np.isfinite(seconds)), "actions")
        raise CostError(
            f"the {what} of schedule {plan.schedule.name!r} take {sums[what]:g} s together, and a step must take a "
            f"finite time; give smaller costs, such as ppsim.Costs(forward=1.0), or less jitter"
        )


def _no_less_than_sum(lengths: np.ndarray | Priced) -> float:
    """The sum of lengths, or what it cannot exceed where that is known without looking at each."""
    if isinstance(lengths, Priced):
        bound = float(lengths.values.max(initial=0.0)) * len(lengths.schedule.kind)
        return bound if np.isfinite(bound) else float(lengths.column.sum())
    return float(lengths.sum())


def _transfer_lengths(schedule: ScheduleColumns, table: CostTable) -> Any:
    """Seconds of each row's transfer, as `Plan` takes them: by its kind and stage alone where all links are alike."""
    received = received_by_kind(schedule, table)
    if received is not None:
        return Priced(schedule, received, crosses_devices)
    return row_transfer_seconds(schedule, table)
