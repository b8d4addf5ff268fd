"""Idle time before a device's first and after its last compute action, by cause."""

from __future__ import annotations

import numpy as np

from ppsim.analysis.gaps import Gaps
from ppsim.timeline import TimelineColumns


def idle_at_ends(run: TimelineColumns, gaps: Gaps) -> dict[str, np.ndarray]:
    """Seconds of each device under fill, drain, sharding and optimizer.

    Before the first action: sharding is what an UNSHARD holds it up beyond its input, the rest is fill. After the last:
    sharding while gradients are reduced, optimizer from there to the end of the optimizer step with the wait for other
    devices under "sync", then drain.
    """
    first = run.schedule.offsets[:-1]
    start, begin = run.row_start[first], run.device_start.min()
    transfer = gaps.transfer[first]
    arrival = np.where(transfer >= 0, run.transfer_end[transfer], begin)
    gathering = np.clip(gaps.gathered[first] - np.maximum(arrival, begin), 0.0, start - begin)
    last = run.row_end[run.schedule.offsets[1:] - 1]
    return {
        "fill": start - begin - gathering,
        "sharding": gathering + (run.gradients_ready - last),
        "optimizer": run.device_end - run.gradients_ready,
        "drain": run.device_end.max() - run.device_end,
    }
