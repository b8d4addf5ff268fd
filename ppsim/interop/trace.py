"""What a trace shows, as columns: tracks, slices on them, arrows between slices, and counters."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ppsim.actions import FIRST_SHARDING, KIND_NAMES, Kind
from ppsim.errors import ConfigError

if TYPE_CHECKING:
    from ppsim.timeline import Timeline

NO_ARROW = 0
ROWS_AT_ONCE = 200_000
LONGEST_SECONDS = 4e9


@dataclass(frozen=True)
class Track:
    """One line of a trace, standing under its device; `counts` where it holds a counter instead of slices."""

    name: str
    device: int
    number: int
    counts: bool = False


@dataclass(frozen=True)
class Slices:
    """Boxes on tracks; those of one track stand in the order in which they begin.

    Attributes
    ----------
    track : int32
        Number of the track.
    start, end : int64, nanoseconds
    prefix : int64
        Index of the first part of the name in `Trace.prefixes`; the microbatch is the second.
    microbatch : int32
    arrow_in, arrow_out : int64
        Arrow that ends, and arrow that begins or goes on, at this slice; NO_ARROW where there is none.
    inside : bool
        True where the slice lies inside the one before it (the second part of a timed fused slot).
    """

    track: np.ndarray
    start: np.ndarray
    end: np.ndarray
    prefix: np.ndarray
    microbatch: np.ndarray
    arrow_in: np.ndarray
    arrow_out: np.ndarray
    inside: np.ndarray


@dataclass(frozen=True)
class Levels:
    """A counter: from each time (int64, nanoseconds) on, its track has a value (float64)."""

    track: np.ndarray
    time: np.ndarray
    value: np.ndarray


class Trace:
    """The tracks of a timeline, and what is on them in pieces of some hundred thousand slices.

    An arrow is named by the row that consumes what it stands for, plus one. Transfers that take no time have no slice;
    their arrow goes from action to action.
    """

    def __init__(self, timeline: Timeline):
        self.timeline, self.schedule = timeline, timeline.schedule
        last = timeline.device_end.max()
        if not last <= LONGEST_SECONDS:
            raise ConfigError(
                f"a trace counts nanoseconds up to {LONGEST_SECONDS:g} s, and this timeline ends at {last:g} s"
            )
        self.last = int(_nanoseconds(last))
        stages = range(self.schedule.num_stages)
        self.prefixes = [f"{stage}{name}" for name in KIND_NAMES[:FIRST_SHARDING] for stage in stages]
        self.arrow_out = np.full(len(timeline.row_start), NO_ARROW, np.int64)
        remote = np.flatnonzero(timeline.plan.remote)
        self.arrow_out[timeline.plan.source[remote]] = remote + 1
        self._lay_transfers(remote)
        self._lay_tracks()

    def pieces(self) -> Iterator[tuple[Slices, Slices, Levels]]:
        """Actions, transfers sent and live activations of some devices at a time; no track spans two pieces."""
        offsets, devices = self.schedule.offsets, self.schedule.devices
        first = 0
        for last in range(1, devices + 1):
            if last == devices or offsets[last] - offsets[first] >= ROWS_AT_ONCE:
                yield self._actions(first, last), self._transfers(first, last), self._levels(first, last)
                first = last

    def _lay_transfers(self, remote: np.ndarray) -> None:
        """Sort the transfers by link and start; lanes of a link part those that overlap."""
        start, end = (
            _nanoseconds(column[remote]) for column in (self.timeline.transfer_start, self.timeline.transfer_end)
        )
        takes_time = end > start
        remote, start, end = remote[takes_time], start[takes_time], end[takes_time]
        device, source = self.schedule.device, self.timeline.plan.source
        sender, receiver = device[source[remote]], device[remote]
        order = np.lexsort((start, receiver, sender))
        self.transfer, self.sender, self.receiver = remote[order], sender[order], receiver[order]
        self.transfer_start, self.transfer_end = start[order], end[order]
        turns = np.flatnonzero(np.diff(self.sender) | np.diff(self.receiver)) + 1
        bounds = np.concatenate([[0], turns, [len(order)]]) if len(order) else np.zeros(1, np.int64)
        self.links = [(int(first), int(last)) for first, last in pairwise(bounds)]

    def _lay_tracks(self) -> None:
        self.tracks: list[Track] = []
        self.compute_track, self.level_track = (np.empty(self.schedule.devices, np.int32) for _ in range(2))
        self.transfer_track = np.empty(len(self.transfer), np.int32)
        links = iter([*self.links, (len(self.transfer), len(self.transfer))])
        first, last = next(links)
        for device in range(self.schedule.devices):
            self.compute_track[device] = self._add("compute", device)
            while first < last and self.sender[first] == device:
                self._add_lanes(first, last)
                first, last = next(links)
            self.level_track[device] = self._add("live activations", device, counts=True)

    def _add_lanes(self, first: int, last: int) -> None:
        """Tracks for the transfers `first` to `last` of one link: as many as it takes for none to overlap."""
        start, end = self.transfer_start[first:last], self.transfer_end[first:last]
        lanes = 1
        while np.any(start[lanes:] < end[:-lanes]):
            lanes += 1 if lanes < 16 else lanes
        device, name = int(self.sender[first]), f"to device {self.receiver[first]}"
        tracks = [self._add(name, device) for _ in range(min(lanes, last - first))]
        self.transfer_track[first:last] = np.resize(tracks, last - first)

    def _add(self, name: str, device: int, counts: bool = False) -> int:
        self.tracks.append(Track(name, device, len(self.tracks), counts))
        return len(self.tracks) - 1

    def _actions(self, first: int, last: int) -> Slices:
        rows = np.arange(self.schedule.offsets[first], self.schedule.offsets[last])
        kind, stage = self.schedule.kind[rows], self.schedule.stage[rows]
        return Slices(
            self.compute_track[self.schedule.device[rows]],
            _nanoseconds(self.timeline.row_start[rows]),
            _nanoseconds(self.timeline.row_end[rows]),
            kind.astype(np.int64) * self.schedule.num_stages + stage,
            self.schedule.microbatch[rows],
            np.where(self.timeline.plan.remote[rows], rows + 1, NO_ARROW),
            self.arrow_out[rows],
            self.timeline.plan.fused[rows],
        )

    def _transfers(self, first: int, last: int) -> Slices:
        mine = slice(*np.searchsorted(self.sender, [first, last]))
        transfer = self.transfer[mine]
        producer = self.timeline.plan.source[transfer]
        send = np.where(self.schedule.kind[producer] == Kind.F, Kind.SEND_F, Kind.SEND_B).astype(np.int64)
        return Slices(
            self.transfer_track[mine],
            self.transfer_start[mine],
            self.transfer_end[mine],
            send * self.schedule.num_stages + self.schedule.stage[producer],
            self.schedule.microbatch[producer],
            np.full(len(transfer), NO_ARROW),
            transfer + 1,
            np.zeros(len(transfer), bool),
        )

    def _levels(self, first: int, last: int) -> Levels:
        curves = [self.timeline.activations_over_time(device) for device in range(first, last)]
        return Levels(
            np.repeat(self.level_track[first:last], [len(times) for times, _ in curves]),
            _nanoseconds(np.concatenate([times for times, _ in curves])),
            np.concatenate([levels for _, levels in curves]),
        )


def _nanoseconds(seconds: np.ndarray) -> np.ndarray:
    return np.rint(seconds * 1e9).astype(np.int64)
