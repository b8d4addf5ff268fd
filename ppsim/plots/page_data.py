"""A timeline as data of the viewer's page: facts as JSON, and compressed columns of all that it draws."""

from __future__ import annotations

import base64
import math
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ppsim.actions import Kind
from ppsim.analysis.bounds import lower_bound
from ppsim.analysis.bubbles import iteration_time, makespan, steady_bubble_fraction
from ppsim.analysis.critical_path import latest_before
from ppsim.analysis.graph import COLLECTIVE, OPTIMIZER, StepGraph, step_graph
from ppsim.analysis.interval import step_interval
from ppsim.analysis.ledger import CAUSES, ledger
from ppsim.analysis.memory import device_memory, fullest_device, memory_curves, peak_activations, peak_memory
from ppsim.base.immutable import cached_on
from ppsim.frameworks import frameworks_running
from ppsim.plots import palette
from ppsim.plots.areas import areas
from ppsim.plots.boxes import Boxes, device_labels, kind_letter, title_text
from ppsim.plots.lanes import COLLECTIVES, FILLS, KINDS, STEPS, LaneSpans, Spans, lane_edges, part_of_row
from ppsim.plots.summary import busiest_device
from ppsim.timeline import TimelineColumns

_MAX_TICKS = 2**32 - 1  # ticks per makespan
_MANY = 16_384  # rows; with more, the size of the page matters more than the last digits
_FINE, _COARSE = 2**13, 2**8  # minimum ticks of the shortest action and of the shortest transfer
_LEVELS = 2**16 - 1  # steps up to the largest amount of memory
_MAX_POINTS, _DRAWN_POINTS = 65_536, 4_096  # limits of all memory curves together and of a drawn one; see `_thinned`
NONE, BEFORE, INPUT, OTHER_INPUT, LISTED = range(5)  # codes of what an item waited for, as in data.js


class Marks(NamedTuple):
    """Reasons, in words, why parts of a chart are marked: devices, actions by name, and waits by the action after."""

    devices: Mapping[int, str] = {}
    actions: Mapping[str, str] = {}
    stalls: Mapping[str, str] = {}


UNMARKED = Marks()


class PageColumn(NamedTuple):
    """Named values of the page, `size` bytes each; if `summed`, the page stores their differences."""

    name: str
    values: np.ndarray
    size: int
    summed: bool = False

    @property
    def planes(self) -> bytes:
        """The values modulo 2**32 by byte plane, low bytes first, which compresses well."""
        values = self.values.astype(np.int64)
        if self.summed:
            values = np.diff(values, prepend=0)
        planes = (values & 0xFFFFFFFF).astype("<u4").view(np.uint8).reshape(-1, 4)[:, : self.size]
        return np.ascontiguousarray(planes.T).tobytes()


def _has_encoder_elsewhere(timeline: TimelineColumns) -> bool:
    """Return whether encoder stages are not all on the device of the backbone's first stage, and on no other."""
    towers, (device, stage) = timeline.table.towers, timeline.schedule.holdings.T
    encoder = len(towers) - towers.count(towers[-1]) if towers else 0  # its stages come first
    return encoder > 0 and {*device[stage < encoder].tolist()} != {*device[stage == encoder].tolist()}


