"""Memory of a timeline: each device's peak, when it is, what holds it, and whether the device has that much."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ppsim.analysis.occupancy import PARTS, occupancy
from ppsim.base.errors import ConfigError, CostError, shown
from ppsim.base.immutable import EqualColumns
from ppsim.base.tables import aligned
from ppsim.base.units import parse_quantity, value_text
from ppsim.timeline import TimelineColumns


@dataclass(frozen=True, eq=False)
class Memory(EqualColumns):
    """What each device holds at the moment when it holds most; arrays with one entry a device.

    Attributes
    ----------
    weights, gradients, optimizer_state, activations, transfer_buffers : bytes
        They sum to `peak`.
    moment : seconds
        When the peak is first reached.
    capacity : bytes or None
        Memory of one device; None where the costs name no device.
    """

    weights: np.ndarray
    gradients: np.ndarray
    optimizer_state: np.ndarray
    activations: np.ndarray
    transfer_buffers: np.ndarray
    moment: np.ndarray
    capacity: float | None = None

    @cached_property
    def peak(self) -> np.ndarray:
        """Bytes of each device at its peak."""
        return np.sum([getattr(self, part) for part in PARTS], axis=0)

    def fits(self, headroom: float = 0.0, capacity: float | str | None = None) -> bool:
        """Whether every device's peak stays within its memory less `headroom`, a part of it from 0 to below 1.

        `capacity`, a number of bytes or text such as "80 GB", replaces the device sheet's. What allocators lose to
        fragments, and what the framework and its communication libraries hold, is not in the peak: headroom is for
        them. Raises CostError where no capacity is known, ConfigError for a headroom outside 0..1 or a capacity that is
        no size.
        """
        return bool((self.spare(headroom, capacity) >= 0).all())

    def spare(self, headroom: float = 0.0, capacity: float | str | None = None) -> np.ndarray:
        """Bytes left on each device below its memory less `headroom`; negative where it does not fit."""
        check_headroom(headroom)
        limit = self.capacity if capacity is None else _bytes(capacity)
        if limit is None:
            raise CostError("no device is known to fit into; give capacity= in bytes, or costs derived for a device")
        return limit * (1 - headroom) - self.peak

    def to_dict(self) -> dict[str, Any]:
        """All parts, the peak and its moment as plain lists, in bytes and seconds."""
        arrays = {name: getattr(self, name).tolist() for name in (*PARTS, "peak", "moment")}
        return {**arrays, "capacity": self.capacity}

    def summary(self) -> str:
        """A table with one row a device, with units."""
        names = ("device", *PARTS, "peak", "moment")
        rows = [[name.replace("_", " ") for name in names]]
        for device in range(len(self.peak)):
            sizes = [value_text(float(getattr(self, name)[device]), "bytes") for name in (*PARTS, "peak")]
            rows.append([str(device), *sizes, value_text(float(self.moment[device]), "seconds")])
        lines = aligned(rows, left=0)
        if self.capacity is not None:
            lines.append(f"memory of a device: {value_text(self.capacity, 'bytes')}")
        return "\n".join(lines) + "\n"

    __str__ = summary

    def _repr_html_(self) -> str:
        return f"<pre>{self.summary()}</pre>"


def check_headroom(headroom: Any) -> None:
    """ConfigError unless `headroom` is a part from 0 to below 1."""
    if isinstance(headroom, bool) or not isinstance(headroom, int | float) or not 0 <= headroom < 1:
        raise ConfigError(f"headroom={shown(headroom)} must be a part of the memory from 0 to below 1, such as 0.1")


def _bytes(capacity: float | str) -> float:
    try:
        return parse_quantity(capacity, "bytes")
    except ConfigError as error:
        raise ConfigError(f"capacity: {error}") from None


def memory(timeline: TimelineColumns) -> Memory:
    """The breakdown of each device's peak; CostError where the costs do not say what is held."""
    devices = timeline.schedule.devices
    parts, moment = np.empty((len(PARTS), devices)), np.empty(devices)
    for device in range(devices):
        times, columns = occupancy(timeline).memory_parts_over_time(device)
        highest = int(columns.sum(axis=0).argmax())
        parts[:, device], moment[device] = columns[:, highest], times[highest]
    workload = timeline.table.workload
    capacity = None if workload is None else workload.memory
    return Memory(parts[0], parts[1], parts[2], parts[3], parts[4], moment, capacity)
