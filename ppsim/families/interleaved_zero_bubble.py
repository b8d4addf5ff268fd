"""Interleaved zero bubble: a loop of stages whose backward is split, PyTorch's ScheduleInterleavedZeroBubble."""

from collections.abc import Iterator

from ppsim.actions import Kind
from ppsim.families.interleaved import group_sizes, looped_runs
from ppsim.families.registry import family, require_choice
from ppsim.families.zero_bubble import with_delayed_weights
from ppsim.schedule.blocks import Block, warmed_up

GROUPINGS = ("torch", "spread")


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
    require_choice("grouping", grouping, GROUPINGS)
    sizes = group_sizes(p, m, grouping, None)
    for r, (forwards, inputs) in enumerate(looped_runs(p, v, sizes, Kind.I)):
        warmup = (v - 1) * int(sizes[0]) + p - 1 - r
        yield with_delayed_weights(warmed_up(forwards, inputs, warmup), r)
