"""V-Half and V-Min: a V of two stages per device whose repeating block bounds the activations."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ppsim.actions import Kind
from ppsim.base.compiling import call_fastest, kernel
from ppsim.families.registry import family
from ppsim.schedule.blocks import Block, occurrence
from ppsim.schedule.columns import ScheduleColumns
from ppsim.search.list_scheduling import ROUNDING
from ppsim.search.local_search import search_briefly, tighten
from ppsim.search.problem import Problem, devices_of_stages

if TYPE_CHECKING:
    from ppsim.costs import CostModel

PERIOD = 6  # slots of a microbatch on a device: F, I and W of two stages
DOWN_F, UP_F, UP_I, DOWN_I, WEIGHT, NOTHING = range(6)  # codes of a slot; "down" and "up" are the legs of the V
NEVER = 2**62  # a slot that does not come
WAYS = DUE, FORWARDS, ENDS = range(3)  # of pulling the block earlier

_SOURCE = "Qi et al. 2024, Pipeline Parallelism with Controllable Memory, arXiv 2405.15362"
_METHOD = (
    "Microbatches repeat one block of six slots, W go to idle slots first in first out, and warm-up and drain are "
    "pulled earlier without raising the peak. Moves of single actions then tighten the lists under the given costs "
    "(default f = i = w) within the same activations, and a short search (docs/synthesis.md) follows, which keeps what "
    "is shorter (`search=False`: the tightened block alone)."
)


@family(
    "v-half",
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

    Those hold no more than `activations`, or than the block itself if stages hold unequal parts of the model.
    """
    p = offsets.shape[1]
    problem = Problem.of(p, m, devices_of_stages("v", p, 2), costs, True, np.full(p, np.inf))
    blocks = [_pulled(offsets, m, 2 * activations, way) for way in WAYS]
    block = min(blocks, key=problem.seconds_of)
    problem = replace(problem, limits=np.maximum(problem.peaks(block), activations))
    bases = [problem.lists_of(block) for block in blocks if problem.fits(block)]
    bases.append(tighten(min(bases, key=lambda lists: lists.measures)))
    found = (search_briefly(problem, bases) if search else bases[-1]).columns()
    return block if problem.seconds_of(block) <= problem.seconds_of(found) * (1 + ROUNDING) else found


def _pulled(offsets: np.ndarray, m: int, most_live: int, way: int) -> ScheduleColumns:
    """Return the repeated block with its actions pulled earlier, without a higher peak.

    All devices step together from slot to slot. An action runs at the latest in the slot that the repeated block plans
    for it, so its inputs are there. A slot goes to another action if its planned action has run already, or if it is
    a W and no F is left: to the ready action that is due first, else to a W. With FORWARDS an F goes first, then UP_I.
    With ENDS only warm-up and drain are pulled. F keep their order on a device and W are never later than planned
    while F are left. So a planned F never takes more than the plan's own peak.

    Parameters
    ----------
    offsets : int array (4, devices)
        Slot of microbatch 0's DOWN_F, UP_F, UP_I and DOWN_I; microbatch k's come `PERIOD` k slots later.
    m : int
        Microbatches.
    most_live : int
        Peak of the repeated block in stages x microbatches.
    way : int
        One of `WAYS`.
    """
    p = offsets.shape[1]
    slots = int(offsets.max()) + 1 + (PERIOD + 2) * m
    codes = np.full(slots * p, NOTHING, np.int8)
    planned, done = np.zeros(5 * p, np.int64), np.zeros(5 * p, np.int64)
    flat = offsets.astype(np.int64).ravel()
    call_fastest(fill_slots, len(codes), p, m, most_live, way, flat, planned, done, codes)
    by_device = codes.reshape(slots, p).T
    return ScheduleColumns.from_blocks([_rows(by_device[r], r, 2 * p - 1 - r) for r in range(p)])


@kernel
def fill_slots(p, m, most_live, way, offsets, planned, done, codes):
    """Choose the code of each device in each slot, (slots x p,) of `codes`.

    `offsets` (4 x p,) are those of microbatch 0. `planned` and `done` (5 x p,) begin with 0 and count how often the
    block alone, and each device, has done each code. A slot depends on the slots before it on other devices, so columns
    cannot do this; a million rows take a second in plain Python and 20 ms compiled.
    """
    for slot in range(len(codes) // p):
        is_steady = planned[DOWN_I * p] > 0 and planned[DOWN_F * p] < m
        for d in range(p):
            plan = planned_code(p, m, offsets, planned, d, slot)
            codes[slot * p + d] = plan
            if plan != NOTHING:
                planned[plan * p + d] += 1
            if (
                plan == NOTHING
                or done[plan * p + d] >= planned[plan * p + d]
                or (plan == WEIGHT and done[d] + done[p + d] == 2 * m)
            ):
                codes[slot * p + d] = ready_code(p, m, most_live, way, is_steady, offsets, done, d)
        for d in range(p):
            if codes[slot * p + d] != NOTHING:
                done[codes[slot * p + d] * p + d] += 1


@kernel
def planned_code(p, m, offsets, planned, d, slot):
    """Return the code that the repeated block alone runs in a slot on device d."""
    for code in range(WEIGHT):
        if offsets[code * p + d] + PERIOD * planned[code * p + d] == slot and planned[code * p + d] < m:
            return code
    weight_waits = planned[UP_I * p + d] + planned[DOWN_I * p + d] > planned[WEIGHT * p + d]
    return WEIGHT if weight_waits else NOTHING


@kernel
def ready_code(p, m, most_live, way, is_steady, offsets, done, d):
    """Return the code that device d could run and that goes first."""
    down_due = offsets[d] + PERIOD * done[d] if done[d] < m else NEVER
    up_due = offsets[p + d] + PERIOD * done[p + d] if done[p + d] < m else NEVER
    fits = done[d] + done[p + d] - done[WEIGHT * p + d] < most_live
    found, found_due = NOTHING, NEVER
    for code in range(WEIGHT):
        cell = code * p + d
        if (way == ENDS and is_steady) or done[cell] >= supplied(p, m, done, code, d):
            continue
        due = offsets[cell] + PERIOD * done[cell]
        is_next_forward = due == min(down_due, up_due)
        if code < UP_I and not (fits and is_next_forward):
            continue
        if found == NOTHING or (due < found_due and not (way == FORWARDS and code >= UP_I)):
            found, found_due = code, due
    if found == NOTHING and done[UP_I * p + d] + done[DOWN_I * p + d] > done[WEIGHT * p + d]:
        return WEIGHT
    return found


@kernel
def supplied(p, m, done, code, d):
    """Return how often device d could have run a code of the legs by what has arrived."""
    if code == DOWN_F:
        return m if d == 0 else done[d - 1]
    if code == UP_F:
        return done[d] if d == p - 1 else done[p + d + 1]
    if code == UP_I:
        return done[p] if d == 0 else done[UP_I * p + d - 1]
    return done[UP_I * p + d] if d == p - 1 else done[DOWN_I * p + d + 1]


def _rows(codes: np.ndarray, down: int, up: int) -> Block:
    """Return the list of a device that holds stages `down` and `up`, from its slots; W follow the order of the I."""
    codes = codes[codes != NOTHING]
    kind = np.array([Kind.F, Kind.F, Kind.I, Kind.I, Kind.W])[codes]
    stage = np.array([down, up, up, down, -1])[codes]
    microbatch = occurrence(codes)
    inputs, weights = kind == Kind.I, kind == Kind.W
    stage[weights], microbatch[weights] = stage[inputs], microbatch[inputs]
    return Block(kind, stage, microbatch)
