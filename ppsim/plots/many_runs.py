"""Charts of many runs: a measure over a swept number, and step time against memory with its Pareto front."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import count, pairwise, product
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import matplotlib
import numpy as np
from matplotlib.lines import Line2D
from matplotlib.markers import MarkerStyle
from matplotlib.path import Path
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator
from matplotlib.transforms import Bbox

from ppsim.analysis.measures import pareto_front
from ppsim.analysis.memory import HEADROOM, fit_in_words
from ppsim.base.rules import is_number
from ppsim.base.units import axis_unit, counted, format_quantity, percent_text
from ppsim.costs import Costs
from ppsim.families.registry import families
from ppsim.plots.figures import (
    PIXELS,
    SMALL,
    figure_of,
    follows_page,
    font_points,
    settings,
    text_width,
    titled_axes,
    wrapped,
)  # fmt: skip
from ppsim.plots.palette import LIGHT, Theme, mixed, theme_of
from ppsim.plots.scale import number_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {  # by theme: of schedules, and the last one of the Pareto front; kinds have other colours
    "light": ("#1b1f24", "#7d3c98", "#8c5a2b", "#2f7f93", "#b04a86", "#6f7212", "#6a7380"),
    "dark": ("#e8eaed", "#c79bf0", "#d9a27a", "#6fc3d6", "#f09ad8", "#c2c25a", "#a4abb5"),
    "grey": ("#000000", "#5a5a5a", "#303030", "#7a7a7a"),
}
_FIRST = ("1f1b", "zb-h1", "interleaved-1f1b", "zb-v", "dualpipe", "gpipe", "v-half", "v-min")  # in order of colours
_PLACES = {name: place for place, name in enumerate(dict.fromkeys([*_FIRST, *families()]))}
MAX_BARS, MAX_DIRECT, MAX_CORNERS = 12, 8, 5  # bars of a chart; lines named at their ends; named points of a front
_MAX_COLOURED, _PALE = 6, 0.85  # of more schedules, those off the front have no names, and colours of this strength
_AXES = {"memory limit": "activations", "achieved": "fraction of the peak"}  # units of swept numbers that have one
_UNITS = {one.name.replace("_", " "): one.metadata["unit"] for one in fields(Costs) if one.metadata.get("unit")}
_SAME = 2e-3  # of the largest value: lines as close as this at all numbers are drawn as one
_TIE = 5e-3  # of a value: a point whose only gain over the next one is smaller is not drawn on the front
_NEAR = 1.5  # times the largest peak: a larger memory limit is not drawn
_OFF = 1.04  # times the device memory: a larger peak is in the legend only, so that it does not stretch the axis
_RATIO, _MAX_TICKS = 4.0, 10  # minimum ratio of the ends of a logarithmic axis; ticks of an axis
_STATE_WORDS = {"tight": "half filled: tight in memory", "over": "hollow: does not fit"}
# Markers, with the tenths of a square that each fills; the last is a star of four points.
_MARKERS: Any = {"o": 8, "s": 10, "D": 10, "^": 5, "v": 5, "<": 5, ">": 5, "d": 6, "P": 6, "X": 6, "*": 3, (4, 1): 3}
_DASHES = ("solid", (0, (4, 1.5)), (0, (1, 1.2)))
_LEADER: Any = {"arrowstyle": "-", "linewidth": 0.5, "shrinkA": 0}  # from a name to its point
_OFFSETS = [  # points between a point and its name, and the side of the name
    ((side * (7 if abs(up) < 10 else 14), up), side)
    for up in (-2, 8, -11, 18, -22, 28, -32, 38, -42, 52, -56) for side in (1, -1)
]  # fmt: skip


@follows_page
def draw_lines(
    lines: Mapping[str, Sequence[tuple[float, float]]], over: str, title: str, unit: str,
    width: float | None = None, theme: str = "light", *, what: str = "", heading: str | None = None,
    fits: Mapping[tuple[str, float], str] | None = None,
) -> Figure:  # fmt: skip
    """Draw a line of (number, value) pairs per name; `over` is the numbers' key, `title` and `unit` name the values.

    `what` names the runs, such as a config and its sizes; `heading` replaces it and the title. `fits` gives, by name
    and number, the points that are "tight" in memory, drawn half filled, or "over" it, drawn hollow.

    Numbers that double each time have a logarithmic axis. Up to `MAX_DIRECT` lines are named at their ends; lines that
    coincide are one line with all their names. `width` is the figure's in inches, `theme` "light", "dark" or "grey".
    Raises ConfigError for others.
    """
    with matplotlib.rc_context(settings()):
        colours = theme_of(theme)
        factor, symbol = axis_unit(max(abs(value) for pairs in lines.values() for _, value in pairs), unit)
        word = over.rpartition(".")[2].replace("_", " ")
        figure, axes = titled_axes(width, colours, heading or what or title, f"{title} ({symbol})")
        ends, styles, fits = [], _styles(lines, theme), fits or {}
        for names, pairs in _distinct(lines, fits):
            numbers, values = zip(*pairs, strict=True)
            scaled = [value * factor for value in values]
            style, name = styles[names[0]], ("; " if ", " in names[0] else ", ").join(names)
            states = [fits.get((names[0], number), "fits") for number in numbers]
            size: Any = {"linewidth": 1.1, "markersize": 3.5, "clip_on": False, "zorder": 3, **style}
            for state in ("fits", *(one for one in _STATE_WORDS if one in states)):
                own: Any = {"label": name} if state == "fits" else {"linestyle": "", **_looks(state, colours)}
                own["markevery"] = [at for at, one in enumerate(states) if one == state]
                axes.plot(numbers, scaled, **{**size, **own})
            ends.append((numbers[-1], scaled[-1], name, style["color"]))
        is_log = _number_axis(axes, sorted({number for pairs in lines.values() for number, _ in pairs}), word)
        drawn = [value * factor for pairs in lines.values() for _, value in pairs]
        if unit != "fraction" and _spread(axes, "y", drawn):
            axes.yaxis.label.set_text(f"{axes.get_ylabel()}, logarithmic")
        else:
            axes.locator_params(axis="y", steps=[1, 2, 5, 10])
            if min(drawn) >= 0 and not max(drawn) / 2 <= min(drawn) < (1 - _SAME) * max(drawn):
                axes.set_ylim(bottom=0)  # no tick of zero above the axis; a constant is far from it
        axes.set_xlabel((f"{word} ({_AXES[word]})" if word in _AXES else word) + ", logarithmic" * is_log)
        direct = len(ends) <= MAX_DIRECT
        _explain(axes, fits.values(), colours)
        _add_legend(axes, colours, lambda label: label in _STATE_WORDS.values() or not direct)
        if len(lines) > 1 and direct:
            name_ends(axes, ends)
    return figure


def _looks(state: str, theme: Theme) -> dict[str, Any]:
    """Return the style of a point that is tight in memory or over it."""
    half = {"fillstyle": "left", "markerfacecoloralt": theme.paper}
    return {"markersize": 4.2, **(half if state == "tight" else {"markerfacecolor": theme.paper})}


def _explain(axes: Axes, states: Iterable[str], theme: Theme) -> None:
    """Add the states of memory that occur to the legend."""
    for state in sorted({*states} & {*_STATE_WORDS}):
        axes.plot((), (), "o", color=theme.quiet, label=_STATE_WORDS[state], **_looks(state, theme))


def _styles(names: Iterable[Any], theme: str) -> dict[Any, dict[str, Any]]:
    """Return the style by name; a schedule has the same style in all charts, and so has the first of its variants.

    If a more common one has its colour, it has another that is free. Once all are used, lines are dashed, then dotted.
    """
    colours, names, places = COLOURS[theme][:-1], [*names], dict[int, Any]()
    for name in names:
        if (own := _PLACES.get(re.split("[:,]", str(name))[0])) is not None:
            places.setdefault(own % len(_MARKERS), name)
    free, found, used = (place for place in count() if place not in places), {}, dict.fromkeys(colours, 0)
    places |= {next(free): name for name in names if name not in places.values()}
    for place, name in sorted(places.items()):
        ink = min(colours, key=lambda one: (used[one], one != colours[place % len(colours)]))
        found[name] = {"color": ink, "marker": [*_MARKERS][place % len(_MARKERS)], "linestyle": _DASHES[used[ink] % 3]}
        used[ink] += 1
    return {name: found[name] for name in names}


def _distinct(
    lines: Mapping[str, Sequence[tuple[float, float]]], fits: Mapping[tuple[str, float], str]
) -> list[tuple[list[str], list[tuple[float, float]]]]:
    """Return the names and sorted pairs of lines; those that coincide, and fit alike, are one."""
    near = _SAME * max(abs(value) for pairs in lines.values() for _, value in pairs)
    found: list[tuple[list[str], list[tuple[float, float]]]] = []
    for name, pairs in ((name, sorted(pairs)) for name, pairs in lines.items()):
        alike = [len(line) == len(pairs) and np.allclose(line, pairs, rtol=0, atol=near)
                 and all(fits.get((name, x)) == fits.get((names[0], x)) for x, _ in pairs)
                 for names, line in found]  # fmt: skip
        if any(alike):
            found[alike.index(True)][0].append(name)
        else:
            found.append(([name], pairs))
    return found


def _swept_text(word: str, value: Any) -> str:
    """Return a swept value of this name; a number of a cost has its unit, such as 10 ns."""
    is_cost = word in _UNITS and is_number(value)
    return format_quantity(value, _UNITS[word]) if is_cost else number_text(value) if is_number(value) else str(value)


def _number_axis(axes: Axes, numbers: Sequence[float], word: str) -> bool:
    """Give ticks to few numbers, round ones to many; return whether the axis is logarithmic, as for doubling ones."""
    doubles = len(numbers) > 2 and numbers[0] > 0 and all(abs(b / a - 2) < 1e-9 for a, b in pairwise(numbers))
    is_log = doubles or _spread(axes, "x", numbers)
    places, room = np.log(numbers) if is_log else numbers, 0.75 * PIXELS * figure_of(axes).get_figwidth()
    apart = (max(text_width(_swept_text(word, one), 2 * SMALL) for one in numbers) + 12) / room * np.ptp(places)
    if doubles or (len(numbers) <= _MAX_TICKS and min(np.diff(places), default=1.0) > apart):
        _set_ticks(axes, "x", numbers, is_log)
    elif not is_log:
        axes.locator_params(axis="x", steps=[1, 2, 5, 10], integer=all(float(one).is_integer() for one in numbers))
    axes.xaxis.set_major_formatter(lambda number, _: _swept_text(word, number))
    axes.set_xlim(right=numbers[-1] if len(numbers) > 1 else None)  # where names of lines begin
    return is_log


def _set_ticks(axes: Axes, name: str, ticks: Sequence[float], is_log: bool) -> None:
    """Give the axis "x" or "y" plain numbers at these ticks, and a logarithmic scale if it `is_log`."""
    axis: Any = getattr(axes, f"{name}axis")
    axes.set(**{f"{name}scale": "log"} if is_log else {})
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda number, _: number_text(number)))


def name_ends(axes: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Write the name of each line beside the axes, in its colour; a leader joins both if the name had to move."""
    figure_of(axes).draw_without_rendering()  # lays out the figure, so that places are final
    inches = axes.transData.transform([(x, y) for x, y, *_ in ends]) / figure_of(axes).dpi
    order = sorted(range(len(ends)), key=lambda place: inches[place, 1])
    apart = font_points(SMALL) * 1.25 / 72
    groups: list[list[float]] = []  # neighbours that would meet: their mean place without the distances between them
    for rank, place in enumerate(order):
        groups.append([float(inches[place, 1]) - rank * apart])
        while len(groups) > 1 and np.mean(groups[-1]) < np.mean(groups[-2]):
            groups[-2:] = [groups[-2] + groups[-1]]
    places = [float(np.mean(group)) for group in groups for _ in group]
    (left, low), (right, high) = axes.get_window_extent().get_points() / figure_of(axes).dpi
    for rank, (place, y) in enumerate(zip(order, places, strict=True)):
        x, value, name, colour = ends[place]
        level = max(y, low) + rank * apart
        share = 1 + 0.11 / (right - left), (level - low) / (high - low)
        style: Any = {"xytext": share, "textcoords": "axes fraction", "fontsize": font_points(SMALL)}
        if abs(level - inches[place, 1]) > apart / 4 or x < axes.get_xlim()[1]:
            style["arrowprops"] = {**_LEADER, "color": colour, "shrinkB": 3, "relpos": (0, 0.5)}
        axes.annotate(name, (x, value), color=colour, va="center", annotation_clip=False, **style)


