"""Interactive Gantt charts: plotly for timelines that it can carry, a page of its own for larger ones."""

from __future__ import annotations

import html
import math
from os import PathLike
from typing import TYPE_CHECKING, Any

import numpy as np

from ppsim.analysis.bubbles import makespan
from ppsim.base.errors import ConfigError, shown
from ppsim.base.extras import need
from ppsim.base.files import write_atomically
from ppsim.base.units import TimeUnit, time_unit
from ppsim.plots import palette
from ppsim.plots.beside import lane
from ppsim.plots.boxes import Boxes, headline, make_boxes, second_cue
from ppsim.plots.shares import kind_shares, lane_lines, share_edges
from ppsim.plots.viewer import viewer_html

if TYPE_CHECKING:
    import plotly.graph_objects

    from ppsim.timeline import TimelineColumns

MOST_BOXES = 5_000  # that plotly draws and moves without delay
_LINES = 8  # of the overview, a device
_MOST_EDGED = 300  # boxes of usual length side by side that are still told apart by white edges


def interactive_figure(
    timeline: TimelineColumns, *, start: float | None = None, end: float | None = None, title: str | None = None
) -> plotly.graph_objects.Figure:
    """A plotly figure: one trace a kind; hover tells action, device, start, length, end and what it waited for.

    With more than 5,000 boxes in view the figure is an overview: each device's row shows the part of its time in each
    kind. Look closer with `start` and `end`, or in the file of `save_html`, which draws exact boxes as one zooms in.

    Parameters
    ----------
    timeline : TimelineColumns
        What to draw.
    start, end : float, optional
        Show what runs between these times, in seconds from the first start. Default: everything.
    title : str, optional
        Default: the schedule's sizes, makespan and bubble fraction.

    Raises
    ------
    ConfigError
        Where `start` is not before `end`.
    """
    plotly_objects = need("plotly.graph_objects", "an interactive figure")
    boxes = make_boxes(timeline)
    first, last = _window(timeline, start, end)
    visible = np.flatnonzero((boxes.end >= first) & (boxes.start <= last))
    figure = plotly_objects.Figure()
    unit = time_unit(makespan(timeline))
    if len(visible) > MOST_BOXES:
        _add_overview(figure, boxes, unit)
    else:
        _add_idle(figure, boxes, unit)
        _add_bars(figure, boxes, visible, unit, crowded=float(np.median(boxes.length)) < (last - first) / _MOST_EDGED)
    _add_beside(figure, boxes, unit, (first, last))
    cue = second_cue(timeline.schedule)
    if cue:
        _add_legend_entry(figure, cue, palette.shade_colour(boxes.kinds[0], 1, 2))
    _lay_out(figure, timeline, unit, (first, last), headline(timeline) if title is None else title)
    return figure


def _window(timeline: TimelineColumns, start: Any, end: Any) -> tuple[float, float]:
    first = 0.0 if start is None else start
    last = (makespan(timeline) or 1.0) if end is None else end
    numbers = all(isinstance(value, int | float | np.number) and math.isfinite(value) for value in (first, last))
    if not (numbers and first < last):
        raise ConfigError(
            f"start={shown(start)} must lie before end={shown(end)}, both in seconds from the first start"
        )
    return float(first), float(last)


def save_html(timeline: TimelineColumns, path: str | PathLike[str]) -> None:
    """Write a page that shows the timeline in any browser, offline; it appears whole or not at all.

    Up to 5,000 boxes it is a plotly chart, above that a small page with the columns and its own script.
    Raises ConfigError where the file cannot be written.
    """
    boxes = make_boxes(timeline)
    if len(boxes) > MOST_BOXES:
        write_atomically(path, viewer_html(boxes))
        return
    page = interactive_figure(timeline).to_html(
        include_plotlyjs=True, full_html=True, config={"displaylogo": False, "scrollZoom": True, "responsive": True}
    )
    name = html.escape(headline(timeline))
    write_atomically(path, page.replace("<head>", f"<head><title>{name}</title>", 1))


