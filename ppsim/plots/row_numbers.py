"""Which boxes are numbered: all of a device's row, or every k-th microbatch of it, so that no two numbers meet."""

from __future__ import annotations

import numpy as np

_MOST_OF_A_ROW = 0.9  # of a device's boxes must have room for their numbers, or not all of them are numbered
_STEPS = (1, 2, 5, 10, 20, 50, 100)
_MOST_ROWS = 0.7  # of the rows must have room for all numbers, or for every k-th, or fewer are written


def roomy_rows(device: np.ndarray, fits: np.ndarray, devices: int) -> np.ndarray:
    """Which rows (bool) can be numbered whole, where most can; `fits` says of each box whether its number does."""
    count = np.bincount(device, minlength=devices)
    roomy = np.bincount(device, fits, devices) >= _MOST_OF_A_ROW * count
    return roomy if roomy.sum() >= _MOST_ROWS * devices else np.zeros(devices, bool)


def every_kth(
    device: np.ndarray, middle: np.ndarray, wide: np.ndarray, microbatch: np.ndarray, rows: np.ndarray
) -> np.ndarray:
    """Boxes (indices) whose numbers are written in the `rows` (bool): those of every k-th microbatch.

    The boxes stand device by device in time order. Numbers may be wider than their boxes; k is the least at which no
    two of them meet in most rows, and rows for which it is too small have a larger one. `middle` and `wide` are in one
    unit of length. Neighbours that meet and are of one microbatch share the number of the first.
    """

    def meet(chosen: np.ndarray) -> np.ndarray:
        apart, needed = np.diff(middle[chosen]), (wide[chosen[1:]] + wide[chosen[:-1]]) / 2
        return (apart < needed) & (np.diff(device[chosen]) == 0)

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
