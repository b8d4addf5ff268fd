"""Fill and drain: all forwards, then all backwards (naive, GPipe, breadth-first)."""

from collections.abc import Iterator

import numpy as np

from ppsim.families.registry import family, require_choice
from ppsim.schedule.blocks import Block, alternate, backward_run, concatenate, forward_run, straight_runs, warmed_up


@family(
    "naive",
    group="basic",
    title="Naive model parallelism",
    idea="One microbatch at a time goes through all stages forward and back before the next one starts; one device "
    "works while all others wait.",
    makespan="= m p (F+B) + 2c m(p-1); bubble fraction (p-1)/p at c = 0",
    peak_activations="= 1",
    source="Huang et al. 2019, GPipe, arXiv 1811.06965, figure 2b",
)
def naive(p: int, m: int, v: int) -> Iterator[Block]:
    """Return F and B of each microbatch in turn."""
    return (alternate(*runs) for runs in straight_runs(p, m))


@family(
    "gpipe",
    group="basic",
    title="GPipe",
    idea="All forwards fill the pipeline, then all backwards drain it. Simple, and every device keeps the activations "
    'of all microbatches. `backward_order="lifo"` runs the backwards in reverse.',
    makespan="= (m+p-1)(F+B) + 2c(p-1); bubble fraction (p-1)/(m+p-1) at c = 0",
    peak_activations="= m",
    source="Huang et al. 2019, GPipe, arXiv 1811.06965",
)
def gpipe(p: int, m: int, v: int, *, backward_order: str = "fifo") -> Iterator[Block]:
    """Return F 0..m-1, then B 0..m-1 (fifo) or m-1..0 (lifo)."""
    require_choice("backward_order", backward_order, ("fifo", "lifo"))
    step = 1 if backward_order == "fifo" else -1
    return (concatenate(forwards, backwards[::step]) for forwards, backwards in straight_runs(p, m))


@family(
    "looped-bfs",
    group="interleaved",
    title="Breadth-first pipeline (looped)",
    idea="Several stages per device in a loop; each device runs all microbatches through its first stage, then all "
    "through its second, and back in reverse: few and large communication phases for sharded data parallelism. "
    '`memory="balanced"` runs the last local stage as 1F1B, so that activations are released earlier.',
    makespan="= (mv+p-1)(f+b) for m >= p, (pv+m-1)(f+b) for m < p; c = 0",
    peak_activations='= m; {"balanced": = ((v-1)m + min(m, p-r)) / v|}',
    source="Lamy-Poirier 2022, Breadth-First Pipeline Parallelism, arXiv 2211.05953; balanced: PaddlePaddle, "
    "VPPFhenBInBalancedMemory (pull request 69944)",
)
def looped_bfs(p: int, m: int, v: int = 2, *, memory: str = "full") -> Iterator[Block]:
    """Yield all F, local stage by local stage; then all B in reverse order, or 1F1B in the last stage (balanced)."""
    require_choice("memory", memory, ("full", "balanced"))
    local_stage, microbatches = np.repeat(np.arange(v), m), np.tile(np.arange(m), v)
    for r in range(p):
        forwards = forward_run(local_stage * p + r, microbatches)
        if memory == "full":
            yield concatenate(forwards, backward_run(local_stage * p + r, microbatches)[::-1])
            continue
        backwards = backward_run(local_stage[::-1] * p + r, microbatches)
        yield warmed_up(forwards, backwards, m * (v - 1) + p - r - 1)
