"""Least times of a step by counting: when the nth of a kind can have ended on a stage, whatever the order.

Microbatches that run on the same devices need not be told apart: the nth F of a stage starts after the nth of the stage
before it, and when what its device may hold leaves room for it.
"""

from typing import NamedTuple

import numpy as np

from ppsim.base.compiling import part, run_where_it_pays

EVER = 2**31  # more than there are microbatches
ROUNDING = 1e-9  # part of an amount by which sums of amounts may differ


class Chain(NamedTuple):
    """Microbatches (or slices) that run on the same devices, `number` of them, with the least of their costs.

    Attributes
    ----------
    number : int
    device_of : int64 (stages,)
    lengths : float64 (3 x stages,)
        Seconds of F, of I or B, and of W (0 where there is none).
    waits : float64 (2 x stages,)
        Seconds from the end of F to its arrival at the next stage, and of I or B at the one before.
    share, kept : float64 (stages,)
        What F adds to what its device holds, and the part of it that W frees; I or B frees the rest.
    local, first, last : int64 (stages,)
        Stages device by device, the deepest of each last; those of the same device up to stage s, and s itself last,
        stand at `local[first[s] : last[s]]`.
    between : float64 (stages,)
        Seconds of F and I or B that a device runs of its deeper stages between F and I or B of the same microbatch.
    """

    number: int
    device_of: np.ndarray
    lengths: np.ndarray
    waits: np.ndarray
    share: np.ndarray
    kept: np.ndarray
    local: np.ndarray
    first: np.ndarray
    last: np.ndarray
    between: np.ndarray

    def frees(self) -> np.ndarray:
        """What F, I or B, and W free at their ends, float64 (3, stages)."""
        return np.stack([np.zeros(len(self.share)), self.share * (1.0 - self.kept), self.share * self.kept])


class Room(NamedTuple):
    """How far `time_of_room` has come, by stage: what is free by then, that time, and the events that it counted."""

    freed: np.ndarray
    time: np.ndarray
    taken: np.ndarray  # by stage, place among the stages of its device, and kind


def chain_of(
    count: int, device_of: np.ndarray, lengths: np.ndarray, waits: np.ndarray, share: np.ndarray, kept: np.ndarray
) -> Chain:
    """A chain of `count` microbatches; the arguments are those of `Chain`. Amounts too small to count are none."""
    share = np.where(share > ROUNDING * share.max(), share, 0.0)
    kept = np.select([kept < ROUNDING, kept > 1.0 - ROUNDING], [0.0, 1.0], kept)
    local = np.argsort(device_of, kind="stable")
    ordered = device_of[local]
    first, last = np.searchsorted(ordered, device_of), np.argsort(local) + 1
    runs = np.append(0.0, np.cumsum(lengths.reshape(3, -1)[:2].sum(axis=0)[local]))
    between = runs[np.searchsorted(ordered, device_of, side="right")] - runs[last]
    return Chain(count, device_of, lengths, waits, share, kept, local, first, last, between)


