"""PipeOffload's grouped interleaved schedule in the slots of its authors' code, for groups of any size up to p."""

import math
from collections.abc import Iterator

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import BuildError
from ppsim.families.registry import family, require_count
from ppsim.schedule.blocks import Block, forward_run, in_slot_order


@family(
    "gis",
    group="interleaved",
    title="Grouped interleaved 1F1B by slots (PipeOffload)",
    idea="The lists that PipeOffload's authors run. In units of f = i = w every pass of a group has a slot, W directly "
    "after I, and the block of a group repeats every 3gv slots. A stage's passes come ceil(ceil(p/2)/g) groups "
    "after those of the stage before on the same device, so that a group may be one microbatch. Surplus "
    "microbatches of the last group are dropped.",
    constraints="1 <= group_size <= p (default p)",
    makespan="= 3mvf + 2(p-1)f + (p-g)(v-1)f at f = i = w for g >= p/2, m mod g = 0",
    peak_activations="= min(mv, g(v-1)+p-r)/v at f = i = w for g >= p/2, m mod g = 0",
    source="Wan et al. 2025, PipeOffload, arXiv 2503.01328; sail-sg/zero-bubble-pipeline-parallelism, "
    "zerobubble/scheduler/group_interleaved_1f1b.py",
)
def grouped_by_slots(p: int, m: int, v: int = 2, *, group_size: int | None = None) -> Iterator[Block]:
    """Yield rows in the order of their slots."""
    g = p if group_size is None else require_count("group_size", group_size)
    if g > p:
        raise BuildError(
            f"gis: group_size={g} with devices={p}: it must be from 1 to devices; use {p}, or interleaved-1f1b, whose "
            f"groups may be larger"
        )
    local_stage, microbatch = (column.ravel() for column in np.meshgrid(np.arange(v), np.arange(m), indexing="ij"))
    within = _stage_slots(p, v, g)[local_stage] + 3 * (microbatch % g) + 3 * g * v * (microbatch // g)
    last_stage = int(_stage_slots(p, v, g)[-1])
    for r in range(p):
        first_backward = r + last_stage + 3 * (p - 1 - r) + 1
        yield in_slot_order(
            (forward_run(local_stage * p + r, microbatch), within + r),
            (Block(Kind.I, (v - 1 - local_stage) * p + r, microbatch), within + first_backward),
            (Block(Kind.W, (v - 1 - local_stage) * p + r, microbatch), within + first_backward + 1),
        )


def _stage_slots(p: int, v: int, g: int) -> np.ndarray:
    """Return the slots from the first F of device 0 to the first F of each of its stages, int64 (v,).

    A stage starts k groups after the stage before, k being the smallest number of groups with ceil(p/2) microbatches.
    If k and v have a common divisor, a shift by one group keeps two passes of a device out of one slot.
    """
    k = -(-((p + 1) // 2) // g)
    stages = np.arange(v)
    return 3 * g * (k * stages + stages // (v // math.gcd(v, k)))
