"""The chart of step time against memory of many runs, with its Pareto front."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise, product
from typing import TYPE_CHECKING, Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.path import Path
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox

from ppsim.analysis.measures import pareto_front
from ppsim.analysis.memory import HEADROOM, fit_within
from ppsim.base.units import axis_unit, counted, percent_text
from ppsim.plots import many_runs
from ppsim.plots.figures import PIXELS, SMALL, figure_of, follows_page, font_points, settings, titled_axes, wrapped
from ppsim.plots.palette import Theme, theme_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_CORNERS = 5  # named points of a front
_CROWD = 6  # of more schedules, those off the front have the name of their slowest run alone
_TIE = 5e-3  # of a value: only the best point is drawn on the front if its only gain over the next one is smaller
_FEW = 3  # runs beyond the axis that have a name each
_NEAR = 1.5  # times the largest peak: a larger memory limit is not drawn
_OFF = 1.04  # times the device memory: a larger peak is beyond the axis, which it would stretch
_ARROW = Path([(-1, 0), (0, 0), (-0.35, 0.3), (0, 0), (-0.35, -0.3)])  # at the right end of the axis, to what is beyond
_BESIDE, _ALL_BESIDE = 6.5, 26.0  # points between the lines of two schedules of one memory, and of all such lines
_NEARBY = 32  # points above or below its point: rather than farther away, a name is level and crosses a line
_OFFSETS = [  # points between a point and its name, and the side of the name
    ((side * (7 if abs(up) < 10 else 14), up), side)
    for up in (-2, 8, -11, 18, -22, 28, -32, 38, -42, 52, -56) for side in (1, -1)
]  # fmt: skip
_AT_EDGE = [*_OFFSETS[:2], ((7, 5), -1), ((7, -10), -1), *_OFFSETS[2:]]  # above and below an arrow too


class _FrontRun(NamedTuple):
    """A run of a front: bytes or activations, seconds, name, schedule, value of the varied key, and how it fits."""

    memory: float
    seconds: float
    name: str
    group: Any
    value: Any
    fit: str


class _Name(NamedTuple):
    """Words beside a point, offsets where they may be, and the label of the legend that they replace."""

    point: tuple[float, float]
    words: str
    ink: str
    is_strong: bool
    offsets: Sequence[Any]
    replaces: str


@follows_page
def draw_front(
    pairs: Sequence[tuple[float, float]], names: Sequence[str], memory: str, unit: str,
    width: float | None = None, theme: str = "light", *, step: str = "step time", groups: Sequence[Any] = (),
    varied: tuple[str, Sequence[Any]] = ("", ()), limit: float | None = None, what: str = "",
    heading: str | None = None, refused: Sequence[str] = (), best: int | None = None, fits: Sequence[str] = (),
) -> Figure:  # fmt: skip
    """Draw (memory, seconds) pairs as points, and a line through their Pareto front; `unit` is that of `memory`.

    `step` names the seconds. `groups` has the schedule of each pair, which gives its point a colour; `names` has what
    else differs. If this is one key, `varied` has the key and its value at each pair; a line then joins the points of a
    schedule, the front and the ends of lines show values, and schedules whose points coincide are one. `limit` is the
    usable memory; it is drawn if a point comes near it, and then sets the unit of memory. `fits` has how each pair
    fits, by default in `limit`: those in the headroom above it are half filled, and the front is dashed there. `best`
    is the index of the pair that a text calls the best, by default the fastest. Groups that all need the same memory
    are side by side. `what` names the runs; `heading` replaces it and the title. The legend has what is not named in
    the chart, and the runs that are `refused`. `width` is the figure's in inches, `theme` "light", "dark" or "grey".
    Raises ConfigError for others.
    """
    with matplotlib.rc_context(settings()):
        colours, (word, values), nothing = theme_of(theme), varied, [None] * len(pairs)
        fits = fits or [fit_within(size, limit) for size, _ in pairs]
        columns = zip(pairs, zip(names, groups or nothing, values or nothing, fits, strict=True), strict=True)
        every = [_FrontRun(*pair, *own) for pair, own in columns]
        highest, grouped = max(run.memory for run in every), 1 < len({*groups}) <= len(every) // 2
        joined, (word, text) = grouped and word != "", many_runs.swept_axis(word, values)
        several = len({*groups}) > 1
        looks = many_runs.styles_of(groups, theme) if several else {None: {"color": colours.quiet, "marker": "o"}}
        every = _distinct_groups(every) if joined else every
        near = limit if limit is not None and limit < _NEAR * highest else None
        end = np.inf if near is None else _OFF * near / (1 - HEADROOM)
        runs = [run for run in every if run.memory <= end] or every
        byte, symbol = axis_unit(highest if near is None else near, unit)
        second, time_symbol = axis_unit(max(run.seconds for run in runs), "seconds")
        is_equal = grouped and near is None and highest <= (1 + _TIE) * min(run.memory for run in runs)
        strips = [*dict.fromkeys(run.group for run in runs)] if is_equal else []
        places = [strips.index(run.group) if strips else run.memory * byte for run in runs]
        fits, is_whole = [run.fit for run in runs], all(float(x).is_integer() for x in places)
        fitting = [at for at, fit in enumerate(fits) if fit != "over" or {*fits} == {"over"}]
        every_gain = [fitting[place] for place in pareto_front([runs[at][:2] for at in fitting])]
        front = _clear_front([run[:2] for run in runs], every_gain, None if best is None else pairs[best])
        axis_names = [f"{memory} ({symbol})", f"{step} ({time_symbol})"]
        figure, axes = titled_axes(width, colours, heading or what or "Step time against memory", axis_names[1])
        wide, edge = figure.get_figwidth(), near and near * byte
        margin = 0.12 if wide > 5 else 0.22
        drawn = np.array(places)
        if joined and not strips:
            drawn = _side_by_side(runs, places, (1 + 2 * margin) / (60 * wide), [edge] if edge else [])
        points = [(place, run.seconds * second) for place, run in zip(drawn.tolist(), runs, strict=True)]
        axes.margins(margin if grouped else 0.08, margin)  # names of groups have space at the left
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10], integer=is_whole, min_n_ticks=1))
        if strips:
            axes.set_xticks(range(len(strips)), [str(group).replace(", ", ",\n") for group in strips])
            axes.grid(visible=False, axis="x")
            axis_names[0] = f"{memory}: {highest * byte:.3g} {symbol} in all runs"
        styles = {run.group: many_runs.look_of(str(run.group).split(", "), looks) for run in every}
        ends = _ends(runs, {*front}) if joined else {}
        _draw_points(axes, points, runs, styles, colours, {*ends, *front} if joined else None)
        if edge is not None:
            _draw_limits(axes, edge, symbol, {*fits}, colours)
        words = "Pareto front" + " of what fits" * ("over" in fits and {*fits} != {"over"})
        words = "fastest" if strips else words + f", without gains under {percent_text(_TIE)}" * (front != every_gain)
        _draw_front(axes, [(points[index], fits[index]) for index in front], edge, colours, words)
        beyond = [*_beyond([run for run in every if run not in runs], grouped, byte, symbol)]
        for label, at in beyond:
            arrow: Any = {"color": styles[at[0].group]["color"], "marker": _ARROW, "markersize": 14, "clip_on": False}
            arrow |= {"markerfacecolor": "none", "linestyle": "", "transform": axes.get_yaxis_transform()}
            axes.plot([1] * len(at), [run.seconds * second for run in at], label=f"beyond the axis: {label}", **arrow)
        many_runs.explain_states(axes, fits, colours, refused)
        for number, axis in enumerate("xy"):
            is_log = not (axis == "x" and strips) and many_runs.spread_axis(axes, axis, [one[number] for one in points])
            words: Any = getattr(axes, f"{axis}axis").label
            is_shifted = number == 0 and bool(np.any(drawn != places))
            beside = ", side by side if equal" * is_shifted + f" · labels: {word}" * (joined and number > 0)
            scale = ", logarithmic" if is_log else many_runs.words_of_cut(axes) * number
            words.set_text("\n".join(wrapped(axis_names[number] + scale + beside, wide * PIXELS - 28, 2 * SMALL)))
        corners = [front[round(place)] for place in np.linspace(0, len(front) - 1, _CORNERS)]
        others = ends if joined else range(len(runs) if len(runs) <= many_runs.MAX_BARS else 0)
        placed = list[_Name]()
        for at in dict.fromkeys([front[-1], front[0], *corners, *others]):
            run, own = runs[at], text(runs[at].value) if joined else runs[at].name
            is_whole = (joined or not grouped or at in front) and not strips  # whose names are below them
            words = ", ".join(filter(None, [run.group if is_whole or not own else "", own]))
            offsets = _OFFSETS[:2] if grouped and not joined and at not in front else _OFFSETS
            key = (run.group or "") if is_whole and (joined or not grouped) else ""
            placed.append(_Name(points[at], words, styles[run.group]["color"], at in front, offsets, key))
        figure.draw_without_rendering()  # lays out the figure, so that names can be measured
        right = axes.transData.inverted().transform((axes.bbox.x1 - 9 * figure.dpi / 72, axes.bbox.y0))[0]
        for label, at in beyond:
            (_, seconds, _, group, *_), others = max(at, key=lambda run: run.seconds), {run.group for run in runs}
            words = label.removeprefix(f"{group}, ") if joined and group in others else label
            ink, key = styles[group]["color"], f"beyond the axis: {label}"
            placed.append(_Name((right, seconds * second), words, ink, False, _AT_EDGE, key))
        named = _draw_names(axes, points, front, placed) | {*strips}
        many_runs.add_legend(axes, colours, lambda label: label not in named)
    return figure


def _distinct_groups(runs: Sequence[_FrontRun]) -> list[_FrontRun]:
    """Return the runs with one group, which has all their names, in place of groups whose runs coincide."""
    lines, fits = dict[Any, list[tuple[float, float]]](), {(run.group, run.memory): run.fit for run in runs}
    for run in runs:
        lines.setdefault(run.group, []).append(run[:2])
    names = {names[0]: ", ".join(names) for names, _ in many_runs.distinct_lines(lines, fits)}
    return [run._replace(group=names[run.group]) for run in runs if run.group in names]


def _side_by_side(
    runs: Sequence[_FrontRun], places: Sequence[float], point: float, limits: Sequence[float]
) -> np.ndarray:  # fmt: skip
    """Return the places of runs on the axis of memory, with schedules of equal memory a marker apart, around it.

    `point` is the part of the axis' range that a point of the page takes.
    """
    sizes, like = dict[Any, set[str]](), dict[frozenset[str], list[Any]]()
    for run in runs:
        sizes.setdefault(run.group, set()).add(f"{run.memory:.3g}")
    for group, mine in sizes.items():
        like.setdefault(frozenset(mine), []).append(group)
    away = {group: (at - (len(mine) - 1) / 2) * min(_BESIDE, _ALL_BESIDE / len(mine)) * (len(mine) <= _CROWD)
            for mine in like.values() for at, group in enumerate(mine)}  # fmt: skip
    is_log, every = many_runs.is_spread(places), [*places, *limits]
    span = np.array(places) * np.ptp(np.log(every)) if is_log else np.ptp(every)
    return np.array(places) + span * point * np.array([away[run.group] for run in runs])


def _ends(runs: Sequence[_FrontRun], front: set[int]) -> dict[int, None]:
    """Return the runs at the ends of lines, the slowest first.

    If groups are many, those off the front have the slowest alone, as their other ends crowd at the front.
    """
    groups = {run.group: [at for at, one in enumerate(runs) if one.group == run.group] for run in runs}
    slowest = [max(mine, key=lambda at: runs[at].seconds) for mine in groups.values()]
    others = [at for mine in groups.values() for at in (mine[0], mine[-1])
              if len(groups) <= _CROWD or {*mine} & front]  # fmt: skip
    return dict.fromkeys([*slowest, *others])


def _beyond(runs: Sequence[_FrontRun], grouped: bool, byte: float, unit: str) -> Iterator[tuple[str, list[_FrontRun]]]:
    """Yield a name and the memory of runs beyond the axis, and these runs, by group if they are grouped."""
    keys: list[Any] = [run.group if grouped else at if len(runs) <= _FEW else None for at, run in enumerate(runs)]
    for group in dict.fromkeys(keys):
        mine = [run for run, key in zip(runs, keys, strict=True) if key == group]
        sizes = [byte * run.memory for run in mine]
        ends = "–".join(dict.fromkeys(f"{float(f'{one:.3g}'):,g}" for one in (min(sizes), max(sizes))))
        name = ", ".join(filter(None, mine[0][2:4][::-1])) if len(mine) == 1 else group or counted(len(mine), "run")
        yield f"{name}, {ends} {unit}", mine


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
    wide = 1.1 * (len(front) > 1)
    style |= {"color": many_runs.COLOURS[theme.name][-1], "linewidth": wide, "drawstyle": "steps-post"}
    within = [point for point, fit in front if fit != "tight"]
    beyond = [point for point, fit in front if fit == "tight"]
    edge = [(limit, within[-1][1])] if within and beyond else []
    for stairs, ringed, label, dashes in (
        ([*within, *edge], range(len(within)), words, "solid"),
        ([*edge, *beyond], range(len(edge), len(edge) + len(beyond)), "front over the usable memory", (0, (3, 1.5))),
    ):
        if ringed:
            axes.plot(*zip(*stairs, strict=True), label=label, linestyle=dashes, markevery=[*ringed], **style)


def _clear_front(
    pairs: Sequence[tuple[float, float]], every: Sequence[int], best: tuple[float, float] | None
) -> list[int]:  # fmt: skip
    """Return `every` point of a front without those but the best that gain less than `_TIE` over the next one."""
    kept = every[-1] if best is None else min(every, key=lambda one: math.dist(pairs[one], best))
    found: list[int] = []
    for number in every:
        if found and pairs[number][1] > (1 - _TIE) * pairs[found[-1]][1] and number != kept:
            continue
        while found and pairs[number][0] <= (1 + _TIE) * pairs[found[-1]][0] and found[-1] != kept:
            found.pop()
        found.append(number)
    return found


def _draw_points(
    axes: Axes, points: Sequence[tuple[float, float]], runs: Sequence[_FrontRun], styles: dict[Any, dict[str, Any]],
    theme: Theme, marked: set[int] | None,
) -> None:  # fmt: skip
    """Draw points, filled if they fit; each group has an entry in the legend.

    If some are `marked`, each group has a line through its points, and the others are dots on it. Wide marks are below
    narrow ones, so that each of several equal points is seen.
    """
    dot: Any = {"s": 2.5, "linewidths": 0.0, "zorder": 4.8}
    for kind in dict.fromkeys(run.group for run in runs):
        style, mine = styles[kind], [at for at, run in enumerate(runs) if run.group == kind]
        fits, ink, marker, xy = [runs[at].fit for at in mine], style["color"], style["marker"], np.array(points)[mine]
        size: Any = {"s": 13, "linewidths": 0.7, "zorder": 5 - 0.01 * many_runs.MARKERS[marker], "snap": False}
        is_dot = np.array([marked is not None and at not in marked for at in mine])
        faces = [ink if fit == "fits" else theme.paper for fit in np.array(fits)[~is_dot]]
        # A front passes behind points that are not on it.
        halo: Any = [withStroke(linewidth=2.2, foreground=theme.paper)]
        axes.scatter(*xy[~is_dot].T, marker=marker, edgecolors=ink, facecolors=faces, path_effects=halo, **size)
        axes.scatter(*xy[is_dot].T, color=ink, **dot)
        if (tight := (np.array(fits) == "tight") & ~is_dot).any():
            many_runs.fill_halves(axes, xy[tight], style | {"zorder": size["zorder"]}, size["s"] ** 0.5)
        axes.scatter((), (), marker=marker, color=ink, label=kind, **size)
        if marked is not None:
            axes.plot(*xy.T, **{**style, "marker": "", "linewidth": 0.6, "alpha": 0.7, "zorder": 2})
    if marked is not None and len(marked) < len(runs):
        axes.scatter((), (), color=theme.quiet, label="runs between", **dot)


def _draw_names(
    axes: Axes, points: Sequence[tuple[float, float]], front: Sequence[int], names: Sequence[_Name]
) -> set[str]:  # fmt: skip
    """Write the names that have space, the first ones first; return what they replace in the legend.

    Names never overlap. They avoid lines and points if they have space elsewhere or in two lines. A name that is not
    level with its point has a line to it, which crosses no name.
    """
    point = figure_of(axes).dpi / 72
    room = axes.get_window_extent().padded(-point)
    places, done = axes.transData.transform(points), set[str]()
    taken = [Bbox.from_extents(*place - 4 * point, *place + 4 * point) for place in places]
    for (x, y), (right, below) in pairwise(places[list(front)]):  # the line is level, then goes down
        taken += [Bbox.from_extents(x, y - point, right, y + point)]
        taken += [Bbox.from_extents(right - point, below, right + point, y)]
    drawn = [(line.get_alpha(), line.get_transform().transform_path(line.get_path())) for line in axes.lines]
    every, limits = ([path for alpha, path in drawn if alpha and alpha >= least] for least in (0, 1))
    halo = [withStroke(linewidth=2, foreground=figure_of(axes).get_facecolor())]
    for number, one in enumerate(chain(names, (one for one in names if one.replaces not in done))):  # then across lines
        at = axes.transData.transform(one.point)
        both = [*dict.fromkeys((one.words, ",\n".join(one.words.rsplit(", ", 1)), one.words.replace(", ", ",\n")))]
        near = [place for place in one.offsets if abs(place[0][1]) < _NEARBY]
        tries = *product([every], both, near), *product([limits], both, near[:2]), *product([every], both, one.offsets)
        for avoided, words, (offset, side) in (
            *tries,
            *product([limits], both, near if number >= len(names) else []),
            *product([[]], both, one.offsets if one.is_strong or not one.replaces else ()),
        ):
            style: Any = {"textcoords": "offset points", "fontsize": font_points(SMALL), "color": one.ink}
            style |= {"ha": "left" if side > 0 else "right", "fontweight": "bold" if one.is_strong else "normal"}
            name = axes.annotate(words, one.point, offset, **style)
            name.set(path_effects=halo)
            box = name.get_window_extent()
            middle = offset[0] - 3 * side, offset[1] + 2  # low densities draw words wider
            ahead = at + point * np.outer(np.linspace(0.3, 1.0, 9), middle)  # what is drawn of its line
            is_led = abs(middle[1]) > 3 and side * offset[0] > 0
            passed = [one for one in taken if one.count_contains(ahead) and not one.contains(*at)]
            others_at = places[np.hypot(*(places - at).T) > 1.5 * point]
            passed += [place for place in others_at if np.hypot(*(ahead - place).T).min() < 3 * point]  # its end
            crossed = [path for path in avoided if path.intersects_bbox(box.padded(point), filled=False)]
            free = room.contains(*box.min) and room.contains(*box.max) and not any(map(box.overlaps, taken))
            if free and not crossed and not (passed and is_led):
                taken.append(box.padded(2 * point))
                done.add(one.replaces)
                if is_led:
                    leader: Any = {**many_runs.LEADER, "color": one.ink, "shrinkB": 4}
                    axes.annotate("", one.point, middle, textcoords="offset points", arrowprops=leader)
                    taken += [Bbox.from_extents(*place - 2 * point, *place + 2 * point) for place in ahead]
                break
            name.remove()
    return done
