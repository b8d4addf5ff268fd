"""Large timelines as one small HTML file: compressed columns and a script that draws what is looked at."""

from __future__ import annotations

import base64
import html
import json
import zlib
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from ppsim.actions import Kind
from ppsim.analysis.bubbles import makespan
from ppsim.analysis.measures import shown_in
from ppsim.plots import palette
from ppsim.plots.beside import LANE_GROUND, STEPS, Beside, lane, part_of_row
from ppsim.plots.boxes import TRANSFER, Boxes, kind_letter, second_cue, sizes_text
from ppsim.plots.shares import bin_seconds

if TYPE_CHECKING:
    from ppsim.timeline import TimelineColumns

_TICKS = 2**32 - 1  # of the makespan; times in the file are rounded to one, 2e-10 of the makespan
_CAUSES = ("nothing", "device", "transfer", "sending")  # in the order of the codes of ppsim.plots.boxes


def viewer_html(boxes: Boxes) -> str:
    """A page that shows the boxes without any library: overview from afar, exact boxes and hover near by."""
    columns = _columns(boxes)
    packed = zlib.compress(b"".join(_planes(*entry) for entry in columns), 9)
    about = _about(boxes) | {"columns": [[name, len(column), size, summed] for name, column, size, summed in columns]}
    page = files("ppsim.plots").joinpath("viewer.html").read_text(encoding="utf-8")
    replacements = {
        "@TITLE@": html.escape(sizes_text(boxes.timeline.schedule)),
        "@ABOUT@": json.dumps(about).replace("<", "\\u003c"),
        "@COLUMNS@": base64.b64encode(packed).decode(),
    }
    for place, text in replacements.items():
        page = page.replace(place, text, 1)
    return page


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
        "cue": second_cue(timeline.schedule),
        "causes": _CAUSES,
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
        "kinds": [_kind(kind, boxes.shades) for kind in boxes.kinds],
    }


def _kind(kind: Kind, shades: int) -> dict[str, Any]:
    colours = [palette.shade_colour(kind, shade, shades) for shade in range(shades)]
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
    start = np.rint(boxes.start * per_second)
    length = np.maximum(np.rint(boxes.end * per_second) - start, boxes.length > 0)
    code = np.zeros(len(Kind), np.int64)
    code[boxes.kinds] = np.arange(len(boxes.kinds))
    cause, needed = boxes.waited
    box_of_row = np.searchsorted(boxes.row, np.arange(len(schedule.kind)), side="right") - 1
    back = np.where(cause == TRANSFER, box_of_row[needed] - np.arange(len(boxes)), 0)
    columns = [
        ("offsets", boxes.offsets, 4, True),
        ("start", start, 4, True),
        ("length", length, 4, False),
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
        columns += _beside_columns(part, schedule.devices, per_second)
    return columns


def _beside_columns(part: Beside, devices: int, per_second: float) -> list[tuple[str, np.ndarray, int, bool]]:
    start = np.rint(part.start * per_second)
    return [
        (f"{part.sort} offsets", np.searchsorted(part.device, np.arange(devices + 1)), 4, True),
        (f"{part.sort} start", start, 4, True),
        (f"{part.sort} length", np.maximum(np.rint(part.end * per_second) - start, 1), 4, False),
        (f"{part.sort} stage", np.maximum(part.stage, 0), 4, True),
    ]


def _planes(name: str, column: np.ndarray, size: int, summed: bool) -> bytes:
    """The values (or their differences, modulo 2**32) byte plane by byte plane, low bytes first: this packs well."""
    values = column.astype(np.int64)
    if summed:
        values = np.diff(values, prepend=0)
    planes = (values & 0xFFFFFFFF).astype("<u4").view(np.uint8).reshape(-1, 4)[:, :size]
    return np.ascontiguousarray(planes.T).tobytes()