class _FrontRun(NamedTuple):
    """A run of a front: bytes or activations, seconds, name, schedule, value of the varied key, and how it fits."""

    memory: float
    seconds: float
    name: str
    group: Any
    value: Any
    fit: str


@follows_page
def draw_front(
    pairs: Sequence[tuple[float, float]], names: Sequence[str], memory: str, unit: str,
    width: float | None = None, theme: str = "light", *, step: str = "step time", groups: Sequence[Any] = (),
    varied: tuple[str, Sequence[Any]] = ("", ()), limit: float | None = None, what: str = "",
    heading: str | None = None,
) -> Figure:  # fmt: skip
    """Draw (memory, seconds) pairs as points, and a line through their Pareto front; `unit` is that of `memory`.

    `step` names the seconds. `groups` has the schedule of each pair, which gives its point a colour; `names` has what
    else differs. If this is one key, `varied` has the key and its value at each pair; a line then joins the points of a
    schedule, and the front and the ends of lines show values. `limit` is the usable memory; it is drawn if a point
    comes near it, and then sets the unit of memory. Points in the headroom above it are half filled, and the front is
    dashed there. `what` names the runs; `heading` replaces it and the title. `width` is the figure's in inches, `theme`
    "light", "dark" or "grey". Raises ConfigError for others.
    """
    with matplotlib.rc_context(settings()):
        colours, (word, values), nothing = theme_of(theme), varied, [None] * len(pairs)
        columns = zip(pairs, zip(names, groups or nothing, values or nothing, strict=True), strict=True)
        every = [_FrontRun(*pair, *own, fit_within(pair[0], limit)) for pair, own in columns]
        highest, grouped = max(run.memory for run in every), 1 < len({*groups}) <= len(every) // 2
        near = limit if limit is not None and limit < _NEAR * highest else None
        end = np.inf if near is None else _OFF * near / (1 - HEADROOM)
        runs = [run for run in every if run.memory <= end] or every
        byte, symbol = axis_unit(highest if near is None else near, unit)
        second, time_symbol = axis_unit(max(run.seconds for run in runs), "seconds")
        points = [(run.memory * byte, run.seconds * second) for run in runs]
        shown, fits = [run.group for run in runs], [run.fit for run in runs]
        is_whole = all(float(x).is_integer() for x, _ in points)
        fitting = [at for at, fit in enumerate(fits) if fit != "over" or {*fits} == {"over"}]
        front = _clear_front([run[:2] for run in runs], fitting)
        axis_names = [f"{memory} ({symbol})", f"{step} ({time_symbol})"]
        figure, axes = titled_axes(width, colours, heading or what or "Step time against memory", axis_names[1])
        margin = 0.12 if figure.get_figwidth() > 5 else 0.22  # names of groups have space at the left
        axes.margins(margin if grouped else 0.08, margin)
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10], integer=is_whole, min_n_ticks=1))
        inks = _draw_points(axes, points, shown, fits, colours, word != "", grouped, front)
        if (edge := near and near * byte) is not None:
            _draw_limits(axes, edge, symbol, {*fits}, colours)
        _draw_front(axes, [(points[index], fits[index]) for index in front], edge, colours, {*fits})
        for label in _beyond([run for run in every if run not in runs], grouped, byte, symbol):
            axes.plot((), (), ">", color=colours.limit, markersize=3, label=label)
        for number, axis in enumerate("xy"):
            is_log = _spread(axes, axis, [point[number] for point in points])
            words: Any = getattr(axes, f"{axis}axis").label
            beside = f" · labels: {word}" if number and grouped and word else ""
            words.set_text(wrapped(axis_names[number] + ", logarithmic" * is_log + beside, figure.get_figwidth()))
        others: Iterable[int] = range(len(runs) if len(runs) <= MAX_BARS else 0)
        if grouped and word:  # a line joins the others of a group
            last = {group: at for at, group in enumerate(shown)}
            others = sorted({*map(shown.index, last), *last.values()} - {*front}) * (len(last) <= _MAX_COLOURED)
        labels = [_label(run, grouped, word, at in front) for at, run in enumerate(runs)]
        _add_legend(axes, colours)
        _name_points(axes, points, labels, front, others, inks, grouped and not word)
    return figure


