"""When a GPU computes what a range on the host launches: the profiler shows functions on the host alone."""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np

from ppsim.base.rules import is_number
from ppsim.interop.ranges import Span

LAUNCH, KERNEL = ("cuda_runtime", "cuda_driver"), ("kernel", "gpu_memcpy", "gpu_memset")
MOST = 1e18  # microseconds, and launches
WAITING = "SendRecv"  # in the names of NCCL's point-to-point kernels, which wait for another rank


class Launches:
    """What was launched and when it ran, gathered event by event; ROCm's events have the same categories."""

    def __init__(self) -> None:
        self._launches, self._kernels = array("d"), array("d")

    def take(self, event: dict[str, Any]) -> bool:
        """Whether an event is a launch or a kernel; then it is kept here, as far as it has its numbers."""
        category = event.get("cat")
        if category not in LAUNCH and category not in KERNEL:
            return False
        arguments = event.get("args")
        correlation = arguments.get("correlation") if isinstance(arguments, dict) else None
        numbers: list[Any] = [correlation, event.get("ts"), event.get("dur")]
        known = all(is_number(value) and abs(value) < MOST for value in numbers) and numbers[2] >= 0
        if known and WAITING not in str(event.get("name")):
            number, start, lasts = map(float, numbers)
            where = self._launches if category in LAUNCH else self._kernels
            where.extend((number, start / 1e6, (start + lasts) / 1e6))
        return True

    def on_gpu(self, spans: Iterable[Span]) -> list[Span]:
        """For each range of the host from when to when its kernels run, seconds; the range itself where it has none."""
        launched, start, end = self._by_launch
        found = []
        for span in spans:
            first, last = np.searchsorted(launched, span)
            if last > first:
                span = (float(start[first:last].min()), float(end[first:last].max()))
            found.append(span)
        return found

    @cached_property
    def _by_launch(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """When each kernel was launched, began and ended, in the order of the launches."""
        launches, kernels = (np.array(part).reshape(-1, 3) for part in (self._launches, self._kernels))
        launches = launches[np.argsort(launches[:, 0], kind="stable")]
        at = np.searchsorted(launches[:, 0], kernels[:, 0])
        known = np.flatnonzero(at < len(launches))
        known = known[launches[at[known], 0] == kernels[known, 0]]
        launched = launches[at[known], 1]
        order = np.argsort(launched, kind="stable")
        return launched[order], kernels[known[order], 1], kernels[known[order], 2]
