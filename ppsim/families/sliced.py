"""Sliced sequences: microbatches cut along the sequence into slices, which follow each other through the stages."""

from collections.abc import Iterator

import numpy as np

from ppsim.actions import Kind
from ppsim.families.registry import family
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
