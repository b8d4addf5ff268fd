"""The result of a simulation as one JSON-ready document: every measure with its unit and definition, every cost with
its origin."""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from ppsim.timeline import Timeline

SCHEMA = "ppsim.result/1"


class Measure(NamedTuple):
    """One measure of a timeline: its name there and in every document, its unit, and what it means."""

    name: str
    unit: str
    definition: str


MEASURES = (
    Measure("makespan", "seconds", "last end - first start over all devices"),
    Measure("span", "seconds", "max over devices of (last end - first start)"),
    Measure("bubble_fraction", "fraction", "1 - sum(busy) / (devices x makespan): idle / total"),
    Measure("bubble_ratio", "fraction", "sum(idle) / sum(busy): idle / ideal"),
    Measure("span_bubble_fraction", "fraction", "1 - max(busy) / span"),
    Measure("device_busy", "seconds", "per device: time in compute actions; an OVERLAP_F_B slot counts its length once"),
    Measure("device_idle", "seconds", "per device: makespan - busy"),
    Measure(
        "peak_activations",
        "microbatches through one device share of the model",
        "per device: largest number of live activations; F adds its stage's share at its start, B frees it at its end, "
        "or I and W each their part",
    ),
    Measure(
        "peak_memory",
        "bytes",
        "per device: weights + gradients + optimizer state + live activations + transfer buffers; null where the costs "
        "do not say what is held",
    ),
)

_COST_UNITS = {
    "forward": "seconds",
    "backward": "seconds",
    "input_grad": "seconds",
    "weight_grad": "seconds",
    "overlap": "seconds",
    "latency": "seconds",
    "transfer_bytes": "bytes",
    "bandwidth": "bytes per second",
    "weight_grad_fraction_of_activation": "fraction",
    "slice_costs": "relative",
    "activation_bytes": "bytes per microbatch and stage",
    "weight_bytes": "bytes per stage",
    "gradient_bytes": "bytes per stage",
    "optimizer_bytes": "bytes per stage",
}


def result_document(timeline: Timeline) -> dict[str, Any]:
    """The measures of a timeline under the names of docs/glossary.md, as plain Python values that JSON can hold.

    What is not known (memory without a model) or has no bound (the bandwidth of a free link) is None, never nan or inf.
    """
    schedule = timeline.schedule
    return {
        "schema": SCHEMA,
        "schedule": {
            "name": schedule.name,
            "devices": schedule.devices,
            "num_stages": schedule.num_stages,
            "microbatches": schedule.microbatches // schedule.slices,
            "slices": schedule.slices,
            "actions": len(schedule),
        },
        "transport": timeline.transport,
        "engine": timeline.engine,
        **{measure.name: plain(getattr(timeline, measure.name)) for measure in MEASURES},
        "units": {measure.name: measure.unit for measure in MEASURES},
        "definitions": {measure.name: measure.definition for measure in MEASURES},
        "costs": _cost_document(timeline.costs),
    }


def plain(value: Any) -> Any:
    """`value` in types that JSON can hold: arrays become lists, and numbers that are not finite become None."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _cost_document(costs: Any) -> dict[str, Any]:
    """Each cost with value, unit and provenance."""
    provenance = getattr(costs, "provenance", {})
    names = [field.name for field in dataclasses.fields(costs)] if dataclasses.is_dataclass(costs) else []
    entries: dict[str, Any] = {
        name: {
            "value": plain(getattr(costs, name)),
            "unit": _COST_UNITS[name],
            "provenance": provenance.get(name, "default"),
        }
        for name in names
        if name in _COST_UNITS and getattr(costs, name) is not None
    }
    per = getattr(costs, "per", None)
    if per is not None:
        entries["per"] = per
    return entries
