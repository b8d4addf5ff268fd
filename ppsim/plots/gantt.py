"""Gantt charts by matplotlib, for papers and reports: PNG, SVG and PDF."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from ppsim.analysis.bubbles import makespan
from ppsim.analysis.memory import peak_memory
from ppsim.base.errors import ConfigError, shown
from ppsim.base.rules import is_number
from ppsim.plots import annotations, marks, overview
from ppsim.plots.boxes import Boxes, headline, make_boxes, without_repeated_names
from ppsim.plots.curves import draw_memory
from ppsim.plots.lanes import STEPS
from ppsim.plots.marks import add_legend
from ppsim.timeline import TimelineColumns

MAX_WIDTH = 200.0  # inches
_NARROW, _WIDE = 7.0, 15.0  # inches that a chart takes by itself: a paper's two columns, and a wide screen
_MEMORY_HEIGHT = 1.5
_OUTLIER = 2.0  # times the second longest: a timeline of a comparison that is cut
_TICKS = 12  # of the time axis at most
_BESIDE_TITLE, _TITLE_LINE = 0.5, 0.15  # inches left and right of a title, and of each further line of it
_AROUND = 0.55  # inches above and below the rows, without the legend
FONTS: Any = {
    "font.size": 8.0,
    "axes.titlesize": 8.5,
    "pdf.fonttype": 42,
    "svg.fonttype": "none",
    "svg.hashsalt": "ppsim",
    "text.usetex": False,  # a user's setting; LaTeX would read names as its commands
}


class _RoundedLayout(ConstrainedLayoutEngine):
    """Layout by matplotlib's solver, rounded: the last digits differ from run to run."""

    def execute(self, fig: Figure) -> None:
        """Lay out the figure."""
        super().execute(fig)
        for axes in fig.axes:
            left, bottom, width, height = np.round(axes.get_position(original=True).bounds, 9).tolist()
            axes.set_position((left, bottom, width, height), which="original")
            axes.set_in_layout(True)  # which a position of its own had ended


class Chart(Figure):
    """A figure that a notebook shows by itself, without pyplot; drawn twice, it is the same byte by byte."""

    def __init__(self, **options: Any):
        super().__init__(layout=_RoundedLayout(), **options)

    def _repr_png_(self) -> bytes:
        return rendered(self, "png", 120)


def draw(
    timeline: TimelineColumns,
    *,
    ax: Axes | None = None,
    width: float | None = None,
    memory: bool | str = False,
    transfers: bool = False,
    title: str | None = None,
    labels: bool | str = "auto",
    critical_path: Any = None,
    until: float | None = None,
) -> Figure:
    """Draw a Gantt chart as a matplotlib figure: a row per device from top to bottom, colour by kind, idle time pale.

    A box is an action, labelled with its microbatch if that fits. If actions are narrower than a pixel, each row shows
    the fraction of its time in which the device computes instead, with fill and drain enlarged. Weight gathers run
    along the top edge of a row, gradient reductions along its bottom edge; optimizer steps are among the actions.

    The options are those of `ppsim.Timeline.plot`, `timeline` is what to draw. `savefig` writes the figure.

    Raises
    ------
    ConfigError
        For a width or an option that is not one of the above.
    """
    _check(width, memory, labels, timeline)
    for name, value, kind, legal in (
        ("ax", ax, Axes, "matplotlib Axes"),
        ("transfers", transfers, bool, "True or False"),
        ("title", title, str, "text"),
    ):
        if value is not None and not isinstance(value, kind):
            raise ConfigError(f"{name}={shown(value)} must be {legal}")
    if until is not None and not (is_number(until) and 0 < until < float("inf")):
        raise ConfigError(f"until={shown(until)} is no end of the time axis; use seconds above 0")
    if ax is not None and memory:
        raise ConfigError("memory=... needs a figure of its own; leave ax out, or memory")
    boxes = make_boxes(timeline)
    critical = critical_path is not None and critical_path is not False
    with matplotlib.rc_context({} if ax is not None else FONTS):
        axes = [ax] if ax is not None else _new_axes([boxes], width, [_MEMORY_HEIGHT] * bool(memory))
        if memory:
            draw_memory(axes[1], timeline, memory)
        longest = makespan(timeline) if until is None else until
        _draw_blocks(axes, [boxes], [title], labels, longest, transfers=transfers, critical=critical)
        if len(timeline.schedule.evicted):
            annotations.add_evictions(axes[0], boxes)
        if transfers:
            annotations.add_transfers(axes[0], boxes)
        if critical:
            annotations.add_critical_path(axes[0], boxes, critical_path)
    return marks.figure_of(axes[0])


