"""Columns that nobody writes to again: their equality, and views of them that are worked out once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, TypeVar

import numpy as np

Value = TypeVar("Value")


def unwritable(column: np.ndarray) -> np.ndarray:
    """`column`, closed for writing; a copy where it is a window on an array that could still be written.

    What comes back is a window on the closed column, and such a one cannot be opened again.
    """
    if column.base is not None and getattr(column.base, "flags", column.flags).writeable:
        column = column.copy()
    column.flags.writeable = False
    return column.view() if column.base is None else column


def kept(view: Callable[[Any], Value]) -> Callable[[Any], Value]:
    """A view of an object whose columns never change: worked out when first asked for, then kept with the object."""
    name = f"{view.__module__}.{view.__qualname__}"

    @wraps(view)
    def look(columns: Any) -> Value:
        memory = vars(columns)
        if name not in memory:
            memory[name] = view(columns)
        return memory[name]

    return look


def column_of(held: Any) -> np.ndarray:
    """The array, or that of an object whose `column` is worked out when it is read."""
    return held if isinstance(held, np.ndarray) else held.column


class Column:
    """A field that holds an array or an object with one, as for `column_of`.

    For `seconds: np.ndarray = Column.field()`; `vars(owner)["seconds"]` is what the field was given.
    """

    @classmethod
    def field(cls) -> Any:
        """The default of the field, which has none."""
        return cls()

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, owner: Any, kind: type | None = None) -> np.ndarray:
        if owner is None:
            raise AttributeError(self.name)  # a dataclass takes what it finds here for the default
        return column_of(vars(owner)[self.name])

    def __set__(self, owner: Any, value: Any) -> None:
        vars(owner)[self.name] = unwritable(value) if isinstance(value, np.ndarray) else value


def equal(one: Any, other: Any) -> bool:
    """Whether two values hold the same: arrays entry by entry with nan equal to nan, dataclasses field by field."""
    if isinstance(one, np.ndarray) or isinstance(other, np.ndarray):
        return _equal_arrays(one, other)
    if is_dataclass(one) and not isinstance(one, type):
        return type(one) is type(other) and all(
            equal(getattr(one, column.name), getattr(other, column.name)) for column in fields(one) if column.compare
        )
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(equal(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and type(one) is type(other):
        return len(one) == len(other) and all(map(equal, one, other))
    return bool(one == other)


def _equal_arrays(one: Any, other: Any) -> bool:
    if not (isinstance(one, np.ndarray) and isinstance(other, np.ndarray)):
        return False
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f" and other.dtype.kind == "f")


class EqualColumns:
    """Gives a dataclass that holds arrays an `==` of whole values; for `@dataclass(frozen=True, eq=False)`."""

    def __eq__(self, other: object) -> bool:
        return equal(self, other) if type(self) is type(other) else NotImplemented

    __hash__ = None  # type: ignore[assignment]
