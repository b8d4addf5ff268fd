"""Writes docs/gallery.md and its pictures: every type of chart, each with the lines that make it."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ppsim
from ppsim.base.files import write_atomically

DOCS = Path(__file__).resolve().parents[1] / "docs"
PICTURES = Path("images") / "gallery"
DPI = 150

INTRODUCTION = """# Gallery

`scripts/make_gallery.py` writes this page and its pictures. Below each picture are the lines that make it; they follow
these:

```python
import ppsim

costs = ppsim.Costs(forward=1.0, input_grad=1.0, weight_grad=1.0, latency=0.1)  # seconds


def run(name, devices, microbatches, **options):
    return ppsim.simulate(ppsim.build(name, devices=devices, microbatches=microbatches, **options), costs)
```

The kinds, idle time and paper differ for readers with and without all cones, on light and dark paper and in print
without colour. Idle time is one flat tone. A line at the lower edge of a box marks a later stage of its device, a line
at the upper edge the direction that enters at the other end. A pixel shows the mean of the actions that it covers.
"""


class Chart(NamedTuple):
    """A picture of the page: file, heading, what it shows, the expression that makes the figure."""

    file: str
    heading: str
    text: str
    code: str


SIZES = (
    ("4", "4 devices", "4, 8", "Every box has its microbatch; in grey, its kind too."),
    ("8", "8 devices", "8, 32", "Boxes show numbers if they fit, and marks from a width of three pixels."),
    ("64", "64 devices", "64, 256", "Narrow actions mix their colours; the fills are the same means at every size."),
)
FOUR = '("1f1b", "zb-h1", "zb-v", "dualpipe")'
CHARTS = (
    *(
        Chart(
            f"comparison-{size}{'' if theme == 'light' else '-' + theme}",
            f"Comparison, {words}, {theme}",
            text,
            f"ppsim.compare([run(name, {sizes}) for name in {FOUR}]).plot(memory=True"
            f"{'' if theme == 'light' else f', theme={theme!r}'})".replace("'", '"'),
        )
        for size, words, sizes, text in SIZES
        for theme in ("light", "dark", "grey")
    ),
    Chart(
        "column",
        "In a column of a paper",
        "3.3 inches wide: numbers of a schedule above its rows, no microbatch numbers, fonts of 5 to 6 points.",
        'ppsim.compare([run(name, 4, 8) for name in ("1f1b", "zb-h1", "zb-v")]).plot(width=3.3)',
    ),
    Chart(
        "critical-path",
        "Critical path, transfers and live activations",
        "The line along the lower edge of its boxes is the chain that sets the makespan. Transfers of "
        "backwards are dashed. Below, the fullest device is an area.",
        'run("1f1b", 4, 8).plot(critical_path=True, transfers=True, memory=True)',
    ),
    Chart(
        "steps",
        "Several steps",
        "A line in a row marks the begin of a step.",
        'run("pipedream", 4, 8, iterations=3).plot()',
    ),
    Chart(
        "slots",
        "Overlapped slots, and memory that does not fit",
        "A fused slot shows F above and B below. The dashed line is the memory of a device; a peak above it is bold. "
        "Thin bars below the rows are gradient reductions.",
        'ppsim.load_config("configs/deepseek-v3-2048xh800.yaml").simulate().plot(memory=True)',
    ),
    Chart(
        "evictions",
        "Evicted activations",
        "An activation goes to another device after its forward, and comes back for its backward.",
        'run("bpipe", 4, 8).plot()',
    ),
    Chart(
        "copies",
        "Activations in host memory",
        "Thin bars below a row are copies to host memory, those above it copies back.",
        """ppsim.simulate(
    ppsim.build("pipe-offload", devices=4, microbatches=8),
    ppsim.Costs(forward=1.0, input_grad=1.0, weight_grad=1.0, latency=0.1, offload_latency=0.4),
).plot()""",
    ),
    Chart(
        "collectives",
        "An output layer cut over devices",
        "Every device runs its part of the output layer, S and T; thin bars are the collectives between them.",
        """ppsim.simulate(
    ppsim.build("vocab-1f1b", devices=4, microbatches=8),
    ppsim.Costs(forward=1.0, backward=2.0, vocabulary_forward=0.4, vocabulary_backward=0.6, vocabulary_reduce=0.3),
).plot()""",
    ),
    Chart(
        "ledger",
        "Bubble ledger",
        "Each bar is the step of a device: its idle time by cause, then the rest.",
        'run("interleaved-1f1b", 4, 8).plot_ledger()',
    ),
    Chart(
        "front",
        "Step time against memory",
        "Each point is a run; the line joins the Pareto front: the runs that no other run beats in both.",
        """ppsim.sweep(
    "configs/llama-3-8b-8xh100.yaml",
    over={
        "schedule.name": ["1f1b", "zb-h1", "zb-v", "v-half", "interleaved-1f1b:2", "interleaved-1f1b:4", "gpipe"],
        "layout.recompute": ["none", "selective", "full"],
    },
    workers=1,
).plot_front()""",
    ),
    Chart(
        "sweep",
        "A measure over a swept number",
        "How the bubble shrinks with more microbatches, which double each time, so that the axis is logarithmic.",
        """draw_lines(
    {name: [(m, run(name, 4, m).bubble_fraction) for m in (4, 8, 16, 32)] for name in ("1f1b", "zb-h1")},
    "schedule.microbatches",
    "bubble fraction",
    "fraction",
)""",
    ),
)  # fmt: skip
PAGES = (
    Chart(
        "viewer",
        "In a browser",
        "One page for any number of actions, to zoom, search and print; several schedules share one axis. A click "
        "shows what an action waited for, back to the start. `ppsim simulate CONFIG --gantt chart.html` and `ppsim "
        "compare CONFIG --gantt chart.html` write it too.",
        'save_html([run("1f1b", 4, 8), run("zb-h1", 4, 8)], "chart.html", shown=("transfers", "memory", "ledger"))',
    ),
    Chart(
        "viewer-overview",
        "Many actions in a browser",
        "131,072 actions in 100 kB. Every pixel is the mean of what it covers; the wheel zooms in to single actions.",
        'run("1f1b", 64, 1024).save("chart.html")',
    ),
    Chart(
        "notebook",
        "In a notebook",
        "A schedule shows itself as a table, a timeline as a chart with its measures.",
        'timeline = run("interleaved-1f1b", 4, 8)\ntimeline.schedule\ntimeline',
    ),
    Chart("plotly", "As a plotly figure", "For pages that embed figures.", 'run("zb-h1", 4, 8).to_plotly()'),
)
ENDING = """## Differences to the design

