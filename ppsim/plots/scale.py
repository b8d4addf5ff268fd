"""Numbers along an axis that do not touch: its round ticks, and the boxes whose number is written."""

from __future__ import annotations

import math

import numpy as np


def round_ticks(last: float, most: int) -> np.ndarray:
    """Return 2 to `most` ticks from 0 up to `last`, at steps of 1, 2 or 5 times a power of ten."""
    if not last > 0:
        return np.zeros(1)
    raw = last / max(most - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    steps = [part * power for part in (0.5, 1, 2, 5, 10)]
    step = next(size for size in steps if size >= raw * (1 - 1e-9))
    if step > last:
        step = max(size for size in steps if size <= last)
    return np.arange(math.floor(last / step * (1 + 1e-9)) + 1) * step


_MOST_OF_A_ROW = 0.9  # fraction of a device's boxes that must have space for their numbers, or not all get one
_STEPS = (1, 2, 5, 10, 20, 50, 100)
_MOST_ROWS = 0.7  # fraction of rows that must have space for all numbers, or for every k-th, or fewer are written


def roomy_rows(device: np.ndarray, fits: np.ndarray, devices: int) -> np.ndarray:
    """Return the rows (bool) that can be numbered whole, if most can; `fits` tells whether each box's number fits."""
    count = np.bincount(device, minlength=devices)
    roomy = np.bincount(device, fits, devices) >= _MOST_OF_A_ROW * count
    return roomy if roomy.sum() >= _MOST_ROWS * devices else np.zeros(devices, bool)


def every_kth(
    device: np.ndarray, middle: np.ndarray, wide: np.ndarray, microbatch: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """Return the boxes (indices) whose numbers are written in the `rows` (bool): every k-th microbatch.

    The boxes come device by device in time order. Numbers may be wider than their boxes; k is the smallest at which no
    two numbers meet in most rows, and rows that need a larger k get one. `middle` and `wide` have the same unit of
    length. Neighbours that meet and belong to one microbatch share the number of the first.
    """

    def meet(chosen: np.ndarray) -> np.ndarray:
        distance, needed = np.diff(middle[chosen]), (wide[chosen[1:]] + wide[chosen[:-1]]) / 2
        return (distance < needed) & (np.diff(device[chosen]) == 0)

    shown = []
    for step in _STEPS:
        chosen = np.flatnonzero((microbatch % step == 0) & rows[device])
        again = meet(chosen) & (np.diff(microbatch[chosen]) == 0)
        chosen = np.delete(chosen, 1 + np.flatnonzero(again))
        free = rows.copy()
        free[device[chosen[1:]][meet(chosen)]] = False
        if free.sum() >= _MOST_ROWS * rows.sum():
            shown.append(chosen[free[device[chosen]]])
            rows = rows & ~free
    return np.concatenate([np.empty(0, np.int64), *shown])
