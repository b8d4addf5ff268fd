"""STP: a V of interleaved forwards and backwards, so that computation overlaps tensor-parallel all-reduces."""

from collections.abc import Iterator

import numpy as np

from ppsim.actions import Kind
from ppsim.families.dualpipe import FAR, NEAR, numbered, require_filled
from ppsim.families.registry import family
from ppsim.schedule.blocks import Block, concatenate, fuse, repeat


@family(
    "stp",
    group="overlapped F, B",
    title="STP (braided with tensor parallelism)",
    idea="Stages r and 2p-1-r on device r. Forwards alternate with backwards so that each hides the other's "
    "tensor-parallel all-reduces. A forward and a whole backward share an OVERLAP_F_B slot. Two forwards, or a "
    "forward and an I or a W, have no fused slot and follow each other, each waiting for its own input alone. "
    "Where W is shorter than I, this idles less than the authors' pairs, whose parts start together: at F=1, "
    "I=1.2, W=0.8 the formula's 1.4 for each further device instead of 2.0. Each I leaves its W for the drain. "
    "For m < 3p-1 the lists of 3p-1 microbatches are built and the surplus is dropped.",
    constraints="m >= 2p",
    makespan="= 6mf + (p-1)f at f = i = w, m >= 3p-1{, with or without a fused kernel}; ~ 2m(f+i+w) + (p-1)(f+i-w)",
    peak_activations="= max(3p+1, 3p+r)/2 for m >= 3p-1",
    source="STP 2025, arXiv 2510.27257 (its table says 3p/2 activations); MICLAB-BUPT/STP, stp/schedule.py",
    stages_per_device=2,
)
def stp(p: int, m: int, v: int) -> Iterator[Block]:
    """Yield nine steps of forwards and backwards of both legs of the V; W run in the order of the I."""
    require_filled("stp", p, m)
    for r in range(p):
        rows = numbered(_nine_steps(p, max(m, 3 * p - 1), r), (r, 2 * p - 1 - r), (0, 0))
        yield _without_surplus(rows, m)


def _nine_steps(p: int, m: int, r: int) -> Block:
    """Return the list of device r for m >= 3p-1; rows hold the side instead of the stage."""
    f0, f1, b0, b1, i1 = (
        Block(kind, side, -1)
        for kind, side in ((Kind.F, NEAR), (Kind.F, FAR), (Kind.B, NEAR), (Kind.B, FAR), (Kind.I, FAR))
    )
    w = Block(Kind.W, NEAR, -1)
    outer, inner = p - r - 1, r + 1
    braided = 2 * (m - 3 * p + 1) + 1 + 2 * r
    return concatenate(
        repeat(f0, 2 * outer),
        repeat(concatenate(f0, f1), inner),
        repeat(f0, inner),
        repeat(concatenate(f1, i1, f0, w), outer),
        _braid(concatenate(fuse(f1, b1), fuse(f0, b0)), braided, split=r),
        repeat(concatenate(b0, f1, i1), 2 * outer + r),
        repeat(concatenate(b0, b1), inner),
        b0,
        repeat(concatenate(w, w, b0), outer),
        repeat(w, 2 * r),
    )


def _braid(pair: Block, slots: int, split: int) -> Block:
    """Return `slots` slots, the two of the pair in turn; the last `split` are two actions, with I instead of B."""
    rows = repeat(pair, (slots + 1) // 2)[: 2 * slots]
    fused, last = rows[: 2 * (slots - split)], rows[2 * (slots - split) :]
    return concatenate(fused, Block(np.where(last.kind == Kind.B, Kind.I, last.kind), last.stage, last.microbatch))


def _without_surplus(rows: Block, m: int) -> Block:
    """Return the rows of microbatches below m; a slot that loses a part is an ordinary action."""
    kept = rows.microbatch < m
    joined = rows.joined & np.append(False, kept[:-1])
    return Block(rows.kind, rows.stage, rows.microbatch, joined)[kept]