def draw_comparison(
    timelines: Sequence[TimelineColumns],
    *,
    width: float | None = None,
    titles: Sequence[str] | None = None,
    labels: bool | str = "auto",
    group: int | None = None,
) -> Figure:
    """Draw several Gantt charts on one time axis, one block per timeline, in the order given.

    Each block shows its step time relative to the first timeline of its group.

    `width`, `titles` and `labels` are options of `Comparison.plot`; `group` is the number of timelines in a group, such
    as 2 for pairs (default: all).

    Raises
    ------
    ConfigError
        For no timelines, another number of titles than timelines, or a group of none.
    """
    if not timelines:
        raise ConfigError("draw_comparison needs at least one timeline, got none")
    if titles is not None and len(titles) != len(timelines):
        raise ConfigError(f"titles lists {len(titles)} texts for {len(timelines)} timelines; give one each")
    if group is not None and not (type(group) is int and group > 0):
        raise ConfigError(f"group={shown(group)} must be a whole number of at least 1, such as 2 for pairs")
    for timeline in timelines:
        _check(width, False, labels, timeline)
    every = [make_boxes(timeline) for timeline in timelines]
    with matplotlib.rc_context(FONTS):
        axes = _new_axes(every, width)
        if titles is None:
            titles = [headline(timeline) for timeline in without_repeated_names(timelines)]
        _draw_blocks(axes, every, titles, labels, _shown_seconds(every), group or len(every))
    return marks.figure_of(axes[0])


def rendered(figure: Figure, form: str, dpi: float = 150) -> bytes:
    """Return the figure as a file of the format "png", "svg" or "pdf", without the date."""
    buffer = io.BytesIO()
    dateless = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[form]
    with matplotlib.rc_context(FONTS):
        figure.savefig(buffer, format=form, dpi=dpi, metadata=dateless)
    return buffer.getvalue()


def _check(width: Any, memory: Any, labels: Any, timeline: TimelineColumns) -> None:
    if width is not None and not (type(width) in (int, float) and 1 <= width <= MAX_WIDTH):
        raise ConfigError(f"width={shown(width)} is not a figure width; use a number of inches from 1 to {MAX_WIDTH:g}")
    if not isinstance(labels, bool) and not (isinstance(labels, str) and labels == "auto"):
        raise ConfigError(f"labels={shown(labels)} is not known; use 'auto', True or False")
    if not isinstance(memory, bool) and not (isinstance(memory, str) and memory in ("activations", "bytes")):
        raise ConfigError(f"memory={shown(memory)} is not known; use True, False, 'activations' or 'bytes'")
    if memory == "bytes" and peak_memory(timeline) is None:
        raise ConfigError(
            "memory='bytes' needs costs that say what is held (activation_bytes and weight_bytes); "
            "use memory='activations'"
        )


def _width(boxes: Boxes) -> float:
    """Return the width in inches at which the labels of most boxes fit, limited by a page and a screen."""
    lengths = boxes.length[boxes.length > 0]
    if not len(lengths):
        return _NARROW
    digits = len(str(int(boxes.microbatch.max())))
    per_box = (digits * annotations.DIGIT_POINTS + 3) / 72
    short = np.quantile(lengths, 0.1)
    wanted = makespan(boxes.timeline) * per_box / max(short, np.finfo(float).tiny) + 0.9
    return float(np.clip(wanted, _NARROW, _WIDE))


