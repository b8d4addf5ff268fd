"""Sizes in charts: round ticks of an axis, and the gaps, marks and numbers of boxes, in pixels of the rules.

A pixel of these rules is half a point in print.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

NARROWEST_GAP, NARROWEST_MARK, LOWEST_MARK = 3.0, 5.0, 6.0  # pixels; gaps and marks have full strength 3 pixels on
LOWEST_DETAIL = 12.0  # pixels; lower rows show actions alone: no lanes, no lines of transfers, slots in one band
APART, APART_FOR_LINES = 0.1, 0.3  # part of a row that lies between rows; more, so that dashes of transfers are seen
PATH, HALO = 2.2, 5.0  # pixels: width of the critical path and of its halo
NUMBER_SIZES, LOWEST_NUMBER, NUMBER_ROOM = (9.0, 12.0), 11.0, (2.5, 4.0)  # pixels; room of a digit, and of more
NUMBERED = 0.8  # of the devices with a kind hold its numbers, or none has them
NEARLY = 0.2  # of the median length of a device's boxes of a kind: closer boxes have numbers alike
DIGIT = 0.56  # width of a digit, as a fraction of its size
LETTER = 0.55  # of a digit: how much wider than a digit W is, the letter of a kind
NUMBER_HIGH, NUMBER_WIDE = 0.62, 0.8  # size of a number, at most, as a part of its box's height and width
SHORTEST_ORDER = "at its bound: no faster order in this memory"  # a timeline at its lower bound
_OUTLIER, _GAP = 3.0, 2.0  # a bar over this times the median is cut, if it is this times the next shorter one
RULES = {  # of the page's script
    "path": PATH, "halo": HALO, "sizes": NUMBER_SIZES, "lowest": LOWEST_NUMBER, "room": NUMBER_ROOM,
    "numbered": NUMBERED, "nearly": NEARLY, "digit": DIGIT, "letter": LETTER, "high": NUMBER_HIGH, "wide": NUMBER_WIDE,
    "shortest": SHORTEST_ORDER,
}  # fmt: skip


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


def fade(width: Any) -> Any:
    """Return the strength (0..1) of marks of boxes of these widths; shorter ones would be dots."""
    return np.clip((width - NARROWEST_MARK) / 3.0, 0.0, 1.0)


def gap_strength(width: np.ndarray) -> np.ndarray:
    """Return the strength (0..1) of the line of paper at the begin of each box."""
    return np.minimum(1.0, 0.1 * width) * np.clip((width - NARROWEST_GAP) / 3.0, 0.0, 1.0)


def box_fade(box: float) -> float:
    """Return the strength (0..1) of what lies between rows, by the width of the usual box."""
    return min(max((box - 1.0) / 5.0, 0.0), 1.0)


def row_gap(row: float, box: float, apart: float = APART) -> float:
    """Return the pixels between rows of height `row` with boxes of the usual width `box`; rows under 6 px touch."""
    gap = min(max(round(apart * row), 1), round(40 * apart))
    return 0.0 if row < LOWEST_MARK else gap * box_fade(box)


def mark_bar(height: Any) -> tuple[Any, Any]:
    """Return the thickness of a mark in a box of this height, and its distance to the box's edge."""
    thick = np.clip(np.rint(0.14 * height), 2, 4)
    return thick, np.maximum(np.rint(thick / 2), 1)


def mark_length(local: np.ndarray, stages: int, width: np.ndarray) -> np.ndarray:
    """Return the length of the marks of later stages, as a fraction of their boxes, 0 for first stages."""
    part = local / max(stages - 1, 1)
    return np.where((width < 4.0 * (stages - 1)) & (local > 0), 1.0, part)


def number_size(characters: float, width: Any, height: float, digit: float = DIGIT) -> Any:
    """Return the size at which a label fits into a box, 0 if none; `digit` is the width of a digit of size 1.

    Labels of two and more characters need more space at their sides, else they would nearly touch the edges.
    """
    long, room = characters * digit, NUMBER_ROOM[characters > 1]
    loose = np.floor(np.minimum(np.minimum(height * NUMBER_HIGH, width * NUMBER_WIDE), (width - room) / long))
    size = np.clip(loose, *NUMBER_SIZES)
    return np.where((long * size + room <= width) & (height >= LOWEST_NUMBER), size, 0.0)


def path_widths(run: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the widths of a path and of its halo that turns back after these pixels: the fills stay in sight."""
    path = np.minimum(PATH, 0.3 * run)
    return path, path + (HALO - PATH) * np.clip((run - 6) / 6, 0.0, 1.0)


def named_devices(devices: int, row: float, apart: float = 14.0) -> list[int]:
    """Return the devices that are named: those at 1, 2, 4 ... steps, and the last; names are `apart` pixels apart."""
    every = max(2 ** math.ceil(math.log2(apart / row)), 1) if row > 0 else 1
    return [*(one for one in range(0, devices - 1, every) if (devices - 1 - one) * row >= apart), devices - 1]


def shown_length(lengths: Sequence[float]) -> float:
    """Return the length of an axis: that of the longest bar, or of those below outliers.

    If the longest is over `_OUTLIER` times the median, those above the widest gap are cut.
    """
    upper = sorted(lengths)[(len(lengths) - 1) // 2 :]
    usual, longer = max(pairwise(upper), key=lambda pair: pair[1] / (pair[0] or 1.0), default=(0.0, 0.0))
    is_cut = upper[-1] > _OUTLIER * upper[0] and longer > _GAP * usual > 0
    return usual * 1.05 if is_cut else upper[-1]


def number_text(value: float) -> str:
    """Return the number of a tick, with commas between thousands."""
    return f"{value:,.10g}" if abs(value) < 1e9 else f"{value:.4g}"
