"""Grouped interleaved 1F1B (PipeOffload's GIS): groups smaller than the pipeline trade bubble for activations.

Two orders: that of interleaved 1F1B with fewer forwards ahead, and that of the slots in the authors' code.
"""

import math
from collections.abc import Iterator

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import BuildError
from ppsim.families.interleaved import looped_runs
from ppsim.families.registry import family, require_count
from ppsim.schedule.blocks import Block, forward_run, in_slot_order, warmed_up


@family(
    "grouped-interleaved",
    group="interleaved",
    title="Grouped interleaved 1F1B (GIS)",
    idea="Interleaved 1F1B with half its extra warm-up, in groups of g <= p microbatches. A smaller group holds fewer "
    "activations, but leaves a gap in the fill and in the drain for each further stage of a device. If m is not a "
    "multiple of g, the lists of the next multiple are built and the surplus is dropped.",
    constraints="ceil(p/2) <= group_size <= p (default p)",
    makespan="= (mv+p-1)(f+b) + (p-g)(v-1)(f+b) for m mod g = 0 where g(f+b) >= p max(f, b)",
    peak_activations="= min(mv, g(v-1)+p-r)/v for m mod g = 0",
    source="Wan et al. 2025, PipeOffload, arXiv 2503.01328, generalized interleaved schedule",
)
def grouped_interleaved(p: int, m: int, v: int = 2, *, group_size: int | None = None) -> Iterator[Block]:
    """Yield (v-1)g + p-r-1 forwards; then F, B pairs; then B; without the surplus microbatches."""
    g, least = p if group_size is None else require_count("group_size", group_size), (p + 1) // 2
    if not least <= g <= p:
        raise BuildError(
            f"grouped-interleaved: group_size={g} with devices={p}: it must be from ceil(devices / 2) = {least} to "
            f"devices; use {min(max(g, least), p)}"
        )
    groups = -(-m // g)
    for r, (forwards, backwards) in enumerate(looped_runs(p, v, np.full(groups, g))):
        rows = warmed_up(forwards, backwards, (v - 1) * g + p - r - 1)
        yield rows[rows.microbatch < m]


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
