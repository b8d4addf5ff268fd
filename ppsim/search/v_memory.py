"""V-Half and V-Min: a V of two stages a device whose repeating block bounds the activations."""

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
from ppsim.search.problem import Problem, devices_of_stages, peaks
from ppsim.search.round_search import searched_briefly
from ppsim.search.v_squeeze import DOWN_F, DOWN_I, NOTHING, PERIOD, UP_F, UP_I, WEIGHT, squeezed

if TYPE_CHECKING:
    from ppsim.costs import CostModel

NEVER = 2**62  # a slot that does not come

_SOURCE = "Qi et al. 2024, Pipeline Parallelism with Controllable Memory, arXiv 2405.15362"
_METHOD = (
    "Microbatches repeat one block of six slots, W go to idle slots first in first out, and warm-up and drain are "
    "pulled earlier without raising the peak, in the makers' way or in one of our own. That is built for f = i = w; a "
    "short search (docs/synthesis.md) follows under the given costs (default f = i = w) and keeps what is shorter "
    "within the same activations (`search=False`: the block alone)."
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
    """Block offsets that climb by two slots a device on F0 and I1 and by one on F1 and I0."""
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
    """Block offsets that climb by one slot a device on all four legs."""
    r, shift = np.arange(p), 0 if p % 3 else 2
    offsets = np.stack([r, 2 * p - 1 - r, 2 * p + shift + r, 4 * p + shift - 1 - r])
    return _schedule(offsets, m, (p + 4) // 3, costs, search)


def _schedule(offsets: np.ndarray, m: int, activations: int, costs: CostModel | None, search: bool) -> ScheduleColumns:
    """The lists of the repeated block, or shorter ones by `search`.

    Those hold no more than `activations`, or than the block itself where stages hold unequal parts of the model.
    """
    p = offsets.shape[1]
    problem = Problem.of(p, m, devices_of_stages("v", p, 2), costs, True, np.full(p, np.inf))
    blocks = [_lists(_pulled(offsets, m, activations)), _lists(squeezed(offsets, m))]
    block = min(blocks, key=lambda block: problem.replayed(block).makespan)
    if not search:
        return block
    problem = replace(problem, limits=np.maximum(peaks(block, problem.share, problem.kept), activations))
    found = searched_briefly(problem, [problem.replayed(block) for block in blocks if problem.holds(block)])
    return block if problem.replayed(block).makespan <= found.makespan * (1 + ROUNDING) else found.columns()


def _lists(slots: np.ndarray) -> ScheduleColumns:
    """The schedule of what each device does in each slot, (slots, devices) of codes."""
    p = slots.shape[1]
    return ScheduleColumns.from_blocks([_rows(slots[:, r], r, 2 * p - 1 - r) for r in range(p)])


def _pulled(offsets: np.ndarray, m: int, activations: int) -> np.ndarray:
    """A repeated block pulled earlier without raising its peak: what each device does in each slot, (slots, devices).

    Parameters
    ----------
    offsets : int array (4, devices)
        Slot of microbatch 0's DOWN_F, UP_F, UP_I and DOWN_I; microbatch k's come `PERIOD` k slots later.
    m : int
        Microbatches.
    activations : int
        Peak of the repeated block in device shares.
    """
    return min((_pull_earlier(offsets, m, 2 * activations, first) for first in (False, True)), key=len)


def _pull_earlier(offsets: np.ndarray, m: int, most_live: int, forwards_first: bool) -> np.ndarray:
    """What each device does in each slot, (slots, devices) of codes, all devices stepping together.

    An action runs in the slot that the repeated block plans for it at the latest, so all that it needs is there in
    time. A slot whose planned action has run already goes to the ready action that is due first (or to an F, then to
    UP_I, where `forwards_first`), else to a W. F keep their order on a device and W never fall behind the plan, so a
    planned F never takes more than the plan's own peak, `most_live` (in stages x microbatches).
    """
    p = offsets.shape[1]
    slots = int(offsets.max()) + 1 + (PERIOD + 2) * m
    codes = np.full(slots * p, NOTHING, np.int8)
    planned, done = np.zeros(5 * p, np.int64), np.zeros(5 * p, np.int64)
    flat = offsets.astype(np.int64).ravel()
    call_fastest(fill_slots, len(codes), p, m, most_live, forwards_first, flat, planned, done, codes)
    codes = codes.reshape(slots, p)
    return codes[: 1 + np.flatnonzero((codes != NOTHING).any(axis=1))[-1]]


@kernel
def fill_slots(p, m, most_live, forwards_first, offsets, planned, done, codes):
    """Choose the code of each device in each slot, (slots x p,) of `codes`.

    `offsets` (4 x p,) are those of microbatch 0, `planned` and `done` (5 x p,) begin with 0 and count how often the
    block alone, and each device, has done each code.
    """
    for slot in range(len(codes) // p):
        for d in range(p):
            plan = planned_code(p, m, offsets, planned, d, slot)
            codes[slot * p + d] = plan
            if plan != NOTHING:
                planned[plan * p + d] += 1
            if plan == NOTHING or done[plan * p + d] >= planned[plan * p + d]:
                codes[slot * p + d] = ready_code(p, m, most_live, forwards_first, offsets, done, d)
        for d in range(p):
            if codes[slot * p + d] != NOTHING:
                done[codes[slot * p + d] * p + d] += 1


@kernel
def planned_code(p, m, offsets, planned, d, slot):
    """What the repeated block alone does in a slot on device d."""
    for code in range(WEIGHT):
        if offsets[code * p + d] + PERIOD * planned[code * p + d] == slot and planned[code * p + d] < m:
            return code
    weight_waits = planned[UP_I * p + d] + planned[DOWN_I * p + d] > planned[WEIGHT * p + d]
    return WEIGHT if weight_waits else NOTHING


@kernel
def ready_code(p, m, most_live, forwards_first, offsets, done, d):
    """The code that device d could run and that goes first."""
    down_due = offsets[d] + PERIOD * done[d] if done[d] < m else NEVER
    up_due = offsets[p + d] + PERIOD * done[p + d] if done[p + d] < m else NEVER
    has_room = done[d] + done[p + d] - done[WEIGHT * p + d] < most_live
    found, found_due = NOTHING, NEVER
    for code in range(WEIGHT):
        cell = code * p + d
        if done[cell] >= supplied(p, m, done, code, d):
            continue
        due = offsets[cell] + PERIOD * done[cell]
        is_next_forward = due == min(down_due, up_due)
        if code < UP_I and not (has_room and is_next_forward):
            continue
        if found == NOTHING or (due < found_due and not (forwards_first and code >= UP_I)):
            found, found_due = code, due
    if found == NOTHING and done[UP_I * p + d] + done[DOWN_I * p + d] > done[WEIGHT * p + d]:
        return WEIGHT
    return found


@kernel
def supplied(p, m, done, code, d):
    """How often device d could have done a code of the legs by what has arrived."""
    if code == DOWN_F:
        return m if d == 0 else done[d - 1]
    if code == UP_F:
        return done[d] if d == p - 1 else done[p + d + 1]
    if code == UP_I:
        return done[p] if d == 0 else done[UP_I * p + d - 1]
    return done[UP_I * p + d] if d == p - 1 else done[DOWN_I * p + d + 1]


def _rows(codes: np.ndarray, down: int, up: int) -> Block:
    """The list of a device that holds stages `down` and `up`, from its slots; W follow the order of the I."""
    codes = codes[codes != NOTHING]
    kind = np.array([Kind.F, Kind.F, Kind.I, Kind.I, Kind.W])[codes]
    stage = np.array([down, up, up, down, -1])[codes]
    microbatch = occurrence(codes)
    inputs, weights = kind == Kind.I, kind == Kind.W
    stage[weights], microbatch[weights] = stage[inputs], microbatch[inputs]
    return Block(kind, stage, microbatch)
