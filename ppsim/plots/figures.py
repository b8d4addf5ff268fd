"""Figures of matplotlib: fonts for papers, a layout that gives the same bytes each time, and files."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import re
import zlib
from collections.abc import Callable, Sequence
from functools import cache, partial, wraps
from typing import Any, cast

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, fontManager
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Annotation
from matplotlib.textpath import TextPath
from matplotlib.ticker import FuncFormatter
from matplotlib.transforms import ScaledTranslation, blended_transform_factory
from PIL import Image

from ppsim.base.errors import ConfigError, shown
from ppsim.base.rules import is_number
from ppsim.base.units import time_unit
from ppsim.plots.palette import FONT, ON_DARK, ON_LIGHT, Theme, reader_style
from ppsim.plots.scale import number_text, round_ticks, tick_texts

PIXELS = 144  # reference pixels per inch; one is half a point
PAGE, MAX_WIDTH = 7.0, 200.0  # inches: the width of a paper; its columns have 3.3
DPI = 300  # pixels per inch of a file, unless the user has changed matplotlib's or gives another
NOTEBOOK = 140  # pixels per inch in a notebook, whose cells a page of a paper fills
MAX_VECTOR = 600  # boxes of a picture in a notebook; rows of more are an image
_SPARE = 1.02  # width that is left for a text, in its own
SMALL, _MARGIN = 6.0, 14 / PIXELS  # of charts of many runs: points of all words but the title; inches
BASE_SIZE = 10.0  # points: matplotlib's usual font size, which ours are relative to
_FONTS = {"pdf.fonttype": 42, "ps.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "ppsim"}
_FAMILIES = ("Liberation Sans", "Arimo", "Arial", "Helvetica")  # of the same widths; matplotlib's own is wider

_WORDS = re.compile(r">([^<]+)</text>")
_TEXT = re.compile(r"(<text)([^>]*font-size[^>]*)>([^<]{4,})<")  # words; numbers need no width
_INLINE = (  # an SVG within the page has the page's theme; programs that run no scripts keep the picture
    '<div id="{name}"><img alt="{alt}" width="{width}" style="max-width:100%" src="data:image/png;base64,{png}"></div>'
    '<script>(async () => {{ const box = [...document.querySelectorAll("#{name}")].find((one) => one.querySelector('
    '"img")); const bytes = Uint8Array.from(atob("{packed}"), (one) => one.charCodeAt()); if (box) box.innerHTML = '
    'await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).text(); '
    "}})()</script>"
)


def settings() -> Any:
    """Return our defaults of matplotlib's settings, without those that the user has changed.

    Names may hold LaTeX's special characters, so that charts never go through LaTeX.
    """
    usual: Any = matplotlib.rcParamsDefault
    settings: Any = matplotlib.rcParams
    own: dict[str, Any] = {**_FONTS, "font.sans-serif": [*_FAMILIES, *usual["font.sans-serif"]]}
    if settings["font.sans-serif"] == usual["font.sans-serif"]:
        own["font.family"] = [*_installed(), "sans-serif"]
    changed = {name for name in own if settings[name] not in (usual[name], own[name])}
    return {"text.usetex": False, **{name: value for name, value in own.items() if name not in changed}}


@cache
def _installed() -> list[str]:
    """Return the first family of `_FAMILIES` that this machine has; a name that it lacks would give warnings."""
    names = {font.name for font in fontManager.ttflist}
    return [family for family in _FAMILIES if family in names][:1]


def text_width(text: str, size: float, bold: bool = False) -> float:
    """Return the width of a text in pixels."""
    if not text:
        return 0.0
    weight = FontProperties(weight="bold" if bold else "normal")
    path = TextPath((0, 0), text.replace("$", r"\$"), size=font_points(size), prop=weight, usetex=False)
    # Control points end where the outlines do, which `get_extents` takes a hundred times as long to find.
    return float(np.max(np.asarray(path.vertices)[:, 0], initial=0.0)) * _SPARE


def checked_width(width: Any) -> float:
    """Return the width of a figure in inches, that of a paper for None; raise ConfigError for an illegal one."""
    if width is not None and not (is_number(width) and 1 <= width <= MAX_WIDTH):
        raise ConfigError(f"width={shown(width)} is not a figure width; use a number of inches from 1 to {MAX_WIDTH:g}")
    return PAGE if width is None else float(width)


def font_points(size: float) -> float:
    """Return a font size in points, in proportion to the user's `font.size`."""
    return size * float(matplotlib.rcParams["font.size"]) / BASE_SIZE


