"""ScheduleColumns: the ordered list of each device's actions, as read-only columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ppsim.actions import FIRST_TRANSFER, NO_MICROBATCH, Action, Kind, is_backward, is_copy, is_vocabulary
from ppsim.base.errors import ScheduleError, shown, visible
from ppsim.base.immutable import cached_column, distinct, index_in, list_numbers, offsets_of, read_only
from ppsim.base.rules import argument, checked_methods, is_whole, whole_number
from ppsim.base.units import counted
from ppsim.schedule.blocks import Block

MAX_SLICES = 2**31 - 1
_TRAITS = ("slices", "iterations", "weight_versions", "evicted", "prefetched")
_COMPARED = ("kind", "stage", "microbatch", "offsets", "joined", *_TRAITS)
_ARGUMENTS = (*_COMPARED, "idle", "name", "is_valid", "found")


class Slots(NamedTuple):
    """Rows of OVERLAP_F_B slots, int64 arrays with one entry per slot: as written, and as F and B."""

    first: np.ndarray
    second: np.ndarray
    forward: np.ndarray
    backward: np.ndarray


@checked_methods
class ScheduleColumns:
    """Ordered actions per device, as flat columns; device d owns rows `offsets[d]:offsets[d + 1]`.

    The text forms do not contain evictions and prefetched inputs.
    """

    kind: np.ndarray  # int8, codes of `ppsim.actions.Kind`; an OVERLAP_F_B slot is two rows, an F and a B
    stage: np.ndarray  # int32
    microbatch: np.ndarray  # int32
    offsets: np.ndarray  # int64 (devices + 1,)
    joined: np.ndarray  # bool: the row is the second part of the OVERLAP_F_B slot before it
    # int32 (idle slots, 2): device and column of each empty cell of the table, for drawing and CSV; it takes no time
    idle: np.ndarray
    name: str  # family name, or the file that the schedule was read from; control characters are escaped (`visible`)
    slices: int  # of each microbatch along the sequence; slice i of a microbatch has number microbatch * slices + i
    iterations: int  # training steps without a drain between them; microbatch numbers run on over them
    # int (devices,): versions of its weights that a device keeps for microbatches under way; 1 if synchronous
    weight_versions: np.ndarray
    # int32 (evictions, 3): stage, microbatch and host of each activation that waits for its backward on another device,
    # the host. It moves there when its F ends and is back when its backward starts.
    evicted: np.ndarray
    # int32 (prefetched inputs, 2): stage and microbatch of each F whose input the step before has computed. The F of
    # the stage before it runs for the next step, so that neither waits for the other.
    prefetched: np.ndarray
    is_valid: bool
    found: str  # note of the search that built it: method, gap to a bound, possible gains; else empty. Not compared

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
        prefetched: np.ndarray | None = None,
        is_valid: bool = False,
        found: str = "",
    ):
        devices = len(offsets) - 1
        self.__dict__.update(
            kind=read_only(kind),
            stage=read_only(stage),
            microbatch=read_only(microbatch),
            offsets=read_only(offsets),
            joined=read_only(np.zeros(len(kind), bool) if joined is None else joined),
            idle=read_only(np.empty((0, 2), np.int32) if idle is None else idle),
            name=visible(name),
            slices=argument("slices", slices, whole_number(1, MAX_SLICES), ScheduleError),
            iterations=iterations,
            weight_versions=read_only(np.ones(devices, np.int64) if weight_versions is None else weight_versions),
            evicted=read_only(np.empty((0, 3), np.int32) if evicted is None else evicted),
            prefetched=read_only(np.empty((0, 2), np.int32) if prefetched is None else prefetched),
            is_valid=is_valid,
            found=found,
        )

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"{name} cannot be set: a schedule is never changed; make another one of changed lists")

    def mark_valid(self, source: np.ndarray | None = None) -> None:
        """Store that the validator found no fault, and `source` if the validator computed it; columns never change."""
        if source is not None and (source.dtype.kind != "i" or source.shape != self.kind.shape):
            raise ScheduleError(f"source={shown(source)} must hold one row number per action")
        self.__dict__["is_valid"] = True
        if source is not None:
            self.__dict__["source"] = read_only(source)

    def __getstate__(self) -> dict[str, Any]:
        """Return what copies and pickles carry: the arguments of the constructor, without cached views."""
        return {name: getattr(self, name) for name in _ARGUMENTS}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)

    @classmethod
    def from_blocks(cls, blocks: Iterable[Block], **traits: Any) -> ScheduleColumns:
        """Return a schedule from one Block of rows per device; `traits` are the other arguments of the constructor."""
        tables = [np.empty((4, 0), np.int32), *(block.table for block in blocks)]
        kind, stage, microbatch, joined = (
            np.concatenate([table[row] for table in tables], dtype=dtype, casting="unsafe")
            for row, dtype in enumerate((np.int8, np.int32, np.int32, np.bool_))
        )
        offsets = np.cumsum([table.shape[1] for table in tables])
        return cls(kind, stage, microbatch, offsets, joined=joined, **traits)

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

    @cached_property
    def is_program(self) -> bool:
        """True if the lists hold transfers, sharding actions or copies to host memory, not only compute actions."""
        return len(self.kind) > 0 and int(self.kind.max()) >= FIRST_TRANSFER

    @cached_property
    def recomputes(self) -> bool:
        """True if the lists hold any R."""
        return bool((self.kind == int(Kind.R)).any())

    @cached_property
    def cuts_vocabulary(self) -> bool:
        """True if the lists hold any S or T: the output layer is cut over devices."""
        return bool(is_vocabulary(self.kind).any())

    @cached_column
    def recomputed(self) -> np.ndarray:
        """True for each row whose stage and microbatch have an R; bool."""
        cell = self.stage.astype(np.int64) * self.microbatches + self.microbatch
        return np.isin(cell, cell[self.kind == Kind.R])

    @property
    def compute(self) -> ScheduleColumns:
        """The compute actions alone; the schedule itself if it holds nothing else."""
        return self._compute_of_program if self.is_program else self  # caching itself would make a reference cycle

    @cached_property
    def _compute_of_program(self) -> ScheduleColumns:
        return self._only(self.kind < FIRST_TRANSFER)

    @property
    def unlowered(self) -> ScheduleColumns:
        """The lists without transfers and sharding actions: compute actions and copies to host memory and back."""
        return self._only((self.kind < FIRST_TRANSFER) | is_copy(self.kind))

    def _only(self, chosen: np.ndarray) -> ScheduleColumns:
        if chosen.all():
            return self
        return select_rows(self, chosen, offsets_of(chosen)[self.offsets], is_valid=self.is_valid)

    def __len__(self) -> int:
        """Number of actions; an OVERLAP_F_B slot counts once."""
        return len(self.kind) - int(np.count_nonzero(self.joined))

    @cached_column
    def first_rows(self) -> np.ndarray:
        """The row with which each action begins, int64: every row but the second of an OVERLAP_F_B slot."""
        return np.flatnonzero(~self.joined)

    @cached_column
    def action_of_row(self) -> np.ndarray:
        """Number of the action that each row belongs to, int64."""
        return np.cumsum(~self.joined) - 1

    @cached_column
    def slots(self) -> Slots:
        """The rows of the OVERLAP_F_B slots."""
        second = np.flatnonzero(self.joined)
        first = second - 1
        forward = np.where(self.kind[first] == Kind.F, first, second)
        return Slots(first, second, forward, first + second - forward)

    @property
    def iteration(self) -> np.ndarray:
        """Iteration of each row, by its microbatch."""
        return self.microbatch // max(self.microbatches // self.iterations, 1)

    @cached_column
    def device(self) -> np.ndarray:
        """Device of each row, int32."""
        return list_numbers(self.offsets)

    @cached_column
    def holdings(self) -> np.ndarray:
        """(device, stage) pairs of every stage that a device holds, sorted, int32 (pairs, 2).

        A stage that two devices run (bidirectional schedules) appears once per device: its weights are held twice.
        """
        keys = distinct(self.device.astype(np.int64) * max(self.num_stages, 1) + self.stage)
        return np.stack(np.divmod(keys, max(self.num_stages, 1)), axis=1).astype(np.int32)

    def rows(self, device: int) -> slice:
        """Return the rows of one device; ScheduleError if there is no such device."""
        if not is_whole(device) or device >= self.devices:
            raise ScheduleError(f"device {shown(device)} does not exist; the devices are 0 to {self.devices - 1}")
        return slice(int(self.offsets[device]), int(self.offsets[device + 1]))

    @property
    def stages_held(self) -> np.ndarray:
        """Number of stages of each device, int64."""
        return np.bincount(self.holdings[:, 0], minlength=self.devices)

    @property
    def weight_copies(self) -> np.ndarray:
        """Weights that each device keeps, in units of one device share of the model (1/devices); float64.

        This is the number of its stages times the versions of its weights. A stage on two devices counts on both.
        """
        return self.stages_held * self.weight_versions * (self.devices / max(self.num_stages, 1))

    def named(self, name: str, found: str | None = None) -> ScheduleColumns:
        """Return the same lists under another name, and with another `found` if one is given."""
        changed: dict[str, Any] = {"name": name, "found": self.found if found is None else found}
        return type(self)(**self.__getstate__() | changed)

    @property
    def traits(self) -> dict[str, Any]:
        """Keyword arguments of the constructor for a schedule derived from this one."""
        return {name: getattr(self, name) for name in ("name", *_TRAITS)}

    def actions(self, device: int) -> Iterator[Action]:
        """Yield the actions of one device in list order."""
        rows, joined = self.rows(device), np.append(self.joined, False)
        for row in range(rows.start, rows.stop):
            if joined[row + 1]:
                yield Action(Kind.OVERLAP_F_B, -1, NO_MICROBATCH, (self._plain(row), self._plain(row + 1)))
            elif not joined[row]:
                yield self._plain(row)

    def _plain(self, row: int) -> Action:
        return Action(Kind(int(self.kind[row])), int(self.stage[row]), int(self.microbatch[row]))

    def label(self, row: int) -> str:
        """Return the text of one row, such as `2F0`; a part of a fused slot gives the part."""
        if not 0 <= row < len(self.kind):
            raise ScheduleError(f"row {shown(row)} does not exist; the rows are 0 to {len(self.kind) - 1}")
        return str(self._plain(row))

    def __eq__(self, other: object) -> bool:
        """Return whether both hold the same lists and traits; names and idle cells do not count."""
        if not isinstance(other, ScheduleColumns):
            return NotImplemented
        return all(np.array_equal(getattr(self, name), getattr(other, name)) for name in _COMPARED)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.name}: {counted(self.devices, 'device')}, "
            f"{counted(self.num_stages, 'stage')}, {counted(self.microbatches, 'microbatch')}, "
            f"{counted(len(self), 'action')}>"
        )

    @cached_column
    def source(self) -> np.ndarray:
        """Row whose result each row needs from the neighbouring stage, or -1 (also for prefetched inputs); int32.

        F(s, k) needs F(s-1, k); B or I(s, k) needs B or I(s+1, k). Inputs from the row's own stage come earlier in the
        same list and have no entry. The lists may be invalid: of a doubled action the last one counts.
        """
        pairs = self.stage.astype(np.int64) * self.microbatches + self.microbatch
        source = np.full(len(pairs), -1, np.int32)
        for chosen, step in ((self.kind == Kind.F, -self.microbatches), (is_backward(self.kind), self.microbatches)):
            rows = np.flatnonzero(chosen)
            order = rows[np.argsort(pairs[rows], kind="stable")]
            last = order[np.append(np.diff(pairs[order]) != 0, True)[: len(order)]]
            source[rows] = np.append(last, -1)[index_in(pairs[last], pairs[rows] + step)]
        if len(self.prefetched):
            named = np.isin(pairs, self.prefetched @ np.array([self.microbatches, 1]))
            source[named & (self.kind == Kind.F)] = -1
        return source


def select_rows(
    schedule: ScheduleColumns, rows: np.ndarray | slice, offsets: np.ndarray, **changed: Any
) -> ScheduleColumns:
    """Return the lists of these rows, cut at `offsets`; `changed` are arguments of the constructor."""
    columns = schedule.kind[rows], schedule.stage[rows], schedule.microbatch[rows], offsets
    return ScheduleColumns(*columns, **{"joined": schedule.joined[rows], **schedule.traits, **changed})