def _beyond(runs: Sequence[_FrontRun], grouped: bool, byte: float, symbol: str) -> Iterator[str]:
    """Yield the words of the legend for runs beyond the axis, by group if they are grouped."""
    for group in dict.fromkeys(run.group if grouped else None for run in runs):
        sizes = [byte * run.memory for run in runs if group in (None, run.group)]
        ends = "–".join(dict.fromkeys(f"{float(f'{one:.3g}'):,g}" for one in (min(sizes), max(sizes))))
        yield f"beyond the axis: {group or counted(len(sizes), 'run')}, {ends} {symbol}"


def _label(run: _FrontRun, grouped: bool, word: str, on_front: bool) -> str:
    """Return the name of a point: its group if it is `on_front`, and what differs; the axis names a varied key."""
    own = _swept_text(word, run.value) if grouped and word else run.name
    return ", ".join(filter(None, [run.group if on_front or not (grouped and own) else "", own]))


def _draw_limits(axes: Axes, limit: float, symbol: str, fits: set[str], theme: Theme) -> None:
    """Draw the usable memory, and that of the device if a point shown is over it; the legend names both."""
    device = [("device", limit / (1 - HEADROOM), "solid")] * (not fits <= {"fits"})
    for word, at, dashes in (("usable", limit, (0, (5, 2.5))), *device):
        style: Any = {"color": theme.limit, "linewidth": 0.8, "linestyle": dashes, "alpha": 1.0, "zorder": 1}
        axes.axvline(at, label=f"{word} {at:.3g} {symbol}", **style)


