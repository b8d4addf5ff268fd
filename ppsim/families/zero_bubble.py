"""Handcrafted zero-bubble schedules: the backward split in I and W, with W in the idle time of the drain."""

from collections.abc import Callable, Iterator

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import BuildError
from ppsim.families.interleaved import group_sizes, looped_runs
from ppsim.families.one_forward_one_backward import warmed_up
from ppsim.families.registry import family, require_choice
from ppsim.schedule.blocks import Block, alternate, concatenate, run, straight_runs


def with_delayed_weights(body: Block, delay: int) -> Block:
    """Return `body` with W number j after I number j + delay, in the order of the I; the last W come at the end."""
    is_input = body.kind == Kind.I
    inputs = body[is_input]
    weights = run(Kind.W, inputs.stage, inputs.microbatch)
    due = np.maximum(len(inputs) - delay, 0)
    after = np.flatnonzero(is_input)[min(delay, len(inputs)) :]
    # Sorting by (row that the entry follows, body before W) merges both runs in linear space.
    keys = np.concatenate([2 * np.arange(len(body)), 2 * after + 1, np.full(len(weights) - due, 2 * len(body) + 1)])
    return concatenate(body, weights)[np.argsort(keys, kind="stable")]


def zero_bubble_lists(p: int, m: int, warmup: Callable[[int], int], delay: Callable[[int], int]) -> Iterator[Block]:
    """Yield `warmup(r)` F; then F, I pairs; then I; a W after each I from the `delay(r)`-th on, the rest at the end."""
    for r, runs in enumerate(straight_runs(p, m, Kind.I)):
        yield with_delayed_weights(warmed_up(*runs, min(warmup(r), m)), min(delay(r), m))


@family(
    "zb-h1",
    group="zero bubble",
    title="Zero bubble ZB-H1",
    idea="1F1B's order of F and I; device r starts its W after r I's, so that every device holds p activations at most "
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
            f"to fill the pipeline; use {2 * p - 1}, or zb-h1"
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
        warmup = min((v - 1) * int(sizes[0]) + p - 1 - r, m * v)
        yield with_delayed_weights(warmed_up(forwards, inputs, warmup), min(r, m * v))


@family(
    "zb-v",
    group="zero bubble",
    title="Zero bubble ZB-V",
    idea="Stage r and stage 2p-1-r sit on device r: forwards go down one leg of a V and up the other, so that the last "
    "stage's device is the first's and backwards start early everywhere. No bubble at f = i = w (measured per device), "
    "with the activations of 1F1B. For m < 2p-1 the lists of 2p-1 microbatches are built and the surplus is dropped.",
    makespan="= at f = i = w, m >= 2p-1: span = 6mf{ (span bubble 0)}, makespan = (6m+p-1)f",
    peak_activations="= p {on every device} for m >= 2p-1",
    source="Qi et al. 2023, Zero Bubble Pipeline Parallelism, arXiv 2401.10241, section 6; PyTorch 2.13, "
    "ScheduleZBVZeroBubble",
    stages_per_device=2,
)
def zb_v(p: int, m: int, v: int) -> Iterator[Block]:
    """Yield a warm-up of F0 alone, F1 F0 and F1 I1 W1; steady F0 I0 W0 F1 I1 W1; drain of I0 I1, I0 W0, then W."""
    for r in range(p):
        rows = _device_list(p, max(m, 2 * p - 1), r)
        yield rows[rows.microbatch < m]


def _device_list(p: int, m: int, r: int) -> Block:
    """Return the list of device r for m >= 2p-1; `down` and `up` are its stages on the two legs of the V."""
    microbatches = np.arange(m)

    def down(kind: Kind, first: int, end: int) -> Block:
        return run(kind, r, microbatches[first:end])

    def up(kind: Kind, first: int, end: int) -> Block:
        return run(kind, 2 * p - 1 - r, microbatches[first:end])

    def down_and_up(first: int, end: int) -> list[Block]:
        shift = p - r
        return [
            *(down(kind, first, end) for kind in (Kind.I, Kind.W)),
            up(Kind.F, first + p, end + p),
            *(up(kind, first + shift, end + shift) for kind in (Kind.I, Kind.W)),
        ]

    alone, warm = 2 * (p - r) - 1, 2 * p - 1 - r
    steady = m - warm
    return concatenate(
        down(Kind.F, 0, alone),
        alternate(up(Kind.F, 0, r), down(Kind.F, alone, warm)),
        alternate(up(Kind.F, r, p), up(Kind.I, 0, p - r), up(Kind.W, 0, p - r)),
        alternate(down(Kind.F, warm, m), *down_and_up(0, steady)),
        alternate(*down_and_up(steady, m - p)),
        alternate(down(Kind.I, m - p, m - p + r), up(Kind.I, m - r, m)),
        alternate(down(Kind.I, m - p + r, m), down(Kind.W, m - p, m - r)),
        up(Kind.W, m - r, m),
        down(Kind.W, m - r, m),
    )
