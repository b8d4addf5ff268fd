"""V-Half and V-Min: a V of two stages per device whose repeating block bounds the activations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import BuildError
from ppsim.base.rules import argument, flag
from ppsim.costs.table import CostModel
from ppsim.engines.running import dispatched
from ppsim.families.registry import family
from ppsim.plan.resolve import make_plan
from ppsim.schedule.blocks import Block, occurrence
from ppsim.schedule.columns import ScheduleColumns
from ppsim.search.list_scheduling import ROUNDING
from ppsim.search.local_search import search_briefly, tighten
from ppsim.search.problem import DEFAULT_COSTS, Problem, devices_of_stages

PERIOD = 6  # slots of a microbatch on a device: F, I and W of two stages

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
    """Return the lists of the repeated block, pulled earlier and tightened, or shorter ones by `search`.

    They hold at most `activations`, or as much as the pulled block if stages hold unequal parts of the model.
    `offsets`, int (4, devices), are the slots of microbatch 0's F and I: F down the V and up, I down from the top of
    the second leg and back up. Microbatch k's come `PERIOD` k slots later.
    """
    argument("search", search, flag, BuildError)
    p = offsets.shape[1]
    problem = Problem.of(p, m, devices_of_stages("v", p, 2), costs, True, np.full(p, np.inf))
    repeated = _repeated_block(offsets, m)
    slots = DEFAULT_COSTS.table(repeated)
    pulled = dispatched(make_plan(repeated, slots, "async"), slots, "ready", activations, "auto").schedule
    problem = replace(problem, limits=np.maximum(problem.peaks(pulled), activations))
    tightened = tighten(problem.lists_of(pulled))
    found = (search_briefly(problem, [tightened]) if search else tightened).columns()
    return pulled if problem.seconds_of(pulled) <= problem.seconds_of(found) * (1 + ROUNDING) else found


def _repeated_block(offsets: np.ndarray, m: int) -> ScheduleColumns:
    """Return the lists of the repeated block: each W takes a free slot after its I.

    After the last F of a device, its W come last: other devices wait for its I.
    """
    legs = (offsets[..., None] + PERIOD * np.arange(m)).swapaxes(0, 1).reshape(-1, 4 * m)
    slots, number = np.arange(legs.max() + 2 * m + 1), np.arange(2 * m)
    weights = np.empty((len(legs), 2 * m), np.int64)
    for d, leg_slots in enumerate(legs):
        free = np.setdiff1d(slots, leg_slots, assume_unique=True)
        after_input = np.searchsorted(free, np.sort(leg_slots[2 * m :]))
        weights[d] = free[number + np.maximum.accumulate(after_input - number)]
    weights[weights > legs[:, : 2 * m].max(axis=1, keepdims=True)] += len(slots)
    codes = np.minimum(np.argsort(np.concatenate([legs, weights], axis=1), axis=1) // m, len(offsets))
    stages = 2 * len(legs)
    return ScheduleColumns.from_blocks([_rows(own, d, stages - 1 - d) for d, own in enumerate(codes)])


def _rows(codes: np.ndarray, down: int, up: int) -> Block:
    """Return the list of a device that holds stages `down` and `up`, from codes: 0 to 3 as `offsets`, 4 for W.

    W follow the order of the I.
    """
    kind = np.array([Kind.F, Kind.F, Kind.I, Kind.I, Kind.W])[codes]
    stage = np.array([down, up, up, down, -1])[codes]
    microbatch = occurrence(codes)
    inputs, weights = kind == Kind.I, kind == Kind.W
    stage[weights], microbatch[weights] = stage[inputs], microbatch[inputs]
    return Block(kind, stage, microbatch)