def _draw_front(
    axes: Axes, front: Sequence[tuple[Any, str]], limit: float | None, theme: Theme, fits: set[str]
) -> None:  # fmt: skip
    """Draw the points of a front, with how they fit, as steps with rings, dashed over the limit."""
    style: Any = {"marker": "o", "markersize": 7, "markerfacecolor": "none", "markeredgewidth": 1.1, "zorder": 4}
    style |= {"color": COLOURS[theme.name][-1], "linewidth": 1.1 if len(front) > 1 else 0, "drawstyle": "steps-post"}
    within = [point for point, fit in front if fit != "tight"]
    beyond = [point for point, fit in front if fit == "tight"]
    edge = [(limit, within[-1][1])] if within and beyond else []
    whole = "Pareto front" + " of what fits" * ("over" in fits and fits != {"over"})
    for stairs, ringed, label, dashes in (
        ([*within, *edge], range(len(within)), whole, "solid"),
        ([*edge, *beyond], range(len(edge), len(edge) + len(beyond)), "front over the usable memory", (0, (3, 1.5))),
    ):
        if ringed:
            axes.plot(*zip(*stairs, strict=True), label=label, linestyle=dashes, markevery=[*ringed], **style)


def fit_within(peak: float, limit: float | None) -> str:
    """Return "fits" for a peak within the usable memory, "tight" for one within the headroom, else "over"."""
    return "fits" if limit is None or peak <= limit else fit_in_words(peak, limit / (1 - HEADROOM))


