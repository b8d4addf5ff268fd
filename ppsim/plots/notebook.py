"""What a notebook shows of a timeline without a call: a small inline SVG and the headline measures."""

from __future__ import annotations

import base64
import html
from typing import TYPE_CHECKING

import numpy as np

from ppsim.analysis.bubbles import makespan
from ppsim.base.units import TimeUnit, time_unit
from ppsim.plots import palette
from ppsim.plots.beside import Beside, band, lane, part_of_row
from ppsim.plots.boxes import Boxes, make_boxes, second_cue, sizes_text
from ppsim.plots.scale import round_ticks
from ppsim.plots.shares import laned_image, png_bytes, share_edges
from ppsim.plots.viewer import measures_line

if TYPE_CHECKING:
    from ppsim.timeline import TimelineColumns

MOST_BOXES = 3_000  # drawn one by one; more are shown as shares of time
_WIDTH, _LEFT, _AXIS = 960, 62, 34  # pixels
_TALL, _TALLER = 22, 30  # pixels of a row at most, and of one with lanes
_DIGIT = 5.6  # pixels of a digit of a label


def timeline_html(timeline: TimelineColumns) -> str:
    """Chart and headline measures of a timeline, as HTML that stands alone."""
    boxes = make_boxes(timeline)
    devices = timeline.schedule.devices
    row = int(np.clip(480 // devices, 4, _TALL if boxes.band == band([]) else _TALLER))
    exact = len(boxes) <= MOST_BOXES
    body = (_exact_rows(boxes, row) if exact else _share_rows(boxes, row)) + _beside(boxes, row)
    height = devices * row + _AXIS
    frame = _device_names(devices, row) + _axis(makespan(timeline), devices * row)
    chart = (
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" xmlns="http://www.w3.org/2000/svg" '
        f'style="max-width:100%;background:#fff" font-family="sans-serif" font-size="11" fill="{palette.INK}" '
        f'role="img" aria-label="Gantt chart">{body}{frame}</svg>'
    )
    note = "" if exact else "; rows show the part of the time in each kind, save_html shows every action"
    return (
        f'<div style="font:13px sans-serif"><b>{html.escape(sizes_text(timeline.schedule))}</b><br>'
        f"{html.escape(measures_line(timeline))}<br>{chart}<br>{_legend(boxes)}{note}</div>"
    )


def _exact_rows(boxes: Boxes, row: int) -> str:
    """Idle bands, then one path a kind and shade, then the labels that fit."""
    devices, scale = boxes.timeline.schedule.devices, _pixels_per_second(boxes.timeline)
    top, tall = _across(boxes.band, row)
    bands = "".join(
        f"M{_LEFT} {device * row + top:g}h{_WIDTH - _LEFT - 8}v{tall:g}h-{_WIDTH - _LEFT - 8}z"
        for device in range(devices)
    )
    parts = [f'<path d="{bands}" fill="{palette.IDLE}"/>']
    for kind in boxes.kinds:
        for shade in range(boxes.shades):
            mine = np.flatnonzero((boxes.kind == kind) & (boxes.shade == shade)).tolist()
            outline = "".join(_rectangle(boxes, box, row, scale, (top, tall)) for box in mine)
            colour = palette.shade_colour(kind, shade, boxes.shades)
            parts.append(f'<path d="{outline}" fill="{colour}"/>' if mine else "")
    return "".join(parts) + (_labels(boxes, row, scale) if tall >= 10 else "")


def _across(edges: tuple[float, float], row: int) -> tuple[float, float]:
    """Top and height in pixels within a row."""
    top, bottom = (1 + part * (row - 2) for part in part_of_row(edges))
    return round(top, 1), round(bottom - top, 1)


def _beside(boxes: Boxes, row: int) -> str:
    """One path a sort of what runs beside the actions."""
    scale, paths = _pixels_per_second(boxes.timeline), []
    for part in boxes.beside:
        across = _across(lane(part, boxes.beside), row)
        outline = "".join(_rectangle(part, span, row, scale, across) for span in range(len(part)))
        paths.append(f'<path d="{outline}" fill="{part.colour}"/>')
    return "".join(paths)


def _rectangle(boxes: Boxes | Beside, box: int, row: int, scale: float, across: tuple[float, float]) -> str:
    x, wide = _LEFT + boxes.start[box] * scale, boxes.length[box] * scale
    wide = max(wide - (0.8 if wide > 5 else 0.0), 0.5)
    return f"M{x:.1f} {boxes.device[box] * row + across[0]:g}h{wide:.1f}v{across[1]:g}h-{wide:.1f}z"


def _labels(boxes: Boxes, row: int, scale: float) -> str:
    top, tall = _across(boxes.band, row)
    parts = []
    for box in range(len(boxes)):
        text = boxes.short_label(box)
        if boxes.length[box] * scale < len(text) * _DIGIT + 2:
            continue
        middle = _LEFT + (boxes.start[box] + boxes.length[box] / 2) * scale
        ink = palette.label_colour(palette.shade_colour(int(boxes.kind[box]), int(boxes.shade[box]), boxes.shades))
        parts.append(
            f'<text x="{middle:.1f}" y="{boxes.device[box] * row + top + tall / 2 + 3.5:g}" fill="{ink}">{text}</text>'
        )
    return f'<g text-anchor="middle" font-size="10">{"".join(parts)}</g>'


def _share_rows(boxes: Boxes, row: int) -> str:
    edges = share_edges(boxes, most=_WIDTH)
    picture = base64.b64encode(png_bytes(laned_image(boxes, edges, lines=row))).decode()
    wide = float(edges[-1]) * _pixels_per_second(boxes.timeline)
    tall = boxes.timeline.schedule.devices * row
    gaps = "".join(f"M{_LEFT} {device * row}h{_WIDTH}" for device in range(boxes.timeline.schedule.devices))
    return (
        f'<svg x="{_LEFT}" width="{_WIDTH - _LEFT - 8}" height="{tall}"><image width="{wide:.1f}" height="{tall}" '
        f'preserveAspectRatio="none" style="image-rendering:pixelated" href="data:image/png;base64,{picture}"/></svg>'
        f'<path d="{gaps}" stroke="#fff" stroke-width="1"/>'
    )


def _pixels_per_second(timeline: TimelineColumns) -> float:
    return (_WIDTH - _LEFT - 8) / makespan(timeline) if makespan(timeline) > 0 else 0.0


def _device_names(devices: int, row: int) -> str:
    step = max(-(-12 // row), 1)
    names = (
        f'<text x="{_LEFT - 6}" y="{device * row + row / 2 + 4:g}">device {device}</text>'
        for device in range(0, devices, step)
    )
    return f'<g text-anchor="end">{"".join(names)}</g>'


def _axis(makespan: float, top: int) -> str:
    unit: TimeUnit = time_unit(makespan)
    ticks = round_ticks(makespan * unit.factor, 10)
    last = makespan * unit.factor or 1.0
    places = _LEFT + ticks / last * (_WIDTH - _LEFT - 8)
    marks = "".join(f"M{place:.1f} {top}v4" for place in places)
    numbers = "".join(
        f'<text x="{min(place, _WIDTH - 14):.1f}" y="{top + 15}">{tick:.10g}</text>'
        for place, tick in zip(places.tolist(), ticks.tolist(), strict=True)
    )
    name = f'<text x="{(_WIDTH + _LEFT) / 2:g}" y="{top + 29}">time ({unit.symbol})</text>'
    return (
        f'<path d="M{_LEFT} {top}h{_WIDTH - _LEFT - 8}{marks}" stroke="{palette.INK}" fill="none"/>'
        f'<g text-anchor="middle">{numbers}{name}</g>'
    )


def _legend(boxes: Boxes) -> str:
    entries = [(palette.COLOURS[kind], palette.TITLES[kind]) for kind in boxes.kinds] + [(palette.IDLE, "idle")]
    entries += [(part.colour, part.title) for part in boxes.beside]
    cue = second_cue(boxes.timeline.schedule)
    if cue:
        entries.append((palette.shade_colour(boxes.kinds[0], 1, 2), cue))
    return " ".join(
        f'<span style="white-space:nowrap;margin-right:10px"><span style="display:inline-block;width:11px;height:11px;'
        f'background:{colour};border:1px solid #0003"></span> {html.escape(title)}</span>'
        for colour, title in entries
    )
