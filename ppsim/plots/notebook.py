"""HTML that a notebook shows for a timeline: the viewer where scripts run, a still picture in SVG elsewhere."""

from __future__ import annotations

import hashlib
import html
import json

import numpy as np

from ppsim.actions import Kind
from ppsim.analysis.bubbles import makespan
from ppsim.base.units import time_unit
from ppsim.plots import scale
from ppsim.plots.boxes import Boxes, LegendEntry, device_labels, halves, legend_entries, make_boxes, title_text
from ppsim.plots.lanes import Spans, lane_edges, part_of_row
from ppsim.plots.page_data import measures_line
from ppsim.plots.palette import LIGHT
from ppsim.plots.pixels import PixelColumns, median_box, picture, png_address
from ppsim.plots.viewer import viewer_html
from ppsim.timeline import TimelineColumns

_WIDTH, _LEFT, _AXIS = 960, 62, 34  # pixels
_CHART = _WIDTH - _LEFT - 8  # pixels from the first start to the last end
_ROWS, _MAX_ROW, _MAX_LANED_ROW = 480, 24, 32  # pixels: all rows; maximum of a row without and with lanes
_MAX_BOXES, _NARROWEST = 2_000, 3.0  # more boxes, or narrower ones (pixels), are an image
_FRAME_ROW, _FRAME_MAX_ROWS, _FRAME_REST = 44, 480, 270  # pixels of the frame: a row, limit of all rows, the rest
_SCRIPT = (
    '<script>(() => {{ const box = document.getElementById("{name}"); if (!box) return; '
    'const frame = document.createElement("iframe"); frame.sandbox = "allow-scripts"; frame.title = "Gantt chart"; '
    'frame.style = "width:100%;height:{height}px;border:0"; frame.srcdoc = {page}; '
    "box.replaceChildren(frame); }})()</script>"
)


def timeline_html(timeline: TimelineColumns) -> str:
    """Return chart and headline measures of a timeline as self-contained HTML.

    A script puts the viewer, in a frame without access to the notebook, in the place of the still picture.
    """
    boxes = make_boxes(timeline)
    page = json.dumps(viewer_html(boxes, framed=True)).replace("<", "\\u003c")
    name = f"ppsim-{hashlib.sha256(page.encode()).hexdigest()[:12]}"
    height = min(timeline.schedule.devices * _FRAME_ROW, _FRAME_MAX_ROWS) + _FRAME_REST
    return (
        f'<div style="font:13px sans-serif"><b>{html.escape(title_text(timeline))}</b><br>'
        f'{html.escape(measures_line(timeline))}<div id="{name}">{still_picture(boxes)}</div>'
        f"{_SCRIPT.format(name=name, height=height, page=page)}</div>"
    )


def still_picture(boxes: Boxes) -> str:
    """Return an SVG of the rows, an axis and a legend, which needs no script."""
    devices = boxes.timeline.schedule.devices
    row = float(np.clip(_ROWS / devices, 1, _MAX_LANED_ROW if boxes.laned else _MAX_ROW))
    row = float(round(row)) if row >= scale.LOWEST_MARK else row
    tall = round(devices * row)
    usual = median_box(boxes) * _pixels_per_second(boxes.timeline)
    is_image = len(boxes) > _MAX_BOXES or usual < _NARROWEST
    rows = _image(boxes, tall) if is_image else _ground(boxes, row) + _boxes(boxes, row) + _lanes(boxes, row)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {tall + _AXIS}" width="{_WIDTH}" height="{tall + _AXIS}" '
        f'xmlns="http://www.w3.org/2000/svg" style="max-width:100%;background:{LIGHT.paper}" font-family="sans-serif" '
        f'font-size="11" fill="{LIGHT.text}" role="img" aria-label="Gantt chart">{rows}{_device_names(boxes, row)}'
        f"{_axis(makespan(boxes.timeline), tall)}</svg><br>{_legend(boxes, usual)}"
    )


def _image(boxes: Boxes, tall: int) -> str:
    """Return the rows as an image, in which every pixel is the mean of what it covers."""
    last = makespan(boxes.timeline) or 1.0
    pixels = picture(boxes, LIGHT, PixelColumns(0.0, last, _CHART), tall, gap=_gap(boxes, tall))
    return f'<image x="{_LEFT}" y="0" width="{_CHART}" height="{tall}" href="{png_address(pixels)}"/>'


