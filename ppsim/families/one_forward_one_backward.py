"""One forward, one backward: 1F1B and its variant with a longer warm-up."""

from collections.abc import Callable, Iterator

from ppsim.families.registry import family
from ppsim.schedule.blocks import Block, straight_runs, warmed_up


def _one_stage_a_device(p: int, m: int, warmup: Callable[[int], int]) -> Iterator[Block]:
    return (warmed_up(*runs, warmup(r)) for r, runs in enumerate(straight_runs(p, m)))


@family(
    "1f1b",
    group="basic",
    title="1F1B (PipeDream-Flush, DAPPLE)",
    idea="After a warm-up of p-r-1 forwards each device alternates one forward and one backward, so that it never "
    "holds the activations of more than p-r microbatches. The bubble is GPipe's.",
    makespan="= (m+p-1)(F+B) + 2c floor((p-1)(m+p-1)/p); bubble fraction (p-1)/(m+p-1) at c = 0",
    peak_activations="= min(m, p-r)",
    source="Narayanan et al. 2021, PipeDream-Flush, arXiv 2006.09503; Fan et al. 2021, DAPPLE, arXiv 2007.01045",
)
def one_forward_one_backward(p: int, m: int, v: int) -> Iterator[Block]:
    """Return min(p-r-1, m) F; then F, B pairs; then B."""
    return _one_stage_a_device(p, m, lambda r: p - r - 1)


@family(
    "eager-1f1b",
    group="basic",
    title="Eager 1F1B",
    idea="1F1B with twice the warm-up. Each result is ready one slot before it is needed, which hides transfers, at "
    "about twice the activations.",
    makespan="= (m+p-1)(F+B) + 2c(p-1) while 2c <= F+B",
    peak_activations="= min(m, 2(p-r)-1)",
    source="Zhuang et al. 2023, On Optimizing the Communication of Model Parallelism, arXiv 2211.05322",
)
def eager_one_forward_one_backward(p: int, m: int, v: int) -> Iterator[Block]:
    """Return min(2(p-r-1), m) F; then F, B pairs; then B."""
    return _one_stage_a_device(p, m, lambda r: 2 * (p - r - 1))
