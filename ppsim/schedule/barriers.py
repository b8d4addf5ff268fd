"""Barriers: rows that wait for many rows, if the output layer is cut over devices (S and T in the lists).

The output of the last stage goes to all devices that hold a part of the layer. A part's gradient needs the softmax
statistics of all parts, and the backward of the last stage needs the input gradients of all parts.
Source: Yeung et al. 2024, Balancing Pipeline Parallelism with Vocabulary Parallelism, arXiv 2411.05288, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ppsim.actions import Kind, is_backward
from ppsim.base.immutable import EqualColumns, SizedColumns, cached_on, list_numbers
from ppsim.schedule.columns import ScheduleColumns

BROADCAST, STATISTICS, GRADIENT = BARRIER_KINDS = range(3)  # in the order in which a microbatch meets them
BARRIER_NAMES = ("broadcast", "reduction of statistics", "reduction of gradient")  # by kind


@dataclass(frozen=True, eq=False)
class Barriers(SizedColumns, EqualColumns):
    """Collectives of one microbatch each, stream by stream; the collectives of one sender run one after the other.

    The sender is the device of the microbatch's last stage. Its list gives the order: a broadcast comes after the F
    whose output it sends, a reduction after the sender's own contribution. If the sender holds no part of the layer,
    reductions have a stream of their own, in the order of the first device with a part. A collective starts when the
    last row that it needs and the collective before it in its stream have ended.
    """

    # int8 (barriers,): BROADCAST of F of the last stage to every S; STATISTICS, reduced over every S for every T;
    # GRADIENT, reduced over every T for the backward of the last stage. If the lists hold no T, S computes the gradient
    # too and the backward waits for STATISTICS.
    kind: np.ndarray
    microbatch: np.ndarray  # int32 (barriers,)
    streams: np.ndarray  # int64 (streams + 1,): stream i holds barriers `streams[i]:streams[i + 1]`
    first: np.ndarray  # int64 (barriers + 1,): barrier i needs the rows `producer[first[i]:first[i + 1]]`
    producer: np.ndarray  # int32 (needed rows,)
    # int32, per row of the schedule: the barrier that it waits for, or -1, as for the S of a broadcast's own sender
    needs: np.ndarray
    # int32, per row of the schedule: F of the last stage that an S of its device needs in place of a broadcast, or -1
    own_output: np.ndarray
    seconds: np.ndarray  # float64 (barriers,); 0 if no costs are known

    @property
    def followed(self) -> np.ndarray:
        """Barriers that are not the last of their stream; the next barrier follows them. int64."""
        return np.delete(np.arange(len(self)), self.streams[1:] - 1)

    @property
    def of_producer(self) -> np.ndarray:
        """The barrier of each entry of `producer`, int32."""
        return list_numbers(self.first)

    def edges(self, rows: int) -> tuple[np.ndarray, np.ndarray]:
        """Return what waits for and what is waited for: pairs of rows and barriers, numbered from `rows` on."""
        earlier, waiting = rows + self.followed, np.flatnonzero(self.needs >= 0)
        before = np.concatenate([self.producer, earlier, rows + self.needs[waiting]])
        return before, np.concatenate([rows + self.of_producer, earlier + 1, waiting])


@cached_on
def find_barriers(schedule: ScheduleColumns) -> Barriers | None:
    """Return the barriers of compute actions, or None without S and T; missing actions add to no barrier."""
    kind, microbatches = schedule.kind, schedule.microbatches
    if not schedule.cuts_vocabulary:
        return None
    of_last = schedule.stage == schedule.num_stages - 1
    made, needed = np.full((2, len(kind)), -1)
    made[of_last & (kind == Kind.F)] = needed[kind == Kind.S] = BROADCAST
    made[kind == Kind.S] = needed[kind == Kind.T] = STATISTICS
    made[kind == Kind.T] = GRADIENT
    needed[of_last & is_backward(kind)] = GRADIENT if (kind == Kind.T).any() else STATISTICS
    key = np.where(made >= 0, made * microbatches + schedule.microbatch, -1)
    keys, number, streams = _streams(schedule, key)
    barrier_of_key = np.full(len(BARRIER_KINDS) * microbatches, -1)
    barrier_of_key[keys] = number
    producer = np.flatnonzero(made >= 0)
    of_producer = barrier_of_key[key[producer]]
    order = np.argsort(of_producer, kind="stable")
    needs = np.where(needed >= 0, barrier_of_key[needed * microbatches + schedule.microbatch], -1)
    own_output = _own_output(schedule, made == BROADCAST)
    barrier_kind, microbatch = np.divmod(keys[np.argsort(number)], microbatches)
    return Barriers(
        barrier_kind.astype(np.int8),
        microbatch.astype(np.int32),
        streams,
        np.searchsorted(of_producer[order], np.arange(len(keys) + 1)),
        producer[order].astype(np.int32),
        np.where(own_output >= 0, -1, needs).astype(np.int32),
        own_output,
        np.zeros(len(keys)),
    )


def _streams(schedule: ScheduleColumns, key: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the keys of the barriers, the number of each in the order of the streams, and the streams' offsets.

    `key` is kind * microbatches + microbatch of the barrier that a row adds to, or -1.
    """
    microbatches = schedule.microbatches
    adding = np.flatnonzero(key >= 0)
    sent = adding[key[adding] < microbatches]
    sender = np.full(microbatches, -1)
    sender[schedule.microbatch[sent]] = schedule.device[sent]
    leader = _leaders(schedule, sender)
    row = np.full(len(BARRIER_KINDS) * microbatches, len(key))
    own = adding[schedule.device[adding] == leader[schedule.microbatch[adding]]]
    row[key[own]] = own  # rows rise, so that the last row of each barrier is written last
    row[key[sent]] = sent
    keys = np.unique(key[adding])
    microbatch = keys % microbatches
    is_broadcast_alone = (keys < microbatches) & (leader != sender)[microbatch]
    of_stream = 2 * sender[microbatch] + is_broadcast_alone
    order = np.lexsort((keys, row[keys], of_stream))
    number = np.empty(len(keys), np.int64)
    number[order] = np.arange(len(keys))
    begins = np.flatnonzero(np.diff(of_stream[order], prepend=-3))
    return keys, number, np.append(begins, len(keys))