def wrapped(text: str, room: float, size: float, bold: bool = False) -> list[str]:
    """Return a text as lines of at most `room` pixels; a number stays with its noun."""
    words = re.sub(r"(\d) (?=[a-z])", "\\1\u00a0", text).split(" ")
    return [line.replace("\u00a0", " ") for line in joined_lines(words, " ", room, size, bold)] if text else []


def joined_lines(parts: Sequence[str], between: str, room: float, size: float, bold: bool = False) -> list[str]:
    """Return parts as lines of at most `room` pixels, with `between` from one to the next of a line."""
    lines = list[str]()
    for part in parts:
        if lines and text_width(longer := lines[-1] + between + part, size, bold) <= room:
            lines[-1] = longer
        else:
            lines.append(part)
    return lines


class _RoundedLayout(ConstrainedLayoutEngine):
    """Layout by matplotlib's solver, rounded because its last digits differ between runs.

    The name of the upright axis is above the axes, and begins where the title does.
    """

    def execute(self, fig: Figure) -> None:
        """Lay out the figure."""
        for axes in fig.axes:
            name: Any = axes.yaxis.label  # at the axes, or its width would move them; the solver sees its middle alone
            lines = 0.6 * name.get_text().count("\n") * name.get_fontsize() / 72
            shifted = axes.transAxes + ScaledTranslation(0.0, lines, fig.dpi_scale_trans)
            axes.yaxis.set_label_coords(0.0, 1.02, shifted)
        super().execute(fig)
        left = cast(Any, self).get()["w_pad"] / fig.get_figwidth()
        for axes in fig.axes:
            axes.yaxis.set_label_coords(left, 1.02, blended_transform_factory(fig.transFigure, axes.transAxes))
            axes.set_position(np.round(axes.get_position(original=True).bounds, 9).tolist(), which="original")
            axes.set_in_layout(True)  # set_position has removed the axes from the layout


class Chart(Figure):
    """A figure that notebooks show without pyplot, as sharp as the screen; the same chart gives the same bytes."""

    def __init__(self, solved: bool = True, **options: Any):
        if matplotlib.rcParams["figure.dpi"] == matplotlib.rcParamsDefault["figure.dpi"]:
            options["dpi"] = DPI
        self.in_dark: Callable[[], Any] | None = None
        self.alt = ""  # what it shows, for who cannot see it; default: its first words
        super().__init__(layout=_RoundedLayout() if solved else None, **options)

    def draw(self, renderer: Any) -> None:
        """Draw the figure; at few dots per inch, hinted words would be wider than `text_width` says."""
        with matplotlib.rc_context({"text.hinting": "none"} if self.dpi < 2 * NOTEBOOK else {}):
            super().draw(renderer)

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        (png, size), (small, _), drawn = self.to_png(), self.to_png(1), self.to_svg()
        dark = drawn if self.in_dark is None else self.in_dark().to_svg()
        if dark != drawn and _WORDS.findall(dark) == _WORDS.findall(drawn):  # its user has not changed it
            both = f'<div style="{ON_LIGHT}">{drawn}</div><div style="{ON_DARK}">{dark}</div>'
            drawn = reader_style(both) + both
        packed = base64.b64encode(zlib.compress(drawn.encode(), 9)).decode()
        words = self.alt or next((text.get_text() for text in self.texts if text.get_text()), "chart")
        name, width = f"ppsim-{hashlib.sha256(packed.encode()).hexdigest()[:12]}", size["width"]
        page = _INLINE.format(name=name, alt=html.escape(words), width=width, png=small, packed=packed)
        return {"text/html": page, "image/png": png}, {"image/png": size}

    def to_png(self, times: int = 2) -> tuple[str, dict[str, int]]:
        """Return the figure in base64, `times` as large as its width and height on a notebook's page, which follow."""
        width, height = (round(inches * NOTEBOOK) for inches in self.get_size_inches())
        return _in_few_colours(rendered(self, "png", times * NOTEBOOK)), {"width": width, "height": height}

    def to_svg(self) -> str:
        """Return the figure as an SVG of a notebook's size; the rows of a large one are an image."""
        rows: list[Any] = [part for axes in self.axes for part in axes.artists if hasattr(part, "boxes")]
        is_large = sum(len(part.boxes.length) for part in rows) > MAX_VECTOR
        for part in rows:
            part.set_rasterized(is_large)
        drawn = rendered(self, "svg", 2 * NOTEBOOK).decode()
        for part in rows:
            part.set_rasterized(False)
        sized = f'width="100%" style="max-width:{self.get_figwidth() * NOTEBOOK:.0f}px" font-family="{FONT}"'
        drawn = re.sub(r'width="[^"]*pt" height="[^"]*pt"', sized, drawn[drawn.index("<svg") :], count=1)
        return re.sub(
            r"(?<=data:image/png;base64,)[^\"]*", lambda found: _in_few_colours(base64.b64decode(found[0])), drawn
        )


