"""Least seconds of a step by what a device can have run before a time, and behind one, within what it may hold.

All stages of a device share its limit. Before a time it can have run no more F than fit beside what can have been freed
by then; behind a time no more I, B and W than were held then or are of later F. The rest of the time it idles.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ppsim.schedule.order_bounds import ROUNDING, Chain, least_ends

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
