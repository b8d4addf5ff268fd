"""Draws the plots of docs/accuracy.md as SVG: predicted against measured by class, and how reliable intervals are."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.ticker import PercentFormatter

from ppsim.plots.figures import PAGE, Chart, font_points, plain_axes, rendered, settings
from ppsim.plots.many_runs import COLOURS
from ppsim.plots.palette import LIGHT

COLUMNS, SIZE = 4, 7.0  # panels side by side; points of texts
IN_VIEW, OUT_OF_VIEW = COLOURS[LIGHT.name][1], COLOURS[LIGHT.name][5]
Point = tuple[float, float]


def scatter(classes: Mapping[str, Mapping[bool, Sequence[Point]]]) -> str:
    """Return a panel per class of (measured, predicted) seconds on logarithmic axes; True is out of view."""
    every = [value for kinds in classes.values() for points in kinds.values() for point in points for value in point]
    low, high = 10.0 ** math.floor(math.log10(min(every))), 10.0 ** math.ceil(math.log10(max(every)))
    rows = math.ceil(len(classes) / COLUMNS)
    with matplotlib.rc_context(settings()):
        figure = Chart(figsize=(PAGE, 1.75 * rows + 0.4), facecolor=LIGHT.paper)
        panels = figure.subplots(rows, COLUMNS, sharex=True, sharey=True, squeeze=False).ravel()
        for axes, (name, kinds) in zip(panels, classes.items(), strict=False):
            for factor in (1 / 1.25, 1.0, 1.25):
                style: Any = {"color": LIGHT.edge, "linewidth": 0.6, "linestyle": "-" if factor == 1 else (0, (3, 2))}
                axes.plot([low, high], [factor * low, factor * high], **style)
            for is_out, colour in ((False, IN_VIEW), (True, OUT_OF_VIEW)):
                points = kinds.get(is_out, ())
                label = f"{'set aside, priced once' if is_out else 'in view'}"
                axes.scatter(*zip(*points, strict=True) if points else ((), ()), s=4, color=colour, linewidths=0,
                             alpha=0.6, label=label)  # fmt: skip
            axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(low, high), aspect="equal")
            plain_axes(axes, LIGHT, SIZE)
            axes.minorticks_off()
            axes.set_title(name, loc="left", fontsize=font_points(SIZE), parse_math=False)
        for axes in panels[len(classes) :]:
            axes.set_visible(False)
        small: Any = {"fontsize": font_points(SIZE)}
        figure.supxlabel("measured step (s)", **small)
        figure.supylabel("predicted step (s); dashes: 25 % off", **small)
        handles, labels = panels[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside upper right", ncols=2, frameon=False, markerscale=2, **small)
    return rendered(figure, "svg").decode()


def reliability(lines: Mapping[str, Sequence[Point]]) -> str:
    """Return a plot of the part of runs inside an interval by the part that the interval claims to hold."""
    with matplotlib.rc_context(settings()):
        figure = Chart(figsize=(4.2, 3.0), facecolor=LIGHT.paper)
        axes = figure.add_subplot()
        axes.plot([0, 1], [0, 1], color=LIGHT.edge, linewidth=0.6, linestyle=(0, (3, 2)), label="as claimed")
        for name, points in lines.items():
            axes.plot(*zip(*points, strict=True), color=IN_VIEW, marker="o", markersize=3, linewidth=1.1, label=name)
        axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="part that an interval claims", ylabel="part of the runs inside")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
        plain_axes(axes, LIGHT, SIZE)
        axes.legend(loc="upper left", frameon=False, fontsize=font_points(SIZE))
    return rendered(figure, "svg").decode()
