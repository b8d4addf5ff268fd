"""Lower bounds on the step time by counting: the earliest end of the nth action of a kind on a stage, in any order.

Microbatches that run on the same devices are interchangeable. The nth F of a stage starts after the nth F of the stage
before it, and when its device has freed enough memory. These times limit the work that a device can have run before a
given time, and the work that it can run after it. Before the time it has run no more F than fit with the memory freed
by then. After the time it runs no more I, B and W than it held then or than belong to later F. Otherwise it idles.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ppsim.base.compiling import call_fastest, kernel

UNLIMITED = 2**31  # more than there are microbatches
ROUNDING = 1e-9  # fraction of an amount by which sums of amounts may differ
TIME_ROUNDING = 1e-11  # fraction of the longest time by which equal times may differ


# When the nth action can end


class DevicePath(NamedTuple):
    """Path of `number` microbatches (or slices) through the same devices, with the smallest of their costs."""

    number: int
    device_of: np.ndarray  # int64 (stages,)
    lengths: np.ndarray  # float64 (3 x stages,): seconds of F, of I or B, and of W (0 if there is none)
    # float64 (2 x stages,): seconds from the end of F to its arrival at the next stage, of I or B at the one before
    waits: np.ndarray
    share: np.ndarray  # float64 (stages,): amount that F adds on its device
    for_weight: np.ndarray  # float64 (stages,): the part of it that W frees; I or B frees the rest
    local: np.ndarray  # int64 (stages,): the stages device by device, in rising order
    first: np.ndarray  # int64 (stages,): `local[first[s] : last[s]]` are the stages of the device of s up to s itself
    last: np.ndarray  # int64 (stages,)

    def frees(self) -> np.ndarray:
        """Return what F, I or B, and W free at their ends, float64 (3, stages)."""
        return np.stack([np.zeros(len(self.share)), self.share - self.for_weight, self.for_weight])


class StageMemory(NamedTuple):
    """Memory that each stage waits for, with "its stages": the stages of its device up to itself."""

    limit: np.ndarray  # float64 (stages,): amount that the device may hold
    held: np.ndarray  # float64 (stages,): amount that a microbatch holds on its stages
    fitting: np.ndarray  # int64 (stages,): number of the amounts for W that fit on the device
    frees: np.ndarray  # float64 (3 x stages,): amounts that F, I or B, and W free at their ends
    # What its stages have freed so far: the amount, the time, and the number of events by stage, position and kind.
    freed: np.ndarray  # float64 (stages,)
    time: np.ndarray  # float64 (stages,)
    counted: np.ndarray  # int64


def device_path(
    number: int,
    device_of: np.ndarray,
    lengths: np.ndarray,
    waits: np.ndarray,
    share: np.ndarray,
    for_weight: np.ndarray,
) -> DevicePath:
    """Return the path of `number` microbatches; the arguments are those of `DevicePath`. Tiny amounts become 0."""
    share = np.where(share > ROUNDING * share.max(), share, 0.0)
    no_part, whole = for_weight < ROUNDING * share, for_weight > (1.0 - ROUNDING) * share
    for_weight = np.select([no_part, whole], [0.0, share], for_weight)
    local = np.argsort(device_of, kind="stable")
    ordered = device_of[local]
    first, last = np.searchsorted(ordered, device_of), np.argsort(local) + 1
    return DevicePath(number, device_of, lengths, waits, share, for_weight, local, first, last)


def earliest_ends(
    path: DevicePath, limits: np.ndarray, known: tuple[np.ndarray, np.ndarray] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return two bounds in seconds on the F, the I or B, and the W of each stage, float64 (3, stages, number) each.

    The first is the earliest end of the nth action. The second is the shortest time from the start of the nth action,
    counted from the last one, to the end of the step. `limits` is the amount that each device may hold; `known` holds
    earlier results of this function, which it raises.
    """
    stages = len(path.device_of)
    shape = 3, stages, path.number
    ends, tails = (np.zeros(shape), np.zeros(shape)) if known is None else known
    limit = limits[path.device_of]
    held = np.append(0.0, np.cumsum(path.share[path.local]))
    held, fitting = held[path.last] - held[path.first], _number_that_fits(limit, path.for_weight)
    freed_by_f = np.stack([path.share, *np.zeros((2, stages))])
    events = 3 * stages * int((path.last - path.first).max())
    results = []
    for loop, times, frees in ((count_forward, ends, path.frees()), (count_backward, tails, freed_by_f)):
        freed, time = np.zeros((2, stages))
        memory = StageMemory(limit, held, fitting, frees.ravel(), freed, time, np.zeros(events, np.int64))
        results.append(times.ravel().copy())
        call_fastest(loop, times.size, path, memory, results[-1])
    return results[0].reshape(shape), results[1].reshape(shape)


