"""Combined 1F1B: Megatron-Core's interleaved 1F1B whose slots hide expert-parallel exchanges."""

from collections.abc import Iterator

from ppsim.families.interleaved import CONSTRAINTS
from ppsim.families.overlapped import MAKESPAN, PEAK_ACTIVATIONS, overlapped_interleaved
from ppsim.families.registry import family
from ppsim.schedule.blocks import Block


@family(
    "combined-1f1b",
    group="overlapped F, B",
    title="Combined 1F1B (Megatron-Core)",
    idea="Interleaved 1F1B with one more warm-up forward, so that the F and the B of each steady slot do not wait for "
    "each other and run layer by layer beside each other: the exchange of tokens between experts of the one behind the "
    "computation of the other. One device and one stage are legal. `layout.overlap: two-stream` prices the slot from "
    "the pieces of its layers. Order and groupings as in interleaved-overlap.",
    constraints=CONSTRAINTS,
    makespan=MAKESPAN,
    peak_activations=PEAK_ACTIVATIONS,
    source="NVIDIA Megatron-LM, megatron/core/pipeline_parallel/combined_1f1b.py (--overlap-moe-expert-parallel-comm)",
)
def combined_one_forward_one_backward(
    p: int, m: int, v: int = 2, *, order: str = "f_b", grouping: str = "megatron", group_size: int | None = None
) -> Iterator[Block]:
    """Return the lists of interleaved-overlap."""
    return overlapped_interleaved(p, m, v, order=order, grouping=grouping, group_size=group_size)
