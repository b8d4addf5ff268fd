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


def read_orders(orders: Iterable[Iterable[Any]], name: str = "custom", slices: int = 1) -> ScheduleColumns:
    """Read one list of action strings a device; `None` or an empty string is an idle slot.

    Anything whose `str()` is an action is taken too, so PyTorch's own actions pass. Raises ScheduleError naming
    device, position and text of every cell that is not an action.
    """
    if isinstance(orders, str | bytes) or not isinstance(orders, Iterable):
        raise ScheduleError(
            f"orders must be one list of actions per device, such as [['0F0', '0B0']]; got {shown(orders)}"
        )
    return _from_cells(list(orders), lambda device, column: f"device {device}, position {column}", name, slices)


def read_csv(path: str | PathLike[str], name: str | None = None, slices: int = 1) -> ScheduleColumns:
    """Read a CSV file with one row a device, no header; an empty cell is an idle slot, rows may be ragged.

    Blank lines at the end, which editors leave there, are no devices; a blank line between rows is a device without
    actions, which the validator names. Raises ScheduleError naming row, column and cell (all 1-based) of every fault,
    ConfigError when the file cannot be read.
    """
    text = read_text(path)
    try:
        table = list(csv.reader(io.StringIO(text), strict=True))
    except csv.Error as error:
        raise ScheduleError(f"{path}: not a CSV file: {error}") from None
    while table and len(table[-1]) <= 1 and not "".join(table[-1]).strip():
        table.pop()
    if not table:
        raise ScheduleError(f"{path}: the file is empty; a schedule has one row of actions per device")
    return _from_cells(
        table, lambda row, column: f"{path}: row {row + 1}, column {column + 1}", name or str(path), slices
    )


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


def _from_cells(table: list, place: Callable[[int, int], str], name: str, slices: int) -> ScheduleColumns:
    rows: list[Action] = []
    joined: list[bool] = []
    idle: list[tuple[int, int]] = []
    offsets = [0]
    faults: list[str] = []
    known: dict[str, Action] = {}
    for device, cells in enumerate(table):
        if isinstance(cells, str | bytes) or not isinstance(cells, Iterable):
            raise ScheduleError(f"device {device}: expected a list of actions, got {shown(cells)}")
        for column, cell in enumerate(cells):
            text = "" if cell is None else _text(cell)
            if not text:
                idle.append((device, column))
                continue
            try:
                action = known.get(text) or known.setdefault(text, parse_action(text))
            except ScheduleError as error:
                faults.append(f"{place(device, column)}: {error}")
                continue
            rows.extend(action.parts or (action,))
            joined.extend((False, True) if action.parts else (False,))
        offsets.append(len(rows))
    if faults:
        raise ScheduleError(listing(f"{len(faults)} cell(s) are not actions", faults), faults)
    kind = np.array([action.kind for action in rows], np.int8)
    return ScheduleColumns(
        kind,
        np.array([action.stage for action in rows], np.int32),
        np.array([action.microbatch for action in rows], np.int32),
        np.array(offsets, np.int64),
        joined=np.array(joined, bool),
        idle=np.array(idle, np.int32).reshape(-1, 2),
        name=name,
        slices=slices,
    )


def _text(cell: Any) -> str:
    try:
        return str(cell).strip()
    except Exception:  # str() of a foreign object may raise anything; its name is then no action
        return shown(cell)
