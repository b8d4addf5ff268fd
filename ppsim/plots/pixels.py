"""Pixels of a chart: the mean of its kinds and of idle time in linear light, exact at any zoom."""

from __future__ import annotations

import base64
import io
from typing import NamedTuple

import numpy as np

from ppsim.actions import Kind
from ppsim.analysis.bubbles import makespan
from ppsim.plots import scale
from ppsim.plots.boxes import Boxes, halves
from ppsim.plots.lanes import LaneSpans, band, lane_edges
from ppsim.plots.palette import Theme, from_linear, light_of

_SMALLEST = 72.0  # square reference pixels: larger repetitions keep their actions, in a picture that need not mix
_SHORTEST = 1e-200  # seconds; of shorter times, pixels per second overflow
_LONG = 4.0  # periods: if the next such action is farther away, it repeats none
_CHANGE = 0.097  # of a repetition's time: if the part of a kind changes by more up to the next one, a mixture ends


class PixelColumns(NamedTuple):
    """Columns of pixels: `number` of equal width in the seconds from `first` to `last`."""

    first: float
    last: float
    number: int

    @property
    def per_second(self) -> float:
        """Pixels per second."""
        return self.number / (self.last - self.first)


def footprint(boxes: Boxes, per_second: float, dense: float = 1.0) -> float:
    """Return the columns that a column takes its mean over: 1 to 3, so that boxes as wide as a column do not beat.

    With `dense` columns per reference pixel, boxes as narrow as such a pixel have the mean of three of them at any
    density. All charts of a picture have one footprint, by their narrowest median box.
    """
    box = (boxes.narrowest or boxes.median) * per_second
    return max(min(max(4.5 - box, 1.0), 3.0), min(7.5 * dense - 4.5 * box, 3.0 * dense))


def mixing_scale(boxes: Boxes) -> float:
    """Return the pixels per second below which boxes mix their colours on paper.

    They do so if they are narrow, or a repetition of them is small; in low rows slots always do.
    """
    median, period = (max(seconds, _SHORTEST) for seconds in (boxes.median, boxes.period))
    small = _SMALLEST / boxes.high / period
    return np.inf if boxes.plain and boxes.slot.any() else max(scale.NARROW / median, small)


def is_mixed(boxes: Boxes, second: float) -> bool:
    """Return whether boxes mix their colours; all charts of a picture do that have short periods, if one does."""
    return second < mixing_scale(boxes) or (second < boxes.mixing and boxes.period * second <= scale.LONGEST_PERIOD)


def gap_of_rows(boxes: Boxes, second: float, row: float) -> float:
    """Return the pixels between rows of `row` pixels; low rows touch if their boxes are narrow or mix their colours."""
    box = 0.0 if is_mixed(boxes, second) else (boxes.narrowest or boxes.median) * second
    return scale.row_gap(row, box, boxes.apart)


