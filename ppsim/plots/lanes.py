"""The lanes of a device's row: gathers, reductions, copies, collectives and optimizer steps as columns."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ppsim.actions import Kind
from ppsim.base.immutable import SizedColumns
from ppsim.schedule.barriers import BARRIER_NAMES, participants
from ppsim.timeline import TimelineColumns

GATHERS, RELOADS, REDUCTIONS, OFFLOADS = "gathers", "reloads", "reductions", "offloads"
COLLECTIVES, STEPS, FILLS = "collectives", "optimizer steps", "fills"
TITLES = {  # in the order of legends
    GATHERS: "weight gather",
    REDUCTIONS: "gradient reduction",
    OFFLOADS: "activation offload",
    RELOADS: "activation reload",
    COLLECTIVES: "collective of the output layer",
    STEPS: "optimizer step",
    FILLS: "work in idle time",
}
EVICTIONS = {OFFLOADS: "eviction to another device", RELOADS: "return of an eviction"}  # instead, of BPipe
KINDS = {GATHERS: Kind.UNSHARD, RELOADS: Kind.RELOAD, REDUCTIONS: Kind.REDUCE_GRAD, OFFLOADS: Kind.OFFLOAD}
LETTERS = {GATHERS: "u", RELOADS: "<", REDUCTIONS: "g", OFFLOADS: ">", COLLECTIVES: "c", STEPS: "O", FILLS: "="}
_NAMED = 4  # pairs of devices that a title names
_ABOVE = (GATHERS, RELOADS)  # sorts with a lane at the top or bottom of a row, from its edge inwards
_BELOW = (REDUCTIONS, OFFLOADS, COLLECTIVES)
_FILLED = 0.43  # fraction of a device's row that is filled above its middle, and below it
_LANE, _GAP = 0.11, 0.02  # fractions of a device's row: a lane with its gap, and the gap


@dataclass(frozen=True)
class Spans(SizedColumns):
    """Spans of time as columns, device by device in time order."""

    device: np.ndarray  # int32
    stage: np.ndarray  # int32
    # start, length: float64, seconds: `start` counts from the first start of the timeline
    start: np.ndarray
    length: np.ndarray

    @cached_property
    def end(self) -> np.ndarray:
        """End of each span in seconds from the first start."""
        return self.start + self.length


@dataclass(frozen=True)
class LaneSpans(Spans):
    """The spans of one sort of lane.

    `title` is its name in every legend. `stage` is -1 for STEPS, COLLECTIVES and FILLS, which belong to the whole
    device. Only copies and collectives have a `microbatch`. A collective has one span on every device that takes part;
    `barrier` is its index in the timeline's columns. `kind` is the index of a purpose or a fill's item in `names`.
    """

    sort: str
    title: str
    microbatch: np.ndarray | None = None
    barrier: np.ndarray | None = None
    kind: np.ndarray | None = None
    names: Sequence[str] = ()

    @property
    def has_band(self) -> bool:
        """True if the sort has a lane of its own; optimizer steps and work in idle time are among the actions."""
        return self.sort not in (STEPS, FILLS)

    def ticks(self, least: float, finish: float) -> tuple[np.ndarray, np.ndarray]:
        """Return begin and end of each span as a chart draws it.

        A span lasts `least` seconds at least, but usually half the time to the next at most; none ends after `finish`.
        """
        apart = np.diff(self.start)[np.diff(self.device) == 0]
        long = np.maximum(self.length, min([least, float(np.median(apart)) / 2] if len(apart) else [least]))
        begin = np.minimum(self.start, np.maximum(finish - long, 0.0))
        return begin, begin + long

    def name(self, span: int) -> str:
        """Return the span as text, such as `3UNSHARD`, `0RELOAD2` or `optimizer step`."""
        if self.sort == STEPS:
            return "optimizer step"
        number = "" if self.microbatch is None else str(self.microbatch[span])
        if self.kind is not None:
            return f"{self.names[self.kind[span]]} {number}".rstrip()
        return f"{self.stage[span]}{KINDS[self.sort].name}{number}"

    def label(self, span: int) -> str:
        """Return the label of a box: the microbatch of a copy or collective, the stage, `opt`, or a fill's name."""
        if self.microbatch is not None:
            return str(self.microbatch[span])
        if self.sort == FILLS:
            return self.name(span)
        return "opt" if self.sort == STEPS else str(self.stage[span])


