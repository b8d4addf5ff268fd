"""Gantt charts in text: one row per device, a box per action, for terminals, logs and documents."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass

import numpy as np

from ppsim.actions import Kind
from ppsim.analysis.bubbles import makespan
from ppsim.base.errors import ConfigError, shown
from ppsim.base.units import seconds_text, time_unit
from ppsim.plots.boxes import Boxes, device_labels, headline, kind_letter, make_boxes
from ppsim.plots.lanes import COLLECTIVES, FILLS, KINDS, LETTERS, STEPS, Spans
from ppsim.plots.palette import LIGHT, TITLES, channels, label_colour
from ppsim.plots.pixels import shares
from ppsim.plots.scale import number_text, round_ticks
from ppsim.timeline import TimelineColumns

MIN_WIDTH = 40
MAX_WIDTH = 1_000_000  # columns
_WIDEST_SLOT = 6  # maximum columns of the shortest action
_NARROWEST_CELL = 3  # columns; if most actions are narrower, the chart shows groups
_RESET = "\x1b[0m"
_ESCAPES = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class _Style:
    """Characters of a chart."""

    edge: str
    idle: str
    rule: str
    tick: str
    corner: str


_UNICODE = _Style("│", "·", "─", "┬", "└")
_ASCII = _Style("|", ".", "-", "+", "+")


def gantt_text(timeline: TimelineColumns, width: int | None = None, unicode: bool = True, color: bool = False) -> str:
    """Return a Gantt chart in text.

    Each action is a box with an edge at its start, unless some boxes have one column. A box shows kind and microbatch
    if they fit, else the kind alone; idle time is dotted. If most actions are narrower than three columns, a column is
    an equal part of the time, and the letters of a row are in proportion to the time of its kinds and of idle time.
    The options, and the error for another width, are those of `ppsim.Timeline.to_text`.
    """
    columns = shutil.get_terminal_size((100, 24)).columns if width is None else width
    if isinstance(columns, bool) or not isinstance(columns, int | np.integer):
        raise ConfigError(f"width={width!r} is not a number of columns; use a whole number of at least {MIN_WIDTH}")
    if width is not None and columns < MIN_WIDTH:
        raise ConfigError(f"width={width} is too narrow for a chart; use at least {MIN_WIDTH} columns")
    if columns > MAX_WIDTH:
        raise ConfigError(f"width={shown(width)} is too wide for a chart; use at most {MAX_WIDTH:,} columns")
    boxes = make_boxes(timeline)
    style = _UNICODE if unicode else _ASCII
    names = device_labels(timeline, "device")
    margin = max(map(len, names)) + 1
    room = max(columns, MIN_WIDTH) - margin
    per_second = _columns_per_second(boxes, room)
    first, last = _columns_of(boxes, per_second)
    widths = (last - first)[boxes.length > 0]
    fits = not len(widths) or (widths.min() > 0 and float(np.median(widths)) >= _NARROWEST_CELL)
    drawn = max(int(np.floor(makespan(timeline) * per_second + 0.5)), 1)  # rounds like `_columns_of`
    rows = (_box_rows if fits else _column_rows)(boxes, per_second, drawn, style, color)
    lines = [headline(timeline)]
    lines += [name.ljust(margin) + row for name, row in zip(names, rows, strict=True)]
    lines += [(" " * margin + line).rstrip() for line in _axis(makespan(timeline), per_second, drawn, style)]
    lines += _legend(boxes, fits, _ESCAPES.sub("", "".join(rows)), makespan(timeline) / drawn, style, color)
    text = "\n".join(lines) + "\n"
    return text if unicode else text.replace("µ", "u")


def _columns_per_second(boxes: Boxes, room: int) -> float:
    """Return the columns per second; in a wide chart the shortest action gets an integer number of columns."""
    length = makespan(boxes.timeline)
    lengths = boxes.length[boxes.length > 0]
    if not length > 0 or not len(lengths):
        return 0.0
    shortest = float(lengths.min())
    whole = int(room * shortest / length * (1 + 1e-12))
    return min(whole, _WIDEST_SLOT) / shortest if whole else room / length


def _columns_of(spans: Spans, per_second: float) -> tuple[np.ndarray, np.ndarray]:
    """Return each span's first column and the column after its last; neighbours never share a column."""
    first, last = (np.floor(times * per_second + 0.5).astype(np.int64) for times in (spans.start, spans.end))
    return first, last


