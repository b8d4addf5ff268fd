"""HTML for notebooks: a timeline as the viewer, or as a picture where no scripts run; its ledger as a table."""

from __future__ import annotations

import hashlib
import html
import json
from itertools import pairwise
from typing import Any

import numpy as np

from ppsim.actions import Kind
from ppsim.analysis.bubbles import makespan
from ppsim.analysis.ledger import CAUSES, LedgerColumns, ledger_parts
from ppsim.base.tables import html_table
from ppsim.base.units import time_unit
from ppsim.plots import scale
from ppsim.plots.boxes import Boxes, LegendEntry, device_labels, halves, legend_entries, make_boxes, title_text
from ppsim.plots.lanes import Spans, lane_edges, part_of_row
from ppsim.plots.page_data import measures_line
from ppsim.plots.palette import DARK, FONT, LIGHT, ONLY_DARK, ONLY_LIGHT, Html, notebook_theme, reader_style
from ppsim.plots.pixels import PixelColumns, median_box, picture, png_address
from ppsim.plots.viewer import viewer_html
from ppsim.timeline import TimelineColumns

_WIDTH, _LEFT, _AXIS = 960, 62, 34  # pixels
_CHART = _WIDTH - _LEFT - 8  # pixels from the first start to the last end
_ROWS, _MAX_ROW, _MAX_DIVIDED_ROW = 480, 24, 32  # pixels: all rows; maximum of a row, and of one with lanes or halves
_MAX_BOXES, _NARROWEST = 2_000, 3.0  # more boxes, or narrower ones (pixels), are an image
_FRAME_ROW, _FRAME_MAX_ROWS, _FRAME_REST = 44, 480, 270  # pixels of the frame: a row, limit of all rows, the rest
_BAR = 120  # pixels of the longest bar of a ledger
_SCRIPT = (
    '<script>(() => {{ const box = document.getElementById("{name}"); if (!box) return; '
    'const frame = document.createElement("iframe"); frame.sandbox = "allow-scripts"; frame.title = "Gantt chart"; '
    'frame.style = "width:calc(100% + 12px);margin-left:-12px;height:{height}px;border:0"; '
    "frame.srcdoc = {page}; {follow}"
    "box.replaceChildren(frame); }})()</script>"
)
_FOLLOW = (  # the theme of the still picture, which is that of the page around it
    f'const dark = getComputedStyle(box).getPropertyValue("--pp-paper").trim() === "{DARK.paper}"; '
    'const theme = dark ? "dark" : "light"; '
    'frame.srcdoc = frame.srcdoc.replace("\\"framed\\": true", `"framed": true, "theme": "${theme}"`); '
)


def timeline_html(timeline: TimelineColumns, theme: str | None = None) -> Html:
    """Return chart and headline measures of a timeline as self-contained HTML, in a theme or that of its reader.

    A script puts the viewer, in a frame without access to the notebook, in the place of the still picture.
    """
    boxes = make_boxes(timeline)
    page = json.dumps(viewer_html(boxes, framed=True, theme=theme)).replace("<", "\\u003c")
    name = f"ppsim-{hashlib.sha256(page.encode()).hexdigest()[:12]}"
    height = min(timeline.schedule.devices * _FRAME_ROW, _FRAME_MAX_ROWS) + _FRAME_REST
    still = _Still(boxes, theme).html()
    follow = "" if theme else _FOLLOW
    return Html(
        f'{reader_style(still)}<div style="font:12px {FONT}"><b>{html.escape(title_text(timeline))}</b><br>'
        f'{html.escape(measures_line(timeline))}<div id="{name}">{still}</div>'
        f"{_SCRIPT.format(name=name, height=height, page=page, follow=follow)}</div>"
    )


def ledger_html(found: LedgerColumns) -> Html:
    """Return a ledger as a table with a bar of causes per device; what the causes mean is folded."""
    (heads, *rows), notes = ledger_parts(found)
    if not notes:
        return Html(heads[0])
    causes, colours = heads[1:-1], notebook_theme(None).causes
    ends = np.cumsum([[float(cell.replace(",", "")) for cell in row[1:-1]] for row in rows[:-2]], axis=1)  # no sums
    ends = np.pad(np.round(ends * _BAR / ends.max(), 1), ((0, 0), (1, 0)))
    table = html_table([heads[0], "", *heads[1:]], [[row[0], "bar" * (row in rows[:-2]), *row[1:]] for row in rows])
    for cause in causes:
        swatch = f'<i style="display:inline-block;width:10px;height:10px;background:{colours[cause]}"></i>'
        table = table.replace(
            f">{cause}<", f' title="{CAUSES[cause]}"><span style="white-space:nowrap">{swatch} {cause}</span><'
        )
    for places in ends.tolist():
        parts = [
            f"{colours[cause]} {x}px {y}px" for cause, (x, y) in zip(causes, pairwise(places), strict=True) if x < y
        ]
        bar = f"width:{places[-1]}px;height:12px;background:linear-gradient(90deg,{','.join(parts)})"
        table = table.replace(">bar<", f'><i style="display:block;{bar}"></i><', 1)
    words = html.escape("\n".join(notes))
    fold = f"<details><summary>what the causes mean, and who waits for whom</summary><pre>{words}</pre></details>"
    return Html(reader_style(table) + table + fold)


