"""Pixels of a chart: the mean of its kinds and of idle time in linear light, exact at any zoom."""

from __future__ import annotations

import base64
import io
from typing import NamedTuple

import numpy as np

from ppsim.actions import Kind
from ppsim.analysis.bubbles import makespan
from ppsim.base.immutable import distinct
from ppsim.plots import scale
from ppsim.plots.boxes import SHORTEST, Boxes, halves
from ppsim.plots.lanes import STEPS, LaneSpans, band, lane_edges
from ppsim.plots.palette import Theme, from_linear, light_of

_SHORT_PERIOD = 12.0  # reference pixels: mixtures of longer periods keep their actions, in a picture that need not mix
_STEADY_IDLE = 0.7  # of the time between two equal actions: the longest idle time in a mixture of their repetitions
_CHANGE = 0.1  # of a device's time: where the part of a kind changes by more, another mixture begins
_NONE = 1e-9  # of a period: that of what does not repeat
_APART = 3.0  # halves of a window between a mixture's ends, whose actions may be others, and its windows
_IDLE = 0.6  # of the longest stretch of one kind within a mixture: the longest idle time there
WINDOWS = np.array([[-4], [0], [4]]) / 9  # their mean does not beat with what repeats after 2/3 of a window
_REACH = 1 + WINDOWS.max()  # of all of them, in halves of one


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
    """Return the pixels per second below which boxes mix their colours on paper, with two columns per reference pixel.

    In low rows slots always do, and boxes that can be mixed over a short period.
    """
    median, period = (max(seconds, SHORTEST) for seconds in (boxes.median, boxes.period))
    is_short = _SHORT_PERIOD / period * boxes.plain
    return np.inf if boxes.plain and boxes.slot.any() else max(scale.SHARP / 2 / median, is_short)


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
    """Return the begins and ends, (windows, columns), of the windows whose mean the columns of a device show.

    Where actions too narrow to be told apart mix, windows are as long as a period, so that mixtures are flat. They end
    at what lasts longer than `Boxes.longest_mixed`, or than a part of it for idle time, which keep their colours.
    """
    finish, foot = makespan(boxes.timeline), footprint(boxes, columns.per_second, dense)
    first, last = (one[None] for one in bins(columns, foot, finish))
    period, pixel = boxes.period, dense / columns.per_second
    if not (is_mixed(boxes, 1 / pixel) and 0 < period <= scale.LONGEST_PERIOD * pixel):
        return first, last
    borders, periods = mixtures(boxes, device)
    middle, reach = (first + last) / 2, (last - first) / 2
    at = np.clip(np.searchsorted(borders, middle, "right") - 1, 0, len(periods) - 1)
    begin, end, repeated = borders[at], borders[at + 1], periods[at]
    room = (end - begin) / 2 / _REACH
    own = np.minimum(np.maximum(repeated / 2 * np.ceil(foot / columns.per_second / repeated - 0.01), reach), room)
    is_wide = (room > reach) & (last <= finish)
    keeps = boxes.is_even & (repeated > _NONE * period)  # its windows apart from its ends
    apart = _REACH * (own + np.minimum(_APART * own, (room - own) / 2) * keeps)
    middle = np.where(is_wide, np.clip(middle, begin + apart, end - apart) + WINDOWS * own, middle)
    own = np.where(is_wide, own, reach)
    return middle - own, middle + own