def page_data(boxes: Boxes, title: str | None = None, marks: Marks = UNMARKED) -> dict[str, Any]:
    """Return the data of the page's script as plain values; `title` is the name."""
    timeline = boxes.timeline
    points, memory = _memory(timeline)
    waits, last = _waits(boxes)
    idle = {cause: seconds for cause, seconds in ledger(timeline).items() if seconds.any()}
    columns = [*_boxes(boxes), *waits, *_lanes(boxes), *points]
    slow = dict(marks.devices)
    if not slow and timeline.engine != "measured" and (words := busiest_device(timeline)):
        busy = timeline.device_busy
        first, slowest = int(busy.argmax()), np.flatnonzero(busy >= busy.max() * (1 - 1e-9)).tolist()
        others = [device for device in slowest if device != first]
        also = [f"device {', '.join(map(str, others))} as long"] * (0 < len(others) < 4)
        if 2 * len(others) < len(busy) - 1:  # else the others are the fast ones
            slow = dict.fromkeys([first, *others], "; ".join([words, *also]))
    experts = getattr(getattr(timeline.costs, "model", None), "experts", 0) > 0
    running = frameworks_running(timeline.schedule.name, experts, _has_encoder_elsewhere(timeline))
    packed = zlib.compress(b"".join(column.planes for column in columns), 9)
    is_bounded = timeline.engine != "measured" and timeline.schedule.iterations == 1
    bounds = lower_bound(timeline).bounds if is_bounded else {}
    return {
        "title": title_text(timeline),
        "short": timeline.schedule.name if title is None else title,
        "schedule": timeline.schedule.name,
        "runs": "" if timeline.engine == "measured" else ", ".join(running) or "no framework",
        "devices": timeline.schedule.devices,
        "towers": device_labels(timeline, "device") if timeline.table.towers else None,
        "stages": list(timeline.table.towers),
        "ahead": dict(timeline.schedule.prefetched[:, ::-1].tolist()),
        "makespan": makespan(timeline),
        "step": iteration_time(timeline),
        "interval": None if timeline.engine == "measured" else step_interval(timeline),
        "bounds": dict(zip(bounds, _short(bounds.values()), strict=True)),
        "idle": steady_bubble_fraction(timeline),
        "tick": tick_seconds(timeline),
        "box": boxes.median,
        "period": boxes.period,
        "even": boxes.is_even,
        "areas": [
            {"words": one.words, "spans": _short((one.first, one.last, one.top, one.bottom), 3)}
            for one in sorted(areas(boxes), key=lambda one: one.first - one.last)  # the widest has the name of several
        ],
        "locals": boxes.locals,
        "slices": timeline.schedule.slices,
        "instants": bool(np.any(boxes.length == 0)),
        "band": part_of_row(boxes.band),
        "lanes": [_lane(lane, boxes) for lane in boxes.lanes],
        "kinds": [_kind(kind) for kind in boxes.kinds],
        "ledger": {cause: _short(seconds) for cause, seconds in idle.items()},
        "causes": {cause: CAUSES[cause] for cause in idle},
        "memory": memory,
        "last": last,
        "slow": {str(device): words for device, words in slow.items()},
        "stragglers": dict(marks.actions),
        "stalls": dict(marks.stalls),
        "columns": [[column.name, len(column.values), column.size, column.summed] for column in columns],
        "packed": base64.b64encode(packed).decode(),
    }


def _kind(kind: Kind) -> dict[str, Any]:
    slot = kind == Kind.OVERLAP_F_B
    return {"letter": kind_letter(kind), "name": kind.name, "title": palette.TITLES[kind], "slot": slot}


def _lane(lane: LaneSpans, boxes: Boxes) -> dict[str, Any]:
    return {
        "sort": lane.sort,
        "title": lane.title,
        "banded": lane.has_band,
        "lane": part_of_row(lane_edges(lane, boxes.sorts)),
        "name": lane.name(0).strip("-0123456789"),
        "names": [f"{name} " for name in lane.names],
        "staged": lane.sort not in (STEPS, COLLECTIVES, FILLS),
        "numbered": lane.microbatch is not None,
    }


def _short(values: Iterable[float], digits: int = 7) -> list[float]:
    return [float(f"{value:.{digits}g}") for value in values]


def _boxes(boxes: Boxes) -> list[PageColumn]:
    schedule = boxes.timeline.schedule
    code = np.zeros(len(Kind), np.int64)
    code[boxes.kinds] = np.arange(len(boxes.kinds))
    columns = [
        *_times("", boxes, boxes.timeline),
        PageColumn("kind", code[boxes.kind], 1),
        PageColumn("local", boxes.local, 2),
        PageColumn("stage", boxes.stage, 4, summed=True),
        PageColumn("microbatch", boxes.microbatch, 4, summed=True),
    ]
    if boxes.reverse.any():
        columns.append(PageColumn("reverse", boxes.reverse, 1))
    if len(boxes.step_begins):
        columns.append(PageColumn("begins", np.sort(boxes.step_begins), 4, summed=True))
    if boxes.slot.any():
        other = np.minimum(boxes.row + 1, len(schedule.kind) - 1)
        columns += [
            PageColumn("forward_first", schedule.kind[boxes.row] == Kind.F, 1),
            PageColumn("other_stage", schedule.stage[other], 4, summed=True),
            PageColumn("other_microbatch", schedule.microbatch[other], 4, summed=True),
        ]
    return columns


