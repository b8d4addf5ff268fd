"""GEMS: two copies of the model in opposite directions, one microbatch after the other."""

from collections.abc import Iterator

import numpy as np

from ppsim.families.registry import family
from ppsim.schedule.blocks import Block, alternate, backward_run, forward_run


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
