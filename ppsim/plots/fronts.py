"""The chart of step time against memory of many runs, with its Pareto front."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, product
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.markers import MarkerStyle
from matplotlib.path import Path
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox

from ppsim.analysis.measures import pareto_front
from ppsim.analysis.memory import HEADROOM
from ppsim.base.units import axis_unit, counted, percent_text
from ppsim.plots.figures import SMALL, figure_of, follows_page, font_points, settings, titled_axes, wrapped
from ppsim.plots.many_runs import (
    COLOURS,
    LEADER,
    MARKERS,
    MAX_BARS,
    add_legend,
    explain_states,
    fit_within,
    spread_axis,
    styles_of,
    swept_text,
)  # fmt: skip
from ppsim.plots.palette import Theme, mixed, theme_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CORNERS = 5  # named points of a front
_MAX_COLOURED, _PALE = 6, 0.85  # of more schedules, those off the front have no names, and colours of this strength
_TIE = 5e-3  # of a value: a point whose only gain over the next one is smaller is not drawn on the front
_NEAR = 1.5  # times the largest peak: a larger memory limit is not drawn
_OFF = 1.04  # times the device memory: a larger peak is beyond the axis, which it would stretch
_OFFSETS = [  # points between a point and its name, and the side of the name
    ((side * (7 if abs(up) < 10 else 14), up), side)
    for up in (-2, 8, -11, 18, -22, 28, -32, 38, -42, 52, -56) for side in (1, -1)
]  # fmt: skip


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
    heading: str | None = None, refused: Sequence[str] = (),
) -> Figure:  # fmt: skip
    """Draw (memory, seconds) pairs as points, and a line through their Pareto front; `unit` is that of `memory`.

    `step` names the seconds. `groups` has the schedule of each pair, which gives its point a colour; `names` has what
    else differs. If this is one key, `varied` has the key and its value at each pair; a line then joins the points of a
    schedule, and the front and the ends of lines show values. `limit` is the usable memory; it is drawn if a point
    comes near it, and then sets the unit of memory. Points in the headroom above it are half filled, and the front is
    dashed there. `what` names the runs; `heading` replaces it and the title. The legend names the runs that are
    `refused`. `width` is the figure's in inches, `theme` "light", "dark" or "grey". Raises ConfigError for others.
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
        explain_states(axes, fits, colours, refused)
        if (edge := near and near * byte) is not None:
            _draw_limits(axes, edge, symbol, {*fits}, colours)
        words = "Pareto front" + " of what fits" * ("over" in fits and {*fits} != {"over"})
        is_beaten = min(runs[at].seconds for at in fitting) < runs[front[-1]].seconds
        words += f", without gains under {percent_text(_TIE)}" * is_beaten
        _draw_front(axes, [(points[index], fits[index]) for index in front], edge, colours, words)
        for label, at in _beyond([run for run in every if run not in runs], grouped, byte, symbol):
            seconds, style = [run.seconds * second for run in at], {"clip_on": False, "markersize": 3, "label": label}
            axes.plot([1] * len(at), seconds, ">", color=colours.limit, transform=axes.get_yaxis_transform(), **style)
        for number, axis in enumerate("xy"):
            is_log = spread_axis(axes, axis, [point[number] for point in points])
            words: Any = getattr(axes, f"{axis}axis").label
            beside = f" · labels: {word}" if number and grouped and word else ""
            words.set_text(wrapped(axis_names[number] + ", logarithmic" * is_log + beside, figure.get_figwidth()))
        others: Iterable[int] = range(len(runs) if len(runs) <= MAX_BARS else 0)
        if grouped and word:  # a line joins the others of a group
            last = {group: at for at, group in enumerate(shown)}
            others = sorted({*map(shown.index, last), *last.values()} - {*front}) * (len(last) <= _MAX_COLOURED)
        labels = [_label(run, grouped, word, at in front) for at, run in enumerate(runs)]
        add_legend(axes, colours)
        _name_points(axes, points, labels, front, others, inks, grouped and not word)
    return figure


def _beyond(runs: Sequence[_FrontRun], grouped: bool, byte: float, unit: str) -> Iterator[tuple[str, list[_FrontRun]]]:
    """Yield the words of the legend for runs beyond the axis, and these runs, by group if they are grouped."""
    for group in dict.fromkeys(run.group if grouped else None for run in runs):
        mine = [run for run in runs if group in (None, run.group)]
        sizes = [byte * run.memory for run in mine]
        ends = "–".join(dict.fromkeys(f"{float(f'{one:.3g}'):,g}" for one in (min(sizes), max(sizes))))
        name = group or (_label(mine[0], grouped, "", True) if len(mine) == 1 else counted(len(mine), "run"))
        yield f"beyond the axis: {name}, {ends} {unit}", mine