def _leaders(schedule: ScheduleColumns, sender: np.ndarray) -> np.ndarray:
    """Return the device whose list orders each microbatch's reductions: the sender, or the first device with a part."""
    part = np.flatnonzero(schedule.kind == Kind.S)
    of_part = sender[schedule.microbatch[part]]
    first = np.full(schedule.devices + 1, schedule.devices)  # the last entry is for microbatches without a sender
    np.minimum.at(first, of_part, schedule.device[part])
    first[of_part[of_part == schedule.device[part]]] = of_part[of_part == schedule.device[part]]
    return first[sender]


def _own_output(schedule: ScheduleColumns, sent: np.ndarray) -> np.ndarray:
    """Return for each S the F of its microbatch's last stage (`sent`) if both are on one device, else -1."""
    output = np.full(schedule.microbatches, -1, np.int32)
    output[schedule.microbatch[sent]] = np.flatnonzero(sent)
    of_row = output[schedule.microbatch]
    own = (schedule.kind == Kind.S) & (of_row >= 0) & (schedule.device[of_row] == schedule.device)
    return np.where(own, of_row, -1).astype(np.int32)


def participants(schedule: ScheduleColumns, barriers: Barriers) -> tuple[np.ndarray, np.ndarray]:
    """Return the device and the barrier of each pair in which one adds to the other or waits for it, sorted."""
    waiting = np.flatnonzero(barriers.needs >= 0)
    device = np.concatenate([schedule.device[barriers.producer], schedule.device[waiting]]).astype(np.int64)
    barrier = np.concatenate([barriers.of_producer, barriers.needs[waiting]])
    return np.divmod(np.unique(device * len(barriers) + barrier), len(barriers))


def spans_devices(schedule: ScheduleColumns, barriers: Barriers) -> np.ndarray:
    """Return whether several devices take part in each barrier, bool; a barrier of one device takes no time."""
    return np.bincount(participants(schedule, barriers)[1], minlength=len(barriers)) > 1


def with_barriers(schedule: ScheduleColumns, source: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return offsets and source of lists in which each row, barriers included, waits for at most one row.

    One list per stream of barriers follows the lists of the devices, with one row per row that its barriers need. The
    last row of a barrier is the source of all rows that wait for the barrier.
    """
    barriers = find_barriers(schedule)
    if barriers is None:
        return schedule.offsets, source
    rows = len(source)
    waiting = np.flatnonzero(barriers.needs >= 0)
    own = source.copy()
    own[waiting] = rows + barriers.first[1:][barriers.needs[waiting]] - 1
    streams = rows + barriers.first[barriers.streams[1:]]
    return np.concatenate([schedule.offsets, streams]), np.concatenate([own, barriers.producer])
