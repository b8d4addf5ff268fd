"""Gantt charts in text: one row per device, a box per action, for terminals, logs and documents."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from ppsim.actions import Kind
from ppsim.analysis.bubbles import makespan
from ppsim.base.errors import ConfigError, shown
from ppsim.base.tables import NO_BREAK, within
from ppsim.base.units import counted, seconds_text, time_unit
from ppsim.plots.areas import parts_around
from ppsim.plots.boxes import REVERSE, SECOND, Boxes, device_labels, kind_letter, make_boxes
from ppsim.plots.lanes import COLLECTIVES, FILLS, KINDS, LETTERS, STEPS, Spans
from ppsim.plots.palette import DARK, IDLE_TITLE, LIGHT, TITLES, Theme, channels, from_linear, label_colour, light_of
from ppsim.plots.scale import named_devices, number_text, round_ticks
from ppsim.plots.summary import headline
from ppsim.timeline import TimelineColumns

MIN_WIDTH = 40
MAX_WIDTH = 1_000_000  # columns
MAX_ROWS = 32  # of more devices some are shown
_NAMED = 60  # columns; in narrower charts the names of devices are numbers alone
_WIDEST_SLOT = 6  # maximum columns of the shortest action
_NARROWEST_CELL = 2  # columns; boxes have edges if all are wider
_PRESENT = 0.1  # minimum fraction of a column that a kind, or idle time, takes
_ROUND = np.array([1, 1.25, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10])  # lengths of columns, times a power of ten
_RESET = "\x1b[0m"


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


@dataclass(frozen=True)
class _Cells:
    """The characters of all rows and the colours behind them, (devices, columns)."""

    text: np.ndarray
    ground: np.ndarray

    def put(self, device: int, begin: int, text: str, colour: str) -> None:
        """Write a text with this colour behind it."""
        self.text[device, begin : begin + len(text)] = list(text)
        self.ground[device, begin : begin + len(text)] = colour

    def line(self, device: int, color: bool) -> str:
        """Return a row as text."""
        if not color:
            return "".join(self.text[device])
        runs = groupby(zip(self.text[device], self.ground[device], strict=True), lambda cell: cell[1])
        return "".join(_colored("".join(text for text, _ in run), ground) for ground, run in runs)


def gantt_text(timeline: TimelineColumns, width: int | None = None, unicode: bool = True, color: bool = False) -> str:
    """Return a Gantt chart in text.

    Each action is a box that shows kind and microbatch; idle time is dotted. Boxes have an edge at their start if all
    have three columns. A kind has numbers if all its boxes have the space. If an action is shorter than a column, a
    column shows a kind that runs in it, or idle time, in proportion to time. In colour, a column has the mean colour of
    its kinds. At most 32 devices are shown.
    Colours are for a dark terminal, unless COLORFGBG names a light one. Options are those of `ppsim.Timeline.to_text`.
    """
    columns = shutil.get_terminal_size((100, 24)).columns if width is None else width
    if isinstance(columns, bool) or not isinstance(columns, int | np.integer):
        raise ConfigError(f"width={width!r} is not a number of columns; use a whole number of at least {MIN_WIDTH}")
    if width is not None and columns < MIN_WIDTH:
        raise ConfigError(f"width={width} is too narrow for a chart; use at least {MIN_WIDTH} columns")
    if columns > MAX_WIDTH:
        raise ConfigError(f"width={shown(width)} is too wide for a chart; use at most {MAX_WIDTH:,} columns")
    boxes, names = make_boxes(timeline), device_labels(timeline, "device" if columns >= _NAMED else "")
    style = _UNICODE if unicode else _ASCII
    theme = LIGHT if os.environ.get("COLORFGBG", "").endswith((";7", ";15")) else DARK
    row = 0.75 * MAX_ROWS / len(names) if len(names) > MAX_ROWS else 1
    devices = sorted({*named_devices(len(names), row, 1), len(names) - 1})
    margin = max(map(len, names)) + 1
    room = max(columns, MIN_WIDTH) - margin
    per_second = _columns_per_second(boxes, room)
    labels = _labels(boxes, per_second)
    drawn = max(int(np.floor(makespan(timeline) * per_second + 0.5)), 1)  # rounds like `_columns_of`
    lanes = {*LETTERS} if labels is None else {*KINDS, COLLECTIVES, FILLS}
    cells = _background(boxes, per_second, drawn, style, theme, lanes)
    if labels is None:
        _fill_columns(cells, boxes, devices, per_second, theme)
    else:
        _fill_boxes(cells, boxes, devices, per_second, labels, style, theme)
    heading = headline(timeline)
    heading = heading if len(heading) <= columns else re.sub(r": (?=step \d)", ":\n  ", heading)
    lines = within(re.sub(r"(?<=\d) (?=[a-z])", NO_BREAK, heading), columns).splitlines()
    lines += [names[device].ljust(margin) + cells.line(device, color) for device in devices]
    lines += [(" " * margin + line).rstrip() for line in _axis(makespan(timeline), per_second, drawn, room, style)]
    if len(devices) < len(names):
        lines.append(f"{len(devices)} of {len(names)} devices are shown")
    legend = _legend(boxes, cells, devices, labels is not None, per_second, style, theme if color else None)
    lines += legend if color else within("\n".join(legend), columns).splitlines()
    text = "\n".join(lines).replace(NO_BREAK, " ") + "\n"
    return text if unicode else text.replace("µ", "u")


def _columns_per_second(boxes: Boxes, room: int) -> float:
    """Return the columns per second: a whole number for the shortest action, or columns of a round length."""
    length = makespan(boxes.timeline)
    lengths = boxes.length[boxes.length > 0]
    if not length > 0 or not len(lengths):
        return 0.0
    shortest = float(lengths.min())
    if whole := int(room * shortest / length * (1 + 1e-12)):
        return min(whole, _WIDEST_SLOT) / shortest
    lengths = _ROUND * 10.0 ** np.floor(np.log10(length / room))
    return 1 / float(lengths[lengths >= length / room * (1 - 1e-9)][0])


def _columns_of(spans: Spans, per_second: float) -> tuple[np.ndarray, np.ndarray]:
    """Return each span's first column and the column after its last; neighbours never share a column."""
    first, last = (np.floor(times * per_second + 0.5).astype(np.int64) for times in (spans.start, spans.end))
    return first, last


