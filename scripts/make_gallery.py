"""Writes docs/gallery.md and its pictures: every type of chart, at three sizes in three themes, with its lines."""

import functools
import io
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import ppsim
from ppsim.base.files import write_atomically
from ppsim.plots.palette import channels, theme_of

DOCS = Path(__file__).resolve().parents[1] / "docs"
PICTURES = Path("images") / "gallery"
PIXELS = 1800  # width of a picture, twice that of a page: sharp on dense screens
SIZES = ((4, 8), (8, 32), (64, 256))  # devices, microbatches
SHOWN = (4, 64)  # devices of the pictures on the page; the others are links
THEMES = ("light", "dark", "grey")
SECONDS: dict[str, Any] = {"forward": 1.0, "input_grad": 1.0, "weight_grad": 1.0, "latency": 0.1}

INTRODUCTION = """# Gallery

Each chart of ppsim with 4, 8 and 64 devices, in light, dark and grey. Run these lines first; the lines of each section
then make its pictures:

```python
import ppsim

seconds = {"forward": 1.0, "input_grad": 1.0, "weight_grad": 1.0, "latency": 0.1}
costs = ppsim.Costs(**seconds)


def run(name, devices, microbatches, costs=costs, **options):
    return ppsim.simulate(ppsim.build(name, devices=devices, microbatches=microbatches, **options), costs)


p, m, theme = 4, 8, "light"  # then 8, 32 and 64, 256; "dark" and "grey"
```

Colour-blind readers can distinguish kinds and idle time, on light and dark paper and in print without colour. Idle time
is one flat tone. A line at the lower edge of a box marks a later stage of its device; a line at the upper edge marks
the direction that enters at the other end. A pixel shows the mean of the actions that it covers.
"""


class Chart(NamedTuple):
    """A section of the page: file, heading, text, the lines that make the figure, and differences to the mock-up."""

    file: str
    heading: str
    text: str
    code: str
    differs: str


