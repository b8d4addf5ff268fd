"""DualPipe and DualPipe-V: microbatches come from both ends, and the F of one side shares a slot with the other's B."""

from collections.abc import Iterator

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import BuildError
from ppsim.families.registry import family, nearest_multiples, require_choice
from ppsim.schedule.blocks import Block, concatenate, fuse, repeat

# The side of a device that a microbatch reaches first, and the side that it reaches last. Rows hold the side instead of
# the stage until `numbered` gives them stages and microbatches.
NEAR, FAR = 0, 1


def require_filled(name: str, p: int, m: int) -> None:
    """Raise BuildError unless the microbatches fill the pipeline from both ends."""
    if m < 2 * p:
        raise BuildError(
            f"{name}: microbatches={m} with devices={p}: filling the pipeline takes 2 x devices = {2 * p} of them; "
            f"use at least {2 * p}"
        )


@family(
    "dualpipe",
    group="overlapped F, B",
    title="DualPipe",
    idea="Half of the microbatches enter at device 0, half at device p-1, through two copies of the model: device r "
    "runs stage r for one direction and stage p-1-r for the other. In the steady part the F of one direction "
    "shares a slot with the B of the other; W is split off only where it fills a gap. The published bubble is the "
    "idle time of the two middle devices, which fuse most; outer devices fuse fewer pairs and idle less. It needs "
    "a fused kernel (`overlap` given) no shorter than B, F = I and W <= F. Without a fused kernel the bubble is "
    "(p/2-1)(F+I-W).",
    constraints="p even, m even, m >= 2p",
    makespan="= (m-p-1)F&B + (p+1)(F+B) + {bubble, bubble |}(p/2-1)(F&B+B-3W), where F = I, W <= F, B <= F&B",
    peak_activations="= p+1",
    source="DeepSeek-AI 2024, DeepSeek-V3, arXiv 2412.19437, figure 5 and table 2; deepseek-ai/DualPipe, "
    "dualpipe/dualpipe.py",
)
def dualpipe(p: int, m: int, v: int) -> Iterator[Block]:
    """Yield the eight steps on q = min(r, p-1-r); microbatches 0..m/2-1 enter at device 0, the others at device p-1."""
    if p % 2:
        raise BuildError(
            f"dualpipe: devices={p} is odd, and the two directions meet between two middle devices; use "
            f"{nearest_multiples(p, 2)} devices, or dualpipe-v"
        )
    require_filled("dualpipe", p, m)
    if m % 2:
        raise BuildError(
            f"dualpipe: microbatches={m} is odd, and each direction takes half of them; use {nearest_multiples(m, 2)} "
            f"microbatches"
        )
    half = m // 2
    for r in range(p):
        q = min(r, p - 1 - r)
        first = (0, half) if r == q else (half, 0)
        yield numbered(eight_steps(q, p // 2, half), (q, p - 1 - q), first)


@family(
    "dualpipe-v",
    group="overlapped F, B",
    title="DualPipe-V",
    idea="One half of DualPipe, folded: stages r and 2p-1-r on device r, with one copy of the model. The two legs of "
    "the V replace the two directions. PyTorch runs it as ScheduleDualPipeV. The bubble has DualPipe's conditions; "
    'without a fused kernel it is (p-1)(f+i-w). `drain="whole"` keeps each B of the drain whole.',
    constraints="m >= 2p",
    makespan="= (2m-2p-1)f&b + (2p+1)(f+b) + {bubble, bubble |}(p-1)(f&b+b-3w), where f = i, w <= f, b <= f&b",
    peak_activations="= (2p+1)/2",
    source="PyTorch 2.13, torch/distributed/pipelining/schedules.py, ScheduleDualPipeV; deepseek-ai/DualPipe, "
    "dualpipe/dualpipev.py",
    stages_per_device=2,
)
def dualpipe_v(p: int, m: int, v: int, *, drain: str = "split") -> Iterator[Block]:
    """Yield the eight steps on q = r; both sides number the same microbatches."""
    require_filled("dualpipe-v", p, m)
    require_choice("drain", drain, ("split", "whole"))
    for r in range(p):
        yield numbered(eight_steps(r, p, m, drain == "split"), (r, 2 * p - 1 - r), (0, 0))


def eight_steps(q: int, h: int, count: int, splits_drain: bool = True) -> Block:
    """Return the list of the device at distance q from its end, out of h; `count` microbatches run on each side.

    Rows hold the side instead of the stage, and no microbatch yet. Unless it `splits_drain`, its drain has whole B.
    """
    f0, f1, b0, b1, i0, i1 = (Block(kind, side, -1) for kind in (Kind.F, Kind.B, Kind.I) for side in (NEAR, FAR))
    w = Block(Kind.W, NEAR, -1)
    near_far, far_near = fuse(f0, b1), fuse(f1, b0)
    outer, inner = h - q - 1, q + 1
    steady = repeat(concatenate(near_far, far_near), count - 2 * h + inner)
    if outer == 0:
        # The innermost device runs its first F and B one after the other, because no communication overlaps them yet.
        steady = concatenate(f0, b1, steady[2:])
    pairs = repeat(concatenate(b1, b0), inner)
    drain = [repeat(b0, outer)]
    if splits_drain:
        split_from = 2 * (inner // 2) + (q % 2 == 0)
        pairs = concatenate(pairs[:split_from], repeat(concatenate(i1, i0), inner)[split_from:])
        drain = [repeat(concatenate(w, i0), outer), repeat(w, inner)]
    return concatenate(
        repeat(f0, 2 * outer),
        repeat(concatenate(f0, f1), inner),
        repeat(concatenate(i1, w, f1), outer),
        steady,
        repeat(concatenate(b1, far_near), outer),
        pairs,
        *drain,
    )


def numbered(rows: Block, stages: tuple[int, int], first: tuple[int, int]) -> Block:
    """Return rows that hold sides with their stages and microbatches.

    Each side counts its F and its backwards from its `first` microbatch. W run in the order of the I.
    """
    stage, microbatch = np.array(stages, np.int32)[rows.stage], np.empty(len(rows), np.int32)
    for side in (NEAR, FAR):
        for kinds in ((Kind.F,), (Kind.B, Kind.I)):
            chosen = (rows.stage == side) & np.isin(rows.kind, kinds)
            microbatch[chosen] = first[side] + np.arange(np.count_nonzero(chosen))
    weights, inputs = rows.kind == Kind.W, rows.kind == Kind.I
    stage[weights], microbatch[weights] = stage[inputs], microbatch[inputs]
    return Block(rows.kind, stage, microbatch, rows.joined)
