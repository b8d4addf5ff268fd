"""The text forms of a schedule: lists of action strings, and PyTorch's CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Iterator
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
    table = list(orders)
    reading = _Reading(len(table), cell_text)
    reading.add_table(table)
    return reading.schedule(name, slices)


def read_csv(path: str | PathLike[str], name: str | None = None, slices: int = 1) -> ScheduleColumns:
    """Return the schedule in a CSV file, as `ppsim.Schedule.from_csv`."""
    return schedule_from_csv(read_text(path), str(path), name, slices)


def schedule_from_csv(text: str, place: str, name: str | None = None, slices: int = 1) -> ScheduleColumns:
    """Return the schedule in the text of a CSV file; errors name the text by `place`."""
    try:
        table = list(csv.reader(io.StringIO(text), strict=True)) if '"' in text else None
    except csv.Error as error:
        raise ScheduleError(f"{place}: not a CSV file: {error}") from None
    if table is None:
        text = text.rstrip()
        devices = text.count("\n") + 1 if text else 0
    else:
        while table and len(table[-1]) <= 1 and not "".join(table[-1]).strip():
            table.pop()
        devices = len(table)
    if not devices:
        raise ScheduleError(f"{place}: the file is empty; a schedule has one row of actions per device")
    reading = _Reading(devices, lambda device, column: f"{place}: {cell_text(device, column)}")
    if table is None:
        for block in blocks(text + "\n"):
            reading.add_block(block)
    else:
        reading.add_table(table)
    return reading.schedule(name or place, slices)


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


class _Reading:
    """Columns of a schedule while its cells are read; `place` names a cell's position in messages."""

    def __init__(self, devices: int, place: Callable[[int, int], str]):
        self.place = place
        self.cells: list[Cells] = []
        self.rows_of_device = np.zeros(devices, np.int64)
        self.idle: list[np.ndarray] = []
        self.faults: list[str] = []

    def add_table(self, table: Iterable[Any], device: int = 0, column: int = 0) -> None:
        """Add lists of cells, one by one; the first cell is `column` of `device`."""
        actions: list[Action] = []
        idle: list[tuple[int, int]] = []
        for row, cells in enumerate(table, device):
            if isinstance(cells, str | bytes) or not isinstance(cells, Iterable):
                raise ScheduleError(f"row {row + 1}: expected a list of actions, got {shown(cells)}")
            for number, cell in enumerate(cells, column):
                text = "" if cell is None else _text(cell)
                if not text:
                    idle.append((row, number))
                    continue
                try:
                    action = parse_action(text)
                except ScheduleError as error:
                    self.faults.append(f"{self.place(row, number)}: {error}")
                    continue
                actions.append(action)
                self.rows_of_device[row] += len(action.parts) or 1
            column = 0
        self.idle.append(np.array(idle, np.int32).reshape(-1, 2))
        self.cells.append(_cells_of(actions))

    def add_block(self, block: CellBlock) -> None:
        """Add a block of a CSV text: at once if its cells are plain, else one by one."""
        plain = plain_cells(block)
        if plain is None:
            self.add_table(block.lines, block.row, block.column)
            return
        cells, positions = plain
        self.cells.append(cells)
        self.rows_of_device += np.bincount(positions.row, positions.actions, len(self.rows_of_device)).astype(np.int64)
        idle = positions.actions == 0
        self.idle.append(np.stack([positions.row[idle], positions.column[idle]], axis=1).astype(np.int32))

    def schedule(self, name: str, slices: int) -> ScheduleColumns:
        """Return the schedule; raise ScheduleError with every fault."""
        if self.faults:
            raise ScheduleError(listing(f"{len(self.faults)} cell(s) are not actions", self.faults), self.faults)
        cells = Cells(*map(np.concatenate, zip(*(self.cells or [_cells_of([])]), strict=True)))
        return ScheduleColumns(
            *cells[:3],
            np.concatenate([[0], np.cumsum(self.rows_of_device)]),
            joined=cells.joined,
            idle=np.concatenate(self.idle or [np.empty((0, 2), np.int32)]),
            name=name,
            slices=slices,
        )


