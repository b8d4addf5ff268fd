"""The summary of a timeline as text: its answer first, then measures with definitions and costs with origins."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from itertools import chain, groupby
from typing import Any

import numpy as np

from ppsim.analysis.assumptions import assumptions
from ppsim.analysis.bubbles import device_idle, iteration_time, makespan, steady_bubble_fraction
from ppsim.analysis.interval import interval_in_words, interval_text, short_interval
from ppsim.analysis.ledger import CAUSES, ledger
from ppsim.analysis.measures import Measure, shown_in
from ppsim.analysis.memory import fit_of, fullest_device, peak_activations, peak_memory
from ppsim.base.tables import NO_BREAK, aligned, layout_lines, line_width, within
from ppsim.base.units import counted, percent_text, rounded_text, seconds_text, time_unit, value_text
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.given import PARAMETERS, TIMES, values_in
from ppsim.plan.jitter import RANDOM
from ppsim.plan.lengths import HOST_MEMORY
from ppsim.plots.boxes import title_text
from ppsim.plots.scale import time_text
from ppsim.timeline import TimelineColumns

PARTS = {"embedding": "the embedding", "block": "blocks", "prediction": "prediction modules", "head": "the head"}
_NOTABLE = 0.02  # report a device only if it is this much busier than the average over devices
MAX_DEVICES = 16  # rows of the table of devices; more devices form groups
_SMALLEST_SHARE = 0.01  # causes of less idle time are left out
_BARS, _BAR = 80, 20  # characters: shorter lines have no bars of causes of idle time; the longest bar


def headline(timeline: TimelineColumns) -> str:
    """Return schedule, sizes, step time and idle time in one line; of several iterations, those of the steady part."""
    steady = " in the steady part" if timeline.schedule.iterations > 1 else ""
    step = f"step {seconds_text(iteration_time(timeline))}{short_interval(timeline)}"
    return f"{title_text(timeline)}: {step}, idle {percent_text(steady_bubble_fraction(timeline))}{steady}"


def summary_text(
    timeline: TimelineColumns, verbose: bool = False, costs: bool = False, width: int | None = None
) -> str:
    """Return the step, its memory and the causes of its idle time, in at most 24 lines.

    `verbose` adds every measure with its definition and a table of devices; `costs` adds all costs with their origins,
    and what they assume. Lines of less than `_BARS` characters (default: `line_width()`) have no bars.
    """
    columns = width or line_width()
    head = [line for text in (title_text(timeline), timeline.schedule.found) for line in textwrap.wrap(text, columns)]
    lines = [*head, "", *_answer(timeline), *_idle_lines(timeline, columns)]
    if verbose:
        lines += ["", *_measure_lines(timeline)]
    if costs:
        lines += ["", *_cost_lines(timeline)]
    return within("\n".join(lines), columns)


def _answer(timeline: TimelineColumns) -> list[str]:
    """Return step, memory and bubble, each with a remark."""
    measured = {measure.name: measure.of(timeline) for measure in _measures_of([timeline])}
    remarks = [interval_in_words(timeline)]
    if (rate := measured.get("tokens_per_second")) is not None:
        remarks.append(f"{float(f'{rate:.3g}'):,.0f} tokens/s")
        remarks.append(f"MFU {percent_text(measured['mfu'])} " + "(full s x s attention)".replace(" ", NO_BREAK))
    unit = time_unit(step := iteration_time(timeline))
    idle, bubble = ["idle / total device time", busiest_device(timeline)], "bubble_fraction"
    if "steady_bubble_fraction" in measured:  # the causes below add up to the bubble of the whole run
        idle[0] = f"{idle[0]} between fill and drain; {percent_text(measured[bubble])} with them"
        bubble = "steady_bubble_fraction"
    return aligned([
        ("step", f"{time_text(step * unit.factor)} {unit.symbol}", "; ".join(filter(None, remarks))),
        _memory_row(timeline),
        ("bubble", percent_text(measured[bubble]), "; ".join(filter(None, idle))),
    ], left={0, 2})  # fmt: skip


def _memory_row(timeline: TimelineColumns) -> tuple[str, str, str]:
    """Return the peak of the fullest device, with the usable memory; without bytes, its peak of activations."""
    in_bytes = peak_memory(timeline) is not None
    device, peak, limit = fullest_device(timeline, in_bytes)
    if not in_bytes:
        within = "over" if fit_of(timeline) == "over" else "within"
        fits = "" if limit is None else f"{within} the limit of {limit:.3g}; "
        fullest = ", the fullest" * bool(peak == peak_activations(timeline).max())
        remark = f"{fits}microbatches through one device share; peak of device {device}{fullest}"
        return "activations", f"{peak:.3g}", remark
    fits = "" if limit is None else f"{fit_of(timeline)}: {rounded_text(limit, 'bytes')} usable; "
    return "memory", rounded_text(peak, "bytes"), f"{fits}peak of device {device}, the fullest"


def _idle_lines(timeline: TimelineColumns, width: int) -> list[str]:
    """Return the causes of idle time with their share, a bar if lines are wide, and their meaning, largest first."""
    idle = ledger(timeline).by_cause
    total = sum(idle.values())
    causes = sorted((one for one in idle if idle[one] > _SMALLEST_SHARE * total), key=lambda one: -idle[one])
    if not causes:
        return []
    bar = min(width - 72, _BAR) / idle[causes[0]]
    whole = timeline.schedule.devices * makespan(timeline)  # as the bubble: of all devices' time
    rows = [("idle" * (one == causes[0]), one, percent_text(idle[one] / whole),
             *["#" * round(bar * idle[one])] * (width >= _BARS), CAUSES[one]) for one in causes]  # fmt: skip
    return ["", *aligned(rows, left={0, 1, 3, 4})]


def busiest_device(timeline: TimelineColumns) -> str | None:
    """Return a sentence about the device that computes longest and its layers; None if all are about equal."""
    busy = timeline.device_busy
    device = int(busy.argmax())
    more = float(busy[device] / busy.mean()) - 1 if busy.mean() > 0 else 0.0
    if more < _NOTABLE:
        return None
    longer = f"{percent_text(more, 0)} longer than the average device"
    return f"device {device} computes {longer}{_held_by(timeline, device)}"


def _held_by(timeline: TimelineColumns, device: int) -> str:
    set_slower = (timeline.plan.noise or {}).get("slow_devices", {}).get(device, 1)
    if set_slower != 1:
        return f": it was set {set_slower:g} x slower"
    if not isinstance(timeline.costs, DerivedCosts):
        return ""
    schedule = timeline.schedule
    held = timeline.costs.stages(schedule.num_stages)
    stages = schedule.holdings[schedule.holdings[:, 0] == device, 1].tolist()
    blocks = sum(held[stage].get("block", 0) for stage in stages)
    others = [PARTS[name] for stage in stages for name in held[stage] if name != "block"]
    each = sum(one.get("block", 0) for one in held) / schedule.devices
    mean = "" if each == blocks else f" (mean {each:.3g})"
    return f": it holds {' and '.join([counted(blocks, 'block') + mean, *others])}"


def _measure_lines(timeline: TimelineColumns) -> list[str]:
    """Return what ran, the measures with units and definitions, the interval's source and a table of devices."""
    rows = [(measure.name, measure.text(timeline), measure.brief) for measure in _measures_of([timeline])]
    lines = [_what_ran(timeline), "", *aligned(rows), ""]
    if interval := interval_text(timeline):
        lines += [*textwrap.wrap(interval, line_width()), ""]
    lines += aligned(_device_rows(timeline), left=1)
    noted = (row for row in _of_devices(timeline) if row.short and "summary" not in row.shown)
    return lines + [f"{row.title}: {row.short}" for row in noted]


