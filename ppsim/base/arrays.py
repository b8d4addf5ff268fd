"""Columns of values: lists kept in one column, and distinct values."""

from dataclasses import fields
from typing import Any

import numpy as np


def list_of_rows(offsets: np.ndarray) -> np.ndarray:
    """Return the number of the list that each row belongs to, int32."""
    return np.repeat(np.arange(len(offsets) - 1, dtype=np.int32), np.diff(offsets))


class DeviceLists:
    """Base of columns that are cut into one list per device; the class has a field `offsets`."""

    offsets: np.ndarray

    @property
    def device(self) -> np.ndarray:
        """Device of each row, int32."""
        return list_of_rows(self.offsets)


class SizedColumns:
    """Base of a dataclass of columns; its length is that of its first column."""

    def __len__(self: Any) -> int:
        return len(getattr(self, fields(self)[0].name))


def distinct(column: np.ndarray) -> np.ndarray:
    """Return every value of a column once, in rising order."""
    ordered = np.sort(column, axis=None)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
