"""BPipe: 1F1B whose early devices lend out activations to the late ones, so that all hold about the same."""

from collections.abc import Iterator

import numpy as np

from ppsim.families.one_forward_one_backward import one_forward_one_backward
from ppsim.families.registry import family
from ppsim.schedule.columns import ScheduleColumns


def _evictions(p: int, m: int) -> Iterator[np.ndarray]:
    """Stage, microbatch and host of what each device evicts.

    1F1B keeps p-r consecutive microbatches under way on device r, and each window of p-r has one of each remainder
    modulo p-r: evicting those of remainder most-1 and above leaves most-1 at home beside the one at work.
    """
    most = (p + 3) // 2
    microbatch = np.arange(m)
    for r in range(p // 2):
        if min(m, p - r) > most:
            away = microbatch[microbatch % (p - r) >= most - 1]
            yield np.stack(np.broadcast_arrays(r, away, p - 1 - r), axis=1)


@family(
    "bpipe",
    title="BPipe",
    idea="1F1B's order. Device r < p/2 evicts some activations to device p-1-r when their forward ends and has them "
    "back when their backward starts, which levels the p to 1 activations of 1F1B to about p/2+1 on every device. The "
    "moves are taken as hidden; `ppsim.analysis.evictions.unhidden_moves` tells by how much they are not.",
    makespan="= (m+p-1)(F+B) + 2c floor((p-1)(m+p-1)/p), plus unhidden moves of activations",
    peak_activations="<= ceil((p+2)/2)",
    source="Kim et al. 2023, BPipe: Memory-Balanced Pipeline Parallelism for Training Large Language Models, ICML 2023",
)
def bpipe(p: int, m: int, v: int) -> ScheduleColumns:
    """The lists of 1F1B, and what is evicted where to."""
    evicted = np.concatenate([np.empty((0, 3), np.int64), *_evictions(p, m)]).astype(np.int32)
    return ScheduleColumns.from_blocks(one_forward_one_backward(p, m, v), evicted=evicted)