def _clear_front(pairs: Sequence[tuple[float, float]], chosen: Sequence[int]) -> list[int]:
    """Return the Pareto front of the `chosen` pairs, without points that gain less than `_TIE` over the next one."""
    found: list[int] = []
    for number in (chosen[place] for place in pareto_front([pairs[one] for one in chosen])):
        if found and pairs[number][1] > (1 - _TIE) * pairs[found[-1]][1]:
            continue
        while found and pairs[number][0] <= (1 + _TIE) * pairs[found[-1]][0]:
            found.pop()
        found.append(number)
    return found


def _draw_points(
    axes: Axes, points: Sequence[tuple[float, float]], groups: Sequence[Any], fits: Sequence[str], theme: Theme,
    joined: bool, grouped: bool, front: Sequence[int],
) -> list[str]:  # fmt: skip
    """Draw points, filled if they fit; return the colour of each, that of its group if there are several.

    If they are `grouped`, each group has an entry in the legend, and if `joined` also a line through its points. If
    there are many groups, those that are not on the front are pale. Wide marks are below narrow ones, so that each of
    several equal points is seen.
    """
    kinds = [*dict.fromkeys(groups)]
    if not grouped:  # names say what they are
        kinds, groups = [None], [None] * len(points)
    styles = _styles(kinds, theme.name) if len(kinds) > 1 else {None: {"color": theme.edge, "marker": "o"}}
    for kind in {*kinds} - {groups[index] for index in front} if len(kinds) > _MAX_COLOURED else ():
        styles[kind]["color"] = mixed([(styles[kind]["color"], _PALE), (theme.paper, 1 - _PALE)])
    size: Any = {"s": 13, "linewidths": 0.7}
    for kind, style in styles.items():
        mine, ink, marker = [at for at, group in enumerate(groups) if group == kind], style["color"], style["marker"]
        size["zorder"] = 5 - 0.01 * _MARKERS[marker]
        faces, xy = [ink if fits[number] == "fits" else theme.paper for number in mine], np.array(points)[mine]
        axes.scatter(*xy.T, marker=marker, edgecolors=ink, facecolors=faces, **size)
        if tight := [number for number in mine if fits[number] == "tight"]:
            half = {**size, "marker": MarkerStyle(marker, fillstyle="left"), "linewidths": 0.0}
            axes.scatter(*np.array(points)[tight].T, color=ink, **half)
        axes.scatter((), (), marker=marker, color=ink, label=kind if grouped else None, **size)
        if grouped and joined:
            line: Any = {**style, "marker": "", "linewidth": 0.5, "alpha": 0.6, "zorder": 2}
            axes.plot(*xy.T, **line)
    _explain(axes, fits, theme)
    return [theme.quiet if styles[group]["color"] == theme.edge else styles[group]["color"] for group in groups]


