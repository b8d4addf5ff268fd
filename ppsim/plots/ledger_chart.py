"""The bubble ledger as a stacked bar chart: a bar per device, a colour per cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np

from ppsim.analysis.bubbles import bubble_fraction, makespan
from ppsim.analysis.ledger import ledger as bubble_ledger
from ppsim.base.units import percent_text, seconds_text
from ppsim.plots.boxes import title_text
from ppsim.plots.figures import (
    Chart,
    checked_width,
    font_points,
    plain_axes,
    settings,
    time_axis,
    wrapped,
)
from ppsim.plots.palette import theme_of
from ppsim.plots.scale import device_steps
from ppsim.timeline import TimelineColumns

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_NAMED, _SEPARATE = 8, 32  # up to so many devices the idle fraction follows each bar; up to so many, rows have gaps
_SIZE, _TITLE = 6.0, 7.0  # points


def draw_ledger(timeline: TimelineColumns, width: float | None = None, theme: str = "light") -> Figure:
    """Return a figure with a bar per device, as long as its idle time, by cause.

    `width` is that of the figure in inches, `theme` "light", "dark" or "grey". Raises ConfigError for others.
    """
    ledger, step, colours = bubble_ledger(timeline), makespan(timeline), theme_of(theme)
    devices, wide = timeline.schedule.devices, checked_width(width)
    idle_by_cause = {cause: seconds for cause, seconds in ledger.items() if seconds.sum() > 1e-9 * ledger.total.sum()}
    separate = devices <= _SEPARATE
    with matplotlib.rc_context(settings()):
        figure = Chart(figsize=(wide, max(min(0.17 * devices, 3.0), 0.5) + 1.0), facecolor=colours.paper)
        ax = figure.subplots()
        left = np.zeros(devices)
        for cause, seconds in idle_by_cause.items():
            ax.barh(
                np.arange(devices), seconds, 0.8 if separate else 1.0, left, color=colours.causes[cause],
                edgecolor=colours.paper, linewidth=0.5 if separate else 0.0,
                label=f"{cause} {percent_text(float(seconds.sum()) / (devices * step or 1.0))}",
            )  # fmt: skip
            left += seconds
        unit = time_axis(ax, float(left.max()) * (1.1 if devices <= _NAMED else 1.03), 10 if wide > 5 else 5)
        ax.set(ylim=(devices - 0.5, -0.5), ylabel="device", xlabel=f"idle time ({unit.symbol})")
        ax.set_yticks(range(0, devices, device_steps(144 * min(0.17, 3.0 / devices))))
        plain_axes(ax, colours, _SIZE)
        ax.grid(visible=False, axis="y")
        style: Any = {"va": "center", "color": colours.quiet, "fontsize": font_points(_SIZE)}
        for device, idle in enumerate(left.tolist() if devices <= _NAMED else ()):
            ax.annotate(percent_text(idle / (step or 1.0)), (idle, device), (3, 0), textcoords="offset points", **style)
        of_step = f"idle {percent_text(bubble_fraction(timeline))} of a step of {seconds_text(step, 3)}, by cause"
        title = wrapped(f"{title_text(timeline)}{': ' if wide > 5 else chr(10)}{of_step}", wide)
        style = {"fontsize": font_points(_TITLE), "color": colours.text, "fontweight": "bold"}
        ax.set_title(title, loc="left", parse_math=False, **style)
        style = {"frameon": False, "fontsize": font_points(_SIZE), "labelcolor": colours.text, "columnspacing": 1.4}
        figure.legend(loc="outside lower left", ncols=6 if wide > 5 else 3, handlelength=0.9, handleheight=0.9, **style)
    return figure
