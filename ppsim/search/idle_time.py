"""R moved ahead into idle time, and F pulled into the memory that recomputing frees, by running the lists."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import BuildError
from ppsim.costs.table import CostTable
from ppsim.lowering.rows import row_tables
from ppsim.schedule.columns import ScheduleColumns
from ppsim.schedule.recurrence import run_lists
from ppsim.search.problem import row_waits

_ROUNDING = 1e-9
_FILLERS = ((Kind.R,), (Kind.R, Kind.F), (Kind.F, Kind.R))  # what goes into idle time, the first that fits


def in_idle_time(
    schedule: ScheduleColumns, table: CostTable, limits: np.ndarray, pull_forwards: bool = False
) -> ScheduleColumns:
    """The lists with each R, and where asked each F, moved ahead to where its device would be idle.

    A device that waits runs the next R of its list, or the next F, where it is over before what the device waits for
    can arrive, and where what follows in the list still finds room. No step gets longer: else the lists stay.

    Parameters
    ----------
    schedule : ScheduleColumns
        Valid, each R before its backward; of whole actions, no fused slots.
    table : CostTable
        Its costs.
    limits : float64 (devices,)
        Activations, in device shares, that a device may hold; where the lists hold more themselves, that.
    pull_forwards : bool
        Whether F goes ahead too.

    Raises
    ------
    BuildError
        The lists hold fused slots, or S and T.
    """
    if schedule.joined.any() or int(schedule.kind.max()) > Kind.R:
        what = (
            "OVERLAP_F_B slots, which are not torn apart" if schedule.joined.any() else "S or T, which wait for others"
        )
        raise BuildError(
            f"schedule {schedule.name!r} holds {what}; place R directly before its backward, or use another schedule"
        )
    lists = _Lists.of(schedule, table, limits)
    fillers = _FILLERS if pull_forwards else _FILLERS[:1]
    candidates = [schedule, *(_Walk(lists, kinds).run() for kinds in fillers)]
    return min(candidates, key=lambda made: makespan_of(made, table))


def makespan_of(schedule: ScheduleColumns, table: CostTable) -> float:
    """Seconds of a valid schedule without fused slots, where nothing queues."""
    return float(run_lists(schedule.offsets, schedule.source, *_times(schedule, table))[1].max())


def held_at_most(schedule: ScheduleColumns, table: CostTable) -> np.ndarray:
    """Largest live amount of each device, float64, in device shares."""
    adds, frees = _changes(schedule, table)
    first = schedule.offsets[:-1]
    level = np.cumsum(adds - frees) + frees
    return np.maximum.reduceat(level, first) - (level - adds)[first]


def _times(schedule: ScheduleColumns, table: CostTable) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of each row, and of its transfer."""
    again = table.seconds[Kind.F] if table.recompute_seconds is None else table.recompute_seconds
    part = table.slice_fraction[schedule.microbatch % schedule.slices]
    part = part * table.scale_of(schedule, schedule.stage, schedule.microbatch)
    seconds = np.vstack([table.seconds, again])[schedule.kind, schedule.stage] * part
    return seconds, row_waits(schedule, table)


def _changes(schedule: ScheduleColumns, table: CostTable) -> tuple[np.ndarray, np.ndarray]:
    """What each row adds at its start and frees at its end, in device shares."""
    stage, kind = schedule.stage, schedule.kind
    whole = table.stage_share[stage] / schedule.slices * table.scale_of(schedule, stage, schedule.microbatch)
    stored = whole * (0.0 if table.input_fraction is None else table.input_fraction[stage])
    kept = table.weight_grad_fraction[stage]
    adds = np.where(schedule.recomputed, stored, whole) * (kind == Kind.F) + (whole - stored) * (kind == Kind.R)
    return adds, whole * np.select([kind == Kind.B, kind == Kind.I, kind == Kind.W], [1.0, 1.0 - kept, kept], 0.0)


@dataclass(frozen=True)
class _Lists:
    """Lists as the walk reads them; rows of R are not in `fixed`, whose order stays but for what is pulled ahead."""

    schedule: ScheduleColumns
    fixed: list[list[int]]
    place: list[int]  # in `fixed`, by row
    device: list[int]
    kind: list[int]
    source: list[int]
    seconds: list[float]
    wait: list[float]
    adds: list[float]
    frees: list[float]
    again: list[int]  # by backward its R, by R its backward; else -1
    made_of: list[int]  # by R its forward
    limits: list[float]

    @classmethod
    def of(cls, schedule: ScheduleColumns, table: CostTable, limits: np.ndarray) -> _Lists:
        rows, recompute = np.arange(len(schedule.kind)), schedule.kind == Kind.R
        forward, backward = (of[schedule.stage, schedule.microbatch] for of in row_tables(schedule))
        again, made_of = np.full((2, len(rows)), -1)
        again[recompute], again[backward[recompute]] = backward[recompute], rows[recompute]
        made_of[recompute] = forward[recompute]
        counted = np.cumsum(~recompute) - 1
        place = counted - np.append(0, np.cumsum(~recompute))[schedule.offsets[:-1]][schedule.device]
        fixed = [
            (np.flatnonzero(~recompute[span]) + span.start).tolist()
            for span in map(schedule.rows, range(schedule.devices))
        ]
        seconds, wait = _times(schedule, table)
        adds, frees = _changes(schedule, table)
        columns = schedule.device, schedule.kind, schedule.source, seconds, wait, adds, frees, again, made_of
        room = np.maximum(limits, held_at_most(schedule, table)) + _ROUNDING
        return cls(schedule, fixed, place.tolist(), *(column.tolist() for column in columns), limits=room.tolist())