def _lanes(boxes: Boxes) -> list[PageColumn]:
    columns = []
    for lane in boxes.lanes:
        columns += _times(f"{lane.sort} ", lane, boxes.timeline)
        columns.append(PageColumn(f"{lane.sort} stage", np.maximum(lane.stage, 0), 4, summed=True))
        if lane.microbatch is not None:
            columns.append(PageColumn(f"{lane.sort} microbatch", lane.microbatch, 4, summed=True))
        if lane.kind is not None:
            columns.append(PageColumn(f"{lane.sort} kind", lane.kind, 1 if len(lane.names) < 256 else 4))
    return columns


def _times(prefix: str, spans: Spans, timeline: TimelineColumns) -> list[PageColumn]:
    """Return the spans' offsets by device, and in ticks the gap before each span and its length.

    Gaps compress better than starts, as many are 0. Spans that take time have at least one tick.
    """
    start = _ticks(spans.start, timeline)
    length = np.maximum(_ticks(spans.end, timeline) - start, spans.length > 0)
    offsets = np.searchsorted(spans.device, np.arange(timeline.schedule.devices + 1))
    return [
        PageColumn(f"{prefix}offsets", offsets, 4, summed=True),
        PageColumn(f"{prefix}gap", np.diff(start, prepend=0) - np.append(0, length[:-1]), 4),
        PageColumn(f"{prefix}length", length, 4),
    ]


@cached_on
def tick_seconds(timeline: TimelineColumns) -> float:
    """Return the seconds of a tick, to which a page rounds times; many actions get the coarsest tick that shows all."""
    # A power of ten: decimal times are multiples of it, so that equal gaps stay equal and compress.
    finest = 10.0 ** math.ceil(math.log10(makespan(timeline) / _MAX_TICKS)) if makespan(timeline) > 0 else 0.0
    if len(timeline.row_start) < _MANY:
        return finest
    parts = ((timeline.row_end - timeline.row_start, _FINE), (timeline.transfer_end - timeline.transfer_start, _COARSE))
    shortest = [float(lengths[lengths > 0].min()) / ticks for lengths, ticks in parts if np.any(lengths > 0)]
    return max(finest, min(shortest, default=finest))


def _ticks(times: np.ndarray, timeline: TimelineColumns) -> np.ndarray:
    """Return seconds from the first start as integer ticks."""
    return np.rint(times / tick_seconds(timeline)) if makespan(timeline) > 0 else np.zeros(len(times))


def _waits(boxes: Boxes) -> tuple[list[PageColumn], int]:
    """Return columns of the transfers and of the waits of all items (boxes, transfers, lane spans); the last item."""
    timeline, plan = boxes.timeline, boxes.timeline.plan
    consumer = np.flatnonzero(plan.remote & ~np.isnan(timeline.transfer_start))
    box_of_row = np.searchsorted(boxes.row, np.arange(len(plan.source)), side="right") - 1
    source, target = box_of_row[plan.source[consumer]], box_of_row[consumer]
    origin = float(timeline.device_start.min())
    times = timeline.transfer_start[consumer], timeline.transfer_end[consumer], timeline.row_end[plan.source[consumer]]
    start, end, ready = (_ticks(one - origin, timeline) for one in times)
    graph = step_graph(timeline)
    item, node = _items(boxes, graph, consumer)
    before = latest_before(graph)
    while np.any(unseen := (before >= 0) & (item[before] < 0)):  # skip nodes that are not drawn
        before[unseen] = before[before[unseen]]
    last = int(np.nanargmax(graph.end))
    awaited = np.where(before[node] >= 0, item[before[node]], -1)
    awaited = np.append(awaited, np.full(sum(len(lane) for lane in boxes.lanes if lane.sort == FILLS), -1))
    cause = _causes(awaited, len(boxes), source, target)
    columns = [
        PageColumn("transfer target", target, 4, summed=True),
        PageColumn("transfer source", source - target, 4),
        PageColumn("transfer wait", start - ready, 4),
        PageColumn("transfer length", end - start, 4),
        PageColumn("cause", cause, 1),
        PageColumn("listed", awaited[cause == LISTED], 4, summed=True),
    ]
    return columns, int(item[last] if item[last] >= 0 else item[before[last]])