def _cells_of(actions: list[Action]) -> Cells:
    """Return actions as columns."""
    rows = [row for action in actions for row in (action.parts or (action,))]
    return Cells(
        np.array([row.kind for row in rows], np.int8),
        np.array([row.stage for row in rows], np.int32),
        np.array([row.microbatch for row in rows], np.int32),
        np.array([second for action in actions for second in (range(2) if action.parts else range(1))], bool),
    )


def _text(cell: Any) -> str:
    try:
        return str(cell).strip()
    except Exception:  # str() of a foreign object may raise anything; the text returned is not an action
        return shown(cell)


BLOCK_CHARACTERS = 2**19  # larger blocks are no faster and take more memory
_DELIMITER, _DIGIT, _LETTER, _OTHER = range(4)
_CLASS = np.full(256, _OTHER, np.uint8)
_CLASS[list(b",;\n")] = _DELIMITER
_CLASS[list(b"0123456789")] = _DIGIT
_CLASS[list(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ_")] = _LETTER
_FUSED_END = b")OVERLAP_F_B"
_MAX_DIGITS = 9  # one digit less than the largest legal number


class Cells(NamedTuple):
    """Actions in the order written, one entry per row of the schedule; an OVERLAP_F_B slot has two."""

    kind: np.ndarray
    stage: np.ndarray
    microbatch: np.ndarray
    joined: np.ndarray


class CellPositions(NamedTuple):
    """Row and column (0-based) of cells, and the number of actions of each: 0, 1 or (fused) 2."""

    row: np.ndarray
    column: np.ndarray
    actions: np.ndarray


class CellBlock(NamedTuple):
    """Run of whole cells of a CSV text without quotes, each with the delimiter after it.

    The first cell is in `row` and `column` (0-based).
    """

    text: str
    row: int
    column: int

    @property
    def lines(self) -> list[list[str]]:
        """Cells of the block, line by line; an empty line has none."""
        whole, last = self.text[:-1], self.text[-1:]
        lines = [line.split(",") if line else [] for line in whole.split("\n")]
        if not lines[0] and (self.column or (len(lines) == 1 and last == ",")):
            lines[0] = [""]
        if len(lines) > 1 and not lines[-1] and last == ",":
            lines[-1] = [""]
        return lines


def blocks(text: str, size: int = BLOCK_CHARACTERS) -> Iterator[CellBlock]:
    """Yield the cells of a text that ends with a newline, in blocks of about `size` characters."""
    first, row, column = 0, 0, 0
    while first < len(text):
        start = min(first + size, len(text)) - 1
        comma, newline = text.find(",", start), text.find("\n", start)
        last = (newline if comma < 0 else min(comma, newline)) + 1
        block = CellBlock(text[first:last], row, column)
        yield block
        lines = block.text.count("\n")
        row += lines
        column = block.text.count(",", block.text.rfind("\n") + 1) + (0 if lines else column)
        first = last


def plain_cells(block: CellBlock) -> tuple[Cells, CellPositions] | None:
    """Return the actions of a block and the positions of its cells; None if a cell is not plain.

    A plain cell is an action without spaces and without numbers of ten digits.
    """
    if not block.text.isascii():
        return None
    data = block.text.encode()
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
    cells = _actions(letters, letter_class == _LETTER, starts[filled], ends[filled], follows[filled])
    actions = np.add.reduceat(filled.astype(np.int8), np.flatnonzero(~follows))
    return None if cells is None else (cells, _positions(block, letters[ends[letters[ends] != ord(";")]], actions))


def _positions(block: CellBlock, delimiter: np.ndarray, actions: np.ndarray) -> CellPositions:
    """Return the positions of cells by the delimiter after each; an empty line has no cell."""
    ends_line = delimiter == ord("\n")
    begins_line = np.concatenate([[block.column == 0], ends_line[:-1]])
    line = np.cumsum(np.concatenate([[False], ends_line[:-1]]))
    number = np.arange(len(delimiter))
    first = np.concatenate([[-block.column], np.flatnonzero(ends_line[:-1]) + 1])[line]
    exists = ~(begins_line & ends_line & (actions == 0))
    return CellPositions(block.row + line[exists], (number - first)[exists], actions[exists])


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
) -> Cells | None:
    """Return the actions between `starts` and `ends`: digits, a name and, except for whole stages, digits."""
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
    return Cells(kind, _numbers(letters, starts, first), microbatch, joined)


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
