"""The demo: one config under two schedules; both summaries side by side, and their Gantt charts as PNG and HTML."""

import sys
from pathlib import Path

from ppsim.commands.advise import page
from ppsim.config import load_config
from ppsim.plots.summary import side_by_side
from ppsim.studies.advise import advise

SCHEDULES = ("1f1b", "interleaved-1f1b")


def main(config: str, folder: str) -> None:
    """Simulate `config` under each of SCHEDULES and leave the charts in `folder`."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    print(f"One step of {config} under {' and '.join(SCHEDULES)}: how long it takes, how much of it devices are idle,")
    print("and what they hold in memory. Then charts of both, and the single changes that would help most.\n")
    timelines = [load_config(config, overrides={"schedule.name": name}).simulate() for name in SCHEDULES]
    print(side_by_side(timelines))
    for timeline in timelines:
        chart = Path(folder) / timeline.schedule.name
        timeline.save(chart.with_suffix(".png"), memory=True)
        timeline.save(chart.with_suffix(".html"))
        print(f"wrote {chart}.png, and {chart}.html to open in a browser")
    print("\n" + "\n".join(page(advise(config))))
    print(f"\nnext, why each device is idle:\n  .venv/bin/ppsim simulate {config} --ledger")


if __name__ == "__main__":
    main(*sys.argv[1:3])
