"""Handcrafted zero-bubble schedules: the backward split in I and W, with W in the idle time of the drain."""

from collections.abc import Callable, Iterator

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import BuildError
from ppsim.families.interleaved import group_sizes, looped_runs
from ppsim.families.registry import family, require_choice
from ppsim.schedule.blocks import Block, concatenate, straight_runs, warmed_up


def with_delayed_weights(body: Block, delay: int) -> Block:
    """Return `body` with W number j after I number j + delay, in the order of the I; the last W come at the end."""
    is_input = body.kind == Kind.I
    inputs = body[is_input]
    weights = Block(Kind.W, inputs.stage, inputs.microbatch)
    after = np.flatnonzero(is_input)[delay:]
    # Sorting by (row that the entry follows, body before W) merges both runs in linear space.
    at_end = np.full(len(weights) - len(after), 2 * len(body) + 1)
    keys = np.concatenate([2 * np.arange(len(body)), 2 * after + 1, at_end])
    return concatenate(body, weights)[np.argsort(keys, kind="stable")]


def zero_bubble_lists(p: int, m: int, warmup: Callable[[int], int], delay: Callable[[int], int]) -> Iterator[Block]:
    """Yield `warmup(r)` F; then F, I pairs; then I; a W after each I from the `delay(r)`-th on, the rest at the end."""
    for r, runs in enumerate(straight_runs(p, m, Kind.I)):
        yield with_delayed_weights(warmed_up(*runs, warmup(r)), delay(r))


@family(
    "zb-h1",
    group="zero bubble",
    title="Zero bubble ZB-H1",
    idea="1F1B's order of F and I. Device r starts its W after r I, so that no device holds more than p activations, "
    "and the W fill most of the drain: a third of 1F1B's bubble at F = I = W.",
    makespan="= m(F+I+W) + (p-1)(F+I-W) for m >= p, (m+p-1)(F+I) + W for m < p; where W <= F, W <= I, c = 0; "
    "bubble fraction (p-1)/(3m+p-1) at F = I = W, m >= p",
    peak_activations="= min(m, p)",
    source="Qi et al. 2023, Zero Bubble Pipeline Parallelism, arXiv 2401.10241, figure 3",
)
def zb_h1(p: int, m: int, v: int) -> Iterator[Block]:
    """Return p-r-1 F; then F, I pairs, with a W after each I from the r-th on."""
    return zero_bubble_lists(p, m, warmup=lambda r: p - r - 1, delay=lambda r: r)


@family(
    "zb-h2",
    group="zero bubble",
    title="Zero bubble ZB-H2",
    idea="A longer warm-up fills the idle time before the first backward with forwards, and the W fill the drain "
    "completely: no bubble at F = I = W (measured per device, the optimizer step not synchronised), for nearly twice "
    "the activations of 1F1B.",
    constraints="m >= 2p-1",
    makespan="span = m(F+I+W) + (p-1) max(0, F+I-2W, I-F) at c = 0: span bubble{| fraction} 0 at F = I = W",
    peak_activations="= 2p-1",
    source="Qi et al. 2023, Zero Bubble Pipeline Parallelism, arXiv 2401.10241, figure 3",
)
def zb_h2(p: int, m: int, v: int) -> Iterator[Block]:
    """Return 2(p-1-r) F; then 2r F, I pairs; then F, I, W."""
    if m < 2 * p - 1:
        raise BuildError(
            f"zb-h2: microbatches={m} with devices={p}: it needs at least 2 x devices - 1 = {2 * p - 1} microbatches "
            f"to fill the pipeline; use at least {2 * p - 1}, or zb-h1"
        )
    return zero_bubble_lists(p, m, warmup=lambda r: 2 * (p - 1 - r), delay=lambda r: 2 * r)


@family(
    "interleaved-zb",
    group="zero bubble",
    title="Interleaved zero bubble",
    idea="Interleaved 1F1B with the backward split: half the extra warm-up, and device r starts its W after r pairs of "
    "F and I, so that the W fill most of the drain. PyTorch runs it as ScheduleInterleavedZeroBubble. Groupings: "
    "`torch` (equal rounds), `spread` (any m).",
    constraints="torch: m mod max(1, m // p) = 0; spread: any",
    makespan="= mv(f+i+w) + (p-1)(f+i-w) for m mod p = 0, w <= f, w <= i; bubble fraction "
    "(p-1)/(3vm+p-1) at f = i = w{|, m mod p = 0}",
    peak_activations="= p {on every device} for m mod p = 0",
    source="PyTorch 2.13, torch/distributed/pipelining/schedules.py, ScheduleInterleavedZeroBubble; Qi et al. 2023, "
    "arXiv 2401.10241",
)
def interleaved_zero_bubble(p: int, m: int, v: int = 2, *, grouping: str = "torch") -> Iterator[Block]:
    """Yield (v-1)g + p-1-r forwards, at most mv; then F, I pairs, with a W after each I from the r-th on."""
    require_choice("grouping", grouping, ("torch", "spread"))
    sizes = group_sizes(p, m, grouping, None)
    for r, (forwards, inputs) in enumerate(looped_runs(p, v, sizes, Kind.I)):
        warmup = (v - 1) * int(sizes[0]) + p - 1 - r
        yield with_delayed_weights(warmed_up(forwards, inputs, warmup), r)
