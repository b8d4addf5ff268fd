"""Whom idle devices waited for: seconds by waiting device, computing device and kind, of the pairs that occur."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ppsim.actions import KIND_NAMES
from ppsim.analysis.gaps import Gaps
from ppsim.base.host_memory import require_memory
from ppsim.base.immutable import EqualColumns
from ppsim.timeline import TimelineColumns

_KINDS = len(KIND_NAMES)
BYTES_AN_ENTRY = 64  # while waits are summed
_AT_A_TIME = 2**22  # waits, until those of the same pair and kind are summed
_MOST_LISTED, _LEAST_LISTED = 2**18, 64  # of all devices, and of each


@dataclass(frozen=True, eq=False)
class Blame(EqualColumns):
    """Seconds that devices waited for others to compute: an entry for each pair and kind that occurs, in that order.

    Attributes
    ----------
    waiting, holder, kind : int64
        The waiting device, or its group; the device that computed; the code of the kind that it computed.
    seconds : float64
    """

    waiting: np.ndarray
    holder: np.ndarray
    kind: np.ndarray
    seconds: np.ndarray

    def of(self, waiting: int) -> list[tuple[int, str, float]]:
        """(device, kind, seconds) that a device or group waited for, longest first."""
        some = slice(*np.searchsorted(self.waiting, [waiting, waiting + 1]))
        longest = np.argsort(-self.seconds[some], kind="stable")
        holder, kind, seconds = (column[some][longest].tolist() for column in (self.holder, self.kind, self.seconds))
        return [(*wait[:1], KIND_NAMES[wait[1]], wait[2]) for wait in zip(holder, kind, seconds, strict=True)]


def blame(run: TimelineColumns, factor: np.ndarray, group: np.ndarray | None = None) -> Blame:
    """Sum the waits of a run by waiting device, or by `group` of each device, int64; `factor` scales each device's."""
    sums = _Sums(run.schedule.devices, factor, np.arange(run.schedule.devices) if group is None else group)
    Gaps(run, sums.add).walk()
    return sums.blame()


def longest_waits(run: TimelineColumns, factor: np.ndarray) -> Iterator[tuple[int, int | None, str, float]]:
    """(waiting device, device that computed, kind, seconds) of all waits, each device's longest first.

    Where there are thousands of devices each lists its longest only; the others are summed by kind, with None in place
    of the device that computed. Memory then grows with devices, not with pairs of them.
    """
    devices = run.schedule.devices
    most, block = max(_MOST_LISTED // devices, _LEAST_LISTED), max(_AT_A_TIME // devices, 1)
    for first in range(0, devices, block):
        some = slice(first, first + block)
        sums = _Sums(devices, factor, np.arange(devices))
        Gaps(run, sums.add, some).walk()
        found = sums.blame()
        for device in range(devices)[some]:
            waits = found.of(device)
            yield from ((device, *wait) for wait in waits[:most])
            others: dict[str, float] = {}
            for _, kind, seconds in waits[most:]:
                others[kind] = others.get(kind, 0.0) + seconds
            yield from ((device, None, kind, seconds) for kind, seconds in others.items())


class _Sums:
    """Waits as they are reported, summed by cell: the number of (group, holder, kind)."""

    def __init__(self, devices: int, factor: np.ndarray, group: np.ndarray):
        self.devices, self.factor, self.group = devices, factor, group
        self.cells, self.seconds = [np.empty(0, np.int64)], [np.empty(0)]
        self.waits = 0

    def add(self, waiting: np.ndarray, holder: np.ndarray, kind: np.ndarray, seconds: np.ndarray) -> None:
        """Take in one report of `Gaps`."""
        some = seconds > 0
        self.cells.append(((self.group[waiting] * self.devices + holder) * _KINDS + kind)[some])
        self.seconds.append((seconds * self.factor[waiting])[some])
        self.waits += len(waiting)
        if self.waits > max(_AT_A_TIME, 2 * len(self.cells[0])):
            self._sum_up()

    def _sum_up(self) -> None:
        entries = sum(map(len, self.cells))
        require_memory(
            f"whom each of {self.devices} devices waited for, {entries} pairs or more,", entries * BYTES_AN_ENTRY,
            "use fewer devices, or read the ledger's table, which sums groups of devices",
        )  # fmt: skip
        cells, cell = np.unique(np.concatenate(self.cells), return_inverse=True)
        self.seconds = [np.bincount(cell, np.concatenate(self.seconds), len(cells))]
        self.cells, self.waits = [cells], 0

    def blame(self) -> Blame:
        """All that was taken in."""
        self._sum_up()
        pair, kind = np.divmod(self.cells[0], _KINDS)
        return Blame(*np.divmod(pair, self.devices), kind, self.seconds[0])
