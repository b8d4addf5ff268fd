"""HTML for notebooks: a timeline as the viewer, or as a picture where no scripts run; its ledger as a table."""

from __future__ import annotations

import hashlib
import html
import json
from itertools import pairwise
from typing import Any

import numpy as np

from ppsim.analysis.ledger import LedgerColumns, ledger_parts
from ppsim.base.tables import Html, html_table
from ppsim.plots.boxes import make_boxes
from ppsim.plots.gantt import draw
from ppsim.plots.palette import notebook_theme, reader_style
from ppsim.plots.viewer import viewer_html
from ppsim.timeline import TimelineColumns

_FRAME_ROW, _FRAME_MAX_ROWS, _FRAME_REST = 44, 480, 270  # pixels of the frame: a row, limit of all rows, the rest
_BAR = 240  # pixels of the longest bar of a ledger
_SMALL = 0.005  # of all idle time: causes of less share a column
_SCRIPT = (
    '<script>(() => {{ const box = document.getElementById("{name}"); if (!box) return; '
    'const frame = document.createElement("iframe"); frame.sandbox = "allow-scripts"; frame.title = "Gantt chart"; '
    'frame.style = "width:calc(100% + 12px);margin-left:-12px;height:{height}px;border:0"; '
    "frame.srcdoc = {page}; {follow}"
    "box.replaceChildren(frame); }})()</script>"
)
_FOLLOW = (  # the theme of the still picture, which is that of the page around it
    'const dark = getComputedStyle(box).getPropertyValue("--pp-dark").trim() === "1"; '
    'const theme = dark ? "dark" : "light"; '
    'frame.srcdoc = frame.srcdoc.replace("\\"framed\\": true", `"framed": true, "theme": "${theme}"`); '
)


def timeline_html(timeline: TimelineColumns, theme: str | None = None) -> Html:
    """Return a timeline's chart as self-contained HTML, in a theme or that of its reader.

    A script puts the viewer, in a frame without access to the notebook, in the place of the still picture.
    """
    page = json.dumps(viewer_html(make_boxes(timeline), framed=True, theme=theme)).replace("<", "\\u003c")
    name = f"ppsim-{hashlib.sha256(page.encode()).hexdigest()[:12]}"
    height = min(timeline.schedule.devices * _FRAME_ROW, _FRAME_MAX_ROWS) + _FRAME_REST
    still: Any = draw(timeline, theme=theme)
    script = _SCRIPT.format(name=name, height=height, page=page, follow="" if theme else _FOLLOW)
    return Html(f'<div id="{name}">{still.to_svg()}</div>{script}')


def ledger_html(found: LedgerColumns) -> Html:
    """Return a ledger as a table with a bar of causes per device; what the causes mean is folded."""
    (heads, *rows), notes = ledger_parts(found, _SMALL)
    if not notes:
        return Html(heads[0])
    causes, theme = heads[1:-1], notebook_theme(None)
    colours = {cause: theme.causes.get(cause, theme.quiet) for cause in causes}
    ends = np.cumsum([[float(cell.replace(",", "")) for cell in row[1:-1]] for row in rows[:-2]], axis=1)  # no sums
    ends = np.pad(np.round(ends * _BAR / ends.max(), 1), ((0, 0), (1, 0)))
    for row, places in zip(rows, [*ends.tolist(), [], []], strict=True):
        parts = [
            f"{colours[cause]} {x}px {y}px" for cause, (x, y) in zip(causes, pairwise(places), strict=False) if x < y
        ]
        bar = f"width:{max(places, default=0)}px;height:12px;background:linear-gradient(90deg,{','.join(parts)})"
        row.insert(1, Html(f'<i style="display:block;{bar}"></i>' * bool(parts)))
    swatch = '<i style="display:inline-block;width:10px;height:10px;background:'
    named = (
        Html(f'<span style="white-space:nowrap">{swatch}{colours[cause]}"></i> {cause}</span>') for cause in causes
    )
    table = html_table([heads[0], "", *named, heads[-1]], rows)
    words = html.escape("\n".join(notes))
    fold = f"<details><summary>what the causes mean, and who waits for whom</summary><pre>{words}</pre></details>"
    return Html(reader_style(table) + table + fold)
