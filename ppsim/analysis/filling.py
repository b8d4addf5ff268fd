"""Independent work placed in the idle time of devices: what fits, what is left over, and the memory it needs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ppsim.analysis.bubbles import idle_spans, iteration_time, largest_level
from ppsim.analysis.memory import HEADROOM, device_memory, memory_over_time, peak_memory, static_memory, usable_memory
from ppsim.base.documents import as_python, checked_entry
from ppsim.base.errors import ConfigError, error_at, shown
from ppsim.base.immutable import EqualColumns, SizedColumns, index_in_list
from ppsim.base.rules import (
    check_fields,
    declarations,
    declared,
    described,
    is_whole,
    quantity,
    rule,
    text,
    whole_number,
)
from ppsim.plan.streams import POST_VALIDATED
from ppsim.timeline import FillSpans, TimelineColumns

ALL_THAT_FIT = "max"
MAX_PIECES = 10_000_000
EXAMPLE = "such as {duration: 40 ms, memory: 6 GB, count: 32}"
_EXACT = 1e-12  # relative: sums of seconds and bytes are compared up to rounding
_count = rule(
    lambda value: value == ALL_THAT_FIT or (is_whole(value, 1) and value <= MAX_PIECES),
    f"must be a whole number from 1 to {MAX_PIECES:,}, or {ALL_THAT_FIT!r} for all that fit",
    lambda value: value if isinstance(value, str) else int(value),
)


@described
@dataclass(frozen=True)
class FillItem:
    """Work that a device can do in its idle time: pieces that each run once, without a break, within one bubble.

    Raises ConfigError with the field, its value and what is legal.
    """

    duration: float = declared("seconds of one piece, or text such as 40 ms", quantity("seconds", above_zero=True))
    memory: float = declared("bytes that a piece holds while it runs", quantity("bytes"), 0.0)
    release: float = declared("seconds of the step before which no piece runs", quantity("seconds"), 0.0)
    device: int | None = declared("device that runs the pieces; None: any", whole_number(0), None)
    count: int | str = declared('number of pieces, or "max" for all that fit', _count, 1)
    name: str = declared("name in tables and charts", text, "work")

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def is_endless(self) -> bool:
        """True if the number of pieces is the largest that fits."""
        return self.count == ALL_THAT_FIT


AnyItems = FillItem | Mapping[str, Any] | Iterable[FillItem | Mapping[str, Any]]


def fill_items(given: AnyItems, place: str = "items") -> tuple[FillItem, ...]:
    """Return checked items; ConfigError names `place`, the number of the item and its fault."""
    if isinstance(given, FillItem | Mapping):
        return (_item(given, place),)
    listed: Any = given
    if isinstance(listed, str) or not isinstance(listed, Iterable):
        raise ConfigError(f"{place}: {shown(given)} must be a list of items, {EXAMPLE}")
    items = tuple(_item(item, f"{place}[{number}]") for number, item in enumerate(listed))
    if not items:
        raise ConfigError(f"{place}: is empty; list items, {EXAMPLE}")
    return items


def _item(given: Any, place: str) -> FillItem:
    if isinstance(given, FillItem):
        return given
    keys = [key.name for key in declarations(FillItem)]
    entry = checked_entry(given, place, f"an item, {EXAMPLE}", keys, ["duration"])
    with error_at(f"{place}: "):
        return FillItem(**as_python(entry, place))


class IdleSpans(NamedTuple):
    """Spans of idle time as columns, device by device in time order: device, start and end in seconds."""

    device: np.ndarray
    start: np.ndarray
    end: np.ndarray

    @property
    def seconds(self) -> np.ndarray:
        """Length of each span."""
        return self.end - self.start


@described
@dataclass(frozen=True, eq=False)
class Filling(SizedColumns, EqualColumns):
    """Work placed in the idle time of a run; one entry per piece, device by device in time order.

    Charts of `run`, the run, show the pieces. Unused idle time is too short, or has too little memory, for any piece
    that is left over. `usable` and the peaks are None if no item needs memory.
    """

    item: np.ndarray = declared("int32: index of the piece's item in `items`")
    device: np.ndarray = declared("int32: the device that runs it")
    start: np.ndarray = declared("float64, seconds")
    end: np.ndarray = declared("float64, seconds")
    items: tuple[FillItem, ...] = declared("the checked items")
    left_over: np.ndarray = declared('int64, one entry per item: pieces that fit nowhere; 0 for count "max"')
    idle: np.ndarray = declared("seconds per device")
    used: np.ndarray = declared("seconds per device: the part of it that pieces use")
    too_little_memory: np.ndarray = declared("seconds per device")
    too_short: np.ndarray = declared("seconds per device")
    step: float = declared("seconds of the step, which the pieces do not lengthen")
    usable: float | None = declared("bytes of a device that may be used")
    peak_before: np.ndarray | None = declared("bytes per device, without the pieces")
    peak_after: np.ndarray | None = declared("bytes per device, with the pieces")
    room: IdleSpans = declared("idle time with the length of the shortest piece and the least memory of an item")
    bubbles: int = declared("number of all bubbles")
    run: Any = field(default=MISSING, repr=False, compare=False)  # required, as the declared fields are

    @property
    def used_fraction(self) -> float:
        """Fraction of the idle time that pieces use."""
        idle = float(self.idle.sum())
        return float(self.used.sum()) / idle if idle > 0 else 0.0

    @property
    def placed(self) -> np.ndarray:
        """Number of pieces that fit, one entry per item."""
        return np.bincount(self.item, minlength=len(self.items))


def fill(
    run: TimelineColumns, items: AnyItems, headroom: float = HEADROOM, capacity: float | str | None = None
) -> Filling:
    """Place work into the idle time of a run, as `Timeline.fill`.

    Pieces with a count come first, the longest first; each goes into the shortest span of idle time that takes it. Then
    the items with count "max" fill what is left. Equal pieces are placed optimally; for others this is the rule "best
    fit decreasing" of bin packing. The time of each item grows with the bubbles, not with its pieces.
    """
    checked = fill_items(items)
    placement = _Placement(run, checked, headroom, capacity)
    for number in sorted(
        range(len(checked)), key=lambda number: (checked[number].is_endless, -checked[number].duration)
    ):
        placement.place(number)
    return placement.result()


class _Placement:
    """Idle time of a run, the pieces placed in it so far, and what is left of both."""

    def __init__(self, run: TimelineColumns, items: Sequence[FillItem], headroom: float, capacity: float | str | None):
        self.run, self.items = run, tuple(items)
        for number, item in enumerate(items):
            if item.device is not None and item.device >= run.schedule.devices:
                raise ConfigError(
                    f"items[{number}]: device={item.device} does not exist; the run has devices 0 to "
                    f"{run.schedule.devices - 1}"
                )
        self.begin = float(run.device_start.min())
        self.idle = self.free = _idle(run)  # free: what no piece uses
        self.usable: float | None = None
        if any(item.memory for item in items):
            self.curves = [_memory_curve(run, device) for device in range(run.schedule.devices)]
            self.usable = usable_memory(device_memory(run), headroom, capacity)
        self.left = [0] * len(items)
        self.rows: list[np.ndarray] = []  # float64 (5, spans): item, device, start, end, pieces

    def _spans(
        self, idle: IdleSpans, memory: float, release: float = 0.0, device: int | None = None
    ) -> tuple[IdleSpans, np.ndarray]:
        """Return the parts of idle time with this much free memory, after `release`, on one device or on all.

        Also return the index in `idle` of each part.
        """
        found, source = self._with_memory(idle, memory) if memory else (idle, np.arange(len(idle.device)))
        start = np.maximum(found.start, self.begin + release)
        chosen = found.end > start
        if device is not None:
            chosen &= found.device == device
        return IdleSpans(found.device[chosen], start[chosen], found.end[chosen]), source[chosen]

    def _with_memory(self, idle: IdleSpans, memory: float) -> tuple[IdleSpans, np.ndarray]:
        """Return the parts of idle time in which a device can hold `memory` more bytes, and the index of each."""
        assert self.usable is not None  # noqa: S101 - some item has memory
        highest, parts = self.usable * (1 + _EXACT) - memory, []
        for device, (times, levels) in enumerate(self.curves):
            indices = np.flatnonzero(idle.device == device)
            start, end = idle.start[indices], idle.end[indices]
            free = levels <= highest
            if not free.all():
                changes = np.flatnonzero(np.diff(free, prepend=False, append=False))
                edges = np.append(times, np.inf)[changes]
                start, end, within = _intersection(start, end, edges[::2], edges[1::2])
                indices = indices[within]
            parts.append((np.full(len(start), device, np.int32), start, end, indices))
        *columns, source = map(np.concatenate, zip(*parts, strict=True))
        return IdleSpans(*columns), source

    def place(self, number: int) -> None:
        """Place the pieces of an item, into the shortest spans first."""
        item = self.items[number]
        spans, source = self._spans(self.free, item.memory, item.release, item.device)
        wanted, seconds = MAX_PIECES if isinstance(item.count, str) else item.count, spans.seconds
        shortest = np.flatnonzero(seconds >= item.duration * (1 - _EXACT))
        if wanted < len(shortest):
            shortest = shortest[seconds[shortest] <= np.partition(seconds[shortest], wanted)[wanted]]
        shortest = shortest[np.argsort(seconds[shortest], kind="stable")]
        device, start, end, source = (column[shortest] for column in (*spans, source))
        fitting = np.maximum(np.floor((end - start) / item.duration * (1 + _EXACT)), 1.0)
        before = np.cumsum(fitting) - fitting
        if item.is_endless and fitting.sum() > wanted:
            raise ConfigError(f"items[{number}]: more than {MAX_PIECES:,} pieces fit; give longer ones, or a count")
        used = before < wanted
        pieces, device, start, end = np.minimum(fitting, wanted - before)[used], device[used], start[used], end[used]
        end = np.minimum(start + pieces * item.duration, end)
        self.free = _without(self.free, IdleSpans(device, start, end), source[used])
        self.rows.append(np.array([np.full(len(device), number), device, start, end, pieces]))
        self.left[number] = 0 if item.is_endless else wanted - int(pieces.sum())

    def result(self) -> Filling:
        """Return the pieces and what is left."""
        item, device, start, until, pieces = np.concatenate(self.rows, axis=1)
        pieces = pieces.astype(np.int64)
        item, device = (np.repeat(column.astype(np.int32), pieces) for column in (item, device))
        duration = np.array([work.duration for work in self.items])[item]
        start = np.repeat(start, pieces) + index_in_list(pieces) * duration
        end = np.minimum(start + duration, np.repeat(until, pieces))
        order = np.lexsort((start, device))
        item, device, start, end = item[order], device[order], start[order], end[order]
        devices = self.run.schedule.devices
        seconds = np.bincount(self.idle.device, self.idle.seconds, devices), np.bincount(device, end - start, devices)
        too_little, too_short = self._unusable()
        before = after = None
        if self.usable is not None:
            before, after = np.asarray(peak_memory(self.run)), self._peaks(item, device, start, end)
        names = tuple(work.name for work in self.items)
        fills = FillSpans(device, np.full(len(item), -1, np.int32), start, end, None, item, names)
        return Filling(
            item, device, start, end, self.items, np.array(self.left, np.int64), *seconds, too_little, too_short,
            iteration_time(self.run), self.usable, before, after, self._room(), len(self.idle.device),
            self.run.changed(fills=fills),
        )  # fmt: skip

    def _peaks(self, item: np.ndarray, device: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
        """Return the peak of each device in bytes, with these pieces."""
        peaks = np.array(peak_memory(self.run))
        memory = np.array([work.memory for work in self.items])[item]
        for number in np.unique(device).tolist():
            indices = device == number
            times, levels = self.curves[number]
            held = largest_level(levels[0], times, levels, start[indices], end[indices])
            peaks[number] = max(peaks[number], float((held + memory[indices]).max()))
        return peaks

    def _room(self) -> IdleSpans:
        """Return the idle spans that are long enough for the shortest piece and have memory for the smallest item."""
        shortest, smallest = min(item.duration for item in self.items), min(item.memory for item in self.items)
        spans, _ = self._spans(self.idle, smallest)
        long = spans.seconds >= shortest * (1 - _EXACT)
        return IdleSpans(*(column[long] for column in spans))

    def _unusable(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the unused seconds per device with too little memory, and in spans that are too short.

        Only items count that may run on the device and are left over or endless; without any, nothing is unusable.
        """
        devices = self.run.schedule.devices
        wanting = [item for item, left in zip(self.items, self.left, strict=True) if left or item.is_endless]
        little, short = np.zeros((2, devices))
        allowed = [[item for item in wanting if item.device in (None, device)] for device in range(devices)]
        smallest = [min((item.memory for item in items), default=None) for items in allowed]
        durations = [min((item.duration for item in items), default=0.0) for items in allowed]
        shortest = np.array(durations) * (1 - _EXACT)
        for memory in {needed for needed in smallest if needed is not None}:
            chosen = np.array([needed == memory for needed in smallest])
            usable, _ = self._spans(self.free, memory)
            too_short = np.where(usable.seconds < shortest[usable.device], usable.seconds, 0.0)
            short += chosen * np.bincount(usable.device, too_short, devices)
            for sign, spans in ((1, self.free), (-1, usable)):
                little += sign * chosen * np.bincount(spans.device, spans.seconds, devices)
        return np.maximum(little, 0.0), short


