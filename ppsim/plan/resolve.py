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
from ppsim.base.kept_memory import keep_freed_memory
from ppsim.checks.deadlock import refuse_slots_that_need_themselves
from ppsim.costs.pairs import values_between
from ppsim.costs.table import CostTable
from ppsim.costs.table_check import check_table
from ppsim.lowering.posts import Posts, queued_posts, unqueued_posts
from ppsim.lowering.rows import crosses_devices
from ppsim.plan.host_copies import Copies, find_copies, priced
from ppsim.plan.ports import Ports, make_ports
from ppsim.plan.streams import Gathers, Reductions, find_gathers, find_reductions, optimizer_seconds
from ppsim.schedule.barriers import GRADIENT, Barriers, find_barriers, of_several
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
    keep_freed_memory()
    compute = schedule.compute
    check_table(table, compute)
    fused = compute.joined if table.overlap is not None else np.zeros(len(compute.kind), bool)
    if table.overlap is not None:
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
        None if optimizer is None else optimizer_seconds(compute, table),
        ports,
        copies=copies,
        barriers=barriers,
        barrier_seconds=_barrier_seconds(compute, table, barriers),
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
        copies=None if plan.copies is None else priced(plan.copies, plan.schedule, table),
        barrier_seconds=_barrier_seconds(plan.schedule, table, plan.barriers),
        seconds=_lengths(plan.schedule, table),
        transfer_seconds=_transfer_lengths(plan.schedule, table),
        gathers=gathers,
        reductions=reductions,
        optimizer_seconds=None if plan.optimizer is None else optimizer_seconds(plan.schedule, table),
        ports=make_ports(plan.schedule, table),
        noise=None,
    )


def structure(table: CostTable) -> tuple[bool, ...]:
    """What of a table says who waits for whom: whether fused slots, UNSHARDs and reductions take time, and ports."""
    ports = None if table.port_capacity is None else table.link_ports
    return tuple(column is not None for column in (table.overlap, table.unshard_seconds, table.reduce_seconds, ports))


def by_kind_and_stage(schedule: ScheduleColumns, values: np.ndarray, rows: slice = slice(None)) -> np.ndarray:
    """For each of these rows of a compute schedule its entry in `values`, F, B, I and W by stage, (4, stages).

    An R takes the entry of F, or that of a fifth row; S and T take those of two more, or 0.
    """
    if schedule.recomputes and len(values) == Kind.R:
        values = np.concatenate([values, values[:1]])
    if schedule.cuts_vocabulary and len(values) <= Kind.T:
        values = np.concatenate([values, np.zeros((Kind.T + 1 - len(values), schedule.num_stages))])
    cell = schedule.kind[rows].astype(np.int64)
    cell *= schedule.num_stages  # in place: at a million rows fresh memory costs more than the sums
    cell += schedule.stage[rows]
    return values.ravel().take(cell)


def _lengths(schedule: ScheduleColumns, table: CostTable) -> Any:
    """Seconds of each row, as `Plan` takes them."""
    if schedule.slices > 1 or table.overlap is not None or table.microbatch_scale is not None:
        return row_seconds(schedule, table)
    return Priced(schedule, _seconds_by_kind(schedule, table))


def _seconds_by_kind(schedule: ScheduleColumns, table: CostTable) -> np.ndarray:
    """Seconds of F, B, I, W and R by stage, (5, stages); with S or T in the lists theirs too, (7, stages)."""
    again = table.seconds[Kind.F] if table.recompute_seconds is None else table.recompute_seconds
    seconds = np.vstack([table.seconds, again])
    if not schedule.cuts_vocabulary:
        return seconds
    of_part = np.zeros((2, schedule.num_stages)) if table.vocabulary_seconds is None else table.vocabulary_seconds
    if not (schedule.kind == Kind.T).any():
        of_part = np.stack([of_part.sum(axis=0), np.zeros(schedule.num_stages)])
    return np.concatenate([seconds, of_part])


