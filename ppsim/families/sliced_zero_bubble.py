"""Seq1F1B with the backward split: the zero-bubble order ZB-H1 over pieces of sequences."""

from ppsim.actions import Kind
from ppsim.families.registry import family
from ppsim.families.sliced import warmed_up_slices
from ppsim.families.zero_bubble import with_delayed_weights
from ppsim.schedule.columns import ScheduleColumns


@family(
    "seq1f1b-zb",
    group="slices",
    title="Seq1F1B with split backward",
    idea="Seq1F1B's order of F and I over slices, and ZB-H1's of W: device r starts the W of its slices after r I, so "
    "that the W fill most of the drain. The bubble is that of slices, and at F = I = W a third of it. A slice's "
    "number is microbatch x slices + its index.",
    constraints="slices >= 1 (default 2)",
    makespan="= m(F+I+W) + (p-1)(F+I-W)/k {with k slices}, for mk >= p+k-1, W <= F, W <= I",
    peak_activations="= min(mk, p+k-1)/k",
    source="Sun et al. 2024, Seq1F1B, arXiv 2406.03488 (zero-bubble variant); Qi et al. 2023, arXiv 2401.10241",
)
def split_seq1f1b(p: int, m: int, v: int, *, slices: int = 2) -> ScheduleColumns:
    """Return min(p-r-1 + k-1, mk) F of slices; then F, I pairs, with a W after each I from the r-th on."""
    bodies = enumerate(warmed_up_slices(p, m, slices, Kind.I))
    blocks = (with_delayed_weights(body, r) for r, body in bodies)
    return ScheduleColumns.from_blocks(blocks, slices=slices)
