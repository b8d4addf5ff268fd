"""The result of a simulation as one JSON-ready document: every measure with its unit and definition, every cost with
its origin.
"""

from __future__ import annotations

import math
from dataclasses import asdict, is_dataclass
from typing import Any

import numpy as np

from ppsim.analysis.interval import INTERVAL, QUANTILES, step_interval, step_quantiles
from ppsim.analysis.measures import shown_in
from ppsim.costs.given import PARAMETERS
from ppsim.timeline import TimelineColumns

SCHEMA = "ppsim.result/1"
SURE = {"interval": INTERVAL, "quantiles": QUANTILES}


def result_document(timeline: TimelineColumns) -> dict[str, Any]:
    """The measures of a timeline under the names of docs/glossary.md, as plain Python values that JSON can hold.

    What is not known (memory without a model) or has no bound (the bandwidth of a free link) is None, never nan or inf.
    """
    schedule, measures = timeline.schedule, shown_in("json")
    sizes = {name: getattr(schedule, name) for name in ("name", "devices", "num_stages", "iterations", "slices")}
    return {
        "schema": SCHEMA,
        "schedule": {**sizes, "microbatches": schedule.microbatches_of_a_step, "actions": len(schedule)}
        | {"found": schedule.found or None},
        "transport": timeline.transport,
        "engine": timeline.engine,
        "optimizer": timeline.plan.optimizer,
        "dispatch": timeline.plan.dispatch,
        "jitter": plain(timeline.plan.noise),
        **{measure.name: plain(measure.of(timeline)) for measure in measures},
        "interval": plain(step_interval(timeline)),
        "quantiles": plain(step_quantiles(timeline)),
        "units": {measure.name: measure.unit for measure in measures} | dict.fromkeys(SURE, "seconds"),
        "definitions": {measure.name: measure.meaning for measure in measures} | SURE,
        "costs": _cost_document(timeline),
        **_stage_document(timeline),
        "assumptions": list(getattr(timeline.costs, "assumptions", [])),
    }


def _stage_document(timeline: TimelineColumns) -> dict[str, Any]:
    """Which layers each stage got, where the costs know them: counts by name, and in Megatron-LM's notation."""
    if not hasattr(timeline.costs, "stages"):
        return {}
    costs: Any = timeline.costs
    stages = timeline.schedule.num_stages
    return {"stages": costs.stages(stages), "megatron_layout": costs.megatron_layout(stages)}


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
    provenance = getattr(timeline.costs, "provenance", {})
    document = {}
    for name, parameter in PARAMETERS.items():
        values = parameter["column"](timeline.table) if "column" in parameter else None
        if values is not None:
            value = values[0] if parameter.get("depth") == 0 and len(values) == 1 else values
            unit = parameter["unit"] + parameter["of"]
            document[name] = {"value": plain(value), "unit": unit, "provenance": provenance.get(name, "default")}
    return document
