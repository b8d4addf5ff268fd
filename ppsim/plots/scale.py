"""Round ticks of an axis."""

from __future__ import annotations

import math

import numpy as np


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
