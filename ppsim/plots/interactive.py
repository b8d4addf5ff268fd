"""Interactive Gantt charts as plotly figures, to embed in pages and notebooks."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from ppsim.actions import Kind
from ppsim.analysis.bubbles import idle_spans, makespan
from ppsim.analysis.critical_path import latest_before
from ppsim.analysis.graph import step_graph
from ppsim.base.errors import ConfigError, shown
from ppsim.base.host import need
from ppsim.base.rules import is_number
from ppsim.base.units import ScaledUnit, time_unit
from ppsim.plots import palette
from ppsim.plots.areas import named_areas
from ppsim.plots.boxes import Boxes, device_labels, make_boxes
from ppsim.plots.lanes import Spans, lane_edges
from ppsim.plots.palette import FONT, GREY, Theme, label_colour, theme_of
from ppsim.plots.pixels import PixelColumns, bins, kind_shares, picture, png_address
from ppsim.plots.scale import named_devices
from ppsim.plots.summary import headline
from ppsim.timeline import TimelineColumns

if TYPE_CHECKING:
    import plotly.graph_objects


MAX_BOXES = 5_000  # plotly draws and moves this many without delay
_CHART_PIXELS, _ROW_PIXELS, _MAX_HEIGHT = 900, 30, 600  # typical sizes of a figure and of a row; height of all rows
_LETTER, _LINE = 7.5 / _CHART_PIXELS, 16 / _MAX_HEIGHT  # of names, as parts of a chart's width and height
_OVERVIEW_COLUMNS, _OVERVIEW_BINS, _OVERVIEW_LINES = _CHART_PIXELS, 400, 800  # pixels of the picture; bins of its hover
_MAX_EDGED = 300  # if more boxes of median length fit side by side, white edges would hide them


def interactive_figure(
    timeline: TimelineColumns, *, start: float | None = None, end: float | None = None, title: str | None = None,
    theme: str = "light",
) -> plotly.graph_objects.Figure:  # fmt: skip
    """Return a plotly figure with one trace per kind; hover shows action, device, times and what it waited for.

    With more than 5,000 boxes in view the figure is an overview: each pixel has the mean colour of what it covers. For
    exact boxes, choose a shorter time with `start` and `end`, or use the page of `ppsim.plots.viewer.save_html`.
    Dragging zooms the time axis; so does the wheel with `figure.show(config={"scrollZoom": True})`. Kinds that the
    legend hides do not look idle.
    The options are those of `ppsim.Timeline.to_plotly`.
    """
    plotly_objects = need("plotly.graph_objects", "an interactive figure")
    drawing = _Drawing(plotly_objects.Figure(), make_boxes(timeline), _window(timeline, start, end), theme_of(theme))
    drawing.add_rows()
    drawing.lay_out(headline(timeline) if title is None else title)
    return drawing.figure


def _window(timeline: TimelineColumns, start: Any, end: Any) -> tuple[float, float]:
    first = 0.0 if start is None else start
    last = (makespan(timeline) or 1.0) if end is None else end
    numbers = all(is_number(value) and math.isfinite(value) for value in (first, last))
    if not (numbers and first < last):
        raise ConfigError(f"start={shown(start)} must lie before end={shown(end)}, in seconds from the first start")
    return float(first), float(last)


@dataclass(frozen=True)
class _Drawing:
    """A figure, and the boxes, the seconds and the theme that it shows."""

    figure: plotly.graph_objects.Figure
    boxes: Boxes
    window: tuple[float, float]
    theme: Theme

    @cached_property
    def unit(self) -> ScaledUnit:
        """Unit of the time axis."""
        return time_unit(makespan(self.boxes.timeline))

    @cached_property
    def waits(self) -> np.ndarray:
        """Predecessor of each node of the step's graph: the node before it that ended last, or -1."""
        return latest_before(step_graph(self.boxes.timeline))

    def _waited_text(self, box: int) -> str:
        """Return what a box waited for last, in words."""
        timeline, row = self.boxes.timeline, int(self.boxes.row[box])
        schedule, before, rows = timeline.schedule, int(self.waits[row]), len(timeline.schedule.kind)
        if before < 0:
            return "nothing, the first of its device"
        if before >= 2 * rows:
            return "its weights, a copy, a collective or the optimizer step"
        if before >= rows:
            source = int(timeline.plan.source[before - rows])
            if before - rows not in (row, row + self.boxes.slot[box]):
                return "the SENDs of its own device"
            return f"its input from {schedule.label(source)} on device {schedule.device[source]}"
        return f"the device, busy with {schedule.label(before)}"

    def add_rows(self) -> None:
        """Add the actions, or an overview of many, then lanes, and legend entries of what has no trace of its own."""
        boxes, visible = self.boxes, self._within(self.boxes)
        titles = [*map(palette.TITLES.__getitem__, boxes.kinds), palette.IDLE_TITLE]
        if is_overview := len(visible) > MAX_BOXES:
            self._add_overview()
        else:
            self._add_idle()
            self._add_bars(visible)
        for lane in boxes.lanes:  # at the edges of the rows; optimizer steps are among the actions
            mine = self._within(lane)
            self._add_spans(
                lane, mine, lane_edges(lane, boxes.sorts), lane.title, self.theme.lanes[lane.sort],
                ink=self.theme.on_lanes[lane.sort], texts=[lane.label(span) for span in mine.tolist()],
                facts=[[lane.name(span)] for span in mine.tolist()],
            )  # fmt: skip
        if is_overview:
            for title, kind in zip(titles, [*boxes.kinds, None], strict=True):
                self._add_legend_entry(title, self.theme.idle if kind is None else self.theme.kinds[kind])
            self._add_legend_entry("narrow actions mix their colours", "rgba(0,0,0,0)")

    def _within(self, spans: Spans) -> np.ndarray:
        """Return the indices of the spans that touch the window."""
        return np.flatnonzero((spans.end >= self.window[0]) & (spans.start <= self.window[1]))

    def _add_bars(self, visible: np.ndarray) -> None:
        """Add a trace per kind, and marks of later stages and of the other direction; short boxes have no gaps."""
        boxes, theme, seconds = self.boxes, self.theme, self.window[1] - self.window[0]
        edge = 0.5 if float(np.median(boxes.length)) >= seconds / _MAX_EDGED else 0.0
        numbers = boxes.numbers(_CHART_PIXELS / seconds, _ROW_PIXELS, lettered=theme is GREY)
        for kind in boxes.kinds:
            chosen = np.zeros(len(boxes), bool)
            chosen[visible[boxes.kind[visible] == kind]] = True
            for half, (part, mine, band) in enumerate(p for p in boxes.parts(chosen) if len(p[1])):
                sizes, before = numbers.get((part, kind != part), (np.zeros(len(boxes)), ""))
                rows = boxes.row[mine] + (half if kind != part else 0)
                labels = [(before + boxes.number(row)) * bool(size)
                          for row, size in zip(rows.tolist(), sizes[mine], strict=True)]  # fmt: skip
                long = boxes.length[mine] * _CHART_PIXELS / seconds
                self._add_spans(
                    boxes, mine, band, palette.TITLES[kind], theme.kinds[part], ink=theme.on[part], edge=edge,
                    texts=labels,
                    facts=[[boxes.title(box), self._waited_text(box)] for box in mine.tolist()],
                    last_fact="<br>started after: %{customdata[4]}",
                )  # fmt: skip
                is_named = kind == part or (half == 0 and part not in boxes.kinds)  # halves have their kinds' colours
                self.figure.data[-1].update(legendgroup=palette.TITLES[part], showlegend=is_named)
                if kind == part:
                    self._add_marks(mine[long >= 6], part)
        marked = visible[(boxes.length[visible] * _CHART_PIXELS >= 6 * seconds) & ~boxes.slot[visible]]
        for has_mark, words in ((boxes.local > 0, "line below: later stage of the device"),
                                (boxes.reverse, "line above: enters at the other end")):  # fmt: skip
            if has_mark[marked].any():
                self._add_legend_entry(words, theme.text, "line-ew")

    def _add_marks(self, mine: np.ndarray, kind: Kind) -> None:
        """Add lines at the lower edge of boxes of later stages, at the upper edge of those of the other direction."""
        boxes = self.boxes
        for sort, is_marked, y in (("stage", boxes.local[mine] > 0, 0.36), ("reverse", boxes.reverse[mine], -0.36)):
            which = mine[is_marked]
            if not len(which):
                continue
            part = boxes.local[which] / max(boxes.locals - 1, 1) if sort == "stage" else np.ones(len(which))
            begin = boxes.start[which] + 0.06 * boxes.length[which]
            ends = np.stack([begin, begin + 0.88 * part * boxes.length[which], np.full(len(which), np.nan)], axis=1)
            self.figure.add_scatter(
                x=ends.ravel() * self.unit.factor, y=np.repeat(boxes.device[which] + y, 3), mode="lines",
                line={"color": self.theme.on[kind], "width": 2.5}, hoverinfo="skip", showlegend=False,
                legendgroup=palette.TITLES[kind],
            )  # fmt: skip

    def _add_idle(self) -> None:
        """Add a trace of the gaps, so that kinds hidden by the legend do not look idle."""
        gaps = _gaps(self.boxes)
        mine = self._within(gaps)
        self._add_spans(
            gaps, mine, self.boxes.band, palette.IDLE_TITLE, self.theme.idle, ink=self.theme.text,
            texts=[""] * len(mine), facts=[["idle"]] * len(mine),
        )  # fmt: skip
        self.figure.data[-1].update(legendrank=2000)

    def _add_spans(
        self, spans: Spans, mine: np.ndarray, edges: tuple[float, float], name: str, colour: str, *, ink: str,
        texts: list[str], facts: list[list[str]], edge: float = 0.0, last_fact: str = "",
    ) -> None:  # fmt: skip
        """Add bars; hover shows a span's first fact, its times, and `last_fact`, a template of the second."""
        start, length = spans.start[mine] * self.unit.factor, spans.length[mine] * self.unit.factor
        rows = zip(start, length, start + length, strict=True)
        times = [[f"{time:.7g} {self.unit.symbol}" for time in row] for row in rows]
        self.figure.add_bar(
            orientation="h", name=name, y=spans.device[mine], x=length, base=start,
            offset=edges[0], width=edges[1] - edges[0],
            marker={"color": colour, "line": {"color": self.theme.paper, "width": edge}},
            text=texts, textposition="inside", insidetextanchor="middle", textangle=0,
            insidetextfont={"color": ink},
            customdata=[[first, *row, *rest] for (first, *rest), row in zip(facts, times, strict=True)],
            hovertemplate="<b>%{customdata[0]}</b>, device %{y}<br>start %{customdata[1]}<br>length %{customdata[2]}"
            f"<br>end %{{customdata[3]}}{last_fact}<extra></extra>",
        )  # fmt: skip

    def _add_overview(self) -> None:
        """Add the picture of all pixels, and over it an invisible layer whose hover shows the shares of each bin."""
        boxes, unit = self.boxes, self.unit
        devices, length = boxes.timeline.schedule.devices, makespan(boxes.timeline)
        lines = min(devices * 24, max(_OVERVIEW_LINES, devices)) if devices < 200 else _OVERVIEW_LINES
        pixels = picture(boxes, self.theme, PixelColumns(0.0, length, _OVERVIEW_COLUMNS), lines)
        self.figure.add_layout_image(
            source=png_address(pixels), xref="x", yref="y", x=0, y=-0.5, sizex=length * unit.factor, sizey=devices,
            sizing="stretch", layer="below",
        )  # fmt: skip
        for area, words, first, last, row in named_areas(
            boxes, lambda words: 7.5 * len(words) / _CHART_PIXELS * length, _LINE * devices / _MAX_HEIGHT
        ):
            place = {"text": words.replace("\n", "<br>"), "x": (first + last) / 2 * unit.factor, "y": row - 0.5}
            ink = {"color": label_colour(area.colour(self.theme))}
            self.figure.add_annotation(**place, showarrow=False, font=ink)
        first, last = bins(PixelColumns(0.0, length, _OVERVIEW_BINS), 1.0, length)
        parts = np.stack([kind_shares(boxes, device, first, last).T for device in range(devices)])
        parts = np.append(parts, 1.0 - parts.sum(axis=2, keepdims=True), axis=2)
        words = [*(kind.name for kind in boxes.kinds), "idle"]
        shown_lines = "".join(f"<br>{word} %{{customdata[{number}]}} %" for number, word in enumerate(words))
        self.figure.add_heatmap(
            z=np.zeros((devices, _OVERVIEW_BINS), np.uint8), x=(first + last) / 2 * unit.factor, y=np.arange(devices),
            customdata=np.round(100 * parts, 1).astype(np.float32), opacity=0, showscale=False,
            hovertemplate=f"device %{{y}}, around %{{x:.6g}} {unit.symbol}{shown_lines}<extra></extra>",
        )  # fmt: skip

    def _add_legend_entry(self, name: str, colour: str, symbol: str = "square") -> None:
        line = {"width": 2.5 * (symbol != "square"), "color": colour}
        marker = {"symbol": symbol, "size": 11, "color": colour, "line": line}
        self.figure.add_scatter(x=[None], y=[None], mode="markers", name=name, marker=marker, hoverinfo="skip")

    def lay_out(self, title: str) -> None:
        """Give the figure its title, axes, colours and sizes."""
        timeline, theme, unit = self.boxes.timeline, self.theme, self.unit
        devices, labels = timeline.schedule.devices, device_labels(timeline)
        named = named_devices(devices, _MAX_HEIGHT / devices, 28.0)
        names = {"tickvals": named, "ticktext": [labels[device] for device in named]}
        bare = {"showgrid": False, "zeroline": False, "tickfont": {"color": theme.quiet}}
        self.figure.update_layout(
            title={"text": f"<b>{html.escape(title)}</b>", "x": 0.01, "font": {"size": 15}}, template="plotly_white",
            plot_bgcolor=theme.paper, paper_bgcolor=theme.paper, font={"color": theme.text, "family": FONT},
            barmode="overlay", bargap=0, hovermode="closest", dragmode="zoom",
            height=114 + min(34 * devices, _MAX_HEIGHT),
            margin={"l": 60, "r": 20, "t": 44, "b": 70}, uniformtext={"minsize": 8, "mode": "show"},
            legend={"orientation": "h", "yref": "container", "y": 0.01, "yanchor": "bottom", "x": 0},
            xaxis={"ticksuffix": f" {unit.symbol}", "showticksuffix": "last", "ticks": "outside", "showline": True,
                   "linecolor": theme.edge, "tickcolor": theme.edge, "ticklen": 4,
                   "range": [edge * unit.factor for edge in self.window], **bare},
            yaxis={"title": {"text": "device", "font": {"color": theme.quiet, "size": 12}}, "fixedrange": True,
                   "range": [devices - 0.5, -0.5], "ticks": "outside", "tickcolor": theme.paper, **names, **bare},
        )  # fmt: skip
        end = makespan(timeline) * unit.factor
        self.figure.add_vline(end, line={"color": theme.text, "width": 1.5}, layer="above")


def _gaps(boxes: Boxes) -> Spans:
    """Return the spans without an action on each device, between the first start and the last end of all devices."""
    run, origin = boxes.timeline, float(boxes.timeline.device_start.min())
    found = [idle_spans(run, device, origin, origin + makespan(run)) for device in range(run.schedule.devices)]
    begin, end = (np.concatenate(ends) - origin for ends in zip(*found, strict=True))
    device = np.repeat(np.arange(len(found)), [len(first) for first, _ in found])
    return Spans(device, np.full(len(device), -1), begin, end - begin)
