"""Areas of a chart whose narrow actions have one composition: the words that name them."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise, product
from typing import NamedTuple

import numpy as np

from ppsim.actions import Kind
from ppsim.analysis.bubbles import makespan
from ppsim.base.immutable import cached_on
from ppsim.plots import palette
from ppsim.plots.boxes import Boxes
from ppsim.plots.palette import Theme, mixed
from ppsim.plots.pixels import kind_shares

_PRESENT, _IDLE = 0.08, 0.065  # parts of the time of an area that are named
_SMALLEST, _TWIN = 0.001, 0.25  # of a chart, and of the largest of the same kinds, that a rectangle in an area fills
_AROUND = 1.2, 0.1  # lines: space above and below a name, if there is, or at least
_COLUMNS, _ROWS = 1024, 64  # cells in which areas are looked for


class _Run(NamedTuple):
    """Cells of a row from `first` to before `last` with the kinds of a code; 0 are cells of idle time."""

    first: int
    last: int
    code: int


class Area(NamedTuple):
    """An area: its roomiest rectangle in seconds and devices (`bottom` is the first below it), and parts of its time.

    `parts` has its kinds by letter, and idle time as None; `runs` its cells by row, whose bounds are `borders` (rows)
    and `edges` (seconds).
    """

    first: float
    last: float
    top: float
    bottom: float
    parts: dict[Kind | None, float]
    runs: dict[int, _Run]
    borders: np.ndarray
    edges: np.ndarray

    @property
    def words(self) -> str:
        """Letters of the kinds, and idle time if it is large, such as `F + B`."""
        kinds = [kind for kind in palette.TITLES if self.parts.get(kind, 0.0) >= _PRESENT]
        idle = [palette.IDLE_TITLE] * (self.parts[None] >= _IDLE)
        return " + ".join([kind.name for kind in kinds] + idle)

    def name(self, width_of: Callable[[str], float], line: float) -> tuple[str, float, float] | None:
        """Return the words and the middle of their place in seconds and devices; None if they fit nowhere.

        They have as few lines as fit with space above and below them, or without. `width_of` returns the seconds that a
        text is wide; lines are `line` devices apart.
        """
        words = self.words.replace(" +", "\u00a0+")
        widths = range(len(words), max(map(len, words.split(" "))) - 1, -1)
        filled = [textwrap.fill(words, width).replace("\u00a0", " ") for width in widths]
        narrowest = {one.count("\n"): one for one in filled}  # of each number of lines
        high = self.borders[-1] / (len(self.borders) - 1)
        for around, found in product(_AROUND, narrowest.values()):
            lines = found.split("\n")
            cells = max(map(width_of, lines)) / self.edges[1], (len(lines) + around) * line / high
            size, (top, bottom, first, last), _ = _roomiest(self.runs, *cells)
            if size:
                return found, float(self.edges[[first, last]].mean()), float(self.borders[[top, bottom]].mean())
        return None

    def colour(self, theme: Theme) -> str:
        """Return the mean colour, #rrggbb."""
        fills = {None: theme.idle, **theme.kinds}
        return mixed((fills[kind], part) for kind, part in self.parts.items())


@cached_on
def areas(boxes: Boxes) -> list[Area]:
    """Return the areas of a chart; none if its boxes are few and wide."""
    finish, devices = makespan(boxes.timeline), boxes.timeline.schedule.devices
    if not 0 < 100 * boxes.median < finish:
        return []
    edges = np.linspace(0.0, finish, _COLUMNS + 1)
    rows = np.unique(np.linspace(0, devices - 1, min(devices, _ROWS)).round().astype(int))
    borders = np.concatenate([[0.0], (rows[1:] + rows[:-1] + 1) / 2, [devices]])
    parts = parts_around(boxes, rows, edges, boxes.period)
    code = np.sum([(part >= _PRESENT).astype(int) << int(kind) for kind, part in parts.items()], axis=0)
    code += ((np.sum([*parts.values()], axis=0) <= 1.0 - _IDLE) & (code > 0)).astype(int) << 15
    least = max(round(1.5 * boxes.period / edges[1]), 4)  # of cells; narrower runs are between two areas
    every = [(*_roomiest(runs), runs) for runs in _joined([_runs(row, least) for row in code])]
    found, largest = list[Area](), dict[int, int]()
    for cells, (top, bottom, first, last), kinds, runs in sorted(every, key=lambda one: -one[0]):
        if not kinds or cells < _SMALLEST * code.size:
            continue
        if cells >= _TWIN * largest.setdefault(kinds, cells):
            inside = {kind: float(part[top:bottom, first:last].mean()) for kind, part in parts.items()}
            whole = {None: max(1.0 - sum(inside.values()), 0.0), **inside}
            place = float(edges[first]), float(edges[last]), float(borders[top]), float(borders[bottom])
            found.append(Area(*place, whole, runs, borders, edges))
    return found


