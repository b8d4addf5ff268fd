"""Numbers that do not touch each other: round ticks of an axis, and the numbers written on boxes."""

from __future__ import annotations

import math

import numpy as np


def round_ticks(last: float, max_ticks: int) -> np.ndarray:
    """Return 2 to `max_ticks` ticks from 0 up to `last`, at steps of 1, 2 or 5 times a power of ten."""
    if not last > 0:
        return np.zeros(1)
    raw = last / max(max_ticks - 1, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    steps = [digit * power for digit in (0.5, 1, 2, 5, 10)]
    step = next(size for size in steps if size >= raw * (1 - 1e-9))
    if step > last:
        step = max(size for size in steps if size <= last)
    return np.arange(math.floor(last / step * (1 + 1e-9)) + 1) * step


_MIN_FITTING_BOXES = 0.9  # if a smaller fraction of a row's boxes has space for its numbers, not all get one
_STEPS = (1, 2, 5, 10, 20, 50, 100)
_MIN_FITTING_ROWS = 0.7  # if a smaller fraction of rows has space for the numbers, fewer are written


def roomy_rows(device: np.ndarray, fits: np.ndarray, devices: int) -> np.ndarray:
    """Return the rows (bool) whose boxes can all get numbers, if most rows can; `fits` (bool): the box has space."""
    count = np.bincount(device, minlength=devices)
    roomy = np.bincount(device, fits, devices) >= _MIN_FITTING_BOXES * count
    return roomy if roomy.sum() >= _MIN_FITTING_ROWS * devices else np.zeros(devices, bool)


def every_kth(
    device: np.ndarray, middle: np.ndarray, wide: np.ndarray, microbatch: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """Return the boxes (indices) whose numbers are written in the `rows` (bool): every k-th microbatch.

    The boxes come device by device in time order; `middle` and `wide` are positions and widths of their numbers in one
    unit. k is the smallest for which no two numbers meet in most rows; the other rows get a larger k. Neighbours of one
    microbatch whose numbers meet share the first number.
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
        if free.sum() >= _MIN_FITTING_ROWS * rows.sum():
            shown.append(chosen[free[device[chosen]]])
            rows = rows & ~free
    return np.concatenate([np.empty(0, np.int64), *shown])
