"""The bubble ledger as a stacked bar chart: a bar a device, a colour a cause."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING

import matplotlib
import numpy as np

from ppsim.analysis.bubbles import bubble_fraction, makespan
from ppsim.analysis.ledger import ledger as bubble_ledger
from ppsim.base.units import percent_text, seconds_text
from ppsim.plots import marks
from ppsim.plots.boxes import sizes_text
from ppsim.plots.gantt import FONTS, Chart, save_figure
from ppsim.plots.palette import CAUSE_COLOURS
from ppsim.timeline import TimelineColumns

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_BAR = 0.8  # of a device's row


def draw_ledger(timeline: TimelineColumns) -> Figure:
    """A matplotlib figure: a bar a device from top to bottom, its idle time stacked by cause.

    `savefig` writes it; `save_ledger` writes it whole or not at all.
    """
    ledger = bubble_ledger(timeline)
    devices, total = len(ledger.blame), float(ledger.total.sum())
    causes = [cause for cause, seconds in ledger.items() if seconds.sum() > 1e-9 * total]
    with matplotlib.rc_context(FONTS):
        figure = Chart(figsize=(7.0, max(min(0.28 * devices, 8.0), 0.7) + 1.0))
        ax = figure.subplots()
        left = np.zeros(devices)
        for cause in causes:
            share = percent_text(float(ledger[cause].sum()) / total)
            ax.barh(
                np.arange(devices), ledger[cause], _BAR if devices <= 64 else 1.0, left, color=CAUSE_COLOURS[cause],
                edgecolor="white", linewidth=0.6 if devices <= 64 else 0.0, label=f"{cause} {share}",
            )  # fmt: skip
            left += ledger[cause]
        marks.device_axis(ax, devices)
        step = makespan(timeline)
        ax.set_xlabel(f"idle time, on the scale of the step ({marks.time_axis(ax, step, 10)})")
        ax.set_title(
            f"{sizes_text(timeline.schedule)}: idle {percent_text(bubble_fraction(timeline))} of a step of "
            f"{seconds_text(step)}, by cause", loc="left", parse_math=False,
        )  # fmt: skip
        if causes:
            columns = min(len(causes), 5)
            figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize=7, handlelength=1.2)
    return figure


def save_ledger(timeline: TimelineColumns, path: str | PathLike[str], *, dpi: float = 150) -> None:
    """Draw and write whole or not at all, as PNG, SVG or PDF by the ending of `path`; ConfigError otherwise."""
    save_figure(lambda: draw_ledger(timeline), path, dpi=dpi)