@dataclass
class _Walk:
    """One run of the lists in which idle devices take R or F ahead."""

    lists: _Lists
    fillers: tuple[Kind, ...]
    end: dict[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        devices = len(self.lists.fixed)
        self.at, self.next_backward, self.next_forward = ([0] * devices for _ in range(3))
        self.free, self.live = [0.0] * devices, [0.0] * devices
        self.order: list[list[int]] = [[] for _ in range(devices)]
        self.waiting: dict[int, list[int]] = {}
        self.looks = [(0.0, device) for device in range(devices)]

    def run(self) -> ScheduleColumns:
        """The lists in the order in which they ran."""
        while self.looks:
            now, device = heapq.heappop(self.looks)
            if self.free[device] <= now:
                self.look(device, now)
        was, order = self.lists.schedule, np.concatenate([np.array(rows, np.int64) for rows in self.order])
        return ScheduleColumns(
            was.kind[order], was.stage[order], was.microbatch[order], was.offsets, is_valid=True, **was.traits
        )

    def look(self, device: int, now: float) -> None:
        """A free device starts its next row, or what fits before it, or waits."""
        fixed, again = self.lists.fixed[device], self.lists.again
        while self.at[device] < len(fixed) and fixed[self.at[device]] in self.end:
            self.at[device] += 1
        if self.at[device] == len(fixed):
            return
        row = fixed[self.at[device]]
        if again[row] >= 0 and again[row] not in self.end:
            self.start(device, again[row], now)
        elif self.arrival(row) <= now:
            self.start(device, row, now)
        else:
            self.wait(device, row, now)

    def wait(self, device: int, row: int, now: float) -> None:
        """A device whose next row cannot start yet runs what is over before it could, or does nothing."""
        source, until = self.lists.source[row], self.arrival(row)
        known = source in self.end
        if not known:  # whoever makes it first ends what it runs now
            holder = self.lists.device[source]
            until = max(now, self.free[holder]) + self.lists.seconds[source] + self.lists.wait[row]
        filler = self.filler(device, now, until)
        if filler >= 0:
            self.start(device, filler, now)
        elif known:
            heapq.heappush(self.looks, (until, device))
        else:
            self.waiting.setdefault(source, []).append(device)

    def arrival(self, row: int) -> float:
        """When what a row needs of its neighbouring stage is there; inf where it has not begun."""
        source = self.lists.source[row]
        return 0.0 if source < 0 else self.end.get(source, np.inf) + self.lists.wait[row]

    def start(self, device: int, row: int, now: float) -> None:
        """Run a row; those that wait for it look again."""
        lists = self.lists
        self.end[row] = self.free[device] = now + lists.seconds[row]
        self.live[device] += lists.adds[row] - lists.frees[row]
        self.order[device].append(row)
        heapq.heappush(self.looks, (self.free[device], device))
        for other in self.waiting.pop(row, ()):
            heapq.heappush(self.looks, (now, other))

    def filler(self, device: int, now: float, until: float) -> int:
        """The row that a waiting device runs meanwhile, or -1."""
        for kind in self.fillers:
            row = self.next_recompute(device) if kind == Kind.R else self.next_f(device, now)
            if row >= 0 and now + self.lists.seconds[row] <= until + _ROUNDING and self.has_room(device, row):
                return row
        return -1

    def next_recompute(self, device: int) -> int:
        """The R of the next backward that has one, where its forward has run; else -1."""
        fixed, again = self.lists.fixed[device], self.lists.again
        place = max(self.next_backward[device], self.at[device])
        while place < len(fixed) and (again[fixed[place]] < 0 or again[fixed[place]] in self.end):
            place += 1
        self.next_backward[device] = place
        row = again[fixed[place]] if place < len(fixed) else -1
        return row if row >= 0 and self.lists.made_of[row] in self.end else -1

    def next_f(self, device: int, now: float) -> int:
        """The next F of the list where its input is there; else -1."""
        fixed, kind = self.lists.fixed[device], self.lists.kind
        place = max(self.next_forward[device], self.at[device])
        while place < len(fixed) and (kind[fixed[place]] != Kind.F or fixed[place] in self.end):
            place += 1
        self.next_forward[device] = place
        return fixed[place] if place < len(fixed) and self.arrival(fixed[place]) <= now else -1

    def has_room(self, device: int, row: int) -> bool:
        """Whether the list up to the place that a row is taken from stays within the limit."""
        lists = self.lists
        fixed, limit, level = lists.fixed[device], lists.limits[device], self.live[device] + lists.adds[row]
        if level > limit:
            return False
        place, last = self.at[device], lists.place[row if lists.kind[row] == Kind.F else lists.again[row]]
        while place < last:
            other = fixed[place]
            place += 1
            if other in self.end:
                continue
            if lists.again[other] >= 0 and lists.again[other] not in self.end:
                level += lists.adds[lists.again[other]]
            if level + lists.adds[other] > limit:
                return False
            level += lists.adds[other] - lists.frees[other]
        return True
