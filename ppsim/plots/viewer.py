"""Timelines of any size as one small HTML page: compressed columns, and a script that draws the visible part."""

from __future__ import annotations

import base64
import html
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from os import PathLike

from ppsim.base.errors import ConfigError
from ppsim.base.files import write_atomically
from ppsim.plots import palette
from ppsim.plots.boxes import Boxes, make_boxes, title_text, without_repeated_names
from ppsim.plots.lanes import LANE_GROUND
from ppsim.plots.page_data import page_data
from ppsim.timeline import TimelineColumns

SHOWN = ("memory",)  # parts that a new page shows in addition to the actions
_SCRIPTS = ("data.js", "words.js", "time.js", "draw.js", "shares.js", "marks.js", "controls.js", "viewer.js")
_COLOURS = {
    "IDLE": palette.IDLE, "IDLE_DARK": palette.IDLE_DARK, "LANE": LANE_GROUND, "CRITICAL": palette.CRITICAL,
    "HATCH": palette.IDLE_HATCH, "HATCH_DARK": palette.IDLE_HATCH_DARK,
    "FORWARD": palette.TRANSFER_FORWARD, "BACKWARD": palette.TRANSFER_BACKWARD, "INK": palette.INK,
    "BUSY": ", ".join(palette.BUSY), "BUSY_DARK": ", ".join(palette.BUSY_DARK),
}  # fmt: skip


def save_html(
    timelines: TimelineColumns | Sequence[TimelineColumns],
    path: str | PathLike[str],
    titles: Sequence[str] | None = None,
    *,
    shown: Sequence[str] = SHOWN,
) -> None:
    """Write, atomically, a page that shows timelines offline in any browser of 2023 or later.

    Several timelines share one time axis, one below the other. `titles` has one title each (default: names and sizes).
    Hover shows action, device, times and what it waited for; a click follows the waits back to the start. The page
    opens with the parts in `shown`: "transfers", "critical" (critical path), "memory", "ledger" (idle time by cause).
    Raises ConfigError for no timelines, another number of titles, or a file that cannot be written.
    """
    every = [timelines] if isinstance(timelines, TimelineColumns) else list(timelines)
    if not every or (titles is not None and len(titles) != len(every)):
        raise ConfigError(f"a page of {len(every)} timelines and {len(titles or [])} titles; give one title each")
    write_atomically(path, viewer_html(*map(make_boxes, every), titles=titles, shown=shown))


def viewer_html(
    *every: Boxes, titles: Sequence[str] | None = None, framed: bool = False, shown: Sequence[str] = SHOWN
) -> str:
    """Return the page of `save_html`.

    `framed`: another page shows it in a frame, with name and measures; the wheel scrolls that page until a click.
    """
    timelines = [boxes.timeline for boxes in every]
    titles = titles or [title_text(timeline) for timeline in without_repeated_names(timelines)]
    charts = [page_data(boxes, title) for boxes, title in zip(every, titles, strict=True)]
    names = [timeline.schedule.name for timeline in timelines]
    several = ", ".join(names) if len(names) < 5 else f"{len(names)} schedules"
    title = charts[0]["title"] if len(charts) == 1 else several
    return filled(
        "viewer.html",
        {
            "TITLE": html.escape(title),
            "OPTIONS": json.dumps({"framed": framed, "on": list(shown)}),
            "CHARTS": json.dumps(charts).replace("<", "\\u003c"),
            "STYLE": style(),
            "SCRIPT": base64.b64encode(zlib.compress(script().encode(), 9)).decode(),
        },
    )


def style() -> str:
    """Return the style sheet of the viewer, for all pages that contain one."""
    return filled("viewer.css", _COLOURS)


@cache
def script() -> str:
    """Return the script that defines `startViewer`, for all pages that contain a viewer."""
    parts = "".join(_read(name) for name in _SCRIPTS)
    return f'const startViewer = (() => {{\n"use strict";\n{parts}return startViewer;\n}})();\n'


def filled(name: str, parts: Mapping[str, str]) -> str:
    """Return a file of the page with every @NAME@ replaced, in one pass: a replacement may contain such a name."""
    return re.sub(f"@({'|'.join(parts)})@", lambda place: parts[place[1]], _read(name))


def _read(name: str) -> str:
    return files("ppsim.plots").joinpath("page", name).read_text(encoding="utf-8")
