"""Schedules that a process has built already, for points that share them."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from ppsim.run.schedules import Schedule


class KeptSchedules:
    """Schedules by key, of at most `most_rows` rows together; the ones that were used longest ago go first."""

    def __init__(self, most_rows: int):
        self.most_rows = most_rows
        self._kept: dict[Hashable, Schedule | None] = {}
        self._rows = 0

    def of(self, key: Hashable, make: Callable[[], Schedule | None]) -> Schedule | None:
        """The schedule of a key, made where it is not kept; None where `make` says that there is none."""
        if key in self._kept:
            found = self._kept.pop(key)
        else:
            found = make()
            self._rows += _rows(found)
        self._kept[key] = found
        while self._rows > self.most_rows and len(self._kept) > 1:
            self._rows -= _rows(self._kept.pop(next(iter(self._kept))))
        return found


def _rows(schedule: Schedule | None) -> int:
    return 1 if schedule is None else len(schedule)
