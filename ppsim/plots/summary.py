"""The measures of a timeline as readable text: each with its unit and definition, each cost with its origin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from ppsim.analysis.bounds import lower_bound
from ppsim.analysis.bubbles import device_idle, makespan
from ppsim.analysis.communication import exposed_communication
from ppsim.analysis.measures import MEASURES, measured
from ppsim.analysis.occupancy import peak_activations, peak_memory
from ppsim.analysis.steady import iteration_time
from ppsim.base.errors import ConfigError
from ppsim.base.tables import aligned
from ppsim.base.units import format_quantity, percent_text, seconds_text
from ppsim.costs.given import PARAMETERS, TIMES
from ppsim.plots.boxes import counted, sizes_text

if TYPE_CHECKING:
    from ppsim.timeline import TimelineColumns

MOST_DEVICES = 16  # rows of the table of devices; more are grouped
_DEFINITIONS = {measure.name: measure.definition for measure in MEASURES} | {
    "peak_activations": "most live activations of a device, in microbatches of one device share",
    "peak_memory": "largest of a device: weights, gradients, optimizer state, activations, buffers",
    "lower_bound": "no order within the same peaks takes less; +: how far the makespan is above it",
    "iteration_time": "from one iteration to the next where they run on: the slowest device's pace",
    "steady_bubble_fraction": "idle part of the time between fill and drain",
    "tokens_per_second": "tokens of one step over its seconds, all data-parallel copies together",
    "mfu": "model FLOP utilisation: model FLOPs over what all GPUs could do at their dense peak",
}
_TIMES = ("makespan", "span", "iteration_time")
_BUBBLES = ("bubble_fraction", "bubble_ratio", "span_bubble_fraction")


def summary_text(timeline: TimelineColumns) -> str:
    """The measures with units and definitions, a table of devices, what ran, and where the costs come from."""
    rows = [(name, _overall_value(timeline, name), _DEFINITIONS[name]) for name in _measures_of([timeline])]
    lines = [sizes_text(timeline.schedule), _what_ran(timeline), "", *aligned(rows), ""]
    lines += aligned(_device_rows(timeline), left=1)
    if stages := getattr(timeline.costs, "stages", None):
        lines += ["", f"stages: {stages_text(stages(timeline.schedule.num_stages))}"]
    lines += ["", "costs", *("  " + line for line in aligned(_cost_rows(timeline)))]
    return "\n".join(lines) + "\n"


def stages_text(stages: Sequence[Mapping[str, int]]) -> str:
    """What each stage holds, such as `embedding + 4 blocks | 6 x 5 blocks | 3 blocks + head`."""

    def part(name: str, count: int) -> str:
        return name if name in ("embedding", "head") else counted(count, name)

    texts = [" + ".join(part(*item) for item in stage.items()) or "nothing" for stage in stages]
    alike = [(text, len(list(group))) for text, group in groupby(texts)]
    return " | ".join(f"{count} x {text}" if count > 1 else text for text, count in alike)


def side_by_side(timelines: Sequence[TimelineColumns]) -> str:
    """The overall measures of several timelines, a column each; says which has the shortest step.

    Raises ConfigError for no timelines.
    """
    if not timelines:
        raise ConfigError("side_by_side needs at least one timeline, got none")
    rows = [("", *(run.schedule.name for run in timelines))]
    rows.append(("sizes", *(_short_sizes(run) for run in timelines)))
    rows += [(name, *(_overall_value(run, name) for run in timelines)) for name in _measures_of(timelines)]
    lines = aligned(rows, left=1)
    best, worst = (choose(timelines, key=lambda run: iteration_time(run)) for choose in (min, max))
    sizes = {(run.schedule.devices, run.schedule.microbatches_of_a_step) for run in timelines}
    if len(sizes) == 1 and iteration_time(worst) > iteration_time(best) > 0:
        lines += [
            "",
            f"shortest step: {best.schedule.name}, {seconds_text(iteration_time(best))}; "
            f"{worst.schedule.name} takes {iteration_time(worst) / iteration_time(best):.3f} times as long",
        ]
    return "\n".join(lines) + "\n"


def _measures_of(timelines: Sequence[TimelineColumns]) -> list[str]:
    """Names of the measures that say something about any of the timelines."""
    names = ["makespan", "lower_bound", "span", *_BUBBLES]
    if any(run.schedule.iterations > 1 for run in timelines):
        names += ["iteration_time", "steady_bubble_fraction"]
    names += ["peak_activations", "peak_memory"]
    return names + [
        name for name in ("tokens_per_second", "mfu") if any(measured(run, name) is not None for run in timelines)
    ]


def _what_ran(timeline: TimelineColumns) -> str:
    if timeline.engine == "measured":
        return f"{counted(len(timeline.schedule), 'action')}, measured"
    plan = timeline.plan
    optimizer = "" if plan.optimizer is None else f", optimizer {plan.optimizer}"
    noise = "" if plan.noise is None else f", jitter (seed {plan.noise['seed']})"
    actions = counted(len(timeline.schedule), "action")
    return f"{actions}, transport {timeline.transport}, engine {timeline.engine}{optimizer}{noise}"


def _short_sizes(timeline: TimelineColumns) -> str:
    schedule = timeline.schedule
    return f"p {schedule.devices}, m {schedule.microbatches_of_a_step}, {counted(schedule.num_stages, 'stage')}"


def _overall_value(timeline: TimelineColumns, name: str) -> str:
    if name == "lower_bound":
        bound = lower_bound(timeline)
        return f"{seconds_text(bound.seconds)} (+{percent_text(bound.gap)})"
    value = measured(timeline, name)
    if value is None:
        return "unknown"
    if name in _TIMES:
        return seconds_text(value)
    if name == "tokens_per_second":
        return f"{value:,.0f} tokens/s"
    if name in ("peak_activations", "peak_memory"):
        most = float(value.max())
        text = f"{most:.4g}" if name == "peak_activations" else format_quantity(most, "bytes")
        return f"{text} (device {value.argmax()})"
    return f"{value:.4f} ({percent_text(value)})"


def _device_rows(timeline: TimelineColumns) -> list[tuple[str, ...]]:
    """A row a device; of very many devices, ranges of neighbours with their least and largest values."""
    devices = timeline.schedule.devices
    groups = np.array_split(np.arange(devices), min(devices, MOST_DEVICES))
    columns = [
        (timeline.device_busy, seconds_text),
        (device_idle(timeline), seconds_text),
        (device_idle(timeline) / makespan(timeline) if makespan(timeline) > 0 else np.zeros(devices), percent_text),
    ]
    header = ["device", "busy", "idle", "idle / makespan"]
    if exposed_communication(timeline).any():
        columns.append((exposed_communication(timeline), seconds_text))
        header.append("exposed communication")
    columns.append((peak_activations(timeline), lambda value: f"{value:.4g}"))
    header.append("peak activations")
    if peak_memory(timeline) is not None:
        columns.append((peak_memory(timeline), lambda value: format_quantity(value, "bytes")))
        header.append("peak memory")
    rows = [tuple(header)]
    for group in groups:
        name = str(group[0]) if len(group) == 1 else f"{group[0]}-{group[-1]}"
        rows.append((name, *(_range_text(values[group], text) for values, text in columns)))
    return rows


def _range_text(values: np.ndarray, text) -> str:
    least, most = text(float(values.min())), text(float(values.max()))
    return least if least == most else f"{least} .. {most}"


def _cost_rows(timeline: TimelineColumns) -> list[tuple[str, ...]]:
    """What each cost came to per stage, and whether it was given, derived, measured or left at its default."""
    provenance = getattr(timeline.costs, "provenance", {})
    rows = []
    for name, parameter in PARAMETERS.items():
        origin = provenance.get(name, "default")
        values = parameter["column"](timeline.table) if _has_a_row(name, origin, timeline) else None
        if values is None:
            continue
        least, most = (format_value(float(pick(values)), parameter["unit"]) for pick in (np.min, np.max))
        rows.append((name, least if least == most else f"{least} .. {most}", parameter["note"], origin))
    if not timeline.plan.remote.any():
        return rows
    free = not np.any(timeline.plan.transfer_seconds)
    return [*rows, ("transfers", "take no time", "", "default")] if free else rows


def _has_a_row(name: str, origin: str, timeline: TimelineColumns) -> bool:
    """Whether the summary has a row of a cost: of actions that there are, and of transfers that are not left out."""
    group = PARAMETERS[name].get("group")
    if group == "action":
        return bool((timeline.schedule.kind == TIMES.index(name)).any())
    if group == "transfer":
        return origin != "default" and timeline.schedule.devices > 1
    return "note" in PARAMETERS[name] and not (group == "slot" and origin == "default")


def format_value(value: float, unit: str) -> str:
    """A cost with its unit."""
    return seconds_text(value) if unit == "seconds" else format_quantity(value, unit)
