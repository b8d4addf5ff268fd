"""Memory over time under a Gantt chart: a step curve a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib
import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.collections import LineCollection
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.ticker import MaxNLocator

from ppsim.analysis.bubbles import makespan
from ppsim.analysis.occupancy import occupancy, peak_memory
from ppsim.timeline import TimelineColumns

if TYPE_CHECKING:
    from matplotlib.axes import Axes


MOST_NAMED = 8  # devices with a legend entry each; more share a colour bar
_LINE, _RIM, _MOST_RIMS = 0.9, 1.3, 3
_BYTE_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes"))


def draw_memory(ax: Axes, timeline: TimelineColumns, memory: bool | str) -> None:
    """Bytes where `memory` is "bytes", or True and the costs know them; live activations otherwise."""
    in_bytes = memory == "bytes" or (memory is True and peak_memory(timeline) is not None)
    devices = timeline.schedule.devices
    origin = float(timeline.device_start.min())
    curve_of = occupancy(timeline).memory_over_time if in_bytes else occupancy(timeline).activations_over_time
    curves = [curve_of(device) for device in range(devices)]
    largest = max(float(levels.max(initial=0.0)) for _, levels in curves)
    scale, symbol = next((unit for unit in _BYTE_UNITS if largest >= unit[0]), _BYTE_UNITS[-1])
    if not in_bytes:
        scale, symbol = 1.0, "microbatches"
    static = occupancy(timeline).static_memory
    starts = static.sum(axis=0) if in_bytes and static is not None else np.zeros(devices)
    colours = matplotlib.colormaps["viridis"](np.linspace(0.0, 0.9, devices))
    steps = [
        _steps(times - origin, levels, float(first), makespan(timeline)) / [1.0, scale]
        for (times, levels), first in zip(curves, starts, strict=True)
    ]
    ax.add_collection(LineCollection(steps, colors=colours, linewidths=_widths(steps)), autolim=False)
    ax.set_ylim(0.0, largest / scale * 1.05 if largest > 0 else 1.0)
    ax.set_ylabel(f"memory ({symbol})" if in_bytes else "live activations\n(microbatches,\none device share)")
    ax.tick_params(length=2.5)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    _name_devices(ax, colours, devices)


def _steps(times: np.ndarray, levels: np.ndarray, first: float, last: float) -> np.ndarray:
    """Points of a step curve from 0 to `last` that starts at level `first`, float64 (points, 2)."""
    x = np.concatenate([[0.0], np.repeat(times, 2), [last]])
    y = np.concatenate([[first, first], np.repeat(levels, 2)])
    return np.stack([x, y], axis=1)


def _widths(steps: list[np.ndarray]) -> list[float]:
    """Points; a curve that lies under equal ones of later devices is wider and shows on both sides of them."""
    later: dict[bytes, int] = {}
    widths = []
    for step in reversed(steps):
        curve = step.tobytes()
        widths.append(_LINE + _RIM * min(later.get(curve, 0), _MOST_RIMS))
        later[curve] = later.get(curve, 0) + 1
    return widths[::-1]


def _name_devices(ax: Axes, colours: np.ndarray, devices: int) -> None:
    if devices > MOST_NAMED:
        colours_of_all = ListedColormap(matplotlib.colormaps["viridis"](np.linspace(0.0, 0.9, 256)))
        scale = ScalarMappable(Normalize(0, devices - 1), colours_of_all)
        ax.figure.colorbar(scale, ax=ax, label="device", pad=0.01, aspect=10, ticks=MaxNLocator(5, integer=True))
        return
    for device in range(devices):
        ax.plot([], [], color=colours[device], linewidth=1.2, label=f"device {device}")
    ax.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=7, handlelength=1.0)
