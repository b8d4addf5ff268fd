"""Sliced sequences over several stages per device: Seq1F1B-I and SlimPipe."""

from collections.abc import Iterator

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import BuildError
from ppsim.families.interleaved import looped_runs
from ppsim.families.registry import family, nearest_multiples
from ppsim.schedule.blocks import Block, warmed_up
from ppsim.schedule.columns import ScheduleColumns


def _looped_slices(p: int, m: int, v: int, slices: int, group: int) -> Iterator[Block]:
    """Yield 2(p-r-1) + (v-1)g + k-1 F of slices; then F, B pairs; then B, the slices of each microbatch reversed.

    `group` is the number g of slices, in whole microbatches, that a device runs on one stage before the next stage.
    """
    for r, (forwards, backwards) in enumerate(looped_runs(p, v, np.full(m * slices // group, group))):
        of_slice = backwards.microbatch % slices
        reversed_slices = Block(Kind.B, backwards.stage, backwards.microbatch - of_slice + slices - 1 - of_slice)
        yield warmed_up(forwards, reversed_slices, 2 * (p - r - 1) + (v - 1) * group + slices - 1)


@family(
    "seq1f1b-i",
    group="slices",
    title="Seq1F1B-I (interleaved)",
    idea="Seq1F1B over v stages per device in a loop: slices pass through the stages of a device in groups of g, p "
    "rounded up to whole microbatches, with the warm-up of interleaved 1F1B and k-1 slices more. Slices are numbered "
    "microbatch x slices + slice.",
    constraints="slices >= 1 (default 2), m a multiple of ceil(p/slices)",
    makespan="= (mkv+p-1)(f+b)/k {with k slices}, p mod k = 0",
    peak_activations="= min(mkv, 2(p-r-1)+(v-1)g+k)/(kv)",
    source="Sun et al. 2024, Seq1F1B, arXiv 2406.03488; thunlp/Seq1F1B, megatron/core/pipeline_parallel/schedules.py "
    "(where p mod k = 0)",
)
def interleaved_seq1f1b(p: int, m: int, v: int = 2, *, slices: int = 2) -> ScheduleColumns:
    """Return groups of the fewest whole microbatches that have p slices."""
    together = -(-p // slices)
    if m % together:
        raise BuildError(
            f"seq1f1b-i: microbatches={m} with devices={p}, slices={slices}: a group holds ceil(devices / slices) = "
            f"{together} whole microbatches; use {nearest_multiples(m, together)} microbatches"
        )
    return ScheduleColumns.from_blocks(_looped_slices(p, m, v, slices, together * slices), slices=slices)


@family(
    "slimpipe",
    group="slices",
    title="SlimPipe",
    idea="One microbatch at a time, cut into n equal slices that follow each other through the stages, n a multiple of "
    "p: a device holds little more than one microbatch. Causal attention makes later slices longer; `slice_costs: "
    "{attention: part}` (of a model `causal`) prices this. By default slices take equal time, as if devices "
    "exchanged context to balance them. A slice's number is microbatch x slices + its index.",
    constraints="slices a multiple of p (default p)",
    makespan="= (mnv+p-1)(f+b)/n {with n slices}",
    peak_activations="= min(mnv, nv+2(p-r-1))/(nv)",
    source="Li et al. 2025, SlimPipe, arXiv 2504.14519",
)
def slimpipe(p: int, m: int, v: int = 1, *, slices: int | None = None) -> ScheduleColumns:
    """Return groups of the slices of one microbatch."""
    n = p if slices is None else slices
    if n % p:
        raise BuildError(
            f"slimpipe: slices={n} with devices={p}: each device takes as many slices of a microbatch; use "
            f"{nearest_multiples(n, p)} slices"
        )
    return ScheduleColumns.from_blocks(_looped_slices(p, m, v, n, n), slices=n)