The pictures follow a mock-up of the same schedules, and differ from it in these points. Amber is darker and idle time
lighter, because the mock-up's pair has a contrast of 1.27 and this one 1.59. Schedules have the names that `ppsim list`
prints. The font is matplotlib's own, so that pictures are equal on all machines; `rcParams` chooses another.

## In the explorer

`ppsim explore` serves the same charts on a page whose sizes and costs can be changed; see [commands](commands.md).

![The explorer](images/explorer.png)

![The explorer with 64 devices](images/explorer-64.png)

It differs from its mock-up in these points. The link has one value for all devices. Another family is named also for a
schedule above its bound. *Copy* also gives all measures as a table. The fused slot and a
family's options have fields of their own.

## In a terminal

```text
{text}```

made by `print(run("1f1b", 4, 4).to_text(width=100))`, or `ppsim simulate ... --text`.
"""


def run(name: str, devices: int, microbatches: int, **options: Any) -> ppsim.Timeline:
    """The timeline of the page's pictures, as its introduction says."""
    costs = ppsim.Costs(forward=1.0, input_grad=1.0, weight_grad=1.0, latency=0.1)
    return ppsim.simulate(ppsim.build(name, devices=devices, microbatches=microbatches, **options), costs)


def page() -> str:
    """The text of docs/gallery.md."""
    sections = (
        f"## {chart.heading}\n\n{chart.text}\n\n![{chart.heading}]({PICTURES.as_posix()}/{chart.file}.png)\n\n"
        f"```python\n{_lines(chart)}```\n"
        for chart in (*CHARTS, *PAGES)
    )
    return "\n".join([INTRODUCTION, *sections, ENDING.format(text=run("1f1b", 4, 4).to_text(width=100))])


def _lines(chart: Chart) -> str:
    places = {"draw_lines": "many_runs", "save_html": "viewer"}
    imports = [f"from ppsim.plots.{module} import {name}\n\n" for name, module in places.items() if name in chart.code]
    return f"{''.join(imports)}{chart.code}\n"


def draw(chart: Chart) -> None:
    """Write the picture that the lines on the page make; those of PAGES are taken by make_browser_pictures.py."""
    from ppsim.plots.chart_files import save_figure
    from ppsim.plots.many_runs import draw_lines

    names: dict[str, Any] = {"ppsim": ppsim, "run": run, "draw_lines": draw_lines}
    code = chart.code.replace('"configs/', f'"{DOCS.parent.as_posix()}/configs/')
    make: Callable[[], Any] = lambda: eval(code, names)  # noqa: E731, S307 - the lines above
    save_figure(make, DOCS / PICTURES / f"{chart.file}.png", dpi=DPI)


def main(with_pictures: bool = True) -> None:
    """Write the page, and the pictures unless told otherwise."""
    write_atomically(DOCS / "gallery.md", page())
    if with_pictures:
        (DOCS / PICTURES).mkdir(parents=True, exist_ok=True)
        for chart in CHARTS:
            draw(chart)


if __name__ == "__main__":
    main(with_pictures="--text-only" not in sys.argv)
