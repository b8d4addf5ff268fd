"""Barriers: who waits for many at once, where an output layer is cut over devices (S and T in the lists).

The output of the last stage goes to all devices that hold a part; a part's gradient needs the softmax statistics of all
parts, and the backward of the last stage needs the input gradient of all.
Source: Yeung et al. 2024, Balancing Pipeline Parallelism with Vocabulary Parallelism, arXiv 2411.05288, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ppsim.actions import Kind, is_backward
from ppsim.base.immutable import EqualColumns, kept
from ppsim.base.lists import Counted, list_of_rows
from ppsim.schedule.columns import ScheduleColumns

BROADCAST, STATISTICS, GRADIENT = BARRIER_KINDS = range(3)  # in the order in which a microbatch meets them


@dataclass(frozen=True, eq=False)
class Barriers(Counted, EqualColumns):
    """Collectives of one microbatch each: they start when the last row that they need has ended, and nothing queues.

    Attributes
    ----------
    kind : int8 (barriers,)
        BROADCAST of F of the last stage to every S; STATISTICS, reduced over every S for every T; GRADIENT, reduced
        over every T for the backward of the last stage. Where no T stands in the lists, S makes the gradient too and
        the backward waits for STATISTICS.
    microbatch : int32 (barriers,)
    first : int64 (barriers + 1,)
        Barrier i needs the rows `producer[first[i]:first[i + 1]]`.
    producer : int32 (needed rows,)
    needs : int32, one entry a row of the schedule
        The barrier that the row waits for, or -1.
    """

    kind: np.ndarray
    microbatch: np.ndarray
    first: np.ndarray
    producer: np.ndarray
    needs: np.ndarray

    @property
    def of_producer(self) -> np.ndarray:
        """The barrier of each entry of `producer`, int32."""
        return list_of_rows(self.first)

    def is_of(self, kind: int, barrier: np.ndarray) -> np.ndarray:
        """Where a column of barriers, -1 for none, names one of this kind."""
        return (barrier >= 0) & (self.kind[barrier] == kind)


@kept
def find_barriers(schedule: ScheduleColumns) -> Barriers | None:
    """The barriers of compute actions, or None where they hold no S and no T; what is missing needs nothing."""
    kind, microbatches = schedule.kind, schedule.microbatches
    if not schedule.cuts_vocabulary:
        return None
    of_last = schedule.stage == schedule.num_stages - 1
    made, needed = np.full((2, len(kind)), -1)
    made[of_last & (kind == Kind.F)] = needed[kind == Kind.S] = BROADCAST
    made[kind == Kind.S] = needed[kind == Kind.T] = STATISTICS
    made[kind == Kind.T] = GRADIENT
    needed[of_last & is_backward(kind)] = GRADIENT if (kind == Kind.T).any() else STATISTICS
    producer, user = np.flatnonzero(made >= 0), np.flatnonzero(needed >= 0)
    key = made[producer] * microbatches + schedule.microbatch[producer]
    order = np.argsort(key, kind="stable")
    keys, first = np.unique(key[order], return_index=True)
    wanted = needed[user] * microbatches + schedule.microbatch[user]
    found = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    needs = np.full(len(kind), -1, np.int32)
    needs[user] = np.where(keys[found] == wanted, found, -1)
    barrier_kind, microbatch = np.divmod(keys, microbatches)
    return Barriers(
        barrier_kind.astype(np.int8),
        microbatch.astype(np.int32),
        np.append(first, len(order)),
        producer[order].astype(np.int32),
        needs,
    )


def with_barriers(schedule: ScheduleColumns, source: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lists in which each row waits for one row at most, barriers among them: offsets and source.

    Behind the lists of the devices stands one list a barrier, with a row for each row that it needs; the last of them
    is the source of all that wait for it.
    """
    barriers = find_barriers(schedule)
    if barriers is None:
        return schedule.offsets, source
    rows = len(source)
    waiting = np.flatnonzero(barriers.needs >= 0)
    own = source.copy()
    own[waiting] = rows + barriers.first[1:][barriers.needs[waiting]] - 1
    return np.concatenate([schedule.offsets, rows + barriers.first[1:]]), np.concatenate([own, barriers.producer])


def awaited_rows(schedule: ScheduleColumns, source: np.ndarray, position: np.ndarray) -> np.ndarray:
    """For each row the row that it waits for, or -1: its source, or of its barrier the first that has not run.

    Devices stand at `position`. A barrier whose rows have all run is waited for by nobody.
    """
    barriers = find_barriers(schedule)
    if barriers is None:
        return source
    missing = barriers.producer >= position[schedule.device[barriers.producer]]
    first = np.full(len(barriers), -1, np.int64)
    late = np.flatnonzero(missing)[::-1]
    first[barriers.of_producer[late]] = barriers.producer[late]
    return np.where(barriers.needs >= 0, first[barriers.needs], source)
