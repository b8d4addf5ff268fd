"""Timelines of any size as one small HTML file: compressed columns and a script that draws what is looked at."""

from __future__ import annotations

import base64
import html
import json
import re
import zlib
from importlib.resources import files
from os import PathLike
from typing import Any

import numpy as np

from ppsim.actions import Kind
from ppsim.analysis.bubbles import makespan
from ppsim.analysis.measures import shown_in
from ppsim.base.files import write_atomically
from ppsim.plots import palette
from ppsim.plots.beside import LANE_GROUND, STEPS, Spans, lane, part_of_row
from ppsim.plots.boxes import TRANSFER, Boxes, kind_letter, legend_entries, make_boxes, sizes_text
from ppsim.plots.shares import bin_seconds
from ppsim.timeline import TimelineColumns

_TICKS = 2**32 - 1  # of the makespan; times in the file are rounded to one, 2e-10 of the makespan
_CAUSES = ("nothing", "device", "transfer", "sending")  # in the order of the codes of ppsim.plots.boxes


def save_html(timeline: TimelineColumns, path: str | PathLike[str]) -> None:
    """Write a page that shows the timeline in any browser of 2023 or later, offline; it appears whole or not at all.

    Hover tells action, device, times and what it waited for; wheel, drag and keys move; the legend hides kinds.
    Raises ConfigError where the file cannot be written.
    """
    write_atomically(path, viewer_html(make_boxes(timeline)))


def viewer_html(boxes: Boxes, framed: bool = False) -> str:
    """The page of `save_html`.

    Within the frame of another page (`framed`) it leaves name and measures to that page, and the wheel until clicked.
    """
    columns = _columns(boxes)
    packed = zlib.compress(b"".join(_planes(*entry) for entry in columns), 9)
    about = _about(boxes) | {"columns": [[name, len(column), size, summed] for name, column, size, summed in columns]}
    if framed:
        about |= {"title": "", "measures": "", "framed": True}
    parts = {
        "TITLE": html.escape(sizes_text(boxes.timeline.schedule)),
        "ABOUT": json.dumps(about).replace("<", "\\u003c"),
        "COLUMNS": base64.b64encode(packed).decode(),
    }
    page = files("ppsim.plots").joinpath("viewer.html").read_text(encoding="utf-8")
    return re.sub("@(TITLE|ABOUT|COLUMNS)@", lambda place: parts[place[1]], page)


def measures_line(timeline: TimelineColumns) -> str:
    """The headline measures in one line."""
    parts = [measure.phrase(timeline) for measure in shown_in("notebook")]
    return " · ".join([*parts, f"transport {timeline.transport}", f"engine {timeline.engine}"])


def _about(boxes: Boxes) -> dict[str, Any]:
    timeline = boxes.timeline
    return {
        "title": sizes_text(timeline.schedule),
        "measures": measures_line(timeline),
        "devices": timeline.schedule.devices,
        "makespan": makespan(timeline),
        "tick": makespan(timeline) / _TICKS,
        "bin": bin_seconds(boxes),
        "idle": palette.IDLE,
        "laneGround": LANE_GROUND,
        "legend": legend_entries([boxes]),
        "causes": _CAUSES,
        "numbering": "slice" if timeline.schedule.slices > 1 else "microbatch",
        "instants": bool(np.any(boxes.length == 0)),
        "band": part_of_row(boxes.band),
        "beside": [
            {
                "sort": part.sort,
                "title": part.title,
                "colour": part.colour,
                "ink": palette.label_colour(part.colour),
                "lane": part_of_row(lane(part, boxes.beside)),
                "name": part.name(0).lstrip("-0123456789"),
                "staged": part.sort != STEPS,
            }
            for part in boxes.beside
        ],
        "kinds": [_kind(kind, boxes.colours[kind].tolist()) for kind in boxes.kinds],
    }


def _kind(kind: Kind, colours: list[str]) -> dict[str, Any]:
    return {
        "letter": kind_letter(kind),
        "title": palette.TITLES[kind],
        "slot": kind == Kind.OVERLAP_F_B,
        "colours": colours,
        "inks": [palette.label_colour(colour) for colour in colours],
    }


def _columns(boxes: Boxes) -> list[tuple[str, np.ndarray, int, bool]]:
    """Name, values, bytes a value, and whether the file holds differences, of each column."""
    schedule = boxes.timeline.schedule
    per_second = _TICKS / makespan(boxes.timeline) if makespan(boxes.timeline) > 0 else 0.0
    code = np.zeros(len(Kind), np.int64)
    code[boxes.kinds] = np.arange(len(boxes.kinds))
    cause, needed = boxes.waited
    box_of_row = np.searchsorted(boxes.row, np.arange(len(schedule.kind)), side="right") - 1
    back = np.where(cause == TRANSFER, box_of_row[needed] - np.arange(len(boxes)), 0)
    columns = [
        *_times("", boxes, schedule.devices, per_second),
        ("kind", code[boxes.kind], 1, False),
        ("shade", boxes.shade, 2, False),
        ("stage", boxes.stage, 4, True),
        ("microbatch", boxes.microbatch, 4, True),
        ("cause", cause, 1, False),
        ("needed", back, 4, True),
    ]
    if boxes.slot.any():
        other = np.minimum(boxes.row + 1, len(schedule.kind) - 1)
        columns += [
            ("forward_first", schedule.kind[boxes.row] == Kind.F, 1, False),
            ("other_stage", schedule.stage[other], 4, True),
            ("other_microbatch", schedule.microbatch[other], 4, True),
        ]
    for part in boxes.beside:
        columns += _times(f"{part.sort} ", part, schedule.devices, per_second)
        columns.append((f"{part.sort} stage", np.maximum(part.stage, 0), 4, True))
    return columns


def _times(before: str, spans: Spans, devices: int, per_second: float) -> list[tuple[str, np.ndarray, int, bool]]:
    """Which spans are a device's, and their times; what takes time takes a tick at least."""
    start = np.rint(spans.start * per_second)
    length = np.maximum(np.rint(spans.end * per_second) - start, spans.length > 0)
    return [
        (f"{before}offsets", np.searchsorted(spans.device, np.arange(devices + 1)), 4, True),
        (f"{before}start", start, 4, True),
        (f"{before}length", length, 4, False),
    ]


def _planes(name: str, column: np.ndarray, size: int, summed: bool) -> bytes:
    """The values (or their differences, modulo 2**32) byte plane by byte plane, low bytes first: this packs well."""
    values = column.astype(np.int64)
    if summed:
        values = np.diff(values, prepend=0)
    planes = (values & 0xFFFFFFFF).astype("<u4").view(np.uint8).reshape(-1, 4)[:, :size]
    return np.ascontiguousarray(planes.T).tobytes()