def _add_bars(
    figure: plotly.graph_objects.Figure, boxes: Boxes, visible: np.ndarray, unit: TimeUnit, crowded: bool
) -> None:
    visible = visible[
        np.argsort(boxes.shade[visible], kind="stable")
    ]  # the legend takes the colour of a trace's first box
    for kind in boxes.kinds:
        mine = visible[boxes.kind[visible] == kind].tolist()
        shades = [palette.shade_colour(kind, shade, boxes.shades) for shade in range(boxes.shades)]
        colours = [shades[boxes.shade[box]] for box in mine]
        figure.add_bar(
            orientation="h",
            name=palette.TITLES[kind],
            y=boxes.device[mine],
            x=boxes.length[mine] * unit.factor,
            base=boxes.start[mine] * unit.factor,
            **_across(boxes.band),
            marker={"color": colours, "line": {"color": "white", "width": 0 if crowded else 0.5}},
            text=[boxes.short_label(box) for box in mine],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            insidetextfont={"color": [palette.label_colour(colour) for colour in colours]},
            customdata=[_hover_facts(boxes, box, unit) for box in mine],
            hovertemplate=(
                "<b>%{customdata[0]}</b>, device %{y}<br>start %{customdata[1]}<br>length %{customdata[2]}"
                "<br>end %{customdata[3]}<br>started after: %{customdata[4]}<extra></extra>"
            ),
        )


def _add_beside(figure: plotly.graph_objects.Figure, boxes: Boxes, unit: TimeUnit, window: tuple[float, float]) -> None:
    """A trace a sort: gathers and reductions on the edges of the rows, optimizer steps among the actions."""
    for part in boxes.beside:
        mine = np.flatnonzero((part.end >= window[0]) & (part.start <= window[1])).tolist()
        facts = [[part.name(span), *_times(part.start[span], part.length[span], unit)] for span in mine]
        figure.add_bar(
            orientation="h",
            name=part.title,
            y=part.device[mine],
            x=part.length[mine] * unit.factor,
            base=part.start[mine] * unit.factor,
            **_across(lane(part, boxes.beside)),
            marker={"color": part.colour, "line": {"width": 0}},
            text=[part.label(span) for span in mine],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            insidetextfont={"color": palette.label_colour(part.colour)},
            customdata=facts,
            hovertemplate=(
                "<b>%{customdata[0]}</b>, device %{y}<br>start %{customdata[1]}<br>length %{customdata[2]}"
                "<br>end %{customdata[3]}<extra></extra>"
            ),
        )


def _across(edges: tuple[float, float]) -> dict[str, float]:
    """Where bars lie within a device's row."""
    top, bottom = edges
    return {"offset": top, "width": bottom - top}


def _hover_facts(boxes: Boxes, box: int, unit: TimeUnit) -> list[str]:
    times = _times(boxes.start[box], boxes.length[box], unit)
    return [boxes.name(box), *times, boxes.waited_text(box)]


def _times(start: float, length: float, unit: TimeUnit) -> list[str]:
    """Start, length and end as text."""
    return [f"{value * unit.factor:.7g} {unit.symbol}" for value in (start, length, start + length)]


