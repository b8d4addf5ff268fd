"""The text forms of a schedule: lists of action strings, and PyTorch's CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterable
from os import PathLike
from typing import Any

import numpy as np

from ppsim.actions import KIND_NAMES, NO_MICROBATCH, Action, Kind, is_sharding, parse_action
from ppsim.base.errors import ScheduleError, listing, shown
from ppsim.base.files import read_text
from ppsim.base.immutable import offsets_of
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
    return _read_table(list(orders), cell_text, name=name, slices=slices)


def read_csv(path: str | PathLike[str], name: str | None = None, slices: int = 1) -> ScheduleColumns:
    """Return the schedule in a CSV file, as `ppsim.Schedule.from_csv`."""
    return schedule_from_csv(read_text(path), str(path), name, slices)


def schedule_from_csv(text: str, place: str, name: str | None = None, slices: int = 1) -> ScheduleColumns:
    """Return the schedule in the text of a CSV file; errors name the text by `place`."""
    text, traits = text.rstrip(), {"name": name or place, "slices": slices}
    plain = _read_plain(text + "\n", **traits) if text else None
    if plain is not None:
        return plain
    try:
        table = list(csv.reader(io.StringIO(text), strict=True))
    except csv.Error as error:
        raise ScheduleError(f"{place}: not a CSV file: {error}") from None
    while table and len(table[-1]) <= 1 and not "".join(table[-1]).strip():
        table.pop()
    if not table:
        raise ScheduleError(f"{place}: the file is empty; a schedule has one row of actions per device")
    return _read_table(table, lambda device, column: f"{place}: {cell_text(device, column)}", **traits)


def orders(schedule: ScheduleColumns) -> list[list[str]]:
    """Return the list of action strings of each device, without idle slots."""
    return [[cell for cell in row if cell] for row in _cells(schedule, with_idle=False)]


def outside_lists(schedule: ScheduleColumns) -> list[str]:
    """Return what a schedule has in addition to its lists of actions, in words; its CSV file does not hold these."""
    versions = int(schedule.weight_versions.max(initial=1))
    facts = {
        f"{schedule.iterations} training steps in one list": schedule.iterations > 1,
        f"up to {versions} versions of the weights": versions > 1,
        f"{len(schedule.evicted)} activations that are evicted to other devices": len(schedule.evicted) > 0,
        f"{len(schedule.prefetched)} inputs that the step before has computed": len(schedule.prefetched) > 0,
        f"microbatches cut into {schedule.slices} slices": schedule.slices > 1,
    }
    return [fact for fact, is_one in facts.items() if is_one]


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


def _read_table(table: list[Any], place: Callable[[int, int], str], **traits: Any) -> ScheduleColumns:
    """Return the schedule of one list of cells per device, read one by one; ScheduleError with every fault.

    `place` names the position of a cell in messages; `traits` are the name and the slices.
    """
    rows: list[Action] = []
    joined: list[bool] = []
    rows_of_device = np.zeros(len(table), np.int64)
    idle: list[tuple[int, int]] = []
    faults: list[str] = []
    for device, cells in enumerate(table):
        if isinstance(cells, str) and not cells.isalnum():  # a line of several actions
            cells = cells.split("," if "," in cells else None)
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
    return ScheduleColumns(
        np.array([row.kind for row in rows], np.int8),
        np.array([row.stage for row in rows], np.int32),
        np.array([row.microbatch for row in rows], np.int32),
        offsets_of(rows_of_device),
        joined=np.array(joined, bool),
        idle=np.array(idle, np.int32).reshape(-1, 2),
        **traits,
    )


def _text(cell: Any) -> str:
    try:
        return str(cell).strip()
    except Exception:  # str() of a foreign object may raise anything; the text returned is not an action
        return shown(cell)


_CODES = {kind.name.encode(): int(kind) for kind in Kind} | {b"": -1}
_OF_STAGE = "|".join(KIND_NAMES[Kind.UNSHARD : Kind.OVERLAP_F_B])
_OF_MICROBATCH = "|".join((*KIND_NAMES[: Kind.UNSHARD], "OFFLOAD", "RELOAD"))
_NUMBER = "[0-9]{1,9}+"  # one digit less than the largest legal number
_ACTION = f"{_NUMBER}(?:(?:{_OF_MICROBATCH}){_NUMBER}|{_OF_STAGE})"
_SLOT = "|".join(rf"\({_NUMBER}{one}{_NUMBER};{_NUMBER}{other}{_NUMBER}\)OVERLAP_F_B" for one, other in ("FB", "BF"))
_PLAIN = re.compile(rf"(?:(?:{_ACTION}|{_SLOT})?+[,\n])*+".encode())
_DIGITS, _LETTERS = b"0123456789", b"ABCDEFGHIJKLMNOPQRSTUVWXYZ_"
_WITH_COMMAS = bytes.maketrans(b";\n", b",,")
_WITH_BLANKS = bytes.maketrans(_LETTERS + b",;\n", b" " * (len(_LETTERS) + 3))


def _read_plain(text: str, **traits: Any) -> ScheduleColumns | None:
    """Return the schedule in a CSV text that ends with a newline; None if a cell is not plain.

    A plain cell is an action without quotes, spaces and numbers of ten digits. At a million actions, reading and
    simulating a file of them takes 0.2 s instead of 3.5 s.
    """
    data = text.encode(errors="replace")
    if not _PLAIN.fullmatch(data):
        return None
    data = data.replace(b")OVERLAP_F_B", b"").replace(b"(", b"")
    ends = np.frombuffer(data.translate(None, _DIGITS + _LETTERS), np.uint8)  # the sign after each part of a cell
    names = data.translate(_WITH_COMMAS, _DIGITS).split(b",")[:-1]
    kind = np.array([_CODES[name] for name in names], np.int8)
    filled, follows = kind >= 0, np.append(False, ends[:-1] == ord(";"))
    kind = kind[filled]
    of_stage = is_sharding(kind)
    numbers = np.array(data.translate(_WITH_BLANKS).split(), np.int32)
    last = np.cumsum(2 - of_stage) - 1  # index of each action's last number
    microbatch = numbers[last]
    microbatch[of_stage] = NO_MICROBATCH
    rows = np.add.reduceat(filled.astype(np.int8), np.flatnonzero(~follows))  # of each cell: 0, 1 or 2
    ends_line = ends[ends != ord(";")] == ord("\n")
    line = np.cumsum(ends_line) - ends_line
    column = np.arange(len(line)) - np.append(0, np.flatnonzero(ends_line) + 1)[line]
    idle = np.flatnonzero((rows == 0) & ~(ends_line & (column == 0)))  # an empty line has no cell
    rows_of_device = np.bincount(line, rows).astype(np.int64)
    idle_cells = np.stack([line[idle], column[idle]], axis=1).astype(np.int32)
    columns = kind, numbers[last - 1 + of_stage], microbatch, offsets_of(rows_of_device)
    return ScheduleColumns(*columns, joined=follows[filled], idle=idle_cells, **traits)
