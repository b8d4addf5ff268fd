"""Read-only columns: their comparison, copies, caches and look-ups; and short texts of objects."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cached_property, wraps
from typing import Any, TypeVar

import numpy as np

Value = TypeVar("Value")


def read_only(value: Any) -> Any:
    """Return an array as a read-only view, also inside tuples and dicts; return any other value unchanged.

    NumPy does not let anyone make this view writable again. A view of an array that can be written is copied first.
    """
    if isinstance(value, np.ndarray):
        if value.base is not None and getattr(value.base, "flags", value.flags).writeable:
            value = value.copy()
        value.flags.writeable = False
        return value.view() if value.base is None else value
    if type(value) is dict:
        return {key: read_only(part) for key, part in value.items()}
    if not isinstance(value, tuple):
        return value
    parts = map(read_only, value)
    return tuple(parts) if type(value) is tuple else type(value)(*parts)


def cached_column(make: Callable[[Any], Value]) -> cached_property[Value]:
    """Return a cached property whose arrays are read-only."""
    return cached_property(wraps(make)(lambda owner: read_only(make(owner))))


def cached_on(view: Callable[..., Value]) -> Callable[..., Value]:
    """Return `view` with a cache on its first argument, which never changes; arrays are read-only."""
    name = f"{view.__module__}.{view.__qualname__}"

    @wraps(view)
    def cached_view(columns: Any, *others: Any) -> Value:
        cache, key = vars(columns), f"{name}{others or ''}"
        if key not in cache:
            cache[key] = read_only(view(columns, *others))
        return cache[key]

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


def as_class(kind: type[Value], holder: Any, **changed: Any) -> Value:
    """Return an object of the class `kind` with the attributes of another object, some of them changed."""
    made = kind.__new__(kind)
    vars(made).update(vars(holder), **changed)
    return made


class Columns:
    """Base of a class that holds arrays: its copies and pickles hold read-only arrays too, and carry no cache."""

    def __getstate__(self) -> dict[str, Any]:
        names = [name for kind in type(self).__mro__ for name in vars(kind).get("__annotations__", ())]
        return {name: vars(self)[name] for name in dict.fromkeys(names) if name in vars(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update({name: read_only(value) for name, value in state.items()})


class EqualColumns(Columns):
    """Base of a dataclass with arrays: makes them read-only and compares them.

    The dataclass is declared with `@dataclass(frozen=True, eq=False)`.
    """

    def __post_init__(self) -> None:
        vars(self).update({name: read_only(value) for name, value in vars(self).items()})

    def __eq__(self, other: object) -> bool:
        return equal(self, other) if type(self) is type(other) else NotImplemented


def list_numbers(offsets: np.ndarray) -> np.ndarray:
    """Return the number of the list that each row belongs to, int32."""
    return np.repeat(np.arange(len(offsets) - 1, dtype=np.int32), np.diff(offsets))


def offsets_of(sizes: np.ndarray) -> np.ndarray:
    """Return the first row of each of some lists, of these sizes, and at the end the number of all rows; int64."""
    return np.append(0, np.cumsum(sizes))


def index_in_list(sizes: np.ndarray) -> np.ndarray:
    """Return the index of each row in its own list, for lists of these sizes; int64."""
    offsets = offsets_of(sizes)
    return np.arange(offsets[-1]) - np.repeat(offsets[:-1], sizes)


class DeviceLists:
    """Base of columns that are cut into one list per device; the class has a field `offsets`."""

    offsets: np.ndarray

    @property
    def device(self) -> np.ndarray:
        """Device of each row, int32."""
        return list_numbers(self.offsets)


class SizedColumns:
    """Base of a dataclass of columns; its length is that of its first column."""

    def __len__(self: Any) -> int:
        return len(getattr(self, fields(self)[0].name))


def distinct(column: np.ndarray) -> np.ndarray:
    """Return every value of a column once, in rising order; `np.unique` takes ten times as long if most differ."""
    ordered = np.sort(column, axis=None)
    return ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]


def index_in(ordered: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the index of each value in a sorted column, the first of equal ones, or -1; int64."""
    found = np.searchsorted(ordered, values)
    found[found == len(ordered)] = -1
    return np.where(ordered[found] == values, found, -1) if len(ordered) else found


def latest_of_each(key: np.ndarray, time: np.ndarray, value: np.ndarray, keys: int) -> np.ndarray:
    """Return for each key below `keys` its value with the latest time, of equal times the last one; -1 for no value."""
    latest, found = np.full(keys, -np.inf), np.full(keys, -1)
    np.maximum.at(latest, key, time)
    is_latest = time == latest[key]
    found[key[is_latest]] = value[is_latest]
    return found


# Short texts of objects: one line per dataclass for prompts, logs and errors


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
