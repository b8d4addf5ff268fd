"""Sizes in charts: round ticks of an axis, and the gaps, marks and numbers of boxes, in reference pixels.

A reference pixel is half a point in print.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from ppsim.base.units import three_digits

# pixels: minimum width of a box with a gap, and with a mark; minimum height of a box with a mark
NARROWEST_GAP, NARROWEST_MARK, LOWEST_MARK = 3.0, 4.0, 6.0
TICK = 2.0  # pixels: minimum width of a span of a lane
SHARP, NARROW = 3.0, 2.0  # columns of the screen, and pixels; narrower boxes mix their colours
LOWEST_DETAIL = 12.0  # pixels; lower rows show actions alone: no lanes, no lines of transfers, slots in one band
LOWEST_LINED = 14.0  # pixels; lower rows of narrow boxes touch
APART, APART_FOR_LINES = 0.1, 0.3  # fraction of a row that is free below its boxes; with transfers
PATH, THIN_PATH, LOWEST_WIDE = (2.2, 5.0), (1.4, 3.0), 22.0  # pixels: a path and its halo; lower rows have the thin one
NARROW_TURN = 16.0  # pixels between two turns of a path; an upright line replaces turns that are nearer
# pixels: smallest and largest number; lowest box with one; free width beside one character, and beside several
NUMBER_SIZES, LOWEST_NUMBER, NUMBER_ROOM = (9.0, 12.0), 11.0, (2.5, 4.0)
NEARLY = 0.2  # of the median length of a device's boxes of a kind: boxes this close to it are labelled like it
DIGIT = 0.56  # width of a digit, as a fraction of its size
LETTER = 0.55  # digits by which W is wider than one
NUMBER_HIGH, NUMBER_WIDE = 0.62, 0.8  # maximum size of a number, as a fraction of its box's height and width
CROWDED = 12.0  # pixels from one transfer between two rows to the next; if less, only those waited for are drawn
LONGEST_PERIOD = 24.0  # pixels: mixtures of longer periods keep their actions
SAME = 0.01  # relative: predicted steps that differ by less count as equal
AT_BOUND = "at bound"  # a timeline at its lower bound: no order with the same peaks is faster
_OUTLIER, _GAP = 3.0, 2.0  # a bar over this times the median is cut, if it is this times the next shorter one
RULES = {  # of the page's script
    "sharp": SHARP, "narrow": NARROW, "path": PATH, "thin": THIN_PATH, "lowest_wide": LOWEST_WIDE, "turn": NARROW_TURN,
    "mark": NARROWEST_MARK, "lined": LOWEST_LINED, "sizes": NUMBER_SIZES, "lowest": LOWEST_NUMBER, "room": NUMBER_ROOM,
    "nearly": NEARLY, "digit": DIGIT, "letter": LETTER, "high": NUMBER_HIGH,
    "wide": NUMBER_WIDE, "period": LONGEST_PERIOD, "same": SAME,
    "crowded": CROWDED,
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


def gap_strength(width: np.ndarray) -> np.ndarray:
    """Return the strength (0..1) of the line of paper at the begin of each box."""
    return np.minimum(1.0, 0.1 * width) * np.clip((width - NARROWEST_GAP) / 3.0, 0.0, 1.0)


def row_gap(row: float, box: float, apart: float = APART) -> float:
    """Return the pixels between rows of height `row`, 0 in rows under 6 px, and under 14 px with boxes under 3 px."""
    touches = row < (LOWEST_MARK if box >= NARROWEST_GAP else LOWEST_LINED)
    return 0.0 if touches else float(min(max(round(apart * row + 0.01), 1), round(40 * apart)))


def mark_bar(height: Any, seam: bool = False) -> tuple[Any, Any]:
    """Return the thickness of a mark in a box of this height, and its distance to the box's edge.

    At the `seam` of a slot's halves the distance is larger, or the mark would look like a line between them.
    """
    thick = np.clip(np.rint(0.14 * height), 2, 4)
    return thick, np.maximum(np.rint(thick / 2), 1 + seam)


def mark_length(local: np.ndarray, stages: int, width: np.ndarray) -> np.ndarray:
    """Return the length of the marks of later stages, as a fraction of their boxes, 0 for first stages.

    Narrow boxes cannot tell which one of more than four stages they are.
    """
    is_full = (stages > 4) & (width < 12.0) & (local > 0)
    return np.where(is_full, 1.0, local / max(stages - 1, 1))


def number_size(characters: float, width: Any, height: float, digit: float = DIGIT) -> Any:
    """Return the size at which a label fits into a box, 0 if none; `digit` is the width of a digit of size 1.

    Labels of two and more characters need more space at their sides, else they would nearly touch the edges.
    """
    long, room = characters * digit, NUMBER_ROOM[characters > 1]
    loose = np.floor(np.minimum(np.minimum(height * NUMBER_HIGH, width * NUMBER_WIDE), (width - room) / long))
    size = np.clip(loose, *NUMBER_SIZES)
    return np.where((long * size + room <= width) & (height >= LOWEST_NUMBER), size, 0.0)


def path_widths(row: float) -> tuple[float, float]:
    """Return the widths of a path and of its halo in rows of this height."""
    return PATH if row >= LOWEST_WIDE else THIN_PATH


def named_devices(devices: int, row: float, apart: float = 14.0) -> list[int]:
    """Return the devices that are named, at 1, 2, 4 ... steps, so that names are at least `apart` pixels apart."""
    return [*range(0, devices, max(2 ** math.ceil(math.log2(apart / row)), 1) if row > 0 else 1)]


def shown_length(lengths: Sequence[float]) -> float:
    """Return the length of an axis: that of the longest bar, or of those below outliers.

    If the longest is over `_OUTLIER` times the median, those above the widest gap are cut.
    """
    upper = sorted(lengths)[(len(lengths) - 1) // 2 :]
    usual, longer = max(pairwise(upper), key=lambda pair: pair[1] / (pair[0] or 1.0), default=(0.0, 0.0))
    is_cut = upper[-1] > _OUTLIER * upper[0] and longer > _GAP * usual > 0
    return usual * 1.05 if is_cut else upper[-1]


def time_text(value: float) -> str:
    """Return a time of a chart with one decimal, or with three digits if these are more."""
    return max(three_digits(value), f"{value:,.1f}", key=len)


def tick_texts(values: Sequence[float]) -> list[str]:
    """Return the numbers of ticks with equal decimals."""
    texts = [number_text(round(value, 9)) for value in values]
    digits = max((len(text.partition(".")[2]) for text in texts), default=0)
    even = [f"{value:,.{digits}f}" if digits and value else text for value, text in zip(values, texts, strict=True)]
    return [text.replace("-", "−") for text in even]


def number_text(value: float) -> str:
    """Return the number of a tick, with commas between thousands."""
    return f"{value:,.10g}" if abs(value) < 1e9 else f"{value:.4g}"