def _box_rows(boxes: Boxes, per_second: float, drawn: int, style: _Style, color: bool) -> list[str]:
    """Return the row of each device: its boxes and its optimizer step."""
    first, last = _columns_of(boxes, per_second)
    widths = last - first
    edged = bool(np.all(widths[widths > 0] > 1))
    rows = list(_background(boxes, per_second, drawn, style, {*KINDS, COLLECTIVES, FILLS}).astype(object))
    reached = np.zeros(len(rows), np.int64)
    for box in np.flatnonzero(widths > 0).tolist():
        text = _box_text(boxes, box, int(widths[box]), style, edged)
        device = boxes.device[box]
        shade = LIGHT.kinds[Kind(int(boxes.kind[box]))]
        _put(rows[device], int(first[box]), int(last[box]), _colored(text, shade, color))
        reached[device] = last[box]
    for lane in boxes.lanes:
        for device, begin, end in _visible_columns(lane, per_second, drawn) if lane.sort == STEPS else ():
            begin = max(begin, int(reached[device]))
            end = min(max(end, begin + 1), drawn)
            if begin < end:
                text = _filled(lane.letter, end - begin, style, edged)
                _put(rows[device], begin, end, _colored(text, LIGHT.lanes[lane.sort], color))
    return ["".join(row) for row in rows]


def _put(row: np.ndarray, begin: int, end: int, text: str) -> None:
    """Write a text into the columns from `begin` to before `end`."""
    row[begin:end] = ""
    row[begin] = text


def _background(boxes: Boxes, per_second: float, drawn: int, style: _Style, sorts: set[str]) -> np.ndarray:
    """Return the characters of columns without an action, (devices, drawn): idle time, or the letters of lanes."""
    background = np.full((boxes.timeline.schedule.devices, drawn), style.idle)
    for lane in boxes.lanes:
        for device, begin, end in _visible_columns(lane, per_second, drawn) if lane.sort in sorts else ():
            background[device, begin:end] = lane.letter
    return background


def _visible_columns(spans: Spans, per_second: float, drawn: int) -> list[tuple[int, int, int]]:
    """Return each span's device, its first column and the column after its last; each span has at least one column."""
    first, last = _columns_of(spans, per_second)
    first = np.minimum(first, drawn - 1)
    last = np.minimum(np.maximum(last, first + 1), drawn)
    return list(zip(spans.device.tolist(), first.tolist(), last.tolist(), strict=True))


def _filled(label: str, width: int, style: _Style, edged: bool) -> str:
    """Return a box of `width` columns: its edge, if there are edges, and its label."""
    return style.edge + label.ljust(width - 1) if edged and width > 1 else label.ljust(width, style.rule)


def _box_text(boxes: Boxes, box: int, width: int, style: _Style, edged: bool) -> str:
    letter, row = kind_letter(int(boxes.kind[box])), int(boxes.row[box])
    labels = [letter + "/".join(map(boxes.number, range(row, row + 1 + boxes.slot[box]))), letter]  # 5/2 in a slot
    if (boxes.locals > 1 or boxes.reverse.any()) and not boxes.slot[box]:
        labels.insert(0, boxes.name(box))
    return _filled(next(label for label in labels if len(label) <= width - edged), width, style, edged)


