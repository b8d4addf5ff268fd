"""Sliced sequences: microbatches cut along the sequence into slices, which follow each other through the stages."""

from collections.abc import Iterator

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import BuildError
from ppsim.families.interleaved import looped_runs
from ppsim.families.registry import family, nearest_multiples
from ppsim.families.zero_bubble import with_delayed_weights
from ppsim.schedule.blocks import Block, concatenate, straight_runs, warmed_up
from ppsim.schedule.columns import ScheduleColumns


def sliced_runs(p: int, m: int, slices: int, backward: Kind = Kind.B) -> Iterator[tuple[Block, Block]]:
    """Return for each device all F in order, and all backwards with microbatches in order and slices reversed."""
    reversed_slices = np.arange(m * slices).reshape(m, slices)[:, ::-1].ravel()
    return ((forwards, backwards[reversed_slices]) for forwards, backwards in straight_runs(p, m * slices, backward))


def warmed_up_slices(p: int, m: int, slices: int, backward: Kind = Kind.B) -> Iterator[Block]:
    """Return for each device p-r-1 + slices-1 F; then F, backward pairs; then the other backwards."""
    runs = enumerate(sliced_runs(p, m, slices, backward))
    return (warmed_up(*of_device, p - r - 1 + slices - 1) for r, of_device in runs)


@family(
    "seq1f1b",
    group="slices",
    title="Seq1F1B",
    idea="1F1B over slices of sequences. With causal attention, the F of a slice needs the same stage's F of the slice "
    "before, and its B the B of the slice after. The fill is one slice long instead of one microbatch, and the "
    "activations shrink as much. A slice's number is microbatch x slices + its index; `slice_costs` gives uneven "
    "slices.",
    constraints="slices >= 1 (default 2)",
    makespan="= (mk+p-1)(F+B)/k {with k slices}",
    peak_activations="= min(mk, k+p-1-r)/k",
    source="Sun et al. 2024, Seq1F1B, arXiv 2406.03488",
)
def seq1f1b(p: int, m: int, v: int, *, slices: int = 2) -> ScheduleColumns:
    """Return min(p-r-1 + k-1, mk) F of slices; then F, B pairs; then B."""
    return ScheduleColumns.from_blocks(warmed_up_slices(p, m, slices), slices=slices)


@family(
    "terapipe",
    group="slices",
    title="TeraPipe",
    idea="GPipe over slices of sequences: all forwards of all slices, then all backwards, the slices of each "
    "microbatch reversed. A fill of one slice, with the activations of GPipe.",
    constraints="slices >= 1 (default 2)",
    makespan="= (mk+p-1)(F+B)/k {with k slices}",
    peak_activations="= m",
    source="Li et al. 2021, TeraPipe, arXiv 2102.07988",
)
def terapipe(p: int, m: int, v: int, *, slices: int = 2) -> ScheduleColumns:
    """Return all F of slices; then all B."""
    blocks = (concatenate(*runs) for runs in sliced_runs(p, m, slices))
    return ScheduleColumns.from_blocks(blocks, slices=slices)


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


@family(
    "seq1f1b-zb",
    group="slices",
    title="Seq1F1B with split backward",
    idea="Seq1F1B's order of F and I over slices, and ZB-H1's of W: device r starts the W of its slices after r I, so "
    "that the W fill most of the drain. The bubble is that of slices, and at F = I = W a third of it. A slice's "
    "number is microbatch x slices + its index.",
    constraints="slices >= 1 (default 2)",
    makespan="= m(F+I+W) + (p-1)(F+I-W)/k {with k slices}, for mk >= p+k-1, W <= F, W <= I",
    peak_activations="= min(mk, p+k-1)/k",
    source="Sun et al. 2024, Seq1F1B, arXiv 2406.03488 (zero-bubble variant); Qi et al. 2023, arXiv 2401.10241",
)
def split_seq1f1b(p: int, m: int, v: int, *, slices: int = 2) -> ScheduleColumns:
    """Return min(p-r-1 + k-1, mk) F of slices; then F, I pairs, with a W after each I from the r-th on."""
    bodies = enumerate(warmed_up_slices(p, m, slices, Kind.I))
    blocks = (with_delayed_weights(body, r) for r, body in bodies)
    return ScheduleColumns.from_blocks(blocks, slices=slices)
