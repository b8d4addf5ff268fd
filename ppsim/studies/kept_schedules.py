"""What a process has worked out of schedules already, for points that share them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sized
from typing import Generic, TypeVar

Held = TypeVar("Held", bound=Sized)


class Kept(Generic[Held]):
    """Schedules, or outlines, by key, of at most `most_rows` rows together; what was used longest ago goes first."""

    def __init__(self, most_rows: int):
        self.most_rows = most_rows
        self._kept: dict[Hashable, Held | None] = {}
        self._rows = 0

    def of(self, key: Hashable, make: Callable[[], Held | None]) -> Held | None:
        """What is kept under a key, made where it is not; None where `make` says that there is none."""
        if key in self._kept:
            found = self._kept.pop(key)
        else:
            found = make()
            self._rows += _rows(found)
        self._kept[key] = found
        while self._rows > self.most_rows and len(self._kept) > 1:
            self._rows -= _rows(self._kept.pop(next(iter(self._kept))))
        return found


def _rows(found: Sized | None) -> int:
    return 1 if found is None else len(found)