def _spread(axes: Axes, axis: str, values: Sequence[float]) -> bool:
    """Make an axis logarithmic if half of its values share a third of a linear one; return whether it is.

    It has ticks at each doubling of a round number, or at powers of ten, from one that no value is below.
    """
    low, middle, high = min(values), float(np.median(values)), max(values)
    if not (low > 0 and high > _RATIO * low and middle - low < (high - low) / 3):
        return False
    power = 10.0 ** np.floor(np.log10(low))
    first = power * max(digit for digit in (1, 2, 4, 5, 8) if digit * power <= low * (1 + 1e-9))
    times = 2.0 if high / first < 2.0**_MAX_TICKS else 10.0
    ticks = [first * times**step for step in range(int(np.log(high / first) / np.log(times)) + 2)]
    _set_ticks(axes, axis, ticks, is_log=True)
    getattr(axes, f"set_{axis}lim")(min(first, getattr(axes, f"get_{axis}lim")()[0]))
    return True


def _name_points(
    axes: Axes, points: Sequence[tuple[float, float]], names: Sequence[str], front: Sequence[int],
    others: Iterable[int], inks: Sequence[str], coloured: bool,
) -> None:  # fmt: skip
    """Name both ends of the front and corners between them, then `others`, level with their points if `coloured`.

    Names never overlap. They avoid lines and points if they have space elsewhere or in two lines. A name that is not
    level with its point has a line to it, which crosses no name. Names without space are left out.
    """
    figure_of(axes).draw_without_rendering()  # lays out the figure, so that names can be measured
    point = figure_of(axes).dpi / 72
    room = axes.get_window_extent().padded(-point)
    places = axes.transData.transform(points)
    taken = [Bbox.from_extents(*place - 4 * point, *place + 4 * point) for place in places]
    for (x, y), (right, below) in pairwise(places[list(front)]):  # the line is level, then goes down
        taken += [Bbox.from_extents(x, y - point, right, y + point)]
        taken += [Bbox.from_extents(right - point, below, right + point, y)]
    joined = [line.get_transform().transform_path(line.get_path()) for line in axes.lines if line.get_alpha()]
    halo = [withStroke(linewidth=2, foreground=figure_of(axes).get_facecolor())]
    corners = [front[round(place)] for place in np.linspace(0, len(front) - 1, MAX_CORNERS)]
    named, leaders = list[Bbox](), list[Path]()
    for number in dict.fromkeys([front[-1], front[0], *corners, *others]):
        strong: Any = {"fontweight": "bold"} if number in front else {}
        both = names[number], names[number].replace(", ", ",\n")
        places_of = _OFFSETS[:2] if coloured and number not in front else _OFFSETS
        for is_strict, words, (offset, side) in product((True, False), both, places_of):
            style: Any = {"textcoords": "offset points", "fontsize": font_points(SMALL), "color": inks[number]}
            name = axes.annotate(words, points[number], offset, ha="left" if side > 0 else "right", **style)
            name.set(**strong, path_effects=halo)
            box = name.get_window_extent()
            middle = offset[0] - 3 * side, offset[1] + 2  # low densities draw words wider
            ahead = places[number] + point * np.outer(np.linspace(0.0, 1.0, 12), middle)
            is_led = abs(middle[1]) > 3
            passed = [one for one in taken if one.count_contains(ahead) and not one.contains(*places[number])]
            crossed = [path for path in joined if path.intersects_bbox(box, filled=False)]
            free = room.contains(*box.min) and room.contains(*box.max) and not any(map(box.overlaps, taken))
            free &= not any(path.intersects_bbox(box, filled=False) for path in leaders)
            free &= not (is_led and any(one.count_contains(ahead) for one in named))
            if free and not (is_strict and (crossed or (passed and is_led))):
                taken.append(box.padded(point))
                named.append(taken[-1])
                if is_led:
                    leader: Any = {**_LEADER, "color": inks[number], "shrinkB": 4}
                    axes.annotate("", points[number], middle, textcoords="offset points", arrowprops=leader)
                    leaders.append(Path(ahead))
                break
            name.remove()


