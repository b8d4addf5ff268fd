"""Areas of a chart whose narrow actions have one composition: the words that name them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np

from ppsim.actions import Kind
from ppsim.analysis.bubbles import makespan
from ppsim.base.immutable import cached_on
from ppsim.plots import palette
from ppsim.plots.boxes import Boxes
from ppsim.plots.palette import GREY, Theme, lightness, luminance, mixed
from ppsim.plots.pixels import kind_shares, repetitions

PRESENT, _SEEN = 0.08, 5.0  # a part is named from this fraction of an area's time on, or change of its L* in grey
_JUMP = 0.07  # of an area's time: where a kind's part changes by more at once, another area begins
_SMALLEST = 0.001  # fraction of a chart that the roomiest rectangle of an area must fill
_AROUND = 1.2, 0.1  # lines of space above and below a name: the usual, else the minimum
_PERIODS = 4  # whose mean an area has if jitter changes every action
_OFTEN = 3  # areas of one mix; if there are more, the largest alone is named
NO_PATH = np.empty((0, 2, 2))
_COLUMNS, _ROWS = 1024, 64  # maximum cells of the grid in which areas are searched


class _Run(NamedTuple):
    """Cells of a row from `first` to before `last` with the kinds of a code, 0 for idle time, and their mean parts."""

    first: int
    last: int
    code: int
    parts: tuple[float, ...]

    def shared(self, other: _Run) -> int:
        """Return the number of columns of both."""
        return min(self.last, other.last) - max(self.first, other.first)

    def is_like(self, other: _Run) -> bool:
        """Return whether both have the same kinds, and nearly the same parts of them."""
        change = max(abs(one - another) for one, another in zip(self.parts, other.parts, strict=True))
        return self.code == other.code and change <= _JUMP


class Area(NamedTuple):
    """An area: its roomiest rectangle in seconds and devices (`bottom` is the first below it), and parts of its time.

    `parts` has its kinds by letter, and idle time as None; `runs` its cells by row, each of `cell` seconds and devices.
    """

    first: float
    last: float
    top: float
    bottom: float
    parts: dict[Kind | None, float]
    runs: dict[int, _Run]
    cell: tuple[float, float]

    @property
    def words(self) -> str:
        """Letters of the kinds, and idle time if it is large, such as `F + B`."""
        named = _named({kind: self.parts[kind] for kind in (*palette.TITLES, None) if kind in self.parts})
        return " + ".join(kind.name if kind is not None else palette.IDLE_TITLE for kind in named if named[kind])

    @property
    def size(self) -> float:
        """Seconds of all its devices."""
        return sum(run.last - run.first for run in self.runs.values()) * self.cell[0] * self.cell[1]

    def colour(self, theme: Theme) -> str:
        """Return the mean colour, #rrggbb."""
        return mixed((theme.idle if kind is None else theme.kinds[kind], part) for kind, part in self.parts.items())


@cached_on
def areas(boxes: Boxes) -> list[Area]:
    """Return the areas of a chart; none if its boxes are few and wide, and no other chart of the picture has areas."""
    finish, devices = makespan(boxes.timeline), boxes.timeline.schedule.devices
    if not 0 < (1 if boxes.mixing else 100) * boxes.median < finish:
        return []
    edges = np.linspace(0.0, finish, _COLUMNS + 1)
    rows = np.unique(np.linspace(0, devices - 1, min(devices, _ROWS)).round().astype(int))
    cell = finish / _COLUMNS, devices / len(rows)
    parts = parts_around(boxes, rows, edges, True)
    whole = np.stack([*parts.values()])
    named = _named(parts | {None: np.maximum(1.0 - whole.sum(axis=0), 0.0)})
    code = np.sum([named[kind].astype(int) << int(kind) for kind in parts], axis=0)
    code += (named[None] & (code > 0)).astype(int) << 15
    smeared = 0 if boxes.is_even else round(_PERIODS * boxes.period / 2 / edges[1])  # cells at both ends of a run
    least = max(round(1.5 * boxes.period / edges[1]), 3 * smeared, 4)  # narrower runs are between two areas
    every = [_runs(row, part, least, smeared) for row, part in zip(code, whole.swapaxes(0, 1), strict=True)]
    found = list[Area]()
    for runs in _joined(every):
        top, bottom, first, last = _roomiest(runs)
        if (bottom - top) * (last - first) >= _SMALLEST * code.size:
            inside = {kind: float(part[top:bottom, first:last].mean()) for kind, part in parts.items()}
            inside |= {None: max(1.0 - sum(inside.values()), 0.0)}
            found.append(Area(first * cell[0], last * cell[0], top * cell[1], bottom * cell[1], inside, runs, cell))
    return found


