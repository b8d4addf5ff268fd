"""Interactive Gantt charts as plotly figures, to embed in pages and notebooks."""

from __future__ import annotations

import html
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ppsim.actions import Kind
from ppsim.analysis.bubbles import makespan
from ppsim.base.errors import ConfigError, shown
from ppsim.base.host import need
from ppsim.base.rules import is_number
from ppsim.base.units import ScaledUnit, time_unit
from ppsim.plots import palette
from ppsim.plots.boxes import Boxes, device_labels, headline, legend_entries, make_boxes
from ppsim.plots.lanes import Spans, lane_edges
from ppsim.plots.palette import Theme, theme_of
from ppsim.plots.pixels import PixelColumns, bins, picture, png_address, shares
from ppsim.plots.scale import number_sizes
from ppsim.timeline import TimelineColumns

if TYPE_CHECKING:
    import plotly.graph_objects


MAX_BOXES = 5_000  # plotly draws and moves this many without delay
_CHART_PIXELS, _ROW_PIXELS = 900, 30  # typical sizes of a figure and of a row
_OVERVIEW_COLUMNS, _OVERVIEW_BINS, _OVERVIEW_LINES = _CHART_PIXELS, 400, 800  # pixels of the picture; bins of its hover
_MAX_EDGED = 300  # if more boxes of median length fit side by side, white edges would hide them


def interactive_figure(
    timeline: TimelineColumns,
    *,
    start: float | None = None,
    end: float | None = None,
    title: str | None = None,
    theme: str = "light",
) -> plotly.graph_objects.Figure:
    """Return a plotly figure with one trace per kind; hover shows action, device, times and what it waited for.

    With more than 5,000 boxes in view the figure is an overview: each pixel has the mean colour of what it covers. For
    exact boxes, choose a shorter time with `start` and `end`, or use the page of `ppsim.plots.viewer.save_html`.
    Dragging zooms the time axis; so does the wheel with `figure.show(config={"scrollZoom": True})`. Kinds that the
    legend hides do not look idle.

    Parameters
    ----------
    timeline : TimelineColumns
        What to draw.
    start, end : float, optional
        Show only the actions between these times, in seconds from the first start. Default: all.
    title : str, optional
        Default: the schedule's sizes, makespan and bubble fraction.
    theme : str
        "light", "dark" or "grey".

    Raises
    ------
    ConfigError
        The theme is another, or `start` is not before `end`.
    """
    plotly_objects = need("plotly.graph_objects", "an interactive figure")
    boxes, colours = make_boxes(timeline), theme_of(theme)
    window = _window(timeline, start, end)
    visible = _within(boxes, window)
    figure = plotly_objects.Figure()
    unit = time_unit(makespan(timeline))
    if len(visible) > MAX_BOXES:
        _add_overview(figure, boxes, unit, colours)
        drawn = []
    else:
        _add_idle(figure, boxes, unit, window, colours)
        _add_bars(figure, boxes, visible, unit, window, colours)
        drawn = [*map(palette.TITLES.get, boxes.kinds), palette.IDLE_TITLE]
    _add_lanes(figure, boxes, unit, window, colours)
    drawn += [lane.title for lane in boxes.lanes]
    for entry in legend_entries([boxes]):
        if entry.text not in drawn and entry.sort in ("kind", "slot", "idle"):
            colour = colours.idle if entry.kind is None else colours.kinds[entry.kind]
            _add_legend_entry(figure, entry.text, colour)
    _lay_out(figure, timeline, unit, window, headline(timeline) if title is None else title, colours)
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
    theme: Theme,
) -> None:
    """Add a trace per kind, and the marks of later stages and of the other direction; short boxes have no gaps."""
    edge = 0.5 if float(np.median(boxes.length)) >= (window[1] - window[0]) / _MAX_EDGED else 0.0
    per_second = _CHART_PIXELS / (window[1] - window[0])
    for kind in boxes.kinds:
        chosen = np.zeros(len(boxes), bool)
        chosen[visible[boxes.kind[visible] == kind]] = True
        for number, (part, mine, band) in enumerate(p for p in boxes.parts(chosen) if len(p[1])):
            letter = part.name if theme.name == "grey" else ""
            named = [f"{letter}{boxes.short_label(box)}" for box in mine.tolist()]
            labels = named if kind == part else [""] * len(mine)
            long = boxes.length[mine] * per_second
            fits = number_sizes(labels, long, _ROW_PIXELS)
            _add_spans(
                figure, boxes, mine, unit, band, name=palette.TITLES[kind], edge=edge, colour=theme.kinds[part],
                ink=theme.on[part], paper=theme.paper,
                texts=[label if fit else "" for label, fit in zip(labels, fits, strict=True)],
                facts=[[boxes.title(box), boxes.waited_text(box)] for box in mine.tolist()],
                last_fact="<br>started after: %{customdata[4]}",
            )  # fmt: skip
            figure.data[-1].update(legendgroup=palette.TITLES[kind], showlegend=number == 0)
            if kind == part:
                _add_marks(figure, boxes, mine[long >= 6], unit, part, theme)