def _gap(boxes: Boxes, tall: float) -> float:
    usual = median_box(boxes) * _pixels_per_second(boxes.timeline)
    return scale.row_gap(tall / boxes.timeline.schedule.devices, usual)


def _ground(boxes: Boxes, row: float) -> str:
    """Return a band of idle time per device."""
    top, tall = _across(boxes, boxes.band, row)
    devices = range(boxes.timeline.schedule.devices)
    bands = "".join(f"M{_LEFT} {device * row + top:g}h{_CHART}v{tall:g}h-{_CHART}z" for device in devices)
    return f'<path d="{bands}" fill="{LIGHT.idle}"/>'


def _boxes(boxes: Boxes, row: float) -> str:
    """Return one path per kind, one for the gaps, then the marks and numbers."""
    fills, marks, numbers = [], [], []
    for kind, mine, band in boxes.parts(boxes.length > 0):
        across = _across(boxes, band, row)
        fills.append(_path(boxes, mine, row, across, LIGHT.kinds[kind], _pixels_per_second(boxes.timeline)))
        marks.append(_marks(boxes, mine, row, across, LIGHT.on[kind]))
    for half in (0, 1):
        mine = np.flatnonzero((boxes.length > 0) & (boxes.slot if half else True))
        bands = [_across(boxes, halves(boxes.band)[half] if boxes.slot[box] else boxes.band, row) for box in mine]
        numbers.append(_numbers(boxes, mine, half, row, bands))
    top, tall = _across(boxes, boxes.band, row)
    left = _LEFT + boxes.start * _pixels_per_second(boxes.timeline)
    gaps = "".join(
        f"M{x:.1f} {y:g}v{tall:g}" for x, y in zip(left.tolist(), (boxes.device * row + top).tolist(), strict=True)
    )
    between = f'<path d="{gaps}" stroke="{LIGHT.paper}" fill="none"/>'
    return "".join([*fills, between, *marks, '<g text-anchor="middle">', *numbers, "</g>"])


def _marks(boxes: Boxes, mine: np.ndarray, row: float, across: tuple[float, float], colour: str) -> str:
    """Return a path of the marks of later stages and of the other direction."""
    thick, inset = scale.mark_bar(across[1])
    wide = boxes.length[mine] * _pixels_per_second(boxes.timeline)
    left = _LEFT + boxes.start[mine] * _pixels_per_second(boxes.timeline) + 1
    long = scale.mark_length(boxes.local[mine], boxes.locals, wide) * (wide - 2)
    top = boxes.device[mine] * row + across[0]
    bars = []
    for shown, length, y in (
        (boxes.local[mine] > 0, long, top + across[1] - inset - thick),
        (boxes.reverse[mine], wide - 2, top + inset),
    ):
        places = zip(left[shown].tolist(), length[shown].tolist(), y[shown].tolist(), strict=True)
        bars += [f"M{x:.1f} {above:g}h{bar:.1f}v{thick}h-{bar:.1f}z" for x, bar, above in places]
    return f'<path d="{"".join(bars)}" fill="{colour}"/>' if bars and across[1] >= scale.LOWEST_MARK else ""


def _numbers(boxes: Boxes, mine: np.ndarray, half: int, row: float, bands: list[tuple[float, float]]) -> str:
    """Return the numbers that fit into their boxes."""
    parts, per_second = [], _pixels_per_second(boxes.timeline)
    kinds = boxes.kinds_of_parts(half)
    for box, (top, tall) in zip(mine.tolist(), bands, strict=True):
        word = boxes.number(int(boxes.row[box]) + half * bool(boxes.slot[box]))
        wide = np.array(boxes.length[box] * per_second)
        if not scale.fitting_numbers(np.array(len(word)), wide, tall):
            continue
        size, (thick, inset) = float(scale.number_size(wide, tall)), scale.mark_bar(tall)
        shift = 0.4 * (thick + inset) * (float(boxes.reverse[box]) - float(boxes.local[box] > 0))
        x = _LEFT + (boxes.start[box] + boxes.length[box] / 2) * per_second
        y = boxes.device[box] * row + top + tall / 2 + size * 0.36 + shift
        ink = LIGHT.on[Kind(int(kinds[box]))]
        parts.append(f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size:g}" fill="{ink}">{word}</text>')
    return "".join(parts)


