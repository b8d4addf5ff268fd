"""Groups of actions, for text charts with too few columns for single ones: what repeats stands once, with its count."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ppsim.plots.boxes import Boxes, kind_letter

LONGEST_UNIT = 8  # actions that repeat as one
NARROWEST = 4  # columns of a group; narrower ones that follow each other are told as a mix
LEAST_SHARE = 0.08  # of a mix: kinds of less time are not named


@dataclass(frozen=True)
class Group:
    """Actions of a device that follow each other without a gap that shows.

    Attributes
    ----------
    first, last : int
        Columns from `first` to before `last`.
    shares : dict kind -> part of the time, in the order in which they begin, or the largest first in a mix
    labels : texts, the longest first; the last is one letter
    """

    first: int
    last: int
    shares: dict[int, float]
    labels: list[str]

    @property
    def label(self) -> str:
        """The longest label that fits behind an edge."""
        return next((text for text in self.labels if len(text) < self.last - self.first), self.labels[-1])

    def kinds(self) -> list[int]:
        """The kind of each column, in proportion to their time: what is owed most so far comes next."""
        kinds, shares = list(self.shares), np.array(list(self.shares.values()))
        owed, chosen = np.zeros(len(kinds)), []
        for _ in range(self.last - self.first):
            owed += shares
            chosen.append(kinds[int(owed.argmax())])
            owed[owed.argmax()] -= 1.0
        return chosen


def groups_of(boxes: Boxes, device: int, per_second: float, drawn: int) -> list[Group]:
    """The groups of a device's actions, of those that take time, in the order of time."""
    rows = slice(int(boxes.offsets[device]), int(boxes.offsets[device + 1]))
    mine = np.flatnonzero(boxes.length[rows] > 0) + rows.start
    begin, end = (np.floor(times[mine] * per_second + 0.5) for times in (boxes.start, boxes.end))
    stretch = np.cumsum(np.append(False, begin[1:] - end[:-1] >= NARROWEST - 1))  # between gaps that show
    found: list[Group] = []
    narrow: list[np.ndarray] = []
    for part, unit in _repeats(boxes.kind[mine], stretch):
        if narrow and (stretch[part[0]] != stretch[narrow[-1][0]] or end[part[-1]] - begin[part[0]] >= NARROWEST):
            found.append(_mix(boxes, mine[np.concatenate(narrow)], per_second, drawn))
            narrow = []
        if end[part[-1]] - begin[part[0]] < NARROWEST:
            narrow.append(part)
        else:
            found.append(_group(boxes, mine[part], _labels(boxes, mine[part], unit), per_second, drawn))
    return [*found, *([_mix(boxes, mine[np.concatenate(narrow)], per_second, drawn)] if narrow else [])]


def _repeats(kind: np.ndarray, stretch: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
    """Places that belong together and the length of the unit that repeats there: as many as can, of the shortest."""
    count = len(kind)
    until = []  # for each unit the place from which on the kinds no longer repeat
    for unit in range(1, LONGEST_UNIT + 1):
        same = np.zeros(count + 1, bool)
        same[unit:count] = (kind[unit:] == kind[:-unit]) & (stretch[unit:] == stretch[:-unit])
        places = np.where(same, count, np.arange(count + 1))
        until.append(np.minimum.accumulate(places[::-1])[::-1])
    at = 0
    while at < count:
        best, length = 1, 1
        for unit in range(1, min(LONGEST_UNIT, count - at) + 1):
            covered = (int(until[unit - 1][min(at + unit, count)]) - at) // unit * unit
            if covered > max(length, unit):
                best, length = unit, covered
        yield np.arange(at, at + length), best
        at += length


def _labels(boxes: Boxes, mine: np.ndarray, unit: int) -> list[str]:
    letters, times = "".join(kind_letter(int(kind)) for kind in boxes.kind[mine[:unit]]), len(mine) // unit
    if unit > 1:
        return [f"{times} x {letters}", letters, letters[0]]
    first, last = boxes.microbatch[mine[0]], boxes.microbatch[mine[-1]]
    if times == 1:
        return [letters + boxes.short_label(int(mine[0])), letters]
    in_turn = not boxes.slot[mine].any() and bool(np.all(np.diff(boxes.microbatch[mine]) == 1))
    return [*([f"{letters}{first}-{last}"] if in_turn else []), f"{times} x {letters}", letters]


def _mix(boxes: Boxes, mine: np.ndarray, per_second: float, drawn: int) -> Group:
    """Actions that take turns without a pattern: the letters of their kinds, most time first."""
    if len(mine) == 1:
        return _group(boxes, mine, _labels(boxes, mine, 1), per_second, drawn)
    shares = _shares(boxes, mine)
    letters = [kind_letter(kind) for kind, share in shares.items() if share >= LEAST_SHARE]
    return _group(boxes, mine, ["+".join(letters), letters[0]], per_second, drawn)


def _shares(boxes: Boxes, mine: np.ndarray) -> dict[int, float]:
    seconds = np.bincount(boxes.kind[mine], boxes.length[mine])
    order = np.argsort(-seconds, kind="stable")
    return {int(kind): float(seconds[kind] / seconds.sum()) for kind in order if seconds[kind] > 0}


def _group(boxes: Boxes, mine: np.ndarray, labels: list[str], per_second: float, drawn: int) -> Group:
    first = min(int(boxes.start[mine[0]] * per_second + 0.5), drawn - 1)
    last = min(max(int(boxes.end[mine[-1]] * per_second + 0.5), first + 1), drawn)
    return Group(first, last, _shares(boxes, mine), labels)
