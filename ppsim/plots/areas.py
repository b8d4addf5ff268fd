"""Areas of a chart whose narrow actions have one composition, and the words that name them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from ppsim.actions import Kind
from ppsim.analysis.bubbles import makespan
from ppsim.plots import palette
from ppsim.plots.boxes import Boxes
from ppsim.plots.palette import Theme, light_of
from ppsim.plots.pixels import from_linear, kind_shares

_PRESENT, _IDLE = 0.08, 0.12  # parts of the time of an area that are named
_SMALLEST, _TWIN = 0.004, 0.4  # of a chart that an area fills; of the largest area of the same composition
_COLUMNS, _ROWS, _LEAST = 256, 64, 4  # cells in which areas are looked for; columns of an area, at least
_HEIGHTS = (1, 2, 3, 4, 6, 8, 11, 16, 22, 32, 45, 64)  # of the rectangles, in cells


class Area(NamedTuple):
    """The largest rectangle in an area: its seconds, devices (`bottom` is the first below it), and parts of its time.

    `parts` has its kinds by letter, and idle time as None.
    """

    first: float
    last: float
    top: float
    bottom: float
    parts: dict[Kind | None, float]

    @property
    def words(self) -> str:
        """Letters of the kinds, and idle time if it is large, such as `F + B`."""
        kinds = [kind for kind in palette.TITLES if self.parts.get(kind, 0.0) >= _PRESENT]
        idle = [palette.IDLE_TITLE] * (self.parts[None] >= _IDLE)
        return " + ".join([kind.name for kind in kinds] + idle)

    def colour(self, theme: Theme) -> str:
        """Return the mean colour, #rrggbb."""
        fills = {None: theme.idle, **theme.kinds}
        mean = sum(light_of(fills[kind]) * part for kind, part in self.parts.items())
        return f"#{bytes(from_linear(np.asarray(mean)).tolist()).hex()}"


def areas(boxes: Boxes) -> list[Area]:
    """Return the areas of a chart, the largest of each composition first; none if its boxes are few and wide."""
    finish, devices = makespan(boxes.timeline), boxes.timeline.schedule.devices
    if not 0 < 100 * boxes.narrow < finish:
        return []
    edges = np.linspace(0.0, finish, int(min(2 * finish / boxes.period, _COLUMNS)) + 1)
    rows = np.unique(np.linspace(0, devices - 1, min(devices, _ROWS)).round().astype(int))
    parts = _parts(boxes, rows, edges)
    code = np.sum([(part >= _PRESENT).astype(int) << int(kind) for kind, part in parts.items()], axis=0)
    code |= (np.sum([*parts.values()], axis=0) <= 1.0 - _IDLE).astype(int) << 15
    borders = np.append((rows[1:] + rows[:-1] + 1) / 2, devices)
    borders, found = np.insert(borders, 0, 0.0), list[Area]()
    for one in np.unique(code[code & 0x7FFF > 0]).tolist():
        for top, bottom, first, last in _rectangles(code == one):
            inside = {kind: float(part[top:bottom, first:last].mean()) for kind, part in parts.items()}
            whole = {None: max(1.0 - sum(inside.values()), 0.0), **inside}
            place = float(edges[first]), float(edges[last]), float(borders[top]), float(borders[bottom])
            found.append(Area(*place, whole))
    return found


def _parts(boxes: Boxes, rows: np.ndarray, edges: np.ndarray) -> dict[Kind, np.ndarray]:
    """Return by kind its part (rows, columns) of the time around each cell; a slot is half of either."""
    reach = edges[1] / 2
    around = np.maximum(edges[:-1] - reach, 0.0), np.minimum(edges[1:] + reach, edges[-1])  # about a period
    found, halves = dict[Kind, np.ndarray](), (0, 1) if Kind.OVERLAP_F_B in boxes.kinds else (0,)
    for half in halves:
        own = replace(boxes, kind=boxes.kinds_of_parts(half))
        parts = np.stack([kind_shares(own, device, *around) for device in rows.tolist()], axis=1) / len(halves)
        for kind, part in zip(own.kinds, parts, strict=True):
            found[kind] = found.get(kind, 0.0) + part
    return found


def _rectangles(cells: np.ndarray) -> Iterator[tuple[int, int, int, int]]:
    """Yield the largest rectangles (top, bottom, first, last) of true cells, each without the cells of those before."""
    least = _SMALLEST * cells.size
    while True:
        best = (0, 0, 0, 0, 0)
        for tall in [one for one in _HEIGHTS if one <= len(cells)]:
            full = np.lib.stride_tricks.sliding_window_view(cells, tall, axis=0).all(axis=2)
            row, change = np.nonzero(np.diff(np.pad(full, ((0, 0), (1, 1))).astype(int), axis=1))
            if len(row):
                at = 2 * int(np.argmax(change[1::2] - change[::2]))
                begin, end, top = int(change[at]), int(change[at + 1]), int(row[at])
                best = max(best, (tall * (end - begin) * (end - begin >= _LEAST), top, top + tall, begin, end))
        if best[0] < least:
            return
        least = max(least, _TWIN * best[0])
        yield best[1:]
        cells[best[1] : best[2], best[3] : best[4]] = False
