"""What ends a step, as the compiled engine works it out from the ends of all rows: reductions and optimizer steps."""

from __future__ import annotations

import numpy as np

from ppsim.plan.resolve import Plan


def run_reductions(plan: Plan, row_end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of each gradient reduction, seconds.

    Each starts when its gradients are complete and the reduction before it on its device has ended.
    """
    reductions = plan.reductions
    if reductions is None:
        return np.empty(0), np.empty(0)
    start = row_end[reductions.after]
    end = np.empty_like(start)
    free: dict[int, float] = {}
    for number, (device, seconds) in enumerate(zip(reductions.device.tolist(), reductions.seconds, strict=True)):
        start[number] = max(start[number], free.get(device, 0.0))
        end[number] = free[device] = start[number] + seconds
    return start, end


def run_optimizer(plan: Plan, row_end: np.ndarray, reduce_end: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Start and end of each device's optimizer step, seconds; empty where none was asked for.

    Under "sync" it starts when the gradients of the last device are complete, under "post-validated" when its own are.
    Source of post-validation: arXiv 2401.10241, section 4.
    """
    if plan.optimizer_seconds is None:
        return np.empty(0), np.empty(0)
    ready = row_end[plan.schedule.offsets[1:] - 1]
    if plan.reductions is not None:
        np.maximum.at(ready, plan.reductions.device, reduce_end)
    start = np.full_like(ready, ready.max()) if plan.optimizer == "sync" else ready
    return start, start + plan.optimizer_seconds
