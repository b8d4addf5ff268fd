"""A repeated block of V-Half or V-Min with its warm-up and its drain pulled together, the drain once without its W."""

from typing import NamedTuple

import numpy as np

from ppsim.base.compiling import call_fastest, kernel

PERIOD = 6  # slots of a microbatch on a device: F, I and W of two stages
DOWN_F, UP_F, UP_I, DOWN_I, WEIGHT, NOTHING = range(6)  # codes of a slot; "down" and "up" are the legs of the V
WARM_UP, STEADY, DRAIN = range(3)


class Grid(NamedTuple):
    """What each device does in each slot, and what that holds; device d's slots stand at d x slots.

    Attributes
    ----------
    p, m, slots : int
    codes : int8 (p x slots,)
    times : int64 (5 x p x 2m,)
        Slot of the nth of a code, at (code x p + d) x 2m + n.
    done : int64 (5 x p,)
    live, pending : int64 (p x slots,)
        Microbatches x stages held after a slot, and W that wait.
    """

    p: int
    m: int
    slots: int
    codes: np.ndarray
    times: np.ndarray
    done: np.ndarray
    live: np.ndarray
    pending: np.ndarray

    @classmethod
    def empty(cls, p: int, m: int, slots: int) -> "Grid":
        """Nothing anywhere."""
        codes = np.full(p * slots, NOTHING, np.int8)
        return cls(
            p, m, slots, codes, np.zeros(10 * p * m, np.int64), np.zeros(5 * p, np.int64),
            np.zeros(p * slots, np.int64), np.zeros(p * slots, np.int64),
        )  # fmt: skip


def squeezed(offsets: np.ndarray, m: int) -> np.ndarray:
    """What each device does in each slot, int8 (slots, devices), from the slots (4, devices) of microbatch 0.

    As in scheduler/zbv_greedy.py of sail-sg/zero-bubble-pipeline-parallelism: actions of warm-up and drain go to the
    earliest free slot that holds no more than the repeated block does; then the same for the drain with its W taken
    out, which return to the slots that are left idle.
    """
    p = offsets.shape[1]
    slots = int(offsets.max()) + 1 + (PERIOD + 2) * m
    rows = (offsets[..., None] + PERIOD * np.arange(m) + slots * np.arange(p)[None, :, None]).reshape(4, -1)
    plan, other = Grid.empty(p, m, slots), Grid.empty(p, m, slots)
    for code in range(WEIGHT):
        plan.codes[rows[code]] = code
    call_fastest(squeeze, plan.codes.size * 4, plan, other)
    codes = plan.codes.reshape(p, slots).T
    return codes[: 1 + np.flatnonzero((codes != NOTHING).any(axis=1))[-1]]


@kernel
def squeeze(plan, other):
    """Pull together what `plan` holds; the other is scratch."""
    put_weights(plan)
    pull(plan, other, True)
    shift(other, plan)
    take_weights(plan)
    pull(plan, other, False)
    put_weights(other)
    shift(other, plan)
    take_weights(plan)
    put_weights(plan)


@kernel
def put_weights(grid):
    """A W into each idle slot while one waits."""
    for d in range(grid.p):
        waiting = 0
        for row in range(d * grid.slots, (d + 1) * grid.slots):
            if grid.codes[row] in (UP_I, DOWN_I):
                waiting += 1
            elif grid.codes[row] == NOTHING and waiting > 0:
                grid.codes[row] = WEIGHT
                waiting -= 1


@kernel
def take_weights(grid):
    """Idle slots in the place of W."""
    for row in range(len(grid.codes)):
        if grid.codes[row] == WEIGHT:
            grid.codes[row] = NOTHING


@kernel
def note(grid, code, d, slot):
    """Put the next of a code into a slot."""
    cell = code * grid.p + d
    grid.times[cell * 2 * grid.m + grid.done[cell]] = slot
    grid.done[cell] += 1
    grid.codes[d * grid.slots + slot] = code


@kernel
def earliest(grid, code, d):
    """The first slot after all that the next of a code follows on the legs, and after the one before it."""
    p, twice = grid.p, 2 * grid.m
    n = grid.done[code * p + d]
    before = grid.times[(code * p + d) * twice + n - 1] if n > 0 else -1
    if code == WEIGHT:
        return max(before, nth_input(grid, d, n)) + 1
    if code > DOWN_F:
        before = max(before, grid.times[((code - 1) * p + d) * twice + n])
    neighbour = d - 1 if code in (DOWN_F, UP_I) else d + 1
    if 0 <= neighbour < p:
        before = max(before, grid.times[(code * p + neighbour) * twice + n])
    return before + 1


