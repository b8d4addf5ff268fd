"""Interactive Gantt charts as plotly figures, to embed in pages and notebooks."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ppsim.analysis.bubbles import makespan
from ppsim.base.errors import ConfigError, shown
from ppsim.base.host import need
from ppsim.base.rules import is_number
from ppsim.base.units import ScaledUnit, time_unit
from ppsim.plots import palette
from ppsim.plots.boxes import Boxes, headline, legend_entries, make_boxes
from ppsim.plots.lanes import Spans, lane_edges
from ppsim.plots.shares import kind_shares, share_codes, share_colours, share_edges
from ppsim.timeline import TimelineColumns

if TYPE_CHECKING:
    import plotly.graph_objects


MAX_BOXES = 5_000  # plotly draws and moves this many without delay
_LINES = 8  # lines per device in the overview
_CHART_PIXELS, _CHARACTER_PIXELS = 900, 6  # typical widths of a figure and of a label's character
_MAX_EDGED = 300  # if more boxes of median length fit side by side, white edges would hide them


def interactive_figure(
    timeline: TimelineColumns, *, start: float | None = None, end: float | None = None, title: str | None = None
) -> plotly.graph_objects.Figure:
    """Return a plotly figure with one trace per kind; hover shows action, device, times and what it waited for.

    With more than 5,000 boxes in view the figure is an overview: each device's row shows the fraction of its time in
    each kind. For exact boxes, choose a shorter time with `start` and `end`, or use the page that
    `ppsim.plots.viewer.save_html` writes. Dragging zooms the time axis; so does the wheel with
    `figure.show(config={"scrollZoom": True})`. Kinds that the legend hides do not look idle.

    Parameters
    ----------
    timeline : TimelineColumns
        What to draw.
    start, end : float, optional
        Show only the actions between these times, in seconds from the first start. Default: all.
    title : str, optional
        Default: the schedule's sizes, makespan and bubble fraction.

    Raises
    ------
    ConfigError
        `start` is not before `end`.
    """
    plotly_objects = need("plotly.graph_objects", "an interactive figure")
    boxes = make_boxes(timeline)
    window = _window(timeline, start, end)
    visible = _within(boxes, window)
    figure = plotly_objects.Figure()
    unit = time_unit(makespan(timeline))
    if len(visible) > MAX_BOXES:
        _add_overview(figure, boxes, unit)
        drawn = []
    else:
        _add_idle(figure, boxes, unit, window)
        _add_bars(figure, boxes, visible, unit, window)
        drawn = [*map(palette.TITLES.get, boxes.kinds), palette.IDLE_TITLE]
    _add_lanes(figure, boxes, unit, window)
    drawn += [lane.title for lane in boxes.lanes]
    for colour, text in legend_entries([boxes]):
        if text not in drawn:
            _add_legend_entry(figure, text, colour)
    _lay_out(figure, timeline, unit, window, headline(timeline) if title is None else title)
    return figure


def _window(timeline: TimelineColumns, start: Any, end: Any) -> tuple[float, float]:
    first = 0.0 if start is None else start
    last = (makespan(timeline) or 1.0) if end is None else end
    numbers = all(is_number(value) and math.isfinite(value) for value in (first, last))
    if not (numbers and first < last):
        raise ConfigError(
            f"start={shown(start)} must lie before end={shown(end)}, both in seconds from the first start"
        )
    return float(first), float(last)


def _within(spans: Spans, window: tuple[float, float]) -> np.ndarray:
    """Return the indices of the spans that touch the window."""
    return np.flatnonzero((spans.end >= window[0]) & (spans.start <= window[1]))


def _add_bars(
    figure: plotly.graph_objects.Figure,
    boxes: Boxes,
    visible: np.ndarray,
    unit: ScaledUnit,
    window: tuple[float, float],
) -> None:
    """Add a trace per kind; many short boxes have no white edges."""
    numbered = _labels_fit(boxes, visible, window)
    edge = 0.5 if float(np.median(boxes.length)) >= (window[1] - window[0]) / _MAX_EDGED else 0.0
    # the legend takes the colour of a trace's first box
    visible = visible[np.argsort(boxes.shade[visible], kind="stable")]
    for kind in boxes.kinds:
        mine = visible[boxes.kind[visible] == kind]
        _add_spans(
            figure, boxes, mine, unit, boxes.band, name=palette.TITLES[kind], edge=edge,
            colours=boxes.colours[kind][boxes.shade[mine]].tolist(),
            texts=[boxes.short_label(box) if numbered else "" for box in mine.tolist()],
            facts=[[boxes.name(box), boxes.waited_text(box)] for box in mine.tolist()],
            last_fact="<br>started after: %{customdata[4]}",
        )  # fmt: skip


def _labels_fit(boxes: Boxes, visible: np.ndarray, window: tuple[float, float]) -> bool:
    """Return whether every box that takes time has space for its label; a chart numbers all boxes or none."""
    lengths = boxes.length[visible][boxes.length[visible] > 0]
    if not len(lengths):
        return False
    characters = len(str(int(boxes.microbatch[visible].max()))) * (2 if boxes.slot[visible].any() else 1)
    return float(lengths.min()) / (window[1] - window[0]) * _CHART_PIXELS >= characters * _CHARACTER_PIXELS + 2


def _add_lanes(
    figure: plotly.graph_objects.Figure, boxes: Boxes, unit: ScaledUnit, window: tuple[float, float]
) -> None:
    """Add a trace per lane, at the edges of the rows; optimizer steps are among the actions."""
    for lane in boxes.lanes:
        mine = _within(lane, window)
        _add_spans(
            figure, lane, mine, unit, lane_edges(lane, boxes.lanes), name=lane.title, edge=0.0,
            colours=[lane.colour] * len(mine), texts=[lane.label(span) for span in mine.tolist()],
            facts=[[lane.name(span)] for span in mine.tolist()],
        )  # fmt: skip


def _add_spans(
    figure: plotly.graph_objects.Figure, spans: Spans, mine: np.ndarray, unit: ScaledUnit, edges: tuple[float, float],
    *, name: str, edge: float, colours: list[str], texts: list[str], facts: list[list[str]], last_fact: str = "",
) -> None:  # fmt: skip
    """Add a trace of bars; hover shows a span's first fact, its times, and `last_fact`, a template of the second."""
    start, length = spans.start[mine] * unit.factor, spans.length[mine] * unit.factor
    times = [[f"{time:.7g} {unit.symbol}" for time in row] for row in zip(start, length, start + length, strict=True)]
    figure.add_bar(
        orientation="h", name=name, y=spans.device[mine], x=length, base=start,
        offset=edges[0], width=edges[1] - edges[0],
        marker={"color": colours, "line": {"color": "white", "width": edge}},
        text=texts, textposition="inside", insidetextanchor="middle", textangle=0,
        insidetextfont={"color": [palette.label_colour(colour) for colour in colours]},
        customdata=[[first, *row, *rest] for (first, *rest), row in zip(facts, times, strict=True)],
        hovertemplate="<b>%{customdata[0]}</b>, device %{y}<br>start %{customdata[1]}<br>length %{customdata[2]}"
        f"<br>end %{{customdata[3]}}{last_fact}<extra></extra>",
    )  # fmt: skip


