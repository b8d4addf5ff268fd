"""Memory of a timeline: live activations and bytes of each device, over time and at the peak."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ppsim.actions import Kind, is_backward
from ppsim.base.errors import CostError
from ppsim.base.immutable import EqualColumns, cached_column, cached_on
from ppsim.base.rules import argument, declared, described, number, quantity
from ppsim.base.tables import aligned, even_column, html_table
from ppsim.base.units import value_text
from ppsim.lowering.rows import consumers
from ppsim.plan.holding import ActivationMemory, backward_bytes, limits_of, logits_bytes, moved_fraction, static_bytes
from ppsim.plan.lengths import HOST_MEMORY, transfer_bytes
from ppsim.plan.streams import RELOADS
from ppsim.timeline import TimelineColumns

HEADROOM = 0.1  # default fraction of a device's memory that must stay free
PARTS = ("weights", "gradients", "optimizer_state", "activations", "transfer_buffers")


@cached_on
def peak_activations(run: TimelineColumns) -> np.ndarray:
    """Return the largest number of live activations of each device, in microbatches through one device share."""
    share = run.table.stage_share
    unit = share[0] if np.all(share == share[0]) else 1.0  # counts of equal shares are exact
    peak = unit * ActivationMemory(run.schedule, run.table, share / unit).peaks(run.plan.fused)
    if run.plan.copies is not None:
        moving = np.concatenate([run.plan.copies.device, run.plan.copies.host])
        for device in np.unique(moving[moving != HOST_MEMORY]).tolist():
            peak[device] = activations_over_time(run, device)[1].max()
    return peak


def activations_over_time(run: TimelineColumns, device: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the step curve of a device's live activations, as `Timeline.activations_over_time`."""
    run.schedule.rows(device)  # raises for a device that does not exist
    changes = _in_time_order(_activation_changes(run, activation_shares(run), device, device + 1))
    return _step_curve(changes.time, np.cumsum(changes.amount))


@cached_on
def static_memory(run: TimelineColumns) -> np.ndarray | None:
    """Return the bytes of weights, gradients and optimizer state of each device, as `Timeline.static_memory`."""
    return static_bytes(run.schedule, run.table)


@cached_on
def peak_memory(run: TimelineColumns) -> np.ndarray | None:
    """Return the largest memory of each device in bytes; None if the costs do not give the memory of activations."""
    static = static_memory(run)
    if run.table.activation_bytes is None or static is None:
        return None
    peak = static.sum(axis=0)
    changes = _memory_changes(run, 0, len(peak))
    offsets = np.searchsorted(changes.device, np.arange(len(peak) + 1)).tolist()
    for device, rows in enumerate(map(slice, offsets[:-1], offsets[1:])):
        levels = np.cumsum(changes.amount[rows])[_is_last_of_its_time(changes.time[rows])]
        peak[device] += levels.max(initial=0.0)
    return peak


