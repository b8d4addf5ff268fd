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
from typing import Any, NamedTuple

from ppsim.actions import Kind
from ppsim.base.errors import ConfigError
from ppsim.base.files import write_atomically
from ppsim.base.tables import escaped
from ppsim.plots import palette
from ppsim.plots.boxes import Boxes, block_names, common_title, costs_text, make_boxes, title_text
from ppsim.plots.page_data import UNMARKED, Marks, page_data
from ppsim.plots.scale import RULES
from ppsim.timeline import TimelineColumns

SHOWN = ("memory", "ledger")  # parts that a new page shows in addition to the actions
_SCRIPTS = (
    "data.js", "words.js", "view.js", "pixels.js", "draw.js", "marks.js", "range.js", "controls.js", "viewer.js",
    "measured.js",
)  # fmt: skip


class Iterations(NamedTuple):
    """The measured steps of a run, for a page whose first two timelines are one of them and its simulation."""

    numbers: Sequence[int]  # one entry per step
    seconds: Sequence[float]  # one entry per step
    shown: int  # the index of the step that is the page's first timeline
    # timeline and marks of each step that the page can show, by index; it lists the others
    timelines: Mapping[int, tuple[TimelineColumns, Marks]]


def save_html(
    timelines: TimelineColumns | Sequence[TimelineColumns], path: str | PathLike[str],
    titles: Sequence[str] | None = None, **options: Any,
) -> None:  # fmt: skip
    """Write, atomically, a page that shows timelines offline in any browser of 2023 or later.

    Several timelines share one time axis, one below the other. `titles` has one title each (default: names and sizes).
    Hover shows action, device, times and what it waited for; a click follows the waits back to the start. The page
    opens with the parts in `shown`: "transfers", "critical" (critical path), "memory", "ledger" (idle time by cause).
    `marks` are of each timeline; `lead` is text below the `title`, `words` HTML below the charts; differences are
    relative to the timeline with number `base`. The `theme` is "light", "dark", "grey" or, if None, that of the
    reader's system. With `iterations`, the page can pick one, and marks what exceeds the simulated step most.
    Raises ConfigError for no timelines, another number of titles, or a file that cannot be written.
    """
    every = [timelines] if isinstance(timelines, TimelineColumns) else list(timelines)
    if not every or (titles is not None and len(titles) != len(every)):
        raise ConfigError(f"a page of {len(every)} timelines and {len(titles or [])} titles; give one title each")
    write_atomically(path, viewer_html(*map(make_boxes, every), titles=titles, **options))


def viewer_html(
    *every: Boxes,
    titles: Sequence[str] | None = None,
    framed: bool = False,
    shown: Sequence[str] = SHOWN,
    marks: Sequence[Marks] = (),
    iterations: Iterations | None = None,
    title: str = "",
    lead: str = "",
    words: str = "",
    base: int = 0,
    theme: str | None = None,
) -> str:
    """Return the page of `save_html`.

    `framed`: another page shows it in a frame, with name and measures; the wheel scrolls that page until a click.
    """
    timelines = [boxes.timeline for boxes in every]
    names = block_names(timelines) if titles is None else list(titles)
    marked = [*marks, *[UNMARKED] * (len(every) - len(marks))]
    charts = [page_data(boxes, name, why) for boxes, name, why in zip(every, names, marked, strict=True)]
    known: set[str] = set()
    for chart in charts:  # a meaning is said once
        chart["causes"] = {cause: words for cause, words in chart["causes"].items() if cause not in known}
        known |= chart["causes"].keys()
    options: dict[str, Any] = {"framed": framed, "on": list(shown), "base": base}
    if theme is not None:
        options["theme"] = palette.theme_of(theme).name
    steps = iterations and {
        "numbers": list(iterations.numbers),
        "seconds": list(iterations.seconds),
        "shown": iterations.shown,
        "charts": {
            index: page_data(make_boxes(timeline), names[0], why)
            for index, (timeline, why) in iterations.timelines.items()
            if index != iterations.shown
        },
    }
    about = "In words" + (f", step {iterations.numbers[iterations.shown]}" if iterations is not None else "")
    title = title or (title_text(timelines[0]) if len(charts) == 1 else common_title(timelines))
    texts = "\0".join([style(iterations is not None), script(iterations is not None), json.dumps([charts, steps])])
    return filled(
        _read("viewer.html"),
        {
            "TITLE": html.escape(title),
            "HEAD": "" if framed else _head(every, title, lead),
            "TEXT": words and f'<details class="devices words"><summary>{about}</summary><div>{words}</div></details>',
            "OPTIONS": json.dumps(options),
            "SCRIPT": _packed(texts.encode()),
        },
    )