def _cost_lines(timeline: TimelineColumns) -> list[str]:
    """Return the layers of each stage, the costs with their origins, and what derived costs assume."""
    costs: Any = timeline.costs
    lines: list[str] = []
    if hasattr(costs, "stages"):
        number = timeline.schedule.num_stages
        lines += [f"stages: {stages_text(costs.stages(number))}", *layout_lines(costs.megatron_layout(number)), ""]
    lines += ["costs", *("  " + line for line in aligned(_cost_rows(timeline)))]
    if assumed := assumptions(timeline):
        whole: Any = {"break_long_words": False, "break_on_hyphens": False}  # file names contain hyphens
        indent: Any = {"initial_indent": "  ", "subsequent_indent": "    "}
        wrapped = (textwrap.wrap(text, line_width(), **indent, **whole) for text in assumed)
        lines += ["", "assumptions", *chain.from_iterable(wrapped)]
    return lines


def stages_text(stages: Sequence[Mapping[str, int]]) -> str:
    """Return the layers of each stage, such as `embedding + 4 blocks | 6 x 5 blocks | 3 blocks + head`."""

    def part(name: str, count: int) -> str:
        return name if name == "embedding" or (name, count) == ("head", 1) else counted(count, name)

    texts = [" + ".join(part(*item) for item in stage.items()) or "nothing" for stage in stages]
    repeats = [(text, len(list(group))) for text, group in groupby(texts)]
    return " | ".join(f"{count} x {text}" if count > 1 else text for text, count in repeats)


def _measures_of(timelines: Sequence[TimelineColumns]) -> list[Measure]:
    """Return the measures that apply to any of the timelines."""
    return [measure for measure in shown_in("summary") if any(map(measure.is_shown_for, timelines))]


def _what_ran(timeline: TimelineColumns) -> str:
    actions, plan = counted(len(timeline.schedule), "action"), timeline.plan
    if timeline.engine == "measured":
        return f"{actions}, measured"
    optimizer = "" if plan.optimizer is None else f", optimizer {plan.optimizer}"
    dispatch = "" if plan.dispatch == "list" else f", dispatch {plan.dispatch}"
    noise = _noise_text(plan.noise)
    return f"{actions}, transport {timeline.transport}, engine {timeline.engine}{dispatch}{optimizer}{noise}"


def _noise_text(noise: Mapping[str, Any] | None) -> str:
    """Return the jitter of a run: the devices and links that are always slow, and the seed if anything is random."""
    if noise is None:
        return ""
    drawn = any(noise[name] for name in RANDOM)
    slow = [f", device {device} x {factor:g}" for device, factor in noise["slow_devices"].items()]
    slow += [f", link {a}-{b} x {factor:g}" for (a, b), factor in noise["slow_links"].items()]
    return "".join(slow) + (f", jitter (seed {noise['seed']})" if drawn else "")


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
    """Return each cost, its range over stages, its origin (given, derived, measured or default), and its meaning."""
    provenance = getattr(timeline.costs, "provenance", {})
    rows = []
    for name, parameter in PARAMETERS.items():
        origin = provenance.get(name, "default")
        values = values_in(timeline.table, name) if _has_a_row(name, origin, timeline) else None
        if values is None:
            continue
        rows.append((name, _range_text(values, parameter["unit"]), origin, parameter["note"]))
    are_free = timeline.plan.remote.any() and not np.any(timeline.plan.transfer_seconds)
    return [*rows, ("transfers", "take no time", "default", "")] if are_free else rows


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
