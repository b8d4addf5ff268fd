"""Chimera: two 1F1B pipelines in opposite directions whose slots interlock."""

from collections.abc import Iterator

import numpy as np

from ppsim.base.errors import BuildError
from ppsim.families.registry import family, nearest_multiples
from ppsim.schedule.blocks import Block, backward_run, forward_run, in_slot_order


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
    idea="Two copies of the model in opposite directions, each running 1F1B on half of the microbatches, in units of "
    "p/2. At F = B the slots of one direction fall into the gaps of the other, and units follow without a gap. "
    "Microbatches 0..m/2-1 enter at device 0, the others at device p-1. Backwards are whole: the paper (SC'21) is "
    "older than the split into I and W (arXiv 2401.10241), and its backward halving halves the microbatch, not "
    "the gradient.",
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
