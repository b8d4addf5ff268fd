"""Interleaved 1F1B: several stages per device in a loop, with microbatches in groups."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import BuildError
from ppsim.base.immutable import index_in_list, offsets_of
from ppsim.families.registry import family, require_choice, require_count
from ppsim.schedule.blocks import Block, warmed_up

GROUPINGS = ("megatron", "torch", "spread")
CONSTRAINTS = (
    "megatron: p <= group_size <= m, m mod group_size = 0 or >= p; torch: m mod max(1, m // p) = 0; spread: any"
)


def group_sizes(p: int, m: int, grouping: str, group_size: int | None) -> np.ndarray:
    """Return the microbatches of each group; raise BuildError if the grouping does not allow p and m."""
    require_choice("grouping", grouping, GROUPINGS)
    if grouping == "megatron":
        return _megatron_groups(p, m, group_size)
    if group_size is not None:
        raise BuildError(f"group_size={group_size!r} needs grouping='megatron'; grouping={grouping!r} chooses its own")
    rounds = max(1, m // p)
    if grouping == "torch" and m % rounds:
        legal = _nearest(m, lambda count: count % max(1, count // p) == 0)
        raise BuildError(
            f"microbatches={m} with devices={p}: grouping='torch' makes {rounds} rounds, and microbatches must be a "
            f"multiple of the rounds; use {legal} microbatches, or grouping='spread'"
        )
    return np.full(rounds, m // rounds) + (np.arange(rounds) < m % rounds)


def _megatron_groups(p: int, m: int, group_size: int | None) -> np.ndarray:
    g = p if group_size is None else require_count("group_size", group_size)
    if m < p:
        raise BuildError(
            f"microbatches={m} with devices={p}: grouping='megatron' needs at least as many microbatches as devices; "
            f"use {max(p, g)} microbatches, or grouping='torch' or 'spread'"
        )
    if not p <= g <= m:
        raise BuildError(
            f"group_size={g} with devices={p}, microbatches={m}: it must be from devices to microbatches; "
            f"use {min(max(g, p), m)}"
        )
    if 0 < m % g < p:
        legal = _nearest(m, lambda count: count >= g and (count % g == 0 or count % g >= p))
        others = "'spread'" if m % (m // p) else "'torch' or 'spread'"
        raise BuildError(
            f"microbatches={m} with group_size={g}: the last group has {m % g}, and needs at least "
            f"devices={p}; use {legal} microbatches, another group_size, or grouping={others}"
        )
    return np.array([g] * (m // g) + [m % g] * (m % g > 0))


def _nearest(m: int, legal: Any) -> str:
    """Return the nearest legal counts below and above m as text."""
    below = next((count for count in range(m - 1, 0, -1) if legal(count)), None)
    above = next(count for count in range(m + 1, 4 * m + 4096) if legal(count))
    return f"{above}" if below is None else f"{below} or {above}"


def grouped_order(sizes: np.ndarray, v: int) -> tuple[np.ndarray, np.ndarray]:
    """Return local stage and microbatch of the forwards: in each group all of local stage 0, then 1, ...

    `sizes` holds the microbatches of each group. Returns two columns of length sum(sizes) * v.
    """
    run_length, first = np.repeat(sizes, v), np.repeat(offsets_of(sizes)[:-1], v)
    local_stage = np.repeat(np.tile(np.arange(v), len(sizes)), run_length)
    return local_stage, index_in_list(run_length) + np.repeat(first, run_length)


def looped_runs(p: int, v: int, sizes: np.ndarray, backward: Kind = Kind.B) -> Iterator[tuple[Block, Block]]:
    """Yield all forwards and all backwards of each device in grouped order; stage s is on device s mod p."""
    local_stage, microbatch = grouped_order(sizes, v)
    forwards = Block(Kind.F, local_stage * p, microbatch)
    backwards = Block(backward, (v - 1 - local_stage) * p, microbatch)
    for r in range(p):
        yield forwards.stages_later(r), backwards.stages_later(r)


@family(
    "interleaved-1f1b",
    group="interleaved",
    title="Interleaved 1F1B",
    idea="Each device holds v stages in a loop (stage s on device s mod p) and passes the microbatches through them in "
    "groups of g. The fill is v times shorter, with v times the transfers and somewhat more activations. "
    "`grouping` sets the rule for the groups, which matters if m is below p or not a multiple of p. `megatron`: "
    "groups of group_size (default p), the last one shorter; as in Megatron-Core, m and the last group must be at "
    "least p. `torch`: max(1, m // p) equal groups; as in PyTorch, they must divide m. `spread`: as many groups, "
    "the remainder spread over the first ones; any m.",
    constraints=CONSTRAINTS,
    makespan="= (mv+p-1)(f+b) when g = p, m mod p = 0, c = 0: bubble fraction (p-1)/(vm+p-1)",
    peak_activations="= min(mv, 2(p-r-1)+(v-1)g+1)/v",
    source="Narayanan et al. 2021, Efficient Large-Scale Language Model Training on GPU Clusters, arXiv 2104.04473",
)
def interleaved_one_forward_one_backward(
    p: int, m: int, v: int = 2, *, grouping: str = "megatron", group_size: int | None = None
) -> Iterator[Block]:
    """Yield 2(p-r-1) + (v-1)g forwards, at most mv; then F, B pairs; then B."""
    sizes = group_sizes(p, m, grouping, group_size)
    for r, (forwards, backwards) in enumerate(looped_runs(p, v, sizes)):
        yield warmed_up(forwards, backwards, 2 * (p - r - 1) + (v - 1) * int(sizes[0]))
