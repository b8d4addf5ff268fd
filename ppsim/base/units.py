"""Quantities with units: "2 ms", "450 GB/s" or "989 TFLOP/s" as SI numbers, and SI numbers as readable text."""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Sequence
from numbers import Real
from typing import Any, NamedTuple

from ppsim.base.errors import ConfigError, shown

_PREFIXES = {
    "": 1.0, "n": 1e-9, "u": 1e-6, "µ": 1e-6, "μ": 1e-6, "m": 1e-3, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
    "P": 1e15, "E": 1e18, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40,
}  # fmt: skip
_UNITS = {
    "seconds": {"s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0},
    "bytes": {"B": 1.0, "byte": 1.0, "bytes": 1.0},
    "bytes per second": {"B/s": 1.0, "b/s": 0.125, "bit/s": 0.125, "bps": 0.125},
    "FLOP/s": {"FLOP/s": 1.0, "FLOPS": 1.0, "FLOPs": 1.0, "FLOPs/s": 1.0},
}
EXAMPLES = {"seconds": "2 ms", "bytes": "80 GB", "bytes per second": "450 GB/s", "FLOP/s": "989 TFLOP/s"}
_QUANTITY = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)\s*(\S*)")
_LONGEST = 60


def parse_quantity(value: Any, unit: str, *, above_zero: bool = False) -> float:
    """Return a plain number, or text with a unit such as "2 ms", as a finite number of `unit`.

    It must be at least 0, or above 0 if `above_zero` or if it is a rate. `unit` is a key of `EXAMPLES`. Lower-case b
    counts bits, upper-case B bytes. Raises ConfigError with the value and the rule.
    """
    above_zero = above_zero or unit in ("bytes per second", "FLOP/s")
    least = "above 0" if above_zero else "of at least 0"
    legal = f"must be a number of {unit} {least}, or text with a unit such as {EXAMPLES[unit]!r}"
    number = _from_text(value, unit, legal) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, Real):  # NumPy's numbers are Real
        raise ConfigError(f"{value!r:.{_LONGEST}} {legal}")
    try:
        number = float(number)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number < 0 or (above_zero and number == 0):
        raise ConfigError(f"{value!r:.{_LONGEST}} {legal}")
    return number


def _from_text(text: str, unit: str, legal: str) -> float:
    match = _QUANTITY.fullmatch(text.strip()) if len(text) <= _LONGEST else None
    if not match:
        raise ConfigError(f"{text!r:.{_LONGEST}} {legal}")
    digits, suffix = match.groups()
    if not suffix:
        return float(digits)
    for name, factor in _UNITS[unit].items():
        prefix = suffix.removesuffix(name)
        if prefix != suffix and prefix in _PREFIXES:
            return float(digits) * _PREFIXES[prefix] * factor
    raise ConfigError(f"{text!r}: {suffix!r} is not a unit of {unit}; it {legal}")


def parse_fraction(value: Any) -> float:
    """Return a number such as 0.15, or text such as "15%", as a finite number >= 0; raise ConfigError for others."""
    text, number = str(value).strip(), math.nan
    with contextlib.suppress(ValueError):
        number = float(text.removesuffix("%")) / (100.0 if text.endswith("%") else 1.0)
    if isinstance(value, bool) or not (math.isfinite(number) and number >= 0):
        raise ConfigError(f"{shown(value)} must be a finite number of at least 0, such as 0.15 or 15%")
    return number


def format_quantity(value: float, unit: str, digits: int = 4) -> str:
    """Return an SI number with a readable prefix, such as 450 GB/s; `unit` is a key of `EXAMPLES`."""
    symbol = {"seconds": "s", "bytes": "B", "bytes per second": "B/s", "FLOP/s": "FLOP/s"}[unit]
    if not (math.isfinite(value) and value):
        return f"{value:g} {symbol}"
    for prefix in ("P", "T", "G", "M", "k", "", "m", "µ", "n"):
        if abs(value) >= 0.9995 * _PREFIXES[prefix]:
            return f"{value / _PREFIXES[prefix]:.{digits}g} {prefix}{symbol}"
    return f"{value:.{digits}g} {symbol}"


class ScaledUnit(NamedTuple):
    """Unit of a readable size, such as ms or GB: an SI number times `factor` is a number of `symbol`."""

    factor: float
    symbol: str


_TIME_UNITS = (ScaledUnit(1.0, "s"), ScaledUnit(1e3, "ms"), ScaledUnit(1e6, "µs"), ScaledUnit(1e9, "ns"))


def time_unit(seconds: float) -> ScaledUnit:
    """Return the largest of s, ms, µs, ns in which `seconds` is at least 1; hours from 10 h on, s for 0."""
    if seconds >= 36_000:
        return ScaledUnit(1 / 3600, "h")
    if not seconds > 0:
        return _TIME_UNITS[0]
    return next((unit for unit in _TIME_UNITS if seconds * unit.factor >= 0.9995), _TIME_UNITS[-1])


