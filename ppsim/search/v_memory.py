"""V-Half and V-Min: a V of two stages per device whose repeating block bounds the activations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ppsim.actions import Kind
from ppsim.base.compiling import call_fastest, kernel
from ppsim.base.errors import BuildError, shown
from ppsim.costs.table import CostModel
from ppsim.families.registry import family
from ppsim.schedule.blocks import Block, occurrence
from ppsim.schedule.columns import ScheduleColumns
from ppsim.search.list_scheduling import ROUNDING
from ppsim.search.local_search import search_briefly, tighten
from ppsim.search.problem import Problem, devices_of_stages

PERIOD = 6  # slots of a microbatch on a device: F, I and W of two stages
DOWN_F, UP_F, UP_I, DOWN_I, WEIGHT, NOTHING = range(6)  # codes of a slot; "down" and "up" are the legs of the V
NO_ROW = -1

_SOURCE = "Qi et al. 2024, Pipeline Parallelism with Controllable Memory, arXiv 2405.15362"
_METHOD = (
    "Microbatches repeat one block of six slots, W go to idle slots first in first out, and warm-up and drain are "
    "pulled earlier without raising the peak. Moves of single actions then tighten the lists under the given costs "
    "(default f = i = w) within the same activations, and a short search (docs/synthesis.md) follows, which keeps what "
    "is shorter (`search=False`: the tightened block alone)."
)


@family(
    "v-half",
    group="zero bubble",
    title="V-Half",
    idea="A V of stages in which a microbatch's forward and backward follow each other closely: about half of 1F1B's "
    "activations, and about half of its bubble. " + _METHOD,
    makespan="~ at f = i = w: 6mf + 3pf, bubble about p/2m",
    peak_activations="{|largest }= ceil((p+1)/2) {once m fills the pipeline, never more|for m >= 2p}",
    source=_SOURCE,
    stages_per_device=2,
)
def v_half(p: int, m: int, v: int, *, costs: CostModel | None = None, search: bool = True) -> ScheduleColumns:
    """Return lists from a block whose offsets climb by two slots per device on F0 and I1, and by one on F1 and I0."""
    r, shift = np.arange(p), 0 if p % 2 else 3
    offsets = np.stack([2 * r, 3 * p - 2 - r, 3 * p + shift - 1 + 2 * r, 6 * p + shift - 2 - r])
    return _schedule(offsets, m, p // 2 + 1, costs, search)


@family(
    "v-min",
    group="zero bubble",
    title="V-Min",
    idea="The V with the shortest life of an activation: about a third of 1F1B's activations, with about two thirds of "
    "its bubble. " + _METHOD,
    makespan="~ at f = i = w: 6mf + 4pf, bubble about 2p/3m",
    peak_activations="{|largest }= ceil((p+2)/3) {once m fills the pipeline, never more|for m >= 2p}",
    source=_SOURCE,
    stages_per_device=2,
)
def v_min(p: int, m: int, v: int, *, costs: CostModel | None = None, search: bool = True) -> ScheduleColumns:
    """Return lists from a block whose offsets climb by one slot per device on all four legs."""
    r, shift = np.arange(p), 0 if p % 3 else 2
    offsets = np.stack([r, 2 * p - 1 - r, 2 * p + shift + r, 4 * p + shift - 1 - r])
    return _schedule(offsets, m, (p + 4) // 3, costs, search)


def _schedule(offsets: np.ndarray, m: int, activations: int, costs: CostModel | None, search: bool) -> ScheduleColumns:
    """Return the lists of the repeated block, tightened, or shorter ones by `search`.

    They hold at most `activations`, or as much as the block itself if stages hold unequal parts of the model.
    """
    if not isinstance(search, bool):
        raise BuildError(f"search={shown(search)} must be true or false")
    p = offsets.shape[1]
    problem = Problem.of(p, m, devices_of_stages("v", p, 2), costs, True, np.full(p, np.inf))
    block = _pulled(offsets, m, 2 * activations)
    problem = replace(problem, limits=np.maximum(problem.peaks(block), activations))
    tightened = tighten(problem.lists_of(block))
    found = (search_briefly(problem, [tightened]) if search else tightened).columns()
    return block if problem.seconds_of(block) <= problem.seconds_of(found) * (1 + ROUNDING) else found


def _pulled(offsets: np.ndarray, m: int, most_live: int) -> ScheduleColumns:
    """Return the repeated block with actions pulled earlier, without a higher peak.

    All devices step together from slot to slot, and each runs the next action of its list. If that is not ready, the
    first ready action of warm-up or drain goes first, else a W. An F goes first only if memory for all actions that it
    passes remains. Warm-up ends when the block plans DOWN_I on device 0; drain begins after the last DOWN_F there.

    `offsets`, int (4, devices), are the slots of microbatch 0's DOWN_F, UP_F, UP_I and DOWN_I; microbatch k's come
    `PERIOD` k slots later. `most_live` is the peak of the repeated block in stages x microbatches.
    """
    p = offsets.shape[1]
    codes, slots = _block(offsets, m)
    lists, first = np.zeros(codes.size, np.int8), np.arange(p) * PERIOD * m
    call_fastest(
        pull_block_earlier, codes.size, p, m, most_live, int(offsets[DOWN_I, 0]), codes.ravel(), slots.ravel(), first,
        first.copy(), np.zeros(5 * p, np.int64), np.zeros(p, np.int64), lists,
    )  # fmt: skip
    rows = lists.reshape(p, -1)
    return ScheduleColumns.from_blocks([_rows(rows[r], r, 2 * p - 1 - r) for r in range(p)])


def _block(offsets: np.ndarray, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the codes and slots of the repeated block, (devices, 6m) each, in order; each W takes a free slot."""
    legs = (offsets[..., None] + PERIOD * np.arange(m)).swapaxes(0, 1).reshape(-1, 4 * m)
    slots, number = np.arange(legs.max() + 2 * m + 1), np.arange(2 * m)
    weights = np.empty((len(legs), 2 * m), np.int64)
    for d, leg_slots in enumerate(legs):
        free = np.setdiff1d(slots, leg_slots, assume_unique=True)
        after_input = np.searchsorted(free, np.sort(leg_slots[2 * m :]))
        weights[d] = free[number + np.maximum.accumulate(after_input - number)]
    planned = np.concatenate([legs, weights], axis=1)
    order = np.argsort(planned, axis=1)
    return np.minimum(order // m, WEIGHT).astype(np.int8), np.take_along_axis(planned, order, axis=1)


@kernel
def pull_block_earlier(p, m, most_live, warm_up, planned, slots, first, filled, done, chosen, lists):
    """Fill `lists`, (p x 6m,) codes device by device, from the planned ones, which become NOTHING; see `_pulled`.

    Warm-up ends in slot `warm_up`. `first` is each device's first planned row left, and `filled` its next row of
    `lists`. `done` (5 x p,) begins with 0 and counts codes; `chosen` is scratch. A slot depends on the slots before it
    on other devices, so columns cannot do this.
    """
    rows = 0
    while rows < len(lists):
        for d in range(p):
            chosen[d] = next_row(p, m, most_live, warm_up, planned, slots, first, done, d)
        for d in range(p):
            if chosen[d] != NO_ROW:
                code = planned[chosen[d]]
                planned[chosen[d]] = NOTHING
                lists[filled[d]] = code
                done[code * p + d] += 1
                filled[d] += 1
                rows += 1
            while first[d] < (d + 1) * PERIOD * m and planned[first[d]] == NOTHING:
                first[d] += 1


@kernel
def next_row(p, m, most_live, warm_up, planned, slots, first, done, d):
    """Return the planned row that device d runs next, or NO_ROW."""
    live = highest = done[d] + done[p + d] - done[WEIGHT * p + d]
    weight, passed = NO_ROW, 0  # `passed` has a bit per code
    for row in range(first[d], (d + 1) * PERIOD * m):
        code = planned[row]
        if code == NOTHING:
            continue
        if passed >> code & 1 == 0 and done[code * p + d] < supplied(p, m, done, code, d):
            drains = slots[row] > PERIOD * (m - 1)
            goes_first = passed == 0 or slots[row] < warm_up or drains
            if goes_first and not (code == WEIGHT and drains) and (code >= UP_I or highest < most_live):
                return row
            if code == WEIGHT:
                weight = row
        passed |= 1 << code
        if passed == (1 << NOTHING) - 1:
            break
        if code < UP_I:
            live += 1
        elif code == WEIGHT:
            live -= 1
        highest = max(highest, live)
    return weight


@kernel
def supplied(p, m, done, code, d):
    """Return how often device d could have run a code by what has arrived."""
    if code == WEIGHT:
        return done[UP_I * p + d] + done[DOWN_I * p + d]
    if code == DOWN_F:
        return m if d == 0 else done[d - 1]
    if code == UP_F:
        return done[d] if d == p - 1 else done[p + d + 1]
    if code == UP_I:
        return done[p] if d == 0 else done[UP_I * p + d - 1]
    return done[UP_I * p + d] if d == p - 1 else done[DOWN_I * p + d + 1]


def _rows(codes: np.ndarray, down: int, up: int) -> Block:
    """Return the list of a device that holds stages `down` and `up`; W follow the order of the I."""
    kind = np.array([Kind.F, Kind.F, Kind.I, Kind.I, Kind.W])[codes]
    stage = np.array([down, up, up, down, -1])[codes]
    microbatch = occurrence(codes)
    inputs, weights = kind == Kind.I, kind == Kind.W
    stage[weights], microbatch[weights] = stage[inputs], microbatch[inputs]
    return Block(kind, stage, microbatch)
