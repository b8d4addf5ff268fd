"""V-Half and V-Min: a V of two stages a device whose repeating block bounds the activations."""

from collections.abc import Callable, Iterator

import numpy as np

from ppsim.actions import Kind
from ppsim.families.registry import family
from ppsim.schedule.blocks import Block, occurrence

PERIOD = 6  # slots of a microbatch on a device: F, I and W of two stages
DOWN_F, UP_F, UP_I, DOWN_I, WEIGHT, NOTHING = range(6)  # codes of a slot; "down" and "up" are the legs of the V

_SOURCE = "Qi et al. 2024, Pipeline Parallelism with Controllable Memory, arXiv 2405.15362"
_METHOD = (
    "Microbatches repeat one block of six slots, W go to idle slots first in first out, and warm-up and drain are "
    "pulled earlier without raising the peak. Built for f = i = w."
)


@family(
    "v-half",
    title="V-Half",
    idea="A V of stages in which a microbatch's forward and backward follow each other closely: about half of 1F1B's "
    "activations, and about half of its bubble. " + _METHOD,
    makespan="~ at f = i = w: 6mf + 3pf, bubble about p/2m",
    peak_activations="= ceil((p+1)/2) once m fills the pipeline, never more",
    source=_SOURCE,
    stages_per_device=2,
)
def v_half(p: int, m: int, v: int) -> Iterator[Block]:
    """Block offsets that climb by two slots a device on F0 and I1 and by one on F1 and I0."""
    r, shift = np.arange(p), 0 if p % 2 else 3
    offsets = np.stack([2 * r, 3 * p - 2 - r, 3 * p + shift - 1 + 2 * r, 6 * p + shift - 2 - r])
    return _repeated(offsets, m, activations=p // 2 + 1)


@family(
    "v-min",
    title="V-Min",
    idea="The V with the shortest life of an activation: about a third of 1F1B's activations, with about two thirds of "
    "its bubble. " + _METHOD,
    makespan="~ at f = i = w: 6mf + 4pf, bubble about 2p/3m",
    peak_activations="= ceil((p+2)/3) once m fills the pipeline, never more",
    source=_SOURCE,
    stages_per_device=2,
)
def v_min(p: int, m: int, v: int) -> Iterator[Block]:
    """Block offsets that climb by one slot a device on all four legs."""
    r, shift = np.arange(p), 0 if p % 3 else 2
    offsets = np.stack([r, 2 * p - 1 - r, 2 * p + shift + r, 4 * p + shift - 1 - r])
    return _repeated(offsets, m, activations=(p + 4) // 3)


def _repeated(offsets: np.ndarray, m: int, activations: int) -> Iterator[Block]:
    """The lists of a repeating block.

    Parameters
    ----------
    offsets : int array (4, devices)
        Slot of microbatch 0's DOWN_F, UP_F, UP_I and DOWN_I; microbatch k's come `PERIOD` k slots later.
    m : int
        Microbatches.
    activations : int
        Peak of the repeated block in device shares, which pulling earlier keeps.
    """
    ways = (_earliest_due_first, _forwards_first)
    slots = min((_pull_earlier(offsets, m, 2 * activations, order) for order in ways), key=len)
    p = offsets.shape[1]
    for r in range(p):
        yield _rows(slots[:, r], r, 2 * p - 1 - r)


def _earliest_due_first(due: np.ndarray) -> np.ndarray:
    return due


def _forwards_first(due: np.ndarray) -> np.ndarray:
    later = 1 + due.max()
    return due + np.array([0, 0, later, 2 * later])[:, None]


def _pull_earlier(offsets: np.ndarray, m: int, most_live: int, order: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """What each device does in each slot, (slots, devices) of codes, all devices stepping together.

    An action runs in the slot that the repeated block plans for it at the latest, so all that it needs is there in
    time. A slot whose planned action has run already goes to the first ready action by `order`, else to a W. F keep
    their order on a device and W never fall behind the plan, so a planned F never takes more than the plan's own peak,
    `most_live` (in stages x microbatches).
    """
    p = offsets.shape[1]
    devices = np.arange(p)
    planned, done = np.zeros((5, p), np.int64), np.zeros((5, p), np.int64)
    slots = []
    while (done[WEIGHT] < 2 * m).any():
        plan = _planned_code(offsets, planned, m, len(slots))
        ready = _ready(offsets, done, m, most_live)
        rank = np.where(ready[:WEIGHT], order(offsets + PERIOD * done[:WEIGHT]), np.iinfo(np.int64).max)
        code = np.where(ready[:WEIGHT].any(axis=0), rank.argmin(axis=0), np.where(ready[WEIGHT], WEIGHT, NOTHING))
        has_plan = plan != NOTHING
        must = has_plan & (done[np.minimum(plan, WEIGHT), devices] == planned[np.minimum(plan, WEIGHT), devices])
        code = np.where(must, plan, code)
        planned[plan[has_plan], devices[has_plan]] += 1
        busy = code != NOTHING
        done[code[busy], devices[busy]] += 1
        slots.append(code)
    return np.array(slots, np.int8)


def _planned_code(offsets: np.ndarray, planned: np.ndarray, m: int, slot: int) -> np.ndarray:
    """What the repeated block alone does in `slot` on each device, given how often it has done each code."""
    due = (offsets + PERIOD * planned[:WEIGHT] == slot) & (planned[:WEIGHT] < m)
    weight_waits = planned[UP_I] + planned[DOWN_I] > planned[WEIGHT]
    return np.where(due.any(axis=0), due.argmax(axis=0), np.where(weight_waits, WEIGHT, NOTHING))


def _ready(offsets: np.ndarray, done: np.ndarray, m: int, most_live: int) -> np.ndarray:
    """Whether each device may do each code next, bool (5, devices)."""
    supply = np.stack(
        [
            np.append(m, done[DOWN_F, :-1]),
            np.append(done[UP_F, 1:], done[DOWN_F, -1]),
            np.append(done[UP_F, 0], done[UP_I, :-1]),
            np.append(done[DOWN_I, 1:], done[UP_I, -1]),
            done[UP_I] + done[DOWN_I],
        ]
    )
    ready = supply > done
    due = offsets[:UP_I] + PERIOD * done[:UP_I]
    is_next = (due == np.where(done[:UP_I] < m, due, np.iinfo(np.int64).max).min(axis=0)) & (done[:UP_I] < m)
    ready[:UP_I] &= is_next & (done[DOWN_F] + done[UP_F] - done[WEIGHT] < most_live)
    return ready


def _rows(codes: np.ndarray, down: int, up: int) -> Block:
    """The list of a device that holds stages `down` and `up`, from its slots; W follow the order of the I."""
    codes = codes[codes != NOTHING]
    kind = np.array([Kind.F, Kind.F, Kind.I, Kind.I, Kind.W])[codes]
    stage = np.array([down, up, up, down, -1])[codes]
    microbatch = occurrence(codes)
    inputs, weights = kind == Kind.I, kind == Kind.W
    stage[weights], microbatch[weights] = stage[inputs], microbatch[inputs]
    return Block(kind, stage, microbatch)
