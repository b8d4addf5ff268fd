"""Charts of many runs: lines of a measure over a swept number, bars of changes, and the look of each schedule."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import chain, count, pairwise
from typing import TYPE_CHECKING, Any, cast

import matplotlib
import numpy as np
from matplotlib.lines import Line2D
from matplotlib.markers import MarkerStyle
from matplotlib.offsetbox import HPacker
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from ppsim.base.rules import is_number
from ppsim.base.units import axis_unit, counted, format_quantity, percent_text
from ppsim.costs import Costs
from ppsim.families.registry import families
from ppsim.plots.figures import PIXELS, SMALL, figure_of, follows_page, font_points, settings, text_width, titled_axes
from ppsim.plots.palette import Theme, theme_of
from ppsim.plots.scale import number_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = {  # by theme: of schedules, and the last one of the Pareto front; kinds have other colours
    "light": ["#1b1f24", "#7d3c98", "#8c5a2b", "#2f7f93", "#b04a86", "#6f7212", "#00008f",
              "#14532d", "#c018f0", "#6a7380"],
    "dark": ["#e8eaed", "#c79bf0", "#d9a27a", "#6fc3d6", "#f09ad8", "#c2c25a", "#ffd9a0",
             "#3fae4a", "#c048d8", "#a4abb5"],
    "grey": ["#000000", "#5a5a5a", "#303030", "#7a7a7a"],
}  # fmt: skip
_FIRST = ("1f1b", "zb-h1", "interleaved-1f1b", "zb-v", "dualpipe", "gpipe", "v-half", "v-min")  # in order of colours
_PLACES = {name: place for place, name in enumerate(dict.fromkeys([*_FIRST, *families()]))}
MAX_BARS = 12  # bars of a chart
_NAMES, _LETTERS = 7.2, 3.6  # maximum lines of names at lines' ends per inch of a chart's height; letters per inch
_FINEST = 1e-3  # of an axis' unit: if a swept number is smaller, each has its own unit
_AXES = {"memory limit": "activations", "achieved": "fraction of the peak"}  # units of swept numbers that have one
_UNITS = {one.name.replace("_", " "): one.metadata["unit"] for one in fields(Costs) if one.metadata.get("unit")}
_STATE_SIZE = 4.2  # points
_SAME = 2e-3  # of the largest value: lines as close as this at all numbers are drawn as one
_RATIO, _MAX_TICKS = 4.0, 10  # minimum ratio of the ends of a logarithmic axis; ticks of an axis
_STATE_WORDS = {"tight": "half filled: tight in memory", "over": "hollow: does not fit"}
# Markers, with the tenths of a square that each fills; the last is a star of four points.
MARKERS: Any = {"o": 8, "s": 10, "d": 6, "^": 5, "v": 5, "<": 5, ">": 5, "D": 10, "P": 6, "X": 6, "*": 3, (4, 1): 3}
_DASHES = ("solid", (0, (4, 1.5)), (0, (1, 1.2)))
_KEY = 0.14, 0.27, 0.4, 0.45  # inches right of the axes: a piece of a line, its symbol and its end; its name
LEADER: Any = {"arrowstyle": "-", "linewidth": 0.5, "shrinkA": 2}  # from a name to its point


@follows_page
def draw_lines(
    lines: Mapping[str, Sequence[tuple[float, float]]], over: str, title: str, unit: str,
    width: float | None = None, theme: str = "light", *, what: str = "", heading: str | None = None,
    fits: Mapping[tuple[str, float], str] | None = None, refused: Sequence[str] = (),
) -> Figure:  # fmt: skip
    """Draw a line of (number, value) pairs per name; `over` is the numbers' key, `title` and `unit` name the values.

    `what` names the runs, such as a config; `heading` replaces it and the title. `fits` gives, by name and number, the
    points "tight" in memory, drawn half filled, or "over" it, drawn hollow. The legend names the runs `refused`.

    Numbers that double each time have a logarithmic axis. Lines are named at their ends if the names fit there; lines
    that coincide are one with all their names. `width` is in inches, `theme` "light", "dark" or "grey".
    """
    with matplotlib.rc_context(settings()):
        colours = theme_of(theme)
        factor, symbol = axis_unit(max(abs(value) for pairs in lines.values() for _, value in pairs), unit)
        word = over.rpartition(".")[2].replace("_", " ")
        label = title if "/" in title else f"{title} ({symbol})"
        figure, axes = titled_axes(width, colours, heading or what or title, label)
        ends, fits, letters = [], fits or {}, int(_LETTERS * figure.get_figwidth())
        distinct = distinct_lines(lines, fits)
        joint = [("; " if ", " in names[0] else ", ").join(names) for names, _ in distinct]
        looks = styles_of(lines if len(lines) > 1 else [f"{joint[0]}, {what}"], theme)  # alone: that of its schedule
        every = zip(distinct, joint, [look_of(names, looks) for names, _ in distinct], strict=True)
        for (names, pairs), name, style in sorted(every, key=lambda line: -line[0][1][-1][1]):  # as a legend has them
            numbers, values = zip(*pairs, strict=True)
            scaled = [value * factor for value in values]
            states = [fits.get((names[0], number), "fits") for number in numbers]
            size: Any = {"linewidth": 1.1, "markersize": 4.6, "clip_on": False, **style}
            size["zorder"] = (
                3 - 0.01 * MARKERS[style["marker"]] + 0.5 * (style["linestyle"] != "solid")
            )  # both are seen
            for state in ("fits", *(one for one in _STATE_WORDS if one in states)):
                edge: Any = {"markeredgecolor": colours.paper, "markeredgewidth": 0.4}  # between equal points
                beyond: Any = {"linestyle": "", **looks_of("over", colours)}
                own: Any = {"label": name, **edge} if state == "fits" else beyond
                own["markevery"] = [at for at, one in enumerate(states) if one == state]
                axes.plot(numbers, scaled, **{**size, **own})
                if state == "tight":
                    fill_halves(axes, [(numbers[at], scaled[at]) for at in own["markevery"]], size, _STATE_SIZE)
            lined = textwrap.fill(name, letters, break_on_hyphens=False, break_long_words=False)
            ends.append((numbers[-1], scaled[-1], lined, style))
        is_log = _number_axis(axes, sorted({number for pairs in lines.values() for number, _ in pairs}), word)
        drawn = [value * factor for pairs in lines.values() for _, value in pairs]
        if unit != "fraction" and spread_axis(axes, "y", drawn):
            axes.yaxis.label.set_text(f"{axes.get_ylabel()}, logarithmic")
        else:
            axes.locator_params(axis="y", steps=[1, 2, 5, 10])
            if min(drawn) >= 0 and not max(drawn) / 2 <= min(drawn) < (1 - _SAME) * max(drawn):
                axes.set_ylim(bottom=0)  # no tick of zero above the axis; a constant is far from it
            axes.yaxis.label.set_text(axes.get_ylabel() + words_of_cut(axes))
        axes.xaxis.label.set_text(axes.get_xlabel() + ", logarithmic" * is_log)
        direct = sum(name.count("\n") + 1 for _, _, name, _ in ends) <= _NAMES * (figure.get_figheight() - 0.7)
        explain_states(axes, fits.values(), colours, refused)
        add_legend(axes, colours, lambda label: not (direct and label in joint))
        if direct and {*joint} - {"", title}:
            name_ends(axes, ends)
    return figure


def words_of_cut(axes: Axes) -> str:
    """Return what the name of an upright axis adds if it begins above zero."""
    return ", not from zero" * bool(axes.get_ylim()[0] > 0)


def looks_of(state: str, theme: Theme) -> dict[str, Any]:
    """Return the style of a point that is tight in memory or over it."""
    half = {"fillstyle": "left", "markerfacecoloralt": theme.paper}
    return {"markersize": _STATE_SIZE, **(half if state == "tight" else {"markerfacecolor": theme.paper})}


def fill_halves(axes: Axes, points: Any, look: Mapping[str, Any], size: float) -> None:
    """Fill the left halves of hollow points; a half of a marker would be moved to other pixels than its outline."""
    marker: Any = MarkerStyle(look["marker"], fillstyle="left")
    style: Any = {"color": look["color"], "linewidths": 0.0, "snap": False, "clip_on": False}
    axes.scatter(*np.array(points).T, s=size**2, marker=marker, zorder=look["zorder"], **style)


def explain_states(axes: Axes, states: Iterable[str], theme: Theme, refused: Sequence[str]) -> None:
    """Add the states of memory that occur, and the runs that are refused, to the legend."""
    for state in sorted({*states} & {*_STATE_WORDS}):
        axes.plot((), (), "o", color=theme.quiet, label=_STATE_WORDS[state], **looks_of(state, theme))
    if refused:
        words = f"refused: {refused[0]}" + f" and {counted(len(refused) - 1, 'more run')}" * (len(refused) > 1)
        axes.plot((), (), linestyle="", label=words)  # words alone


def styles_of(names: Iterable[Any], theme: str) -> dict[Any, dict[str, Any]]:
    """Return the style by name, the most common schedule first; names of all runs give the same styles in all charts.

    The first variant of a schedule has the style of the schedule. If a more common one has its symbol or colour, it has
    a free one of the rarest family; if no line names a schedule, lines have those of the first families, whose symbols
    can be half filled. Once all colours are used, lines are dashed, then dotted.
    """
    colours, names, places = COLOURS[theme][:-1], [*names], dict[int, Any]()
    known = {name: [_PLACES[part] for part in re.split(r"[:,;]\s*", str(name)) if part in _PLACES] for name in names}
    ranks = {name: min(found, default=len(_PLACES)) for name, found in known.items()}
    firsts = {rank: name for name, rank in reversed(ranks.items()) if known[name]}  # the first variants
    order = sorted(ranks, key=lambda name: (firsts.get(ranks[name]) != name, ranks[name]))
    for rank, name in sorted(firsts.items()):
        places.setdefault(rank % len(MARKERS), name)
    usable = chain(range(len(MARKERS))[:: -1 if firsts else 1], count(len(MARKERS)))
    free, found, used = (place for place in usable if place not in places), {}, dict.fromkeys(colours, 0)
    own = {name: place for place, name in places.items()}
    own |= {name: next(free) for name in order if name not in own}
    for name in order:
        marker, usual = [*MARKERS][own[name] % len(MARKERS)], colours[own[name] % len(colours)]
        inks = {one["color"] for one in found.values() if one["marker"] == marker}  # no two have symbol and colour
        ink = min(reversed(colours), key=lambda one: (one in inks, used[one], one != usual))
        found[name] = {"color": ink, "marker": marker, "linestyle": _DASHES[used[ink] % 3]}
        used[ink] += 1
    return found


def look_of(names: Sequence[str], looks: Mapping[Any, dict[str, Any]]) -> dict[str, Any]:
    """Return the style of runs that coincide: that of the most common schedule among them."""
    return next(look for name, look in looks.items() if name in names or len(looks) == 1)


def distinct_lines(
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


def swept_axis(word: str, values: Iterable[Any]) -> tuple[str, Callable[[Any], str]]:
    """Return the name of an axis of swept values, and what writes a value: all have one unit unless they are far apart.

    A number of a cost is a number of seconds or bytes. If one unit does not suit all, each has its own, such as 10 ns.
    """
    sizes = [abs(value) for value in values if is_number(value) and value]
    unit, low, high = _UNITS.get(word, "") if sizes else "", min(sizes, default=1.0), max(sizes, default=1.0)
    factor, symbol = axis_unit(high, unit or _AXES.get(word, ""))
    is_common = not unit or (unit in ("seconds", "bytes") and low * factor > _FINEST)

    def text(value: Any) -> str:
        number = is_number(value)
        return str(value) if not number else number_text(value * factor) if is_common else format_quantity(value, unit)

    return f"{word} ({symbol})" if is_common and symbol else word, text


def _number_axis(axes: Axes, numbers: Sequence[float], word: str) -> bool:
    """Give ticks to few numbers, round ones to many; return whether the axis is logarithmic, as for doubling ones."""
    doubles = len(numbers) > 2 and numbers[0] > 0 and all(abs(b / a - 2) < 1e-9 for a, b in pairwise(numbers))
    is_log = doubles or spread_axis(axes, "x", numbers)
    places, room = np.log(numbers) if is_log else numbers, 0.75 * PIXELS * figure_of(axes).get_figwidth()
    name, text = swept_axis(word, numbers)
    apart = (max(text_width(text(one), 2 * SMALL) for one in numbers) + 12) / room * np.ptp(places)
    if doubles or (len(numbers) <= _MAX_TICKS and min(np.diff(places), default=1.0) > apart):
        _set_ticks(axes, "x", numbers, is_log)
    elif not is_log:
        axes.locator_params(axis="x", steps=[1, 2, 5, 10], integer=all(float(one).is_integer() for one in numbers))
    axes.xaxis.set_major_formatter(lambda number, _: text(number))
    axes.set_xlabel(name)
    axes.set_xlim(right=numbers[-1] if len(numbers) > 1 else None)  # where names of lines begin
    return is_log


def _set_ticks(axes: Axes, name: str, ticks: Sequence[float], is_log: bool) -> None:
    """Give the axis "x" or "y" plain numbers at these ticks, and a logarithmic scale if it `is_log`."""
    axis: Any = getattr(axes, f"{name}axis")
    axes.set(**{f"{name}scale": "log"} if is_log else {})
    axis.set_major_locator(FixedLocator(ticks))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda number, _: number_text(number)))


def is_spread(values: Sequence[float]) -> bool:
    """Return whether half of some values share a third of a linear axis."""
    low, middle, high = min(values), float(np.median(values)), max(values)
    return bool(low > 0 and high > _RATIO * low and middle - low < (high - low) / 3)


def spread_axis(axes: Axes, axis: str, values: Sequence[float]) -> bool:
    """Make an axis logarithmic if half of its values share a third of a linear one; return whether it is.

    It has ticks at each doubling of a round number, or at powers of ten, from one that no value is below.
    """
    if not is_spread(values):
        return False
    low, high = min(values), max(values)
    power = 10.0 ** np.floor(np.log10(low))
    first = power * max(digit for digit in (1, 2, 4, 5, 8) if digit * power <= low * (1 + 1e-9))
    times = 2.0 if high / first < 2.0**_MAX_TICKS else 10.0
    ticks = [first * times**step for step in range(int(np.log(1.6 * high / first) / np.log(times)) + 1)]
    _set_ticks(axes, axis, ticks, is_log=True)
    getattr(axes, f"set_{axis}lim")(min(first, getattr(axes, f"get_{axis}lim")()[0]))
    return True


def name_ends(axes: Axes, ends: Sequence[tuple[float, float, str, dict[str, Any]]]) -> None:
    """Write the name of each line beside the axes, in its colour; leaders join both if the name or a neighbour moved.

    If lines share a colour, a piece of each line is before its name in place of a leader.
    """
    keyed = len({look["color"] for *_, look in ends}) < len(ends)
    figure_of(axes).draw_without_rendering()  # lays out the figure, so that places are final
    inches = axes.transData.transform([(x, y) for x, y, *_ in ends]) / figure_of(axes).dpi
    order = sorted(range(len(ends)), key=lambda place: inches[place, 1])
    apart = font_points(SMALL) * 1.25 / 72
    high = apart * np.array([ends[place][2].count("\n") + 1 for place in order])
    above = np.cumsum(high) - high / 2  # distances of names that touch
    groups: list[list[float]] = []  # neighbours that would meet: their mean place without the distances between them
    for rank, place in enumerate(order):
        groups.append([float(inches[place, 1]) - above[rank]])
        while len(groups) > 1 and np.mean(groups[-1]) < np.mean(groups[-2]):
            groups[-2:] = [groups[-2] + groups[-1]]
    places = [(float(np.mean(group)), len(group) > 1) for group in groups for _ in group]
    (left, low), (right, top) = axes.get_window_extent().get_points() / figure_of(axes).dpi
    for rank, (place, (y, is_moved)) in enumerate(zip(order, places, strict=True)):
        x, value, name, look = ends[place]
        level, colour = max(y, low - high[0] / 2) + above[rank], look["color"]
        share, (begin, *key, after) = (level - low) / (top - low), 1 + np.array(_KEY) / (right - left)
        style: Any = {"xytext": (after if keyed else begin, share), "textcoords": "axes fraction"}
        if keyed:
            piece: Any = {**look, "markersize": 3.5, "linewidth": 1.1, "clip_on": False, "transform": axes.transAxes}
            axes.plot([begin, *key], [share] * 3, markevery=[1], **piece)
        elif is_moved or abs(level - inches[place, 1]) > apart / 4 or x < axes.get_xlim()[1]:
            style["arrowprops"] = {**LEADER, "color": colour, "shrinkB": 3, "relpos": (0, 0.5), "patchA": None}
        style |= {"fontsize": font_points(SMALL), "annotation_clip": False}
        axes.annotate(name, (x, value), color=colour, va="center", **style)


@follows_page
def draw_bars(
    names: Sequence[str], fractions: Sequence[float], notes: Sequence[str], title: str, unit: str, noted: str = "",
    *, width: float | None = None, theme: str = "light",
) -> Figure:  # fmt: skip
    """Draw a bar per name, with its percent of `unit` at its end, and at the right what is `noted`.

    `width` is the figure's in inches, `theme` "light", "dark" or "grey".
    """
    with matplotlib.rc_context(settings()):
        colours = theme_of(theme)
        figure, axes = titled_axes(width, colours, title, "", 0.9 + 0.2 * len(names))
        axes.barh(range(len(names)), [100 * fraction for fraction in fractions], 0.7, color=colours.edge)
        axes.axvline(0.0, color=colours.text, linewidth=0.8)
        for place, (fraction, note) in enumerate(zip(fractions, notes, strict=True)):
            style: Any = {"fontsize": font_points(SMALL), "color": colours.text, "va": "center"}
            by: Any = {"textcoords": "offset points", "ha": "right" if fraction <= 0 > min(fractions) else "left"}
            by["xytext"] = (-3 if by["ha"] == "right" else 3, 0)
            by["bbox"] = {"fc": colours.paper, "lw": 0.0, "pad": 0.5}
            axes.annotate(percent_text(fraction, signed=True).replace("-", "−"), (100 * fraction, place), **by, **style)
            after = note.replace("->", "→").replace(" -", " −")
            axes.text(1.02, place, after, transform=axes.get_yaxis_transform(), **style)
        head: Any = {"xycoords": "axes fraction", "fontsize": font_points(SMALL), "color": colours.quiet}
        axes.annotate(noted * any(notes), (1.02, 1.02), **head)
        axes.set(ylim=(len(names) - 0.5, -0.5), xlabel=f"{unit} (%)")
        axes.set_yticks(range(len(names)), [name.replace("->", "→") for name in names])
        axes.margins(x=0.18 if figure.get_figwidth() > 5 else 0.4)
        axes.locator_params(axis="x", nbins=6)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
    return figure


def add_legend(axes: Axes, theme: Theme, chosen: Callable[[str], bool] = bool) -> None:
    """Give the figure a legend of the `chosen` labels below the axes, in rows that add to its height."""
    figure, pairs = figure_of(axes), zip(*axes.get_legend_handles_labels(), strict=True)
    entries = [(handle, str(label)) for handle, label in pairs if chosen(str(label))]
    if not entries:
        return
    long = 2.6 if any(isinstance(one, Line2D) and one.is_dashed() for one, _ in entries) else 1.8  # em of a line's key
    widths = [text_width(label, 2 * SMALL) + 20 + 2 * SMALL * long for _, label in entries]
    room, rows, free = figure.get_figwidth() * PIXELS - 28, [list[int]()], 0.0
    for place, wide in enumerate(widths):
        if rows[-1] and wide > free:
            rows.append([])
        free = (free if rows[-1] else room) - wide
        rows[-1].append(place)
    figure.set_figheight(figure.get_figheight() + 0.1 + 0.12 * len(rows))
    inset = 72 * cast(Any, figure.get_layout_engine()).get()["w_pad"] / SMALL - 0.5  # begins where the title does
    style: Any = {"fontsize": font_points(SMALL), "labelcolor": theme.text, "frameon": False, "borderpad": 0.5}
    style |= {"handlelength": long, "handletextpad": 0.5, "borderaxespad": inset, "scatteryoffsets": [0.5]}
    legend: Any = figure.legend(*zip(*entries, strict=True), loc="outside lower left", **style)
    column = legend.get_children()[0].get_children()[1].get_children()[0]  # of matplotlib, whose columns leave holes
    for (handle, _), item in zip(entries, items := [*column.get_children()], strict=True):
        if isinstance(handle, Line2D) and handle.get_marker() == handle.get_linestyle() == "None":
            del item.get_children()[0]
    lines = [HPacker(pad=0, sep=font_points(SMALL), children=[items[place] for place in row]) for row in rows]
    column.get_children()[:] = lines
    legend.set_figure(figure)
