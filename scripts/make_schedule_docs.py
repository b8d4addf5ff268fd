"""Writes docs/schedules.md and its pictures from the registry: idea, rules, formulas and source of every family."""

import sys
from pathlib import Path
from typing import Any

import ppsim
from ppsim import Timeline
from ppsim.base.files import write_atomically
from ppsim.base.units import percent_text, seconds_text, value_text

DOCS = Path(__file__).resolve().parents[1] / "docs"
PICTURES = Path("images") / "schedules"
DEVICES, MICROBATCHES = 4, 8
COSTS = ppsim.Costs(
    forward=1.0,
    input_grad=1.0,
    weight_grad=1.0,
    vocabulary_forward=0.5,
    vocabulary_backward=0.5,
    vocabulary_reduce=0.25,
)
CASE = DOCS.parent / "configs" / "zero-bubble-28b-32xa100.yaml"
WIDTH = 8.0  # inches
SCALES = (33.0, 49.5, 99.0)  # seconds of the time axis: of 1F1B, and half as much again or thrice that for longer ones

INTRODUCTION = """# Schedules

`scripts/make_schedule_docs.py` writes this page from the registry that `ppsim list` and `ppsim.schedules()` show; a
test keeps it up to date. The [glossary](glossary.md) defines the words.

Notation: p devices, r a device (from 0), m microbatches (both directions counted), v stages per device, g microbatch
group size. F, B = I + W are the seconds of one microbatch through one device share of the model; f, b, i, w are those
of one stage if v > 1 (F = v f). c is the latency of a transfer under the `async` transport. Activations are in
microbatches through one device share, and W frees them all. A formula that begins with "=" is exact, and a test checks
it; "~" is an approximation.

Every picture and every line "in the picture" is a simulation of {devices} devices and {microbatches} microbatches with
F = I = W = 1 s and transfers that take no time. If the output layer is split over devices, S = T = 0.5 s and a
reduction of 0.25 s are added. The parts of a fused slot (OVERLAP_F_B) run one after the other, because the pictures
compare orders and not kernels. All pictures have the same time scale; only those of schedules that take longer than
1F1B show 1.5 or 3 times as many seconds. Numbers in the boxes are microbatches; 3.1 is slice 1 of microbatch 3.

Every schedule can be written to a CSV file and read again. A file holds the lists alone, without versions of weights
(`pipedream`, `pipedream-2bw`) and evictions (`bpipe`). The page on
[exchanging schedules with PyTorch](pytorch.md) has more.
"""

DRAIN = """## Without a drain

`pipedream` and `pipedream-2bw` are asynchronous: their steps follow each other without a drain. They have no bubble in
the steady part, but compute gradients with weights that are one or more steps old. `pipedream` keeps one version of the
weights per microbatch in progress, `pipedream-2bw` two in total. The table compares them with synchronous schedules on
the zero-bubble paper's model of 28 billion parameters and 32 A100 (`configs/zero-bubble-28b-32xa100.yaml`, without the
optimizer's step). Rankings mark asynchronous schedules and list them separately.
"""


def main(with_pictures: bool = True) -> None:
    """Write the page, and the pictures unless told otherwise."""
    timelines = {name: simulated(family) for name, family in ppsim.schedules().items()}
    write_atomically(DOCS / "schedules.md", page(timelines))
    if with_pictures:
        (DOCS / PICTURES).mkdir(parents=True, exist_ok=True)
        for name, timeline in timelines.items():
            draw(timeline, DOCS / PICTURES / f"{name}.svg")


def simulated(family: ppsim.Family) -> Timeline:
    """The family at the size of the pictures."""
    options: dict[str, Any] = {"costs": COSTS} if family.searches else {}
    return ppsim.simulate(family.build(DEVICES, MICROBATCHES, **options), COSTS)


def page(timelines: dict[str, Timeline]) -> str:
    """The text of docs/schedules.md."""
    introduction = INTRODUCTION.format(devices=DEVICES, microbatches=MICROBATCHES)
    families = ppsim.schedules()
    table = ["| name | schedule | in the picture: step | bubble fraction | peak activations |", "|---|---|---|---|---|"]
    table += [
        f"| [`{name}`](#{name}) | {families[name].title} | {_measures(run, ' | ')} |" for name, run in timelines.items()
    ]
    sections = [section(families[name], run) for name, run in timelines.items()]
    return "\n".join([introduction, *table, "", *without_a_drain(), "", "\n".join(sections)])


def without_a_drain() -> list[str]:
    """Schedules without a drain beside those that wait, on the zero-bubble papers' 28B model."""
    case = ppsim.load_config(CASE).changed({"optimizer": None})
    rows = []
    for name in ("1f1b", "zb-h1", "zb-h2", "pipedream", "pipedream-2bw"):
        run = case.changed({"schedule": {"name": name, "devices": 32, "microbatches": 256}}).simulate()
        kind = "asynchronous" if ppsim.schedules()[name].asynchronous else "synchronous"
        step, peak = seconds_text(run.iteration_time), value_text(float(run.peak_memory.max()), "bytes")
        rows.append(f"| `{name}` | {kind} | {step} | {run.tokens_per_second:,.0f} | {peak} |")
    return [DRAIN, "| name | steps | step | tokens per second | peak memory |", "|---|---|---|---|---|", *rows]


def section(family: ppsim.Family, timeline: Timeline) -> str:
    """One family: picture, idea, rules, formulas, source."""
    stages = f"{family.stages_per_device}" if family.fixed_stages else f"{family.stages_per_device} by default"
    facts = {
        "sizes": family.constraints,
        "stages per device": stages,
        "options": "; ".join(f"`{name}`" for name in family.options) or "none",
        "makespan": family.makespan,
        "peak activations": family.peak_activations,
        "in the picture": _measures(timeline, ", ", words=True),
        "source": family.source,
    }
    rows = "\n".join(f"| {label} | {text.replace('|', chr(92) + '|')} |" for label, text in facts.items())
    return (
        f"## {family.name}\n\n**{family.title}.** {family.idea}\n\n"
        f"![{family.title} on {DEVICES} devices]({PICTURES.as_posix()}/{family.name}.svg)\n\n| | |\n|---|---|\n{rows}\n"
    )


def _measures(timeline: Timeline, separator: str, words: bool = False) -> str:
    step = seconds_text(timeline.iteration_time)
    bubble = percent_text(timeline.steady_bubble_fraction)
    peak = f"{timeline.peak_activations.max():.4g}"
    steady = " (steady part)" if timeline.schedule.iterations > 1 else ""
    parts = (f"step {step}{steady}", f"bubble fraction {bubble}", f"peak activations {peak}")
    return separator.join(parts if words else (step + steady, bubble, peak))


def draw(timeline: Timeline, path: Path) -> None:
    """The picture of one family."""
    timeline.save(path, width=WIDTH, until=next(scale for scale in SCALES if timeline.makespan <= scale))


if __name__ == "__main__":
    main(with_pictures="--text-only" not in sys.argv)
