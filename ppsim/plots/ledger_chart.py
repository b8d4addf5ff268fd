"""The bubble ledger as a stacked bar chart: a bar per device, a colour per cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np

from ppsim.analysis.bubbles import bubble_fraction, makespan
from ppsim.analysis.ledger import ledger as bubble_ledger
from ppsim.base.units import percent_text, time_unit
from ppsim.plots.boxes import LegendEntry, axis_of, device_labels, title_text
from ppsim.plots.chart_rows import POINTS
from ppsim.plots.figures import PIXELS, checked_width, follows_page, font_points, plain_axes, settings, text_width
from ppsim.plots.legend import AXIS_NAME, Legend, Texts, Writer, write_title
from ppsim.plots.palette import label_colour, theme_of
from ppsim.plots.scale import named_devices, round_ticks, tick_texts, time_text
from ppsim.timeline import TimelineColumns

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_NAMED, _SEPARATE = 27, 32  # maximum devices with numbers; with gaps between rows
_ROW, _ROWS, _SIZE, _AXIS = 24, 432, 11, 44  # pixels: height of a row, maximum of all rows, of words, and of the axis


@follows_page
def draw_ledger(
    timeline: TimelineColumns, width: float | None = None, title: str | None = None, theme: str = "light"
) -> Figure:
    """Return a figure with a bar per device, as long as its idle part of the step, by cause.

    `width` is that of the figure in inches, `theme` "light", "dark" or "grey". Raises ConfigError for others.
    """
    title = title_text(timeline) if title is None else title
    ledger, step, colours = bubble_ledger(timeline), makespan(timeline), theme_of(theme)
    devices, wide = timeline.schedule.devices, checked_width(width) * PIXELS
    with matplotlib.rc_context(settings()):
        legend = Legend([], colours)
        parts = {cause: 100 * seconds / (step or 1.0) for cause, seconds in ledger.items()}
        parts = {cause: part for cause, part in parts.items() if part.mean() >= 0.05}
        legend.entries = [LegendEntry("cause", f"{cause} {percent_text(part.mean() / 100)}", lane=cause)
                          for cause, part in parts.items()]  # fmt: skip
        idle, unit, reached = percent_text(bubble_fraction(timeline)), time_unit(step), np.zeros(devices)
        totals = [percent_text(one / 100) for one in sum(parts.values(), reached).tolist()]
        of_each = "each device; causes below, on average" if len({*totals}) == 1 else "average, by cause below"
        notes = [f"step {time_text(step * unit.factor)} {unit.symbol}, {idle} idle on {of_each}"]
        margin, labels = 14 if wide >= 600 else 4, device_labels(timeline)
        rows = min(_ROW * devices, _ROWS)
        left = margin + AXIS_NAME * bool(axis_of(labels)) + max(text_width(label, _SIZE) for label in labels) + 8
        room = wide - left - max(margin, 9)
        below = text_width(title, 14, True) + text_width(notes[0], _SIZE) > room - 14
        top = 28 + 18 * below
        height = top + rows + _AXIS + legend.height(room) + 6
        writer = Writer(wide, height, colours)
        writer.figure.alt = f"idle time by device and cause: {title}"
        write_title(writer, Texts(title, "", notes), left, notes if below else [])
        ax = writer.axes(left, top, room, rows)
        separate, is_named = devices <= _SEPARATE, devices <= _NAMED
        longest = float(sum(parts.values(), reached).max()) or 1.0
        is_summed = is_named and len({*totals}) > 1  # else the note has the sum
        after = (max(text_width(total, _SIZE) for total in totals) + 8) * is_summed
        pixel = longest / (room - after)
        ax.set_xlim(0.0, pixel * room)
        small: Any = {"ha": "center", "va": "center", "fontsize": font_points((_SIZE - 1) * POINTS)}
        inner = np.minimum(np.arange(devices) + 1, devices - np.arange(devices))  # rows to the nearer end of the chart
        for cause, part in parts.items():
            edge: Any = {"edgecolor": colours.paper, "linewidth": 0.5 if separate else 0.0}
            ax.barh(np.arange(devices), part, 0.8 if separate else 1.0, reached, color=colours.causes[cause], **edge)
            numbers = [percent_text(one / 100) if is_named else "" for one in part.tolist()]
            words = [f"{cause} {number}".strip() for number in numbers]
            long = np.array([[text_width(text, _SIZE - 1) for text in texts] for texts in (words, numbers)])
            holds = part > pixel * (long + 8)
            named = int(np.argmax(part * inner * holds[0]))  # each cause has its name once
            is_shown = holds[1] & is_named
            if holds[0, named]:
                numbers[named], is_shown[named] = words[named], True
            for device in np.flatnonzero(is_shown).tolist():
                middle = float(reached[device] + part[device] / 2)
                ax.text(middle, device, numbers[device], color=label_colour(colours.causes[cause]), **small)
            reached += part
        ax.set_xticks(ticks := round_ticks(longest, 10 if wide > 700 else 8), tick_texts(ticks.tolist()))
        ax.spines["bottom"].set_bounds(0.0, longest)
        ax.spines["bottom"].set_position(("outward", 1.5))
        ax.spines["left"].set_visible(False)
        ax.set(ylim=(devices - 0.5, -0.5))
        named = named_devices(devices, rows / devices)
        ax.set_yticks(named, [labels[device] for device in named])
        plain_axes(ax, colours, _SIZE * POINTS)
        ax.set_xlabel("idle time (% of the step)", color=colours.quiet, labelpad=1)
        ax.tick_params(axis="y", length=0, pad=2.0)
        ax.grid(visible=False, axis="y")
        style: Any = {"va": "center", "color": colours.quiet, "fontsize": font_points(_SIZE * POINTS)}
        style["bbox"] = {"facecolor": colours.paper, "linewidth": 0.0, "pad": 0.5}  # over the grid
        for device, (idle, total) in enumerate(zip(reached.tolist(), totals, strict=True)) if is_summed else ():
            ax.annotate(total, (idle, device), (3, 0), textcoords="offset points", **style)
        writer.name_axis(axis_of(labels), margin, top + rows / 2, rows)
        legend.draw(writer, left, top + rows + _AXIS, room)
    return writer.figure
