"""Writes docs/gallery.md and its pictures: every type of chart, each with the lines that make it."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ppsim
from ppsim.base.files import write_atomically

DOCS = Path(__file__).resolve().parents[1] / "docs"
PICTURES = Path("images") / "gallery"
DPI = 110

INTRODUCTION = """# Gallery

This page and its pictures are written by `scripts/make_gallery.py`; below each picture stand the lines that make it,
after these:

```python
import ppsim

costs = ppsim.Costs(forward=1.0, input_grad=1.0, weight_grad=1.0, latency=0.1)  # seconds


def run(name, devices, microbatches, **options):
    return ppsim.simulate(ppsim.build(name, devices=devices, microbatches=microbatches, **options), costs)
```

The colours of the kinds differ in lightness as well as in hue, so that they stay apart in print without colour and for
colour-blind readers. Idle time is hatched, and each row ends with its idle part.
"""


class Chart(NamedTuple):
    """A picture of the page: file, heading, what it shows, the expression that makes the figure."""

    file: str
    heading: str
    text: str
    code: str


CHARTS = (
    Chart("gantt", "Gantt chart", "A row a device, a box an action with its microbatch.", 'run("zb-h1", 4, 8).plot()'),
    Chart(
        "critical-path",
        "Critical path, transfers and live activations",
        "The black line is the chain that sets the makespan, through actions and transfers. Below, the fullest device "
        "is in colour and named.",
        'run("1f1b", 4, 8).plot(critical_path=True, transfers=True, memory=True)',
    ),
    Chart(
        "stages",
        "Several stages a device",
        "A later stage of the same device is paler. Where boxes are narrow the numbers stand upright.",
        'run("zb-v", 8, 32).plot()',
    ),
    Chart(
        "many",
        "Many actions",
        "Boxes narrower than their numbers: where two of them do not meet, every k-th microbatch has its number.",
        'run("interleaved-1f1b", 16, 64).plot()',
    ),
    Chart(
        "slots",
        "Overlapped slots, and memory that does not fit",
        "A fused slot shows F above and B below. The dashed line is what a device has; red is what does not fit. Thin "
        "bars below the rows are gradient reductions.",
        'ppsim.load_config("configs/deepseek-v3-2048xh800.yaml").simulate().plot(memory=True)',
    ),
    Chart(
        "overview",
        "Overview",
        "Actions narrower than a pixel: one scale from idle to busy, with fill and drain enlarged beside the steady "
        "part.",
        'run("1f1b", 64, 1024).plot()',
    ),
    Chart(
        "comparison",
        "Comparison",
        "One time axis, the end of each and its difference to the first. What takes much longer is cut.",
        'ppsim.compare([run(name, 4, 8) for name in ("1f1b", "zb-h1", "dualpipe", "naive")]).plot()',
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
        "Each point is a run; the line joins those that no other beats in both, the Pareto front.",
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
        "How the bubble shrinks with more microbatches.",
        """draw_lines(
    {name: [(m, run(name, 4, m).bubble_fraction) for m in (4, 8, 16, 32)] for name in ("1f1b", "zb-h1")},
    "microbatches",
    "bubble fraction",
    "fraction",
)""",
    ),
)  # fmt: skip
PAGES = (
    Chart(
        "viewer",
        "In a browser",
        "One page for any number of actions, to zoom, search and print; several schedules stand on one axis. A click "
        "follows what an action waited for, back to the start. `ppsim simulate CONFIG --gantt chart.html` and `ppsim "
        "compare CONFIG --gantt chart.html` write it too.",
        'save_html([run("1f1b", 4, 8), run("zb-h1", 4, 8)], "chart.html", shown=("transfers", "memory", "ledger"))',
    ),
    Chart(
        "viewer-overview",
        "Many actions in a browser",
        "131,072 actions in 70 kB. Fill and drain are enlarged, and dashed lines mark where the scale of time changes. "
        "Rows of the steady part are shaded by how busy they are. The key `e` shows one scale of time.",
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
ENDING = """![The explorer](images/explorer.png)

`ppsim explore` serves the same charts with sliders and all measures; see [commands](commands.md).

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
