"""The measures of a timeline as text, with units and definitions, and its costs with their origins."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from itertools import chain, groupby
from typing import Any

import numpy as np

from ppsim.analysis.assumptions import assumptions
from ppsim.analysis.bubbles import device_idle, iteration_time, makespan
from ppsim.analysis.interval import interval_text
from ppsim.analysis.measures import Measure, shown_in
from ppsim.base.errors import ConfigError
from ppsim.base.tables import WIDTH, aligned, layout_lines
from ppsim.base.units import counted, seconds_text, value_text
from ppsim.costs.given import PARAMETERS, TIMES
from ppsim.plan.lengths import HOST_MEMORY
from ppsim.plots.boxes import title_text
from ppsim.timeline import TimelineColumns

MAX_DEVICES = 16  # rows of the table of devices; more devices form groups


def summary_text(timeline: TimelineColumns) -> str:
    """Return the measures with units and definitions, a table of devices, the run's settings and the costs' origins."""
    costs: Any = timeline.costs
    rows = [(measure.name, measure.text(timeline), measure.brief) for measure in _measures_of([timeline])]
    lines = [*textwrap.wrap(title_text(timeline), WIDTH), _what_ran(timeline)]
    lines += [*textwrap.wrap(timeline.schedule.found, WIDTH), "", *aligned(rows), ""]
    if interval := interval_text(timeline):
        lines += [*textwrap.wrap(interval, WIDTH), ""]
    lines += aligned(_device_rows(timeline), left=1)
    lines += [f"{row.title}: {row.short}" for row in _of_devices(timeline) if row.short and "summary" not in row.shown]
    if hasattr(costs, "stages"):
        number = timeline.schedule.num_stages
        lines += ["", f"stages: {stages_text(costs.stages(number))}", *layout_lines(costs.megatron_layout(number))]
    lines += ["", "costs", *("  " + line for line in aligned(_cost_rows(timeline)))]
    if assumed := assumptions(timeline):
        whole: Any = {"break_long_words": False, "break_on_hyphens": False}  # file names contain hyphens
        indent: Any = {"initial_indent": "  ", "subsequent_indent": "    "}
        wrapped = (textwrap.wrap(text, WIDTH, **indent, **whole) for text in assumed)
        lines += ["", "assumptions", *chain.from_iterable(wrapped)]
    return "\n".join(lines) + "\n"


def stages_text(stages: Sequence[Mapping[str, int]]) -> str:
    """Return the layers of each stage, such as `embedding + 4 blocks | 6 x 5 blocks | 3 blocks + head`."""

    def part(name: str, count: int) -> str:
        return name if name in ("embedding", "head") else counted(count, name)

    texts = [" + ".join(part(*item) for item in stage.items()) or "nothing" for stage in stages]
    repeats = [(text, len(list(group))) for text, group in groupby(texts)]
    return " | ".join(f"{count} x {text}" if count > 1 else text for text, count in repeats)


def side_by_side(timelines: Sequence[TimelineColumns]) -> str:
    """Return the overall measures of several timelines, one column each, and the shortest step.

    Raises ConfigError for no timelines.
    """
    if not timelines:
        raise ConfigError("side_by_side needs at least one timeline, got none")
    rows = [("", *(run.schedule.name for run in timelines))]
    rows.append(("sizes", *(_short_sizes(run) for run in timelines)))
    rows += [(measure.name, *(measure.text(run) for run in timelines)) for measure in _measures_of(timelines)]
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


def _measures_of(timelines: Sequence[TimelineColumns]) -> list[Measure]:
    """Return the measures that apply to any of the timelines."""
    return [measure for measure in shown_in("summary") if any(map(measure.is_shown_for, timelines))]


def _what_ran(timeline: TimelineColumns) -> str:
    if timeline.engine == "measured":
        return f"{counted(len(timeline.schedule), 'action')}, measured"
    plan = timeline.plan
    optimizer = "" if plan.optimizer is None else f", optimizer {plan.optimizer}"
    actions = counted(len(timeline.schedule), "action")
    dispatch = "" if plan.dispatch == "list" else f", dispatch {plan.dispatch}"
    noise = _noise_text(plan.noise)
    return f"{actions}, transport {timeline.transport}, engine {timeline.engine}{dispatch}{optimizer}{noise}"


def _noise_text(noise: Mapping[str, Any] | None) -> str:
    """Return the jitter of a run: the devices and links that are always slow, and the seed if anything is random."""
    if noise is None:
        return ""
    drawn = any(noise[name] for name in ("actions", "transfers", "devices", "links"))
    slow = [f", device {device} x {factor:g}" for device, factor in noise["slow_devices"].items()]
    slow += [f", link {a}-{b} x {factor:g}" for (a, b), factor in noise["slow_links"].items()]
    return "".join(slow) + (f", jitter (seed {noise['seed']})" if drawn else "")


def _short_sizes(timeline: TimelineColumns) -> str:
    schedule = timeline.schedule
    return f"p {schedule.devices}, m {schedule.microbatches_of_a_step}, {counted(schedule.num_stages, 'stage')}"


def _device_rows(timeline: TimelineColumns) -> list[tuple[str, ...]]:
    """Return one row per device; for many devices, ranges of neighbours with their minimum and maximum values."""
    devices = timeline.schedule.devices
    groups = np.array_split(np.arange(devices), min(devices, MAX_DEVICES))
    columns = []
    for measure in _of_devices(timeline):
        columns.append((measure.title, measure.of(timeline), measure.unit))
        if measure.name == "device_idle":
            columns.append(("idle / makespan", device_idle(timeline) / (makespan(timeline) or 1.0), "fraction"))
    rows = [("device", *(title for title, _, _ in columns))]
    for group in groups:
        name = str(group[0]) if len(group) == 1 else f"{group[0]}-{group[-1]}"
        rows.append((name, *(_range_text(values[group], unit) for _, values, unit in columns)))
    return rows


def _of_devices(timeline: TimelineColumns) -> list[Measure]:
    """Return the measures that have a column in the table of devices."""
    return [row for row in shown_in("devices") if row.of(timeline) is not None and row.is_shown_for(timeline)]


def _range_text(values: np.ndarray, unit: str) -> str:
    low, high = value_text(float(values.min()), unit), value_text(float(values.max()), unit)
    return low if low == high else f"{low} .. {high}"


def _cost_rows(timeline: TimelineColumns) -> list[tuple[str, ...]]:
    """Return each cost, its range over stages, its meaning, and its origin: given, derived, measured or default."""
    provenance = getattr(timeline.costs, "provenance", {})
    rows = []
    for name, parameter in PARAMETERS.items():
        origin = provenance.get(name, "default")
        values = parameter["column"](timeline.table) if _has_a_row(name, origin, timeline) else None
        if values is None:
            continue
        rows.append((name, _range_text(values, parameter["unit"]), parameter["note"], origin))
    if not timeline.plan.remote.any():
        return rows
    free = not np.any(timeline.plan.transfer_seconds)
    return [*rows, ("transfers", "take no time", "", "default")] if free else rows


def _has_a_row(name: str, origin: str, timeline: TimelineColumns) -> bool:
    """Return whether the summary shows a cost: if the schedule has such actions, or the transfers such costs."""
    group = PARAMETERS[name].get("group")
    if group == "action":
        return bool((timeline.schedule.kind == TIMES.index(name)).any())
    if group == "again":
        return timeline.schedule.recomputes
    if group == "vocabulary":
        return timeline.schedule.cuts_vocabulary
    if group == "copy":
        return timeline.plan.copies is not None and bool((timeline.plan.copies.host == HOST_MEMORY).any())
    if group == "transfer":
        return origin != "default" and timeline.schedule.devices > 1
    return "note" in PARAMETERS[name] and not (group == "slot" and origin == "default")
