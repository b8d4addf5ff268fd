"""The text forms of a schedule: lists of action strings, and PyTorch's CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from ppsim.actions import KIND_NAMES, NO_MICROBATCH, Action, Kind, is_sharding, parse_action, slot_kind
from ppsim.base.errors import ScheduleError, listing, shown
from ppsim.base.files import read_text
from ppsim.schedule.columns import ScheduleColumns


def cell_text(device: int, column: int) -> str:
    """Return the name of a cell in messages: its row and column from 1, as an editor or a spreadsheet shows a CSV file.

    Row 1 is device 0. Idle cells count.
    """
    return f"row {device + 1}, column {column + 1}"


def read_orders(orders: Iterable[Iterable[Any]], name: str = "custom", slices: int = 1) -> ScheduleColumns:
    """Return the schedule of one list of action strings per device, as `ppsim.Schedule.from_orders`."""
    if isinstance(orders, str | bytes) or not isinstance(orders, Iterable):
        raise ScheduleError(
            f"orders must be one list of actions per device, such as [['0F0', '0B0']]; got {shown(orders)}"
        )
    return _schedule(_read_table(list(orders), cell_text), name, slices)


def read_csv(path: str | PathLike[str], name: str | None = None, slices: int = 1) -> ScheduleColumns:
    """Return the schedule in a CSV file, as `ppsim.Schedule.from_csv`."""
    return schedule_from_csv(read_text(path), str(path), name, slices)


def schedule_from_csv(text: str, place: str, name: str | None = None, slices: int = 1) -> ScheduleColumns:
    """Return the schedule in the text of a CSV file; errors name the text by `place`."""
    text = text.rstrip()
    plain = _plain_cells(text + "\n") if text else None
    if plain is not None:
        return _schedule(plain, name or place, slices)
    try:
        table = list(csv.reader(io.StringIO(text), strict=True))
    except csv.Error as error:
        raise ScheduleError(f"{place}: not a CSV file: {error}") from None
    while table and len(table[-1]) <= 1 and not "".join(table[-1]).strip():
        table.pop()
    if not table:
        raise ScheduleError(f"{place}: the file is empty; a schedule has one row of actions per device")
    cells = _read_table(table, lambda device, column: f"{place}: {cell_text(device, column)}")
    return _schedule(cells, name or place, slices)


def orders(schedule: ScheduleColumns) -> list[list[str]]:
    """Return the list of action strings of each device, without idle slots."""
    return [[cell for cell in row if cell] for row in _cells(schedule, with_idle=False)]


def outside_lists(schedule: ScheduleColumns) -> list[str]:
    """Return what a schedule has in addition to its lists of actions, in words; its CSV file does not hold these."""
    found = []
    if schedule.iterations > 1:
        found.append(f"{schedule.iterations} training steps in one list")
    if (versions := int(schedule.weight_versions.max(initial=1))) > 1:
        found.append(f"up to {versions} versions of the weights")
    if len(schedule.evicted):
        found.append(f"{len(schedule.evicted)} activations that are evicted to other devices")
    if len(schedule.prefetched):
        found.append(f"{len(schedule.prefetched)} inputs that the step before has computed")
    if schedule.slices > 1:
        found.append(f"microbatches cut into {schedule.slices} slices")
    return found


def csv_text(schedule: ScheduleColumns) -> str:
    """Return one row per device; idle slots are empty cells (PyTorch reads none in a program)."""
    return "".join(",".join(row) + "\n" for row in _cells(schedule, with_idle=not schedule.is_program))


def _cells(schedule: ScheduleColumns, with_idle: bool) -> list[list[str]]:
    names = np.array(KIND_NAMES, object)[schedule.kind]
    texts = [
        f"{stage}{name}{microbatch}" if microbatch >= 0 else f"{stage}{name}"
        for stage, name, microbatch in zip(schedule.stage.tolist(), names, schedule.microbatch.tolist(), strict=True)
    ]
    for row in np.flatnonzero(schedule.joined).tolist():
        texts[row] = f"({texts[row - 1]};{texts[row]}){slot_kind(schedule.kind[row]).name}"
        texts[row - 1] = ""
    table = []
    for first, last in zip(schedule.offsets[:-1].tolist(), schedule.offsets[1:].tolist(), strict=True):
        table.append([text for text in texts[first:last] if text])
    if with_idle:
        _insert_idle(schedule, table)
    return table


def _insert_idle(schedule: ScheduleColumns, table: list[list[str]]) -> None:
    idle_of: dict[int, set[int]] = {}
    for device, column in schedule.idle.tolist():
        idle_of.setdefault(device, set()).add(column)
    for device, idle in idle_of.items():
        texts, columns = iter(table[device]), len(table[device]) + len(idle)
        table[device] = ["" if column in idle else next(texts, "") for column in range(columns)]


class Cells(NamedTuple):
    """Cells in the order written: rows of a schedule (an OVERLAP_F_B slot has two), and the empty cells."""

    kind: np.ndarray
    stage: np.ndarray
    microbatch: np.ndarray
    joined: np.ndarray
    rows_of_device: np.ndarray
    idle: np.ndarray  # (empty cells, 2): device and column


def _schedule(cells: Cells, name: str, slices: int) -> ScheduleColumns:
    return ScheduleColumns(
        cells.kind, cells.stage, cells.microbatch, np.concatenate([[0], np.cumsum(cells.rows_of_device)]),
        joined=cells.joined, idle=cells.idle, name=name, slices=slices,
    )  # fmt: skip


def _read_table(table: list[Any], place: Callable[[int, int], str]) -> Cells:
    """Return the cells of one list per device, read one by one; ScheduleError with every fault.

    `place` names the position of a cell in messages.
    """
    rows: list[Action] = []
    joined: list[bool] = []
    rows_of_device = np.zeros(len(table), np.int64)
    idle: list[tuple[int, int]] = []
    faults: list[str] = []
    for device, cells in enumerate(table):
        if isinstance(cells, str | bytes) or not isinstance(cells, Iterable):
            raise ScheduleError(f"row {device + 1}: expected a list of actions, got {shown(cells)}")
        for column, cell in enumerate(cells):
            text = "" if cell is None else _text(cell)
            if not text:
                idle.append((device, column))
                continue
            try:
                action = parse_action(text)
            except ScheduleError as error:
                faults.append(f"{place(device, column)}: {error}")
                continue
            parts = action.parts or (action,)
            rows += parts
            joined += [False, True][: len(parts)]
            rows_of_device[device] += len(parts)
    if faults:
        raise ScheduleError(listing(f"{len(faults)} cell(s) are not actions", faults), faults)
    return Cells(
        np.array([row.kind for row in rows], np.int8),
        np.array([row.stage for row in rows], np.int32),
        np.array([row.microbatch for row in rows], np.int32),
        np.array(joined, bool),
        rows_of_device,
        np.array(idle, np.int32).reshape(-1, 2),
    )


def _text(cell: Any) -> str:
    try:
        return str(cell).strip()
    except Exception:  # str() of a foreign object may raise anything; the text returned is not an action
        return shown(cell)


_DELIMITER, _DIGIT, _LETTER, _OTHER = range(4)
_CLASS = np.full(256, _OTHER, np.uint8)
_CLASS[list(b",;\n")] = _DELIMITER
_CLASS[list(b"0123456789")] = _DIGIT
_CLASS[list(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ_")] = _LETTER
_FUSED_END = b")OVERLAP_F_B"
_MAX_DIGITS = 9  # one digit less than the largest legal number


def _plain_cells(text: str) -> Cells | None:
    """Return the cells of a CSV text that ends with a newline; None if a cell is not plain.

    A plain cell is an action without quotes, spaces and numbers of ten digits. At a million actions, reading and
    simulating a file of them takes 0.2 s instead of 3.5 s.
    """
    if not text.isascii():
        return None
    data = text.encode()
    if b"(" in data or b";" in data or b")" in data:
        if not _slots_are_whole(data):
            return None
        data = data.replace(_FUSED_END, b"").replace(b"(", b"")
    letters = np.frombuffer(data, np.uint8)
    letter_class = _CLASS[letters]
    ends = np.flatnonzero(letter_class == _DELIMITER)
    starts = np.concatenate([[0], ends[:-1] + 1])
    filled = ends > starts
    follows = np.concatenate([[False], letters[ends[:-1]] == ord(";")])  # the second part of a slot
    if (letter_class == _OTHER).any() or not (filled[follows].all() and filled[np.flatnonzero(follows) - 1].all()):
        return None
    joined = follows[filled]
    actions = _actions(letters, letter_class == _LETTER, starts[filled], ends[filled], joined)
    if actions is None:
        return None
    rows = np.add.reduceat(filled.astype(np.int8), np.flatnonzero(~follows))  # of each cell: 0, 1 or 2
    ends_line = letters[ends[letters[ends] != ord(";")]] == ord("\n")
    line = np.cumsum(ends_line) - ends_line
    column = np.arange(len(line)) - np.append(0, np.flatnonzero(ends_line) + 1)[line]
    idle = np.flatnonzero((rows == 0) & ~(ends_line & (column == 0)))  # an empty line has no cell
    rows_of_device = np.bincount(line, rows).astype(np.int64)
    return Cells(*actions, joined, rows_of_device, np.stack([line[idle], column[idle]], axis=1).astype(np.int32))


def _slots_are_whole(data: bytes) -> bool:
    """Return whether each "(" begins a cell that has one ";" and ends with ")OVERLAP_F_B", and there are no others."""
    letters = np.frombuffer(data, np.uint8)
    opens, middles, closes = (np.flatnonzero(letters == ord(sign)) for sign in "(;)")
    if not len(opens) == len(middles) == len(closes) == data.count(_FUSED_END):
        return False
    ends = np.flatnonzero((letters == ord(",")) | (letters == ord("\n")))
    cell = np.searchsorted(ends, opens)
    begins = np.concatenate([[0], ends[:-1] + 1])[cell]
    whole = (opens == begins) & (opens < middles) & (middles < closes) & (closes + len(_FUSED_END) == ends[cell])
    return bool(whole.all())


def _actions(
    letters: np.ndarray, is_letter: np.ndarray, starts: np.ndarray, ends: np.ndarray, joined: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
    """Return kind, stage and microbatch of the actions between `starts` and `ends`, or None if one is no action.

    An action is digits, a name and, except for whole stages, digits.
    """
    edge = np.diff(is_letter.astype(np.int8), prepend=0, append=0)
    first, last = np.flatnonzero(edge == 1), np.flatnonzero(edge == -1)
    if len(first) != len(starts) or not ((first > starts) & (last <= ends)).all():
        return None
    if len(starts) and max((first - starts).max(), (ends - last).max()) > _MAX_DIGITS:
        return None
    kind = _kinds(letters, first, last)
    of_stage = is_sharding(kind)
    if (kind < 0).any() or not ((ends == last) == of_stage).all():
        return None
    second = np.flatnonzero(joined)
    if not (np.sort(kind[np.stack([second - 1, second])], axis=0).T == (Kind.F, Kind.B)).all():
        return None
    microbatch = _numbers(letters, last, ends)
    microbatch[of_stage] = NO_MICROBATCH
    return kind, _numbers(letters, starts, first), microbatch


def _kinds(letters: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return the code of the name from each `first` to `last`, or -1; int8."""
    kind = np.full(len(first), -1, np.int8)
    length = last - first
    for code, name in ((one.value, one.name) for one in Kind if one not in (Kind.OVERLAP_F_B, Kind.BATCH_P2P)):
        found = np.flatnonzero(length == len(name))
        for index, letter in enumerate(name):
            found = found[letters[first[found] + index] == ord(letter)]
        kind[found] = code
    return kind


def _numbers(letters: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """Return the number from each start to its end, int32; 0 if there is no digit."""
    value = np.zeros(len(starts), np.int32)
    length = ends - starts
    for index in range(int(length.max(initial=0))):
        longer = np.flatnonzero(length > index)
        value[longer] = value[longer] * 10 + (letters[starts[longer] + index] - ord("0"))
    return value
