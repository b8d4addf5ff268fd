"""Schedule: for each device the ordered list of its actions, held as columns. It knows no time."""

from __future__ import annotations

import csv
import io
import operator
from collections.abc import Iterable, Iterator
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from ppsim.actions import FIRST_TRANSFER, KIND_NAMES, NO_MICROBATCH, Action, Kind, parse_action
from ppsim.errors import ScheduleError, listing, shown
from ppsim.files import read_text, write_atomically

if TYPE_CHECKING:
    from ppsim.schedules.columns import Block

MOST_SLICES = 2**31 - 1


class Schedule:
    """Ordered actions per device, as flat columns; device d owns rows `offsets[d]:offsets[d + 1]`.

    Attributes
    ----------
    kind, stage, microbatch : int8, int32, int32 arrays, one entry a row
        `kind` holds codes of `ppsim.actions.Kind`. An OVERLAP_F_B slot is two rows, an F and a B.
    joined : bool array, one entry a row
        True where a row is the second part of the OVERLAP_F_B slot that the row before it begins.
    offsets : int64 array, devices + 1
    idle : int32 array, (idle slots, 2)
        Device and column of each empty cell of the table; kept for drawing and CSV, skipped in time.
    slices : int
        Pieces that each microbatch is cut into along the sequence; slice numbering is microbatch * slices + piece.
    iterations : int
        Training steps that the lists run through without a drain between them; microbatch numbers run on over them.
    weight_versions : int array, one entry a device
        Versions of its weights that a device keeps for microbatches under way; 1 in every synchronous schedule.
    evicted : int32 array, (evictions, 3)
        Stage, microbatch and host of each activation that waits for its backward on another device, the host: it moves
        there when its F ends and is back when its backward starts. The text forms do not carry it.
    name : str
        Family name, or the file that the schedule was read from.
    """

    def __init__(
        self,
        kind: np.ndarray,
        stage: np.ndarray,
        microbatch: np.ndarray,
        offsets: np.ndarray,
        *,
        joined: np.ndarray | None = None,
        idle: np.ndarray | None = None,
        name: str = "custom",
        slices: int = 1,
        iterations: int = 1,
        weight_versions: np.ndarray | None = None,
        evicted: np.ndarray | None = None,
    ):
        self.kind = kind
        self.stage = stage
        self.microbatch = microbatch
        self.offsets = offsets
        self.joined = np.zeros(len(kind), bool) if joined is None else joined
        self.idle = np.empty((0, 2), np.int32) if idle is None else idle
        self.name = name
        self.slices = _whole_slices(slices)
        self.iterations = iterations
        self.weight_versions = np.ones(len(offsets) - 1, np.int64) if weight_versions is None else weight_versions
        self.evicted = np.empty((0, 3), np.int32) if evicted is None else evicted
        self._valid = False

    @classmethod
    def from_blocks(cls, blocks: Iterable[Block], **traits: Any) -> Schedule:
        """A schedule from one Block of rows a device; `traits` are the other keyword arguments of Schedule."""
        from ppsim.schedules.columns import concatenate

        rows = list(blocks)
        offsets = np.concatenate([[0], np.cumsum([len(block) for block in rows])]).astype(np.int64)
        all_rows = concatenate(*rows)
        return cls(
            all_rows.kind, all_rows.stage, all_rows.microbatch, offsets, joined=all_rows.joined, **traits
        )  # fmt: skip

    @classmethod
    def from_orders(cls, orders: Iterable[Iterable[Any]], *, name: str = "custom", slices: int = 1) -> Schedule:
        """Read one list of action strings a device; `None` or an empty string is an idle slot.

        Anything whose `str()` is an action is taken too, so PyTorch's own actions pass. Lists with transfers give a
        Program. Raises ScheduleError naming device, position and text of every cell that is not an action.
        """
        if isinstance(orders, str | bytes) or not isinstance(orders, Iterable):
            raise ScheduleError(
                f"orders must be one list of actions per device, such as [['0F0', '0B0']]; got {shown(orders)}"
            )
        return _from_cells(
            cls, list(orders), lambda device, column: f"device {device}, position {column}", name, slices
        )

    @classmethod
    def from_csv(cls, path: str | PathLike[str], *, name: str | None = None, slices: int = 1) -> Schedule:
        """Read a CSV file with one row a device, no header; an empty cell is an idle slot, rows may be ragged.

        Blank lines at the end, which editors leave there, are no devices; a blank line between rows is a device
        without actions, which `validate` names. Lists with transfers give a Program. Raises ScheduleError naming row,
        column and cell (all 1-based) of every fault, ConfigError when the file cannot be read.
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
            cls, table, lambda row, column: f"{path}: row {row + 1}, column {column + 1}", name or str(path), slices
        )

    @property
    def devices(self) -> int:
        """Number of devices."""
        return len(self.offsets) - 1

    @cached_property
    def num_stages(self) -> int:
        """Number of stages: the largest stage number plus one."""
        return int(self.stage.max()) + 1 if len(self.stage) else 0

    @cached_property
    def microbatches(self) -> int:
        """Number of microbatches (with `slices` > 1: of slices), over both directions."""
        return int(self.microbatch.max()) + 1 if len(self.microbatch) else 0

    @property
    def microbatches_of_a_step(self) -> int:
        """Whole microbatches of one training step, however they are sliced and however many steps the lists hold."""
        return self.microbatches // (self.slices * self.iterations)

    @property
    def is_program(self) -> bool:
        """Whether the lists hold transfers or sharding actions beside compute actions."""
        return bool((self.kind >= FIRST_TRANSFER).any())

    def __len__(self) -> int:
        """Number of actions; an OVERLAP_F_B slot counts once."""
        return len(self.kind) - int(np.count_nonzero(self.joined))

    @cached_property
    def device(self) -> np.ndarray:
        """Device of each row, int32."""
        return np.repeat(np.arange(self.devices, dtype=np.int32), np.diff(self.offsets))

    @cached_property
    def holdings(self) -> np.ndarray:
        """(device, stage) pairs of every stage that a device holds, sorted, int32 (pairs, 2).

        A stage run by two devices (bidirectional schedules) appears once for each: its weights are held twice.
        """
        keys = np.unique(self.device.astype(np.int64) * max(self.num_stages, 1) + self.stage)
        return np.stack(np.divmod(keys, max(self.num_stages, 1)), axis=1).astype(np.int32)

    def rows(self, device: int) -> slice:
        """The rows of one device; ScheduleError where there is no such device."""
        if not isinstance(device, int | np.integer) or not 0 <= device < self.devices:
            raise ScheduleError(f"device {shown(device)} does not exist; the devices are 0 to {self.devices - 1}")
        return slice(int(self.offsets[device]), int(self.offsets[device + 1]))

    @property
    def weight_copies(self) -> np.ndarray:
        """Weights that each device keeps, in units of one device share of the model (1/devices); float64.

        Stages held, a stage that two devices hold counting on both, times the versions kept.
        """
        held = np.bincount(self.holdings[:, 0], minlength=self.devices)
        return held * self.weight_versions * (self.devices / max(self.num_stages, 1))

    @property
    def traits(self) -> dict[str, Any]:
        """What the lists do not say, as keyword arguments for a schedule or program made from this one."""
        words = ("name", "slices", "iterations", "weight_versions", "evicted")
        return {word: getattr(self, word) for word in words}

    def actions(self, device: int) -> Iterator[Action]:
        """The actions of one device, in list order, made as they are looked at."""
        rows = self.rows(device)
        row, last = rows.start, rows.stop
        while row < last:
            parts = [self._plain(row)]
            while row + len(parts) < last and self.joined[row + len(parts)]:
                parts.append(self._plain(row + len(parts)))
            yield parts[0] if len(parts) == 1 else Action(Kind.OVERLAP_F_B, -1, NO_MICROBATCH, tuple(parts))
            row += len(parts)

    def _plain(self, row: int) -> Action:
        return Action(Kind(int(self.kind[row])), int(self.stage[row]), int(self.microbatch[row]))

    def label(self, row: int) -> str:
        """The text of one row, such as `2F0`; a part of a fused slot gives the part."""
        return str(self._plain(row))

    def orders(self) -> list[list[str]]:
        """For each device the list of its action strings; idle slots are left out."""
        return [[cell for cell in row if cell] for row in self._cells(with_idle=False)]

    def _cells(self, with_idle: bool) -> list[list[str]]:
        names = np.array(KIND_NAMES, object)[self.kind]
        texts = [
            f"{stage}{name}{microbatch}" if microbatch >= 0 else f"{stage}{name}"
            for stage, name, microbatch in zip(self.stage.tolist(), names, self.microbatch.tolist(), strict=True)
        ]
        for row in np.flatnonzero(self.joined).tolist():
            texts[row] = f"({texts[row - 1]};{texts[row]})OVERLAP_F_B"
            texts[row - 1] = ""
        table = []
        for first, last in zip(self.offsets[:-1].tolist(), self.offsets[1:].tolist(), strict=True):
            table.append([text for text in texts[first:last] if text])
        if with_idle:
            self._insert_idle(table)
        return table

    def _insert_idle(self, table: list[list[str]]) -> None:
        idle_of: dict[int, set[int]] = {}
        for device, column in self.idle.tolist():
            idle_of.setdefault(device, set()).add(column)
        for device, idle in idle_of.items():
            texts, columns = iter(table[device]), len(table[device]) + len(idle)
            table[device] = ["" if column in idle else next(texts, "") for column in range(columns)]

    def to_csv(self, path: str | PathLike[str]) -> None:
        """Write one row a device, whole or not at all; idle slots are empty cells (PyTorch reads none in a program)."""
        write_atomically(path, "".join(",".join(row) + "\n" for row in self._cells(with_idle=not self.is_program)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        return self.slices == other.slices and all(
            np.array_equal(getattr(self, column), getattr(other, column))
            for column in ("kind", "stage", "microbatch", "offsets", "joined")
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.name}: {self.devices} devices, {self.num_stages} stages, "
            f"{self.microbatches} microbatches, {len(self)} actions>"
        )

    def to_text(self) -> str:
        """A table of time slots and devices in which each action stands once and idle slots are kept."""
        from ppsim.plots.table import schedule_table

        return schedule_table(self)

    def _repr_html_(self) -> str:
        from ppsim.plots.table import schedule_html

        return schedule_html(self)

    def validate(self) -> None:
        """Raise ScheduleError with every fault found; return None where there is none.

        `error.faults` holds one sentence for each fault. An order in which devices wait for each other is shown as
        the waiting cycle (a DeadlockError where it is the only fault).
        """
        if self._valid:
            return
        from ppsim.faults import find_faults

        find_faults(self)
        self._valid = True

    def check(self, transport: str | None = None, *, pytorch: bool = False) -> None:
        """Raise ScheduleError where the lists are valid but could not run; a schedule is lowered first.

        Always: the transfers of each pair of devices are received in the order in which they are sent.

        Parameters
        ----------
        transport : {"async", "directed", "pair", "rank", "blocking"}, optional
            Also: nothing deadlocks under it. Where that is the only fault, a DeadlockError with the waiting cycle.
        pytorch : bool
            Also what PyTorch's runtime needs and does not check: each stage on one device, the last stage's forwards in
            microbatch order, a REDUCE_GRAD for each stage.
        """
        from ppsim.engines.check import check_program

        check_program(self, transport, pytorch)

    @cached_property
    def source(self) -> np.ndarray:
        """For each row the row whose result it needs from the neighbouring stage, or -1; int32.

        F(s, k) needs F(s-1, k); B or I(s, k) needs B or I(s+1, k). What a row needs of its own stage stands earlier
        in the same list, so it is no entry here.
        """
        # One flat table of rows: the forwards and the backwards by (stage, microbatch), each with an empty stage before
        # and behind, and a part for all other kinds that nobody asks for.
        microbatches = self.microbatches
        size = (self.num_stages + 2) * microbatches
        first = np.full(len(Kind), 2 * size + 1, np.int64)
        first[[Kind.F, Kind.B, Kind.I]] = microbatches, size + microbatches, size + microbatches
        step = np.zeros(len(Kind), np.int64)
        step[[Kind.F, Kind.B, Kind.I]] = -microbatches, microbatches, microbatches
        cell = self.stage.astype(np.int64) * microbatches
        cell += self.microbatch
        cell += first.take(self.kind)
        row_of = np.full(3 * size + 1, -1, np.int32)
        row_of[cell] = np.arange(len(cell), dtype=np.int32)
        cell += step.take(self.kind)
        source = row_of.take(cell)
        source[step.take(self.kind) == 0] = -1
        return source


class Program(Schedule):
    """A schedule lowered: transfers and sharding actions stand in the lists too."""

    @cached_property
    def schedule(self) -> Schedule:
        """The compute actions alone."""
        compute = self.kind < FIRST_TRANSFER
        counts = np.concatenate([[0], np.cumsum(compute)])
        schedule = Schedule(
            self.kind[compute],
            self.stage[compute],
            self.microbatch[compute],
            counts[self.offsets],
            joined=self.joined[compute],
            **self.traits,
        )
        schedule._valid = self._valid
        return schedule


def _from_cells(cls: type[Schedule], table: list, place: Any, name: str, slices: int) -> Schedule:
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
    made = Program if cls is Schedule and (kind >= FIRST_TRANSFER).any() else cls
    return made(
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


def _whole_slices(slices: Any) -> int:
    try:
        count = operator.index(slices)
    except TypeError:
        count = 0
    if isinstance(slices, bool) or not 1 <= count <= MOST_SLICES:
        raise ScheduleError(f"slices={shown(slices)} must be a whole number of at least 1 (and below 2**31)")
    return count
