"""Pixels of a chart: the mean of its kinds and of idle time in linear light, exact at any zoom."""

from __future__ import annotations

import base64
import io
from typing import NamedTuple

import numpy as np

from ppsim.actions import Kind
from ppsim.analysis.bubbles import makespan
from ppsim.plots import scale
from ppsim.plots.boxes import Boxes
from ppsim.plots.lanes import LaneSpans, lane_edges
from ppsim.plots.palette import GREY, MIXED, Theme, light_of

TOUCHING = 6.0  # pixels; lower rows have no gap, and share lines of pixels by area


class PixelColumns(NamedTuple):
    """Columns of pixels: `number` of equal width in the seconds from `first` to `last`."""

    first: float
    last: float
    number: int

    @property
    def per_second(self) -> float:
        """Pixels per second."""
        return self.number / (self.last - self.first)

    def halved(self) -> PixelColumns:
        """Return columns of half the width, with one more at each end."""
        half = 0.5 / self.per_second
        return PixelColumns(self.first - half, self.last + half, 2 * self.number + 2)


def from_linear(linear: np.ndarray) -> np.ndarray:
    """Return linear light as sRGB, uint8."""
    linear = np.clip(linear, 0, 1)
    srgb = np.where(linear <= 0.0031308, linear * 12.92, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.rint(255 * srgb).astype(np.uint8)


def softness(box: float) -> float:
    """Return how soft the ends of a column's footprint are, 0..1, by the width in pixels of the chart's median box.

    At 0 a column shows the mean of its own pixel. Boxes about as wide as a pixel would beat with the pixels.
    """
    return float(np.clip((5.0 - box) / 2, 0.0, 1.0))


def bins(columns: PixelColumns, foot: float, finish: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the first and last second of each column's footprint, cut at both ends of the step symmetrically."""
    edges = np.linspace(columns.first, columns.last, columns.number + 1)
    middle, half = (edges[:-1] + edges[1:]) / 2, (columns.last - columns.first) / columns.number / 2
    room = np.maximum(half, np.minimum(middle, finish - middle))
    reach = np.where(middle < finish, np.minimum(foot * half, room), half)
    return middle - reach, middle + reach


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


class Strip(NamedTuple):
    """A band of every device's row: top and bottom in row heights from its middle; light (devices, columns, 3)."""

    top: float
    bottom: float
    light: np.ndarray


def strips(
    boxes: Boxes, theme: Theme, columns: PixelColumns, soft: float | None = None, rule: float = 0.0, dense: float = 1.0
) -> list[Strip]:
    """Return the bands of the rows from top to bottom: lanes, and the actions, whose fused slots have two halves.

    `rule` is the seconds of a pixel of the rules, for the paper at the begin of each box; 0 for none. On `dense` paper,
    with so many columns a pixel of the rules, boxes that a screen mixes have no finer stripes, and others are sharp.
    """
    finish = makespan(boxes.timeline)
    if dense > 1 and softness(boxes.median * columns.per_second / dense) == 1:
        coarse = columns._replace(number=max(round(columns.number / dense), 1))
        at = ((np.arange(columns.number) + 0.5) * coarse.number / columns.number).astype(int)
        return [strip._replace(light=strip.light[:, at]) for strip in strips(boxes, theme, coarse, soft, rule)]
    soft = softness(boxes.median * columns.per_second) if soft is None else soft
    if not soft:
        return _strips(boxes, theme, finish, rule, *bins(columns, 1.0, finish))
    fine = columns.halved()
    found = _strips(boxes, theme, finish, rule, *bins(fine, 1 + 5 * soft, finish))
    return [strip._replace(light=softened(strip.light, soft, fine, finish)) for strip in found]


def softened(light: np.ndarray, soft: float, fine: PixelColumns, finish: float) -> np.ndarray:
    """Return the columns of which `fine` are the halves: the mean of two, and of one more at each side at `soft` 1.

    Those at the sides are left out if one lies outside the step. No stripes remain of periods under two columns.
    """
    middle = fine.first + (np.arange(fine.number) + 0.5) / fine.per_second
    sides = soft * ((middle[:-3:2] > 0) & (middle[3::2] < finish))[:, None]
    return (light[:, 1:-2:2] + light[:, 2:-1:2] + sides * (light[:, :-3:2] + light[:, 3::2])) / (2 + 2 * sides)


def _strips(boxes: Boxes, theme: Theme, finish: float, rule: float, first: np.ndarray, last: np.ndarray) -> list[Strip]:
    """Return the bands as means of the bins from `first` to `last`."""
    inside = shares(np.zeros(1), np.array([finish]), first, last)
    top, bottom = boxes.band
    middle = (top + bottom) / 2
    bands = [(top, middle, 0), (middle, bottom, 1)] if Kind.OVERLAP_F_B in boxes.kinds else [(top, bottom, 0)]
    found = [Strip(*band[:2], _actions(boxes, theme, band[2], rule, first, last, inside)) for band in bands]
    if boxes.plain and len(found) > 1:
        found = [Strip(top, bottom, (found[0].light + found[1].light) / 2)]
    for lane in boxes.lanes:
        if lane.has_band:
            edges = lane_edges(lane, boxes.sorts)
            found.append(Strip(*edges, _lane(lane, boxes, theme, first, last, inside)))
    return sorted(found, key=lambda strip: strip.top)


def _actions(
    boxes: Boxes, theme: Theme, half: int, rule: float, first: np.ndarray, last: np.ndarray, inside: np.ndarray
) -> np.ndarray:
    """Return the light of the actions and their gaps; `half` is 1 for the lower half of fused slots."""
    kind = boxes.kinds_of_parts(half)
    steps = [lane for lane in boxes.lanes if not lane.has_band]
    light = _ground(theme.paper, inside, boxes.timeline.schedule.devices)
    for device in range(len(light)):
        rows, busy = slice(int(boxes.offsets[device]), int(boxes.offsets[device + 1])), np.zeros(len(first))
        most, kinds = np.zeros(len(first)), np.zeros((len(first), 3))
        mixed = np.zeros(len(first))
        chosen = [(boxes, rows.start + np.flatnonzero(kind[rows] == one), theme.kinds[Kind(one)])
                  for one in np.flatnonzero(np.bincount(kind[rows])).tolist()]  # fmt: skip
        chosen += [(lane, np.flatnonzero(lane.device == device), theme.lanes[lane.sort]) for lane in steps]
        for spans, mine, colour in chosen:
            start, end = spans.start[mine], spans.end[mine]
            after = start + scale.gap_strength(spans.length[mine] / rule) * rule if rule else start
            for begin, until, filled in ((start, after, theme.paper), (after, end, colour))[0 if rule else 1 :]:
                part = shares(begin, until, first, last)
                light[device] += part[:, None] * light_of(filled)
                busy += part
                if filled != theme.paper:
                    kinds += part[:, None] * light_of(filled)
                    most, mixed = np.maximum(most, part), mixed + part
        if theme is GREY:
            light[device] += (most < 0.97 * mixed)[:, None] * (mixed[:, None] * light_of(MIXED) - kinds)
        light[device] += np.clip(inside - busy, 0.0, 1.0)[:, None] * light_of(theme.idle)
    return light


def _lane(
    lane: LaneSpans, boxes: Boxes, theme: Theme, first: np.ndarray, last: np.ndarray, inside: np.ndarray
) -> np.ndarray:
    """Return the light of a lane over paper."""
    light = _ground(theme.paper, inside, boxes.timeline.schedule.devices)
    for device in range(len(light)):
        mine = lane.device == device
        part = np.minimum(shares(*_joined(lane.start[mine], lane.end[mine]), first, last), inside)
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


def lines_of(tops: np.ndarray, lights: np.ndarray, height: int, foot: float = 1.0) -> np.ndarray:
    """Return bands as `height` lines of pixels, each the mean over `foot` pixels by exact area, cut at both ends alike.

    `tops` (bands + 1) are the bands' borders in lines of pixels from 0 to `height`; `lights` (bands, columns, 3).
    """
    total = np.concatenate([np.zeros((1, *lights.shape[1:])), np.cumsum(lights * np.diff(tops)[:, None, None], axis=0)])
    middle = np.arange(height) + 0.5
    reach = np.minimum(foot / 2, np.minimum(middle, height - middle))
    edges = np.stack([middle - reach, middle + reach])
    band = np.clip(np.searchsorted(tops, edges, side="right") - 1, 0, len(lights) - 1)
    first, last = total[band] + (edges - tops[band])[..., None, None] * lights[band]
    return (last - first) / (2 * reach)[:, None, None]


def picture(
    boxes: Boxes, theme: Theme, columns: PixelColumns, height: int, *, gap: float = 0.0, soft: float | None = None,
    rule: float = 0.0, dense: float = 1.0,
) -> np.ndarray:  # fmt: skip
    """Return the rows of all devices as sRGB pixels, uint8 (height, columns, 3).

    Rows of `TOUCHING` lines and more begin at whole lines and end with `gap` lines of paper; lower rows touch.
    `rule`, `dense`: as for `strips`.
    """
    devices = boxes.timeline.schedule.devices
    bands = strips(boxes, theme, columns, soft, rule, dense)
    row = height / devices
    top, bottom = bands[0].top, bands[-1].bottom
    low = row < TOUCHING * dense
    begins = np.arange(devices + 1) * row if low else np.rint(np.arange(devices + 1) * row)
    tall = np.diff(begins) - (0.0 if low else gap)
    paper = np.broadcast_to(light_of(theme.paper), bands[0].light.shape)
    lights, borders = [], []
    for number, band in enumerate(bands):
        above = bands[number - 1].bottom if number else top
        for edge, light in ((above, paper), (band.top, band.light)):
            borders.append(begins[:-1] + (edge - top) / (bottom - top) * tall)
            lights.append(light)
    borders.append(begins[:-1] + tall)
    lights.append(paper)
    order = np.stack(borders, axis=1).ravel()
    every = np.stack(lights, axis=1).reshape(-1, *bands[0].light.shape[1:])
    foot = dense * (1 + 2 * softness(row / dense)) if low else 1.0
    used = np.append(np.diff(np.append(order, height)) > 1e-9, True)
    return from_linear(lines_of(np.append(order, height)[used], every[used[:-1]], height, foot))


def png_address(pixels: np.ndarray) -> str:
    """Return pixels, uint8 (height, width, 3), as a PNG in a data address."""
    from PIL import Image  # matplotlib's; text charts do without it

    Image.fromarray(pixels).save(buffer := io.BytesIO(), "png", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"