def _named(parts: Mapping[Kind | None, Any]) -> dict[Kind | None, Any]:
    """Return whether each part of cells is named: a large one, and one that changes their tone in grey.

    So unnamed parts make no area look like another kind, and names are equal in all themes.
    """
    tones = {kind: luminance(GREY.idle if kind is None else GREY.kinds[kind]) for kind in parts}
    whole = sum(part * tones[kind] for kind, part in parts.items())
    without = {kind: (whole - part * tones[kind]) / np.maximum(1.0 - part, 1e-9) for kind, part in parts.items()}
    return {kind: (part >= PRESENT) | (np.abs(lightness(whole) - lightness(without[kind])) >= _SEEN)
            for kind, part in parts.items()}  # fmt: skip


def named_areas(
    boxes: Boxes, wide: Callable[[str], float], line: float, several: bool = True, path: np.ndarray = NO_PATH
) -> Iterator[tuple[Area, str, float, float, float]]:
    """Yield areas with their names, and the left, right and middle row of these; a mix of many areas has one name.

    Names have one line, or up to three if `several`, with space above and below them, or without. Unless `several`,
    they are on the row that holds most of them, if they fit there. `wide` returns the width of a text in seconds; lines
    are `line` devices apart. Names are not on the lines of a `path`, (lines, 2, 2) in seconds and devices.
    """
    every = sorted(areas(boxes), key=lambda one: (one.first - one.last) * (one.bottom - one.top))
    count, often = Counter(area.words for area in every), _OFTEN * boxes.is_even
    crossed, rows = _cells(path, every[0].cell) if every else NO_PATH, dict[int, dict[str, int]]()
    for area in every[: None if not several else 0]:
        for row, run in area.runs.items():
            if (long := run.last - run.first) >= wide(area.words) / area.cell[0]:
                rows.setdefault(row, {}).setdefault(area.words, long)
    free = {row: (len(named), round(4 * sum(named.values()) / _COLUMNS)) for row, named in rows.items()}
    usual = max(rows, key=lambda row: (*free[row], -abs(2 * row - boxes.timeline.schedule.devices)), default=-1)
    every.sort(key=lambda area: usual not in area.runs)
    named = set[str]()
    for area in (area for area in every if area.words not in named or count[area.words] <= often):
        parts, (second, device) = area.words.replace("+ ", "+\n").splitlines(), area.cell
        runs = {row: _widest(run, crossed[crossed[:, 0] == row, 1]) for row, run in area.runs.items()}
        beside = {usual: runs[usual]} if usual in runs else {}
        counts = dict.fromkeys((len(parts), -(-len(parts) // 2), -(-len(parts) // 3))) if several else [len(parts)]
        for each, around in product(counts, _AROUND[not several :]):
            lines = [" ".join(parts[at : at + each]) for at in range(0, len(parts), each)]
            cells = max(map(wide, lines)) / second, (len(lines) + around) * line / device
            if place := _roomiest(beside, *cells) or _roomiest(runs, *cells):
                top, bottom, first, last = place
                named.add(area.words)
                yield area, "\n".join(lines), first * second, last * second, (top + bottom) / 2 * device
                break


def parts_around(
    boxes: Boxes, rows: np.ndarray, edges: np.ndarray, mixed: bool, marked: bool = False
) -> dict[Kind, np.ndarray]:
    """Return by kind its part (rows, cells) of each cell, or of a repetition around it if `mixed`.

    If jitter leaves no repetitions, it is that of some periods. If `marked`, it is that of boxes of later stages or the
    second direction alone.
    """
    found, halves = dict[Kind, np.ndarray](), (0, 1) if Kind.OVERLAP_F_B in boxes.kinds else (0,)
    cells = edges[:-1], edges[1:]
    if mixed and not boxes.is_even:
        reach = np.array([[-0.5], [0.5]]) * max(_PERIODS * boxes.period, edges[1])
        cells = tuple(np.clip((edges[:-1] + edges[1:]) / 2 + reach, 0.0, edges[-1]))
    around = [repetitions(boxes, device, *cells) if mixed and boxes.is_even else cells for device in rows.tolist()]
    for half in halves:
        own = boxes
        if marked or len(halves) > 1:
            own = replace(boxes, kind=np.where(boxes.is_marked(half) | (not marked), boxes.kinds_of_parts(half), -1))
        if own.kinds:
            parts = [kind_shares(own, device, *bins) for device, bins in zip(rows.tolist(), around, strict=True)]
            for kind, part in zip(own.kinds, np.stack(parts, axis=1) / len(halves), strict=True):
                found[kind] = found.get(kind, 0.0) + part
    return found


def _runs(codes: np.ndarray, parts: np.ndarray, least: int, smeared: int) -> list[_Run]:
    """Return the runs of a row that have kinds and `least` cells, without `smeared` ones; like neighbours are one."""
    is_new, found = (np.diff(codes) != 0) | (np.abs(np.diff(parts)).max(axis=0) > _JUMP), list[_Run]()
    for first, last in pairwise([0, *(np.flatnonzero(is_new) + 1).tolist(), len(codes)]):
        run = _Run(first, last, int(codes[first]), tuple(parts[:, first:last].mean(axis=1).tolist()))
        if found and found[-1].is_like(run):
            found[-1] = found[-1]._replace(last=last)
        elif last - first >= least or not run.code:
            found.append(run)
    return [run._replace(first=run.first + smeared, last=run.last - smeared) for run in found if run.code]


def _joined(every: list[list[_Run]]) -> list[dict[int, _Run]]:
    """Return the areas, each with its longest run by row: like runs that overlap most from row to row.

    Areas that meet are one if one of them is not much wider elsewhere: a spike has no name of its own, two cones have.
    """
    ended, growing = list[dict[int, list[_Run]]](), list[dict[int, list[_Run]]]()
    for row, runs in enumerate(every):
        ended += [area for area in growing if row - 1 not in area]
        growing = [area for area in growing if row - 1 in area]
        for run in runs:
            overlaps = [
                max((one.shared(run) for one in area.get(row - 1, ()) if one.is_like(run)), default=0)
                for area in growing
            ]
            longest = [max(one.last - one.first for runs in area.values() for one in runs) for area in growing]
            least = [min(max(overlaps), long / 2) for long in longest]
            is_met = [0 < overlap >= some for overlap, some in zip(overlaps, least, strict=True)]
            met = [area for area, own in zip(growing, is_met, strict=True) if own]
            growing = [area for area, own in zip(growing, is_met, strict=True) if not own]
            growing.append({at: [one for area in met for one in area.get(at, ())] for area in met for at in area})
            growing[-1].setdefault(row, []).append(run)
    return [{row: max(runs, key=lambda run: run.last - run.first) for row, runs in sorted(area.items())}
            for area in ended + growing]  # fmt: skip


def _cells(lines: np.ndarray, cell: tuple[float, float]) -> np.ndarray:
    """Return the cells (row, column) that lines run through."""
    ends = (lines + np.array([0.0, 0.5])) / cell
    points = [np.linspace(line[0], line[1], 2 + 2 * int(np.ptp(line, axis=0).max())) for line in ends]
    return np.unique(np.floor(np.concatenate([*points, NO_PATH[:, 0]])).astype(int)[:, ::-1], axis=0)


def _widest(run: _Run, crossed: np.ndarray) -> _Run:
    """Return the widest part of a run between columns that a path crosses."""
    inside = crossed[(crossed >= run.first) & (crossed < run.last)].tolist()
    before, after = max(pairwise([run.first - 1, *inside, run.last]), key=lambda ends: ends[1] - ends[0])
    return run._replace(first=before + 1, last=after)


def _roomiest(runs: dict[int, _Run], wide: float = 1.0, tall: float = 1.0) -> list[int]:
    """Return top, bottom, first and last cell of an area's rectangle with most space for words; [] if none has it.

    It is at least `wide` and `tall`, in cells.
    """
    best, found = 0.0, list[int]()
    for top in runs:
        first, last = runs[top].first, runs[top].last
        for bottom in range(top + 1, max(runs) + 2):
            first, last = max(first, runs[bottom - 1].first), min(last, runs[bottom - 1].last)
            if last - first < wide:
                break
            room = float(last - first) ** 1.5 * (bottom - top)  # words are wide and low
            if room > best and bottom - top >= tall:
                best, found = room, [top, bottom, first, last]
    return found
