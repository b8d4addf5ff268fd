"""What a search for a schedule knows: which device runs which stage, the costs of each stage, and the limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ppsim.actions import Kind
from ppsim.analysis.counting_bounds import device_path, makespan_bounds
from ppsim.base.compiling import call_fastest
from ppsim.base.errors import BuildError, shown
from ppsim.costs.given import Costs
from ppsim.costs.table import CostTable, check_table, is_cost_model
from ppsim.lowering.rows import crosses_devices
from ppsim.schedule.blocks import Block, occurrence
from ppsim.schedule.columns import ScheduleColumns
from ppsim.schedule.recurrence import run_lists
from ppsim.search.list_scheduling import ROUNDING, Rules, Work, beginning, schedule_greedily
from ppsim.search.local_moves import improve_lists, replay_lists, scratch_of

if TYPE_CHECKING:
    from ppsim.costs import CostModel

PLACEMENTS = ("one", "loop", "v", "wave")


def devices_of_stages(placement: Any, p: int, v: int) -> np.ndarray:
    """The device of each stage, int64 (p x v,); BuildError where `placement` is none, or does not fit p and v."""
    stages = np.arange(p * v)
    turned = np.where(stages // p % 2, p - 1 - stages % p, stages % p)
    if isinstance(placement, str):
        _check_name(placement, v)
        return stages % p if placement in ("one", "loop") else turned
    if not isinstance(placement, Sequence):
        raise BuildError(
            f"placement={shown(placement)} is not known; use one of: {', '.join(PLACEMENTS)}, or a list of devices, "
            f"one a stage"
        )
    is_device = [isinstance(d, int | np.integer) and not isinstance(d, bool) and 0 <= d < p for d in placement]
    if not all(is_device) or len(placement) != p * v or len(set(placement)) < p:
        raise BuildError(
            f"placement={shown(list(placement))} is no list of {p * v} devices from 0 to {p - 1} in which each occurs; "
            f"such as {turned.tolist()!s:.80}"
        )
    return np.array(placement, np.int64)


def _check_name(placement: str, v: int) -> None:
    if placement not in PLACEMENTS:
        raise BuildError(
            f"placement={shown(placement)} is not known; use one of: {', '.join(PLACEMENTS)}, or a list of devices, "
            f"one a stage"
        )
    rules = {"one": (v == 1, "1"), "v": (v == 2, "2"), "wave": (v % 2 == 0, "an even number such as 2")}
    holds, legal = rules.get(placement, (True, ""))
    if not holds:
        raise BuildError(f"placement={placement!r} with stages_per_device={v}: use stages_per_device={legal}")


def limits_of(p: int, limit: Any, name: str = "memory_limit", legal: float | None = None) -> np.ndarray:
    """One limit a device, float64; BuildError where it is no number above 0 (inf allowed), nor one a device."""
    try:
        column = np.array(limit)
    except ValueError:  # rows of unequal length
        column = np.array(None)
    if column.dtype.kind not in "iuf" or column.shape not in ((), (p,)) or not np.all(column > 0):
        what = "activations" if name == "memory_limit" else "bytes"
        raise BuildError(
            f"{name}={limit!r:.80} is no limit for {p} devices; use a number of {what} above 0, such as "
            f"{legal or p:g}, or a list of {p} such numbers, one a device"
        )
    return np.broadcast_to(column, (p,)).astype(float)


@dataclass(frozen=True, eq=False)
class Problem:
    """A placement, its costs and limits, as the columns that the compiled loops read.

    Attributes
    ----------
    m : int
        Microbatches.
    device_of : int64 (stages,)
        Device of each stage.
    devices : int
    split : bool
        Whether the backward is I and W, or one B.
    table : CostTable
        The costs of all schedules on this placement.
    lengths : float64 (3 x stages,)
        Seconds of F, of I or B, and of W (0 where the backward is one).
    waits : float64 (2 x stages,)
        Seconds of the transfers of F to the next stage and of I or B to the one before; 0 on the same device.
    share, kept : float64 (stages,)
        Held by F, in the unit of the limits, and the part of it that lives until W.
    limits : float64 (devices,)
    own : CostTable, optional
        Where microbatches differ: the costs of each. All else is of an average microbatch, but holds as much as the
        largest.
    """

    m: int
    device_of: np.ndarray
    devices: int
    split: bool
    table: CostTable
    lengths: np.ndarray
    waits: np.ndarray
    share: np.ndarray
    kept: np.ndarray
    limits: np.ndarray
    runs: int = 1000
    own: CostTable | None = None

    @classmethod
    def of(
        cls, p: int, m: int, device_of: np.ndarray, costs: CostModel | None, split: bool, limits: np.ndarray
    ) -> Problem:
        """The problem of `m` microbatches under `costs` (default: F, I and W of a device share 1 s each).

        BuildError where `costs` is no cost model or a limit does not hold one microbatch; CostError where the costs do
        not fit the placement.
        """
        own = price(costs, device_of, p, m, split)
        table = own if own.microbatch_scale is None else of_average_microbatch(own)
        stages = np.arange(len(device_of))
        ahead, back = np.minimum(stages + 1, stages[-1]), np.maximum(stages - 1, 0)
        waits = []
        for row, peer in ((0, ahead), (1, back)):
            sender, receiver = device_of, device_of[peer]
            seconds = table.transfer_bytes[row] * table.seconds_per_byte[sender, receiver]
            waits.append(np.where(sender == receiver, 0.0, seconds + table.latency[sender, receiver]))
        backward = table.seconds[Kind.I if split else Kind.B]
        weight = table.seconds[Kind.W] if split else np.zeros(len(stages))
        problem = cls(
            m, device_of, p, split, table, np.concatenate([table.seconds[Kind.F], backward, weight]),
            np.concatenate(waits), table.stage_share, table.weight_grad_fraction, limits,
            own=None if table is own else own,
        )  # fmt: skip
        problem.check_limits()
        return problem

    def check_limits(self, name: str = "memory_limit", what: str = "activations") -> None:
        """BuildError where a device may not hold one microbatch from its first F to its last W."""
        needed = np.bincount(self.device_of, self.share, minlength=self.devices)
        short = np.flatnonzero(self.limits < needed - ROUNDING)
        if len(short):
            d = int(short[0])
            raise BuildError(
                f"{name}={self.limits[d]:g} on device {d}: one microbatch holds {needed[d]:g} {what} there from its "
                f"F to its W, so nothing fits; use at least {needed.max():g}"
            )

    @property
    def stages(self) -> int:
        """Number of stages."""
        return len(self.device_of)

    @cached_property
    def list_offsets(self) -> np.ndarray:
        """Where each device's list begins, int64 (devices + 1,)."""
        held = np.bincount(self.device_of, minlength=self.devices)
        return np.concatenate([[0], np.cumsum(held * self.m * (3 if self.split else 2))]).astype(np.int64)

    @cached_property
    def period(self) -> float:
        """Seconds of one microbatch on the device that works longest."""
        return float(np.bincount(self.device_of, self.lengths.reshape(3, self.stages).sum(axis=0)).max())

    @cached_property
    def ways(self) -> np.ndarray:
        """Least seconds before each F and each I or B of a microbatch, float64 (2 x stages,)."""
        lengths, waits, stages = self.lengths, self.waits, self.stages
        forward = np.append(0.0, np.cumsum(lengths[: stages - 1] + waits[: stages - 1]))
        back = (lengths[stages : 2 * stages] + waits[stages:])[:0:-1]
        backward = forward[-1] + lengths[stages - 1] + np.append(0.0, np.cumsum(back))
        return np.append(forward, backward[::-1])

    def is_least(self, makespan: float) -> bool:
        """Whether no order is known to beat it: False where microbatches differ."""
        if self.own is not None:
            return False
        most = makespan * (1 - ROUNDING)
        return most <= self.least_work or most <= self.least_makespan

    @cached_property
    def least_makespan(self) -> float:
        """Seconds that no order beats, by counting what each device must have run (`analysis.counting_bounds`)."""
        kept = self.kept if self.split else np.zeros(self.stages)
        path = device_path(self.m, self.device_of, self.lengths, self.waits, self.share, self.share * kept)
        return max(self.least_work, float(makespan_bounds([path], self.limits).max()))

    @cached_property
    def least_work(self) -> float:
        """Seconds that no order beats: a device's work after its least fill and before its least drain."""
        stages = self.stages
        end = self.ways[stages:] + self.lengths[stages : 2 * stages]
        drain = np.zeros(stages) if self.split else end[0] - end  # a W may come last, and nothing waits for it
        before, after = np.full(self.devices, np.inf), np.full(self.devices, np.inf)
        np.minimum.at(before, self.device_of, self.ways[:stages])
        np.minimum.at(after, self.device_of, drain)
        work = np.bincount(self.device_of, self.lengths.reshape(3, stages).sum(axis=0)) * self.m
        return float((before + work + after).max())

    @property
    def rows(self) -> int:
        """Rows of all lists together."""
        return int(self.list_offsets[-1])

    @cached_property
    def work(self) -> Work:
        """The columns that the compiled loops read."""
        local = np.argsort(self.device_of, kind="stable")
        first = np.searchsorted(self.device_of[local], np.arange(self.devices + 1))
        return Work(
            self.m, self.split, first, local, self.device_of, self.list_offsets, self.lengths, self.waits, self.share,
            self.kept, self.limits,
        )  # fmt: skip

    def greedy(self, rules: Rules, due: np.ndarray | None = None, most_ahead: np.ndarray | None = None) -> Lists:
        """One run of list scheduling; the arguments are those of `schedule_greedily`."""
        codes, starts = np.zeros(self.rows, np.int32), np.zeros(self.rows)
        call_fastest(
            schedule_greedily, self.rows * self.runs, self.work, rules,
            np.zeros(3 * self.stages * self.m) if due is None else due,
            np.full(self.stages, self.m) if most_ahead is None else most_ahead, beginning(self.work), codes, starts,
        )  # fmt: skip
        return Lists(self, codes, starts)

    def improved(self, lists: Lists, rounds: int, heat: float, seed: int) -> Lists:
        """The lists after so many rounds of local search; never longer."""
        codes, ends = lists.codes.copy(), np.zeros(self.rows)
        call_fastest(
            improve_lists, self.rows * rounds, self.work, *scratch_of(self.work), codes, ends, rounds, float(heat), seed
        )
        return Lists(self, codes, ends - self.lengths[codes])

    def timed(self, codes: np.ndarray) -> Lists | None:
        """Lists of these codes, None where they do not run or break a limit."""
        ends, _, makespan = self._replayed(codes)
        return Lists(self, codes, ends - self.lengths[codes]) if makespan < math.inf else None

    def tails(self, lists: Lists) -> np.ndarray:
        """Least seconds from the end of each row to the end of all."""
        return self._replayed(lists.codes)[1]

    def _replayed(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
        ends, tails = np.zeros((2, self.rows))
        now, _, scratch = scratch_of(self.work)
        makespan = call_fastest(replay_lists, self.rows * self.runs, self.work, now, scratch, codes, ends, tails)
        return ends, tails, makespan

    def replayed(self, schedule: ScheduleColumns) -> Lists:
        """A schedule as the search sees it: each B as its I and W, the nth of a kind and stage on microbatch n."""
        codes = self.codes_of(schedule)
        start, _ = replayed(Lists(self, codes, np.zeros(len(codes))).columns(), self.table)
        return Lists(self, codes, start)

    def holds(self, schedule: ScheduleColumns) -> bool:
        """Whether a schedule on this placement stays within the limits."""
        return bool(np.all(self.peaks(schedule) <= self.limits + ROUNDING))

    def peaks(self, schedule: ScheduleColumns) -> np.ndarray:
        """The most that each device holds, in the unit of the limits."""
        if self.own is None:
            return peaks(schedule, self.share, self.kept)
        scale = self.own.microbatch_scale
        assert scale is not None  # noqa: S101 - what `own` is there for
        relative = scale / scale.max(axis=1, keepdims=True)
        return peaks(schedule, self.share, self.kept, relative[schedule.stage, schedule.microbatch])

    def seconds_of(self, schedule: ScheduleColumns) -> float:
        """Makespan of a schedule on this placement, with each microbatch's own costs."""
        start, end = replayed(schedule, self.table if self.own is None else self.own)
        return float(end.max() - start.min())

    def codes_of(self, schedule: ScheduleColumns) -> np.ndarray:
        """The codes of a schedule's rows, a B standing for its I and W where the problem splits them."""
        kind = np.array([0, 1, 1, 2])[schedule.kind]
        codes = (kind * self.stages + schedule.stage).astype(np.int32)
        if not self.split:
            return codes
        is_whole = schedule.kind == Kind.B
        codes = np.repeat(codes, 1 + is_whole)
        codes[np.cumsum(1 + is_whole)[is_whole] - 1] += self.stages
        return codes


@dataclass(frozen=True, eq=False)
class Lists:
    """The lists of all devices, and when each row starts.

    Attributes
    ----------
    problem : Problem
    codes : int32, one entry a row, device by device
        kind x stages + stage; kind 0 F, 1 I or B, 2 W. The nth of a code is of microbatch n.
    starts : float64, one entry a row
        Seconds.
    """

    problem: Problem
    codes: np.ndarray
    starts: np.ndarray

    @property
    def ends(self) -> np.ndarray:
        """End of each row, seconds."""
        return self.starts + self.problem.lengths[self.codes]

    @property
    def makespan(self) -> float:
        """Last end, seconds; the first start is 0."""
        return float(self.ends.max())

    @property
    def span(self) -> float:
        """Largest time of one device from its first start to its last end, seconds."""
        offsets = self.problem.list_offsets
        return float((self.ends[offsets[1:] - 1] - self.starts[offsets[:-1]]).max())

    def columns(self) -> ScheduleColumns:
        """The lists as a schedule."""
        kinds = np.array([Kind.F, Kind.I if self.problem.split else Kind.B, Kind.W], np.int8)
        kind, stage = np.divmod(self.codes, self.problem.stages)
        microbatch = occurrence(self.codes).astype(np.int32)
        return ScheduleColumns(kinds[kind], stage.astype(np.int32), microbatch, self.problem.list_offsets)

    def due(self) -> np.ndarray:
        """The starts by kind, stage and microbatch, as `schedule_greedily` reads them."""
        due = np.zeros(3 * self.problem.stages * self.problem.m)
        due[self.codes.astype(np.int64) * self.problem.m + occurrence(self.codes)] = self.starts
        return due


def price(costs: CostModel | None, device_of: np.ndarray, p: int, m: int, split: bool) -> CostTable:
    """The costs of any schedule on a placement; errors as `Problem.of`."""
    if costs is None:
        costs = Costs(forward=1.0, input_grad=1.0, weight_grad=1.0)
    if not is_cost_model(costs):
        raise BuildError(f"costs={shown(costs)} does not price a schedule; use ppsim.Costs(...) or another cost model")
    shape = _one_after_the_other(device_of, p, m, split)
    table = costs.table(shape)
    check_table(table, shape)
    return table


def _one_after_the_other(device_of: np.ndarray, p: int, m: int, split: bool) -> ScheduleColumns:
    """Any schedule on this placement: all F of all stages, then all backwards."""
    blocks = []
    for d in range(p):
        stages = np.repeat(np.flatnonzero(device_of == d), m)
        kinds = (Kind.F, Kind.I, Kind.W) if split else (Kind.F, Kind.B)
        kind = np.repeat(np.array(kinds, np.int8), len(stages))
        stage = np.concatenate([stages, *[stages[::-1]] * (len(kinds) - 1)]).astype(np.int32)
        blocks.append(Block(kind, stage, np.resize(np.arange(m, dtype=np.int32), len(kind))))
    return ScheduleColumns.from_blocks(blocks)


def replayed(schedule: ScheduleColumns, table: CostTable) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of each row of a valid schedule of whole microbatches where nothing queues, as the engines'.

    Timed OVERLAP_F_B slots last `table.overlap`.
    """
    seconds = table.seconds[schedule.kind, schedule.stage]
    seconds = seconds * table.scale_of(schedule, schedule.stage, schedule.microbatch)
    fused = None
    if table.overlap is not None and schedule.joined.any():
        slots, fused = schedule.slots, schedule.joined
        seconds[slots.first] = table.overlap[schedule.stage[slots.forward], schedule.stage[slots.backward]]
        seconds[slots.second] = 0.0
    _, end = run_lists(schedule.offsets, schedule.source, seconds, row_waits(schedule, table), fused)
    if fused is not None:
        seconds[schedule.slots.second] = seconds[schedule.slots.first]
    return end - seconds, end


def row_waits(schedule: ScheduleColumns, table: CostTable) -> np.ndarray:
    """Seconds of each row's transfer, 0 where it has none, of whole microbatches."""
    source, device = schedule.source, schedule.device
    producer = device[source]
    sent = table.transfer_bytes[(schedule.kind != Kind.F).astype(int), schedule.stage[source]]
    sent = sent * table.scale_of(schedule, schedule.stage[source], schedule.microbatch[source])
    wait = sent * table.seconds_per_byte[producer, device] + table.latency[producer, device]
    return np.where(crosses_devices(schedule), wait, 0.0)


def of_average_microbatch(table: CostTable) -> CostTable:
    """Costs of equal microbatches that take as long together, each of which holds as much as the largest."""
    scale = table.microbatch_scale
    assert scale is not None  # noqa: S101 - asked for where microbatches differ
    mean = scale.mean(axis=1)
    return replace(
        table, seconds=table.seconds * mean, transfer_bytes=table.transfer_bytes * mean,
        stage_share=table.stage_share * scale.max(axis=1), microbatch_scale=None,
    )  # fmt: skip


def peaks(
    schedule: ScheduleColumns, share: np.ndarray, kept: np.ndarray, scale: np.ndarray | float = 1.0
) -> np.ndarray:
    """Largest live amount of each device, float64: F adds its stage's share, B frees it, I and W their parts.

    `scale` is a factor of each row.
    """
    stage, kind = schedule.stage, schedule.kind
    parts = [kind == Kind.F, kind == Kind.B, kind == Kind.I]
    change = scale * share[stage] * np.select(parts, [1.0, -1.0, kept[stage] - 1.0], -kept[stage])
    slots = schedule.slots  # a fused slot takes before it frees
    change[slots.first], change[slots.second] = change[slots.forward], change[slots.backward]
    live = np.cumsum(change)
    first = schedule.offsets[:-1]
    before = live[first] - change[first]
    return np.maximum.reduceat(live, first) - before
