"""The time axis that all charts share: an SI unit that fits, round ticks, and seconds as text."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np


class TimeUnit(NamedTuple):
    """A unit of time: `seconds * factor` is a number of `symbol`."""

    factor: float
    symbol: str


_UNITS = (TimeUnit(1.0, "s"), TimeUnit(1e3, "ms"), TimeUnit(1e6, "µs"), TimeUnit(1e9, "ns"))


def time_unit(seconds: float) -> TimeUnit:
    """The largest of s, ms, µs, ns in which `seconds` is at least 1; s for 0."""
    if not seconds > 0:
        return _UNITS[0]
    return next((unit for unit in _UNITS if seconds * unit.factor >= 0.9995), _UNITS[-1])


def seconds_text(seconds: float, digits: int = 4) -> str:
    """A length of time with its unit and `digits` significant digits, such as 12.5 ms; never thousands of ks."""
    unit = time_unit(abs(seconds))
    value = seconds * unit.factor
    places = max(digits - 1 - math.floor(math.log10(abs(value))), 0) if value else 0
    if abs(value) >= 1e9:
        return f"{value:.{digits}g} {unit.symbol}"
    text = f"{value:,.{places}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} {unit.symbol}"


def round_ticks(last: float, most: int) -> np.ndarray:
    """At most `most` (and at least two) ticks from 0 up to `last`, at steps of 1, 2 or 5 times a power of ten."""
    if not last > 0:
        return np.zeros(1)
    raw = last / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    steps = [part * power for part in (0.5, 1, 2, 5, 10)]
    step = next(size for size in steps if size >= raw * (1 - 1e-9))
    if step > last:
        step = max(size for size in steps if size <= last)
    return np.arange(math.floor(last / step * (1 + 1e-9)) + 1) * step


def percent_text(fraction: float) -> str:
    """A fraction as percent with one decimal, such as 27.3 %."""
    return f"{100 * fraction:.1f} %"
