"""The text forms of a schedule: lists of action strings, and PyTorch's CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable
from os import PathLike
from typing import Any

import numpy as np

from ppsim.actions import KIND_NAMES, Action, parse_action
from ppsim.base.errors import ScheduleError, listing, shown
from ppsim.base.files import read_text
from ppsim.schedule.columns import ScheduleColumns
from ppsim.schedule.csv_cells import CellBlock, Cells, blocks, plain_cells


def read_orders(orders: Iterable[Iterable[Any]], name: str = "custom", slices: int = 1) -> ScheduleColumns:
    """Read one list of action strings a device; `None` or an empty string is an idle slot.

    Anything whose `str()` is an action is taken too, so PyTorch's own actions pass. Raises ScheduleError naming
    device, position and text of every cell that is not an action.
    """
    if isinstance(orders, str | bytes) or not isinstance(orders, Iterable):
        raise ScheduleError(
            f"orders must be one list of actions per device, such as [['0F0', '0B0']]; got {shown(orders)}"
        )
    table = list(orders)
    reading = _Reading(len(table), lambda device, column: f"device {device}, position {column}")
    reading.add_table(table)
    return reading.schedule(name, slices)


def read_csv(path: str | PathLike[str], name: str | None = None, slices: int = 1) -> ScheduleColumns:
    """Read a CSV file with one row a device, no header; an empty cell is an idle slot, rows may be ragged.

    Blank lines at the end, which editors leave there, are no devices; a blank line between rows is a device without
    actions, which the validator names. Raises ScheduleError naming row, column and cell (all 1-based) of every fault,
    ConfigError when the file cannot be read.
    """
    text = read_text(path)
    try:
        table = list(csv.reader(io.StringIO(text), strict=True)) if '"' in text else None
    except csv.Error as error:
        raise ScheduleError(f"{path}: not a CSV file: {error}") from None
    if table is None:
        text = text.rstrip()
        devices = text.count("\n") + 1 if text else 0
    else:
        while table and len(table[-1]) <= 1 and not "".join(table[-1]).strip():
            table.pop()
        devices = len(table)
    if not devices:
        raise ScheduleError(f"{path}: the file is empty; a schedule has one row of actions per device")
    reading = _Reading(devices, lambda row, column: f"{path}: row {row + 1}, column {column + 1}")
    if table is None:
        for block in blocks(text + "\n"):
            reading.add_block(block)
    else:
        reading.add_table(table)
    return reading.schedule(name or str(path), slices)


def orders(schedule: ScheduleColumns) -> list[list[str]]:
    """For each device the list of its action strings; idle slots are left out."""
    return [[cell for cell in row if cell] for row in _cells(schedule, with_idle=False)]


def csv_text(schedule: ScheduleColumns) -> str:
    """One row a device; idle slots are empty cells (PyTorch reads none in a program)."""
    return "".join(",".join(row) + "\n" for row in _cells(schedule, with_idle=not schedule.is_program))


def _cells(schedule: ScheduleColumns, with_idle: bool) -> list[list[str]]:
    names = np.array(KIND_NAMES, object)[schedule.kind]
    texts = [
        f"{stage}{name}{microbatch}" if microbatch >= 0 else f"{stage}{name}"
        for stage, name, microbatch in zip(schedule.stage.tolist(), names, schedule.microbatch.tolist(), strict=True)
    ]
    for row in np.flatnonzero(schedule.joined).tolist():
        texts[row] = f"({texts[row - 1]};{texts[row]})OVERLAP_F_B"
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
    """The columns of a schedule while its cells are read; `place` says where in its source a cell is."""

    def __init__(self, devices: int, place: Callable[[int, int], str]):
        self.place = place
        self.cells: list[Cells] = []
        self.rows_of_device = np.zeros(devices, np.int64)
        self.idle: list[np.ndarray] = []
        self.faults: list[str] = []

    def add_table(self, table: Iterable[Any], device: int = 0, column: int = 0) -> None:
        """Lists of cells, read one by one; the first cell is `column` of `device`."""
        actions: list[Action] = []
        idle: list[tuple[int, int]] = []
        for row, cells in enumerate(table, device):
            if isinstance(cells, str | bytes) or not isinstance(cells, Iterable):
                raise ScheduleError(f"device {row}: expected a list of actions, got {shown(cells)}")
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
        """A block of a CSV text: at once where its cells are plain, else one by one."""
        plain = plain_cells(block)
        if plain is None:
            self.add_table(block.lines, block.row, block.column)
            return
        cells, places = plain
        self.cells.append(cells)
        self.rows_of_device += np.bincount(places.row, places.actions, len(self.rows_of_device)).astype(np.int64)
        idle = places.actions == 0
        self.idle.append(np.stack([places.row[idle], places.column[idle]], axis=1).astype(np.int32))

    def schedule(self, name: str, slices: int) -> ScheduleColumns:
        """The schedule; ScheduleError with every fault."""
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
    """Actions as columns."""
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
    except Exception:  # str() of a foreign object may raise anything; its name is then no action
        return shown(cell)