def bins(columns: PixelColumns, foot: float, finish: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and last second of each column's footprint, cut at both ends of the step symmetrically."""
    edges = np.linspace(columns.first, columns.last, columns.number + 1)
    middle, half = (edges[:-1] + edges[1:]) / 2, (columns.last - columns.first) / columns.number / 2
    room = np.maximum(half, np.minimum(middle, finish - middle))
    reach = np.where(middle < finish, np.minimum(foot * half, room), half)
    return middle - reach, middle + reach


def windows(boxes: Boxes, device: int, columns: PixelColumns, dense: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Return the begin and end of the window whose mean each column of a device shows: its footprint, or a repetition.

    Where actions too narrow to be told apart mix, it is a repetition of them. If jitter changes every action, none
    repeats; the footprint is then a period, doubled or halved until it has about three reference pixels.
    """
    finish, pixel = makespan(boxes.timeline), dense / columns.per_second
    is_flat = is_mixed(boxes, 1 / pixel) and 0 < boxes.period <= scale.LONGEST_PERIOD * pixel
    if not is_flat:
        return bins(columns, footprint(boxes, columns.per_second, dense), finish)
    if not boxes.is_even:
        period = boxes.period * columns.per_second
        return bins(columns, period * 2.0 ** np.rint(np.log2(3.0 * dense / period)), finish)
    return repetitions(boxes, device, *bins(columns, footprint(boxes, columns.per_second, dense), finish))


def repetitions(boxes: Boxes, device: int, first: np.ndarray, last: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return in place of footprints the repetitions of a device's actions before and after the middle of each.

    It is one of both if the other has not nearly the same parts of kinds and of idle time as the next beyond it: so
    mixtures are flat, and end where something else begins. Actions between two mixtures, and short idle time, have
    the mean of a period.
    """
    mine, finish = slice(*boxes.offsets[device : device + 2].tolist()), makespan(boxes.timeline)
    start, middle, spans = boxes.start[mine], (first + last) / 2, _parts(boxes, device)
    if not len(start):
        return first, last
    following, wide = np.searchsorted(start, middle, "right"), float(np.diff(middle).max(initial=0.0))
    inside = np.where(last <= finish, np.minimum(middle, finish - middle), 0.0)

    def beside(sign: int, own: np.ndarray, other: np.ndarray, box: np.ndarray) -> tuple[np.ndarray, ...]:
        """Return the far end of the repetition on one side, how much the next one differs, and its parts."""
        own, other = (column[mine][np.clip(box, 0, len(start) - 1)] for column in (own, other))
        long = np.where(own < _LONG * boxes.period, own, np.where(other < _LONG * boxes.period, other, boxes.period))
        long = np.maximum(long, 1e-6 * boxes.period)
        long = sign * long * np.maximum(np.ceil(wide / long - 1e-6), 1.0)
        begins, ends = (np.stack([middle + (at + later) * long for at in (0, 1)]) for later in (0, 1))
        near, far = np.array([shares(*span, begins, ends) for span in spans]).swapaxes(0, 1)
        is_inside = (inside > 0.0) & (ends[1] >= 0.0) & (ends[1] <= finish)
        return middle + long, np.where(is_inside, _change(near, far), np.inf), near

    last_begin, next_begin = boxes.repetitions
    begin, before, past = beside(-1, last_begin, next_begin, following - 1)
    end, after, future = beside(1, next_begin, last_begin, following)
    is_both = np.maximum(np.maximum(before, after), _change(past, future)) < _CHANGE
    is_before = is_both | ((before < _CHANGE) & (before <= after + 0.003))
    is_after = is_both | ((after < _CHANGE) & ~is_before)
    ended, reach = np.append(0.0, boxes.end[mine])[following], (last - first) / 2
    is_busy = (ended > middle) | (
        np.append(start, np.inf)[following] - ended < np.maximum(last - first, boxes.period / 4)
    )
    reach = np.where(is_busy, np.maximum(np.minimum(boxes.period / 2, inside), reach), reach)
    return (np.where(is_before, begin, np.where(is_after, middle, middle - reach)),
            np.where(is_after, end, np.where(is_before, middle, middle + reach)))  # fmt: skip


def _parts(boxes: Boxes, device: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return begin and end of a device's boxes of each kind, and of each lane that is among the actions."""
    mine = slice(*boxes.offsets[device : device + 2].tolist())
    start, end, kind = boxes.start[mine], boxes.end[mine], boxes.kind[mine]
    steps = [(lane, lane.device == device) for lane in boxes.lanes if not lane.has_band]
    return [*((start[kind == one], end[kind == one]) for one in boxes.kinds),
            *((lane.start[own], lane.end[own]) for lane, own in steps)]  # fmt: skip


def _change(parts: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the largest difference between two bins' parts of a kind (kinds, bins), or of idle time."""
    change = parts - others
    return np.maximum(np.abs(change).max(axis=0), np.abs(change.sum(axis=0)))


def shares(start: np.ndarray, end: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return the fraction of each bin from `first` to `last` that disjoint spans in time order cover, float64."""
    if not len(start):
        return np.zeros(first.shape)
    before = np.concatenate([[0.0], np.cumsum(end - start)])  # the seconds covered are linear between the spans' ends
    corners, reached = (np.stack(pair, axis=1).ravel() for pair in ((start, end), (before[:-1], before[1:])))
    begin, until = np.interp(np.stack([first, last]), corners, reached)
    return (until - begin) / (last - first)


def kind_shares(boxes: Boxes, device: int, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return the fraction (kinds, bins) of each bin that each of `boxes.kinds` takes on a device, float64."""
    return np.stack([shares(*span, first, last) for span in _parts(boxes, device)[: len(boxes.kinds)]])


class Strip(NamedTuple):
    """A band of every device's row: top and bottom in row heights from its middle; light (devices, columns, 3)."""

    top: float
    bottom: float
    light: np.ndarray


def strips(boxes: Boxes, theme: Theme, columns: PixelColumns, rule: float = 0.0, dense: float = 1.0) -> list[Strip]:
    """Return the bands of the rows from top to bottom: lanes, and the actions, whose fused slots have two halves.

    `rule` is the seconds of a reference pixel, for the paper at each box's begin; 0: none. `dense` as for `footprint`.
    """
    finish = makespan(boxes.timeline)
    first, last = bins(columns, footprint(boxes, columns.per_second, dense), finish)
    inside = shares(np.zeros(1), np.array([finish]), first, last)
    bands = halves(boxes.band) if Kind.OVERLAP_F_B in boxes.kinds else [boxes.band]
    found = [Strip(*one, _actions(boxes, theme, half, rule, columns, dense, inside)) for half, one in enumerate(bands)]
    if boxes.plain and len(found) > 1:
        found = [Strip(*boxes.band, (found[0].light + found[1].light) / 2)]
    lanes = [lane for lane in boxes.lanes if lane.has_band and lane.sort in boxes.sorts]
    first, last = bins(columns, 1.0, finish)  # of ticks without a blur
    inside = shares(np.zeros(1), np.array([finish]), first, last)
    least = scale.TICK * dense / columns.per_second
    for lane in lanes:
        light = _lane(lane, lane.ticks(least, finish), boxes, theme, first, last, inside)
        found.append(Strip(*lane_edges(lane, boxes.sorts), light))
    return sorted(found, key=lambda strip: strip.top)


def _actions(
    boxes: Boxes, theme: Theme, half: int, rule: float, columns: PixelColumns, dense: float, inside: np.ndarray
) -> np.ndarray:
    """Return the light of the actions and their gaps; `half` is 1 for the lower half of fused slots."""
    kind = boxes.kinds_of_parts(half)
    steps = [lane for lane in boxes.lanes if not lane.has_band]
    light = _ground(theme.paper, inside, boxes.timeline.schedule.devices)
    for device in range(len(light)):
        around = windows(boxes, device, columns, dense)
        rows, busy = slice(int(boxes.offsets[device]), int(boxes.offsets[device + 1])), np.zeros(columns.number)
        chosen = [(boxes, rows.start + np.flatnonzero(kind[rows] == one), theme.kinds[Kind(one)])
                  for one in np.flatnonzero(np.bincount(kind[rows])).tolist()]  # fmt: skip
        chosen += [(lane, np.flatnonzero(lane.device == device), theme.lanes[lane.sort]) for lane in steps]
        for spans, mine, colour in chosen:
            start, end = spans.start[mine], spans.end[mine]
            after = start + scale.gap_strength(spans.length[mine] / rule) * rule if rule else start
            for begin, until, filled in ((start, after, theme.paper), (after, end, colour))[0 if rule else 1 :]:
                part = shares(begin, until, *around)
                light[device] += part[:, None] * light_of(filled)
                busy += part
        light[device] += np.clip(inside - busy, 0.0, 1.0)[:, None] * light_of(theme.idle)
    return light


def _lane(
    lane: LaneSpans, ends: tuple[np.ndarray, np.ndarray], boxes: Boxes, theme: Theme,
    first: np.ndarray, last: np.ndarray, inside: np.ndarray,
) -> np.ndarray:  # fmt: skip
    """Return the light of a lane's ticks between `ends` over paper."""
    light = _ground(theme.paper, inside, boxes.timeline.schedule.devices)
    for device in range(len(light)):
        mine = lane.device == device
        part = np.minimum(shares(*_joined(ends[0][mine], ends[1][mine]), first, last), inside)
        light[device] += part[:, None] * light_of(theme.lanes[lane.sort])
        light[device] += (inside - part)[:, None] * light_of(theme.paper)
    return light


def _joined(start: np.ndarray, end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return spans in time order as disjoint ones; copies of one lane may overlap."""
    reached = np.maximum.accumulate(end) if len(end) else end
    begin = np.maximum(start, np.concatenate([[-np.inf], reached[:-1]])) if len(end) else start
    return np.minimum(begin, reached), reached


def _ground(paper: str, inside: np.ndarray, devices: int) -> np.ndarray:
    """Return paper where the footprints lie outside the step."""
    return np.repeat(((1.0 - inside)[:, None] * light_of(paper))[None], devices, axis=0)


def lines_of(tops: np.ndarray, lights: np.ndarray, height: int) -> np.ndarray:
    """Return bands as `height` lines of pixels, by exact area.

    `tops` (bands + 1) are the bands' borders in lines of pixels from 0 to `height`; `lights` (bands, columns, 3).
    """
    total = np.concatenate([np.zeros((1, *lights.shape[1:])), np.cumsum(lights * np.diff(tops)[:, None, None], axis=0)])
    edges = np.arange(height + 1)
    band = np.clip(np.searchsorted(tops, edges, side="right") - 1, 0, len(lights) - 1)
    return np.diff(total[band] + (edges - tops[band])[:, None, None] * lights[band], axis=0)


def picture(
    boxes: Boxes, theme: Theme, columns: PixelColumns, height: int, *, gap: float = 0.0,
    rule: float = 0.0, dense: float = 1.0,
) -> np.ndarray:  # fmt: skip
    """Return the rows of all devices as sRGB pixels, uint8 (height, columns, 3).

    Rows of 6 pixels and more begin at whole lines and end with `gap` lines of paper; lower ones share lines by area.
    `rule`: as for `strips`; `dense`: lines per reference pixel.
    """
    devices = boxes.timeline.schedule.devices
    bands = strips(boxes, theme, columns, rule, dense)
    row = height / devices
    top, bottom = band(())  # lanes of other charts of a picture have space here too
    low = row < scale.LOWEST_MARK * dense
    begins = np.arange(devices + 1) * row if low else np.rint(np.arange(devices + 1) * row)
    tall = np.diff(begins) - (0.0 if low else gap)
    paper = np.broadcast_to(light_of(theme.paper), bands[0].light.shape)
    lights, borders = [], []
    for number, strip in enumerate(bands):
        above = bands[number - 1].bottom if number else top
        for edge, light in ((above, paper), (strip.top, strip.light)):
            borders.append(begins[:-1] + (edge - top) / (bottom - top) * tall)
            lights.append(light)
    borders.append(begins[:-1] + (bands[-1].bottom - top) / (bottom - top) * tall)
    lights.append(paper)
    order = np.stack(borders, axis=1).ravel()
    every = np.stack(lights, axis=1).reshape(-1, *bands[0].light.shape[1:])
    used = np.append(np.diff(np.append(order, height)) > 1e-9, True)
    return from_linear(lines_of(np.append(order, height)[used], every[used[:-1]], height))


def png_address(pixels: np.ndarray) -> str:
    """Return pixels, uint8 (height, width, 3), as a PNG in a data address."""
    from PIL import Image  # matplotlib's; text charts do without it

    Image.fromarray(pixels).save(buffer := io.BytesIO(), "png", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
