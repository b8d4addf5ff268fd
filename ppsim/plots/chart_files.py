"""Gantt charts as files: PNG, SVG, PDF or a page for browsers, by the suffix of the path."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from ppsim.base.errors import ConfigError, shown
from ppsim.base.files import write_atomically
from ppsim.base.rules import is_number
from ppsim.plots.viewer import SHOWN, save_html
from ppsim.timeline import TimelineColumns

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURES = (".png", ".svg", ".pdf")
SUFFIXES = (*PICTURES, ".html")
MAX_DPI = 2400
_USUAL = {"labels": "auto", "dpi": 300}  # values of options that are not None if left out


class ChartOptions(TypedDict, total=False):
    """The options of every Gantt chart in a file, as `Timeline.plot` describes them."""

    width: float | None
    memory: bool | str
    transfers: bool
    title: str | None
    labels: bool | str
    theme: str | None
    dpi: float


class TimelineOptions(ChartOptions, total=False):
    """The options of `Timeline.save`."""

    critical_path: bool | Sequence[int] | np.ndarray | None
    until: float | None


class ComparisonOptions(ChartOptions, total=False):
    """The options of `Comparison.save`."""

    titles: Sequence[str] | None
    critical_path: bool
    lead: str


def check_options(options: Collection[str], legal: Collection[str]) -> None:
    """Raise ConfigError for a name that is not one of the `legal` options of `save`."""
    for name in options:
        if name not in legal:
            raise ConfigError(f"save({name}=...): there is no such option; the options are: path, {', '.join(legal)}")


def save_gantt(
    timelines: TimelineColumns | Sequence[TimelineColumns], path: str | PathLike[str], *, dpi: float = 300,
    theme: str | None = None, **options: Any,
) -> None:  # fmt: skip
    """Draw one timeline or several with the options of `ppsim.plots.gantt.draw`.

    The suffix of `path` is .png, .svg or .pdf; .html gives a page that zooms, shows what each action waited for, and
    always shows memory and idle time by cause. `dpi` is the pixels per inch of a PNG; `theme` is light for pictures,
    and the system's for pages. The file is written atomically. Raises ConfigError for another suffix, a file that
    cannot be written, or an option that the format does not have.
    """
    if is_page(path):
        _save_page(timelines, path, options | {"dpi": dpi, "theme": theme})
        return
    from ppsim.plots.gantt import draw  # matplotlib takes half a second to load

    save_figure(lambda: draw(timelines, theme=theme or "light", **options), path, dpi=dpi)


def save_figure(make: Callable[[], Figure], path: str | PathLike[str], *, dpi: float = 300) -> None:
    """Write the figure that `make()` returns, atomically; check the suffix of `path` before the call."""
    suffix = _checked_suffix(path, PICTURES)
    if not (is_number(dpi) and 1 <= dpi <= MAX_DPI):
        raise ConfigError(f"dpi={shown(dpi)} must be the pixels per inch of a PNG, from 1 to {MAX_DPI}, such as 300")
    from ppsim.plots.figures import rendered

    write_atomically(path, rendered(make(), suffix[1:], dpi if suffix == ".png" else None))


def is_page(path: str | PathLike[str]) -> bool:
    """Return true if `path` names an HTML page, false for a picture; raise ConfigError otherwise."""
    return _checked_suffix(path, SUFFIXES) == ".html"


def _checked_suffix(path: str | PathLike[str], legal: Sequence[str]) -> str:
    """Return the suffix of a path in lower case; raise ConfigError if it is not a legal one."""
    suffix = Path(path).suffix.lower() if isinstance(path, str | PathLike) else ""
    if suffix not in legal:
        place = path if suffix else shown(path)
        raise ConfigError(f"{place}: {suffix or 'no ending'} is not a chart format; use one of: {', '.join(legal)}")
    return suffix


def _save_page(timelines: Any, path: str | PathLike[str], options: dict[str, Any]) -> None:
    """Write a page; raise ConfigError for an option that a page does not have."""
    for name in ("width", "labels", "until", "group", "dpi"):
        if options.pop(name, _USUAL.get(name)) != _USUAL.get(name):
            pictures = ", ".join(PICTURES)
            raise ConfigError(f"{name}=... is for {pictures}; {shown(str(path))} is a page: leave {name} out")
    on = [name for name in ("transfers", "critical_path", "memory") if options.pop(name, None) not in (None, False)]
    title, titles = options.pop("title", None), options.pop("titles", None)
    if title is not None and isinstance(timelines, TimelineColumns):
        titles = [title]
    options.pop("note", None)  # of what is left out
    parts = dict.fromkeys([*(name.removesuffix("_path") for name in on), *options.pop("shown", SHOWN)])
    save_html(timelines, path, titles, shown=[*parts], title=title or "", **options)