def lane_spans(timeline: TimelineColumns) -> list[LaneSpans]:
    """Return the lanes that take time in this timeline."""
    origin = float(timeline.device_start.min())
    pairs = [f"{device} to {host}" for device, host in np.unique(timeline.schedule.evicted[:, ::2], axis=0).tolist()]
    evictions = EVICTIONS | {OFFLOADS: EVICTIONS[OFFLOADS] + f" ({', '.join(pairs)})" * (len(pairs) <= _NAMED)}
    found, titles = [], TITLES | (evictions if pairs else {})
    data = timeline.unshards, timeline.reloads, timeline.reductions, timeline.offloads, timeline.optimizer_steps
    for sort, spans in zip((GATHERS, RELOADS, REDUCTIONS, OFFLOADS, STEPS), data, strict=True):
        if spans is not None and np.any(spans.end > spans.start):
            mine = spans.end > spans.start
            length, numbers = (spans.end - spans.start)[mine], spans.microbatch
            columns = spans.device[mine], spans.stage[mine], spans.start[mine] - origin, length
            found.append(LaneSpans(*columns, sort, titles[sort], None if numbers is None else numbers[mine]))
    return [*found, *_collectives(timeline), *_fills(timeline, origin)]


def _fills(timeline: TimelineColumns, origin: float) -> list[LaneSpans]:
    """Return the work placed in idle time."""
    fills = timeline.fills
    if fills is None or not len(fills):
        return []
    columns = fills.device, fills.stage, fills.start - origin, fills.end - fills.start
    return [LaneSpans(*columns, FILLS, TITLES[FILLS], kind=fills.item, names=fills.names)]


def _collectives(timeline: TimelineColumns) -> list[LaneSpans]:
    """Return the collectives that take time, on the devices that contribute to them or wait for them."""
    barriers = timeline.plan.barriers
    if barriers is None or not np.any(timeline.barrier_end > timeline.barrier_start):
        return []
    device, barrier = participants(timeline.schedule, barriers)
    start, end = timeline.barrier_start[barrier], timeline.barrier_end[barrier]
    order = np.lexsort((start, device))
    order = order[(end > start)[order]]
    device, barrier, length = device[order].astype(np.int32), barrier[order], (end - start)[order]
    start = start[order] - float(timeline.device_start.min())
    numbers = barriers.microbatch[barrier], barrier, barriers.kind[barrier]
    columns = device, np.full(len(order), -1, np.int32), start, length
    return [LaneSpans(*columns, COLLECTIVES, TITLES[COLLECTIVES], *numbers, BARRIER_NAMES)]


def band(sorts: Collection[str]) -> tuple[float, float]:
    """Return top and bottom of the actions' boxes, downwards from the middle of a row of height 1.

    `sorts` are those that have space in the row. Data that arrive (weights, activations) have lanes at the top of a
    row, data that leave (gradients, activations) at its bottom. An optimizer step is among the actions.
    """
    above, below = (_LANE * sum(sort in sorts for sort in side) for side in (_ABOVE, _BELOW))
    return -_FILLED + above, _FILLED - below


def part_of_row(edges: tuple[float, float]) -> tuple[float, float]:
    """Return top and bottom, given as for `band`, as fractions (0..1) of the filled part of a row."""
    top, bottom = ((edge + _FILLED) / (2 * _FILLED) for edge in edges)
    return top, bottom


def lane_edges(lane: LaneSpans, sorts: Collection[str]) -> tuple[float, float]:
    """Return top and bottom of the boxes of a lane within a row that has these lanes, as in `band`.

    Another lane lies upon the edge of the actions.
    """
    if not lane.has_band:
        return band(sorts)
    side = _ABOVE if lane.sort in _ABOVE else _BELOW
    outer = side[: side.index(lane.sort)] if lane.sort in sorts else side
    edge, high = _FILLED - _LANE * sum(sort in sorts for sort in outer), _LANE - _GAP
    return (-edge, high - edge) if lane.sort in _ABOVE else (edge - high, edge)
