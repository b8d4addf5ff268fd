"""PipeOffload: the grouped interleaved schedule with the copies of its first stages in alternating slots."""

from __future__ import annotations

import math

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import BuildError, shown
from ppsim.base.rules import is_number
from ppsim.families.grouped import grouped_by_slots
from ppsim.families.registry import family, require_count
from ppsim.lowering.rows import insert_at, row_tables
from ppsim.schedule.columns import ScheduleColumns
from ppsim.schedule.recurrence import Lengths, run_lists

MIN_SLOTS = 3  # an activation that lives at most this number of slots is not copied


@family(
    "pipe-offload",
    group="memory",
    title="Grouped interleaved 1F1B with offload (PipeOffload)",
    idea="The lists of gis. Activations of the first `chunks` stages of each device move to host memory after F, and "
    "are back one backward before their own. Copies have slots of d2h + h2d (`d2h`, `h2d`: a copy out and one "
    "back, in units of a pass f = i = w); in each slot a device copies one activation out and then one back. Two "
    "neighbours share a switch and are d2h apart, so that one copies out while the other copies back. An "
    "activation that lives at most 3 (d2h + h2d), or finds no slots, stays. Simulate it with `offload_switch=2`.",
    constraints="those of gis; 1 <= chunks <= v",
    makespan="= {gis's where copies take what d2h and h2d say|3mvf + 2(p-1)f + (p-g)(v-1)f at f = i = w for g >= p/2, "
    "m mod g = 0}",
    peak_activations="<= {that of gis|min(mv, g(v-1)+p-r)/v for g >= p/2, m mod g = 0}",
    source="Wan et al. 2025, PipeOffload, arXiv 2503.01328; sail-sg/zero-bubble-pipeline-parallelism, "
    "zerobubble/scheduler/offloading.py",
)
def pipe_offload(
    p: int, m: int, v: int = 2, *, group_size: int | None = None, chunks: int = 1, d2h: float = 0.5, h2d: float = 0.5
) -> ScheduleColumns:
    """Return the lists of gis with OFFLOAD and RELOAD at the beginning of their slots."""
    if require_count("chunks", chunks) > v:
        raise BuildError(f"pipe-offload: chunks={chunks} with stages_per_device={v}: use at most {v}")
    for word, length in (("d2h", d2h), ("h2d", h2d)):
        if not is_number(length) or not 0 < length < math.inf:
            raise BuildError(f"pipe-offload: {word}={shown(length)} must be a number of passes above 0, such as 0.5")
    plain = ScheduleColumns.from_blocks(grouped_by_slots(p, m, v, group_size=group_size))
    end = run_lists(plain.offsets, plain.source, Lengths.by_row(np.ones(len(plain.kind))))[1]
    backward = row_tables(plain)[1][plain.stage, plain.microbatch]
    chosen = (plain.kind == Kind.F) & (plain.stage < chunks * p)
    rows, kinds, anchors = [], [], []
    for device in range(p):
        span = plain.rows(device)
        forward = np.flatnonzero(chosen[span]) + span.start
        first = float(end[span.start]) + (d2h if device % 2 else 0.0)
        kept, out, back = _slots(end[forward], end[backward[forward]] - 1.0, first, d2h, h2d)
        forward = forward[kept]
        leaves = np.maximum(_row_at(end, span, out[kept]), forward + 1)
        returns = np.maximum(_row_at(end, span, back[kept]), leaves)
        rows += [forward, forward]
        kinds += [np.full(len(forward), kind) for kind in (Kind.OFFLOAD, Kind.RELOAD)]
        anchors += [2 * leaves, 2 * np.minimum(returns, backward[forward])]
    return insert_at(plain, np.concatenate(rows), np.concatenate(kinds), np.concatenate(anchors))


def _slots(
    made: np.ndarray, needed: np.ndarray, first: float, d2h: float, h2d: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return whether each activation has slots for its copies, bool, and the times at which both copies start.

    `made` is the end of each forward and `needed` the start of its backward, in the order of the forwards. The first
    slot begins at `first`, and each slot lasts d2h + h2d.
    """
    slot = d2h + h2d
    kept = needed - 1.0 - made > MIN_SLOTS * slot
    out, back = np.full((2, len(made)), np.nan)
    begin = first
    for number in np.flatnonzero(kept).tolist():
        begin = first + slot * max(math.ceil((made[number] - first) / slot), round((begin - first) / slot))
        out[number] = begin
        begin += slot
    over = math.inf
    for number in np.flatnonzero(kept)[np.argsort(-needed[kept], kind="stable")].tolist():
        latest = min(needed[number] - 1.0, over)
        over = first + slot * math.floor((latest - first) / slot)
        back[number] = over - h2d
        over -= slot
        kept[number] = back[number] >= out[number] + d2h
    return kept, out, back


def _row_at(end: np.ndarray, span: slice, time: np.ndarray) -> np.ndarray:
    """Return the row of a device that runs at each time, or that is the next to run."""
    return np.minimum(span.start + np.searchsorted(end[span], time, "right"), span.stop - 1)