def _add_overview(figure: plotly.graph_objects.Figure, boxes: Boxes, unit: ScaledUnit) -> None:
    """Add a picture of stacked shares, and over it an invisible layer whose hover shows the shares of each bin."""
    edges = share_edges(boxes, max_bins=600)
    shares = kind_shares(boxes, edges)
    devices, bins, _ = shares.shape
    picture, colours = share_codes(boxes, edges, _LINES), share_colours(boxes)
    figure.add_heatmap(
        z=picture, x=edges * unit.factor, y=np.linspace(-0.5, devices - 0.5, len(picture) + 1),
        colorscale=[[(code + end) / len(colours), colour] for code, colour in enumerate(colours) for end in (0, 1)],
        zmin=-0.5, zmax=len(colours) - 0.5, showscale=False, hoverinfo="skip",
    )  # fmt: skip
    percent = np.round(100 * np.concatenate([shares, 1 - shares.sum(axis=2, keepdims=True)], axis=2), 1)
    words = [*(kind.name for kind in boxes.kinds), "idle"]
    lines = "".join(f"<br>{word} %{{customdata[{number}]}} %" for number, word in enumerate(words))
    figure.add_heatmap(
        z=np.zeros((devices, bins), np.uint8), x=edges * unit.factor, y=np.arange(devices),
        customdata=percent.astype(np.float32), opacity=0, showscale=False,
        hovertemplate=f"device %{{y}}, around %{{x:.6g}} {unit.symbol}{lines}<extra></extra>",
    )  # fmt: skip