def _new_axes(every: Sequence[Boxes], width: float | None, below: Sequence[float] = ()) -> list[Axes]:
    """Return the axes of a new figure: one per timeline, then others of heights `below` (inches); one time axis."""
    gap = 0.25 if len(every) > 1 else 0.0
    heights = [*(marks.height(boxes) + gap for boxes in every), *below]
    inches = max(map(_width, every)) if width is None else float(width)
    figure = Chart(figsize=(inches, sum(heights) + _AROUND))
    return list(figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0])


def _draw_blocks(
    axes: Sequence[Axes], every: Sequence[Boxes], titles: Sequence[str | None], labels: bool | str, longest: float,
    group: int = 1, **legend: bool,
) -> None:  # fmt: skip
    """Draw a block of rows per timeline on one time axis, whose name is below the lowest of `axes`."""
    blocks = list(zip(axes, every, strict=False))
    differences = [
        marks.relative_step_text(boxes, every[number - number % group]) for number, boxes in enumerate(every)
    ]
    for (ax, boxes), title, differs in zip(blocks, titles, differences, strict=True):
        marks.device_axis(ax, boxes.timeline.schedule.devices)
        ax.tick_params(axis="x", length=2.5, labelbottom=ax is axes[-1])
        axes[-1].set_xlabel(f"time ({marks.time_axis(ax, longest, _TICKS)})")
        difference = f"; step {differs}" if differs and marks.ends_late(boxes, longest) else ""
        _add_title(ax, (headline(boxes.timeline) if title is None else title) + difference)
    _add_legend(axes[0], every, **legend)
    marks.lay_out(axes[0])
    rows, ends = [ax for ax, _ in blocks], overview.phases([boxes.timeline for boxes in every], longest)
    seen = not any(overview.too_narrow(boxes, marks.points_per_second(ax)) for ax, boxes in blocks)
    for ax, boxes in blocks:
        if seen:
            _fill(ax, boxes, labels)
        else:
            overview.add_busy_shares(ax, boxes, ends)
        marks.add_lanes(ax, boxes, marks.points_per_second(ax))
        marks.add_idle_shares(ax, boxes)
    if not seen:
        overview.add_busy_scale(axes)
        overview.enlarge_ends(rows, ends)
    if len(every) > 1:
        marks.add_ends(rows, every, differences, longest)


def _shown_seconds(every: Sequence[Boxes]) -> float:
    """Return the length of the time axis in seconds: the longest timeline, unless it would squash all others."""
    lengths = sorted(makespan(boxes.timeline) for boxes in every)
    return lengths[-2] * 1.15 if len(lengths) > 2 and lengths[-1] > _OUTLIER * lengths[-2] else lengths[-1]


def _add_title(ax: Axes, title: str) -> None:
    """Set a title; in a figure of our own, wrap it if it is too wide and make the figure higher."""
    written, figure = ax.set_title(title, loc="left", parse_math=False), marks.figure_of(ax)
    wide, room = written.get_window_extent().width, figure.bbox.width - _BESIDE_TITLE * figure.dpi
    if isinstance(figure, Chart) and wide > room > 0:
        lines = textwrap.wrap(title, max(int(len(title) * room / wide), 12))
        written.set_text("\n".join(lines))
        figure.set_figheight(figure.get_figheight() + (len(lines) - 1) * _TITLE_LINE)


def _add_legend(ax: Axes, every: Sequence[Boxes], transfers: bool = False, critical: bool = False) -> None:
    """Add the legend below all axes; make a figure of our own higher for it."""
    legend, figure = add_legend(ax, every, transfers, critical), marks.figure_of(ax)
    if isinstance(figure, Chart):
        figure.set_figheight(figure.get_figheight() + legend.get_window_extent().height / figure.dpi)


def _fill(ax: Axes, boxes: Boxes, labels: bool | str) -> None:
    """Draw the boxes with their labels."""
    points = marks.points_per_second(ax)
    marks.add_boxes(ax, boxes, points)
    if not labels:
        return
    annotations.add_labels(ax, boxes, points)
    several = boxes.timeline.schedule.num_stages > boxes.timeline.schedule.devices
    for part in boxes.lanes:
        if several or part.sort == STEPS:
            annotations.add_lane_labels(ax, boxes, part, points)