def memory_over_time(run: TimelineColumns, device: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the step curve of a device's memory, as `Timeline.memory_over_time`."""
    static, changes = _static_and_changes(run, device)
    return _step_curve(changes.time, static.sum() + np.cumsum(changes.amount))


def memory_curves(run: TimelineColumns, in_bytes: bool) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the step curve of each device's memory, in bytes or in activations; times are from the first start.

    The first level comes before the first time.
    """
    devices, static = run.schedule.devices, static_memory(run)
    curve_of = memory_over_time if in_bytes else activations_over_time
    before = static.sum(axis=0) if in_bytes and static is not None else np.zeros(devices)
    curves = (curve_of(run, device) for device in range(devices))
    origin = float(run.device_start.min())
    return [(times - origin, np.append(first, levels)) for first, (times, levels) in zip(before, curves, strict=True)]


def memory_parts_over_time(run: TimelineColumns, device: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the times of this curve and its levels by part, float64 (parts, times), in the order of `PARTS`."""
    static, changes = _static_and_changes(run, device)
    last = _is_last_of_its_time(changes.time)
    moving = [np.cumsum(np.where(changes.in_buffer == part, changes.amount, 0.0))[last] for part in (False, True)]
    constant = np.repeat(static[:, None], np.count_nonzero(last), axis=1)
    return changes.time[last], np.concatenate([constant, np.maximum(moving, 0.0)])  # rounding can leave sums below 0


def _static_and_changes(run: TimelineColumns, device: int) -> tuple[np.ndarray, Changes]:
    """Return a device's static memory by part and the changes of the rest; raise CostError if memory is unknown."""
    run.schedule.rows(device)  # raises for a device that does not exist
    static = static_memory(run)
    if run.table.activation_bytes is None or static is None:
        raise CostError(
            "memory is not known: give a model and hardware, or the costs activation_bytes and at least one of "
            "weight_bytes, gradient_bytes and optimizer_bytes"
        )
    return static[:, device], _memory_changes(run, device, device + 1)


class Changes(NamedTuple):
    """Changes of the devices' memory in use, one entry per change."""

    device: np.ndarray  # int32
    time: np.ndarray  # float64, seconds
    amount: np.ndarray  # float64: amount taken; negative if it is freed
    in_buffer: np.ndarray  # True for a transfer buffer, False for an activation


def _activation_changes(run: TimelineColumns, holding: ActivationMemory, first: int, last: int) -> list[Changes]:
    """Return the changes by activations on devices `first` to `last` - 1, in the unit of `holding`.

    An activation that moves is on its own device until the copy out has ended, and again from the start of the copy
    back. It is on the host device from the start of the copy out to the end of the copy back.
    """
    schedule = run.schedule
    rows = slice(schedule.offsets[first], schedule.offsets[last])
    adds, frees = holding.changes(rows)
    device, freeing = schedule.device[rows], np.flatnonzero(frees)
    found = [
        _changes(device[freeing], run.row_end[rows][freeing], -frees[freeing]),
        _changes(device, run.row_start[rows], adds),
    ]
    if run.plan.copies is not None:
        holder, stage, microbatch, time, fraction = _moves(run)
        mine = slice(*np.searchsorted(holder, (first, last)))
        amount = fraction[mine] * holding.parts(stage[mine], microbatch[mine])[0]
        found.append(_changes(holder[mine], time[mine], amount))
    return found


def _memory_changes(run: TimelineColumns, first: int, last: int) -> Changes:
    """Return all changes of the bytes on devices `first` to `last` - 1, device by device in time order."""
    schedule, table, source = run.schedule, run.table, run.plan.source
    consumer = consumers(schedule)
    found = _activation_changes(run, _activation_bytes(run), first, last)
    rows = np.arange(schedule.offsets[first], schedule.offsets[last])
    kind, received, sent = schedule.kind[rows], rows[run.plan.remote[rows]], rows[consumer[rows] >= 0]
    if (recomputed := backward_bytes(table)) is not None:
        backwards = rows[is_backward(kind)]
        found += _held_by_rows(run, recomputed, backwards, backwards)
    if (logits := logits_bytes(schedule, table)) is not None:
        made, used = rows[kind == Kind.S], rows[kind == Kind.T]
        found += _held_by_rows(run, logits, made, used if len(used) else made)
    for device, producer, transfer, until in (
        (schedule.device[received], source[received], received, run.row_end[received]),
        (schedule.device[sent], sent, consumer[sent], run.transfer_end[consumer[sent]]),
    ):
        size = transfer_bytes(schedule, table, producer)
        if size.any():
            found.append(_changes(device, until, -size, in_buffer=True))
            found.append(_changes(device, run.transfer_start[transfer], size, in_buffer=True))
    return _in_time_order(found)


def _held_by_rows(run: TimelineColumns, by_stage: np.ndarray, takers: np.ndarray, freers: np.ndarray) -> list[Changes]:
    """Return the changes by rows `takers`, which take amounts at their start, and `freers`, which free at their end."""
    schedule, found, holding = run.schedule, [], ActivationMemory(run.schedule, run.table, by_stage)
    for rows, time, sign in ((freers, run.row_end, -1.0), (takers, run.row_start, 1.0)):
        amount = holding.parts(schedule.stage[rows], schedule.microbatch[rows])[0]
        found.append(_changes(schedule.device[rows], time[rows], sign * amount))
    return found


def _changes(device: np.ndarray, time: np.ndarray, amount: np.ndarray, in_buffer: bool = False) -> Changes:
    return Changes(device, time, amount, np.full(len(time), in_buffer))


def _in_time_order(changes: list[Changes]) -> Changes:
    """Return the changes of all groups, device by device in time order."""
    columns = Changes(*map(np.concatenate, zip(*changes, strict=True)))
    order = np.lexsort((columns.time, columns.device))
    return Changes(*(column[order] for column in columns))


def _is_last_of_its_time(times: np.ndarray) -> np.ndarray:
    """Return a mask of the last entry of each time: all changes at one time count together."""
    return np.append(np.diff(times) > 0, True)[: len(times)]


def _step_curve(times: np.ndarray, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the last level at each time, if it differs from the level before by more than rounding."""
    last = _is_last_of_its_time(times)
    times, levels = times[last], levels[last]
    changed = np.append(True, np.abs(np.diff(levels)) > 1e-12 * levels.max())
    return times[changed], levels[changed]


@cached_on
def activation_shares(run: TimelineColumns) -> ActivationMemory:
    """Return what the rows of a run add and free, in device shares."""
    return ActivationMemory(run.schedule, run.table, run.table.stage_share)


@cached_on
def _activation_bytes(run: TimelineColumns) -> ActivationMemory:
    return ActivationMemory(run.schedule, run.table, np.asarray(run.table.activation_bytes))


@cached_on
def _moves(run: TimelineColumns) -> tuple[np.ndarray, ...]:
    """Return where each copy changes memory, device by device: device, stage, microbatch, time, fraction of activation.

    The fraction is negative if the copy frees it.
    """
    copies = run.plan.copies
    assert copies is not None  # noqa: S101 - callers look at the copies
    back = np.flatnonzero(copies.direction == RELOADS)
    out, own, host = copies.origin[back], copies.device[back], copies.host[back]
    stage, microbatch = copies.stage[back], copies.microbatch[back]
    fraction = moved_fraction(run.schedule, run.table, stage, microbatch, host == HOST_MEMORY)
    holder = np.concatenate([own, host, host, own])
    time = np.concatenate([run.copy_end[out], run.copy_end[back], run.copy_start[out], run.copy_start[back]])
    columns = holder, np.tile(stage, 4), np.tile(microbatch, 4), time, np.outer([-1, -1, 1, 1], fraction).ravel()
    order = np.argsort(holder, kind="stable")
    return tuple(column[order] for column in columns)


@described
@dataclass(frozen=True, eq=False)
class Memory(EqualColumns):
    """The parts of each device's memory at its peak, which they sum to, in bytes; arrays with one entry per device."""

    weights: np.ndarray = declared("bytes")
    gradients: np.ndarray = declared("bytes")
    optimizer_state: np.ndarray = declared("bytes")
    activations: np.ndarray = declared("bytes")
    transfer_buffers: np.ndarray = declared("bytes")
    moment: np.ndarray = declared("seconds: time of the peak, the first one if it is reached several times")
    capacity: float | None = declared("bytes of one device; None if the costs name no device", default=None)

    @cached_column
    def peak(self) -> np.ndarray:
        """Bytes of each device at its peak."""
        return np.sum([getattr(self, part) for part in PARTS], axis=0)

    def fits(self, headroom: float = HEADROOM, capacity: float | str | None = None) -> bool:
        """Return whether every device's peak fits in its memory - `headroom`, a fraction from 0 to below 1.

        `capacity`, a number of bytes or text such as "80 GB", replaces the device sheet's. The peak contains neither
        the fragments of allocators nor the memory of the framework and its communication libraries: headroom is for
        them. Raises CostError if no capacity is known, ConfigError for an illegal headroom or capacity.
        """
        return bool((self.spare(headroom, capacity) >= 0).all())

    def spare(self, headroom: float = HEADROOM, capacity: float | str | None = None) -> np.ndarray:
        """Return the free bytes of each device below its memory - `headroom`; negative if it does not fit."""
        return usable_memory(self.capacity, headroom, capacity) - self.peak

    def to_dict(self) -> dict[str, Any]:
        """Return all parts, the peak and its time as plain lists, in bytes and seconds."""
        arrays = {name: getattr(self, name).tolist() for name in (*PARTS, "peak", "moment")}
        return {**arrays, "capacity": self.capacity}

    def _columns(self) -> list[list[str]]:
        """Return name, unit and one cell per device of each column."""
        columns = [["device", "", *map(str, range(len(self.peak)))]]
        for name in (*PARTS, "peak", "moment"):
            symbol, cells = even_column(getattr(self, name).tolist(), "seconds" if name == "moment" else "bytes")
            columns.append([name.replace("_", " ").replace("moment", "peak at"), symbol, *cells])
        return columns

    def summary(self) -> str:
        """Return a table with one row per device, with units."""
        known = [] if self.capacity is None else [f"memory of a device: {value_text(self.capacity, 'bytes')}"]
        return "\n".join([*aligned([*zip(*self._columns(), strict=True)], left=0), *known, ""])

    def _repr_html_(self) -> str:
        heads = [f"{name} ({unit})" if unit else name for name, unit, *_ in self._columns()]
        table = html_table(heads, [*zip(*(cells for _, _, *cells in self._columns()), strict=True)])
        return table + self.summary().splitlines()[-1] * (self.capacity is not None)


def usable_part(capacity: float, headroom: float = HEADROOM) -> float:
    """Return the usable bytes of a device with this memory; what fits in them fits, for every command."""
    return capacity * (1 - headroom)


def fit_within(peak: float, usable: float | None, capacity: float | None = None) -> str:
    """Return "fits" for a peak within the usable memory, "tight" for one within the device's, else "over".

    Without `capacity`, `HEADROOM` is that of `usable`.
    """
    if usable is None or peak <= usable:
        return "fits"
    return "tight" if peak <= (usable / (1 - HEADROOM) if capacity is None else capacity) else "over"


def usable_limit(timeline: TimelineColumns, in_bytes: bool = True) -> float | None:
    """Return the usable bytes, or the limit on live activations, of every device; None if not known or not equal."""
    limits = _limits(timeline, in_bytes)
    return None if limits is None or np.any(limits != limits[0]) else float(limits[0])


def fullest_device(timeline: TimelineColumns, in_bytes: bool = True) -> tuple[int, float, float | None]:
    """Return the device whose peak is the largest part of its limit, the peak, and the limit or None if not known."""
    peaks: Any = peak_memory(timeline) if in_bytes else peak_activations(timeline)
    limits = _limits(timeline, in_bytes)
    if limits is None:
        return int(peaks.argmax()), float(peaks.max()), None
    device = max(range(len(peaks)), key=lambda device: (peaks[device] / limits[device], peaks[device]))
    return device, float(peaks[device]), float(limits[device])


def _limits(timeline: TimelineColumns, in_bytes: bool) -> np.ndarray | None:
    """Return the usable bytes, or the limit on live activations, of each device; None if not known.

    Rounding may exceed limits on activations. With an encoder, every device has the highest of them.
    """
    devices, config, memory = timeline.schedule.devices, timeline.config, device_memory(timeline)
    if in_bytes:
        return None if memory is None else np.full(devices, usable_part(memory))
    limit = getattr(config, "memory_limit", None)
    return None if limit is None else limits_of(devices, np.max(limit) if config.has_encoder else limit) * (1 + 1e-9)


def device_memory(timeline: TimelineColumns) -> float | None:
    """Return the bytes of a device of a timeline's cluster; None if they are not known."""
    return None if timeline.table.workload is None else timeline.table.workload.memory


def usable_memory(known: float | None, headroom: float, capacity: float | str | None = None) -> float:
    """Return the usable bytes of a device of `capacity`, or else of `known` bytes.

    Raises CostError if neither is given, ConfigError for an illegal headroom or capacity.
    """
    argument("headroom", headroom, headroom_rule)
    limit = known if capacity is None else argument("capacity", capacity, quantity("bytes"))
    if limit is None:
        raise CostError("no device is known to fit into; give capacity= in bytes, or costs derived for a device")
    return usable_part(limit, headroom)


def fit_of(timeline: TimelineColumns, headroom: float = HEADROOM) -> str:
    """Return how all devices fit (`fit_within`), in bytes or else in activations; "" if that is not known."""
    peak, capacity = peak_memory(timeline), device_memory(timeline)
    if peak is None and (limits := _limits(timeline, in_bytes=False)) is not None:
        return "fits" if np.all(peak_activations(timeline) <= limits) else "over"
    if peak is None or capacity is None:
        return ""
    return fit_within(float(peak.max()), usable_part(capacity, headroom), capacity)


headroom_rule = number(lambda value: 0 <= value < 1, "must be a fraction from 0 to below 1, such as 0.1")


def memory(run: TimelineColumns) -> Memory:
    """Return the breakdown of each device's peak; raise CostError if the costs do not give the memory."""
    devices = run.schedule.devices
    parts, moment = np.empty((len(PARTS), devices)), np.empty(devices)
    for device in range(devices):
        times, columns = memory_parts_over_time(run, device)
        highest = int(columns.sum(axis=0).argmax())
        parts[:, device], moment[device] = columns[:, highest], times[highest]
    columns = dict(zip(PARTS, parts, strict=True))
    return Memory(**columns, moment=moment, capacity=device_memory(run))
