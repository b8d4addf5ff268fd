"""1F1B-V: a V of two stages per device with the full backward, at about two thirds of 1F1B's activations."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from ppsim.actions import Kind
from ppsim.base.compiling import call_fastest, kernel
from ppsim.families.registry import family
from ppsim.schedule.blocks import Block, concatenate

PERIOD = 6  # slots of a microbatch on a device: F of two stages, and their B of two slots each
DOWN_F, UP_F, UP_B, DOWN_B = range(4)  # the four passes of a microbatch through a device, by the legs of the V
LENGTH = np.array([1, 1, 2, 2])


@family(
    "1f1b-v",
    group="interleaved",
    title="1F1B-V",
    idea="Stages r and 2p-1-r on device r, with whole backwards. Every microbatch repeats one block of six slots in "
    "which no two passes of a device meet; passes are then pulled earlier without a higher peak. About two thirds "
    "of 1F1B's activations, with about three quarters of its bubble. Built for b = 2f.",
    makespan="~ at b = 2f, m >= 2p: 6mf + 4.5pf",
    peak_activations="{|largest }= floor(2p/3) + 1 {once m fills the pipeline|for m >= 2p}",
    source="Qi et al. 2024, Pipeline Parallelism with Controllable Memory, arXiv 2405.15362; "
    "sail-sg/zero-bubble-pipeline-parallelism, zerobubble/scheduler/v1f1b.py",
    stages_per_device=2,
)
def v_one_forward_one_backward(p: int, m: int, v: int) -> Iterator[Block]:
    """Yield the lists of the repeated block, with passes moved earlier."""
    start = _pulled_earlier(_offsets(p), m)
    for r in range(p):
        microbatches = np.arange(m)
        down, up = r, 2 * p - 1 - r
        passes = zip((Kind.F, Kind.F, Kind.B, Kind.B), (down, up, up, down), strict=True)
        rows = concatenate(*(Block(kind, stage, microbatches) for kind, stage in passes))
        yield rows[np.argsort(start[:, r].ravel())]


def _offsets(p: int) -> np.ndarray:
    """Return the slot of each pass of microbatch 0 on each device, (4, devices); modulo `PERIOD` no two are equal."""
    offsets = np.empty((4, p), np.int64)
    offsets[DOWN_F] = np.arange(p)
    offsets[UP_F] = p + np.arange(p)[::-1]
    backwards = np.arange(2 * p)
    gap_phase = (3 - (p + 2) % 3) % 3
    slots = 2 * p + 3 * (p % 3 == 0) + 2 * backwards + 3 * ((backwards + gap_phase) // 3)
    offsets[UP_B], offsets[DOWN_B] = slots[:p], slots[p:][::-1]
    return offsets


def _pulled_earlier(offsets: np.ndarray, m: int) -> np.ndarray:
    """Return the first slot of every pass, (4, devices, microbatches), after moving each as early as it may run.

    Passes move in the order of their slots. A pass may run after its input has ended and the same pass of the previous
    microbatch has begun. An F also must not raise the peak of the repeated block, in stages x microbatches of a device.
    """
    p = offsets.shape[1]
    first = offsets[:, :, None] + PERIOD * np.arange(m)
    device = np.broadcast_to(np.arange(p)[:, None], first.shape)
    in_slot_order = np.lexsort((device.ravel(), first.ravel()))
    passes, starts = Passes(p, m, int(first.max()) + 2, in_slot_order, LENGTH), first.ravel()
    scratch = np.zeros(p * passes.slots, bool), np.zeros(p * passes.slots, np.int64)
    call_fastest(pull_earlier, len(starts), passes, starts, *scratch)
    return starts.reshape(first.shape)


class Passes(NamedTuple):
    """Constants of `pull_earlier`; passes are numbered by leg, device and microbatch."""

    devices: int
    microbatches: int
    slots: int
    order: np.ndarray  # int64 (4 x devices x microbatches,): the passes in the order of their slots
    lengths: np.ndarray  # int64 (4,), slots


@kernel
def pull_earlier(passes, first, taken, held):
    """Move each pass to the first slots that are free and, for an F, below the peak until then.

    `first` (passes,) is the first slot of each pass; this function changes it. `taken` and `held` (devices x slots,),
    empty at first, give for each slot of a device whether it is taken, and the activations held after it.
    """
    p, m, peak = passes.devices, passes.microbatches, 0
    for number in passes.order:
        length, row = passes.lengths[number // (p * m)], number // m % p * passes.slots
        for slot in range(first[number], first[number] + length):
            taken[row + slot] = True
        held[row + first[number] + length - 1] += 1 if length == 1 else -1
    for device in range(p):
        for slot in range(device * passes.slots + 1, (device + 1) * passes.slots):
            held[slot] += held[slot - 1]
            peak = max(peak, held[slot])
    for number in passes.order:
        code, device = number // (p * m), number // m % p
        now, length, row = first[number], passes.lengths[code], device * passes.slots
        ready = needed_end(passes, first, number)
        slot = ready
        if length == 1:
            slot = now
            while slot > ready and held[row + slot - 1] < peak:
                slot -= 1
        while slot < now and (taken[row + slot] or taken[row + slot + length - 1]):
            slot += 1
        first[number] = slot
        for part in range(length):
            taken[row + now + part] = False
        for part in range(length):
            taken[row + slot + part] = True
        for later in range(slot + length - 1, now + length - 1):
            held[row + later] += 1 if length == 1 else -1


@kernel
def needed_end(passes, first, number):
    """Return the slot after all passes that this pass waits for; 0 if it waits for none."""
    p, m, lengths = passes.devices, passes.microbatches, passes.lengths
    code, device, microbatch = number // (p * m), number // m % p, number % m
    goes_down = code in (DOWN_F, UP_B)
    neighbour = device - 1 if goes_down else device + 1
    source, at = (code, neighbour) if 0 <= neighbour < p else (code - 1, device)
    end = first[(source * p + at) * m + microbatch] + lengths[source] if source >= 0 else 0
    if microbatch > 0:
        end = max(end, first[(code * p + device) * m + microbatch - 1] + lengths[code])
    return end
