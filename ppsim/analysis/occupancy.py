"""What devices hold while a timeline runs: live activations and bytes, at their peak and as curves over time."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ppsim.actions import Kind
from ppsim.base.errors import CostError
from ppsim.base.immutable import kept
from ppsim.plan.holding import held_changes
from ppsim.plan.host_copies import RELOADS, copied_part
from ppsim.plan.resolve import transfer_bytes
from ppsim.schedule.evicted import evicted_rows, with_visits
from ppsim.timeline import TimelineColumns

PARTS = ("weights", "gradients", "optimizer_state", "activations", "transfer_buffers")


class Occupancy:
    """The part of a timeline's measures that is about memory; see `occupancy`."""

    def __init__(self, timeline: TimelineColumns):
        self.timeline = timeline
        self.schedule, self.plan, self.table = timeline.schedule, timeline.plan, timeline.table

    def _activation_changes(self, device: int, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """What each row of a device adds at its start and frees at its end, with evictions; `weight` is by stage."""
        schedule, rows = self.schedule, self.schedule.rows(device)
        adds, frees = held_changes(schedule, self.table, weight, rows)
        if len(schedule.evicted):
            for changes, at in ((frees, self._evicted_rows[0]), (adds, self._evicted_rows[1])):
                here = at[(at >= rows.start) & (at < rows.stop)]
                changes[here - rows.start] = self._amount(weight, here)
        return adds, frees

    def _amount(self, weight: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """What a whole activation of each of these rows holds; `weight` is by stage."""
        schedule = self.schedule
        stage, microbatch = schedule.stage[rows], schedule.microbatch[rows]
        return weight[stage] / schedule.slices * self.table.scale_of(schedule, stage, microbatch)

    @cached_property
    def _evicted_rows(self) -> tuple[np.ndarray, np.ndarray]:
        return evicted_rows(self.schedule)

    def _hosted(self, device: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows whose end brings, and whose start takes, the activations that the device keeps for others."""
        here = self.schedule.evicted[:, 2] == device
        return self._evicted_rows[0][here], self._evicted_rows[1][here]

    def _copied(self, device: int, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """When activations of a device have left for host memory, when they are on their way back, and their amount.

        An activation is counted until its copy out ends and from the start of its copy in; `weight` is per stage.
        """
        copies = self.plan.copies
        if copies is None:
            return np.empty(0), np.empty(0), np.empty(0)
        reload = np.flatnonzero((copies.way == RELOADS) & (copies.device == device))
        stage, microbatch = copies.stage[reload], copies.microbatch[reload]
        amount = weight[stage] * copied_part(self.schedule, self.table, stage, microbatch) / self.schedule.slices
        amount = amount * self.table.scale_of(self.schedule, stage, microbatch)
        return self.timeline.copy_end[copies.origin[reload]], self.timeline.copy_start[reload], amount

    def _live(self, device: int, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Live amount on a device just after each row's start and just after its end; `weight` is per stage.

        Actions of a device run one at a time, so list order is time order; a timed fused slot takes before it frees.
        Device by device the columns stay in the processor's caches, which a million rows do not.
        """
        adds, frees = self._activation_changes(device, weight)
        second = np.flatnonzero(self.plan.fused[self.schedule.rows(device)])
        if len(second):
            adds[second - 1] += adds[second]
            frees[second] += frees[second - 1]
            adds[second] = frees[second - 1] = 0.0
        adds -= frees
        after_end = np.cumsum(adds)
        frees += after_end
        return frees, after_end

    @cached_property
    def peak_activations(self) -> np.ndarray:
        """As `Timeline.peak_activations`."""
        share = self.table.stage_share
        unit = share[0] if np.all(share == share[0]) else 1.0  # counting first keeps whole numbers exact
        counted = share / unit
        peak = np.array([self._live(device, counted)[0].max() for device in range(self.schedule.devices)]) * unit
        copying = [] if self.plan.copies is None else self.plan.copies.device
        for device in np.unique([*self.schedule.evicted[:, 2], *copying]).astype(int).tolist():
            peak[device] = self.activations_over_time(device)[1].max()
        return peak

    def activations_over_time(self, device: int) -> tuple[np.ndarray, np.ndarray]:
        """As `Timeline.activations_over_time`."""
        rows = self.schedule.rows(device)
        after_start, after_end = self._live(device, self.table.stage_share)
        in_slot = self.plan.fused[rows]
        happens = np.stack([~in_slot, np.append(~in_slot[1:], True)], axis=1)
        times = np.stack([self.timeline.row_start[rows], self.timeline.row_end[rows]], axis=1)
        levels = np.stack([after_start, after_end], axis=1)
        leave, back = self._hosted(device)
        amount = self._amount(self.table.stage_share, leave)
        away, again, copied = self._copied(device, self.table.stage_share)
        visits = (
            np.concatenate([self.timeline.row_end[leave], away]),
            np.concatenate([self.timeline.row_start[back], again]),
            np.concatenate([amount, -copied]),
        )
        return _steps(*with_visits(times[happens], levels[happens], *visits))

    @cached_property
    def peak_memory(self) -> np.ndarray | None:
        """As `Timeline.peak_memory`."""
        if self.table.activation_bytes is None or self.table.state_bytes is None:
            return None
        return np.array([self.memory_over_time(device)[1].max() for device in range(self.schedule.devices)])

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
        times, changes, _ = self._memory_changes(device)
        return _steps(times, self._static(device).sum() + np.cumsum(changes))

    def memory_parts_over_time(self, device: int) -> tuple[np.ndarray, np.ndarray]:
        """As `Timeline.memory_parts_over_time`, the levels with a row for each of `PARTS`."""
        times, changes, is_buffer = self._memory_changes(device)
        last = np.append(np.diff(times) > 0, True)
        moving = [np.cumsum(np.where(is_buffer == buffer, changes, 0.0))[last] for buffer in (False, True)]
        # Rounding of sums that came back to zero must not show as a negative amount.
        static = np.repeat(self._static(device)[:, None], int(last.sum()), axis=1)
        return times[last], np.concatenate([static, np.maximum(moving, 0.0)])

    def _static(self, device: int) -> np.ndarray:
        assert self.static_memory is not None  # noqa: S101 - `_memory_changes` has raised otherwise
        return self.static_memory[:, device]

    def _memory_changes(self, device: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Every change of a device's memory in the order of time: when, by how many bytes, and whether of a buffer."""
        schedule, activation_bytes = self.schedule, self.table.activation_bytes
        if activation_bytes is None or self.static_memory is None:
            raise CostError(
                "memory is not known: the costs give no activation_bytes, or none of weight_bytes, gradient_bytes and "
                "optimizer_bytes"
            )
        rows = np.arange(len(schedule.kind))[schedule.rows(device)]
        adds, frees = self._activation_changes(device, activation_bytes)
        received = rows[self.plan.remote[rows]]
        sent = self._sent_by(device)
        leave, back = self._hosted(device)
        hosted_bytes = self._amount(activation_bytes, leave)
        in_bytes = transfer_bytes(schedule, self.table, self.plan.source[received])
        out_bytes = transfer_bytes(schedule, self.table, self.plan.source[sent])
        again, again_bytes = self._recomputing(device)
        run = self.timeline
        away, back_again, copied = self._copied(device, activation_bytes)
        times = [
            run.row_end[rows], run.row_end[received], run.transfer_end[sent], run.row_start[back], run.row_end[again],
            away, run.row_start[rows], run.transfer_start[received], run.transfer_start[sent], run.row_end[leave],
            run.row_start[again], back_again,
        ]  # fmt: skip
        changes = [
            -frees, -in_bytes, -out_bytes, -hosted_bytes, -again_bytes, -copied,
            adds, in_bytes, out_bytes, hosted_bytes, again_bytes, copied,
        ]  # fmt: skip
        time, change = np.concatenate(times), np.concatenate(changes)
        is_take = np.repeat([0] * 6 + [1] * 6, [len(part) for part in times])
        order = np.lexsort((is_take, time))
        is_buffer = np.repeat([False, True, True, False, False, False] * 2, [len(part) for part in times])
        return time[order], change[order], is_buffer[order]

    def _recomputing(self, device: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the device's backwards that recompute, and the bytes that each holds for that from start to end."""
        kind, table_bytes = self.schedule.kind, self.table.recompute_bytes
        rows = np.arange(len(kind))[self.schedule.rows(device)]
        if table_bytes is None or not table_bytes.any():
            return rows[:0], np.zeros(0)
        rows = rows[(kind[rows] == Kind.B) | (kind[rows] == Kind.I)]
        return rows, self._amount(table_bytes, rows)

    def _sent_by(self, device: int) -> np.ndarray:
        """The transfers that a device sends, named by the rows that consume them."""
        transfers, first = self._transfers_by_sender
        return transfers[first[device] : first[device + 1]]

    @cached_property
    def _transfers_by_sender(self) -> tuple[np.ndarray, np.ndarray]:
        transfers = np.flatnonzero(self.plan.remote)
        sender = self.schedule.device[self.plan.source[transfers]]
        order = np.argsort(sender, kind="stable")
        return transfers[order], np.searchsorted(sender[order], np.arange(self.schedule.devices + 1))


occupancy = kept(Occupancy)


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