def row_seconds(schedule: ScheduleColumns, table: CostTable) -> np.ndarray:
    """Seconds of each row; of a timed fused slot the first row holds the slot's length and the second 0."""
    seconds = by_kind_and_stage(schedule, _seconds_by_kind(schedule, table))
    overhead = None if table.overhead is None else by_kind_and_stage(schedule, table.overhead)
    whole, part = seconds, row_part(schedule, table)
    if part is not None:
        seconds = _sliced(whole, overhead, part)
    if table.overlap is not None:
        first, second, forward, backward = schedule.slots
        slot = table.overlap[schedule.stage[forward], schedule.stage[backward]]
        if part is not None:
            of_slot = None if overhead is None else np.maximum(overhead[first], overhead[second])
            slot = _sliced(slot, of_slot, _mean_part(part, whole, forward, backward))
        seconds[first], seconds[second] = slot, 0.0
    return seconds


def row_part(schedule: ScheduleColumns, table: CostTable) -> np.ndarray | None:
    """Each row's time in units of a whole microbatch of factor 1: its slice's part times its microbatch's factor.

    None where every row is such a microbatch.
    """
    if schedule.slices == 1 and table.microbatch_scale is None:
        return None
    part = table.slice_fraction[schedule.microbatch % schedule.slices]
    return part * table.scale_of(schedule, schedule.stage, schedule.microbatch)


def _mean_part(part: np.ndarray, whole: np.ndarray, forward: np.ndarray, backward: np.ndarray) -> np.ndarray:
    """The part of a fused slot: the mean of its two rows' parts, weighted by their uncut seconds."""
    both = whole[forward] + whole[backward]
    share = np.divide(whole[forward], both, out=np.full_like(both, 0.5), where=both > 0)
    return part[backward] + share * (part[forward] - part[backward])


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


def transfer_bytes(schedule: ScheduleColumns, table: CostTable, producer: np.ndarray) -> np.ndarray:
    """Bytes that each of the rows `producer` sends to another device."""
    backward = schedule.kind.take(producer) != Kind.F
    cell = backward.astype(np.int64) * schedule.num_stages + schedule.stage.take(producer)
    scale = table.scale_of(schedule, schedule.stage[producer], schedule.microbatch[producer])
    return table.transfer_bytes.ravel().take(cell) / schedule.slices * scale


def _transfer_lengths(schedule: ScheduleColumns, table: CostTable) -> Any:
    """Seconds of each row's transfer, as `Plan` takes them: by its kind and stage alone where all links are alike."""
    latency, per_byte = values_between(table.latency), values_between(table.seconds_per_byte)
    alike = table.microbatch_scale is None or not table.transfer_bytes.any()
    if alike and np.all(latency == latency[0]) and np.all(per_byte == per_byte[0]):
        forward, backward = table.transfer_bytes / schedule.slices * per_byte[0] + latency[0]
        received = np.zeros((Kind.T + 1, schedule.num_stages))  # from the stage before, and from the stage behind
        received[Kind.F, 1:] = forward[:-1]
        received[[Kind.B, Kind.I], :-1] = backward[1:]
        return Priced(schedule, received, crosses_devices)
    device, source = schedule.device, schedule.source
    link = device.take(source), device
    seconds = transfer_bytes(schedule, table, source)
    seconds *= table.seconds_per_byte[link]
    seconds += table.latency[link]
    return np.where(crosses_devices(schedule), seconds, 0.0)


def _barrier_seconds(schedule: ScheduleColumns, table: CostTable, barriers: Barriers | None) -> np.ndarray | None:
    """Seconds of each collective: a broadcast as its longest transfer, a reduction as given, of one device alone 0.

    The reduction of the statistics has a time of its own where T stands in the lists; else it is the only one.
    """
    if barriers is None:
        return None
    reduce, statistics = table.vocabulary_reduce_seconds, table.vocabulary_statistics_seconds
    if statistics is None or GRADIENT not in barriers.kind:
        statistics = reduce
    seconds = np.where(of_several(schedule, barriers), np.array([0.0, statistics, reduce])[barriers.kind], 0.0)
    part = np.flatnonzero((schedule.kind == Kind.S) & (barriers.needs >= 0))
    output = barriers.producer[barriers.first[barriers.needs[part]]]
    link = schedule.device[output], schedule.device[part]
    ways = table.latency[link] + transfer_bytes(schedule, table, output) * table.seconds_per_byte[link]
    np.maximum.at(seconds, barriers.needs[part], ways)
    return seconds
