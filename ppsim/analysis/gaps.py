"""Idle gaps of a timeline, split by what the action after each gap was waiting for."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from itertools import count

import numpy as np

from ppsim.actions import Kind
from ppsim.timeline import TimelineColumns

WAITING = ("dependency", "recompute", "transfer", "queue", "sharding", "reload", "overhead")
_CAUSE = {name: number for number, name in enumerate(WAITING)}
_OF_SHARDING = (Kind.UNSHARD, Kind.RESHARD, Kind.REDUCE_GRAD)
_LONG, _DOUBLINGS = 256, 7  # rounds; a stride is 128
_DEAR = 50  # what a stride costs, in rounds of one cursor
_CURSOR = ("row", "device", "begin", "until", "phase")
PHASES = {
    "warm-up": "before a device's first backward",
    "steady": "between its first backward and its last forward",
    "cool-down": "after its last forward",
}
Waits = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], None]


class Gaps:
    """Idle seconds between a device's actions, by what they were waiting for; `walk` fills the two arrays.

    A gap's cursor is a row and a moment `until`; each step attributes the seconds just before `until` to one cause and
    moves the cursor back, until the gap's beginning. Every step passes a row or a transfer, so it ends; all gaps move
    at once. Whom a device waited for are pairs, of which there may be very many: where a `report` is given, each step
    hands them over as columns of waiting device, computing device, kind and seconds. Given some `devices`, only the
    gaps of those are walked.

    Attributes
    ----------
    idle : float64 (causes, devices)
        Rows in the order of `WAITING`.
    waited : float64 (phases, devices)
        Seconds that a device waited for another to compute, by the phase of the waiting device, as in `PHASES`.
    """

    def __init__(self, run: TimelineColumns, report: Waits | None = None, devices: slice = slice(None)):
        self.run, self.report = run, report
        plan, schedule = run.plan, run.schedule
        self.previous_end = _previous_ends(run)
        self.transfer = _awaited_transfer(run)
        self.ready, self.maker = _ready(run)
        self.sent = np.concatenate([run.transfer_start, run.barrier_start])
        self.received = np.concatenate([run.transfer_end, run.barrier_end])
        self.gathered, of_reload = _streamed(run)
        self.stream_cause = np.where(of_reload, _CAUSE["reload"], _CAUSE["sharding"])
        self.kind = plan.kind
        self.cause = np.full(len(self.kind), _CAUSE["dependency"])
        self.cause[np.isin(self.kind, _OF_SHARDING)] = _CAUSE["sharding"]
        self.cause[self.kind == Kind.R] = _CAUSE["recompute"]
        before = self.previous_end
        self.row = np.flatnonzero((run.row_start > before) & np.isfinite(before) & ~plan.fused)
        begin, end, _ = devices.indices(schedule.devices)
        self.row = self.row[slice(*np.searchsorted(self.row, schedule.offsets[[begin, end]]))]
        self.device = schedule.device[self.row]
        self.begin, self.until = before[self.row], run.row_start[self.row]
        self.idle = np.zeros((len(WAITING), schedule.devices))
        self.phase = _phases(run)[self.row]
        self.waited = np.zeros((len(PHASES), schedule.devices))

    def walk(self) -> Gaps:
        """Attribute every second of every gap."""
        for rounds in count():
            if not len(self.row):
                return self
            if rounds == _LONG and self.report is None:
                self._leap()
            self._round()
        raise AssertionError

    def _round(self) -> None:
        """Take every cursor back to a row before which its device was idle."""
        self._behind_transfers()
        self._behind_compute()

    def _leap(self) -> None:
        """Take cursors that have far to go over many rounds at once, as long as none ends on the way.

        Not where strides cost more than rounds: chains are about as long as there are devices.
        """
        rows = np.flatnonzero((self.run.row_start > self.previous_end) & ~self.run.plan.fused)
        if len(self.row) * self.run.schedule.devices < _DEAR * len(rows):
            return
        strides = _Strides(self, rows)
        while len(self.row):
            stride, able = strides.of(self)
            if not able.any():
                return
            stride, device = stride[able], self.device[able]
            np.add.at(self.idle.T, device, strides.idle[:, stride].T)
            np.add.at(self.waited, (self.phase[able], device), strides.computed[stride])
            self.row[able], self.until[able] = strides.target[stride], strides.until[stride]

    def seconds(self, cause: str) -> np.ndarray:
        """Idle seconds of each device under one of `WAITING`."""
        return self.idle[_CAUSE[cause]]

    def _take(self, cause: int | np.ndarray, back_to: np.ndarray) -> np.ndarray:
        """Attribute the time from `back_to` (or the gap's beginning) up to `until`, and move the cursor there."""
        moment = np.clip(back_to, self.begin, self.until)
        seconds = self.until - moment
        np.add.at(self.idle, (np.broadcast_to(cause, self.device.shape), self.device), seconds)
        self.until = moment
        return seconds

    def _keep(self, chosen: np.ndarray) -> None:
        for name in _CURSOR:
            setattr(self, name, getattr(self, name)[chosen])

    def _row_before(self) -> np.ndarray:
        """The row, or the timed slot's first row, that stands before each cursor's on its device."""
        return self.run.plan.slot_of_row[self.row - 1]

    def _behind_transfers(self) -> None:
        """From an idle device's row over its transfer to the row whose end made the transfer ready.

        Time in which the row waited for an UNSHARD or RELOAD alone is first; where that is all, the row before is next.
        """
        self._keep(self.until > self.begin)
        transfer, before = self.transfer[self.row], self.previous_end[self.row]
        arrival = np.where(transfer >= 0, self.received[transfer], -np.inf)
        gathered = self.gathered[self.row]
        self._take(_CAUSE["overhead"], np.maximum(arrival, gathered))
        self._take(self.stream_cause[self.row], np.where(gathered > arrival, np.maximum(arrival, before), self.until))
        alone = (gathered > arrival) & (arrival <= before)
        waited = (transfer >= 0) & ~alone
        self._take(_CAUSE["transfer"], np.where(waited, self.sent[transfer], self.until))
        self._take(_CAUSE["queue"], np.where(waited, self.ready[transfer], self.until))
        self.row = np.where(alone, self._row_before(), self.maker[transfer])
        self._keep((alone | waited) & (self.until > self.begin))

    def _behind_compute(self) -> None:
        """Back over rows that a device ran one after the other, to a row before which it was idle itself."""
        arrived: list[list[np.ndarray]] = []
        while len(self.row):
            holder = self.row
            seconds = self._take(self.cause[holder], self.run.row_start[holder])
            if self.report is not None:
                self.report(self.device, self.run.schedule.device[holder], self.kind[holder], seconds)
            np.add.at(self.waited, (self.phase, self.device), seconds)
            idle_before = self.previous_end[self.row] < self.until
            still_open = self.until > self.begin
            here = idle_before & still_open
            arrived.append([getattr(self, name)[here] for name in _CURSOR])
            self._keep(still_open & ~idle_before)
            self.row = self._row_before()
        if arrived:
            for name, parts in zip(_CURSOR, zip(*arrived, strict=True), strict=True):
                setattr(self, name, np.concatenate(parts))


class _Strides:
    """Where the cursor at each of some rows is after up to `2**_DOUBLINGS` rounds, and what it attributes on the way.

    Attributes
    ----------
    target : int64 (rows,)
        Row of the cursor then; -1 where it has come to its end within the first round.
    until, computed : float64 (rows,)
        Its moment then, and the seconds that it waited for computing.
    idle : float64 (causes, rows)
    """

    def __init__(self, gaps: Gaps, rows: np.ndarray):
        self.number = np.full(len(gaps.previous_end), -1)
        self.number[rows] = np.arange(len(rows))
        one = copy(gaps)
        one.row, one.device, one.phase = rows, np.arange(len(rows)), np.zeros(len(rows), np.int64)
        one.until = gaps.run.row_start[rows]
        one.begin = np.full(len(rows), one.until.min() - 1.0)  # before all gaps: nothing ends on the way
        one.idle, one.waited = np.zeros((len(WAITING), len(rows))), np.zeros((1, len(rows)))
        one._round()
        self.start = gaps.run.row_start
        self.idle, self.computed = one.idle, one.waited[0]
        self.target, self.until = np.full(len(rows), -1), np.full(len(rows), -np.inf)
        self.target[one.device], self.until[one.device] = one.row, one.until
        for _ in range(_DOUBLINGS):
            self._double()

    def _double(self) -> None:
        """Let every stride be followed by that of its target."""
        number = self.number[self.target]
        on = np.flatnonzero((self.target >= 0) & (self.until == self.start[self.target]) & (number >= 0))
        on = on[self.target[number[on]] >= 0]
        then = number[on]
        self.idle[:, on] += self.idle[:, then]
        self.computed[on] += self.computed[then]
        self.target[on], self.until[on] = self.target[then], self.until[then]

    def of(self, gaps: Gaps) -> tuple[np.ndarray, np.ndarray]:
        """The number of each cursor's stride, and where it can be taken: all of it lies within the gap."""
        stride = self.number[gaps.row]
        able = (stride >= 0) & (gaps.until == self.start[gaps.row])
        return stride, able & (self.target[stride] >= 0) & (self.until[stride] > gaps.begin)


def _previous_ends(run: TimelineColumns) -> np.ndarray:
    """When the device was done with the action before each row; -inf for its first."""
    ends = np.concatenate([[0.0], run.row_end[:-1]])
    first, second = run.plan.slots[:2]
    ends[second] = ends[first]
    ends[run.schedule.offsets[:-1]] = -np.inf
    return ends


def _phases(run: TimelineColumns) -> np.ndarray:
    """The phase of each row's device before that row, as its place in `PHASES`."""
    schedule, row = run.schedule, np.arange(len(run.row_end))
    backward = np.isin(schedule.kind, (Kind.R, Kind.B, Kind.I))
    first_backward = np.minimum.reduceat(np.where(backward, row, len(row)), schedule.offsets[:-1])
    last_forward = np.maximum.reduceat(np.where(schedule.kind == Kind.F, row, -1), schedule.offsets[:-1])
    steady_or_later = 1 + (row > last_forward[schedule.device])
    return np.where(row <= first_backward[schedule.device], 0, steady_or_later)


def _streamed(run: TimelineColumns) -> tuple[np.ndarray, np.ndarray]:
    """When the UNSHARD or copy that each row's slot waits for ends, -inf for none; and whether it is a copy."""
    gathered, reloaded = np.full((2, len(run.row_end)), -np.inf)
    first, second = run.plan.slots[:2]
    if run.plan.gathers is not None:
        gathered[run.plan.gathers.user] = run.unshard_end
        gathered[first] = np.maximum(gathered[first], gathered[second])
    if run.plan.copies is not None:
        needed = np.flatnonzero(run.plan.copies.user >= 0)
        reloaded[run.plan.copies.user[needed]] = run.copy_end[needed]
        reloaded[first] = np.maximum(reloaded[first], reloaded[second])
    return np.maximum(gathered, reloaded), reloaded > gathered


def _awaited_transfer(run: TimelineColumns) -> np.ndarray:
    """For each row the transfer that arrived last of those it waited for: its own, its slot's, a blocking SEND's.

    Behind the transfers stand the barriers.
    """
    plan, posts = run.plan, run.plan.posts
    rows = len(plan.seconds)
    awaited = np.where(plan.remote, np.arange(rows), -1)
    arrival = np.where(plan.remote, run.transfer_end, -np.inf)
    if plan.barriers is not None and len(run.barrier_end):
        waits = np.flatnonzero(plan.barriers.needs >= 0)
        awaited[waits] = rows + plan.barriers.needs[waits]
        arrival[waits] = run.barrier_end[plan.barriers.needs[waits]]
    second = plan.slots.second
    later = second[arrival[second] > arrival[second - 1]]
    awaited[later - 1], arrival[later - 1] = awaited[later], arrival[later]
    if posts is not None and plan.blocking:
        sends = np.flatnonzero(posts.is_send & (posts.before < run.schedule.offsets[posts.device + 1]))
        sends = sends[np.argsort(run.transfer_end[posts.transfer[sends]], kind="stable")]
        row, transfer = posts.before[sends], posts.transfer[sends]
        last = np.full(len(awaited), -1)
        last[row] = transfer  # of several SENDs before one row the one that ends last is written last
        row = np.flatnonzero(last >= 0)
        row = row[run.transfer_end[last[row]] > arrival[row]]
        awaited[row] = last[row]
    return awaited


def _ready(run: TimelineColumns) -> tuple[np.ndarray, np.ndarray]:
    """When each transfer had been posted at both ends, and the row whose end made it so; nan and -1 for no transfer.

    Behind the transfers stand the barriers, which are ready when the last row that they need ends.
    """
    plan, posts = run.plan, run.plan.posts
    maker = np.where(plan.remote, plan.slot_of_row[plan.source], -1)
    if posts is not None:
        first = np.repeat(run.schedule.offsets[:-1], np.diff(posts.offsets))
        last_before = np.where(posts.before > first, plan.slot_of_row[posts.before - 1], -1)
        end = np.where(last_before >= 0, run.row_end[last_before], -np.inf)
        by_end = np.argsort(end, kind="stable")
        maker[posts.transfer[by_end]] = last_before[by_end]  # of the two posts the later one is written last
    ready = np.where(plan.remote, run.row_end[maker], np.nan)
    last = _last_producers(run)
    return np.concatenate([ready, run.row_end[last]]), np.concatenate([maker, last])


def _last_producers(run: TimelineColumns) -> np.ndarray:
    """For each barrier that ran the row that ended last of those that it needs, as the slot's first row."""
    barriers = run.plan.barriers
    if barriers is None or not len(run.barrier_end):
        return np.empty(0, np.int64)
    order = np.lexsort((run.row_end[barriers.producer], barriers.of_producer))
    return run.plan.slot_of_row[barriers.producer[order[barriers.first[1:] - 1]]]


def idle_at_ends(run: TimelineColumns, gaps: Gaps) -> dict[str, np.ndarray]:
    """Seconds of each device under fill, drain, sharding and optimizer.

    Before the first action: sharding is what an UNSHARD holds it up beyond its input, the rest is fill. After the last:
    sharding while gradients are reduced, optimizer from there to the end of the optimizer step with the wait for other
    devices under "sync", then drain.
    """
    first = run.schedule.offsets[:-1]
    start, begin = run.row_start[first], run.device_start.min()
    transfer = gaps.transfer[first]
    arrival = np.where(transfer >= 0, run.transfer_end[transfer], begin)
    gathering = np.clip(gaps.gathered[first] - np.maximum(arrival, begin), 0.0, start - begin)
    last = run.row_end[run.schedule.offsets[1:] - 1]
    return {
        "fill": start - begin - gathering,
        "sharding": gathering + (run.gradients_ready - last),
        "optimizer": run.device_end - run.gradients_ready,
        "drain": run.device_end.max() - run.device_end,
    }