def least_ends(
    chain: Chain, limits: np.ndarray, known: tuple[np.ndarray, np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Least seconds before the nth F, I or B, W of each stage ends, and from the start of the nth last to the end.

    float64 (3, stages, number) each. `limits` are what each device may hold; `known` are such times that hold anyway.
    """
    stages = len(chain.device_of)
    shape = 3, stages, chain.number
    ends, tails = (np.zeros(shape), np.zeros(shape)) if known is None else known
    limit = limits[chain.device_of]
    alone = _how_many(limit, chain.share * chain.kept)
    held = np.append(0.0, np.cumsum(chain.share[chain.local]))
    held = held[chain.last] - held[chain.first]
    f_frees = np.stack([chain.share, *np.zeros((2, stages))])
    widest = int((chain.last - chain.first).max())
    results = []
    for kernel, times, frees in ((count_forward, ends, chain.frees()), (count_backward, tails, f_frees)):
        room = Room(np.zeros(stages), np.zeros(stages), np.zeros(stages * widest * 3, np.int64))
        results.append(times.ravel().copy())
        run_where_it_pays(
            kernel, times.size, chain, limit, alone, held, frees.ravel(), room, results[-1], *np.zeros((3, stages))
        )
    return results[0].reshape(shape), results[1].reshape(shape)


def _how_many(limit: np.ndarray, amount: np.ndarray) -> np.ndarray:
    """How many of an amount fit; a little more than the limit counts as fitting."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        number = np.where(amount > 0, np.floor(limit / amount * (1 + ROUNDING) + ROUNDING), EVER)
    return np.minimum(number, EVER).astype(np.int64)


def count_forward(chain, limit, alone, held, frees, room, ends, full, whole, back):
    """Raise `ends`; the last three keep what a device has run of a stage at least: by F to W, F to I, and I to W."""
    stages, count = len(chain.device_of), chain.number
    for k in range(count):
        for s in range(stages):
            start = ends[s * count + k - 1] if k > 0 else 0.0
            if s > 0:
                start = max(start, ends[(s - 1) * count + k] + chain.waits[s - 1])
            start = max(start, time_of_room(chain, frees, room, ends, s, k, (k + 1) * held[s] - limit[s], held[s]))
            start = max(ends[s * count + k] - chain.lengths[s], start)
            ends[s * count + k] = start + chain.lengths[s]
            from_forward = chain.lengths[s] + chain.between[s] + chain.lengths[stages + s]
            run_more(whole, s, start, from_forward)
            run_more(full, s, start, from_forward + chain.lengths[2 * stages + s])
        for s in range(stages - 1, -1, -1):
            i, w = (stages + s) * count + k, (2 * stages + s) * count + k
            start = ends[s * count + k]
            if s < stages - 1:
                start = max(start, ends[i + count] + chain.waits[stages + s + 1])
            if k > 0:
                start = max(start, ends[i - 1])
            length, weight = chain.lengths[stages + s], chain.lengths[2 * stages + s]
            ends[i] = max(ends[i], start + length, whole[s])
            ends[w] = max(ends[w], ends[i] + weight, full[s], run_more(back, s, ends[i] - length, length + weight))


@part
def run_more(times, s, start, seconds):
    """Let a stage's time go on by `seconds`, from `start` at the earliest."""
    times[s] = max(times[s], start) + seconds
    return times[s]


@part
def time_of_room(chain, frees, room, times, s, k, needed, held):
    """Least seconds before the stages of a device up to s have freed as much as is `needed` by events before the kth.

    What is freed soonest counts first, whichever stage frees it.
    """
    stages, count, first, found = len(chain.device_of), chain.number, chain.first[s], 0
    widest = len(room.taken) // (3 * stages)
    while room.freed[s] < needed - ROUNDING * held and found >= 0:
        found, soonest, amount = -1, np.inf, 0.0
        for place in range(chain.last[s] - first):
            for kind in range(3):
                event = 3 * (s * widest + place) + kind
                cell, n = kind * stages + chain.local[first + place], room.taken[event]
                if n < k and frees[cell] > 0.0 and times[cell * count + n] < soonest:
                    found, soonest, amount = event, times[cell * count + n], frees[cell]
        if found >= 0:
            room.taken[found] += 1
            room.freed[s] += amount
            room.time[s] = max(room.time[s], soonest)
    return room.time[s]


def count_backward(chain, limit, alone, held, frees, room, tails, full, whole, back):
    """Raise `tails`, as `count_forward` from the end."""
    stages, count = len(chain.device_of), chain.number
    for k in range(count):
        for s in range(stages):
            i, w = (stages + s) * count + k, (2 * stages + s) * count + k
            length, weight = chain.lengths[stages + s], chain.lengths[2 * stages + s]
            behind = tails[w - 1] if k > 0 else 0.0
            if k >= alone[s]:
                behind = max(behind, tails[s * count + k - alone[s]])
            tails[w] = max(tails[w], behind + weight)
            run_more(full, s, behind, chain.lengths[s] + chain.between[s] + length + weight)
            run_more(back, s, behind, length + weight)
            behind = tails[w]
            if s > 0:
                behind = max(behind, tails[i - count] + chain.waits[stages + s])
            if k > 0:
                behind = max(behind, tails[i - 1])
            behind = max(behind, time_of_room(chain, frees, room, tails, s, k, (k + 1) * held[s] - limit[s], held[s]))
            tails[i] = max(tails[i], behind + length, back[s])
            run_more(whole, s, tails[i] - length, chain.lengths[s] + chain.between[s] + length)
        for s in range(stages - 1, -1, -1):
            behind = tails[(s + 1) * count + k] + chain.waits[s] if s < stages - 1 else tails[(stages + s) * count + k]
            if k > 0:
                behind = max(behind, tails[s * count + k - 1])
            tails[s * count + k] = max(tails[s * count + k], behind + chain.lengths[s], full[s], whole[s])