FAMILIES = '("1f1b", "zb-h1", "zb-v", "dualpipe")'
CHARTS = (
    Chart(
        "comparison",
        "Comparison with memory",
        "Boxes of a kind have the number of their microbatch if it fits; in grey, their kind too. Narrow actions mix "
        "their colours; their areas have names.",
        f"ppsim.compare([run(name, p, m) for name in {FAMILIES}]).plot(memory=True, theme=theme)",
        "the mock-up names the schedules 1F1B and ZB-H1, the chart as `ppsim list` does; its amber is lighter and its "
        "idle time darker, a pair with a contrast of 1.27, where the chart has 1.78; it has a limit of memory, which "
        "these costs do not have; its costs are below its title, where the chart has "
        "them beside it; its axis goes up to 35 s, where the chart ends with the longest step; "
        "W and I have other tones; the chart's legend also names the line of memory, "
        "whose unit is beside the top tick of each strip; letters of grey "
        "boxes are smaller than in the mock-up, where they touch; B is darker than W in grey; areas of narrow actions "
        "have names",
    ),
    Chart(
        "column",
        "In a column of a paper",
        "3.3 inches wide: numbers of a schedule above its rows, no microbatch numbers, texts of 5 to 6 points.",
        'ppsim.compare([run(name, p, m) for name in ("1f1b", "zb-h1", "zb-v")]).plot(width=3.3, theme=theme)',
        "the mock-up shows memory and a fourth schedule, which an option and a name add; it has no title, its unit is "
        "at the last tick of an axis up to 35 s, the end of a step has a triangle, and its legend begins left of "
        "the rows",
    ),
    Chart(
        "path",
        "Critical path and live activations",
        "The line along the lower edge of its boxes is the chain that sets the makespan; it is one step where it "
        "turns back and forth too often. Below, the fullest device is an area.",
        'run("zb-v", p, m).plot(critical_path=True, memory=True, theme=theme)',
        "the mock-up of the explorer has the same schedule and line, in rows of 60 pixels and without the memory of "
        "another device; here the line lies half in the gap between rows, is thinner in rows under 22 pixels, and is "
        "one step where it turns back after less than 8 pixels",
    ),
    Chart(
        "transfers",
        "Transfers",
        "A line from the sender to the receiver, next to both if other devices lie between; those of backwards are "
        "dashed.",
        'run("interleaved-1f1b", p, m).plot(transfers=True, theme=theme)',
        "no mock-up has transfers; those from the last device back to the first are lines next to both alone; rows of "
        "less than 12 pixels have no lines, as the legend says",
    ),
    Chart(
        "steps",
        "Several steps",
        "A line in a row marks the beginning of a step.",
        'run("pipedream", p, m, iterations=3).plot(theme=theme)',
        "no mock-up has several steps; the line has the colour of text and a casing of paper, so that it shows on "
        "every fill; such a chart has no lower bound",
    ),
    Chart(
        "slots",
        "Overlapped slots",
        "A fused slot shows its first part above and its second below.",
        'run("dualpipe", p, m, ppsim.Costs(forward=1.0, backward=2.0, overlap=2.6)).plot(theme=theme)',
        "no mock-up has fused slots; they have two halves as the rules say, in rows 1.3 times as high, so that both "
        "numbers fit, which are smaller than those of other boxes; the colours of both halves mix in rows of less than "
        "12 pixels",
    ),
    Chart(
        "recompute",
        "Recompute, gradient reductions and the optimizer step",
        "R repeats a forward before its backward. Thin bars below the rows are gradient reductions; the framed boxes "
        "at the end are optimizer steps.",
        """ppsim.simulate(
    ppsim.build("1f1b", devices=p, microbatches=m, recompute="all"),
    ppsim.Costs(forward=1.0, backward=2.0, reduce_grad=3.0, optimizer_step=0.8),
    optimizer="sync",
).plot(theme=theme)""",
        "no mock-up has lanes; a row with lanes is 1.3 times as high, and a lane takes 14 % of it, in "
        "the space between rows; rows of less than 12 pixels have no lanes, as the legend says",
    ),
    Chart(
        "evictions",
        "Evicted activations",
        "An activation goes to another device after its forward, and comes back for its backward. Thin bars below a "
        "row are evictions, those above it returns.",
        'run("bpipe", p, m).plot(theme=theme)',
        "no mock-up has evictions; they have the lanes of copies, because arrows to other devices crossed the actions "
        "of those between",
    ),
    Chart(
        "copies",
        "Activations in host memory",
        "Thin bars below a row are copies to host memory, those above it copies back.",
        """run(
    "pipe-offload",
    p,
    m,
    ppsim.Costs(forward=1.0, input_grad=1.0, weight_grad=1.0, latency=0.1, offload_latency=0.4),
).plot(theme=theme)""",
        "no mock-up has lanes; copies back are above the boxes, so that both ways differ without colour",
    ),
    Chart(
        "collectives",
        "An output layer cut over devices",
        "Every device runs its part of the output layer, S and T; thin bars are the collectives between them.",
        """run(
    "vocab-1f1b",
    p,
    m,
    ppsim.Costs(forward=1.0, backward=2.0, vocabulary_forward=0.4, vocabulary_backward=0.6, vocabulary_reduce=0.3),
).plot(theme=theme)""",
        "no mock-up has S, T or collectives; the palette's rules hold for them too",
    ),
    Chart(
        "ledger",
        "Bubble ledger",
        "Each bar is the idle time of a device by cause.",
        'run("interleaved-1f1b", p, m).plot_ledger(theme=theme)',
        "the mock-up has these bars beside the rows of the explorer, without an axis; dependency, recompute and "
        "optimizer, and on dark all causes, have other colours: they differ from mixed actions and keep their hue",
    ),
    Chart(
        "front",
        "Step time against memory",
        "Each point is a run; the steps join those that no other beats, the Pareto front; ties within 0.5 % are one, "
        "but the best run is always there. A schedule has a colour and a marker, with several runs also a line; "
        "schedules of one memory are side by side.",
        """ppsim.sweep(
    {"schedule": {"name": "1f1b", "devices": p, "microbatches": m}, "costs": seconds},
    over={"schedule.name": ["1f1b", "zb-h1", "zb-v", "v-half", "v-min", "interleaved-1f1b:2", "gpipe"]},
    workers=1,
).plot_front(theme=theme)""",
        "no mock-up has charts of many runs; runs over the limit of memory are hollow; at most five runs of the front "
        "are named, and runs off the front "
        "if there are at most 12; crowded axes are logarithmic",
    ),
    Chart(
        "sweep",
        "A measure over a swept number",
        "The bubble over the number of microbatches; numbers that double each time have a logarithmic axis.",
        """ppsim.sweep(
    {"schedule": {"name": "1f1b", "devices": p, "microbatches": p}, "costs": seconds},
    over={"schedule.name": ["1f1b", "zb-h1", "zb-v"], "schedule.microbatches": [p, 2 * p, 4 * p, 8 * p]},
    workers=1,
).plot("bubble_fraction", theme=theme)""",
        "no mock-up has charts of many runs; the lines and their names have colours that no kind has, and "
        "a marker each; lines that coincide are one with all their names",
    ),
)  # fmt: skip
PAGES = (
    Chart(
        "viewer",
        "In a browser",
        "One page for any number of actions, to zoom, search and print; several schedules share one axis. A click "
        "follows what an action waited for, back to the start. `ppsim simulate CONFIG --gantt chart.html` and `ppsim "
        "compare CONFIG --gantt chart.html` write it too. Pages are light or dark, as the reader's system, light on "
        "paper, and grey after the key g.",
        'ppsim.compare([run("1f1b", p, m), run("zb-h1", p, m)]).save("chart.html", theme=theme)',
        "the mock-up of the explorer has the same charts; the viewer has its tools below the title, a table of "
        "devices, and its legend directly below the axis, which also names memory and what a chosen action waited for",
    ),
    Chart(
        "explorer",
        "In the explorer",
        "`ppsim explore` serves the same charts on a page whose sizes and costs can be changed; see "
        "[commands](commands.md).",
        "",
        "another family is named also for a schedule above its bound; *Copy* also gives all measures as a table; the "
        "fused slot and a family's options have fields of their own; the legend is directly below the axis, on phones "
        "too, names memory and may take a second line; the hint is below it, ends of steps are explained beside the "
        "axis; memory takes the space that rows leave; *Setup* has a button for CSV files",
    ),
)
OTHERS = (
    Chart(
        "notebook",
        "In a notebook",
        "A schedule shows itself as a table, a timeline as the page above where scripts run. Without a call they "
        "are light or dark as the notebook; `to_html` gives a theme.",
        'timeline = run("interleaved-1f1b", p, m)\ntimeline.schedule.to_html(theme)\ntimeline.to_html(theme)',
        "no mock-up has a notebook; the table has the colours of the charts, and lines at the edges of cells as their "
        "marks",
    ),
    Chart(
        "still",
        "In a notebook without scripts",
        "Without scripts, as on a site that only shows notebooks, a timeline is a still picture.",
        'run("dualpipe", p, m).to_html(theme)',
        "no mock-up has it; it is the chart of `plot`",
    ),
    Chart(
        "plotly",
        "As a plotly figure",
        "For pages that embed figures.",
        'run("zb-h1", p, m).to_plotly(theme=theme)',
        "no mock-up has it; plotly sets numbers and legend, so that numbers have one size; a fused slot has the "
        "legend's colours of its parts and no entry of its own",
    ),
)
ENDING = """## In a terminal

Time is to scale. Where actions are narrow, a column has the letter of the kind that fills it, or a shade, and
areas have names.

```text
{text}```

made by `print(run("1f1b", 4, 4).to_text(width=100))`, or `ppsim simulate ... --text`.
"""


