"""Least times of a step by counting: when the nth of a kind can have ended on a stage, whatever the order.

Microbatches that run on the same devices need not be told apart: the nth F of a stage starts after the nth of the stage
before it, and while a device holds at most so many, the nth after the one so many before it was freed.
"""

from typing import NamedTuple

import numpy as np

from ppsim.base.compiling import part, run_where_it_pays
from ppsim.base.distinct import distinct

THRESHOLDS = 48  # times before which, and behind which, work is counted on a device
EVER = 2**31  # more than there are microbatches


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
    whole, kept : int64 (stages,)
        How many of a stage fit between F and the end of I or B, and the parts that live until W; `EVER`: any number.
    between : float64 (stages,)
        Seconds of F and I or B that a device runs of its deeper stages between F and I or B of the same microbatch.
    deepest : int64 (stages,)
        The deepest stage of the same device where `whole` of this one leave it no room, else -1.
    """

    number: int
    device_of: np.ndarray
    lengths: np.ndarray
    waits: np.ndarray
    whole: np.ndarray
    kept: np.ndarray
    between: np.ndarray
    deepest: np.ndarray


def chain_of(
    count: int, device_of: np.ndarray, lengths: np.ndarray, waits: np.ndarray, share: np.ndarray, kept: np.ndarray,
    limits: np.ndarray,
) -> Chain:  # fmt: skip
    """A chain under limits a device, in the unit of `share`, of which the part `kept` lives until W."""
    stages = len(device_of)
    limit = limits[device_of]
    per_stage = lengths.reshape(3, stages)
    between, deepest = np.zeros(stages), np.full(stages, -1, np.int64)
    whole = _how_many(limit, share)
    for stage in range(stages):
        deeper = np.flatnonzero(device_of[stage + 1 :] == device_of[stage]) + stage + 1
        between[stage] = per_stage[:2, deeper].sum()
        left = limit[stage] - whole[stage] * share[stage]
        if len(deeper) and kept[deeper].min() == 1.0 and kept[stage] == 1.0 and share[deeper].min() > left + 1e-6:
            deepest[stage] = deeper[-1]
    return Chain(count, device_of, lengths, waits, whole, _how_many(limit, share * kept), between, deepest)


def _how_many(limit: np.ndarray, amount: np.ndarray) -> np.ndarray:
    """How many of an amount fit; a little more than the limit counts as fitting."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        number = np.where(amount > 0, np.floor(limit / amount * (1 + 1e-9) + 1e-9), EVER)
    return np.minimum(number, EVER).astype(np.int64)


def least_ends(chain: Chain) -> tuple[np.ndarray, np.ndarray]:
    """Least seconds before the nth F, I or B, W of each stage ends, and from the start of the nth last to the end.

    float64 (3, stages, number) each.
    """
    cells = len(chain.lengths) * chain.number
    ends, tails = np.zeros(cells), np.zeros(cells)
    for kernel, times in ((count_forward, ends), (count_backward, tails)):
        run_where_it_pays(kernel, cells, chain, times, *np.zeros((3, len(chain.device_of))))
    shape = 3, len(chain.device_of), chain.number
    return ends.reshape(shape), tails.reshape(shape)


def count_forward(chain, ends, full, whole, back):
    """Fill `ends`; the others keep what a device has run of a stage at least: by F to W, F to I, and I to W."""
    stages, count = len(chain.device_of), chain.number
    for k in range(count):
        for s in range(stages):
            start = forward_start(chain, ends, s, k)
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
            ends[i] = max(start + length, whole[s])
            ends[w] = max(ends[i] + weight, full[s], run_more(back, s, ends[i] - length, length + weight))


@part
def run_more(times, s, start, seconds):
    """Let a stage's time go on by `seconds`, from `start` at the earliest."""
    times[s] = max(times[s], start) + seconds
    return times[s]