def _lanes(boxes: Boxes, row: float) -> str:
    """Return one path per lane."""
    return "".join(
        _path(lane, np.arange(len(lane)), row, _across(boxes, lane_edges(lane, boxes.lanes), row),
              LIGHT.lanes[lane.sort], _pixels_per_second(boxes.timeline))
        for lane in boxes.lanes
    )  # fmt: skip


def _across(boxes: Boxes, edges: tuple[float, float], row: float) -> tuple[float, float]:
    """Return top and height of a band in pixels within a row."""
    whole = row - _gap(boxes, row * boxes.timeline.schedule.devices)
    top, bottom = (part * whole for part in part_of_row(edges))
    return round(top, 1), round(bottom - top, 1)


def _path(
    spans: Spans, mine: np.ndarray, row: float, across: tuple[float, float], colour: str, per_second: float
) -> str:  # fmt: skip
    """Return a path with a rectangle for each span of `mine` (indices), all in one colour."""
    (top, tall), left = across, _LEFT + spans.start[mine] * per_second
    wide = np.maximum(spans.length[mine] * per_second, 0.5)
    rectangles = zip(left.tolist(), (spans.device[mine] * row + top).tolist(), wide.tolist(), strict=True)
    outline = "".join(f"M{x:.1f} {y:g}h{width:.1f}v{tall:g}h-{width:.1f}z" for x, y, width in rectangles)
    return f'<path d="{outline}" fill="{colour}"/>'


def _pixels_per_second(timeline: TimelineColumns) -> float:
    return _CHART / makespan(timeline) if makespan(timeline) > 0 else 0.0


def _device_names(boxes: Boxes, row: float) -> str:
    labels = device_labels(boxes.timeline, "device")
    names = (
        f'<text x="{_LEFT - 6}" y="{device * row + row / 2 + 4:g}">{html.escape(labels[device])}</text>'
        for device in range(0, len(labels), scale.device_steps(row))
    )
    return f'<g text-anchor="end">{"".join(names)}</g>'


def _axis(makespan: float, top: int) -> str:
    unit = time_unit(makespan)
    ticks = scale.round_ticks(makespan * unit.factor, 10)
    places = _LEFT + ticks / (makespan * unit.factor or 1.0) * _CHART
    marks = "".join(f"M{place:.1f} {top}v4" for place in places)
    numbers = "".join(
        f'<text x="{min(place, _WIDTH - 14):.1f}" y="{top + 15}">{scale.number_text(tick)}</text>'
        for place, tick in zip(places.tolist(), ticks.tolist(), strict=True)
    )
    name = f'<text x="{(_WIDTH + _LEFT) / 2:g}" y="{top + 29}">time ({unit.symbol})</text>'
    return (
        f'<path d="M{_LEFT} {top}h{_CHART}{marks}" stroke="{LIGHT.edge}" fill="none"/>'
        f'<g text-anchor="middle">{numbers}{name}</g>'
    )


def _legend(boxes: Boxes, usual: float) -> str:
    """Return the legend; boxes narrower than two pixels have no marks, and mix their colours."""
    is_mixed = usual < 2
    entries = [entry for entry in legend_entries([boxes]) if not (is_mixed and entry.sort in ("stage", "reverse"))]
    texts = [
        f'<span style="white-space:nowrap;margin-right:12px"><span style="display:inline-block;width:11px;height:11px;'
        f'{_swatch(entry)}"></span> {html.escape(entry.text)}</span>'
        for entry in entries
    ]
    return " ".join([*texts, *["narrow actions mix their colours"] * is_mixed])


def _swatch(entry: LegendEntry) -> str:
    """Return the style of an entry's swatch."""
    kinds = LIGHT.kinds
    if entry.sort == "slot":
        return f"background:linear-gradient({kinds[Kind.F]} 50%,{kinds[Kind.B]} 50%)"
    if entry.sort == "lane" and entry.lane is not None:
        return f"background:{LIGHT.lanes[entry.lane]}"
    if entry.kind is None:
        return f"background:{LIGHT.idle if entry.sort == 'idle' else LIGHT.edge}"
    side = {"stage": "inset 0 -3px", "reverse": "inset 0 3px"}.get(entry.sort)
    shadow = f";box-shadow:{side} {LIGHT.on[entry.kind]}" if side else ""
    return f"background:{kinds[entry.kind]}{shadow}"
