"""Grouped interleaved 1F1B: groups smaller than the pipeline trade bubble for activations (PipeOffload's GIS)."""

from collections.abc import Iterator

import numpy as np

from ppsim.base.errors import BuildError
from ppsim.families.interleaved import looped_runs
from ppsim.families.registry import family, require_count
from ppsim.schedule.blocks import Block, warmed_up


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
