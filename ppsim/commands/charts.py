"""Charts as files. matplotlib takes half a second to load, so that its modules are imported where a chart is drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ppsim.commands.reporting import say
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


def save_comparison(
    timelines: Sequence[Timeline], path: Path, titles: Sequence[str] | None = None, group: int | None = None
) -> None:
    """Several timelines on one time axis, in the format that the ending of `path` says; says what it wrote.

    `group` as in `ppsim.plots.gantt.draw_comparison`.
    """
    if path.suffix.lower() == ".html":
        save_html(timelines, path, titles)
    else:
        from ppsim.plots.gantt import draw_comparison, save_figure

        save_figure(lambda: draw_comparison(timelines, titles=titles, group=group), path)
    say(f"wrote {path}")


def save_figure(make: Callable[[], Any], path: Path) -> None:
    """The matplotlib figure that `make()` returns; says what it wrote."""
    from ppsim.plots.gantt import save_figure as save

    save(make, path)
    say(f"wrote {path}")


def save_ledger(timeline: Timeline, path: Path) -> None:
    """Idle time by device and cause."""
    from ppsim.plots.ledger_chart import save_ledger as save

    save(timeline, path)
