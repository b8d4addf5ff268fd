"""Memory of a timeline: live activations and bytes per device, over time and at the peak."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ppsim.actions import Kind
from ppsim.base.compiling import run_where_it_pays
from ppsim.base.errors import ConfigError, CostError, shown
from ppsim.base.immutable import EqualColumns, kept
from ppsim.base.short_repr import short_repr
from ppsim.base.tables import aligned
from ppsim.base.units import parse_quantity, value_text
from ppsim.lowering.rows import consumers
from ppsim.plan.holding import Holding, moved_fraction
from ppsim.plan.host_copies import RELOADS
from ppsim.plan.lengths import HOST_MEMORY, transfer_bytes
from ppsim.timeline import TimelineColumns

_AT_A_TIME = 16_384  # rows
PARTS = ("weights", "gradients", "optimizer_state", "activations", "transfer_buffers")


class Occupancy:
    """The part of a timeline's measures that is about memory; see `occupancy`."""

    def __init__(self, timeline: TimelineColumns):
        self.timeline = timeline.named(timeline.name)  # the timeline holds this, and would hold itself
        self.schedule, self.plan, self.table = timeline.schedule, timeline.plan, timeline.table

    @cached_property
    def _shares(self) -> Holding:
        return Holding(self.schedule, self.table, self.table.stage_share)

    @cached_property
    def _bytes(self) -> Holding:
        return Holding(self.schedule, self.table, self._activation_bytes)

    @property
    def _activation_bytes(self) -> np.ndarray:
        """Bytes of an activation by stage; CostError where memory is not known."""
        if self.table.activation_bytes is None or self.static_memory is None:
            raise CostError(
                "memory is not known: the costs give no activation_bytes, or none of weight_bytes, gradient_bytes and "
                "optimizer_bytes"
            )
        return self.table.activation_bytes

    def _few_devices(self) -> Iterator[tuple[int, int]]:
        """From the first to behind the last of some devices at a time, whose columns stay in the processor's caches."""
        offsets, behind = self.schedule.offsets, 0
        while behind < self.schedule.devices:
            first = behind
            behind = max(int(np.searchsorted(offsets, offsets[first] + _AT_A_TIME, "right")) - 1, first + 1)
            yield first, behind

    def _amount(self, weight: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """What a whole activation of each of these rows holds; `weight` is by stage."""
        schedule = self.schedule
        stage, microbatch = schedule.stage[rows], schedule.microbatch[rows]
        return weight[stage] / schedule.slices * self.table.scale_of(schedule, stage, microbatch)

    def _visits(self, device: int, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """From when to when activations are on a device beside what its actions hold there, and their amount.

        An activation that moves is counted where it comes from until the move ends, and where it goes to from the start
        of the move on; while it is away the amount of its own device is negative. `weight` is per stage.
        """
        copies, run = self.plan.copies, self.timeline
        if copies is None:
            return np.empty(0), np.empty(0), np.empty(0)
        reload = np.flatnonzero(copies.way == RELOADS)
        away, hosted = reload[copies.device[reload] == device], reload[copies.host[reload] == device]
        both = np.concatenate([away, hosted])
        stage, microbatch = copies.stage[both], copies.microbatch[both]
        to_host = copies.host[both] == HOST_MEMORY
        moved = moved_fraction(self.schedule, self.table, stage, microbatch, to_host)
        amount = weight[stage] * moved / self.schedule.slices
        amount = amount * self.table.scale_of(self.schedule, stage, microbatch)
        return (
            np.concatenate([run.copy_end[copies.origin[away]], run.copy_start[copies.origin[hosted]]]),
            np.concatenate([run.copy_start[away], run.copy_end[hosted]]),
            np.where(np.arange(len(both)) < len(away), -amount, amount),
        )

    def _changes(self, holding: Holding, rows: slice) -> tuple[np.ndarray, np.ndarray]:
        """What remains of each of these rows after its end, and what it frees then.

        Actions of a device run one at a time, so list order is time order; a timed fused slot takes before it frees.
        """
        adds, frees = holding.changes(rows)
        second = np.flatnonzero(self.plan.fused[rows])
        if len(second):
            adds[second - 1] += adds[second]
            frees[second] += frees[second - 1]
            adds[second] = frees[second - 1] = 0.0
        adds -= frees
        return adds, frees

    @cached_property
    def peak_activations(self) -> np.ndarray:
        """As `Timeline.peak_activations`."""
        share, offsets = self.table.stage_share, self.schedule.offsets
        unit = share[0] if np.all(share == share[0]) else 1.0  # counting first keeps whole numbers exact
        holding = Holding(self.schedule, self.table, share / unit)
        peak = np.empty(self.schedule.devices)
        for first, behind in self._few_devices():
            changes = self._changes(holding, slice(offsets[first], offsets[behind]))
            few = offsets[first : behind + 1] - offsets[first]
            run_where_it_pays(highest, int(offsets[-1]), few, *changes, peak[first:behind])
        peak *= unit
        copies = self.plan.copies
        moving = np.empty(0, int) if copies is None else np.concatenate([copies.device, copies.host])
        for device in np.unique(moving[moving >= 0]).tolist():
            peak[device] = self.activations_over_time(device)[1].max()
        return peak

    def activations_over_time(self, device: int) -> tuple[np.ndarray, np.ndarray]:
        """As `Timeline.activations_over_time`."""
        rows = self.schedule.rows(device)
        remains, frees = self._changes(self._shares, rows)
        after_end = np.cumsum(remains)
        after_start = after_end + frees
        in_slot = self.plan.fused[rows]
        happens = np.stack([~in_slot, np.append(~in_slot[1:], True)], axis=1)
        times = np.stack([self.timeline.row_start[rows], self.timeline.row_end[rows]], axis=1)
        levels = np.stack([after_start, after_end], axis=1)
        visits = self._visits(device, self.table.stage_share)
        return _steps(*_with_visits(times[happens], levels[happens], *visits))

    @cached_property
    def peak_memory(self) -> np.ndarray | None:
        """As `Timeline.peak_memory`."""
        static = self.static_memory
        if self.table.activation_bytes is None or static is None:
            return None
        peak = static.sum(axis=0)
        for first, behind in self._few_devices():
            time, change, _, offsets = self._memory_changes(first, behind)
            run_where_it_pays(highest_memory, len(self.schedule.kind), offsets, time, change, peak[first:behind])
        return peak

    @cached_property
    def static_memory(self) -> np.ndarray | None:
        """As `Timeline.static_memory`."""
        if self.table.state_bytes is None:
            return None
        device, stage = self.schedule.holdings.T
        parts = [np.bincount(device, part[stage], minlength=self.schedule.devices) for part in self.table.state_bytes]
        parts[0] *= self.schedule.weight_versions
        return np.stack(parts)

    def memory_over_time(self, device: int) -> tuple[np.ndarray, np.ndarray]:
        """As `Timeline.memory_over_time`."""
        times, changes, _ = self._changes_of(device)
        return _steps(times, self._static(device).sum() + np.cumsum(changes))

    def memory_parts_over_time(self, device: int) -> tuple[np.ndarray, np.ndarray]:
        """As `Timeline.memory_parts_over_time`, the levels with a row for each of `PARTS`."""
        times, changes, is_buffer = self._changes_of(device)
        last = np.append(np.diff(times) > 0, True)
        moving = [np.cumsum(np.where(is_buffer == buffer, changes, 0.0))[last] for buffer in (False, True)]
        # Rounding of sums that came back to zero must not show as a negative amount.
        static = np.repeat(self._static(device)[:, None], int(last.sum()), axis=1)
        return times[last], np.concatenate([static, np.maximum(moving, 0.0)])

    def _static(self, device: int) -> np.ndarray:
        assert self.static_memory is not None  # noqa: S101 - `_memory_changes` has raised otherwise
        return self.static_memory[:, device]

    def _changes_of(self, device: int) -> tuple[np.ndarray, ...]:
        self.schedule.rows(device)  # refuses a device that does not exist
        return self._memory_changes(device, device + 1)[:3]

    def _memory_changes(self, first: int, behind: int) -> tuple[np.ndarray, ...]:
        """The changes of the memory of devices from `first` to before `behind`, by device in the order of time.

        When, by how many bytes, whether of a buffer, and where the changes of each device begin; at one time, what is
        freed comes first. Nothing is sorted that comes in order: actions in that of their lists, transfers in that of
        the actions that send them.
        """
        schedule, run = self.schedule, self.timeline
        rows = np.arange(schedule.offsets[first], schedule.offsets[behind])
        adds, frees = self._bytes.changes(slice(schedule.offsets[first], schedule.offsets[behind]))
        sent, arriving, received = self._transfers(first, behind)
        sender, bytes_of = self._sender(sent), self._received_bytes
        again, again_bytes = self._recomputing(rows)
        freeing = np.flatnonzero(frees)
        begins, over, visiting, visited = self._all_visits(first, behind)
        comes, goes = np.where(visiting >= 0, begins, over), np.where(visiting >= 0, over, begins)
        moved, device = np.abs(visiting), schedule.device
        changes = [  # of which device, when, by how many bytes, whether of a buffer
            (device[rows[freeing]], run.row_end[rows[freeing]], -frees[freeing], False),
            (device[received], run.row_end[received], -bytes_of[received], True),
            (sender, run.transfer_end[sent], -bytes_of[sent], True),
            (device[again], run.row_end[again], -again_bytes, False),
            (visited, goes, -moved, False),
            (device[rows], run.row_start[rows], adds, False),
            (device[arriving], run.transfer_start[arriving], bytes_of[arriving], True),
            (sender, run.transfer_start[sent], bytes_of[sent], True),
            (device[again], run.row_start[again], again_bytes, False),
            (visited, comes, moved, False),
        ]
        holder, time, change = (np.concatenate(parts) for parts in list(zip(*changes, strict=True))[:3])
        is_buffer = np.repeat([of[3] for of in changes], [len(of[0]) for of in changes])
        order, offsets = _by_device_in_time((holder - first).astype(np.int16), time, behind - first)
        return time[order], change[order], is_buffer[order], offsets

    def _transfers(self, first: int, behind: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The transfers that some devices send, and those that they receive twice: as they are sent, and in list order.

        Rows that consume them; none where no transfer has bytes.
        """
        if not len(self._received_bytes):
            none = np.empty(0, np.int64)
            return none, none, none
        rows = slice(self.schedule.offsets[first], self.schedule.offsets[behind])
        parts = [by[begin[first] : begin[behind]] for by, begin in self._ordered_transfers]
        return parts[0], parts[1], rows.start + np.flatnonzero(self.plan.remote[rows])

    def _all_visits(self, first: int, behind: int) -> tuple[np.ndarray, ...]:
        """`_visits` and `_logits` of some devices, and the device of each."""
        if self.plan.copies is None and not self.schedule.cuts_vocabulary:
            return np.empty(0), np.empty(0), np.empty(0), np.empty(0, np.int32)
        parts = []
        for device in range(first, behind):
            for found in (self._visits(device, self._activation_bytes), self._logits(device)):
                parts.append((*found, np.full(len(found[0]), device, np.int32)))
        return tuple(map(np.concatenate, zip(*parts, strict=True)))

    def _rows(self, device: int) -> np.ndarray:
        rows = self.schedule.rows(device)
        return np.arange(rows.start, rows.stop)

    def _logits(self, device: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """From when to when the parts of an output layer hold their logits on a device, and how many bytes."""
        schedule, held = self.schedule, self.table.vocabulary_bytes
        if held is None or not schedule.cuts_vocabulary:
            return np.empty(0), np.empty(0), np.empty(0)
        rows = self._rows(device)
        made, freed = (rows[schedule.kind[rows] == kind] for kind in (Kind.S, Kind.T))
        made, freed = (
            part[np.lexsort((schedule.microbatch[part], schedule.stage[part]))]
            for part in (made, freed if len(freed) else made)
        )
        return self.timeline.row_start[made], self.timeline.row_end[freed], self._amount(held, made)

    def _recomputing(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The backwards among rows that recompute, and the bytes that each holds for that from start to end."""
        kind, table_bytes = self.schedule.kind, self.table.recompute_bytes
        if table_bytes is None or not table_bytes.any():
            return rows[:0], np.zeros(0)
        rows = rows[(kind[rows] == Kind.B) | (kind[rows] == Kind.I)]
        return rows, self._amount(table_bytes, rows)

    @cached_property
    def _ordered_transfers(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """All transfers in the order of the rows that send them, by sender and by receiver, and where each begins."""
        transfers = consumers(self.plan.source, self.plan.remote)
        transfers = transfers[transfers >= 0]
        devices, receiver = self.schedule.devices, self.schedule.device[transfers]
        by_receiver = transfers[np.argsort(receiver.astype(np.min_scalar_type(devices)), kind="stable")]
        return [
            (by, np.append(0, np.cumsum(np.bincount(of, minlength=devices))))
            for by, of in ((transfers, self._sender(transfers)), (by_receiver, receiver))
        ]

    def _sender(self, transfers: np.ndarray) -> np.ndarray:
        return self.schedule.device[self.plan.source[transfers]]

    @cached_property
    def _received_bytes(self) -> np.ndarray:
        """Bytes that each row receives where it needs a transfer; empty where no transfer has bytes."""
        if not self.table.transfer_bytes.any():
            return np.empty(0)
        return transfer_bytes(self.schedule, self.table, self.plan.source)


occupancy = kept(Occupancy)


def highest(offsets, remains, frees, peak):
    """Fill `peak`, by device, with the most that is held just after the start of a row."""
    for device in range(len(offsets) - 1):
        level, most = 0.0, 0.0
        for row in range(offsets[device], offsets[device + 1]):
            level += remains[row]
            most = max(most, frees[row] + level)
        peak[device] = most


def highest_memory(offsets, time, change, peak):
    """Add to `peak`, by device what it always holds, the most that changes add; at one time all of them count."""
    for device in range(len(offsets) - 1):
        held = peak[device]
        level = 0.0
        for one in range(offsets[device], offsets[device + 1]):
            level += change[one]
            if one + 1 == offsets[device + 1] or time[one + 1] > time[one]:
                peak[device] = max(peak[device], held + level)


def _by_device_in_time(holder: np.ndarray, time: np.ndarray, devices: int) -> tuple[np.ndarray, np.ndarray]:
    """The order of changes by device, int16, and by time; where those of each device begin. Equal ones stay in order.

    Numbers of 16 bits are placed by counting; a stable sort merges the parts that are in order already.
    """
    order = np.argsort(holder, kind="stable")
    offsets = np.append(0, np.cumsum(np.bincount(holder, minlength=devices)))
    time = time[order]
    for device in range(devices):
        changes = slice(offsets[device], offsets[device + 1])
        order[changes] = order[changes][np.argsort(time[changes], kind="stable")]
    return order, offsets


def peak_activations(run: TimelineColumns) -> np.ndarray:
    """Largest number of live activations of each device, in microbatches through one device share of the model."""
    return occupancy(run).peak_activations


def peak_memory(run: TimelineColumns) -> np.ndarray | None:
    """Largest memory of each device in bytes; None where the costs do not say what is held."""
    return occupancy(run).peak_memory


def _steps(times: np.ndarray, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The last level at each time, where it differs from the level before by more than rounding."""
    last = np.append(np.diff(times) > 0, True)
    times, levels = times[last], levels[last]
    changed = np.append(True, np.abs(np.diff(levels)) > 1e-12 * levels.max())
    return times[changed], levels[changed]


def _with_visits(
    times: np.ndarray, levels: np.ndarray, arrive: np.ndarray, depart: np.ndarray, amount: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The step curve (times, levels) with visits on top: `amount[i]` more from `arrive[i]` until `depart[i]`.

    Returns times and levels with one entry at each time at which either changes; at one time, what leaves leaves first.
    """
    moved = np.concatenate([arrive, depart])
    order = np.argsort(moved, kind="stable")
    visiting = np.cumsum(np.concatenate([amount, -amount])[order])
    both = np.union1d(times, moved)
    own_at, visits_at = (np.searchsorted(at, both, "right") for at in (times, moved[order]))
    return both, np.append(0.0, levels)[own_at] + np.append(0.0, visiting)[visits_at]


@dataclass(frozen=True, eq=False)
class Memory(EqualColumns):
    """What each device holds at the moment when it holds most; arrays with one entry a device.

    Attributes
    ----------
    weights, gradients, optimizer_state, activations, transfer_buffers : bytes
        They sum to `peak`.
    moment : seconds
        When the peak is first reached.
    capacity : bytes or None
        Memory of one device; None where the costs name no device.
    """

    weights: np.ndarray
    gradients: np.ndarray
    optimizer_state: np.ndarray
    activations: np.ndarray
    transfer_buffers: np.ndarray
    moment: np.ndarray
    capacity: float | None = None

    __repr__ = short_repr

    @cached_property
    def peak(self) -> np.ndarray:
        """Bytes of each device at its peak."""
        return np.sum([getattr(self, part) for part in PARTS], axis=0)

    def fits(self, headroom: float = 0.0, capacity: float | str | None = None) -> bool:
        """Whether every device's peak stays within its memory less `headroom`, a part of it from 0 to below 1.

        `capacity`, a number of bytes or text such as "80 GB", replaces the device sheet's. What allocators lose to
        fragments, and what the framework and its communication libraries hold, is not in the peak: headroom is for
        them. Raises CostError where no capacity is known, ConfigError for a headroom outside 0..1 or a capacity that is
        no size.
        """
        return bool((self.spare(headroom, capacity) >= 0).all())

    def spare(self, headroom: float = 0.0, capacity: float | str | None = None) -> np.ndarray:
        """Bytes left on each device below its memory less `headroom`; negative where it does not fit."""
        check_headroom(headroom)
        limit = self.capacity if capacity is None else _bytes(capacity)
        if limit is None:
            raise CostError("no device is known to fit into; give capacity= in bytes, or costs derived for a device")
        return limit * (1 - headroom) - self.peak

    def to_dict(self) -> dict[str, Any]:
        """All parts, the peak and its moment as plain lists, in bytes and seconds."""
        arrays = {name: getattr(self, name).tolist() for name in (*PARTS, "peak", "moment")}
        return {**arrays, "capacity": self.capacity}

    def summary(self) -> str:
        """A table with one row a device, with units."""
        names = ("device", *PARTS, "peak", "moment")
        rows = [[name.replace("_", " ") for name in names]]
        for device in range(len(self.peak)):
            sizes = [value_text(float(getattr(self, name)[device]), "bytes") for name in (*PARTS, "peak")]
            rows.append([str(device), *sizes, value_text(float(self.moment[device]), "seconds")])
        lines = aligned(rows, left=0)
        if self.capacity is not None:
            lines.append(f"memory of a device: {value_text(self.capacity, 'bytes')}")
        return "\n".join(lines) + "\n"

    def _repr_html_(self) -> str:
        return f"<pre>{self.summary()}</pre>"


def check_headroom(headroom: Any) -> None:
    """ConfigError unless `headroom` is a part from 0 to below 1."""
    if isinstance(headroom, bool) or not isinstance(headroom, int | float) or not 0 <= headroom < 1:
        raise ConfigError(f"headroom={shown(headroom)} must be a part of the memory from 0 to below 1, such as 0.1")


def _bytes(capacity: float | str) -> float:
    try:
        return parse_quantity(capacity, "bytes")
    except ConfigError as error:
        raise ConfigError(f"capacity: {error}") from None


def memory(timeline: TimelineColumns) -> Memory:
    """The breakdown of each device's peak; CostError where the costs do not say what is held."""
    devices = timeline.schedule.devices
    parts, moment = np.empty((len(PARTS), devices)), np.empty(devices)
    for device in range(devices):
        times, columns = occupancy(timeline).memory_parts_over_time(device)
        highest = int(columns.sum(axis=0).argmax())
        parts[:, device], moment[device] = columns[:, highest], times[highest]
    workload = timeline.table.workload
    capacity = None if workload is None else workload.memory
    return Memory(parts[0], parts[1], parts[2], parts[3], parts[4], moment, capacity)