def _add_overview(figure: plotly.graph_objects.Figure, boxes: Boxes, unit: TimeUnit) -> None:
    """A picture of stacked shares, and over it an unseen layer that tells the shares of each bin."""
    edges = share_edges(boxes, most=600)
    shares = kind_shares(boxes, edges)
    devices, bins, kinds = shares.shape
    heights = (np.arange(_LINES) + 0.5) / _LINES
    code = (heights[None, ::-1, None, None] > np.cumsum(shares, axis=2)[:, None]).sum(axis=3)
    above, below = lane_lines(boxes, _LINES)
    white = np.full((devices, 1, bins), kinds + 1)
    code = np.concatenate([white.repeat(max(above, 1), 1), code, white.repeat(below, 1)], axis=1)
    colours = [*(palette.COLOURS[kind] for kind in boxes.kinds), palette.IDLE, "white"]
    figure.add_heatmap(
        z=code.reshape(-1, bins).astype(np.uint8),
        x=edges * unit.factor,
        y=np.linspace(-0.5, devices - 0.5, devices * code.shape[1] + 1),
        colorscale=[[edge / len(colours), colours[edge - step]] for edge, step in _stops(len(colours))],
        zmin=-0.5,
        zmax=kinds + 1.5,
        showscale=False,
        hoverinfo="skip",
    )
    percent = np.round(100 * np.concatenate([shares, 1 - shares.sum(axis=2, keepdims=True)], axis=2), 1)
    words = [*(kind.name for kind in boxes.kinds), "idle"]
    lines = "".join(f"<br>{word} %{{customdata[{number}]}} %" for number, word in enumerate(words))
    figure.add_heatmap(
        z=np.zeros((devices, bins), np.uint8),
        x=edges * unit.factor,
        y=np.arange(devices),
        customdata=percent.astype(np.float32),
        opacity=0,
        showscale=False,
        hovertemplate=f"device %{{y}}, around %{{x:.6g}} {unit.symbol}{lines}<extra></extra>",
    )
    for number, kind in enumerate(boxes.kinds):
        _add_legend_entry(figure, palette.TITLES[kind], colours[number])
    _add_legend_entry(figure, "idle", palette.IDLE)


def _add_legend_entry(figure: plotly.graph_objects.Figure, name: str, colour: str) -> None:
    marker = {"symbol": "square", "size": 11, "color": colour, "line": {"color": "#bbbbbb", "width": 0.5}}
    figure.add_scatter(x=[None], y=[None], mode="markers", name=name, marker=marker, hoverinfo="skip")


def _stops(colours: int) -> list[tuple[int, int]]:
    """Edges of a colour scale of equal steps, each edge once as the end of a step (1) and once as the start (0)."""
    return [(edge, step) for edge in range(colours + 1) for step in (1, 0) if 0 <= edge - step < colours]


def _lay_out(
    figure: plotly.graph_objects.Figure,
    timeline: TimelineColumns,
    unit: TimeUnit,
    window: tuple[float, float],
    title: str,
) -> None:
    devices = timeline.schedule.devices
    figure.update_layout(
        title={"text": html.escape(title), "x": 0.01},
        template="plotly_white",
        plot_bgcolor="white",
        barmode="overlay",
        bargap=0,
        hovermode="closest",
        dragmode="zoom",
        height=min(170 + 34 * devices, 1000),
        margin={"l": 60, "r": 20, "t": 50, "b": 110},
        legend={"orientation": "h", "yref": "container", "y": 0.01, "yanchor": "bottom", "x": 0},
        uniformtext={"minsize": 8, "mode": "hide"},
        xaxis={
            "title": f"time ({unit.symbol})",
            "range": [window[0] * unit.factor, window[1] * unit.factor],
            "showgrid": False,
            "zeroline": False,
            "ticks": "outside",
        },
        yaxis={
            "title": "device",
            "range": [devices - 0.5, -0.5],
            "dtick": 1 if devices <= 24 else None,
            "showgrid": False,
            "zeroline": False,
        },
    )


def _add_idle(figure: plotly.graph_objects.Figure, boxes: Boxes, unit: TimeUnit) -> None:
    """One pale bar a device behind the boxes; what of it is seen is idle."""
    devices = boxes.timeline.schedule.devices
    figure.add_bar(
        orientation="h", name="idle", y=np.arange(devices), x=np.full(devices, makespan(boxes.timeline) * unit.factor),
        **_across(boxes.band), marker={"color": palette.IDLE, "line": {"color": "#bbbbbb", "width": 0.3}},
        hoverinfo="skip", legendrank=2000,
    )  # fmt: skip