def axis_unit(largest: float, unit: str) -> ScaledUnit:
    """Return the unit of an axis up to `largest`, such as ms, GB or %; units without prefixes stay."""
    if unit == "seconds":
        return time_unit(largest)
    if unit == "fraction":
        return ScaledUnit(100.0, "%")
    if unit == "bytes":
        prefix = next((one for one in "PTGMk" if largest >= 0.9995 * _PREFIXES[one]), "")
        return ScaledUnit(1 / _PREFIXES[prefix], f"{prefix}B")
    return ScaledUnit(1.0, unit)


def three_digits(number: float) -> str:
    """Return a number with three significant digits, zeros too, such as 59.0; one of a thousand and more is whole."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:#.3g}".rstrip(".")


def rounded_text(value: float, unit: str) -> str:
    """Return seconds or bytes with three significant digits, zeros too, such as 9.00 s or 59.0 GB."""
    scaled = axis_unit(abs(value), unit)
    return f"{three_digits(value * scaled.factor)} {scaled.symbol}"


def seconds_text(seconds: float, digits: int = 4) -> str:
    """Return a time with its unit and `digits` significant digits, such as 12.5 ms.

    Times below a picosecond are rounding noise of sums and give 0.
    """
    seconds = 0.0 if abs(seconds) < _PICOSECOND else seconds
    unit = time_unit(abs(seconds))
    value = seconds * unit.factor
    places = max(digits - 1 - math.floor(math.log10(abs(value))), 0) if value else 0
    if abs(value) >= 1e9:
        return f"{value:.{digits}g} {unit.symbol}"
    text = f"{value:,.{places}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {unit.symbol}"


def rounded_up(value: float) -> str:
    """Return a number above 0 with six digits, no smaller than it is (but for rounding), such as 1.33334 for 4/3."""
    text, last_digit = f"{value:.6g}", 10.0 ** (math.floor(math.log10(value)) - 5)
    return text if float(text) >= value * (1 - 1e-10) else f"{value + last_digit / 2:.6g}"


def percent_text(fraction: float, places: int = 1, signed: bool = False) -> str:
    """Return a fraction as percent, such as 27.3 %; `signed` gives +27.3 % too."""
    percent = round(100 * fraction, places) + 0.0  # + 0.0: never -0.0
    return f"{percent:{'+' if signed and percent else ''}.{places}f} %"


def value_text(value: float | None, unit: str, unknown: str = "-", places: int = 1) -> str:
    """Return a number with its unit, or a bare one if the unit has no format; `unknown` if the number is None.

    Percents have `places` decimals, other numbers `places` + 2 significant digits, but at least four.
    """
    digits = max(places + 2, 4)
    if value is None:
        return unknown
    if unit == "fraction":
        return percent_text(value, places)
    if unit in _FORMATS:
        return _FORMATS[unit](value, digits=digits)
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}g}"


def counted(count: int, word: str) -> str:
    """Return a count with its noun: `1 device`, `2 devices`, `3 microbatches`."""
    return f"{count:,} {of_number(count, word)}"


def first_names(names: Sequence[str], most: int) -> str:
    """Return the first `most` names and the count of the rest: `a, b and 3 more`."""
    return ", ".join(names[:most]) + and_more(len(names) - most)


def and_more(left: int) -> str:
    """Return ` and 3 more`; nothing if none are left."""
    return f" and {left} more" if left > 0 else ""


def more_lines(left: int, how: str = "; -v prints all") -> list[str]:
    """Return a line for rows that a table leaves out, such as `and 3 more; -v prints all`; none if none are left."""
    return [f"and {left} more{how}"] if left > 0 else []


def of_number(count: int, word: str) -> str:
    """Return a noun for a count: `device` for one, `devices` or `microbatches` otherwise."""
    return word if count == 1 else f"{word}{'es' if word.endswith('ch') else 's'}"


def difference_text(difference: float | None, unit: str) -> str:
    """Return a difference with its sign, such as +2 ms; a difference of fractions is in percentage points."""
    if difference is None:
        return "-"
    if unit == "fraction":
        return percent_text(difference, signed=True).replace("%", "percentage points")
    text = value_text(abs(difference), unit)
    return text if text.split()[0] == "0" else ("+" if difference > 0 else "-") + text


_PICOSECOND = 1e-12 * (1 - 1e-9)
_FORMATS = {unit: functools.partial(format_quantity, unit=unit) for unit in EXAMPLES} | {
    "seconds": seconds_text,
    "device-seconds": seconds_text,
    "tokens": "{:,.0f}".format,
    "tokens per second": "{:,.0f} tokens/s".format,
    "times": "{:.2f} x".format,
}
