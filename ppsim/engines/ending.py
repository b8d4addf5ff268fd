"""What ends a step: gathers and reductions that run beside the actions, and the optimizer step."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ppsim.plan.streams import Gathers, Reductions

# Start and end of rows, of their transfers, and of gathers: what an engine returns.
Columns = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Spans:
    """When things that are no compute actions ran, one entry each, device by device in time order.

    Attributes
    ----------
    device, stage : int32
        Stage -1 where it is about all stages of the device.
    start, end : float64, seconds
    """

    device: np.ndarray
    stage: np.ndarray
    start: np.ndarray
    end: np.ndarray

    def __len__(self) -> int:
        """Number of entries."""
        return len(self.device)


NOTHING = Spans(np.empty(0, np.int32), np.empty(0, np.int32), np.empty(0), np.empty(0))


def unshard_spans(gathers: Gathers | None, start: np.ndarray, end: np.ndarray) -> Spans:
    """The gathers with their times."""
    if gathers is None:
        return NOTHING
    return Spans(gathers.device, gathers.stage, start, end)


def run_reductions(reductions: Reductions | None, row_end: np.ndarray) -> Spans:
    """Each starts when its gradients are complete and the reduction before it on its device has ended."""
    if reductions is None:
        return NOTHING
    free: dict[int, float] = {}
    starts, ends = [], []
    for device, ready, seconds in zip(
        reductions.device.tolist(), row_end[reductions.after].tolist(), reductions.seconds.tolist(), strict=True
    ):
        starts.append(max(ready, free.get(device, 0.0)))
        free[device] = starts[-1] + seconds
        ends.append(free[device])
    return Spans(reductions.device, reductions.stage, np.array(starts), np.array(ends))


def run_optimizer(optimizer: str, done: np.ndarray, seconds: np.ndarray) -> Spans:
    """One step a device: under "sync" when the last device is done, under "post-validated" when the device itself is.

    `done` is when the gradients of each device are complete. Source of post-validation: arXiv 2401.10241, section 4.
    """
    start = np.full_like(done, done.max()) if optimizer == "sync" else done
    devices = np.arange(len(done), dtype=np.int32)
    return Spans(devices, np.full(len(done), -1, np.int32), start, start + seconds)
