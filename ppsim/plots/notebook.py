"""HTML that a notebook shows for a timeline: headline measures, and an SVG picture that needs no script.

Timelines with very many actions get the page of `ppsim.plots.viewer` in a frame instead.
"""

from __future__ import annotations

import html

import numpy as np

from ppsim.analysis.bubbles import makespan
from ppsim.base.units import ScaledUnit, time_unit
from ppsim.plots import palette
from ppsim.plots.boxes import Boxes, legend_entries, make_boxes, title_text
from ppsim.plots.lanes import Spans, lane_edges, part_of_row
from ppsim.plots.page_data import measures_line
from ppsim.plots.scale import every_kth, roomy_rows, round_ticks
from ppsim.plots.viewer import viewer_html
from ppsim.timeline import TimelineColumns

MAX_BOXES = 6_144  # in the picture: zb-v on 16 devices with 64 microbatches
_WIDTH, _LEFT, _AXIS = 960, 62, 34  # pixels
_CHART = _WIDTH - _LEFT - 8  # pixels from the first start to the last end
_ROWS, _MAX_ROW, _MAX_LANED_ROW = 480, 22, 30  # pixels: all rows; maximum of a row without and with lanes
_DIGIT = 5.6  # pixels; width of a digit
_NARROWEST_COUNTED = 2.5  # pixels; if short boxes are narrower, not even every k-th number is written
_HATCHED = (  # the pattern of idle time; each picture of a notebook repeats it under the same name
    '<pattern id="ppsim-idle" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    f'<path d="M0 0h5v5h-5z" fill="{palette.IDLE}"/><path d="M0 0v5" stroke="{palette.IDLE_HATCH}"/></pattern>'
)
_FRAME_ROW, _FRAME_MAX_ROWS, _FRAME_REST = 48, 560, 290  # pixels of the page: a row, limit of all rows, the rest


def timeline_html(timeline: TimelineColumns) -> str:
    """Return chart and headline measures of a timeline as self-contained HTML."""
    boxes = make_boxes(timeline)
    chart = _picture(boxes) if len(boxes) <= MAX_BOXES else _frame(boxes)
    return (
        f'<div style="font:13px sans-serif"><b>{html.escape(title_text(timeline))}</b><br>'
        f"{html.escape(measures_line(timeline))}<br>{chart}</div>"
    )


def _frame(boxes: Boxes) -> str:
    """Return the viewer's page in a frame without access to the notebook."""
    height = min(boxes.timeline.schedule.devices * _FRAME_ROW, _FRAME_MAX_ROWS) + _FRAME_REST
    return (
        f'<iframe sandbox="allow-scripts" title="Gantt chart" style="width:100%;height:{height}px;border:0" '
        f'srcdoc="{html.escape(viewer_html(boxes, framed=True))}"></iframe>'
    )