def parts_around(boxes: Boxes, rows: np.ndarray, edges: np.ndarray, period: float) -> dict[Kind, np.ndarray]:
    """Return by kind its part (rows, cells) of a period around each cell, or of the cell; a slot is half of either.

    A part is the mean of three windows, which does not beat with actions that repeat after two thirds of a period.
    """
    reach, shifts = max(period, edges[1]) / 2, np.array([[-4], [0], [4]]) / 9 * (period > edges[1])
    middle = (edges[1:] + edges[:-1]) / 2 + shifts * reach
    around = np.maximum(middle - reach, 0.0).ravel(), np.minimum(middle + reach, edges[-1]).ravel()
    found, halves = dict[Kind, np.ndarray](), (0, 1) if Kind.OVERLAP_F_B in boxes.kinds else (0,)
    for half in halves:
        own = replace(boxes, kind=boxes.kinds_of_parts(half))
        parts = np.stack([kind_shares(own, device, *around) for device in rows.tolist()], axis=1) / len(halves)
        for kind, part in zip(own.kinds, parts.reshape(len(own.kinds), len(rows), 3, -1).mean(axis=2), strict=True):
            found[kind] = found.get(kind, 0.0) + part
    return found


def _runs(codes: np.ndarray, least: int) -> list[_Run]:
    """Return the runs of a row that have `least` cells, or are idle; neighbours of one code are one run."""
    starts, found = np.flatnonzero(np.append(True, np.diff(codes) != 0)).tolist(), list[_Run]()
    for first, last in pairwise([*starts, len(codes)]):
        if found and found[-1].code == codes[first]:
            found[-1] = found[-1]._replace(last=last)
        elif last - first >= least or not codes[first]:
            found.append(_Run(first, last, int(codes[first])))
    return found


def _joined(every: list[list[_Run]]) -> list[dict[int, _Run]]:
    """Return the areas, each with its run by row: runs of one code that overlap from row to row."""
    found = list[dict[int, _Run]]()
    for row, runs in enumerate(every):
        above = [area for area in found if row - 1 in area]
        for run in runs:
            for area in above:
                one = area[row - 1]
                overlaps = max(one.first, run.first) < min(one.last, run.last)
                if row not in area and one.code == run.code and overlaps:
                    area[row] = run
                    break
            else:
                found.append({row: run})
    return found


def _roomiest(
    runs: dict[int, _Run], wide: float = 1.0, tall: float = 1.0
) -> tuple[int, tuple[int, int, int, int], int]:
    """Return cells, and top, bottom, first and last, of an area's rectangle with most space for words; its code.

    It is at least `wide` and `tall`, in cells; without one, it has 0 cells.
    """
    best, found = 0.0, (0, (0, 0, 0, 0), 0)
    for top in runs:
        first, last = runs[top].first, runs[top].last
        for bottom in range(top + 1, max(runs) + 2):
            first, last = max(first, runs[bottom - 1].first), min(last, runs[bottom - 1].last)
            if last - first < wide:
                break
            room = float(last - first) ** 1.5 * (bottom - top)  # words are wide and low
            if room > best and bottom - top >= tall:
                best, found = room, ((bottom - top) * (last - first), (top, bottom, first, last), runs[top].code)
    return found