def _labels(boxes: Boxes, per_second: float) -> list[str] | None:
    """Return the labels of boxes, such as F5, 2F5 with the stage or X5/2 of a slot; None if a box has no column.

    All boxes of a kind have numbers or none, and all boxes have stages or none; these need edges. Without them,
    letters of later stages, or of the second direction, are small.
    """
    first, last = _columns_of(boxes, per_second)
    widths, lit = last - first, boxes.length > 0
    least = widths[lit].min(initial=_WIDEST_SLOT)
    if least == 0:
        return None
    edged, letters = bool(least > _NARROWEST_CELL), np.array([*map(kind_letter, boxes.kind.tolist())], str)
    letters = np.where(boxes.is_marked(0) & ~boxes.slot, np.char.lower(letters), letters)
    rows = zip(letters.tolist(), boxes.row.tolist(), boxes.slot.tolist(), strict=True)
    labels = [letter + "/".join(map(boxes.number, range(row, row + 1 + slot))) for letter, row, slot in rows]
    if edged and (boxes.locals > 1 or boxes.reverse.any()):
        staged = [label if boxes.slot[box] else boxes.name(box) for box, label in enumerate(labels)]
        if np.all(np.char.str_len(staged)[lit] < widths[lit]):
            return staged
    bare = np.isin(boxes.kind, boxes.kind[lit & (np.char.str_len(np.array(labels, str)) > widths - edged)])
    return np.where(bare, letters, labels).tolist()


