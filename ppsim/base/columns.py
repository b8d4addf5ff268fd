"""Columns that nobody writes to again, and views of them that are worked out once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np

Value = TypeVar("Value")


def unwritable(column: np.ndarray) -> np.ndarray:
    """`column` itself, closed for writing; a copy where it is a window on an array that could still be written."""
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