def run(name: str, devices: int, microbatches: int, costs: ppsim.Costs | None = None, **options: Any) -> ppsim.Timeline:
    """Return a timeline of the page's pictures, as its introduction says."""
    if costs is None:
        return usual_run(name, devices, microbatches, **options)
    return ppsim.simulate(ppsim.build(name, devices=devices, microbatches=microbatches, **options), costs)


@functools.cache
def usual_run(name: str, devices: int, microbatches: int, **options: Any) -> ppsim.Timeline:
    """Return a timeline with the costs of the page's introduction."""
    return run(name, devices, microbatches, ppsim.Costs(**SECONDS), **options)


DIFFERENCES = """## Differences to the mock-ups

Each picture was compared by eye with the mock-up of the design, which is not part of the repository.
"""


def files(chart: Chart) -> list[list[str]]:
    """Return the names of a chart's pictures, a row per size."""
    return [[f"{chart.file}-{devices}-{theme}" for theme in THEMES] for devices, _ in SIZES]


def page() -> str:
    """Return the text of docs/gallery.md."""
    charts = (*CHARTS, *PAGES, *OTHERS)
    differences = [f"- **{chart.heading}**: {chart.differs}." for chart in charts]
    ending = ENDING.format(text=run("1f1b", 4, 4).to_text(width=100))
    return "\n".join([INTRODUCTION, *map(_section, charts), ending, DIFFERENCES, *differences, ""])