def _number_that_fits(limit: np.ndarray, amount: np.ndarray) -> np.ndarray:
    """Return the number of equal amounts that fit in each limit; an excess within `ROUNDING` fits too."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        number = np.where(amount > 0, np.floor(limit / amount * (1 + ROUNDING) + ROUNDING), UNLIMITED)
    return np.minimum(number, UNLIMITED).astype(np.int64)


@kernel
def count_forward(path, memory, ends):
    """Raise `ends` to the earliest end of each action, in the order of microbatches."""
    stages, count = len(path.device_of), path.number
    for k in range(count):
        for s in range(stages):
            start = ends[s * count + k - 1] if k > 0 else 0.0
            if s > 0:
                start = max(start, ends[(s - 1) * count + k] + path.waits[s - 1])
            start = max(start, time_of_free_memory(path, memory, ends, s, k))
            start = max(ends[s * count + k] - path.lengths[s], start)
            ends[s * count + k] = start + path.lengths[s]
        for s in range(stages - 1, -1, -1):
            i, w = (stages + s) * count + k, (2 * stages + s) * count + k
            start = ends[s * count + k]
            if s < stages - 1:
                start = max(start, ends[i + count] + path.waits[stages + s + 1])
            if k > 0:
                start = max(start, ends[i - 1])
            ends[i] = max(ends[i], start + path.lengths[stages + s])
            ends[w] = max(ends[w], ends[i] + path.lengths[2 * stages + s])


@kernel
def time_of_free_memory(path, memory, times, s, k):
    """Return the earliest time at which the device of stage s has memory for the kth microbatch on its stages up to s.

    These stages must have freed what k + 1 microbatches hold above the limit. Their first k events count, in the order
    of their times.
    """
    stages, count, first, found = len(path.device_of), path.number, path.first[s], 0
    widest = len(memory.counted) // (3 * stages)
    needed = (k + 1) * memory.held[s] - memory.limit[s] - ROUNDING * memory.held[s]
    while memory.freed[s] < needed and found >= 0:
        found, soonest, amount = -1, np.inf, 0.0
        for position in range(path.last[s] - first):
            for kind in range(3):
                event = 3 * (s * widest + position) + kind
                cell, n = kind * stages + path.local[first + position], memory.counted[event]
                if n < k and memory.frees[cell] > 0.0 and times[cell * count + n] < soonest:
                    found, soonest, amount = event, times[cell * count + n], memory.frees[cell]
        if found >= 0:
            memory.counted[found] += 1
            memory.freed[s] += amount
            memory.time[s] = max(memory.time[s], soonest)
    return memory.time[s]


@kernel
def count_backward(path, memory, tails):
    """Raise `tails`: like `count_forward`, but from the end of the step backwards."""
    stages, count = len(path.device_of), path.number
    for k in range(count):
        for s in range(stages):
            i, w = (stages + s) * count + k, (2 * stages + s) * count + k
            after = tails[w - 1] if k > 0 else 0.0
            if k >= memory.fitting[s]:
                after = max(after, tails[s * count + k - memory.fitting[s]])
            after = tails[w] = max(tails[w], after + path.lengths[2 * stages + s])
            if s > 0:
                after = max(after, tails[i - count] + path.waits[stages + s])
            if k > 0:
                after = max(after, tails[i - 1])
            after = max(after, time_of_free_memory(path, memory, tails, s, k))
            tails[i] = max(tails[i], after + path.lengths[stages + s])
        for s in range(stages - 1, -1, -1):
            after = tails[(s + 1) * count + k] + path.waits[s] if s < stages - 1 else tails[(stages + s) * count + k]
            if k > 0:
                after = max(after, tails[s * count + k - 1])
            tails[s * count + k] = max(tails[s * count + k], after + path.lengths[s])


# Work that a device can have run by a time


class CountedActions(NamedTuple):
    """All actions of a kind and stage: earliest start and end of the nth, and the amounts that each takes and frees.

    Times are seconds from the beginning, or from the end backwards, where W and I take their amounts and F frees them.
    """

    starts: np.ndarray
    ends: np.ndarray
    seconds: float
    takes: float
    frees: float


class WorkByTime(NamedTuple):
    """Maximum work that a device can have run by each of some rising times, in seconds, and its minimum idle time."""

    work: np.ndarray
    idle: np.ndarray
    times: np.ndarray

    def seconds_for(self, work: np.ndarray, error: np.ndarray | float) -> np.ndarray:
        """Return the shortest time in which a device runs this much work, less `error`; 0 if nothing is known."""
        last = np.searchsorted(self.work, work - error) - 1
        return np.where(last >= 0, work + self.idle[np.maximum(last, 0)], 0.0)


def makespan_bounds(paths: list[DevicePath], limits: np.ndarray, enough: float = np.inf) -> np.ndarray:
    """Return lower bounds on the makespan for every order of the actions, one per device, float64 (devices,).

    `limits` is the amount that each device may hold, in the unit of the shares. The idle time of a device raises the
    earliest times of its actions, and through them those of other devices. If the bounds reach `enough`, this second
    pass is left out. No third pass has raised a bound so far.
    """
    limits = np.array([_in_whole_amounts(limit, paths, d) for d, limit in enumerate(limits.tolist())])
    known = [earliest_ends(path, limits) for path in paths]
    bounds, work = _step_bounds(paths, known, limits)
    if bounds.max() >= enough * (1.0 - ROUNDING):
        return bounds
    raised = [
        earliest_ends(path, limits, _raised(path, times, work, limits))
        for path, times in zip(paths, known, strict=True)
    ]
    return _step_bounds(paths, raised, limits)[0]


def _step_bounds(paths: list[DevicePath], known: list, limits: np.ndarray) -> tuple[np.ndarray, list]:
    """Return the bound of each device, and the work that it can run before and after each time."""
    work = [_work_of_device(paths, known, d, limit) for d, limit in enumerate(limits.tolist())]
    return np.array([_device_bound(paths, d, *sides) for d, sides in enumerate(work)]), work


def _device_bound(paths: list[DevicePath], device: int, before: WorkByTime, after: WorkByTime) -> float:
    """Return the shortest step in which a device runs all its work, part before some time and the rest after it."""
    work = sum(path.number * path.lengths.reshape(3, -1)[:, path.device_of == device].sum() for path in paths)
    rest = work - after.work  # runs before the last of the times from the end
    error = ROUNDING * work  # a small rest is the difference of two sums, so its error is a fraction of the whole
    makespans = np.where(rest > error, before.seconds_for(rest, error) + after.times, work)
    return float(makespans.max(initial=work))


def _in_whole_amounts(limit: float, paths: list[DevicePath], device: int) -> float:
    """Return the limit, rounded down to a multiple of the smallest amount held if all amounts are multiples of it."""
    held = np.concatenate([path.frees()[:, path.device_of == device].ravel() for path in paths])
    unit = held[held > 0].min(initial=np.inf)
    times = held / unit
    if not limit < np.inf > unit or np.any(np.abs(times - np.rint(times)) > ROUNDING):
        return limit
    return float(np.floor(limit / unit * (1 + ROUNDING) + ROUNDING) * unit)


def _work_of_device(paths: list[DevicePath], known: list, device: int, limit: float) -> tuple[WorkByTime, WorkByTime]:
    """Return the work that a device can have run by each time from the beginning, and from the end backwards."""
    before, after = [], []
    for path, (ends, tails) in zip(paths, known, strict=True):
        frees = path.frees()
        for s in np.flatnonzero(path.device_of == device):
            for kind, seconds in enumerate(path.lengths.reshape(3, -1)[:, s].tolist()):
                takes = path.share[s] if kind == 0 else 0.0
                for counted, times, held in (
                    (before, ends, (takes, frees[kind, s])), (after, tails, (frees[kind, s], takes))
                ):  # fmt: skip
                    counted.append(CountedActions(times[kind, s] - seconds, times[kind, s], seconds, *held))
    return _work_by_time(before, limit, len(paths) == 1), _work_by_time(after, limit, len(paths) == 1)


def _work_by_time(counted: list[CountedActions], limit: float, one_path: bool) -> WorkByTime:
    """Return the maximum work by each time at which another action can start.

    With `one_path`, all microbatches pass the stages of the device in one order. All kinds that take memory must then
    have taken it once before anything is freed, so memory is reserved for the kinds that cannot have started yet.
    """
    every = np.concatenate([actions.starts for actions in counted])
    order = np.argsort(every, kind="stable")
    times = every[order]
    earlier = np.searchsorted(times, times - TIME_ROUNDING * times[-1])  # how many of all can have started before
    numbers = [len(actions.starts) for actions in counted]
    kind = np.repeat(np.arange(len(counted)), numbers)[order]
    seconds, takes = (np.array([getattr(actions, name) for actions in counted]) for name in ("seconds", "takes"))
    taking = takes * (takes @ numbers > limit)

    def started(amount: np.ndarray) -> np.ndarray:
        return np.append(0.0, np.cumsum(amount))[earlier]

    work = started((seconds * (taking == 0))[kind])
    if taking.any():
        begun = {number: started(kind == number) for number in np.flatnonzero(taking).tolist()}
        free = limit + _freed(counted, times)
        if one_path:
            free -= sum(takes[number] * (starts == 0) for number, starts in begun.items())
        for number in sorted(begun, key=lambda number: -seconds[number] / takes[number]):  # most work per memory first
            fitting = np.minimum(begun[number], np.maximum(free, 0.0) / takes[number])
            work += seconds[number] * fitting
            free -= takes[number] * fitting
    return WorkByTime(np.maximum.accumulate(work), np.maximum.accumulate(times - work), times)


def _freed(counted: list[CountedActions], times: np.ndarray) -> np.ndarray:
    """Return the maximum amount that can have been freed by each time."""
    ends = np.concatenate([actions.ends for actions in counted])
    order = np.argsort(ends, kind="stable")
    amounts = np.repeat([actions.frees for actions in counted], [len(actions.ends) for actions in counted])[order]
    return np.append(0.0, np.cumsum(amounts))[np.searchsorted(ends[order], times, side="right")]


# Earliest ends raised by idle time

BEFORE, AFTER = range(2)  # sides of an action, as the two results of `earliest_ends`


class RequiredWork(NamedTuple):
    """Work that must have run on a device before an action of a stage ends, per microbatch."""

    seconds: float
    held: float  # amount that a microbatch held and must have freed, except for the part that the device may still hold
    rate: float  # minimum seconds per amount freed

    def work(self, number: int, limit: float) -> np.ndarray:
        """Return the seconds for the first 1, 2, ... `number` microbatches under a limit, float64 (number,)."""
        n = np.arange(1.0, number + 1.0)
        over = np.maximum(n * self.held - limit, 0.0)
        return n * self.seconds + (over * self.rate if over[-1] > 0.0 else 0.0)


def _raised(
    path: DevicePath,
    times: tuple[np.ndarray, np.ndarray],
    work: list[tuple[WorkByTime, WorkByTime]],
    limits: np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the times, raised by the time that a device needs for all work before each action, or after it."""
    raised = times[0].copy(), times[1].copy()
    for s, d in enumerate(path.device_of.tolist()):
        for side, kind, required in _required_work(path, s):
            seconds = required.work(path.number, float(limits[d]))
            shortest = work[d][side].seconds_for(seconds, ROUNDING * seconds)
            raised[side][kind, s] = np.maximum(raised[side][kind, s], shortest)
    return raised


