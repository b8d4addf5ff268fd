"""Idle time of each device by cause: fill, drain, and the gaps between actions, traced back to their causes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ppsim.actions import Kind, is_backward
from ppsim.base.immutable import latest_of_each
from ppsim.timeline import TimelineColumns

WAITING = ("dependency", "recompute", "transfer", "queue", "sharding", "reload", "overhead")
_CAUSE = {name: number for number, name in enumerate(WAITING)}
PHASES = {
    "warm-up": "before a device's first backward",
    "steady": "between its first backward and its last forward",
    "cool-down": "after its last forward",
}
_CURSOR = ("row", "device", "begin", "until", "phase")
Report = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], None]


class Gaps:
    """Idle seconds between a device's actions, by cause.

    Each gap has a cursor: a row and a time `until`. A round attributes the seconds just before `until` to one cause and
    moves the cursor back, up to the beginning of the gap. Each passes a row or a transfer. All cursors move at once.

    `report`, if given, is called each round with columns of waiting device, computing device, kind and seconds.
    """

    def __init__(self, run: TimelineColumns, report: Report | None = None):
        self.run, self.report = run, report
        plan, schedule = run.plan, run.schedule
        self.previous_end = previous_ends(run)
        self.transfer = _awaited_transfer(run)
        self.ready, self.delay, self.producer = _ready_times(run)
        self.sent = np.concatenate([run.transfer_start, run.barrier_start])
        self.received = np.concatenate([run.transfer_end, run.barrier_end])
        self.stream_end, is_reload = _stream_ends(run)
        self.stream_cause = np.where(is_reload, _CAUSE["reload"], _CAUSE["sharding"])
        self.kind = plan.kind
        self.cause = np.full(len(self.kind), _CAUSE["dependency"])
        self.cause[self.kind == Kind.R] = _CAUSE["recompute"]
        before = self.previous_end
        self.row = np.flatnonzero((run.row_start > before) & np.isfinite(before) & ~plan.fused)
        self.device = schedule.device[self.row]
        self.begin, self.until = before[self.row], run.row_start[self.row]
        self.idle = np.zeros((len(WAITING), schedule.devices))  # seconds by cause
        self.phase = _phases(run)[self.row]
        # Seconds that a device waited for another to compute, by the phase of the waiting device.
        self.waited = np.zeros((len(PHASES), schedule.devices))
        while len(self.row):  # move every cursor back to a row before which that row's device was idle
            self._pass_transfers()
            self._pass_compute()

    def seconds(self, cause: str) -> np.ndarray:
        """Return the idle seconds of each device under one of `WAITING`."""
        return self.idle[_CAUSE[cause]]

    def _attribute(self, cause: int | np.ndarray, back_to: np.ndarray) -> np.ndarray:
        """Attribute the time from `back_to` (or the gap's beginning) to `until`, and move the cursor to its start."""
        back_to = np.clip(back_to, self.begin, self.until)
        seconds = self.until - back_to
        np.add.at(self.idle, (np.broadcast_to(cause, self.device.shape), self.device), seconds)
        self.until = back_to
        return seconds

    def _keep(self, chosen: np.ndarray) -> None:
        for name in _CURSOR:
            setattr(self, name, getattr(self, name)[chosen])

    def _row_before(self) -> np.ndarray:
        """Return the row before each cursor's row on its device, or the first row of its timed slot."""
        return self.run.plan.slot_of_row[self.row - 1]

    def _pass_transfers(self) -> None:
        """Move from an idle device's row over its transfer to the row whose end made the transfer ready.

        The time in which the row waited only for an UNSHARD or RELOAD comes first. If it waited for no transfer, the
        cursor moves to the row before: a measured action may start late, and overhead ends where the row before did.
        """
        self._keep(self.until > self.begin)
        transfer, before = self.transfer[self.row], self.previous_end[self.row]
        arrival = np.where(transfer >= 0, self.received[transfer], -np.inf)
        stream_end = self.stream_end[self.row]
        self._attribute(_CAUSE["overhead"], np.maximum(np.maximum(arrival, stream_end), before))
        until_arrival = np.where(stream_end > arrival, np.maximum(arrival, before), self.until)
        self._attribute(self.stream_cause[self.row], until_arrival)
        waited = (transfer >= 0) & (arrival > before)
        self._attribute(_CAUSE["transfer"], np.where(waited, self.sent[transfer], self.until))
        self._attribute(_CAUSE["queue"], np.where(waited, self.ready[transfer] + self.delay[transfer], self.until))
        self._attribute(_CAUSE["overhead"], np.where(waited, self.ready[transfer], self.until))
        self.row = np.where(waited, self.producer[transfer], self._row_before())
        self._keep((waited | np.isfinite(before)) & (self.until > self.begin))

    def _pass_compute(self) -> None:
        """Move over rows that a device ran one after the other, to a row before which the device itself was idle."""
        arrived: list[list[np.ndarray]] = []
        while len(self.row):
            computed = self.row
            seconds = self._attribute(self.cause[computed], self.run.row_start[computed])
            if self.report is not None:
                self.report(self.device, self.run.schedule.device[computed], self.kind[computed], seconds)
            np.add.at(self.waited, (self.phase, self.device), seconds)
            idle_before = self.previous_end[self.row] < self.until
            is_open = self.until > self.begin
            here = idle_before & is_open
            arrived.append([getattr(self, name)[here] for name in _CURSOR])
            self._keep(is_open & ~idle_before)
            self.row = self._row_before()
        if arrived:
            for name, parts in zip(_CURSOR, zip(*arrived, strict=True), strict=True):
                setattr(self, name, np.concatenate(parts))


def previous_ends(run: TimelineColumns) -> np.ndarray:
    """Return the end of the action before each row on its device; -inf for the first row."""
    ends = np.concatenate([[0.0], run.row_end[:-1]])[run.plan.slot_of_row]
    ends[run.schedule.offsets[:-1]] = -np.inf
    return ends


def _phases(run: TimelineColumns) -> np.ndarray:
    """Return the phase of each row's device before that row, as its index in `PHASES`."""
    schedule, row = run.schedule, np.arange(len(run.row_end))
    backward = is_backward(schedule.kind) | (schedule.kind == Kind.R)
    first_backward = np.minimum.reduceat(np.where(backward, row, len(row)), schedule.offsets[:-1])
    last_forward = np.maximum.reduceat(np.where(schedule.kind == Kind.F, row, -1), schedule.offsets[:-1])
    steady_or_later = 1 + (row > last_forward[schedule.device])
    return np.where(row <= first_backward[schedule.device], 0, steady_or_later)


def _stream_ends(run: TimelineColumns) -> tuple[np.ndarray, np.ndarray]:
    """Return the end of the UNSHARD or copy that each row's slot waits for, or -inf, and whether it is a copy."""
    gathered, reloaded = ended = np.full((2, len(run.row_end)), -np.inf)
    streams = ((run.plan.gathers, run.unshard_end), (run.plan.copies, run.copy_end))
    for of_slot, (stream, end) in zip(ended, streams, strict=True):
        if stream is not None:
            needed = np.flatnonzero(stream.user >= 0)
            np.maximum.at(of_slot, run.plan.slot_of_row[stream.user[needed]], end[needed])
    return np.maximum(gathered, reloaded), reloaded > gathered


def _awaited_transfer(run: TimelineColumns) -> np.ndarray:
    """Return the last transfer that each slot waited for, by its first row, or -1: of a part, or of a blocking SEND.

    The numbers of barriers follow those of the transfers.
    """
    plan, posts, rows = run.plan, run.plan.posts, len(run.plan.source)
    part, number = (np.flatnonzero(plan.remote),) * 2
    if plan.barriers is not None and len(run.barrier_end):
        waiting = np.flatnonzero(plan.barriers.needs >= 0)
        part, number = np.append(part, waiting), np.append(number, rows + plan.barriers.needs[waiting])
    if len(plan.slots.second):
        first_part_last = np.argsort(-part)
        part, number = plan.slot_of_row[part[first_part_last]], number[first_part_last]
    if posts is not None and plan.blocking:
        sends = np.flatnonzero(posts.is_send & (posts.before < run.schedule.offsets[posts.device + 1]))
        part, number = np.append(posts.before[sends], part), np.append(posts.transfer[sends], number)
    return latest_of_each(part, np.concatenate([run.transfer_end, run.barrier_end])[number], number, rows)


def _ready_times(run: TimelineColumns) -> tuple[np.ndarray, ...]:
    """Return the end of the row that each transfer waits for, the host's seconds from it to the post, and the row.

    They are nan, 0 and -1 for a row without a transfer. The numbers of barriers follow those of the transfers. A
    barrier is ready when the last row that it needs ends.
    """
    plan, posts, barriers, rows = run.plan, run.plan.posts, run.plan.barriers, len(run.plan.source)
    producer, delay = np.where(plan.remote, plan.slot_of_row[plan.source], -1), np.zeros(rows)
    if posts is not None:
        before = posts.before
        last_before = np.where(before > run.schedule.offsets[posts.device], plan.slot_of_row[before - 1], -1)
        end = np.where(last_before >= 0, run.row_end[last_before] + plan.post_delay, -np.inf)
        post = latest_of_each(posts.transfer, end, np.arange(len(end)), rows)
        posted = np.flatnonzero(post >= 0)
        producer[posted], delay[posted] = last_before[post[posted]], plan.post_delay[post[posted]]
    ready = np.where(plan.remote, run.row_end[producer], np.nan)
    if barriers is not None and len(run.barrier_end):
        needed = barriers.producer
        last = latest_of_each(barriers.of_producer, run.row_end[needed], plan.slot_of_row[needed], len(barriers))
        ready, delay = np.append(ready, run.row_end[last]), np.append(delay, np.zeros(len(last)))
        producer = np.append(producer, last)
    return ready, delay, producer


def idle_at_ends(run: TimelineColumns, gaps: Gaps) -> dict[str, np.ndarray]:
    """Return the seconds of each device under fill, drain, sharding and optimizer.

    Before the first action, sharding is the time by which an UNSHARD ends later than the action's input arrives; the
    rest is fill. After the last action, sharding lasts while gradients are reduced. Then optimizer lasts until the end
    of the optimizer step, under "sync" including the wait for other devices; the rest is drain.
    """
    first = run.schedule.offsets[:-1]
    start, begin = run.row_start[first], run.device_start.min()
    transfer = gaps.transfer[first]
    arrival = np.where(transfer >= 0, run.transfer_end[transfer], begin)
    gathering = np.clip(gaps.stream_end[first] - np.maximum(arrival, begin), 0.0, start - begin)
    last = run.row_end[run.schedule.offsets[1:] - 1]
    return {
        "fill": start - begin - gathering,
        "sharding": gathering + (run.gradients_ready - last),
        "optimizer": run.device_end - run.gradients_ready,
        "drain": run.device_end.max() - run.device_end,
    }
