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
from ppsim.timeline import TimelineColumns

PARTS = ("weights", "gradients", "optimizer_state", "activations", "transfer_buffers")


class Occupancy:
    """The part of a timeline's measures that is about memory; see `occupancy`."""

    def __init__(self, timeline: TimelineColumns):
        self.timeline = timeline.named(timeline.name)  # the timeline holds this, and would hold itself
        self.schedule, self.plan, self.table = timeline.schedule, timeline.plan, timeline.table

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
        amount = weight[stage] * copied_part(self.schedule, self.table, copies, both) / self.schedule.slices
        amount = amount * self.table.scale_of(self.schedule, stage, microbatch)
        return (
            np.concatenate([run.copy_end[copies.origin[away]], run.copy_start[copies.origin[hosted]]]),
            np.concatenate([run.copy_start[away], run.copy_end[hosted]]),
            np.where(np.arange(len(both)) < len(away), -amount, amount),
        )

    def _live(self, device: int, weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Live amount on a device just after each row's start and just after its end; `weight` is per stage.

        Actions of a device run one at a time, so list order is time order; a timed fused slot takes before it frees.
        Device by device the columns stay in the processor's caches, which a million rows do not.
        """
        adds, frees = held_changes(self.schedule, self.table, weight, self.schedule.rows(device))
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
        copies = self.plan.copies
        moving = np.empty(0, int) if copies is None else np.concatenate([copies.device, copies.host])
        for device in np.unique(moving[moving >= 0]).tolist():
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
        visits = self._visits(device, self.table.stage_share)
        return _steps(*_with_visits(times[happens], levels[happens], *visits))

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
        rows = self._rows(device)
        adds, frees = held_changes(schedule, self.table, activation_bytes, schedule.rows(device))
        received = rows[self.plan.remote[rows]]
        sent = self._sent_by(device)
        in_bytes = transfer_bytes(schedule, self.table, self.plan.source[received])
        out_bytes = transfer_bytes(schedule, self.table, self.plan.source[sent])
        again, again_bytes = self._recomputing(device)
        run = self.timeline
        visits = zip(self._visits(device, activation_bytes), self._logits(device), strict=True)
        begin, over, visiting = map(np.concatenate, visits)
        comes, goes = np.where(visiting >= 0, begin, over), np.where(visiting >= 0, over, begin)
        moved = np.abs(visiting)
        times = [
            run.row_end[rows], run.row_end[received], run.transfer_end[sent], run.row_end[again], goes,
            run.row_start[rows], run.transfer_start[received], run.transfer_start[sent], run.row_start[again], comes,
        ]  # fmt: skip
        changes = [
            -frees, -in_bytes, -out_bytes, -again_bytes, -moved, adds, in_bytes, out_bytes, again_bytes, moved,
        ]  # fmt: skip
        time, change = np.concatenate(times), np.concatenate(changes)
        is_take = np.repeat([0] * 5 + [1] * 5, [len(part) for part in times])
        order = np.lexsort((is_take, time))
        is_buffer = np.repeat([False, True, True, False, False] * 2, [len(part) for part in times])
        return time[order], change[order], is_buffer[order]

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

    def _recomputing(self, device: int) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the device's backwards that recompute, and the bytes that each holds for that from start to end."""
        kind, table_bytes = self.schedule.kind, self.table.recompute_bytes
        rows = self._rows(device)
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