def _add_legend_entry(figure: plotly.graph_objects.Figure, name: str, colour: str) -> None:
    marker = {"symbol": "square", "size": 11, "color": colour, "line": {"color": "#bbbbbb", "width": 0.5}}
    figure.add_scatter(x=[None], y=[None], mode="markers", name=name, marker=marker, hoverinfo="skip")


def _lay_out(
    figure: plotly.graph_objects.Figure,
    timeline: TimelineColumns,
    unit: ScaledUnit,
    window: tuple[float, float],
    title: str,
) -> None:
    devices = timeline.schedule.devices
    bare = {"showgrid": False, "zeroline": False}
    times = [window[0] * unit.factor, window[1] * unit.factor]
    figure.update_layout(
        title={"text": html.escape(title), "x": 0.01}, template="plotly_white", plot_bgcolor="white",
        barmode="overlay", bargap=0, hovermode="closest", dragmode="zoom", height=min(170 + 34 * devices, 1000),
        margin={"l": 60, "r": 20, "t": 50, "b": 110}, uniformtext={"minsize": 8, "mode": "show"},
        legend={"orientation": "h", "yref": "container", "y": 0.01, "yanchor": "bottom", "x": 0},
        xaxis={"title": f"time ({unit.symbol})", "range": times, "ticks": "outside", **bare},
        yaxis={"title": "device", "range": [devices - 0.5, -0.5], "dtick": 1 if devices <= 24 else None,
               "fixedrange": True, "ticks": "outside", "tickcolor": "white", **bare},
    )  # fmt: skip


def _add_idle(figure: plotly.graph_objects.Figure, boxes: Boxes, unit: ScaledUnit, window: tuple[float, float]) -> None:
    """Add a trace of the gaps, so that kinds hidden by the legend do not look idle."""
    gaps = _gaps(boxes)
    mine = _within(gaps, window)
    _add_spans(
        figure, gaps, mine, unit, boxes.band, name=palette.IDLE_TITLE, edge=0.0, texts=[""] * len(mine),
        colours=[palette.IDLE] * len(mine), facts=[["idle"]] * len(mine),
    )  # fmt: skip
    hatched = {"shape": "/", "fgcolor": palette.IDLE_HATCH, "bgcolor": palette.IDLE, "size": 6, "solidity": 0.2}
    figure.data[-1].update(legendrank=2000, marker_pattern=hatched)


def _gaps(boxes: Boxes) -> Spans:
    """Return the spans without an action on each device, between the first start and the last end of all devices."""
    devices, last = np.arange(boxes.timeline.schedule.devices), makespan(boxes.timeline)
    device = np.concatenate([devices, boxes.device])
    begin = np.concatenate([np.zeros(len(devices)), boxes.end])
    end = np.concatenate([boxes.start, np.full(len(devices), last)])
    order = np.argsort(device, kind="stable")
    device, begin = device[order], begin[order]
    end = end[np.argsort(np.concatenate([boxes.device, devices]), kind="stable")]
    idle = end > begin
    return Spans(device[idle], np.full(int(idle.sum()), -1), begin[idle], (end - begin)[idle])
