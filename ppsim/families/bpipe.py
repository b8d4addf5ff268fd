"""BPipe: 1F1B whose early devices evict activations to late devices, so that all hold about the same number."""

from collections.abc import Iterator

import numpy as np

from ppsim.families.one_forward_one_backward import one_forward_one_backward
from ppsim.families.registry import family
from ppsim.schedule.columns import ScheduleColumns


def _evictions(p: int, m: int) -> Iterator[np.ndarray]:
    """Yield stage, microbatch and host device of the activations that each device evicts, int (evictions, 3).

    1F1B keeps w = p-r (at most m) consecutive microbatches in flight on device r. Each window of w microbatches has
    each remainder modulo w once. So evicting w-limit+1 remainders leaves limit-1 activations and the one in use.
    Evicted microbatches are not neighbours: one activation moves while the device computes with another one.
    """
    limit = (p + 3) // 2
    microbatch = np.arange(m)
    for r in range(p // 2):
        w = min(m, p - r)
        if w > limit:
            away, remainder = w - limit + 1, microbatch % w
            evicted = microbatch[(remainder + 1) * away // w > remainder * away // w]
            yield np.stack(np.broadcast_arrays(r, evicted, p - 1 - r), axis=1)


@family(
    "bpipe",
    group="memory",
    title="BPipe",
    idea="1F1B's order. Device r < p/2 evicts some activations to device p-1-r when their forward ends, and gets them "
    "back during the action before their backward. This levels the p to 1 activations of 1F1B to about p/2+1 on "
    "every device. A move takes the latency of the link plus the activation's bytes over its bandwidth; the part "
    "that one action does not hide makes the step longer.",
    makespan="= (m+p-1)(F+B) + 2c floor((p-1)(m+p-1)/p){, where moves take no longer than F and B|, c <= min(F, B)}",
    peak_activations="<= ceil((p+2)/2) {where moves take no longer than F and B|, c <= min(F, B)}",
    source="Kim et al. 2023, BPipe: Memory-Balanced Pipeline Parallelism for Training Large Language Models, ICML 2023",
)
def bpipe(p: int, m: int, v: int) -> ScheduleColumns:
    """Return the lists of 1F1B, with the evicted activations and their hosts."""
    evicted = np.concatenate([np.empty((0, 3), np.int64), *_evictions(p, m)]).astype(np.int32)
    return ScheduleColumns.from_blocks(one_forward_one_backward(p, m, v), evicted=evicted)
