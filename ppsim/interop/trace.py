"""What a trace shows, as columns: tracks, slices on them, arrows between slices, and counters. Writers turn it into files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ppsim.actions import KIND_NAMES, Kind

if TYPE_CHECKING:
    from ppsim.timeline import Timeline

NO_ARROW = 0
ROWS_AT_ONCE = 200_000
LONGEST = 2**62


@dataclass(frozen=True)
class Track:
    """One line of a trace. A device is a track of its own, under which its other tracks stand."""

    name: str
    device: int
    number: int
    counts: bool = False


@dataclass(frozen=True)
class Slices:
    """Boxes on tracks, in the order in which those of one track begin.

    Attributes
    ----------
    track : int32
        Number of the track.
    start, end : int64, nanoseconds
    prefix : int32
        Index of the first part of the name in `Trace.prefixes`; the microbatch is the second.
    microbatch : int32
    arrow_in, arrow_out : int64
        Arrow that ends, and arrow that begins or goes on, at this slice; NO_ARROW where there is none.
    holds_next : bool
        True where the following slice lies inside this one (both parts of a timed fused slot).
    """

    track: np.ndarray
    start: np.ndarray
    end: np.ndarray
    prefix: np.ndarray
    microbatch: np.ndarray
    arrow_in: np.ndarray
    arrow_out: np.ndarray
    holds_next: np.ndarray

    def __len__(self) -> int:
        return len(self.track)


@dataclass(frozen=True)
class Levels:
    """A counter: from each time (int64, nanoseconds) on its track has a value (float64)."""

    track: np.ndarray
    time: np.ndarray
    value: np.ndarray


class Trace:
    """The tracks of a timeline, and their contents in pieces of some hundred thousand slices."""

    def __init__(self, timeline: Timeline):
        self.timeline = timeline
        self.schedule = timeline.schedule
        stages = self.schedule.num_stages
        self.prefixes = [f"{stage}{KIND_NAMES[kind]}" for kind in range(Kind.RECV_B) for stage in range(stages)]
        self.tracks: list[Track] = []
        self.compute_track = np.empty(self.schedule.devices, np.int32)
        self.level_track = np.empty(self.schedule.devices, np.int32)
        self._add_tracks()

    def pieces(self) -> Iterator[tuple[Slices, Slices, Levels]]:
        """Actions, transfers sent and live activations of some devices at a time; nothing spans two pieces."""
        offsets = self.schedule.offsets
        first = 0
        for device in range(1, self.schedule.devices + 1):
            if device == self.schedule.devices or offsets[device] - offsets[first] >= ROWS_AT_ONCE:
                yield self._actions(first, device), self._transfers(first, device), self._levels(first, device)
                first = device

    # -- tracks ------------------------------------------------------------------------------------------------------------

    def _add_tracks(self) -> None:
        sender, receiver = self._links
        for device in range(self.schedule.devices):
            self.compute_track[device] = self._add("compute", device)
            mine = slice(*np.searchsorted(sender, [device, device + 1]))
            self.lane_track[mine] = [self._add(f"to device {other}", device) for other in receiver[mine].tolist()]
            self.level_track[device] = self._add("live activations", device, counts=True)

    def _add(self, name: str, device: int, counts: bool = False) -> int:
        number = len(self.tracks)
        self.tracks.append(Track(name, device, number, counts))
        return number
