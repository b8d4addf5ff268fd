"""Charts as files. matplotlib takes half a second to load, so that its modules are imported where a chart is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ppsim.commands.reporting import say
from ppsim.config import Config
from ppsim.plots.boxes import headline, sizes_text
from ppsim.plots.viewer import save_html
from ppsim.run.timelines import Timeline

STATIC = (".png", ".svg", ".pdf")
GANTT = (*STATIC, ".html")


def save_gantt(timeline: Timeline, path: Path, **drawing: Any) -> None:
    """A chart in the format that the ending of `path` says; `drawing` as in `ppsim.plots.gantt.draw`."""
    if path.suffix.lower() == ".html":
        shown = {"transfers": drawing["transfers"], "critical": drawing["critical_path"], "memory": True}
        titles = None if drawing["title"] is None else [drawing["title"]]
        save_html(timeline, path, titles, shown=[name for name, is_on in shown.items() if is_on])
    else:
        from ppsim.plots.gantt import save

        save(timeline, path, **drawing)


def save_comparison(timelines: Sequence[Timeline], path: Path, titles: Sequence[str] | None = None) -> None:
    """Several timelines on one time axis, in the format that the ending of `path` says; says what it wrote."""
    if path.suffix.lower() == ".html":
        save_html(timelines, path, titles)
    else:
        from ppsim.plots.gantt import draw_comparison, save_figure

        save_figure(lambda: draw_comparison(timelines, titles=titles), path)
    say(f"wrote {path}")


def save_figure(make: Callable[[], Any], path: Path) -> None:
    """The matplotlib figure that `make()` returns; says what it wrote."""
    from ppsim.plots.gantt import save_figure as save

    save(make, path)
    say(f"wrote {path}")


def save_ledger(timeline: Timeline, path: Path, name: str | None = None) -> None:
    """Idle time by device and cause; `name` is the config's."""
    from ppsim.plots.ledger_chart import save_ledger as save

    save(timeline, path, name=name)


def title_of(config: Config, timeline: Timeline, path: Path) -> str | None:
    """The title of a chart of a config that has a name of its own: the name, and what the chart says by itself."""
    if not (name := own_name(config)):
        return None
    is_page = path.suffix.lower() == ".html"  # which shows the measures itself
    return f"{name}: {sizes_text(timeline.schedule) if is_page else headline(timeline)}"


def own_name(config: Config) -> str | None:
    """The config's `name`, where it says more than its schedule's."""
    name = config.data.get("name")
    return None if name == config.schedule.get("name") else name
