"""Hanayo: stages placed down and up the devices in waves, so that a microbatch turns round without a transfer."""

from collections.abc import Iterator

import numpy as np

from ppsim.base.errors import BuildError
from ppsim.families.registry import family, nearest_multiples
from ppsim.schedule.blocks import Block, backward_run, forward_run, in_slot_order


@family(
    "hanayo",
    group="interleaved",
    title="Hanayo (wave pipeline)",
    idea="Stages run down the devices and back up in w waves, so v = 2w stages per device. In units of p, "
    "microbatches enter every second slot: at f = b no two actions then meet on a device, and units follow each "
    "other without a gap. At b = 2f each unit leaves gaps; more waves make them smaller, more microbatches do "
    "not. Backwards are whole, because the paper (SC'23) is older than the split into I and W (arXiv 2401.10241); "
    "`auto` with placement `wave` finds an order of I and W.",
    constraints="stages_per_device even: two for each wave",
    makespan="= 2(mv+p-1)f at f = b for m mod p = 0: bubble fraction (p-1)/(mv+p-1)",
    peak_activations="= p - (p-1-r)/v for m >= p",
    source="Liu et al. 2023, Hanayo, arXiv 2308.15762 (placement and waves; the order here is the gapless tiling)",
)
def hanayo(p: int, m: int, v: int = 2) -> Iterator[Block]:
    """Yield rows in the order of the slots in which they run at f = b.

    A microbatch that enters at slot T runs F of stage s at T + s and B at T + 2S-1-s, with S stages in all. On device r
    these are the slots T + r and T - 1 - r modulo 2p. So p microbatches, each two slots after the last, fill all slots.
    """
    if v % 2:
        raise BuildError(
            f"hanayo: stages_per_device={v} is odd, and each wave goes down and up: it is two stages per device; "
            f"use {nearest_multiples(v, 2)}"
        )
    stages = v * p
    microbatch = np.tile(np.arange(m), v)
    entry = 2 * (microbatch % p) + 2 * stages * (microbatch // p)
    for r in range(p):
        first_of_wave = 2 * p * np.arange(v // 2)
        stage = np.repeat(np.concatenate([first_of_wave + r, first_of_wave + 2 * p - 1 - r]), m)
        yield in_slot_order(
            (forward_run(stage, microbatch), entry + stage),
            (backward_run(stage, microbatch), entry + 2 * stages - 1 - stage),
        )