def mixtures(boxes: Boxes, device: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the borders of a device's mixtures and of what lies between them, and the period of each.

    Mixtures end at what lasts longer than `Boxes.longest_mixed`, or than a part of it for idle time that does not
    repeat. Unless jitter changes every action, they also end where the parts of the kinds, or of idle time, differ most
    between the repetitions of the actions before and after.
    """
    mine, period = slice(*boxes.offsets[device : device + 2].tolist()), boxes.period
    start, end, kind = boxes.start[mine], boxes.end[mine], boxes.kind[mine]
    if not len(start):
        return np.array([0.0, makespan(boxes.timeline)]), np.full(1, period)
    before, after = (one[mine] for one in boxes.repetitions)
    before, after = (np.where(np.isnan(one), other, one) for one, other in ((before, after), (after, before)))
    is_steady = np.abs(before - after) < 1e-6 * period
    before, after = (np.nan_to_num(np.clip(one, 1e-6 * period, 2.0 * period), nan=period) for one in (before, after))
    is_new = (kind[1:] != kind[:-1]) | (start[1:] - end[:-1] > 1e-6 * period) | boxes.slot[mine][1:]
    first, last = np.append(True, is_new), np.append(is_new, True)
    borders = np.concatenate([[0.0], np.stack([start[first], end[last]], axis=1).ravel(), [makespan(boxes.timeline)]])
    longest = boxes.longest_mixed * np.resize([_IDLE, 1.0], len(borders) - 1)  # idle time is every second stretch
    longest[2::2] = np.maximum(longest[2::2], _STEADY_IDLE * (after * is_steady)[last])
    is_mixed = np.diff(borders) <= longest
    borders = borders[np.concatenate([[True], ~(is_mixed[1:] & is_mixed[:-1]), [True]])]
    borders = borders[np.append(True, np.diff(borders) > 0)]
    if boxes.is_even:
        times = np.stack([start, end], axis=1).ravel()
        past = np.append(before[0], np.repeat(before, 2)[:-1])
        future = np.append(np.repeat(after, 2)[1:], after[-1])
        every = [(start[kind == one], end[kind == one]) for one in distinct(kind).tolist()]
        parts = np.stack([shares(*one, times, times + future) - shares(*one, times - past, times) for one in every])
        change = np.abs(np.concatenate([parts, parts.sum(axis=0, keepdims=True)])).max(axis=0)
        change -= 1e-9 * np.arange(len(times))  # the first of equal ones
        change[np.isin(times, borders)] = np.inf
        reach = (past + future) / 2
        around = np.searchsorted(times, times - reach), np.searchsorted(times, times + reach, "right")
        largest = np.maximum.reduceat(np.append(change, 0.0), np.stack(around, axis=1).ravel())[::2]
        borders = np.union1d(borders, times[(change >= largest) & (change > _CHANGE) & (change < np.inf)])
    steps = [
        edge[lane.device == device] for lane in boxes.lanes if lane.sort == STEPS for edge in (lane.start, lane.end)
    ]
    borders = np.union1d(borders, np.ravel(steps))
    owner = np.searchsorted(borders, start, "right") - 1
    own = [after[owner == one] if boxes.is_even else np.full(int(np.any(owner == one)), period)
           for one in range(len(borders) - 1)]  # fmt: skip
    periods = [np.quantile(one, 2 / 3, method="nearest") if len(one) else _NONE * period for one in own]
    return borders, np.array(periods)


def shares(start: np.ndarray, end: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return the fraction of each bin from `first` to `last` that disjoint spans in time order cover, float64.

    The covered time before a second is piecewise linear with corners at the spans' ends: two look-ups per bin.
    """
    if not len(start):
        return np.zeros(len(first))
    corners = np.stack([start, end], axis=1).ravel()
    before = np.concatenate([[0.0], np.cumsum(end - start)])
    covered = np.stack([before[:-1], before[1:]], axis=1).ravel()
    return (np.interp(last, corners, covered) - np.interp(first, corners, covered)) / (last - first)


def kind_shares(boxes: Boxes, device: int, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return the fraction (kinds, bins) of each bin that each of `boxes.kinds` takes on a device, float64."""
    mine = slice(int(boxes.offsets[device]), int(boxes.offsets[device + 1]))
    start, end, kind = boxes.start[mine], boxes.end[mine], boxes.kind[mine]
    return np.stack([shares(start[kind == one], end[kind == one], first, last) for one in boxes.kinds])


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
    lanes = [lane for lane in boxes.lanes if lane.has_band]
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
                part = shares(begin, until, *around).mean(axis=0)
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