def _without(idle: IdleSpans, used: IdleSpans, source: np.ndarray) -> IdleSpans:
    """Return what is left of idle time, in any order, without the used spans, which are in the spans `source`."""
    touched = np.unique(source)
    device = np.concatenate([idle.device[touched], used.device])
    start, end = np.concatenate([idle.start[touched], used.end]), np.concatenate([idle.end[touched], used.start])
    start, end = (column[np.lexsort((column, device))] for column in (start, end))  # a used span ends one part
    left = end > start
    parts = np.sort(device)[left], start[left], end[left]
    return IdleSpans(*(np.append(np.delete(column, touched), part) for column, part in zip(idle, parts, strict=True)))


def _idle(run: TimelineColumns) -> IdleSpans:
    """Return the idle time that work can use without a longer step.

    A device's optimizer step is not idle time. If each device starts its next step on its own, its time before its
    first start and after its last end belongs to its other steps.
    """
    begin, end = float(run.device_start.min()), float(run.device_end.max())
    parts = []
    for device in range(run.schedule.devices):
        window = (begin, end)
        if run.plan.optimizer == POST_VALIDATED:
            window = float(run.device_start[device]), float(run.device_end[device])
        start, until = idle_spans(run, device, *window)
        if run.optimizer_steps is not None:
            step = run.step_start[device : device + 1], run.step_end[device : device + 1]
            edges = np.concatenate([[-np.inf], step[1]]), np.concatenate([step[0], [np.inf]])
            start, until, _ = _intersection(start, until, *edges)
        parts.append((np.full(len(start), device, np.int32), start, until))
    return IdleSpans(*map(np.concatenate, zip(*parts, strict=True)))


def _memory_curve(run: TimelineColumns, device: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the step curve of a device's memory, from before the first action on."""
    times, levels = memory_over_time(run, device)
    static = static_memory(run)
    assert static is not None  # noqa: S101 - memory_over_time has raised otherwise
    return np.append(-np.inf, times), np.append(static[:, device].sum(), levels)


def _intersection(
    start: np.ndarray, end: np.ndarray, other_start: np.ndarray, other_end: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return starts, ends and indices of the parts of spans in other spans, which are disjoint and in time order."""
    first = np.searchsorted(other_end, start, "right")
    overlapped = np.maximum(np.searchsorted(other_start, end, "left") - first, 0)
    indices = np.repeat(np.arange(len(start)), overlapped)
    others = np.repeat(first, overlapped) + index_in_list(overlapped)
    begin, until = np.maximum(start[indices], other_start[others]), np.minimum(end[indices], other_end[others])
    return begin[until > begin], until[until > begin], indices[until > begin]