def _section(chart: Chart) -> str:
    lines = [f"## {chart.heading}", "", chart.text, ""]
    lines += ["```python", chart.code, "```", ""] if chart.code else []
    links = []
    for (devices, _), names in zip(SIZES, files(chart), strict=True):
        others = list(zip(THEMES, names, strict=True))
        if devices in SHOWN:
            lines += [f"![{chart.heading}: {devices} devices, {THEMES[0]}]({PICTURES.as_posix()}/{names[0]}.png)", ""]
            others = others[1:]
        linked = ", ".join(f"[{theme}]({PICTURES.as_posix()}/{name}.png)" for theme, name in others)
        links.append(f"{devices} devices: {linked}")
    return "\n".join([*lines, f"Also {'; '.join(links)}.", ""])


def colours_of(theme: str) -> list[str]:
    """Return the colours of a theme that the legends explain, and its paper and text."""
    own = theme_of(theme)
    return [*own.kinds.values(), *own.lanes.values(), *own.causes.values(), own.idle, own.paper, own.text]


def save_picture(name: str, content: bytes) -> None:
    """Write a PNG of the page, with 255 colours, which makes it small; those of its theme are among them."""
    from PIL import Image

    picture = Image.open(io.BytesIO(content)).convert("RGB")
    fixed = [channels(colour) for colour in colours_of(name.rpartition("-")[2])]
    others: Any = picture.quantize(255 - len(fixed), kmeans=1, dither=Image.Dither.NONE).getpalette()
    palette = np.concatenate([fixed, np.reshape(others, (-1, 3))])
    own, place = np.unique(np.asarray(picture).reshape(-1, 3), axis=0, return_inverse=True)
    nearest = [int(np.argmin(np.abs(palette - colour).sum(axis=1))) for colour in own]
    reduced, written = Image.new("P", picture.size), io.BytesIO()
    reduced.putdata(np.asarray(nearest)[place.ravel()].tolist())
    reduced.putpalette(palette.ravel().tolist())
    reduced.save(written, "PNG", optimize=True)
    write_atomically(DOCS / PICTURES / f"{name}.png", written.getvalue())


def draw(chart: Chart) -> None:
    """Write the pictures that the lines on the page make; those of PAGES are taken by make_browser_pictures.py."""
    from ppsim.plots.figures import rendered

    for (p, m), names in zip(SIZES, files(chart), strict=True):
        for theme, name in zip(THEMES, names, strict=True):
            names_of_page = {"ppsim": ppsim, "run": run, "seconds": SECONDS, "p": p, "m": m, "theme": theme}
            figure = eval(chart.code, names_of_page)  # noqa: S307 - above
            save_picture(name, rendered(figure, "png", PIXELS / max(figure.get_figwidth(), 5.0)))


def main(with_pictures: bool = True) -> None:
    """Write the page, and the pictures unless told otherwise."""
    write_atomically(DOCS / "gallery.md", page())
    if with_pictures:
        (DOCS / PICTURES).mkdir(parents=True, exist_ok=True)
        for chart in CHARTS:
            draw(chart)


if __name__ == "__main__":
    main(with_pictures="--text-only" not in sys.argv)