def _required_work(path: DevicePath, s: int) -> list[tuple[int, int, RequiredWork]]:
    """Return the work required before the nth F, I and W of stage s end, and after the nth last I and F.

    Each entry is (`BEFORE` or `AFTER`, kind, work). Before the nth F starts, n F of each stage of the device up to s
    have started, and I, or I and W, have freed the excess over the limit. Before the nth I ends, n F of all stages of
    the device and n I of the stages from s on have ended; W alone may free more. Backwards, W and I take what F frees.
    """
    own = path.local[path.first[s] :]
    own = own[path.device_of[own] == path.device_of[s]]
    upper, deeper, above = own[own <= s], own[own >= s], own[own < s]
    f, i, w = path.lengths.reshape(3, -1)
    _, by_i, by_w = path.frees()
    by_both = np.minimum(_rate(i, by_i), _rate(i + w, path.share))
    by_more = np.append(np.minimum(_rate(i, by_i), _rate(w, by_w))[deeper], by_both[above]).min()
    by_f, share = _rate(f, path.share), path.share
    to_i, held = f[own].sum() + i[deeper].sum(), share[own].sum() - by_i[deeper].sum()
    return [
        (BEFORE, 0, RequiredWork(f[upper].sum(), share[upper].sum(), by_both[upper].min())),
        (BEFORE, 1, RequiredWork(to_i, held, by_more)),
        (BEFORE, 2, RequiredWork(to_i + w[s], held - by_w[s], by_more)),
        (AFTER, 1, RequiredWork((i + w)[upper].sum(), share[upper].sum(), by_f[upper].min())),
        (AFTER, 0, RequiredWork(f[deeper].sum() + (i + w)[own].sum(), share[above].sum(), by_f[own].min())),
    ]


def _rate(seconds: np.ndarray, amount: np.ndarray) -> np.ndarray:
    """Return the seconds per amount; inf if the amount is 0."""
    return np.divide(seconds, amount, out=np.full(len(amount), np.inf), where=amount > 0)