class _Still:
    """An SVG of the rows, an axis and a legend, which needs no script: boxes, the theme, and sizes in pixels."""

    def __init__(self, boxes: Boxes, theme: str | None):
        self.boxes, self.theme, self.follows = boxes, notebook_theme(theme), theme is None
        self.last = makespan(boxes.timeline)
        self.second = _CHART / self.last if self.last > 0 else 0.0
        self.usual = median_box(boxes) * self.second
        self.devices = boxes.timeline.schedule.devices
        row = float(np.clip(_ROWS / self.devices, 1, _MAX_DIVIDED_ROW if boxes.divided else _MAX_ROW))
        self.row = float(round(row)) if row >= scale.LOWEST_MARK else row
        self.boxes = boxes.in_rows(self.row)
        self.tall = round(self.devices * self.row)
        self.gap = scale.row_gap(self.row, self.usual)

    def html(self) -> str:
        """Return the picture and its legend."""
        boxes = self.boxes
        is_image = len(boxes) > _MAX_BOXES or self.usual < _NARROWEST or (boxes.plain and bool(boxes.slot.any()))
        rows = self._images() if is_image else self._ground() + self._boxes() + self._lanes()
        return (
            f'<svg viewBox="0 0 {_WIDTH} {self.tall + _AXIS}" width="{_WIDTH}" height="{self.tall + _AXIS}" '
            f'xmlns="http://www.w3.org/2000/svg" style="max-width:100%;margin:6px 0 2px;background:{self.theme.paper}" '
            f'font-family="{FONT}" font-size="11" fill="{self.theme.text}" role="img" aria-label="Gantt chart">'
            f"{rows}{self._device_names()}{self._axis()}</svg><br>{self._legend()}"
        )

    def _images(self) -> str:
        """Return the rows as an image, in which every pixel is the mean of what it covers; one per paper to follow."""
        shown = ((LIGHT, ONLY_LIGHT), (DARK, ONLY_DARK)) if self.follows else ((self.theme, ""),)
        columns = PixelColumns(0.0, self.last or 1.0, _CHART)
        images = ((picture(self.boxes, theme, columns, self.tall, gap=self.gap), style) for theme, style in shown)
        place = f'x="{_LEFT}" y="0" width="{_CHART}" height="{self.tall}"'
        return "".join(f'<image {place} style="{style}" href="{png_address(image)}"/>' for image, style in images)

    def _ground(self) -> str:
        """Return a band of idle time per device."""
        top, tall = self._across(self.boxes.band)
        return self._bars(_LEFT, np.arange(self.devices) * self.row + top, _CHART, tall, self.theme.idle)

    def _boxes(self) -> str:
        """Return one path per kind, one for the gaps, then the marks and numbers."""
        boxes, fills, marks = self.boxes, [], []
        for kind, mine, band in boxes.parts(boxes.length > 0):
            across = self._across(band)
            fills.append(self._rectangles(boxes, mine, across, self.theme.kinds[kind]))
            marks.append(self._marks(mine, across, self.theme.on[kind]))
        top, tall = self._across(boxes.band)
        places = zip(
            (_LEFT + boxes.start * self.second).tolist(), (boxes.device * self.row + top).tolist(), strict=True
        )
        gaps = "".join(f"M{x:.1f} {y:g}v{tall:g}" for x, y in places)
        between = f'<path d="{gaps}" stroke="{self.theme.paper}" fill="none"/>'
        numbers = self._numbers(0) + self._numbers(1)
        return "".join([*fills, between, *marks, f'<g text-anchor="middle">{numbers}</g>'])

    def _marks(self, mine: np.ndarray, across: tuple[float, float], colour: str) -> str:
        """Return a path of the marks of later stages and of the other direction."""
        boxes, (thick, inset) = self.boxes, scale.mark_bar(across[1])
        wide = boxes.length[mine] * self.second
        left = _LEFT + boxes.start[mine] * self.second + 1
        long = scale.mark_length(boxes.local[mine], boxes.locals, wide) * (wide - 2)
        top, later, other = boxes.device[mine] * self.row + across[0], boxes.local[mine] > 0, boxes.reverse[mine]
        if across[1] < scale.LOWEST_MARK:
            return ""
        low = self._bars(left[later], top[later] + across[1] - inset - thick, long[later], thick, colour)
        return low + self._bars(left[other], top[other] + inset, wide[other] - 2, thick, colour)

    def _numbers(self, half: int) -> str:
        """Return the numbers of the kinds that show them; in grey, after the letter of the kind if both fit."""
        parts, boxes = [], self.boxes
        found = boxes.numbers(self.second, self._across(boxes.band)[1], lettered=self.theme.name == "grey")
        mine = np.flatnonzero((boxes.length > 0) & (boxes.slot if half else True))
        for box, kind in zip(mine.tolist(), boxes.kinds_of_parts(half)[mine].tolist(), strict=True):
            is_slot, long = bool(boxes.slot[box]), boxes.length[box] * self.second
            top, tall = self._across(halves(boxes.band)[half] if is_slot else boxes.band)
            number = boxes.number(int(boxes.row[box]) + half * is_slot)
            sizes, before = found[Kind(kind), is_slot] if found else ([], "")
            if not len(sizes) or not (size := sizes[box]):
                continue
            thick, inset = scale.mark_bar(tall)
            shift = 0.4 * (thick + inset) * (float(boxes.reverse[box]) - float(boxes.local[box] > 0))
            x, y = _LEFT + boxes.start[box] * self.second + long / 2, boxes.device[box] * self.row + top + tall / 2
            place = f'x="{x:.1f}" y="{y + size * 0.36 + shift:.1f}" font-size="{size:g}"'
            parts.append(f'<text {place} fill="{self.theme.on[Kind(kind)]}">{before}{number}</text>')
        return "".join(parts)

    def _lanes(self) -> str:
        """Return one path per lane."""
        lanes = self.boxes.lanes
        bands = [self._across(lane_edges(lane, lanes)) for lane in lanes]
        return "".join(
            self._rectangles(lane, np.arange(len(lane)), band, self.theme.lanes[lane.sort])
            for lane, band in zip(lanes, bands, strict=True)
        )

    def _across(self, edges: tuple[float, float]) -> tuple[float, float]:
        """Return top and height of a band in pixels within a row."""
        top, bottom = (part * (self.row - self.gap) for part in part_of_row(edges))
        return round(top, 1), round(bottom - top, 1)

    def _rectangles(self, spans: Spans, mine: np.ndarray, across: tuple[float, float], colour: str) -> str:
        """Return a path with a rectangle for each span of `mine` (indices), all in one colour."""
        wide = np.maximum(spans.length[mine] * self.second, 0.5)
        top = spans.device[mine] * self.row + across[0]
        return self._bars(_LEFT + spans.start[mine] * self.second, top, wide, across[1], colour)

    def _bars(self, left: Any, top: np.ndarray, wide: Any, tall: float, colour: str) -> str:
        """Return a path of rectangles of one height and colour; empty without any."""
        places = zip(*(part.tolist() for part in np.broadcast_arrays(left, top, wide)), strict=True)
        outline = "".join(f"M{x:.1f} {y:g}h{width:.1f}v{tall:g}h-{width:.1f}z" for x, y, width in places)
        return f'<path d="{outline}" fill="{colour}"/>' if outline else ""

    def _device_names(self) -> str:
        labels = device_labels(self.boxes.timeline, "device")
        names = (
            f'<text x="{_LEFT - 6}" y="{(device + 0.5) * self.row + 4:g}">{html.escape(labels[device])}</text>'
            for device in range(0, len(labels), scale.device_steps(self.row))
        )
        return f'<g text-anchor="end">{"".join(names)}</g>'

    def _axis(self) -> str:
        unit, top = time_unit(self.last), self.tall
        ticks = scale.round_ticks(self.last * unit.factor, 10)
        places = (_LEFT + ticks / (self.last * unit.factor or 1.0) * _CHART).tolist()
        marks = "".join(f"M{place:.1f} {top}v4" for place in places)
        numbers = "".join(
            f'<text x="{min(place, _WIDTH - 14):.1f}" y="{top + 15}">{scale.number_text(tick)}</text>'
            for place, tick in zip(places, ticks.tolist(), strict=True)
        )
        name = f'<text x="{(_WIDTH + _LEFT) / 2:g}" y="{top + 29}">time ({unit.symbol})</text>'
        line = f'<path d="M{_LEFT} {top}h{_CHART}{marks}" stroke="{self.theme.edge}" fill="none"/>'
        return f'{line}<g text-anchor="middle">{numbers}{name}</g>'

    def _legend(self) -> str:
        """Return the legend; boxes narrower than two pixels have no marks, and mix their colours."""
        is_mixed = self.usual < 2
        texts = [
            f'<span style="white-space:nowrap;margin-right:12px"><svg width="12" height="12" aria-hidden="true">'
            f"{self._swatch(entry)}</svg> {html.escape(entry.text)}</span>"
            for entry in legend_entries([self.boxes])
            if not (is_mixed and entry.sort in ("stage", "reverse"))
        ]
        return " ".join([*texts, *["narrow actions mix their colours"] * is_mixed])

    def _swatch(self, entry: LegendEntry) -> str:
        return "".join(
            f'<rect x="{x}" y="{y}" width="{wide}" height="{tall}" fill="{colour}"/>'
            for x, y, wide, tall, colour in entry.swatch(self.theme)
        )