def _label(run: _FrontRun, grouped: bool, word: str, on_front: bool) -> str:
    """Return the name of a point: its group if it is `on_front`, and what differs; the axis names a varied key."""
    own = swept_text(word, run.value) if grouped and word else run.name
    return ", ".join(filter(None, [run.group if on_front or not (grouped and own) else "", own]))


def _draw_limits(axes: Axes, limit: float, symbol: str, fits: set[str], theme: Theme) -> None:
    """Draw the usable memory, and that of the device if a point shown is over it; the legend names both."""
    device = [("device", limit / (1 - HEADROOM), "solid")] * (not fits <= {"fits"})
    for word, at, dashes in (("usable", limit, (0, (5, 2.5))), *device):
        style: Any = {"color": theme.limit, "linewidth": 0.8, "linestyle": dashes, "alpha": 1.0, "zorder": 1}
        axes.axvline(at, label=f"{word} {at:.3g} {symbol}", **style)


def _draw_front(
    axes: Axes, front: Sequence[tuple[Any, str]], limit: float | None, theme: Theme, words: str
) -> None:  # fmt: skip
    """Draw the points of a front, with how they fit, as steps with rings, dashed over the limit."""
    style: Any = {"marker": "o", "markersize": 7, "markerfacecolor": "none", "markeredgewidth": 1.1, "zorder": 4}
    style |= {"color": COLOURS[theme.name][-1], "linewidth": 1.1 if len(front) > 1 else 0, "drawstyle": "steps-post"}
    within = [point for point, fit in front if fit != "tight"]
    beyond = [point for point, fit in front if fit == "tight"]
    edge = [(limit, within[-1][1])] if within and beyond else []
    for stairs, ringed, label, dashes in (
        ([*within, *edge], range(len(within)), words, "solid"),
        ([*edge, *beyond], range(len(edge), len(edge) + len(beyond)), "front over the usable memory", (0, (3, 1.5))),
    ):
        if ringed:
            axes.plot(*zip(*stairs, strict=True), label=label, linestyle=dashes, markevery=[*ringed], **style)


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
    styles = styles_of(kinds, theme.name) if len(kinds) > 1 else {None: {"color": theme.edge, "marker": "o"}}
    for kind in {*kinds} - {groups[index] for index in front} if len(kinds) > _MAX_COLOURED else ():
        styles[kind]["color"] = mixed([(styles[kind]["color"], _PALE), (theme.paper, 1 - _PALE)])
    size: Any = {"s": 13, "linewidths": 0.7}
    for kind, style in styles.items():
        mine, ink, marker = [at for at, group in enumerate(groups) if group == kind], style["color"], style["marker"]
        size["zorder"] = 5 - 0.01 * MARKERS[marker]
        faces, xy = [ink if fits[number] == "fits" else theme.paper for number in mine], np.array(points)[mine]
        axes.scatter(*xy.T, marker=marker, edgecolors=ink, facecolors=faces, **size)
        if tight := [number for number in mine if fits[number] == "tight"]:
            half = {**size, "marker": MarkerStyle(marker, fillstyle="left"), "linewidths": 0.0}
            axes.scatter(*np.array(points)[tight].T, color=ink, **half)
        axes.scatter((), (), marker=marker, color=ink, label=kind if grouped else None, **size)
        if grouped and joined:
            line: Any = {**style, "marker": "", "linewidth": 0.5, "alpha": 0.6, "zorder": 2}
            axes.plot(*xy.T, **line)
    return [theme.quiet if styles[group]["color"] == theme.edge else styles[group]["color"] for group in groups]


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
    corners = [front[round(place)] for place in np.linspace(0, len(front) - 1, _CORNERS)]
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
            others_at = places[np.hypot(*(places - places[number]).T) > 1.5 * point]
            passed += [at for at in others_at if np.hypot(*(ahead - at).T).min() < 3 * point]  # it would end there
            crossed = [path for path in joined if path.intersects_bbox(box, filled=False)]
            free = room.contains(*box.min) and room.contains(*box.max) and not any(map(box.overlaps, taken))
            free &= not any(path.intersects_bbox(box, filled=False) for path in leaders)
            free &= not (is_led and any(one.count_contains(ahead) for one in named))
            if free and not (is_strict and (crossed or (passed and is_led))):
                taken.append(box.padded(point))
                named.append(taken[-1])
                if is_led:
                    leader: Any = {**LEADER, "color": inks[number], "shrinkB": 4}
                    axes.annotate("", points[number], middle, textcoords="offset points", arrowprops=leader)
                    leaders.append(Path(ahead))
                break
            name.remove()