def _causes(awaited: np.ndarray, boxes: int, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Return the code of what each item waited for; LISTED for an item that the page cannot find by a rule."""
    own, transfers = np.arange(len(awaited)), len(source)
    usual = np.concatenate([own[:boxes] - 1, source, np.full(len(awaited) - boxes - transfers, -2)])
    first_input = np.full(len(awaited), -2)
    first_input[target[::-1]] = boxes + np.arange(transfers)[::-1]
    is_usual = [awaited < 0, awaited == usual, awaited == first_input, awaited == first_input + 1]
    is_usual[3] &= first_input >= 0
    return np.select(is_usual, [NONE, BEFORE, INPUT, OTHER_INPUT], LISTED)


def _items(boxes: Boxes, graph: StepGraph, consumer: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the item of each node of the graph, or -1, and the node of each item."""
    rows = len(boxes.timeline.plan.source)
    nodes = [boxes.row, rows + consumer]
    streams = {**KINDS, STEPS: OPTIMIZER, COLLECTIVES: COLLECTIVE}
    for lane in boxes.lanes:
        if lane.sort == FILLS:  # the last lane; its spans wait for nothing and are no nodes
            continue
        mine = 2 * rows + np.flatnonzero(graph.stream_kind == streams[lane.sort])
        nodes.append(mine[graph.end[mine] > graph.start[mine]] if lane.barrier is None else mine[lane.barrier])
    node = np.concatenate(nodes)
    item = np.full(len(graph.end), -1)
    item[node] = np.arange(len(node))
    return item, node


def _memory(timeline: TimelineColumns) -> tuple[list[PageColumn], dict[str, Any]]:
    """Return the step curves of all devices' memory, and their unit: bytes if the costs know them, else activations."""
    in_bytes, most = peak_memory(timeline), max(_MAX_POINTS // timeline.schedule.devices, 64)
    peaks = peak_activations(timeline) if in_bytes is None else in_bytes
    highest = float(peaks.max(initial=0.0)) or 1.0
    drawn = {int(peaks.argmax()), int(peaks.argmin())}  # the fullest and the emptiest device
    curves = [
        _thinned(_ticks(np.append(0.0, times), timeline), levels, max(most, _DRAWN_POINTS) if device in drawn else most)
        for device, (times, levels) in enumerate(memory_curves(timeline, in_bytes is not None))
    ]
    columns = [
        PageColumn("memory offsets", np.append(0, np.cumsum([len(times) for times, _ in curves])), 4, summed=True),
        PageColumn("memory time", np.concatenate([times for times, _ in curves]), 4, summed=True),
        PageColumn("memory level", np.rint(np.concatenate([levels for _, levels in curves]) / highest * _LEVELS), 2),
    ]
    fullest, _, usable = fullest_device(timeline, in_bytes is not None)
    device = None if in_bytes is None else device_memory(timeline)
    unit = "microbatches through one device share" if in_bytes is None else "bytes"
    limits = {"fullest": fullest, "capacity": usable, "device": device}
    return columns, {"unit": unit, "most": highest, "peaks": _short(peaks)} | limits


def _thinned(times: np.ndarray, levels: np.ndarray, max_points: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a step curve of at most `max_points`; a longer one becomes the maximum in each part of its time."""
    if len(times) <= max_points:
        return times, levels
    step = np.ceil((times[-1] + 1) / max_points)
    part = times // step
    first = np.flatnonzero(np.diff(part, prepend=-1))
    return part[first] * step, np.maximum.reduceat(levels, first)
