"""A timeline as a table, one row an action: columns, CSV text and a pandas frame."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from ppsim.actions import KIND_NAMES, NO_MICROBATCH, Kind
from ppsim.analysis.bubble_list import Bubbles
from ppsim.base.extras import need
from ppsim.schedule.orders import orders
from ppsim.timeline import TimelineColumns

if TYPE_CHECKING:
    import pandas


def timeline_frame(timeline: TimelineColumns) -> pandas.DataFrame:
    """One row an action, device by device in list order.

    Columns: device; action (its text, such as `2F0`); kind; stage and microbatch (-1 for an OVERLAP_F_B slot, which has
    two of each: see its action); start and end in seconds.
    """
    pandas = need("pandas", "a table of a timeline")
    columns = _columns(timeline)
    return pandas.DataFrame(
        {**columns, "kind": pandas.Categorical.from_codes(columns["kind"], categories=list(KIND_NAMES))}
    )


def timeline_csv(timeline: TimelineColumns) -> str:
    """The rows of `timeline_frame` as CSV text with a header."""
    columns = _columns(timeline)
    columns["kind"] = np.array(KIND_NAMES)[columns["kind"]]
    return _csv(columns)


def bubbles_csv(bubbles: Bubbles) -> str:
    """A row a bubble with the names of `Bubbles`, under a header; an empty cell where a memory is not known."""
    columns = {item.name: getattr(bubbles, item.name) for item in fields(bubbles)}
    unknown = np.isnan(bubbles.free_memory)
    columns["free_memory"] = np.where(unknown, None, bubbles.free_memory.astype(object))  # type: ignore[arg-type]
    return _csv(columns)


def _csv(columns: Mapping[str, Any]) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(np.asarray(column).tolist() for column in columns.values()), strict=True))
    return text.getvalue()


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