def _add_marks(
    figure: plotly.graph_objects.Figure, boxes: Boxes, mine: np.ndarray, unit: ScaledUnit, kind: Kind, theme: Theme
) -> None:
    """Add lines at the lower edge of the boxes of later stages, at the upper edge of those of the other direction."""
    for sort, is_marked, y in (("stage", boxes.local[mine] > 0, 0.36), ("reverse", boxes.reverse[mine], -0.36)):
        which = mine[is_marked]
        if not len(which):
            continue
        part = boxes.local[which] / max(boxes.locals - 1, 1) if sort == "stage" else np.ones(len(which))
        begin = boxes.start[which] + 0.06 * boxes.length[which]
        end = begin + 0.88 * part * boxes.length[which]
        x = np.stack([begin * unit.factor, end * unit.factor, np.full(len(which), np.nan)], axis=1).ravel()
        rows = np.repeat(boxes.device[which] + y, 3)
        figure.add_scatter(
            x=x, y=rows, mode="lines", line={"color": theme.on[kind], "width": 2.5}, hoverinfo="skip",
            showlegend=False, legendgroup=palette.TITLES[kind],
        )  # fmt: skip


def _add_lanes(
    figure: plotly.graph_objects.Figure, boxes: Boxes, unit: ScaledUnit, window: tuple[float, float], theme: Theme
) -> None:
    """Add a trace per lane, at the edges of the rows; optimizer steps are among the actions."""
    for lane in boxes.lanes:
        mine = _within(lane, window)
        _add_spans(
            figure, lane, mine, unit, lane_edges(lane, boxes.lanes), name=lane.title, edge=0.0,
            colour=theme.lanes[lane.sort], ink=theme.on_lanes[lane.sort], paper=theme.paper,
            texts=[lane.label(span) for span in mine.tolist()],
            facts=[[lane.name(span)] for span in mine.tolist()],
        )  # fmt: skip


def _add_spans(
    figure: plotly.graph_objects.Figure, spans: Spans, mine: np.ndarray, unit: ScaledUnit, edges: tuple[float, float],
    *, name: str, edge: float, colour: str, ink: str, paper: str, texts: list[str], facts: list[list[str]],
    last_fact: str = "",
) -> None:  # fmt: skip
    """Add a trace of bars; hover shows a span's first fact, its times, and `last_fact`, a template of the second."""
    start, length = spans.start[mine] * unit.factor, spans.length[mine] * unit.factor
    times = [[f"{time:.7g} {unit.symbol}" for time in row] for row in zip(start, length, start + length, strict=True)]
    figure.add_bar(
        orientation="h", name=name, y=spans.device[mine], x=length, base=start,
        offset=edges[0], width=edges[1] - edges[0],
        marker={"color": colour, "line": {"color": paper, "width": edge}},
        text=texts, textposition="inside", insidetextanchor="middle", textangle=0,
        insidetextfont={"color": ink},
        customdata=[[first, *row, *rest] for (first, *rest), row in zip(facts, times, strict=True)],
        hovertemplate="<b>%{customdata[0]}</b>, device %{y}<br>start %{customdata[1]}<br>length %{customdata[2]}"
        f"<br>end %{{customdata[3]}}{last_fact}<extra></extra>",
    )  # fmt: skip


