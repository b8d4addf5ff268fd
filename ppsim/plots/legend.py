"""The legend of a matplotlib Gantt chart."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.legend_handler import HandlerTuple
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from ppsim.actions import Kind
from ppsim.plots import palette
from ppsim.plots.boxes import Boxes, legend_entries
from ppsim.plots.marks import figure_of


def add_legend(ax: Axes, every: Sequence[Boxes], transfers: bool, critical: bool) -> Legend:
    """Kinds, idle time and what else is drawn, outside the data."""
    handles: list[Any] = [_swatch(colour, text) for colour, text in legend_entries(every)]
    names = [text for _, text in legend_entries(every)]
    if transfers:
        for colour, name in ((palette.TRANSFER_FORWARD, "forward"), (palette.TRANSFER_BACKWARD, "backward")):
            handles.append(Line2D([], [], color=colour, linewidth=0.8))
            names.append(f"{name} transfer")
    if any(len(boxes.timeline.schedule.evicted) for boxes in every):
        handles.append(Line2D([], [], color=palette.INK, linestyle=(0, (2, 1.5)), marker="v", markersize=3.5))
        names.append("evicted to another device, and back")
    if critical:
        handles.append(Line2D([], [], color=palette.CRITICAL, linewidth=1.6))
        names.append("critical path")
    return place_legend(figure_of(ax), handles, names)


def _swatch(colour: str, text: str) -> Any:
    """The picture of a legend's entry: idle time hatched, an OVERLAP_F_B slot in the colours of its parts."""
    if text == palette.IDLE_TITLE:
        return Patch(facecolor=colour, edgecolor=palette.IDLE_HATCH, linewidth=0.0, hatch="//////")
    if text == palette.TITLES[Kind.OVERLAP_F_B]:
        return tuple(Patch(facecolor=palette.COLOURS[part]) for part in (Kind.F, Kind.B))
    return Patch(facecolor=colour)


def place_legend(figure: Figure, handles: list[Any], names: list[str]) -> Legend:
    """Below the charts, in as many columns as the figure is wide; text of one column that is too wide is wrapped."""
    room = figure.bbox.width - 0.1 * figure.dpi
    columns = len(handles)
    legend = _legend(figure, handles, names, columns)
    while (wide := legend.get_window_extent().width) > room and columns > 1:
        legend.remove()
        columns -= 1
        legend = _legend(figure, handles, names, columns)
    if wide > room:
        texts = legend.get_texts()
        letters = max(int(max(len(text.get_text()) for text in texts) * room / wide) - 4, 8)
        for text in texts:
            text.set_text(textwrap.fill(text.get_text(), letters))
    return legend


def _legend(figure: Figure, handles: list[Any], names: list[str], columns: int) -> Legend:
    return figure.legend(
        handles, names, loc="outside lower center", ncols=columns, frameon=False, fontsize=7, handlelength=1.4,
        columnspacing=1.4, handler_map={tuple: HandlerTuple(ndivide=None, pad=0.0)},
    )  # fmt: skip
