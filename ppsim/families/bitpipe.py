"""BitPipe: two interleaved Vs in opposite directions, four stages per device."""

from collections.abc import Iterator

import numpy as np

from ppsim.actions import Kind
from ppsim.families.chimera import require_units
from ppsim.families.registry import family
from ppsim.schedule.blocks import Block, alternate, concatenate


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
        parts += [b[paired:turn], alternate(following[: paired - 1], b[turn:unit]), following[paired - 1 : warmup]]
    return concatenate(*parts)


def _runs(p: int, m: int, r: int, kind: Kind) -> Block:
    """Return all forwards or all backwards of device r, unit by unit.

    A unit has h = p/2 microbatches per direction. The direction whose entry is nearer to the device begins. Then both
    alternate, first on the first leg of their V, later on the second. Backwards pass the legs in reverse order.
    """
    h = p // 2
    nearer = 1 if r >= h else 0  # the direction that begins
    ahead = r - h + 1 if nearer else h - r
    legs = (r, 2 * p - 1 - r), (p - 1 - r, p + r)  # stages of the device by direction, in the order of forwards
    (near_first, near_second), (far_first, far_second) = (
        legs[direction] if kind == Kind.F else legs[direction][::-1] for direction in (nearer, 1 - nearer)
    )
    near, far = (np.arange(h) + direction * (m // 2) for direction in (nearer, 1 - nearer))
    unit = concatenate(
        Block(kind, near_first, near[:ahead]),
        alternate(Block(kind, far_first, far[: h - ahead]), Block(kind, near_first, near[ahead:])),
        alternate(Block(kind, far_first, far[h - ahead :]), Block(kind, far_second, far[:ahead])),
        alternate(Block(kind, near_second, near[: h - ahead]), Block(kind, far_second, far[ahead:])),
        Block(kind, near_second, near[h - ahead :]),
    )
    units = m // p
    later = np.repeat(np.arange(units) * h, len(unit))
    return Block(np.tile(unit.kind, units), np.tile(unit.stage, units), np.tile(unit.microbatch, units) + later)