@part
def forward_start(chain, ends, s, k):
    """Least seconds before the kth F of stage s starts."""
    stages, count = len(chain.device_of), chain.number
    start = ends[s * count + k - 1] if k > 0 else 0.0
    if s > 0:
        start = max(start, ends[(s - 1) * count + k] + chain.waits[s - 1])
    if k >= chain.whole[s]:
        start = max(start, ends[(stages + s) * count + k - chain.whole[s]])
    if k >= chain.kept[s]:
        start = max(start, ends[(2 * stages + s) * count + k - chain.kept[s]])
    t, freed = chain.deepest[s], k + 1 - chain.whole[s]
    if t >= 0 and freed >= 0:  # one of those that fill the device has passed its deepest stage, or another was freed
        start = max(start, min(ends[(2 * stages + s) * count + freed], ends[(2 * stages + t) * count + freed]))
    return start


def count_backward(chain, tails, full, whole, back):
    """Fill `tails`, as `count_forward` from the end."""
    stages, count = len(chain.device_of), chain.number
    for k in range(count):
        for s in range(stages):
            i, w = (stages + s) * count + k, (2 * stages + s) * count + k
            length, weight = chain.lengths[stages + s], chain.lengths[2 * stages + s]
            behind = tails[w - 1] if k > 0 else 0.0
            if k >= chain.kept[s]:
                behind = max(behind, tails[s * count + k - chain.kept[s]])
            tails[w] = behind + weight
            run_more(full, s, behind, chain.lengths[s] + chain.between[s] + length + weight)
            run_more(back, s, behind, length + weight)
            behind = tails[w]
            if s > 0:
                behind = max(behind, tails[i - count] + chain.waits[stages + s])
            if k > 0:
                behind = max(behind, tails[i - 1])
            if k >= chain.whole[s]:
                behind = max(behind, tails[s * count + k - chain.whole[s]])
            tails[i] = max(behind + length, back[s])
            run_more(whole, s, tails[i] - length, chain.lengths[s] + chain.between[s] + length)
        for s in range(stages - 1, -1, -1):
            behind = tails[(s + 1) * count + k] + chain.waits[s] if s < stages - 1 else tails[(stages + s) * count + k]
            if k > 0:
                behind = max(behind, tails[s * count + k - 1])
            tails[s * count + k] = max(behind + chain.lengths[s], full[s], whole[s])


def least_makespan(chains: list[Chain], devices: int) -> np.ndarray:
    """Seconds that no order of the chains' actions beats, by what each device must run, float64 (devices,).

    On a device the work between two times is counted: all that cannot have started before the first and has not less
    than the rest of the step behind it (the one-machine bound of Carlier 1982, doi 10.1016/S0377-2217(82)80007-6).
    """
    least = np.zeros(devices)
    ends = [least_ends(chain) for chain in chains]
    for d in range(devices):
        rows = [
            (end[kind, s] - chain.lengths[kind * len(chain.device_of) + s], tail[kind, s], kind, s, chain)
            for chain, (end, tail) in zip(chains, ends, strict=True)
            for s in np.flatnonzero(chain.device_of == d)
            for kind in range(3)
        ]
        least[d] = _most_between(rows)
    return least


def _most_between(rows: list) -> float:
    """The largest (time before + work between + time behind) on one device."""
    lengths = [chain.lengths[kind * len(chain.device_of) + s] for _, _, kind, s, chain in rows]
    before = _thresholds([start for start, *_ in rows])
    behind = _thresholds([tail - length for (_, tail, *_), length in zip(rows, lengths, strict=True)])
    work = np.zeros((len(before), len(behind)))
    for (start, tail, _, _, chain), length in zip(rows, lengths, strict=True):
        earlier = np.searchsorted(start, before)
        later = np.searchsorted(tail - length, behind)
        work += length * np.maximum(chain.number - earlier[:, None] - later[None, :], 0)
    return float(np.where(work > 0, before[:, None] + work + behind[None, :], 0.0).max())


def _thresholds(times: list[np.ndarray]) -> np.ndarray:
    """Some of the times, the least among them."""
    every = distinct(np.concatenate(times))
    return every[np.unique(np.linspace(0, len(every) - 1, min(len(every), THRESHOLDS)).astype(int))]