def _fill_boxes(
    cells: _Cells, boxes: Boxes, devices: Sequence[int], scale: float, labels: list[str], style: _Style, theme: Theme
) -> None:
    """Draw the boxes of these devices and their optimizer steps."""
    first, last = _columns_of(boxes, scale)
    widths, drawn = last - first, cells.text.shape[1]
    edged = bool(np.all(widths[widths > 0] > _NARROWEST_CELL))
    reached = np.zeros(len(cells.text), np.int64)
    for box in np.flatnonzero((widths > 0) & np.isin(boxes.device, devices)).tolist():
        text = _filled(labels[box], int(widths[box]), style, edged)
        cells.put(boxes.device[box], int(first[box]), text, theme.kinds[Kind(int(boxes.kind[box]))])
        reached[boxes.device[box]] = last[box]
    for lane in boxes.lanes:
        for device, begin, end in _visible_columns(lane, scale, drawn) if lane.sort == STEPS else ():
            begin = max(begin, int(reached[device]))
            end = min(max(end, begin + 1), drawn)
            if begin < end:
                cells.put(device, begin, _filled(LETTERS[lane.sort], end - begin, style, edged), theme.lanes[lane.sort])


def _background(boxes: Boxes, per_second: float, drawn: int, style: _Style, theme: Theme, sorts: set[str]) -> _Cells:
    """Return the cells of columns without an action: idle time, or the letters of lanes."""
    size = boxes.timeline.schedule.devices, drawn
    cells = _Cells(np.full(size, style.idle), np.full(size, theme.idle))
    for lane in boxes.lanes:
        for device, begin, end in _visible_columns(lane, per_second, drawn) if lane.sort in sorts else ():
            cells.put(device, begin, LETTERS[lane.sort] * (end - begin), theme.lanes[lane.sort])
    return cells


def _visible_columns(spans: Spans, per_second: float, drawn: int) -> list[tuple[int, int, int]]:
    """Return each span's device, its first column and the column after its last; each span has at least one column."""
    first, last = _columns_of(spans, per_second)
    first = np.minimum(first, drawn - 1)
    last = np.minimum(np.maximum(last, first + 1), drawn)
    return list(zip(spans.device.tolist(), first.tolist(), last.tolist(), strict=True))


def _filled(label: str, width: int, style: _Style, edged: bool) -> str:
    """Return a box of `width` columns: its edge, if there are edges, and its label."""
    return style.edge + label.ljust(width - 1) if edged and width > 1 else label.ljust(width, style.rule)


def _fill_columns(cells: _Cells, boxes: Boxes, devices: Sequence[int], per_second: float, theme: Theme) -> None:
    """Give each column of these devices a kind that runs in it, or idle time, and the mean colour of what it holds."""
    shown, edges = np.array(devices), np.arange(cells.text.shape[1] + 1) / per_second
    kinds = parts_around(boxes, shown, edges, False)
    rest = np.maximum(1.0 - np.sum([*kinds.values()], axis=0), 0.0)
    light = np.array([[light_of(colour) for colour in cells.ground[device]] for device in devices]) * rest[..., None]
    mean = from_linear(light + sum(part[..., None] * light_of(theme.kinds[kind]) for kind, part in kinds.items()))
    cells.ground[shown] = [[f"#{cell.tobytes().hex()}" for cell in row] for row in mean]
    parts, signs = np.stack([*kinds.values(), rest]), np.array([*map(kind_letter, kinds), ""])
    parts[parts < _PRESENT] = 0.0
    due, chosen = np.zeros(parts.shape[:2]), parts.argmax(axis=0)
    for column in range(parts.shape[2]):  # what is due to a kind goes on to its next column
        due += parts[:, :, column]
        chosen[:, column] = np.where(parts[:, :, column] > 0, due, -np.inf).argmax(axis=0)
        due[chosen[:, column], np.arange(len(shown))] -= 1.0
    text = np.where(chosen < len(kinds), signs[chosen], cells.text[shown])
    has_small = 2 * boxes.median * per_second > 1  # a longer column mixes stages
    small = parts_around(boxes, shown, edges, False, marked=True) if has_small else {}
    for place, kind in ((place, kind) for place, kind in enumerate(kinds) if kind in small):
        is_small = (chosen == place) & (small[kind] > parts[place] / 2)
        text = np.where(is_small, np.char.lower(text), text)
    cells.text[shown] = text