def _add_overview(figure: plotly.graph_objects.Figure, boxes: Boxes, unit: ScaledUnit, theme: Theme) -> None:
    """Add the picture of all pixels, and over it an invisible layer whose hover shows the shares of each bin."""
    devices, length = boxes.timeline.schedule.devices, makespan(boxes.timeline)
    lines = min(devices * 24, max(_OVERVIEW_LINES, devices)) if devices < 200 else _OVERVIEW_LINES
    pixels = picture(boxes, theme, PixelColumns(0.0, length, _OVERVIEW_COLUMNS), lines)
    figure.add_layout_image(
        source=png_address(pixels), xref="x", yref="y", x=0, y=-0.5, sizex=length * unit.factor, sizey=devices,
        sizing="stretch", layer="below",
    )  # fmt: skip
    first, last = bins(PixelColumns(0.0, length, _OVERVIEW_BINS), 1.0, length)
    parts = np.zeros((devices, _OVERVIEW_BINS, len(boxes.kinds) + 1))
    for device in range(devices):
        rows = slice(int(boxes.offsets[device]), int(boxes.offsets[device + 1]))
        for number, kind in enumerate(boxes.kinds):
            mine = boxes.kind[rows] == kind
            parts[device, :, number] = shares(boxes.start[rows][mine], boxes.end[rows][mine], first, last)
    parts[..., -1] = 1.0 - parts.sum(axis=2)
    words = [*(kind.name for kind in boxes.kinds), "idle"]
    shown_lines = "".join(f"<br>{word} %{{customdata[{number}]}} %" for number, word in enumerate(words))
    figure.add_heatmap(
        z=np.zeros((devices, _OVERVIEW_BINS), np.uint8), x=(first + last) / 2 * unit.factor, y=np.arange(devices),
        customdata=np.round(100 * parts, 1).astype(np.float32), opacity=0, showscale=False,
        hovertemplate=f"device %{{y}}, around %{{x:.6g}} {unit.symbol}{shown_lines}<extra></extra>",
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
    theme: Theme,
) -> None:
    devices = timeline.schedule.devices
    names: dict[str, Any] = {"dtick": 1 if devices <= 24 else None}
    if timeline.table.towers and devices <= 24:
        names = {"tickvals": list(range(devices)), "ticktext": device_labels(timeline)}
    bare = {"showgrid": False, "zeroline": False}
    times = [window[0] * unit.factor, window[1] * unit.factor]
    figure.update_layout(
        title={"text": html.escape(title), "x": 0.01}, template="plotly_white", plot_bgcolor=theme.paper,
        paper_bgcolor=theme.paper, font={"color": theme.text},
        barmode="overlay", bargap=0, hovermode="closest", dragmode="zoom", height=min(170 + 34 * devices, 1000),
        margin={"l": 60, "r": 20, "t": 50, "b": 110}, uniformtext={"minsize": 8, "mode": "show"},
        legend={"orientation": "h", "yref": "container", "y": 0.01, "yanchor": "bottom", "x": 0},
        xaxis={"title": f"time ({unit.symbol})", "range": times, "ticks": "outside", **bare},
        yaxis={"title": "device", "range": [devices - 0.5, -0.5], **names,
               "fixedrange": True, "ticks": "outside", "tickcolor": theme.paper, **bare},
    )  # fmt: skip


def _add_idle(
    figure: plotly.graph_objects.Figure, boxes: Boxes, unit: ScaledUnit, window: tuple[float, float], theme: Theme
) -> None:
    """Add a trace of the gaps, so that kinds hidden by the legend do not look idle."""
    gaps = _gaps(boxes)
    mine = _within(gaps, window)
    _add_spans(
        figure, gaps, mine, unit, boxes.band, name=palette.IDLE_TITLE, edge=0.0, texts=[""] * len(mine),
        colour=theme.idle, ink=theme.text, paper=theme.paper, facts=[["idle"]] * len(mine),
    )  # fmt: skip
    figure.data[-1].update(legendrank=2000)


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
