"""Columns: read-only ones with their comparison, copies and caches, lists kept in one column, and distinct values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import cached_property, wraps
from typing import Any, TypeVar

import numpy as np

Value = TypeVar("Value")


def unwritable(column: np.ndarray) -> np.ndarray:
    """Return a read-only view of `column`, or of its copy if it is itself a view of an array that can be written.

    NumPy does not let anyone make this view writable again.
    """
    if column.base is not None and getattr(column.base, "flags", column.flags).writeable:
        column = column.copy()
    column.flags.writeable = False
    return column.view() if column.base is None else column


def closed(value: Any) -> Any:
    """Return an array read-only, also inside tuples and dicts; return any other value unchanged."""
    if isinstance(value, np.ndarray):
        return unwritable(value)
    if type(value) is dict:
        return {key: closed(part) for key, part in value.items()}
    if not isinstance(value, tuple):
        return value
    parts = map(closed, value)
    return tuple(parts) if type(value) is tuple else type(value)(*parts)


def cached_column(make: Callable[[Any], Value]) -> cached_property[Value]:
    """Return a cached property whose arrays are read-only."""
    return cached_property(wraps(make)(lambda owner: closed(make(owner))))


def cached_on(view: Callable[[Any], Value]) -> Callable[[Any], Value]:
    """Return `view` with a cache on the object that it is called for, which never changes; arrays are read-only."""
    name = f"{view.__module__}.{view.__qualname__}"

    @wraps(view)
    def cached_view(columns: Any) -> Value:
        cache = vars(columns)
        if name not in cache:
            cache[name] = closed(view(columns))
        return cache[name]

    return cached_view


def equal(one: Any, other: Any) -> bool:
    """Return whether two values are equal: arrays by entry (nan equals nan), dataclasses by field."""
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other, equal_nan=one.dtype.kind == "f" and other.dtype.kind == "f")
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return False
    if is_dataclass(one) and not isinstance(one, type):
        return type(one) is type(other) and all(
            equal(getattr(one, column.name), getattr(other, column.name)) for column in fields(one) if column.compare
        )
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(equal(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and type(one) is type(other):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


class Columns:
    """Base of a class that holds arrays: its copies and pickles hold read-only arrays too, and carry no cache."""

    def __getstate__(self) -> dict[str, Any]:
        names = [name for kind in type(self).__mro__ for name in vars(kind).get("__annotations__", ())]
        return {name: vars(self)[name] for name in dict.fromkeys(names) if name in vars(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({name: closed(value) for name, value in state.items()})


class EqualColumns(Columns):
    """Base of a dataclass with arrays: makes them read-only and compares them.

    The dataclass is declared with `@dataclass(frozen=True, eq=False)`.
    """

    def __post_init__(self) -> None:
        vars(self).update({name: closed(value) for name, value in vars(self).items()})

    def __eq__(self, other: object) -> bool:
        return equal(self, other) if type(self) is type(other) else NotImplemented

    __hash__ = None  # type: ignore[assignment]


# Lists in one column


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
