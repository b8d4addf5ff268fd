"""Lower bounds on the step time by counting: when the nth action of a kind can have ended on a stage, in any order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ppsim.base.compiling import call_fastest, kernel

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
    for count, times, frees in ((count_forward, ends, chain.frees()), (count_backward, tails, f_frees)):
        room = Room(np.zeros(stages), np.zeros(stages), np.zeros(stages * widest * 3, np.int64))
        results.append(times.ravel().copy())
        call_fastest(
            count, times.size, chain, limit, alone, held, frees.ravel(), room, results[-1], *np.zeros((3, stages))
        )
    return results[0].reshape(shape), results[1].reshape(shape)


def _how_many(limit: np.ndarray, amount: np.ndarray) -> np.ndarray:
    """How many of an amount fit; a little more than the limit counts as fitting."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        number = np.where(amount > 0, np.floor(limit / amount * (1 + ROUNDING) + ROUNDING), EVER)
    return np.minimum(number, EVER).astype(np.int64)


@kernel
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


@kernel
def run_more(times, s, start, seconds):
    """Let a stage's time go on by `seconds`, from `start` at the earliest."""
    times[s] = max(times[s], start) + seconds
    return times[s]


@kernel
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


@kernel
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


PASSES = 2  # a third has not been seen to raise the bound
EQUAL = 1e-11  # part of the longest time by which equal times may differ


class Count(NamedTuple):
    """All actions of a kind and stage: when the nth can start and end at the earliest, and what it takes and frees.

    Seconds from the beginning, or for the nth last from the end backwards; there what W and I hold is taken, and F
    frees it.
    """

    starts: np.ndarray
    ends: np.ndarray
    seconds: float
    takes: float
    frees: float


class MostRun(NamedTuple):
    """What a device can have run by some times, seconds of work in rising order, and how long it has idled by then."""

    work: np.ndarray
    idle: np.ndarray
    times: np.ndarray

    def least_seconds(self, work: np.ndarray) -> np.ndarray:
        """Seconds before a device has run so much work, 0 where nothing is known."""
        last = np.searchsorted(self.work, work * (1.0 - ROUNDING)) - 1
        return np.where(last >= 0, work + self.idle[np.maximum(last, 0)], 0.0)


def least_makespan(chains: list[Chain], limits: np.ndarray, enough: float = np.inf) -> np.ndarray:
    """Seconds that no order of the chains' actions beats, by what each device must run, float64 (devices,).

    `limits` is what each device may hold, in the unit of the chains' shares. What a device has idled at least by a time
    raises the least times of its actions, and with them those of other devices; not where `enough` is reached already.
    """
    limits = np.array([_in_whole_amounts(limit, chains, d) for d, limit in enumerate(limits.tolist())])
    known = [least_ends(chain, limits) for chain in chains]
    least, most = _least_steps(chains, known, limits)
    for _ in range(PASSES - 1):
        if least.max() >= enough * (1.0 - ROUNDING):
            break
        known = [
            least_ends(chain, limits, _raised(chain, times, most, limits))
            for chain, times in zip(chains, known, strict=True)
        ]
        least, most = _least_steps(chains, known, limits)
    return least


def _least_steps(chains: list[Chain], known: list, limits: np.ndarray) -> tuple[np.ndarray, list]:
    """Least seconds of a step by each device, and what it can have run before a time and behind one."""
    most = [_most_run(chains, known, d, limit) for d, limit in enumerate(limits.tolist())]
    return np.array([_least_step(chains, d, *sides) for d, sides in enumerate(most)]), most


def _least_step(chains: list[Chain], device: int, before: MostRun, behind: MostRun) -> float:
    """Least seconds of a step by what a device can have run before a time, and the rest behind it."""
    work = sum(chain.number * chain.lengths.reshape(3, -1)[:, chain.device_of == device].sum() for chain in chains)
    rest = work - behind.work  # runs before the last of the times behind
    makespans = np.where(rest > ROUNDING * work, before.least_seconds(rest) + behind.times, work)
    return float(makespans.max(initial=work))


def _in_whole_amounts(limit: float, chains: list[Chain], device: int) -> float:
    """The limit, rounded down to a multiple of the least amount held where all amounts are multiples of it."""
    held = np.concatenate([chain.frees()[:, chain.device_of == device].ravel() for chain in chains])
    least = held[held > 0].min(initial=np.inf)
    times = held / least
    if not limit < np.inf > least or np.any(np.abs(times - np.rint(times)) > ROUNDING):
        return limit
    return float(np.floor(limit / least * (1 + ROUNDING) + ROUNDING) * least)


def _most_run(chains: list[Chain], known: list, device: int, limit: float) -> tuple[MostRun, MostRun]:
    """What a device can have run by each time from the beginning, and from the end backwards."""
    before, behind = [], []
    for chain, (ends, tails) in zip(chains, known, strict=True):
        frees = chain.frees()
        for s in np.flatnonzero(chain.device_of == device):
            for kind, seconds in enumerate(chain.lengths.reshape(3, -1)[:, s].tolist()):
                takes = chain.share[s] if kind == 0 else 0.0
                for counts, times, held in (
                    (before, ends, (takes, frees[kind, s])), (behind, tails, (frees[kind, s], takes))
                ):  # fmt: skip
                    counts.append(Count(times[kind, s] - seconds, times[kind, s], seconds, *held))
    return _most_of(before, limit, len(chains) == 1), _most_of(behind, limit, len(chains) == 1)