def _column_rows(boxes: Boxes, per_second: float, drawn: int, style: _Style, color: bool) -> list[str]:
    """Return the row of each device: in each column one of the kinds that run in it, or idle time.

    The kind or idle time that is furthest behind its share of the time so far comes next.
    """
    rows = list(_background(boxes, per_second, drawn, style, set(LETTERS)).astype(object))
    edges = np.arange(drawn + 1) / per_second
    for device, row in enumerate(rows):
        mine = slice(int(boxes.offsets[device]), int(boxes.offsets[device + 1]))
        start, end, kind = boxes.start[mine], boxes.end[mine], boxes.kind[mine]
        parts = [shares(start[kind == one], end[kind == one], edges[:-1], edges[1:]) for one in boxes.kinds]
        parts.append(np.maximum(1.0 - np.sum(parts, axis=0), 0.0))
        for column, number in enumerate(_in_proportion(np.stack(parts, axis=1))):
            if number < len(boxes.kinds):
                chosen = boxes.kinds[number]
                row[column] = _colored(kind_letter(chosen), LIGHT.kinds[chosen], color)
    return ["".join(row) for row in rows]


def _in_proportion(parts: np.ndarray) -> list[int]:
    """Return for each column the index of one of its parts, so that every part gets its share of columns."""
    owed, chosen = np.zeros(parts.shape[1]), []
    for column in parts:
        owed = np.where(column > 1e-9, owed + column, 0.0)
        best = int(np.where(column > 1e-9, owed, -np.inf).argmax())
        owed[best] -= 1.0
        chosen.append(best)
    return chosen


def _colored(text: str, ground: str, color: bool) -> str:
    if not color:
        return text
    on, ink = [";".join(str(channel) for channel in channels(name)) for name in (ground, label_colour(ground))]
    return f"\x1b[48;2;{on}m\x1b[38;2;{ink}m{text}{_RESET}"


def _axis(makespan: float, per_second: float, drawn: int, style: _Style) -> list[str]:
    """Return a rule with ticks and, below it, their times, which never touch each other."""
    unit = time_unit(makespan)
    ticks = round_ticks(makespan * unit.factor, max(min(drawn // 9, 12), 2))
    columns = np.minimum(np.floor(ticks / unit.factor * per_second + 0.5).astype(int), drawn)
    rule, numbers = [style.rule] * (drawn + 1), ""
    for column, tick in zip(columns.tolist(), ticks.tolist(), strict=True):
        if numbers and column <= len(numbers):
            continue
        rule[column] = style.tick
        numbers = numbers.ljust(column) + number_text(tick)
    rule[0] = style.corner
    return ["".join(rule), f"{numbers}  time ({unit.symbol})"]


def _legend(boxes: Boxes, fits: bool, drawn: str, column_seconds: float, style: _Style, color: bool) -> list[str]:
    """Return the meaning of all characters in `drawn`."""
    titles = {kind: "X " * (kind == Kind.OVERLAP_F_B) + TITLES[kind] for kind in boxes.kinds}
    entries = [_colored(title, LIGHT.kinds[kind], color) for kind, title in titles.items()]
    lines = ["; ".join([*entries, *([f"{style.idle} idle"] if style.idle in drawn else [])])]
    if lanes := [lane for lane in boxes.lanes if lane.letter in drawn]:
        titles = "; ".join(f"{lane.letter} {lane.title}" for lane in lanes)
        lines.append(f"where no action runs: {titles}")
    numbering = "slice (microbatch x slices + piece)" if boxes.timeline.schedule.slices > 1 else "microbatch"
    if fits and re.search(r"\d", drawn):
        stages = ", stage before the kind" if re.search(r"\d[A-Z]", drawn) else ""
        lines.append(f"numbers: {numbering} after the kind{stages}, where they fit")
    if not fits:
        times = np.append(boxes.start, boxes.end) / (column_seconds or 1.0)
        mixed = "; letters in proportion to the time of each kind"  # unless every column has one
        lines.append(f"a column is {seconds_text(column_seconds, 3)}{mixed * (not np.allclose(times, np.rint(times)))}")
    if hidden := int(np.count_nonzero(boxes.length == 0)):
        lines.append(f"not shown: {hidden} action(s) of zero length")
    return lines
