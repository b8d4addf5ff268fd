"""Columns that nobody writes to again, and views of them that are worked out once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from functools import wraps
from typing import Any, TypeVar

import numpy as np

Value = TypeVar("Value")


def unwritable(column: np.ndarray) -> np.ndarray:
    """`column` itself, closed for writing; a copy where it is a window on an array that could still be written."""
    if not column.flags.writeable:
        return column
    if column.base is not None and getattr(column.base, "flags", column.flags).writeable:
        column = column.copy()
    column.flags.writeable = False
    return column


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


def same_columns(one: Any, other: object) -> bool:
    """`==` of objects that hold arrays: equal class and fields, arrays bit for bit and nan equal to nan."""
    if type(one) is not type(other):
        return NotImplemented
    names = [item.name for item in fields(one)] if is_dataclass(one) else vars(one)
    return all(_same(getattr(one, name), getattr(other, name)) for name in names)


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return np.array_equal(one, other, equal_nan=one.dtype.kind == other.dtype.kind == "f")
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return bool(one == other) or (one != one and other != other)
