"""Draws the plots of docs/accuracy.md as SVG: predicted / measured by class, and how reliable intervals are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from accuracy_runs import Priced, contained, left_out
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from ppsim.base.units import counted, percent_text
from ppsim.plots.figures import PAGE, font_points, plain_axes, rendered, settings, titled_axes
from ppsim.plots.many_runs import COLOURS, name_ends
from ppsim.plots.palette import LIGHT

SIZE = 7.0  # points of texts
TICKS = (0.5, 0.67, 0.8, 1, 1.25, 1.5, 2)  # of predicted / measured
ENDS = 0.96 * TICKS[0], TICKS[-1] / 0.96  # of the dots; those beyond are counted in words
AXIS = 0.67 * ENDS[0], ENDS[1] / 0.74  # with space for these words
IN_VIEW, OUT_OF_VIEW = COLOURS[LIGHT.name][1], COLOURS[LIGHT.name][5]
MEDIAN: Any = {"marker": "|", "color": LIGHT.text, "linewidths": 1.6, "zorder": 4}
Point = tuple[float, float]
CLAIMS = [number / 20 for number in range(1, 20)]  # parts that intervals of the reliability plot claim to contain


def plots(runs: Sequence[Priced], before: Sequence[Priced], others: Sequence[Priced]) -> dict[str, str]:
    """Return the pictures of the page by the name of their file; `before`: priced once before the `others`."""
    classes = {
        group: {kind: [(run.measured, run.predicted) for run in listed if run.group == group]
                for kind, listed in ((False, runs), (True, others))}
        for group in sorted({run.group for run in [*runs, *others]})
    }  # fmt: skip
    found = left_out([*before, *others], CLAIMS), contained(before, others, CLAIMS)
    left, last = (np.mean([*parts.values()], axis=0) for parts in found)
    return {"accuracy-classes.svg": scatter(classes), "accuracy-intervals.svg": reliability(left, last)}


def scatter(classes: Mapping[str, Mapping[bool, Sequence[Point]]]) -> str:
    """Return a row of dots per class at predicted / measured, of (measured, predicted) seconds; True is out of view."""
    rows = len(classes)
    with matplotlib.rc_context(settings()):
        figure, axes = titled_axes(PAGE, LIGHT, "Predicted against measured steps by class", "", 0.31 * rows + 0.95)
        plain_axes(axes, LIGHT, SIZE)
        axes.set(xscale="log", xlim=AXIS, ylim=(rows - 0.5, -0.5))
        axes.set_xlabel("predicted step / measured step", fontsize=font_points(SIZE))
        axes.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
        axes.minorticks_off()
        axes.set_yticks(range(rows), classes)
        axes.tick_params(axis="y", length=0)
        axes.grid(visible=False, axis="y")
        for place in range(1, rows):
            axes.axhline(place - 0.5, color=LIGHT.grid, linewidth=0.6)
        axes.axvline(1.0, color=LIGHT.edge, linewidth=0.9, zorder=1.5)
        for is_out, colour, label in ((False, IN_VIEW, "seen"), (True, OUT_OF_VIEW, "set aside, priced once")):
            axes.scatter((), (), s=12, color=colour, linewidths=0, label=label)
            for place, kinds in enumerate(classes.values()):
                ratios = sorted(predicted / measured for measured, predicted in kinds.get(is_out, ()))
                _add_dots(axes, ratios, place + (0.2 if is_out else -0.2), colour)
        axes.scatter((), (), s=55, label="median", **MEDIAN)
        axes.axvspan(1 / 1.25, 1.25, color=LIGHT.grid, alpha=0.45, linewidth=0, zorder=0.5, label="within 25 %")
        figure.legend(loc="outside lower left", ncols=4, frameon=False, fontsize=font_points(SIZE))
    return rendered(figure, "svg").decode()


def _add_dots(axes: Axes, ratios: Sequence[float], y: float, colour: str) -> None:
    """Draw the dots of a class around a height, and their median; words count those beyond the axis."""
    shown = [(ratio, y + 0.26 * ((0.618 * number) % 1 - 0.5)) for number, ratio in enumerate(ratios)]
    shown = [dot for dot in shown if ENDS[0] <= dot[0] <= ENDS[1]]
    axes.scatter([x for x, _ in shown], [height for _, height in shown], s=5, color=colour, linewidths=0, alpha=0.5)
    if len(ratios) > 2:
        axes.scatter(float(np.median(ratios)), y, s=55, **MEDIAN)
    if ratios:
        words: Any = {"color": colour, "va": "center", "ha": "right", "fontsize": font_points(SIZE - 1)}
        axes.text(1.1, y, counted(len(ratios), "step"), transform=axes.get_yaxis_transform(), **words)
    style: Any = {"color": colour, "va": "center", "fontsize": font_points(SIZE - 1)}
    if beyond := [ratio for ratio in ratios if ratio < ENDS[0]]:
        axes.text(0.98 * ENDS[0], y, f"← {len(beyond)} more, to {beyond[0]:.2g}", ha="right", **style)
    if beyond := [ratio for ratio in ratios if ratio > ENDS[1]]:
        axes.text(ENDS[1] / 0.98, y, f"{len(beyond)} more, to {beyond[-1]:.2g} →", ha="left", **style)


def reliability(left: np.ndarray, last: np.ndarray) -> str:
    """Return a plot of the part of steps inside an interval by the part that the interval claims to contain.

    One line is of each source left out in turn, one of the sources priced last with what was known before them.
    """
    with matplotlib.rc_context(settings()):
        figure, axes = titled_axes(4.2, LIGHT, "Steps inside intervals of other sources", "part of the steps inside")
        axes.plot([0, 1], [0, 1], color=LIGHT.edge, linewidth=0.6, linestyle=(0, (3, 2)))
        at_90 = CLAIMS.index(0.9)
        names = [(1.0, 1.0, "as claimed", {"color": LIGHT.quiet})]
        for parts, colour, words in (
            (left, IN_VIEW, "each source left out"),
            (last, OUT_OF_VIEW, "sources priced last"),
        ):
            axes.plot(CLAIMS, parts, color=colour, marker="o", markersize=3, linewidth=1.1)
            name = f"{words}: {percent_text(parts[at_90], 0)} at 90 %"
            names.append((0.9, float(parts[at_90]), name, {"color": colour}))
        axes.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="part that an interval claims to contain")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(PercentFormatter(1.0, symbol=" %"))
        name_ends(axes, names)
    return rendered(figure, "svg").decode()
