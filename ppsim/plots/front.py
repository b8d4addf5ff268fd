"""Step time against memory: the points of a search, and those that no other beats in both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import matplotlib

from ppsim.plots.gantt import FONTS, Chart

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_front(points: Sequence[tuple[float, float]], front: Sequence[tuple[float, float]], in_bytes: bool) -> Figure:
    """A matplotlib figure of (memory, step) pairs: bytes, or live activations, and seconds; the front as a line."""
    scale = 1e9 if in_bytes else 1.0
    with matplotlib.rc_context(FONTS):
        figure = Chart(figsize=(6.0, 4.0))
        ax = figure.subplots()
        ax.plot([memory / scale for memory, _ in front], [step for _, step in front], "o-", label="Pareto front")
        ax.plot([memory / scale for memory, _ in points], [step for _, step in points], ".", label="ranked")
        ax.set_xlabel("peak memory of the fullest device (GB)" if in_bytes else "peak activations (device shares)")
        ax.set_ylabel("step (s)")
        ax.legend(frameon=False)
    return figure
