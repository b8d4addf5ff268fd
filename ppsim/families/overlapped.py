"""Overlapped 1F1B: forward and backward of different microbatches fused in one slot of the steady part."""

from collections.abc import Iterator

from ppsim.families.interleaved import CONSTRAINTS, group_sizes, looped_runs
from ppsim.families.registry import family, require_choice
from ppsim.schedule.blocks import Block, fuse, straight_runs, warmed_up

_MAKESPAN = "= (p-1)(f+b) + (p(v-1)+1)(f+b) + (mv-p(v-1)-1)o when g = p, m mod p = 0, max(f, b) <= o"
_PEAK_ACTIVATIONS = "= min(mv, 2(p-r-1)+(v-1)g+2)/v{| where max(f, b) <= o}"
ORDERS = {"f_b": fuse, "b_f": lambda forwards, backwards: fuse(backwards, forwards)}  # by a slot's first part


@family(
    "1f1b-overlap",
    group="overlapped F, B",
    title="1F1B with overlapped F and B",
    idea="Eager 1F1B with one more warm-up forward. In the steady part no forward waits for the backward next to it, "
    "so the two share one OVERLAP_F_B slot: the work of one hides the transfers of the other.",
    makespan="= p(F+B) + (m-1)o {with o the fused slot}, where max(F, B) <= o",
    peak_activations="= min(m, 2(p-r))",
    source="DeepSeek-AI 2024, DeepSeek-V3, arXiv 2412.19437 (the fused slot); NVIDIA Megatron-LM, combined 1F1B",
)
def overlapped_one_forward_one_backward(p: int, m: int, v: int) -> Iterator[Block]:
    """Return min(2(p-r-1) + 1, m) F; then OVERLAP(F, B); then B."""
    return (warmed_up(*runs, 2 * (p - r - 1) + 1, fuse) for r, runs in enumerate(straight_runs(p, m)))


@family(
    "interleaved-overlap",
    group="overlapped F, B",
    title="Interleaved 1F1B with overlapped F and B",
    idea="Interleaved 1F1B with one more warm-up forward and F and B fused in the steady part. `order` sets which part "
    "a device without a fused kernel runs first: `f_b` or `b_f`. Groupings as in interleaved-1f1b.",
    constraints=CONSTRAINTS,
    makespan=_MAKESPAN,
    peak_activations=_PEAK_ACTIVATIONS,
    source="NVIDIA Megatron-LM, megatron/core/pipeline_parallel/combined_1f1b.py",
)
def overlapped_interleaved(
    p: int, m: int, v: int = 2, *, order: str = "f_b", grouping: str = "megatron", group_size: int | None = None
) -> Iterator[Block]:
    """Yield 2(p-r-1) + (v-1)g + 1 forwards, at most mv; then OVERLAP(F, B); then B."""
    require_choice("order", order, ORDERS)
    sizes = group_sizes(p, m, grouping, group_size)
    for r, (forwards, backwards) in enumerate(looped_runs(p, v, sizes)):
        yield warmed_up(forwards, backwards, 2 * (p - r - 1) + (v - 1) * int(sizes[0]) + 1, ORDERS[order])


@family(
    "combined-1f1b",
    group="overlapped F, B",
    title="Combined 1F1B (Megatron-Core)",
    idea="Interleaved 1F1B with one more warm-up forward, so that F and B of a steady slot do not wait for each other. "
    "They run layer by layer on two streams: the computation of one hides the other's exchange of tokens between "
    "experts. One device and one stage are legal. `layout.overlap: two-stream` prices the slot from its layers. "
    "Order and groupings as in interleaved-overlap.",
    constraints=CONSTRAINTS,
    makespan=_MAKESPAN,
    peak_activations=_PEAK_ACTIVATIONS,
    source="NVIDIA Megatron-LM, megatron/core/pipeline_parallel/combined_1f1b.py (--overlap-moe-expert-parallel-comm)",
)
def combined_one_forward_one_backward(
    p: int, m: int, v: int = 2, *, order: str = "f_b", grouping: str = "megatron", group_size: int | None = None
) -> Iterator[Block]:
    """Return the lists of interleaved-overlap."""
    return overlapped_interleaved(p, m, v, order=order, grouping=grouping, group_size=group_size)
