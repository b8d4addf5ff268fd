"""HTML for notebooks: a timeline as the viewer, or as a picture where no scripts run; its ledger as a table."""

from __future__ import annotations

import hashlib
import html
import json
from typing import Any

import numpy as np

from ppsim.analysis.ledger import LedgerColumns, ledger_parts
from ppsim.base.tables import Html, html_table
from ppsim.plots.boxes import make_boxes
from ppsim.plots.gantt import draw
from ppsim.plots.palette import LIGHT, notebook_theme, reader_style
from ppsim.plots.viewer import viewer_html
from ppsim.timeline import TimelineColumns

_FRAME_ROW, _FRAME_MAX_ROWS, _FRAME_REST = 44, 480, 270  # pixels of the frame: a row, limit of all rows, the rest
_BAR = 120  # pixels of the longest bar of a ledger
_SCRIPT = (
    '<script>(() => {{ const isStill = (one) => !one.querySelector("iframe"); '
    'const box = [...document.querySelectorAll("#{name}")].find(isStill); if (!box) return; '
    'const frame = document.createElement("iframe"); frame.sandbox = "allow-scripts"; frame.title = "Gantt chart"; '
    'frame.style = "width:calc(100% + 12px);margin-left:-12px;height:{height}px;border:0;position:absolute;'
    'visibility:hidden"; frame.onload = () => {{ frame.previousSibling.remove(); '
    'frame.style.position = frame.style.visibility = ""; }}; '
    "frame.srcdoc = {page}; {follow}"
    "box.append(frame); }})()</script>"
)
_FOLLOW = (  # the theme of the page around it
    'const dark = getComputedStyle(box).getPropertyValue("--pp-dark").trim() === "1"; '
    'const theme = dark ? "dark" : "light"; '
    'frame.srcdoc = frame.srcdoc.replace("\\"framed\\": true", `"framed": true, "theme": "${theme}"`); '
)


def timeline_html(timeline: TimelineColumns, theme: str | None = None) -> Html:
    """Return a timeline's chart as self-contained HTML, in a theme or that of its reader.

    A script puts the viewer, in a frame without access to the notebook, in the place of the still picture. This is an
    image because notebook programs remove SVG from HTML that they do not trust.
    """
    page = json.dumps(viewer_html(make_boxes(timeline), framed=True, theme=theme)).replace("<", "\\u003c")
    name = f"ppsim-{hashlib.sha256(page.encode()).hexdigest()[:12]}"
    height = min(timeline.schedule.devices * _FRAME_ROW, _FRAME_MAX_ROWS) + _FRAME_REST
    chart: Any = draw(timeline, theme=theme)
    png, size = chart.to_png()
    still = (
        f'<img alt="{html.escape(chart.alt)}" width="{size["width"]}" '
        f'style="max-width:100%" src="data:image/png;base64,{png}">'
    )
    box = f'<div id="{name}" style="position:relative;background:{notebook_theme(theme).paper}">{still}</div>'
    script = _SCRIPT.format(name=name, height=height, page=page, follow="" if theme else _FOLLOW)
    return Html(reader_style(box) + box + script)


def ledger_html(found: LedgerColumns) -> Html:
    """Return a ledger as a table with a bar of causes per device; what the causes mean is folded."""
    (heads, *rows), notes = ledger_parts(found)
    if not notes:
        return Html(heads[0])
    causes, dark = heads[1:-1], notebook_theme(None)
    rules = "".join(f".pp-{cause}{{background:{dark.causes[cause]}!important}}" for cause in causes)

    def block(cause: str, width: float) -> str:
        """Return a piece of a bar in the light colour, which `rules` make dark where style sheets are kept."""
        colour = LIGHT.causes[cause]
        lines = f"border:solid {LIGHT.quiet};border-width:1px 0"  # seen on any page
        size = f"display:inline-block;width:{width:.1f}px;height:12px;background:{colour};{lines}"
        return f'<i class="pp-{cause}" style="{size}"></i>' * (width > 0)

    seconds = np.array([[float(cell.replace(",", "")) for cell in row[1:-1]] for row in rows[:-2]])  # no sums
    widths = (seconds * _BAR / seconds.sum(axis=1).max()).tolist()
    line = f'<div style="width:{_BAR}px;white-space:nowrap;line-height:12px">'
    bars = [Html(f"{line}{''.join(map(block, causes, row))}</div>") for row in widths]
    cells = [[row[0], bar, row[-1], *row[1:-1]] for row, bar in zip(rows, [*bars, "", ""], strict=True)]
    named = (Html(f"{block(cause, 12)}<br>{cause}") for cause in causes)
    table = html_table([heads[0], "", heads[-1], *named], cells)
    words = html.escape("\n".join(notes))
    fold = f"<details><summary>what the causes mean, and who waits for whom</summary><pre>{words}</pre></details>"
    return Html(f"{reader_style(rules)}<style>{rules}</style>{table}{fold}")