def _colored(text: str, ground: str) -> str:
    """Return a text on a colour, in ink that is read on it."""
    on, ink = [";".join(str(channel) for channel in channels(name)) for name in (ground, label_colour(ground))]
    return f"\x1b[48;2;{on}m\x1b[38;2;{ink}m{text}{_RESET}"


def _axis(makespan: float, per_second: float, drawn: int, room: int, style: _Style) -> list[str]:
    """Return a rule with ticks and, below it, their times, the last with their unit, which never touch each other."""
    unit = time_unit(makespan)
    ticks = round_ticks(makespan * unit.factor, max(min(drawn // 8, 12), 5))
    columns = np.minimum(np.floor(ticks / unit.factor * per_second + 0.5).astype(int), drawn)
    rule, numbers = [style.rule] * min(drawn + 1, room), ""
    for column, tick in zip(columns.tolist(), ticks.tolist(), strict=True):
        label = number_text(tick) + f" {unit.symbol}" * bool(tick == ticks[-1])
        at = min(column, room - len(label))
        if numbers and at <= len(numbers):
            continue
        rule[min(column, len(rule) - 1)] = style.tick
        numbers = numbers.ljust(at) + label
    rule[0] = style.corner
    return ["".join(rule), numbers]


def _legend(
    boxes: Boxes, cells: _Cells, devices: Sequence[int], fits: bool, scale: float, style: _Style, theme: Theme | None
) -> list[str]:
    """Return the meaning of all characters in the rows of these devices, in the colours of a theme."""
    drawn = "".join(cells.text[list(devices)].ravel())
    words = {kind_letter(kind): ("X " * (kind == Kind.OVERLAP_F_B) + TITLES[kind], kind) for kind in boxes.kinds}
    small = [letter.lower() for letter in words if letter.lower() in drawn]
    entries = [(title, theme and theme.kinds[kind]) for letter, (title, kind) in words.items()
               if letter in drawn or letter.lower() in small]  # fmt: skip
    entries += [(f"{style.idle} {IDLE_TITLE}", theme and theme.idle)] * (style.idle in drawn)
    meanings = {style.rule: "goes on", style.edge: "begins"}
    entries += [(f"{sign} {means}", None) for sign, means in meanings.items() if sign in drawn]
    keys = [[_colored(title, ground) if ground else title for title, ground in entries]]
    if small:
        mark = REVERSE if boxes.reverse.any() else SECOND if boxes.locals == 2 else "later stage of the device"
        keys[0].append(f"{', '.join(small)} {mark}")
    keys.append([f"{LETTERS[lane.sort]} {lane.title}" for lane in boxes.lanes if LETTERS[lane.sort] in drawn])
    wholes = ("; ".join(title.replace(" ", NO_BREAK) for title in titles) for titles in keys if titles)
    lines = [*map("{}{}".format, ("", "where no action runs: "), wholes)]
    numbering = "microbatch.slice" if boxes.timeline.schedule.slices > 1 else "microbatch"
    if fits and re.search(r"\d", drawn):
        stages = ", stage before the kind" if re.search(r"(?<![A-Za-z\d./])\d+[A-Z]", drawn) else ""
        lines.append(f"numbers: {numbering} after the kind{stages}")
    elif fits:
        lines.append("no numbers: actions too narrow")
    if not fits:
        unit = time_unit(makespan(boxes.timeline))  # the axis'
        lines.append(f"a column is {unit.factor / scale:.3g} {unit.symbol}")
        lines[-1] += "; letters are in proportion to time, not single actions" + "; colours mix" * bool(theme)
    if begins := boxes.start[boxes.step_begins[boxes.device[boxes.step_begins] == 0]].tolist():
        lines.append(f"device 0 begins an iteration at {', '.join(seconds_text(time, 3) for time in [0.0, *begins])}")
    if hidden := int(np.count_nonzero(boxes.length == 0)):
        lines.append(f"not shown: {counted(hidden, 'action')} of zero length")
    return lines
