"""Short texts of objects: one line per dataclass for prompts, logs and errors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field
from typing import Any

import numpy as np

from ppsim.base.immutable import equal

MAX_LENGTH = 180  # characters of the line
_MAX_VALUES = (MAX_LENGTH, 60, 24)  # characters of one value: the first limit with which the line fits applies
_MAX_ITEMS = 64  # a container with more items is shown as its size


def short_repr(self: Any) -> str:
    """Return a dataclass as the call that makes it, on one line.

    Fields at their default are left out. If the line would be longer than `MAX_LENGTH`, long values are shortened.
    """
    items = [item for item in dataclasses.fields(self) if item.repr and item.init]
    given = [(item.name, getattr(self, item.name)) for item in items if not _is_default(item, self)]
    return call_text(type(self).__name__, given)


def call_text(name: str, arguments: Iterable[tuple[str, Any]]) -> str:
    """Return `name(key=value, ...)` on one line of at most `MAX_LENGTH` characters."""
    pairs, text = list(arguments), ""
    for longest in _MAX_VALUES:
        text = f"{name}({', '.join(f'{key}={_value_text(value, longest)}' for key, value in pairs)})"
        if len(text) <= MAX_LENGTH:
            return text
    return f"{text[: MAX_LENGTH - 4]}...)"


def _is_default(item: Field, holder: Any) -> bool:
    default = item.default if item.default_factory is MISSING else item.default_factory()
    return default is not MISSING and equal(default, getattr(holder, item.name))


def _value_text(value: Any, longest: int) -> str:
    """Return the repr of a value, or its class and size if that is longer than `longest` or takes several lines."""
    if isinstance(value, np.ndarray):
        return f"[{value.size} values]"
    sized = isinstance(value, Mapping | list | tuple)
    text = "" if sized and len(value) > _MAX_ITEMS else repr(value)
    if text and len(text) <= longest and "\n" not in text:
        return text
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return f"{text[: max(longest - 4, 1)]}...'"
    if sized:
        return f"{{{len(value)} items}}" if isinstance(value, Mapping) else f"[{len(value)} items]"
    return f"{type(value).__name__}(...)"
