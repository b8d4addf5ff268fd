"""Sliced sequences: microbatches cut along the sequence into slices, which follow each other through the stages."""

from collections.abc import Iterator

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import BuildError
from ppsim.families.interleaved import grouped_order
from ppsim.families.one_forward_one_backward import warmed_up
from ppsim.families.registry import family, nearest_multiples, require_count, require_few_actions
from ppsim.families.zero_bubble import with_delayed_weights
from ppsim.schedule.blocks import Block, backward_run, concatenate, forward_run, straight_runs
from ppsim.schedule.columns import ScheduleColumns


def sliced_runs(name: str, p: int, m: int, slices: int, backward: Kind = Kind.B) -> Iterator[tuple[Block, Block]]:
    """Return for each device all F in order, and all backwards with microbatches in order and slices reversed.

    Raises BuildError if `slices` is not a count, or makes too many actions.
    """
    require_few_actions(name, devices=p, microbatches=m, slices=require_count("slices", slices))
    pieces_reversed = np.arange(m * slices).reshape(m, slices)[:, ::-1].ravel()
    return ((forwards, backwards[pieces_reversed]) for forwards, backwards in straight_runs(p, m * slices, backward))


def warmed_up_slices(name: str, p: int, m: int, slices: int, backward: Kind = Kind.B) -> Iterator[Block]:
    """Return for each device min(p-r-1 + slices-1, m slices) F; then F, backward pairs; then the other backwards."""
    runs = enumerate(sliced_runs(name, p, m, slices, backward))
    return (warmed_up(*of_device, min(p - r - 1 + slices - 1, m * slices)) for r, of_device in runs)


@family(
    "seq1f1b",
    group="slices",
    title="Seq1F1B",
    idea="1F1B over pieces of sequences: causal attention lets a piece's F follow the same stage's F of the piece "
    "before, and its B the B of the piece behind. The fill is one piece long instead of one microbatch, and the "
    "activations shrink alike. Slices are numbered microbatch x slices + piece; `slice_costs` gives uneven pieces.",
    constraints="slices >= 1 (default 2)",
    makespan="= (mk+p-1)(F+B)/k {with k slices}",
    peak_activations="= min(mk, k+p-1-r)/k",
    source="Sun et al. 2024, Seq1F1B, arXiv 2406.03488",
)
def seq1f1b(p: int, m: int, v: int, *, slices: int = 2) -> ScheduleColumns:
    """Return min(p-r-1 + k-1, mk) F of slices; then F, B pairs; then B."""
    return ScheduleColumns.from_blocks(warmed_up_slices("seq1f1b", p, m, slices), slices=slices)


@family(
    "terapipe",
    group="slices",
    title="TeraPipe",
    idea="GPipe over pieces of sequences: all forwards of all pieces, then all backwards, the pieces of each "
    "microbatch reversed. A fill of one piece, at the activations of GPipe.",
    constraints="slices >= 1 (default 2)",
    makespan="= (mk+p-1)(F+B)/k {with k slices}",
    peak_activations="= m",
    source="Li et al. 2021, TeraPipe, arXiv 2102.07988",
)
def terapipe(p: int, m: int, v: int, *, slices: int = 2) -> ScheduleColumns:
    """Return all F of slices; then all B."""
    blocks = (concatenate(*runs) for runs in sliced_runs("terapipe", p, m, slices))
    return ScheduleColumns.from_blocks(blocks, slices=slices)


def _looped_pieces(p: int, m: int, v: int, slices: int, group: int) -> Iterator[Block]:
    """Yield 2(p-r-1) + (v-1)g + k-1 F of slices; then F, B pairs; then B, the slices of each microbatch reversed.

    `group` is the number g of slices, in whole microbatches, that a device runs on one stage before the next stage.
    """
    local_stage, piece = grouped_order(np.full(m * slices // group, group), v)
    reversed_piece = piece - piece % slices + slices - 1 - piece % slices
    for r in range(p):
        forwards = forward_run(local_stage * p + r, piece)
        backwards = backward_run((v - 1 - local_stage) * p + r, reversed_piece)
        warmup = 2 * (p - r - 1) + (v - 1) * group + slices - 1
        yield warmed_up(forwards, backwards, min(warmup, m * slices * v))


def _checked_slices(name: str, p: int, m: int, v: int, slices: int) -> int:
    slices = require_count("slices", slices)
    require_few_actions(name, devices=p, microbatches=m, stages_per_device=v, slices=slices)
    return slices


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
    k = _checked_slices("seq1f1b-i", p, m, v, slices)
    together = -(-p // k)
    if m % together:
        raise BuildError(
            f"seq1f1b-i: microbatches={m} with devices={p}, slices={k}: a group holds ceil(devices / slices) = "
            f"{together} whole microbatches; use {nearest_multiples(m, together)} microbatches"
        )
    return ScheduleColumns.from_blocks(_looped_pieces(p, m, v, k, together * k), slices=k)


@family(
    "slimpipe",
    group="slices",
    title="SlimPipe",
    idea="One microbatch at a time, cut in n uniform slices that follow each other through the stages, n a multiple of "
    "p: a device holds little more than one microbatch. Causal attention makes later slices longer: "
    "`slice_costs: {attention: part}` (of a model `causal`) prices that; exchanging context between devices evens "
    "them, which is the default of equal slices. Slices are numbered microbatch x slices + piece.",
    constraints="slices a multiple of p (default p)",
    makespan="= (mnv+p-1)(f+b)/n {with n slices}",
    peak_activations="= min(mnv, nv+2(p-r-1))/(nv)",
    source="Li et al. 2025, SlimPipe, arXiv 2504.14519",
)
def slimpipe(p: int, m: int, v: int = 1, *, slices: int | None = None) -> ScheduleColumns:
    """Return groups of the slices of one microbatch."""
    n = p if slices is None else _checked_slices("slimpipe", p, m, v, slices)
    if n % p:
        raise BuildError(
            f"slimpipe: slices={n} with devices={p}: each device takes as many slices of a microbatch; use "
            f"{nearest_multiples(n, p)} slices"
        )
    return ScheduleColumns.from_blocks(_looped_pieces(p, m, v, n, n), slices=n)


@family(
    "seq1f1b-zb",
    group="slices",
    title="Seq1F1B with split backward",
    idea="Seq1F1B's order of F and I over pieces, and ZB-H1's of W: device r starts the W of its pieces after r I's, "
    "so that W fill most of the drain. A bubble of pieces, and of that a third at F = I = W. Slices are numbered "
    "microbatch x slices + piece.",
    constraints="slices >= 1 (default 2)",
    makespan="= m(F+I+W) + (p-1)(F+I-W)/k {with k slices}, for mk >= p+k-1, W <= F, W <= I",
    peak_activations="= min(mk, p+k-1)/k",
    source="Sun et al. 2024, Seq1F1B, arXiv 2406.03488 (zero-bubble variant); Qi et al. 2023, arXiv 2401.10241",
)
def split_seq1f1b(p: int, m: int, v: int, *, slices: int = 2) -> ScheduleColumns:
    """Return min(p-r-1 + k-1, mk) F of slices; then F, I pairs, with a W after each I from the r-th on."""
    bodies = enumerate(warmed_up_slices("seq1f1b-zb", p, m, slices, Kind.I))
    blocks = (with_delayed_weights(body, min(r, m * slices)) for r, body in bodies)
    return ScheduleColumns.from_blocks(blocks, slices=slices)
