"""The demo: one step of a config, the single change that helps most, and charts of both as PNG and HTML."""

import sys
from itertools import takewhile
from pathlib import Path

from ppsim.commands.advise import page
from ppsim.config import load_config
from ppsim.plots.chart_files import save_gantt
from ppsim.plots.viewer import save_html
from ppsim.studies.advise import advise

PICTURES = ("before-after.png", "step.html")


def main(config: str, folder: str) -> None:
    """Simulate `config` without and with the best change, and leave two pictures in `folder`."""
    picture, viewer = (Path(folder) / name for name in PICTURES)
    picture.parent.mkdir(parents=True, exist_ok=True)
    case, found = load_config(config), advise(config)
    best = found.advice[0]
    runs = [case.simulate(), case.changed(dict(best.changes)).simulate()]
    print(runs[0].summary())
    print("the single change that helps most:")
    print("\n".join(takewhile(bool, page(found))))
    titles = ["now", best.words]
    save_gantt(runs, picture, titles=titles)
    save_html(runs, viewer, titles)
    print(f"\nwrote {picture}: both steps on one time axis")
    print(f"wrote {viewer}: open it in a browser to zoom, to follow the critical path and to see memory")
    print(f"try next: .venv/bin/ppsim advise {config}")


if __name__ == "__main__":
    main(*sys.argv[1:3])
