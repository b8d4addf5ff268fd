"""The bubble ledger as a stacked bar chart: a bar per device, a colour per cause."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib
import numpy as np

from ppsim.analysis.bubbles import bubble_fraction, makespan
from ppsim.analysis.ledger import ledger as bubble_ledger
from ppsim.base.units import percent_text, seconds_text
from ppsim.plots.boxes import title_text
from ppsim.plots.figures import PAGE, Chart, font_points, legend_below, plain_axes, settings, time_axis
from ppsim.plots.palette import LIGHT
from ppsim.plots.scale import device_steps
from ppsim.timeline import TimelineColumns

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_BAR = 0.8  # height, as a fraction of a device's row
_REST = "not idle"


def draw_ledger(timeline: TimelineColumns) -> Figure:
    """Return a figure with a bar per device, as long as the step: idle time by cause, then the rest."""
    ledger, step = bubble_ledger(timeline), makespan(timeline)
    devices = timeline.schedule.devices
    whole = devices * step or 1.0
    idle_by_cause = {cause: seconds for cause, seconds in ledger.items() if seconds.sum() > 1e-9 * ledger.total.sum()}
    colours = {**LIGHT.causes, _REST: LIGHT.not_idle}
    idle = percent_text(bubble_fraction(timeline))
    title = f"{title_text(timeline)}: idle {idle} of a step of {seconds_text(step)}, by cause"
    with matplotlib.rc_context(settings()):
        figure = Chart(figsize=(PAGE, max(min(0.24 * devices, 6.0), 0.7) + 1.0))
        ax = figure.subplots()
        left = np.zeros(devices)
        for cause, seconds in {**idle_by_cause, _REST: step - sum(idle_by_cause.values(), np.zeros(devices))}.items():
            ax.barh(
                np.arange(devices), seconds, _BAR if devices <= 64 else 1.0, left, color=colours[cause],
                edgecolor="white", linewidth=0.6 if devices <= 64 else 0.0,
                label=f"{cause} {percent_text(float(seconds.sum()) / whole)}",
            )  # fmt: skip
            left += seconds
        small = font_points(7.0)
        plain_axes(ax)
        ax.set_ylim(devices - 0.5, -0.5)
        ax.grid(False)
        ax.set_yticks(range(0, devices, device_steps(24 if devices <= 24 else 144 * 5.0 / devices)))
        ax.set_ylabel("device", fontsize=small)
        ax.tick_params(labelsize=small)
        ax.set_xlabel(f"time of the step ({time_axis(ax, step, 10).symbol})", fontsize=small)
        ax.set_title(title, loc="left", parse_math=False, fontsize=font_points(8.0))
        legend_below(figure, ax)
    return figure
