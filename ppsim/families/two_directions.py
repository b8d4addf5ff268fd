"""Two copies of the model in opposite directions: Chimera, BitPipe and GEMS."""

from collections.abc import Iterator

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import BuildError
from ppsim.families.registry import family, nearest_multiples
from ppsim.schedule.blocks import Block, alternate, backward_run, concatenate, forward_run, in_slot_order, run


def require_units(name: str, p: int, m: int) -> None:
    """Raise BuildError unless the two directions interlock: devices are even, microbatches a multiple of them."""
    if p % 2:
        raise BuildError(
            f"{name}: devices={p} is odd, and the slots of the two directions interlock only for an even number; use "
            f"{nearest_multiples(p, 2)} devices"
        )
    if m % p:
        raise BuildError(
            f"{name}: microbatches={m} with devices={p}: each unit takes one microbatch a device, half in each "
            f"direction; use a multiple of {p}: {nearest_multiples(m, p)}"
        )


@family(
    "chimera",
    group="two directions",
    title="Chimera",
    idea="Two copies of the model in opposite directions, each running 1F1B on half of the microbatches in units of "
    "p/2: at F = B the slots of one direction fall into the gaps of the other, and units follow without a gap. "
    "Microbatches 0..m/2-1 enter at device 0, the others at device p-1. The paper (SC'21) has one backward a "
    "microbatch: it is older than the split in I and W (arXiv 2401.10241), and its backward halving halves the "
    "microbatch, not the gradient. So it gives no order of I and W that could be built.",
    constraints="p even, m a multiple of p",
    makespan="= (2m+p-2)F at F = B: bubble fraction (p-2)/(2m+p-2); "
    "{|bubble fraction }= (p-2)/(3m/2+p-2) at B = 2F for m = p{, more above}",
    peak_activations="= p/2 + 1 + min(r, p-1-r)",
    source="Li and Hoefler 2021, Chimera, arXiv 2107.06925",
)
def chimera(p: int, m: int, v: int) -> Iterator[Block]:
    """Yield rows in the order of the slots in which they run at F = B, one slot per action, 2p slots per unit."""
    require_units("chimera", p, m)
    half = m // 2
    microbatch = np.arange(half)
    entry = 2 * p * (microbatch // (p // 2)) + 2 * (microbatch % (p // 2))
    for r in range(p):
        yield in_slot_order(
            (forward_run(r, microbatch), entry + r),
            (backward_run(r, microbatch), entry + 2 * p - 1 - r),
            (forward_run(p - 1 - r, half + microbatch), entry + p - 1 - r),
            (backward_run(p - 1 - r, half + microbatch), entry + p + r),
        )


@family(
    "bitpipe",
    group="two directions",
    title="BitPipe",
    idea="Two copies of the model in opposite directions, each a V of two stages per device, in units of p "
    "microbatches: a device holds four stages, each 1/2p of the model, so that the fill is half of Chimera's. "
    "The drain of a unit and the fill of the next run into each other. Microbatches 0..m/2-1 enter at device 0, "
    "the others at device p-1.",
    constraints="p even, m a multiple of p",
    makespan="= (4m+p-2)f at f = b; = 6mf + (p-2)(m/p+1)f at b = 2f{: one gap more for each unit}",
    peak_activations="= (3p/2 + 1 + min(r, p-1-r))/2",
    source="Wu et al. 2024, BitPipe, arXiv 2410.19367; wuhouming/BitPipe, "
    "megatron/core/pipeline_parallel/bitpipe_schedule.py",
    stages_per_device=2,
)
def bitpipe(p: int, m: int, v: int) -> Iterator[Block]:
    """Yield units of 2p forwards and 2p backwards; the drain of a unit begins one backward before the next fill."""
    require_units("bitpipe", p, m)
    for r in range(p):
        forwards, backwards = _runs(p, m, r, Kind.F), _runs(p, m, r, Kind.B)
        yield _units_joined(forwards, backwards, 2 * p, p + p // 2 + min(r, p - 1 - r))


def _units_joined(forwards: Block, backwards: Block, unit: int, warmup: int) -> Block:
    """Return 1F1B per unit; the last backwards of a unit alternate with the first forwards of the next unit."""
    paired = unit - warmup
    turn = warmup + 1
    parts = [forwards[:warmup]]
    for first in range(0, len(forwards), unit):
        f, b = forwards[first + warmup :], backwards[first:]
        parts.append(alternate(f[:paired], b[:paired]))
        if first + unit == len(forwards):
            parts.append(b[paired:])
            continue
        following = forwards[first + unit :]
        parts += [
            b[paired:turn],
            alternate(following[: paired - 1], b[turn:unit]),
            following[paired - 1 : warmup],
        ]
    return concatenate(*parts)


def _runs(p: int, m: int, r: int, kind: Kind) -> Block:
    """Return all forwards or all backwards of device r, unit by unit.

    A unit has h = p/2 microbatches per direction. The direction whose entry is nearer to the device begins. Then both
    alternate, first on the first leg of their V, later on the second. Backwards pass the legs in reverse order.
    """
    h = p // 2
    near_is_second = r >= h
    ahead = r - h + 1 if near_is_second else h - r
    near_first, near_second = (p - 1 - r, p + r) if near_is_second else (r, 2 * p - 1 - r)
    far_first, far_second = (r, 2 * p - 1 - r) if near_is_second else (p - 1 - r, p + r)
    near, far = np.arange(h) + (m // 2 if near_is_second else 0), np.arange(h) + (0 if near_is_second else m // 2)
    if kind == Kind.B:
        near_first, near_second, far_first, far_second = near_second, near_first, far_second, far_first
    unit = concatenate(
        run(kind, near_first, near[:ahead]),
        alternate(run(kind, far_first, far[: h - ahead]), run(kind, near_first, near[ahead:])),
        alternate(run(kind, far_first, far[h - ahead :]), run(kind, far_second, far[:ahead])),
        alternate(run(kind, near_second, near[: h - ahead]), run(kind, far_second, far[ahead:])),
        run(kind, near_second, near[h - ahead :]),
    )
    units = m // p
    later = np.repeat(np.arange(units) * h, len(unit))
    return Block(np.tile(unit.kind, units), np.tile(unit.stage, units), np.tile(unit.microbatch, units) + later)


@family(
    "gems",
    group="two directions",
    title="GEMS",
    idea="Two copies of the model in opposite directions take turns: the forward of one microbatch follows the "
    "backward of the one before it through the devices. Made for little memory: a device holds one activation. "
    "Microbatches 0..ceil(m/2)-1 enter at device 0, the others at device p-1.",
    makespan="= p(F+B) + (m-1) max(pB+F, pF+B); bubble fraction ~ (p-1)/(p+1/2) at B = 2F",
    peak_activations="= 1",
    source="Jain et al. 2020, GEMS, SC20; bubble as given by Li and Hoefler 2021, Chimera, arXiv 2107.06925, table 2",
)
def gems(p: int, m: int, v: int) -> Iterator[Block]:
    """Yield F and B of each microbatch in turn; the directions alternate."""
    turn = np.arange(m)
    backwards_direction = turn % 2 == 1
    microbatch = turn // 2 + np.where(backwards_direction, (m + 1) // 2, 0)
    for r in range(p):
        stage = np.where(backwards_direction, p - 1 - r, r)
        yield alternate(forward_run(stage, microbatch), backward_run(stage, microbatch))
