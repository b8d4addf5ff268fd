"""A schedule as a table of time slots and devices, for text and notebooks; each action occurs once."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from ppsim.actions import Kind
from ppsim.base.tables import Html, aligned
from ppsim.base.units import counted
from ppsim.plots.boxes import local_stage, sizes_text
from ppsim.plots.palette import FONT, IDLE_TITLE, LIGHT, TITLES, Theme, notebook_theme, reader_style, theme_of
from ppsim.schedule.columns import ScheduleColumns

MAX_TIMED = 20_000  # actions; simulating more would delay the table noticeably
MAX_DEVICES, MAX_SLOTS = 32, 100  # limits of a notebook's table
_WIDE = 820  # pixels of a notebook's page beside the names of devices
_OTHER = "other"


@dataclass(frozen=True)
class _Layout:
    """First row and slot of each action (int64), and the rule behind the slots."""

    row: np.ndarray
    slot: np.ndarray
    rule: str

    @property
    def slots(self) -> int:
        return int(self.slot.max(initial=-1)) + 1


def schedule_table(schedule: ScheduleColumns, slots: np.ndarray | None) -> str:
    """Return the table as text, time slots down and devices across; a dot is an idle slot.

    `slots` gives the slot of each row if every action takes one slot, the first that its device and its input allow.
    If `slots` is None, as for a schedule that cannot run or is very large, the list position of an action is its slot.
    A schedule with idle slots always keeps its own positions. An OVERLAP_F_B is `(F;B)` in one cell.
    """
    layout = _lay_out(schedule, slots)
    cells = np.full((layout.slots, schedule.devices), ".", object)
    cells[layout.slot, schedule.device[layout.row]] = [_text(schedule, row) for row in layout.row.tolist()]
    wide = max(len("slot"), len(str(layout.slots - 1)))
    rows = [["slot".rjust(wide), *(f"device {device}" for device in range(schedule.devices))]]
    rows += [[f"{slot:{wide}}", *row] for slot, row in enumerate(cells.tolist())]
    lines = [sizes_text(schedule), layout.rule, *aligned(rows)]
    return "\n".join(lines) + "\n"


def schedule_html(schedule: ScheduleColumns, slots_of_rows: np.ndarray | None, theme: str | None = None) -> Html:
    """Return the table for a notebook, in a theme or that of its reader; a note names what is left out.

    Devices are rows, slots columns; cells have the colours of kinds.
    """
    layout, shades = _lay_out(schedule, slots_of_rows), _shades(LIGHT if theme is None else theme_of(theme))
    devices, slots = min(schedule.devices, MAX_DEVICES), min(layout.slots, MAX_SLOTS)
    local, reverse = local_stage(schedule)
    cells = [[_cell("", "idle", shades)] * slots for _ in range(devices)]
    device = schedule.device[layout.row]
    for number in np.flatnonzero((device < devices) & (layout.slot < slots)).tolist():
        row = int(layout.row[number])
        text, kind = _text(schedule, row), Kind(int(schedule.kind[row]))
        kind = Kind.OVERLAP_F_B if text.startswith("(") else kind
        marks = ("bottom",) * bool(local[row]) + ("top",) * bool(reverse[row])
        cells[device[number]][layout.slot[number]] = _cell(text, kind.name, shades, marks)
    longest = max((len(_text(schedule, row)) for row in layout.row.tolist()), default=1)
    blocks = -(-slots // max(_WIDE // (7 * longest + 8), 1))  # of as many slots each, below each other
    ends = np.linspace(0, slots, blocks + 1).round().astype(int).tolist()
    body = "".join(_block(cells, first, last, 8 * longest) for first, last in pairwise(ends))
    note = html.escape(layout.rule + _left_out(schedule, devices, slots, layout.slots))
    body += f'<p style="margin:6px 0">{_key(schedule, shades, body)}{note}</p>'
    head = f"<b>{html.escape(sizes_text(schedule))}</b>"
    table = f'<div style="overflow-x:auto;font:12px {FONT}">{head}{body}</div>'
    return Html((_reader_style() if theme is None else "") + table)


def _key(schedule: ScheduleColumns, shades: Mapping[str, tuple[str, str]], body: str) -> str:
    """Return what the colours, names and lines of the cells in `body` mean; empty without an action."""
    rows = np.flatnonzero(np.isin(schedule.kind, [*TITLES]))
    if not len(rows):
        return ""
    titles = {**{kind.name: title for kind, title in TITLES.items()}, "idle": IDLE_TITLE}
    colours = [f'<span class="pp-{name}" style="background:{shades[name][0]}">\u2003</span> {title}'
               for name, title in titles.items() if f'class="pp-{name}"' in body]  # fmt: skip
    row = int(rows[-1])
    words = [f"{schedule.label(row)}: stage {schedule.stage[row]}, microbatch {schedule.microbatch[row]}; "]
    words += ["line below: later stage of its device; "] * ("border-bottom" in body)
    words += ["line above: enters at the other end; "] * ("border-top" in body)
    return " \u2002".join(colours) + "<br>" + "".join(words)


def _block(cells: Sequence[Sequence[str]], first: int, last: int, wide: int) -> str:
    """Return a table of the slots from `first` to before `last`, each at least `wide` pixels wide."""
    head = "".join(f'<th width="{wide}">{slot}</th>' for slot in range(first, last))
    body = "".join(
        f'<tr><th style="white-space:nowrap">device {number}</th>{"".join(row[first:last])}</tr>'
        for number, row in enumerate(cells)
    )
    style = "border-collapse:separate;font-size:11px;text-align:center"
    return f'<table cellspacing="1" cellpadding="3" style="{style}"><tr><th>slot</th>{head}</tr>{body}</table>'


def _shades(theme: Theme) -> dict[str, tuple[str, str]]:
    """Return ground and ink of the cells of each kind, of idle slots, and of transfers and sharding actions."""
    kinds = {kind.name: (colour, theme.on[kind]) for kind, colour in theme.kinds.items()}
    return {**kinds, "idle": (theme.idle, theme.text), _OTHER: (theme.not_idle, theme.text)}


def _reader_style() -> str:
    """Return the style by which cells have dark colours where the page around them is dark."""
    rules = "".join(
        f".pp-{name}{{background:{ground}!important;color:{ink}!important}}"
        for name, (ground, ink) in _shades(notebook_theme(None)).items()
    )
    return f"{reader_style(rules)}<style>{rules}</style>"


def _cell(text: str, name: str, shades: Mapping[str, tuple[str, str]], marks: Sequence[str] = ()) -> str:
    """Return a cell; lines near its edges mark a later stage of the device and the other direction."""
    name = name if name in shades else _OTHER
    edges = "".join(f";padding-{side}:1px" for side in marks)
    lines = ";".join(f"border-{side}:2px solid" for side in marks)  # within the cell, or they would merge with gaps
    ground, ink = shades[name]
    words = f'<div style="{lines}">{text}</div>' if marks else text
    return f'<td class="pp-{name}" bgcolor="{ground}" style="color:{ink}{edges}">{words}</td>'


def _text(schedule: ScheduleColumns, row: int) -> str:
    if row + 1 < len(schedule.joined) and schedule.joined[row + 1]:
        return f"({schedule.label(row)};{schedule.label(row + 1)})"
    return schedule.label(row)


def _left_out(schedule: ScheduleColumns, devices: int, slots: int, all_slots: int) -> str:
    sizes = ("devices", devices, schedule.devices), ("slots", slots, all_slots)
    cut = " and ".join(f"{word} {first:,} to {every - 1:,}" for word, first, every in sizes if every > first)
    return f"; not shown: {cut} of {counted(len(schedule), 'action')} (to_csv writes all)" if cut else ""


def _lay_out(schedule: ScheduleColumns, slots: np.ndarray | None) -> _Layout:
    row = schedule.first_rows
    if slots is not None and not len(schedule.idle):
        return _Layout(row, slots[row], "each action takes one slot, the first that its input allows")
    device = schedule.device[row]
    slot = np.arange(len(row)) - np.searchsorted(device, device)  # position in the list of its device
    for owner, column in sorted(schedule.idle.tolist()):
        slot[(device == owner) & (slot >= column)] += 1
    rule = "one slot a cell, idle slots as given" if len(schedule.idle) else "one slot a list position"
    return _Layout(row, slot, rule)