def _most_of(counts: list[Count], limit: float, alone: bool) -> MostRun:
    """What can have run by the times at which something more can start.

    `alone`: microbatches go through the stages of the device in one order, so that all kinds that take room must have
    taken it once before anything is freed; for what cannot have started yet, room is kept.
    """
    every = np.concatenate([count.starts for count in counts])
    order = np.argsort(every, kind="stable")
    times = every[order]
    earlier = np.searchsorted(times, times - EQUAL * times[-1])  # how many of all can have started before
    numbers = [len(count.starts) for count in counts]
    kind = np.repeat(np.arange(len(counts)), numbers)[order]
    seconds, takes = (np.array([getattr(count, name) for count in counts]) for name in ("seconds", "takes"))
    taking = takes * (takes @ numbers > limit)

    def started(amount: np.ndarray) -> np.ndarray:
        return np.append(0.0, np.cumsum(amount))[earlier]

    work = started((seconds * (taking == 0))[kind])
    if taking.any():
        begun = {which: started(kind == which) for which in np.flatnonzero(taking).tolist()}
        room = limit + _freed(counts, times)
        if alone:
            room -= sum(takes[which] * (number == 0) for which, number in begun.items())
        for which in sorted(begun, key=lambda which: -seconds[which] / takes[which]):  # most work for its room first
            fitting = np.minimum(begun[which], np.maximum(room, 0.0) / takes[which])
            work += seconds[which] * fitting
            room -= takes[which] * fitting
    return MostRun(np.maximum.accumulate(work), np.maximum.accumulate(times - work), times)


def _freed(counts: list[Count], times: np.ndarray) -> np.ndarray:
    """The most that can have been freed by each time."""
    ends = np.concatenate([count.ends for count in counts])
    order = np.argsort(ends, kind="stable")
    amounts = np.repeat([count.frees for count in counts], [len(count.ends) for count in counts])[order]
    return np.append(0.0, np.cumsum(amounts))[np.searchsorted(ends[order], times, side="right")]


class Forced(NamedTuple):
    """What must have run on a device when something of a stage has, for each microbatch: seconds, and what it frees.

    Attributes
    ----------
    seconds : float
        Of all that must have run of each microbatch.
    held : float
        What of a microbatch was held and must have been freed, but for what the device may hold.
    rate : float
        Least seconds for each amount freed.
    """

    seconds: float
    held: float
    rate: float

    def work(self, number: int, limit: float) -> np.ndarray:
        """Seconds for the first 1, 2, ... `number` microbatches under a limit, float64 (number,)."""
        n = np.arange(1.0, number + 1.0)
        over = np.maximum(n * self.held - limit, 0.0)
        return n * self.seconds + (over * self.rate if over[-1] > 0.0 else 0.0)


def _raised(
    chain: Chain, times: tuple[np.ndarray, np.ndarray], most: list[tuple[MostRun, MostRun]], limits: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The least times, raised to when a device can have run all that must come before an action, or behind it."""
    raised = times[0].copy(), times[1].copy()
    for s, d in enumerate(chain.device_of.tolist()):
        for side, kind, forced in _forced(chain, s):
            least = most[d][side].least_seconds(forced.work(chain.number, float(limits[d])))
            raised[side][kind, s] = np.maximum(raised[side][kind, s], least)
    return raised


def _forced(chain: Chain, s: int) -> list[tuple[int, int, Forced]]:
    """What must have run on its device when the nth F, I and W of stage s end, and behind the nth last I and F.

    (0 before or 1 behind, kind, what). Before the nth F starts, n F of each stage of the device up to s have started,
    and what does not fit was freed, by I or by I and W; before the nth I ends, so have n F of all its stages and n I of
    those from s on, of which W alone may free more. Backwards from the end, W and I take, and F frees.
    """
    own = chain.local[chain.first[s] :]
    own = own[chain.device_of[own] == chain.device_of[s]]
    upper, deeper, above = own[own <= s], own[own >= s], own[own < s]
    f, i, w = chain.lengths.reshape(3, -1)
    _, by_i, by_w = chain.frees()
    by_both = np.minimum(_rate(i, by_i), _rate(i + w, chain.share))
    by_more = np.append(np.minimum(_rate(i, by_i), _rate(w, by_w))[deeper], by_both[above]).min()
    by_f, share = _rate(f, chain.share), chain.share
    to_i, held = f[own].sum() + i[deeper].sum(), share[own].sum() - by_i[deeper].sum()
    return [
        (0, 0, Forced(f[upper].sum(), share[upper].sum(), by_both[upper].min())),
        (0, 1, Forced(to_i, held, by_more)),
        (0, 2, Forced(to_i + w[s], held - by_w[s], by_more)),
        (1, 1, Forced((i + w)[upper].sum(), share[upper].sum(), by_f[upper].min())),
        (1, 0, Forced(f[deeper].sum() + (i + w)[own].sum(), share[above].sum(), by_f[own].min())),
    ]


def _rate(seconds: np.ndarray, amount: np.ndarray) -> np.ndarray:
    """Seconds for each amount; inf where it is none."""
    return np.divide(seconds, amount, out=np.full(len(amount), np.inf), where=amount > 0)
