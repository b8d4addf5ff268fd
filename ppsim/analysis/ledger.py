"""The bubble ledger: every idle second of every device under the one cause that it was waiting for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from ppsim.actions import KIND_NAMES
from ppsim.engines import run_plan
from ppsim.engines.plan import row_seconds
from ppsim.timeline import Timeline

CAUSES = ("fill", "drain", "dependency", "imbalance", "transfer", "queue", "sharding", "optimizer", "jitter", "overhead")


@dataclass(frozen=True)
class Ledger(Mapping[str, np.ndarray]):
    """Idle seconds by cause: `ledger["fill"]` has one entry a device; the causes sum to `run.device_idle`.

    Attributes
    ----------
    seconds : mapping cause -> float64 (devices,)
        fill: before a device's first action; drain: after its last. Between actions, by what the next action was
        waiting for at each moment: dependency (another device computing), imbalance (the part of that which goes away
        when all stages are equal), transfer (latency and bytes), queue (a transfer behind others), sharding, optimizer,
        jitter (the part that goes away without noise), overhead (nothing at all: in measured runs the time between the
        moment an action could start and its start).
    blame : float64 (devices, devices, kinds)
        Idle seconds of a device by the device that was computing meanwhile and the kind of what it computed;
        sums over the last two axes to dependency + imbalance + jitter.
    """

    seconds: dict[str, np.ndarray]
    blame: np.ndarray

    def __getitem__(self, cause: str) -> np.ndarray:
        return self.seconds[cause]

    def __iter__(self) -> Iterator[str]:
        return iter(self.seconds)

    def __len__(self) -> int:
        return len(self.seconds)

    @property
    def total(self) -> np.ndarray:
        """Idle seconds of each device, all causes together."""
        return np.sum(list(self.seconds.values()), axis=0)

    def blamed(self, device: int) -> list[tuple[int, str, float]]:
        """(device, kind, seconds) that `device` waited for, longest first."""
        holders, kinds = np.nonzero(self.blame[device])
        rows = [
            (int(holder), KIND_NAMES[kind], float(self.blame[device, holder, kind]))
            for holder, kind in zip(holders, kinds, strict=True)
        ]
        return sorted(rows, key=lambda row: (-row[2], row[0], row[1]))


class _Gaps:
    """Walks back, for all idle gaps at once, what the action after each gap was waiting for at each moment.

    A gap's cursor is a row and a moment `until`; each step attributes the seconds just before `until` to one cause and
    moves the cursor back, until the gap's beginning. Every step passes a row or a transfer, so it ends.
    """

    def __init__(self, run: Timeline):
        self.run = run
        plan, schedule = run.plan, run.schedule
        devices = schedule.devices
        first_row = schedule.offsets[:-1]
        self.previous_end = np.concatenate([[0.0], run.row_end[:-1]])
        second = np.flatnonzero(plan.fused)
        self.previous_end[second] = self.previous_end[second - 1]
        self.previous_end[first_row] = -np.inf
        self.transfer = _awaited_transfer(run)
        self.ready = _ready(run)
        start_gap = np.flatnonzero((run.row_start > self.previous_end) & np.isfinite(self.previous_end) & ~plan.fused)
        self.row = start_gap
        self.device = schedule.device[start_gap]
        self.begin = self.previous_end[start_gap]
        self.until = run.row_start[start_gap]
        self.idle = {cause: np.zeros(devices) for cause in ("dependency", "transfer", "queue", "overhead")}
        self.blame = np.zeros((devices, devices, len(KIND_NAMES)))

    def walk(self) -> None:
        while len(self.row):
            self._behind_transfers()
            self._behind_compute()

    def _take(self, cause: str, back_to: np.ndarray, holder: np.ndarray | None = None) -> None:
        """Attribute the time from `back_to` (or the gap's beginning) up to `until`, and move the cursor there."""
        moment = np.clip(back_to, self.begin, self.until)
        seconds = self.until - moment
        np.add.at(self.idle[cause], self.device, seconds)
        if holder is not None:
            schedule = self.run.schedule
            np.add.at(self.blame, (self.device, schedule.device[holder], schedule.kind[holder]), seconds)
        self.until = moment

    def _keep(self, open_gaps: np.ndarray) -> None:
        for name in ("row", "device", "begin", "until"):
            setattr(self, name, getattr(self, name)[open_gaps])

    def _behind_transfers(self) -> None:
        """From an idle device's row over its transfer to the row whose end made the transfer ready."""
        self._keep(self.until > self.begin)
        transfer = self.transfer[self.row]
        waited = transfer >= 0
        self._take("overhead", np.where(waited, self.run.transfer_end[transfer], -np.inf))
        self._keep(waited)
        transfer = transfer[waited]
        self._take("transfer", self.run.transfer_start[transfer])
        self._take("queue", self.ready[0][transfer])
        self.row = self.ready[1][transfer].astype(np.int64)
        self._keep(self.until > self.begin)

    def _behind_compute(self) -> None:
        """Back over rows that a device ran one after the other, to a row before which it was idle itself."""
        waiting = []
        while len(self.row):
            self._take("dependency", self.run.row_start[self.row], self.row)
            idle_before = self.previous_end[self.row] < self.until
            open_gaps = self.until > self.begin
            arrived = idle_before & open_gaps
            waiting.append([getattr(self, name)[arrived] for name in ("row", "device", "begin", "until")])
            self._keep(open_gaps & ~idle_before)
            self.row = self.row - 1 - self.run.plan.fused[self.row - 1]
        columns = [np.concatenate(parts) for parts in zip(*waiting, strict=True)] if waiting else []
        if columns:
            self.row, self.device, self.begin, self.until = columns


def _awaited_transfer(run: Timeline) -> np.ndarray:
    """For each row the transfer that arrived last of those it waited for: its own, its slot's, a blocking SEND's."""
    plan = run.plan
    rows = np.arange(len(plan.seconds))
    awaited = np.where(plan.remote, rows, -1)
    arrival = np.where(plan.remote, run.transfer_end, -np.inf)
    second = np.flatnonzero(plan.fused)
    later = second[arrival[second] > arrival[second - 1]]
    awaited[later - 1], arrival[later - 1] = awaited[later], arrival[later]
    posts = plan.posts
    if posts is not None and plan.blocking:
        owner = np.repeat(np.arange(run.schedule.devices), np.diff(posts.offsets))
        for post in np.flatnonzero(posts.is_send & (posts.before < run.schedule.offsets[owner + 1])).tolist():
            row, transfer = posts.before[post], posts.transfer[post]
            if run.transfer_end[transfer] > arrival[row]:
                awaited[row], arrival[row] = transfer, run.transfer_end[transfer]
    return awaited


def _ready(run: Timeline) -> tuple[np.ndarray, np.ndarray]:
    """When each transfer had been posted at both ends, and the row whose end made it so."""
    plan = run.plan
    rows = np.arange(len(plan.seconds))
    maker = np.where(plan.remote, plan.source, -1).astype(np.int64)
    maker[plan.remote] -= plan.fused[maker[plan.remote]]
    if plan.posts is not None:
        posts = plan.posts
        first = np.repeat(run.schedule.offsets[:-1], np.diff(posts.offsets))
        last_before = np.where(posts.before > first, posts.before - 1, -1).astype(np.int64)
        last_before[last_before >= 0] -= plan.fused[last_before[last_before >= 0]]
        end = np.where(last_before >= 0, run.row_end[last_before], -np.inf)
        by_end = np.argsort(end, kind="stable")
        maker[posts.transfer[by_end]] = last_before[by_end]
    moment = np.where(maker >= 0, run.row_end[maker], np.nan)
    return np.where(plan.remote, moment, np.nan)[rows], maker


def ledger(run: Timeline) -> Ledger:
    """Partition the idle time of a run by cause; see `Ledger`.

    The imbalance of a device is by how much its dependency idle shrinks when every stage takes the mean time of its
    kind (the run is simulated again with such stages); it never exceeds the dependency idle.
    """
    gaps = _Gaps(run)
    gaps.walk()
    seconds = {cause: np.zeros(run.schedule.devices) for cause in CAUSES}
    seconds["fill"] = run.device_start - run.device_start.min()
    seconds["drain"] = run.device_end.max() - run.device_end
    seconds.update(gaps.idle)
    if not _stages_are_equal(run):
        equal = _Gaps(_with_equal_stages(run))
        equal.walk()
        dependency = seconds["dependency"]
        seconds["imbalance"] = np.clip(dependency - equal.idle["dependency"], 0.0, dependency)
        seconds["dependency"] = dependency - seconds["imbalance"]
    return Ledger(seconds, gaps.blame)


def _stages_are_equal(run: Timeline) -> bool:
    times = [run.table.seconds] if run.table.overlap is None else [run.table.seconds, run.table.overlap.reshape(1, -1)]
    return all(np.array_equal(column, np.broadcast_to(column[:, :1], column.shape)) for column in times)


def _with_equal_stages(run: Timeline) -> Timeline:
    """The same run with every stage taking the mean time of its kind, every fused slot the mean of all."""
    table = run.table
    mean = np.repeat(table.seconds.mean(axis=1, keepdims=True), table.seconds.shape[1], axis=1)
    overlap = None if table.overlap is None else np.full_like(table.overlap, table.overlap.mean())
    equal = replace(table, seconds=mean, overlap=overlap)
    plan = replace(run.plan, seconds=row_seconds(run.schedule, equal))
    engine, columns = run_plan(plan, run.engine)
    return Timeline(plan, equal, run.costs, *columns, engine=engine)