def follows_page(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """Make a drawing function light if it is given no theme, but in notebooks light or dark as the page around it."""

    @wraps(draw)
    def drawn(*what: Any, theme: str | None = None, **options: Any) -> Figure:
        figure = draw(*what, theme="light" if theme is None else theme, **options)
        if theme is None and isinstance(figure, Chart) and options.get("ax") is None:
            figure.in_dark = partial(draw, *what, theme="dark", **options)
        return figure

    return drawn


def _in_few_colours(png: bytes) -> str:
    """Return a PNG in base64, with at most 256 colours, which differ from its own by 3 of 255 at most in charts."""
    image, small = Image.open(io.BytesIO(png)).convert("RGBA"), io.BytesIO()
    pixels = np.asarray(image)
    packed, place, count = np.unique(
        pixels[..., :3].reshape(-1, 3) @ np.array([1 << 16, 1 << 8, 1]), return_inverse=True, return_counts=True
    )
    every, chosen = packed[:, None] >> np.array([16, 8, 0]) & 255, list[int]()
    nearest, apart = np.zeros(len(every), np.uint8), np.full(len(every), 256)
    usual = np.argsort(-count, kind="stable")[:16].tolist()  # paper and the large fills keep their colours
    while len(chosen) < 255 and apart.max() > 0:  # then the colour that is the farthest from those chosen
        chosen.append(usual[len(chosen)] if len(chosen) < len(usual) else int(apart.argmax()))
        away = np.abs(every - every[chosen[-1]]).max(axis=1)
        nearest[away < apart] = len(chosen) - 1
        apart = np.minimum(apart, away)
    codes = np.where(pixels[..., 3] < 128, len(chosen), nearest[place].reshape(pixels.shape[:2])).astype(np.uint8)
    drawn = Image.fromarray(codes, "P")
    drawn.putpalette([*every[chosen].ravel().tolist(), 0, 0, 0])
    drawn.save(small, "png", optimize=True, transparency=len(chosen))
    return base64.b64encode(small.getvalue()).decode()


def rendered(figure: Figure, form: str, dpi: float | None = None) -> bytes:
    """Return the figure as a file of the format "png", "svg" or "pdf", without the date.

    `dpi` is the pixels per inch of a PNG and of images in the other formats. Words of an SVG are as wide in every font.
    """
    buffer = io.BytesIO()
    dateless = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[form]
    with matplotlib.rc_context(settings()):
        figure.savefig(buffer, format=form, dpi=dpi or DPI, metadata=dateless)
        if form == "svg":
            return _TEXT.sub(_with_width, buffer.getvalue().decode()).encode()
    return buffer.getvalue()


def _with_width(text: re.Match[str]) -> str:
    """Return a text of an SVG with its width: a reader's machine may lack the font that the layout was made for."""
    begin, style, words = text.groups()
    size, is_bold = float(re.findall(r"font-size: ([\d.]+)px", style)[0]), "font-weight: 700" in style
    wide = text_width(html.unescape(words), size / font_points(1.0), is_bold) / _SPARE
    return f'{begin} textLength="{wide:.1f}" lengthAdjust="spacingAndGlyphs"{style}>{words}<'


def figure_of(ax: Axes) -> Figure:
    """Return the whole figure that contains `ax`."""
    figure = ax.figure
    while not isinstance(figure, Figure):
        figure = figure.figure
    return figure


def time_axis(ax: Axes, last: float, max_ticks: int) -> None:
    """Show time from 0 to `last` seconds with at most `max_ticks` round ticks, the last with their unit."""
    unit = time_unit(last)
    ax.set_xlim(0.0, last if last > 0 else 1.0)
    ticks = round_ticks(last * unit.factor, max_ticks)
    names = tick_texts(ticks.tolist())
    names[-1] += f" {unit.symbol}"
    ax.set_xticks(ticks / unit.factor, names)
    beyond = (last * unit.factor - ticks[-1]) / (last * unit.factor or 1) * ax.get_window_extent().width
    if beyond / ax.figure.dpi * PIXELS + 9 < text_width(names[-1], 11) / 2:  # else its unit would lie beyond the figure
        ax.get_xticklabels()[-1].set_horizontalalignment("right")


def plain_axes(ax: Axes, theme: Theme, size: float) -> None:
    """Give axes a theme's colours, texts of `size` points and thin lines: a light grid, no spines at top and right."""
    ax.set_facecolor("none")
    ax.grid(color=theme.grid, linewidth=0.6, clip_on=False)
    ax.set_axisbelow(True)
    ax.tick_params(length=2, width=0.5, color=theme.edge, labelcolor=theme.quiet, labelsize=font_points(size))
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set(color=theme.edge, linewidth=0.5)
    for label in (ax.xaxis.label, ax.yaxis.label):
        label.set(color=theme.quiet, fontsize=font_points(size))


def titled_axes(
    width: float | None, theme: Theme, title: str, name: str, height: float | None = None
) -> tuple[Figure, Axes]:
    """Return a figure for a paper and its axes, the upright one with this name; ` · ` in a title begins quiet words."""
    wide = checked_width(width)
    height = height or (max(0.55 * wide, 2.1) if wide < 5 else 0.45 * wide)
    figure = Chart(figsize=(wide, height), facecolor=theme.paper)
    axes, margin, layout = figure.add_subplot(), _MARGIN if wide >= 5 else 0.05, cast(Any, figure.get_layout_engine())
    layout.set(w_pad=margin)
    plain_axes(axes, theme, SMALL)
    for axis in (axes.xaxis, axes.yaxis):
        formatter: Any = FuncFormatter(lambda number, _: number_text(number))
        formatter.format_ticks = tick_texts
        axis.set_major_formatter(formatter)
    style: Any = {"color": theme.text, "fontsize": font_points(SMALL + 1), "fontweight": "bold", "parse_math": False}
    (title, _, note), room = title.partition(" · "), (wide - 2 * margin) * PIXELS - 12
    beside = text_width(title, 2 * SMALL + 2, True) + text_width(note, 2 * SMALL) < room
    lines = "\n".join(wrapped(title, room + 12, 2 * SMALL + 2, True))
    words = figure.suptitle(lines + "\n" * (not beside), x=margin / wide, ha="left", **style)
    if note:
        style = {"color": theme.quiet, "fontsize": font_points(SMALL), "xycoords": words, "va": "bottom"}
        style |= {"xytext": (6 * beside, 0), "textcoords": "offset points", "annotation_clip": False}
        figure.add_artist(Annotation(note, (float(beside), 0), parse_math=False, **style)).set_in_layout(False)
    axes.set_ylabel(name, rotation=0, ha="left", va="bottom")
    return figure, axes


def bare_axes(ax: Axes, theme: Theme, size: float) -> None:
    """Give axes a light grid of time, labels of `size` points at the left, and no other marks."""
    ax.tick_params(axis="y", length=0, pad=2.0, labelcolor=theme.quiet, labelsize=font_points(size))
    ax.tick_params(axis="x", length=0, labelbottom=False)
    ax.grid(axis="x", color=theme.grid, linewidth=0.5)
    ax.set_axisbelow(True)
    ax.set_facecolor("none")