def draw_bars(
    names: Sequence[str], fractions: Sequence[float], notes: Sequence[str], title: str, unit: str, noted: str = "",
    *, ranked: bool = False,
) -> Figure:  # fmt: skip
    """Draw a bar per name, with its percent of `unit` at its end, and at the right what is `noted`.

    The largest bar is first, or the order is that of names that are `ranked`. Three names or more whose bars would be 0
    and that have no note are one row.
    """
    with matplotlib.rc_context(settings()):
        rows = sorted(zip(names, fractions, notes, strict=True), key=lambda row: 0.0 if ranked else -abs(row[1]))
        zeros = [row for row in rows if abs(row[1]) < 5e-4 and not row[2]]
        if len(zeros) > 2:
            rows = [*(row for row in rows if row not in zeros), (f"{len(zeros)} others", 0.0, "")]
        figure, axes = titled_axes(None, LIGHT, title, "", 0.9 + 0.2 * len(rows))
        axes.barh(range(len(rows)), [100 * row[1] for row in rows], 0.7, color=LIGHT.edge)
        axes.axvline(0.0, color=LIGHT.text, linewidth=0.8)
        for place, (_, fraction, note) in enumerate(rows):
            style: Any = {"fontsize": font_points(SMALL), "color": LIGHT.text, "va": "center"}
            by: Any = {"textcoords": "offset points", "ha": "right" if fraction <= 0 > min(fractions) else "left"}
            by |= {"xytext": (-3 if by["ha"] == "right" else 3, 0), "bbox": {"fc": LIGHT.paper, "lw": 0.0, "pad": 0.5}}
            axes.annotate(percent_text(fraction, signed=True).replace("-", "−"), (100 * fraction, place), **by, **style)
            after = note.replace("->", "→").replace(" -", " −")
            axes.text(1.02, place, after, transform=axes.get_yaxis_transform(), **style)
        head: Any = {"xycoords": "axes fraction", "fontsize": font_points(SMALL), "color": LIGHT.quiet}
        axes.annotate(noted * any(notes), (1.02, 1.02), **head)
        axes.set(ylim=(len(rows) - 0.5, -0.5), xlabel=f"{unit} (%)")
        axes.set_yticks(range(len(rows)), [row[0].replace("->", "→") for row in rows])
        axes.margins(x=0.18)
        axes.locator_params(axis="x", nbins=6)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
    return figure