@kernel
def nth_input(grid, d, n):
    """Slot of the nth I of a device, of both stages together."""
    first, second = (UP_I * grid.p + d) * 2 * grid.m, (DOWN_I * grid.p + d) * 2 * grid.m
    ups, downs = grid.done[UP_I * grid.p + d], grid.done[DOWN_I * grid.p + d]
    low, high = max(0, n + 1 - downs), min(n + 1, ups)
    while low < high:  # how many of the first n + 1 are of the leg up
        middle = (low + high) // 2
        if grid.times[first + middle] < grid.times[second + n - middle]:
            low = middle + 1
        else:
            high = middle
    slot = grid.times[first + low - 1] if low > 0 else -1
    return max(slot, grid.times[second + n - low]) if low <= n else slot


@kernel
def clear(grid):
    """Nothing anywhere."""
    for row in range(len(grid.codes)):
        grid.codes[row] = NOTHING
    for cell in range(len(grid.done)):
        grid.done[cell] = 0


@kernel
def shift(grid, made):
    """The same lists, each action of one slot as early as its inputs allow."""
    clear(made)
    for cell in range(len(made.live)):
        made.live[cell] = 0
    for slot in range(grid.slots):
        for d in range(grid.p):
            code = grid.codes[d * grid.slots + slot]
            if code != NOTHING:
                first = max(made.live[d], earliest(made, code, d))  # `live` says when the device is free
                note(made, code, d, first)
                made.live[d] = first + 1


@kernel
def pull(plan, made, with_weights):
    """Move actions of warm-up (`with_weights`) and drain earlier, each of the earliest first."""
    clear(made)
    most, phase = most_live(plan), WARM_UP
    for slot in range(plan.slots):
        for d in range(plan.p):
            code, to = plan.codes[d * plan.slots + slot], slot
            if code == NOTHING:
                if with_weights:
                    carry(made, d, slot, slot, NOTHING)
                else:
                    settle(made, d, slot, slot, NOTHING)
                continue
            if code == DOWN_I and d == 0 and phase == WARM_UP:
                phase = STEADY
            if phase == DRAIN or (phase == WARM_UP and with_weights):
                to = place(made, code, d, slot, most) if with_weights else place_without(made, code, d, slot, most)
            elif phase == STEADY and code == DOWN_F and made.done[d] == plan.m - 1:
                phase = DRAIN
            note(made, code, d, to)
            if with_weights:
                carry(made, d, to, slot, code)
            else:
                settle(made, d, to, slot, NOTHING)


@kernel
def change(code):
    """Microbatches x stages that a code adds to what is held."""
    if code in (DOWN_F, UP_F):
        return 1
    return -1 if code == WEIGHT else 0


@kernel
def carry(made, d, to, slot, code):
    """What is held after the slots up to `slot` once a code has gone from there to slot `to`."""
    first = d * made.slots
    before = made.live[first + slot - 1] if slot > 0 else 0
    made.live[first + slot] = before + change(code)
    for row in range(first + to, first + slot):
        made.live[row] += change(code)


@kernel
def place(made, code, d, slot, most):
    """The earliest free slot, up to `slot`, from which on what a code adds finds room."""
    first, to = d * made.slots, slot
    for at in range(slot - 1, earliest(made, code, d) - 1, -1):
        if made.live[first + at] + change(code) > most:
            break
        if made.codes[first + at] == NOTHING:
            to = at
    return to


@kernel
def place_without(made, code, d, slot, most):
    """As `place`, where W run in whatever slots are idle."""
    for at in range(earliest(made, code, d), slot):
        if made.codes[d * made.slots + at] == NOTHING and settle(made, d, at, slot, code) <= most:
            return at
        settle(made, d, at, at, NOTHING)
    return slot


@kernel
def settle(made, d, begin, end, code):
    """Work out what is held, and which W wait, from slot `begin` to `end` with a code at `begin`; the most held."""
    first = d * made.slots
    held = made.live[first + begin - 1] if begin > 0 else 0
    waiting = made.pending[first + begin - 1] if begin > 0 else 0
    most = 0
    for at in range(begin, end + 1):
        here = code if at == begin and code != NOTHING else made.codes[first + at]
        held += change(here)
        if here in (UP_I, DOWN_I):
            waiting += 1
        elif here == NOTHING and waiting > 0:
            waiting -= 1
            held -= 1
        made.live[first + at], made.pending[first + at] = held, waiting
        most = max(most, held)
    return most


@kernel
def most_live(grid):
    """The most that a device holds, W in idle slots counted where there are none."""
    most = 0
    for d in range(grid.p):
        held, waiting = 0, 0
        for row in range(d * grid.slots, (d + 1) * grid.slots):
            code = grid.codes[row]
            held += change(code)
            if code in (UP_I, DOWN_I):
                waiting += 1
            elif waiting > 0 and code in (WEIGHT, NOTHING):
                waiting -= 1
                held -= 1 if code == NOTHING else 0
            most = max(most, held)
    return most
