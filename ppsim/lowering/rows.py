"""Steps that all of lowering shares: new rows in lists, and both ends of each transfer."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ppsim.actions import FIRST_TRANSFER, Kind, is_backward, is_send, is_transfer
from ppsim.base.immutable import cached_on, offsets_of
from ppsim.schedule.columns import ScheduleColumns


def insert_rows(
    schedule: ScheduleColumns,
    device: np.ndarray,
    kind: np.ndarray,
    stage: np.ndarray,
    microbatch: np.ndarray | int,
    keys: Sequence[np.ndarray],
) -> ScheduleColumns:
    """Return a program of the schedule's rows and the given ones; `microbatch` may be one number for all new rows.

    `keys` give the order within a device, the most important key last, as for np.lexsort. Each key has one entry per
    row of the schedule, then one per new row. Rows with equal keys keep the order given.
    """
    added = len(device)
    list_of = np.concatenate([schedule.device, device])
    order = np.lexsort((*keys, list_of))
    counts = np.bincount(list_of, minlength=schedule.devices)
    return ScheduleColumns(
        np.concatenate([schedule.kind, kind]).astype(np.int8)[order],
        np.concatenate([schedule.stage, stage]).astype(np.int32)[order],
        np.concatenate([schedule.microbatch, np.broadcast_to(microbatch, added)]).astype(np.int32)[order],
        offsets_of(counts),
        joined=np.concatenate([schedule.joined, np.zeros(added, bool)])[order],
        is_valid=True,
        **schedule.traits,
    )


def insert_at(schedule: ScheduleColumns, rows: np.ndarray, kind: np.ndarray, anchor: np.ndarray) -> ScheduleColumns:
    """Return the lists with an action of each kind for the stage and microbatch of each row, at its anchor.

    Row i of the lists has anchor 2 i + 1; rows with equal anchors keep their order.
    """
    anchors = np.concatenate([2 * np.arange(len(schedule.kind)) + 1, anchor])
    return insert_rows(
        schedule, schedule.device[rows], kind, schedule.stage[rows], schedule.microbatch[rows], (anchors,)
    )  # fmt: skip


@dataclass(frozen=True)
class TransferEnds:
    """The SEND and RECV rows of a valid program, in list order."""

    row: np.ndarray  # int64 (ends,): row of the program
    is_send: np.ndarray  # bool (ends,)
    consumer: np.ndarray  # int64 (ends,): row of the program that needs what is transferred; it names the transfer
    peer: np.ndarray  # int32 (ends,): device of the other end


def transfer_ends(program: ScheduleColumns) -> TransferEnds:
    """Return the transfer of each SEND and RECV, and the device at its other end."""
    row = np.flatnonzero(is_transfer(program.kind))
    kind, stage, microbatch = program.kind[row], program.stage[row], program.microbatch[row]
    sends = is_send(kind)
    is_forward = (kind == Kind.SEND_F) | (kind == Kind.RECV_F)
    consuming_stage = stage + np.where(sends, np.where(is_forward, 1, -1), 0)
    forward_row, backward_row = row_tables(program)
    at = consuming_stage, microbatch
    consumer = np.where(is_forward, forward_row[at], backward_row[at])
    peer = program.device[np.where(sends, consumer, program.source[consumer])]
    return TransferEnds(row, sends, consumer, peer)


def row_tables(schedule: ScheduleColumns) -> tuple[np.ndarray, np.ndarray]:
    """Return the row of F, and of B or I, by [stage, microbatch], or -1."""
    return row_table(schedule, schedule.kind == Kind.F), row_table(schedule, is_backward(schedule.kind))


def row_table(schedule: ScheduleColumns, chosen: np.ndarray) -> np.ndarray:
    """Return the chosen row (bool column) of each stage and microbatch, or -1; int64 (stages, microbatches)."""
    rows, table = np.flatnonzero(chosen), np.full((schedule.num_stages, schedule.microbatches), -1, np.int64)
    table[schedule.stage[rows], schedule.microbatch[rows]] = rows
    return table


def compute_before(program: ScheduleColumns) -> np.ndarray:
    """Return the number of compute rows before each row, and in the whole program; int32 (rows + 1,)."""
    return offsets_of(program.kind < FIRST_TRANSFER).astype(np.int32)


def has_transfers(schedule: ScheduleColumns) -> bool:
    """Return whether the lists hold any SEND or RECV."""
    return bool(is_transfer(schedule.kind).any())


@cached_on
def crosses_devices(schedule: ScheduleColumns) -> np.ndarray:
    """Return True for each row that needs a row of another device, bool (rows,); such a row names the transfer."""
    source, device = schedule.source, schedule.device
    return (source >= 0) & (device.take(source) != device)


@cached_on
def consumers(schedule: ScheduleColumns) -> np.ndarray:
    """Return for each row the row on another device that needs it, or -1; int32."""
    consumer = np.full(len(schedule.kind), -1, np.int32)
    rows = np.flatnonzero(crosses_devices(schedule))
    consumer[schedule.source[rows]] = rows
    return consumer
