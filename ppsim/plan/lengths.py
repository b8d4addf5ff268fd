"""How long a row and a transfer last: the one place that turns costs into seconds."""

from __future__ import annotations

from typing import Any

import numpy as np

from ppsim.actions import Kind
from ppsim.costs.pairs import values_between
from ppsim.costs.table import CostTable
from ppsim.schedule.columns import ScheduleColumns


def seconds_by_kind(schedule: ScheduleColumns, table: CostTable) -> np.ndarray:
    """Seconds of F, B, I, W and R by stage, (5, stages); with S or T in the lists theirs too, (7, stages)."""
    again = table.seconds[Kind.F] if table.recompute_seconds is None else table.recompute_seconds
    seconds = np.vstack([table.seconds, again])
    if not schedule.cuts_vocabulary:
        return seconds
    of_part = np.zeros((2, schedule.num_stages)) if table.vocabulary_seconds is None else table.vocabulary_seconds
    if not (schedule.kind == Kind.T).any():
        of_part = np.stack([of_part.sum(axis=0), np.zeros(schedule.num_stages)])
    return np.concatenate([seconds, of_part])


def row_seconds(schedule: ScheduleColumns, table: CostTable) -> np.ndarray:
    """Seconds of each row; of a timed fused slot the first row holds the slot's length and the second 0."""
    seconds = by_kind_and_stage(schedule, seconds_by_kind(schedule, table))
    overhead = None if table.overhead is None else by_kind_and_stage(schedule, table.overhead)
    whole, part = seconds, row_part(schedule, table)
    if part is not None:
        seconds = _sliced(whole, overhead, part)
    if table.overlap is not None:
        first, second, forward, backward = schedule.slots
        slot = table.overlap[schedule.stage[forward], schedule.stage[backward]]
        if part is not None:
            of_slot = None if overhead is None else np.maximum(overhead[first], overhead[second])
            slot = _sliced(slot, of_slot, _mean_part(part, whole, forward, backward))
        seconds[first], seconds[second] = slot, 0.0
    return seconds


def row_part(schedule: ScheduleColumns, table: CostTable) -> np.ndarray | None:
    """Each row's time in units of a whole microbatch of factor 1: its slice's part times its microbatch's factor.

    None where every row is such a microbatch.
    """
    if schedule.slices == 1 and table.microbatch_scale is None:
        return None
    part = table.slice_fraction[schedule.microbatch % schedule.slices]
    return part * table.scale_of(schedule, schedule.stage, schedule.microbatch)


def _mean_part(part: np.ndarray, whole: np.ndarray, forward: np.ndarray, backward: np.ndarray) -> np.ndarray:
    """The part of a fused slot: the mean of its two rows' parts, weighted by their uncut seconds."""
    both = whole[forward] + whole[backward]
    share = np.divide(whole[forward], both, out=np.full_like(both, 0.5), where=both > 0)
    return part[backward] + share * (part[forward] - part[backward])


def _sliced(seconds: np.ndarray, overhead: np.ndarray | None, fraction: np.ndarray) -> np.ndarray:
    """Seconds of a slice of actions that last `seconds` uncut: its part of all but their overhead, and that whole."""
    if overhead is None:
        return seconds * fraction
    overhead = np.minimum(overhead, seconds)
    return (seconds - overhead) * fraction + overhead


def by_kind_and_stage(schedule: ScheduleColumns, values: np.ndarray, rows: slice = slice(None)) -> np.ndarray:
    """For each of these rows of a compute schedule its entry in `values`, F, B, I and W by stage, (4, stages).

    An R takes the entry of F, or that of a fifth row; S and T take those of two more, or 0.
    """
    if schedule.recomputes and len(values) == Kind.R:
        values = np.concatenate([values, values[:1]])
    if schedule.cuts_vocabulary and len(values) <= Kind.T:
        values = np.concatenate([values, np.zeros((Kind.T + 1 - len(values), schedule.num_stages))])
    cell = schedule.kind[rows].astype(np.int64)
    cell *= schedule.num_stages  # in place: at a million rows fresh memory costs more than the sums
    cell += schedule.stage[rows]
    return values.ravel().take(cell)


def transfer_bytes(schedule: ScheduleColumns, table: CostTable, producer: np.ndarray) -> np.ndarray:
    """Return the bytes that each of the rows `producer` sends to another device."""
    backward = schedule.kind.take(producer) != Kind.F
    cell = backward.astype(np.int64) * schedule.num_stages + schedule.stage.take(producer)
    scale = table.scale_of(schedule, schedule.stage[producer], schedule.microbatch[producer])
    return table.transfer_bytes.ravel().take(cell) / schedule.slices * scale


def transfer_seconds(table: CostTable, sender: np.ndarray, receiver: np.ndarray, sent: Any) -> np.ndarray:
    """Return the seconds of transfers of `sent` bytes: latency + bytes / bandwidth, and 0 on one device.

    `sender` and `receiver` are devices, arrays of one shape; `sent` is a number or an array of that shape.
    """
    seconds = sent * table.seconds_per_byte[sender, receiver]
    seconds += table.latency[sender, receiver]
    seconds[np.equal(sender, receiver)] = 0.0
    return seconds


def received_by_kind(schedule: ScheduleColumns, table: CostTable) -> np.ndarray | None:
    """Return the seconds of the transfer that a row of each kind and stage receives, float64 (7, stages).

    None if they depend on more than that: links differ, or microbatches differ in their bytes.
    """
    latency, per_byte = values_between(table.latency), values_between(table.seconds_per_byte)
    microbatches_differ = table.microbatch_scale is not None and table.transfer_bytes.any()
    if microbatches_differ or np.any(latency != latency[0]) or np.any(per_byte != per_byte[0]):
        return None
    forward, backward = table.transfer_bytes / schedule.slices * per_byte[0] + latency[0]
    received = np.zeros((Kind.T + 1, schedule.num_stages))
    received[Kind.F, 1:] = forward[:-1]
    received[[Kind.B, Kind.I], :-1] = backward[1:]
    return received
