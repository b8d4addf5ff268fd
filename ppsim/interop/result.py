"""The result of a simulation as one JSON-ready document: every measure with its unit and definition, every cost with
its origin.
"""

from __future__ import annotations

import math
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ppsim.analysis.measures import shown_in

if TYPE_CHECKING:
    from ppsim.timeline import TimelineColumns

SCHEMA = "ppsim.result/1"
_TIMES = ("forward", "backward", "input_grad", "weight_grad")
_STATES = ("weight_bytes", "gradient_bytes", "optimizer_bytes")


def result_document(timeline: TimelineColumns) -> dict[str, Any]:
    """The measures of a timeline under the names of docs/glossary.md, as plain Python values that JSON can hold.

    What is not known (memory without a model) or has no bound (the bandwidth of a free link) is None, never nan or inf.
    """
    schedule, measures = timeline.schedule, shown_in("json")
    return {
        "schema": SCHEMA,
        "schedule": {
            "name": schedule.name,
            "devices": schedule.devices,
            "num_stages": schedule.num_stages,
            "microbatches": schedule.microbatches_of_a_step,
            "iterations": schedule.iterations,
            "slices": schedule.slices,
            "actions": len(schedule),
        },
        "transport": timeline.transport,
        "engine": timeline.engine,
        "optimizer": timeline.plan.optimizer,
        "jitter": plain(timeline.plan.noise),
        **{measure.name: plain(measure.of(timeline)) for measure in measures},
        "units": {measure.name: measure.unit for measure in measures},
        "definitions": {measure.name: measure.meaning for measure in measures},
        "costs": _cost_document(timeline),
        "assumptions": list(getattr(timeline.costs, "assumptions", [])),
    }


def plain(value: Any) -> Any:
    """`value` in types that JSON can hold: arrays become lists, and numbers that are not finite become None."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _cost_document(timeline: TimelineColumns) -> dict[str, Any]:
    """Each cost as the engine used it, with its unit and provenance: times and bytes with one value a stage.

    Latency and bandwidth are one number, or the list of different values where pairs of devices differ.
    """
    table, provenance = timeline.table, getattr(timeline.costs, "provenance", {})
    seconds, held = "seconds per microbatch and stage", "bytes per stage"
    columns = {
        **{name: (table.seconds[row], seconds) for row, name in enumerate(_TIMES)},
        "overlap": (table.overlap, f"{seconds}, by [stage of F, stage of B]"),
        "latency": (_different(table.latency), "seconds per transfer"),
        "bandwidth": (_bandwidth(table.seconds_per_byte), "bytes per second; null is unlimited"),
        "transfer_bytes": (table.transfer_bytes, "bytes per transfer, by [F or B, stage]"),
        "weight_grad_fraction_of_activation": (table.weight_grad_fraction, "fraction"),
        "unshard": (table.unshard_seconds, "seconds per gather of a stage's weights"),
        "reduce_grad": (table.reduce_seconds, "seconds per step and stage"),
        "optimizer_step": (table.optimizer_seconds, "seconds per step and stage"),
        "activation_bytes": (table.activation_bytes, "bytes per microbatch and stage"),
        **{
            name: (None if table.state_bytes is None else table.state_bytes[row], held)
            for row, name in enumerate(_STATES)
        },
    }
    return {
        name: {"value": plain(value), "unit": unit, "provenance": provenance.get(name, "default")}
        for name, (value, unit) in columns.items()
        if value is not None
    }


def _different(matrix: np.ndarray) -> Any:
    """The different values between two devices: one number, or a sorted list of them."""
    between = matrix[~np.eye(len(matrix), dtype=bool)] if len(matrix) > 1 else matrix
    values = np.unique(between).tolist()
    return values[0] if len(values) == 1 else values


def _bandwidth(seconds_per_byte: np.ndarray) -> Any:
    with np.errstate(divide="ignore"):
        return _different(1.0 / seconds_per_byte)
