"""1F1B-V: a V of two stages a device with the full backward, at about two thirds of 1F1B's activations."""

from collections.abc import Iterator

import numpy as np

from ppsim.actions import Kind
from ppsim.families.registry import family
from ppsim.schedule.blocks import Block, concatenate, run

PERIOD = 6  # slots of a microbatch on a device: F of two stages, and their B of two slots each
DOWN_F, UP_F, UP_B, DOWN_B = range(4)  # the four passes of a microbatch through a device, by the legs of the V
LENGTH = (1, 1, 2, 2)


@family(
    "1f1b-v",
    title="1F1B-V",
    idea="Stage r and stage 2p-1-r on device r, the backward in one piece. Every microbatch repeats one block of six "
    "slots in which no two passes of a device meet; passes are then pulled earlier without raising the peak. About two "
    "thirds of 1F1B's activations, with about three quarters of its bubble. Built for b = 2f.",
    constraints="devices >= 1, microbatches >= 1",
    makespan="~ at b = 2f, m >= 2p: 6mf + 4.5pf",
    peak_activations="= floor(2p/3) + 1 once m fills the pipeline",
    source="Qi et al. 2024, Pipeline Parallelism with Controllable Memory, arXiv 2405.15362; "
    "sail-sg/zero-bubble-pipeline-parallelism, zerobubble/scheduler/v1f1b.py",
    stages_per_device=2,
)
def v_one_forward_one_backward(p: int, m: int, v: int) -> Iterator[Block]:
    """The lists of the repeated block, pulled earlier."""
    start = _pulled_earlier(_offsets(p), m)
    for r in range(p):
        microbatches = np.arange(m)
        down, up = r, 2 * p - 1 - r
        passes = zip((Kind.F, Kind.F, Kind.B, Kind.B), (down, up, up, down), strict=True)
        rows = concatenate(*(run(kind, stage, microbatches) for kind, stage in passes))
        yield rows[np.argsort(start[:, r].ravel())]


def _offsets(p: int) -> np.ndarray:
    """Slot of each pass of microbatch 0 on each device, (4, devices), so that no two meet modulo `PERIOD`."""
    offsets = np.empty((4, p), np.int64)
    offsets[DOWN_F] = np.arange(p)
    offsets[UP_F] = p + np.arange(p)[::-1]
    backwards = np.arange(2 * p)
    gap_phase = (3 - (p + 2) % 3) % 3
    slots = 2 * p + 3 * (p % 3 == 0) + 2 * backwards + 3 * ((backwards + gap_phase) // 3)
    offsets[UP_B], offsets[DOWN_B] = slots[:p], slots[p:][::-1]
    return offsets


def _pulled_earlier(offsets: np.ndarray, m: int) -> np.ndarray:
    """First slot of every pass, (4, devices, microbatches), in the order of slots moved as early as it may run.

    A pass may run once the one that it needs has ended and the same pass of the microbatch before has begun; an F
    besides only where it does not raise the peak of the repeated block, in stages x microbatches over all devices.
    """
    p = offsets.shape[1]
    start = offsets[:, :, None] + PERIOD * np.arange(m)
    table = _Table(start)
    for code, device, microbatch in _in_slot_order(start):
        ready = _needed_end(start, code, device, microbatch, p)
        if microbatch:
            ready = max(ready, int(start[code, device, microbatch - 1]) + LENGTH[code])
        table.move(start, code, device, microbatch, ready)
    return start


def _in_slot_order(start: np.ndarray) -> Iterator[tuple[int, int, int]]:
    """(pass, device, microbatch) by slot, lower devices first."""
    devices = np.broadcast_to(np.arange(start.shape[1])[:, None], start.shape)
    order = np.lexsort((devices.ravel(), start.ravel()))
    yield from zip(*(column.tolist() for column in np.unravel_index(order, start.shape)), strict=True)


def _needed_end(start: np.ndarray, code: int, device: int, microbatch: int, p: int) -> int:
    """The slot behind the pass that this one waits for; 0 where it waits for none."""
    goes_down = code in (DOWN_F, UP_B)
    neighbour = device - 1 if goes_down else device + 1
    source = (code, neighbour) if 0 <= neighbour < p else (code - 1, device)
    return int(start[source][microbatch]) + LENGTH[source[0]] if source[0] >= 0 else 0


class _Table:
    """Which slots of a device are taken, and how many stages x microbatches it holds after each."""

    def __init__(self, start: np.ndarray):
        slots = int(start.max()) + 2
        self.taken = [[False] * slots for _ in range(start.shape[1])]
        held = np.zeros((start.shape[1], slots), np.int64)
        for code, rows in enumerate(start):
            for device, firsts in enumerate(rows.tolist()):
                for first in firsts:
                    self._mark(device, first, LENGTH[code], True)
            change = 1 if LENGTH[code] == 1 else -1
            np.add.at(held, (np.arange(len(rows))[:, None], rows + LENGTH[code] - 1), change)
        self.held = np.cumsum(held, axis=1).tolist()
        self.peak = max(map(max, self.held))

    def _mark(self, device: int, first: int, length: int, taken: bool) -> None:
        self.taken[device][first : first + length] = [taken] * length

    def move(self, start: np.ndarray, code: int, device: int, microbatch: int, ready: int) -> None:
        """Move one pass to the first slots from `ready` on that are free and, for an F, below the peak until now."""
        now, length, held = int(start[code, device, microbatch]), LENGTH[code], self.held[device]
        first = ready
        if length == 1:
            first = now
            while first > ready and held[first - 1] < self.peak:
                first -= 1
        while first < now and any(self.taken[device][first : first + length]):
            first += 1
        if first == now:
            return
        start[code, device, microbatch] = first
        self._mark(device, now, length, False)
        self._mark(device, first, length, True)
        for slot in range(first + length - 1, now + length - 1):
            held[slot] += 1 if length == 1 else -1
