"""A timeline as a pandas table, one row an action."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ppsim.actions import KIND_NAMES, NO_MICROBATCH, Kind
from ppsim.schedule.orders import orders

if TYPE_CHECKING:
    import pandas

    from ppsim.timeline import TimelineColumns


def timeline_frame(timeline: TimelineColumns) -> pandas.DataFrame:
    """One row an action, device by device in list order.

    Columns: device; action (its text, such as `2F0`); kind; stage and microbatch (-1 for an OVERLAP_F_B slot, which has
    two of each: see its action); start and end in seconds.
    """
    import pandas

    schedule = timeline.schedule
    first = schedule.first_rows
    fused = np.append(schedule.joined[1:], False)[first]
    kind = np.where(fused, np.int8(Kind.OVERLAP_F_B), schedule.kind[first])
    return pandas.DataFrame(
        {
            "device": schedule.device[first],
            "action": [text for order in orders(schedule) for text in order],
            "kind": pandas.Categorical.from_codes(kind, categories=list(KIND_NAMES)),
            "stage": np.where(fused, -1, schedule.stage[first]),
            "microbatch": np.where(fused, NO_MICROBATCH, schedule.microbatch[first]),
            "start": timeline.start,
            "end": timeline.end,
        }
    )