def _picture(boxes: Boxes) -> str:
    """Return an SVG with every box, and its legend."""
    devices = boxes.timeline.schedule.devices
    row = int(np.clip(_ROWS // devices, 4, _MAX_LANED_ROW if boxes.laned else _MAX_ROW))
    height = devices * row + _AXIS
    body = _ground(boxes, row) + _boxes(boxes, row) + _lanes(boxes, row) + _device_names(devices, row)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" xmlns="http://www.w3.org/2000/svg" '
        f'style="max-width:100%;background:#fff" font-family="sans-serif" font-size="11" fill="{palette.INK}" '
        f'role="img" aria-label="Gantt chart">{body}{_axis(makespan(boxes.timeline), devices * row)}</svg>'
        f"<br>{_legend(boxes)}"
    )


def _ground(boxes: Boxes, row: int) -> str:
    """Return a hatched band per device; its visible part is idle time."""
    top, tall = _across(boxes.band, row)
    devices = range(boxes.timeline.schedule.devices)
    bands = "".join(f"M{_LEFT} {device * row + top:g}h{_CHART}v{tall:g}h-{_CHART}z" for device in devices)
    return f'{_HATCHED}<path d="{bands}" fill="url(#ppsim-idle) {palette.IDLE}"/>'


def _boxes(boxes: Boxes, row: int) -> str:
    """Return one path per kind and shade, then the labels."""
    parts = []
    for kind, same_kind, band in boxes.parts(np.ones(len(boxes), bool)):
        for shade, colour in enumerate(boxes.colours[kind].tolist()):
            mine = same_kind[boxes.shade[same_kind] == shade]
            parts.append(_path(boxes, mine, row, boxes.timeline, _across(band, row), colour) if len(mine) else "")
    across = _across(boxes.band, row)
    return "".join(parts) + (_labels(boxes, row, across) if across[1] >= 10 else "")


def _lanes(boxes: Boxes, row: int) -> str:
    """Return one path per lane."""
    return "".join(
        _path(lane, np.arange(len(lane)), row, boxes.timeline, _across(lane_edges(lane, boxes.lanes), row), lane.colour)
        for lane in boxes.lanes
    )


def _across(edges: tuple[float, float], row: int) -> tuple[float, float]:
    """Return top and height of a band in pixels within a row."""
    top, bottom = (1 + part * (row - 2) for part in part_of_row(edges))
    return round(top, 1), round(bottom - top, 1)


def _path(
    spans: Spans, mine: np.ndarray, row: int, timeline: TimelineColumns, across: tuple[float, float], colour: str
) -> str:
    """Return a path with a rectangle for each span of `mine` (indices), all in one colour."""
    scale, (top, tall) = _pixels_per_second(timeline), across
    left, wide = _LEFT + spans.start[mine] * scale, spans.length[mine] * scale
    wide = np.maximum(np.where(wide > 5, wide - 0.8, wide), 0.5)
    rectangles = zip(left.tolist(), (spans.device[mine] * row + top).tolist(), wide.tolist(), strict=True)
    outline = "".join(f"M{x:.1f} {y:g}h{width:.1f}v{tall:g}h-{width:.1f}z" for x, y, width in rectangles)
    return f'<path d="{outline}" fill="{colour}"/>'


def _labels(boxes: Boxes, row: int, across: tuple[float, float]) -> str:
    """Return the numbers of all boxes in rows that have space for them, of every k-th microbatch in the others."""
    scale, parts = _pixels_per_second(boxes.timeline), []
    middle = _LEFT + (boxes.start + boxes.length / 2) * scale
    base = boxes.device * row + across[0] + across[1] / 2 + 3.5
    texts = np.array([boxes.short_label(box) for box in range(len(boxes))])
    wide = np.char.str_len(texts) * _DIGIT + 2
    fits = boxes.length * scale >= wide
    rows = roomy_rows(boxes.device, fits, boxes.timeline.schedule.devices)
    over = np.zeros(len(boxes), bool)
    if np.quantile(boxes.length, 0.25) * scale >= _NARROWEST_COUNTED:
        microbatch = boxes.microbatch // boxes.timeline.schedule.slices
        over[every_kth(boxes.device, middle, wide, microbatch, ~rows)] = True
    for box in np.flatnonzero(fits & rows[boxes.device] | over).tolist():
        halo = ' paint-order="stroke" stroke="#fff" stroke-width="2"' if boxes.slot[box] or over[box] else ""
        ink = palette.INK if halo else palette.label_colour(boxes.colour(box))
        parts.append(f'<text x="{middle[box]:.1f}" y="{base[box]:g}" fill="{ink}"{halo}>{texts[box]}</text>')
    return f'<g text-anchor="middle" font-size="10">{"".join(parts)}</g>'


def _pixels_per_second(timeline: TimelineColumns) -> float:
    return _CHART / makespan(timeline) if makespan(timeline) > 0 else 0.0


def _device_names(devices: int, row: int) -> str:
    names = (
        f'<text x="{_LEFT - 6}" y="{device * row + row / 2 + 4:g}">device {device}</text>'
        for device in range(0, devices, max(-(-12 // row), 1))
    )
    return f'<g text-anchor="end">{"".join(names)}</g>'


def _axis(makespan: float, top: int) -> str:
    unit: ScaledUnit = time_unit(makespan)
    ticks = round_ticks(makespan * unit.factor, 10)
    places = _LEFT + ticks / (makespan * unit.factor or 1.0) * _CHART
    marks = "".join(f"M{place:.1f} {top}v4" for place in places)
    numbers = "".join(
        f'<text x="{min(place, _WIDTH - 14):.1f}" y="{top + 15}">{tick:.10g}</text>'
        for place, tick in zip(places.tolist(), ticks.tolist(), strict=True)
    )
    name = f'<text x="{(_WIDTH + _LEFT) / 2:g}" y="{top + 29}">time ({unit.symbol})</text>'
    return (
        f'<path d="M{_LEFT} {top}h{_CHART}{marks}" stroke="{palette.INK}" fill="none"/>'
        f'<g text-anchor="middle">{numbers}{name}</g>'
    )


def _legend(boxes: Boxes) -> str:
    return " ".join(
        f'<span style="white-space:nowrap;margin-right:10px"><span style="display:inline-block;width:11px;height:11px;'
        f'background:{colour};border:1px solid #0003"></span> {html.escape(title)}</span>'
        for colour, title in legend_entries([boxes])
    )
