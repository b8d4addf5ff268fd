"""The result of a simulation as data: a document for JSON, a data frame, or CSV text."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, fields, is_dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ppsim.actions import KIND_NAMES, NO_MICROBATCH, Kind
from ppsim.analysis.assumptions import assumptions
from ppsim.analysis.bubbles import Bubbles
from ppsim.analysis.filling import Filling
from ppsim.analysis.interval import INTERVAL, QUANTILES, step_interval, step_quantiles
from ppsim.analysis.measures import shown_in
from ppsim.base.host import need
from ppsim.base.tables import csv_text_of
from ppsim.costs.given import PARAMETERS, values_in
from ppsim.schedule.orders import orders
from ppsim.timeline import TimelineColumns

if TYPE_CHECKING:
    import pandas


SCHEMA = "ppsim.result/1"
DEFINITIONS = {"interval": INTERVAL, "quantiles": QUANTILES}


def result_document(timeline: TimelineColumns) -> dict[str, Any]:
    """Return the measures of a timeline by the names of docs/glossary.md, as plain Python values for JSON.

    Unknown values (memory without a model) and infinite values (the bandwidth of a free link) are None.
    """
    schedule, measures, costs = timeline.schedule, shown_in("json"), cast(Any, timeline.costs)
    knows_layers = hasattr(costs, "stages")
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
        "units": {measure.name: measure.unit for measure in measures} | dict.fromkeys(DEFINITIONS, "seconds"),
        "definitions": {measure.name: measure.meaning for measure in measures} | DEFINITIONS,
        "costs": _cost_document(timeline),
        **{name: getattr(costs, name)(schedule.num_stages) for name in ("stages", "megatron_layout") if knows_layers},
        "assumptions": assumptions(timeline),
    }


def plain(value: Any) -> Any:
    """Return `value` in types of JSON; arrays become lists, infinite numbers and nan become None."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _cost_document(timeline: TimelineColumns) -> dict[str, Any]:
    """Return each cost of the simulation with its unit and provenance; times and bytes have one value per stage.

    Latency and bandwidth are a number, or if pairs of devices differ, the list of different values.
    """
    provenance = getattr(timeline.costs, "provenance", {})
    document = {}
    for name, parameter in PARAMETERS.items():
        values = values_in(timeline.table, name)
        if values is not None:
            value = values[0] if parameter.get("depth") == 0 and len(values) == 1 else values
            unit = parameter["unit"] + parameter["of"]
            document[name] = {"value": plain(value), "unit": unit, "provenance": provenance.get(name, "default")}
    return document


def timeline_frame(timeline: TimelineColumns) -> pandas.DataFrame:
    """Return one row per action, device by device in list order.

    Columns: device; action (its text, such as `2F0`); kind; stage and microbatch (-1 for an OVERLAP_F_B slot, which has
    two of each); start and end in seconds.
    """
    pandas = need("pandas", "a table of a timeline")
    columns = _columns(timeline)
    return pandas.DataFrame(
        {**columns, "kind": pandas.Categorical.from_codes(columns["kind"], categories=list(KIND_NAMES))}
    )


def timeline_csv(timeline: TimelineColumns) -> str:
    """Return the rows of `timeline_frame` as CSV text with a header."""
    columns = _columns(timeline)
    columns["kind"] = np.array(KIND_NAMES)[columns["kind"]]
    return _csv(columns)


def bubbles_csv(bubbles: Bubbles) -> str:
    """Return one CSV row per bubble, with the names of `Bubbles` as header; the cell of an unknown memory is empty."""
    columns = {item.name: getattr(bubbles, item.name) for item in fields(bubbles)}
    unknown = np.isnan(bubbles.free_memory)
    columns["free_memory"] = np.where(unknown, None, bubbles.free_memory.astype(object))  # type: ignore[arg-type]
    return _csv(columns)


def fill_csv(filling: Filling) -> str:
    """Return one CSV row per piece of work in idle time: its item and name, device, start and end in seconds."""
    names = np.array([one.name for one in filling.items])[filling.item]
    columns = {name: getattr(filling, name) for name in ("item", "device", "start", "end")}
    return _csv({"item": columns.pop("item"), "name": names, **columns})


def _csv(columns: Mapping[str, Any]) -> str:
    rows = zip(*(np.asarray(column).tolist() for column in columns.values()), strict=True)
    return csv_text_of([[*columns], *rows])


def _columns(timeline: TimelineColumns) -> dict[str, Any]:
    schedule = timeline.schedule
    first = schedule.first_rows
    fused = np.append(schedule.joined[1:], False)[first]
    return {
        "device": schedule.device[first],
        "action": [text for order in orders(schedule) for text in order],
        "kind": np.where(fused, np.int8(Kind.OVERLAP_F_B), schedule.kind[first]),
        "stage": np.where(fused, -1, schedule.stage[first]),
        "microbatch": np.where(fused, NO_MICROBATCH, schedule.microbatch[first]),
        "start": timeline.start,
        "end": timeline.end,
    }