def _add_legend(axes: Axes, theme: Theme, chosen: Callable[[str], bool] = bool) -> None:
    """Give the figure a legend of the `chosen` labels below the axes, in rows that add to its height."""
    figure, pairs = figure_of(axes), zip(*axes.get_legend_handles_labels(), strict=True)
    entries = [(handle, str(label)) for handle, label in pairs if chosen(str(label))]
    if not entries:
        return
    long = 2.6 if any(isinstance(one, Line2D) and one.is_dashed() for one, _ in entries) else 1.8  # em of a line's key
    widths = [text_width(label, 2 * SMALL) + 20 + 2 * SMALL * long for _, label in entries]
    room, count = figure.get_figwidth() * PIXELS - 28, len(entries)
    fitting = [columns for columns in range(1, count + 1)
               if columns == 1 or sum(max(widths[column::columns]) for column in range(columns)) <= room]  # fmt: skip
    rows = -(-count // fitting[-1])
    columns = next(columns for columns in fitting if -(-count // columns) == rows)  # rows of about the same number
    figure.set_figheight(figure.get_figheight() + 0.1 + 0.12 * rows)
    inset = 72 * cast(Any, figure.get_layout_engine()).get()["w_pad"] / SMALL - 0.5  # begins where the title does
    style: Any = {"fontsize": font_points(SMALL), "labelcolor": theme.text, "frameon": False, "borderpad": 0.5}
    style |= {"handlelength": long, "handletextpad": 0.5, "columnspacing": 1.0, "borderaxespad": inset}
    by_row = [entry for column in range(columns) for entry in entries[column::columns]]  # matplotlib fills by column
    figure.legend(*zip(*by_row, strict=True), loc="outside lower left", ncols=columns, scatteryoffsets=[0.5], **style)