def _packed(content: bytes) -> str:
    """Return bytes compressed, as text: five characters for four of them, of which HTML and JSON escape none."""
    digits = bytes({92: 33, 60: 125, 62: 126}.get(code, code) for code in range(40, 125))
    packer = zlib.compressobj(9, memLevel=6)  # small blocks have codes of their own
    text = base64.a85encode(packer.compress(content) + packer.flush()).replace(b"z", b"!!!!!")
    return text.translate(bytes.maketrans(bytes(range(33, 118)), digits)).decode()


def _head(every: Sequence[Boxes], title: str, lead: str) -> str:
    """Return the title of a page, a sentence, and what the rows of numbers lack."""
    measures = " · ".join(filter(None, [costs_text(every), f"transport {every[0].timeline.transport}"]))
    sentences = " ".join(f"<span>{escaped(part)}</span>" for part in lead.split(" · ", 1))
    lead = lead and f"<p>{sentences}</p>"
    return f'<div><h1>{html.escape(title)}</h1> {lead}<div id="measures">{measures}</div></div>'


def style(measured: bool = False) -> str:
    """Return the style sheet of the viewer, for all pages that contain one; the script sets its colours."""
    rules = _read("measured.css") * measured + _read("viewer.css")
    return re.sub(r"(?m) */\*.*?\*/|^ +|(?<=[{;>,]) | (?=[{}>])|(?<=[a-z]:) (?=[^\";]*[;}])", "", rules)


def _themes() -> str:
    """Return the themes as the script's JSON, kinds by name."""
    themes, inks = {}, [palette.LIGHT.on[kind] for kind in (Kind.F, Kind.B)]  # light and dark text on any colour
    for name, theme in palette.THEMES.items():
        colours = {key: value for key, value in vars(theme).items() if key not in ("name", "on")}
        themes[name] = {**colours, "inks": inks, "kinds": {kind.name: colour for kind, colour in theme.kinds.items()}}
    return json.dumps(themes, separators=(",", ":"))


@cache
def script(measured: bool = False) -> str:
    """Return the script that defines `startViewer`, for all pages that contain a viewer; `measured` has iterations."""
    read = "".join(map(_read, _SCRIPTS if measured else _SCRIPTS[:-1]))
    read = re.sub(r"(?m)(^| {3})// .*$|^ +", "", read)  # no comments, and few blanks
    read = re.sub(r" ([=!<>+-]?=>?|[=!]==|&&|\|\||\?\??|[:<>*/-]|(?<=[\w)\]] )(?<!\"F )\+(?= [\w(\"`])) ", r"\1", read)
    parts = re.sub(
        r"(?<=[;{,(])\n|\n(?=[\n})\]])|;? (?=\})|(?<=\{) |(?<=\)) (?=\{)|(?<=\bif) (?=\()|(?<=\bfor) (?=\()", "", read
    )
    themes = f"const THEMES = {_themes()};\nconst RULES = {json.dumps(RULES)};\n"
    ending = "return Object.assign(startViewer, { make, signed, unitFor, inUnit });\n})();\n"
    return f'const startViewer = (() => {{\n"use strict";\n{themes}{parts}{ending}'


def filled(text: str, parts: Mapping[str, str]) -> str:
    """Return a page's text with every @NAME@ replaced, in one pass: a replacement may contain such a name."""
    return re.sub(f"@({'|'.join(parts)})@", lambda place: parts[place[1]], text)


def _read(name: str) -> str:
    return files("ppsim.plots").joinpath("page", name).read_text(encoding="utf-8")
