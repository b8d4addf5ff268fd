"""Crowding: how many blocks a device has room for, and on which of its stages it holds them for the shortest time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ppsim.analysis.static_bounds import SAFETY, ScheduleSummary
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.layers import Layer
from ppsim.costs.layout_string import LayoutString
from ppsim.costs.table import CostTable


@dataclass(frozen=True)
class Blocks:
    """What one more block on a stage adds to what its device holds.

    Attributes
    ----------
    added, first_added : float64 (moments, places)
        Bytes in each of a summary's moments, by the places of the device's stages; and what the first block of a stage
        adds to that, where its backward recomputes while nothing else of the stage does as much.
    stage : int64 (devices, places)
        The stage at each place; -1 where the device has fewer.
    device : int64, one entry a moment
    first : int64, one entry a device
        Its first moment.
    """

    added: np.ndarray
    first_added: np.ndarray
    stage: np.ndarray
    device: np.ndarray
    first: np.ndarray

    @classmethod
    def of(cls, costs: DerivedCosts, summary: ScheduleSummary, table: CostTable, of_predictions: int) -> Blocks:
        """The blocks of a model, all alike in their mean, under a schedule, with the predictions in one stage."""
        schedule, moments = summary.actions, summary.peaks
        layers, levels = costs.model.layers, costs.layout.recompute_of(schedule.num_stages)
        blocks = [layer for layer in layers if layer.name == "block"]
        ends: list[list[Layer]] = [[] for _ in levels]
        ends[of_predictions] += [layer for layer in layers if layer.name == "prediction"]
        ends[-1] += layers[-1:]
        held = {level: np.mean([costs.activation_bytes(one, level) for one in blocks]) for level in {*levels}}
        again = {level: costs.backward_bytes(blocks[:1], level) for level in held}
        beside = [costs.backward_bytes(own, level) for own, level in zip(ends, levels, strict=True)]
        whole, opened = (np.array([part[level] for level in levels]) / schedule.slices for part in (held, again))
        opened = np.maximum(opened - np.array(beside) / schedule.slices, 0.0)
        live = moments.held[0] + moments.held[1] * table.weight_grad_fraction[moments.stage]
        weights, *others = (part / len(blocks) for part in costs.layout.state_bytes(costs.held(blocks), 0.0))
        state = weights * schedule.weight_versions + sum(others)
        first = np.searchsorted(moments.device, np.arange(schedule.devices))
        number = np.bincount(schedule.holdings[:, 0], minlength=schedule.devices)
        is_there = np.arange(moments.stage.shape[1]) < number[:, None]
        stage = np.where(is_there, moments.stage[first], -1)
        added = live * whole[moments.stage] + state[moments.device, None]
        return cls(added, moments.recomputing * opened[moments.stage], stage, moments.device, first)

    def bytes_of(self, counts: np.ndarray) -> np.ndarray:
        """What the blocks take in each moment; `counts` says how many each stage has."""
        own = np.where(self.stage < 0, 0, counts[self.stage])[self.device]
        return (self.added * own + self.first_added * (own > 0)).sum(axis=1)

    def fullest(self, held: np.ndarray) -> np.ndarray:
        """The most of what is held in moments, by device."""
        return np.maximum.reduceat(held, self.first, axis=0)


@dataclass(frozen=True)
class Crowd:
    """Blocks on the devices, beside all else that these hold.

    Attributes
    ----------
    blocks : Blocks
    is_open : bool (devices, places)
        Whether the stage at a place may have blocks.
    others : float64, one entry a moment
        Bytes of all but blocks.
    """

    blocks: Blocks
    is_open: np.ndarray
    others: np.ndarray

    @classmethod
    def of(cls, blocks: Blocks, partition: LayoutString, held: np.ndarray) -> Crowd:
        """With the other pieces where a partition has them, under which each moment holds `held`."""
        counts = _block_counts(partition)
        is_open = (blocks.stage >= 0) & (blocks.stage <= _last_open(partition.stages))
        return cls(blocks, is_open, held - blocks.bytes_of(counts))

    def most_room(self, limit: float) -> np.ndarray:
        """Blocks that each device has room for at most within so many bytes, on whichever of its stages.

        In no moment, and in no mean of moments, does a block take less than on the stage where it takes least.
        """
        added = np.where(self.is_open[self.blocks.device], self.blocks.added, np.inf)
        number = np.diff(np.append(self.blocks.first, len(added)))
        means = [np.add.reduceat(part, self.blocks.first) for part in (added, self.others)]
        in_mean = (limit / SAFETY * number - means[1]) / means[0].min(axis=1)
        in_moments = np.minimum.reduceat((limit / SAFETY - self.others) / added.min(axis=1), self.blocks.first)
        return np.floor(np.minimum(in_mean, in_moments) * (1 + 1e-9)).astype(int)

    def even_room(self, limit: float, most: int) -> np.ndarray:
        """Blocks, up to `most`, that each device has room for with as many on each of its stages; -1: for none."""
        open_places = self.is_open.sum(axis=1)[:, None, None]
        order = np.where(self.is_open, np.cumsum(self.is_open, axis=1) - 1, np.inf)[:, :, None]
        counts = np.maximum(np.ceil((np.arange(most + 1) - order) / np.maximum(open_places, 1)), 0.0)
        own = counts[self.blocks.device]
        taken = np.einsum("ij,ijk->ik", self.blocks.added, own)
        taken += np.einsum("ij,ijk->ik", self.blocks.first_added, own > 0)
        return (self.blocks.fullest(self.others[:, None] + taken) * SAFETY <= limit).sum(axis=1) - 1

    def packed(self, most: int) -> Packing:
        """Up to `most` blocks put onto each device one after the other, where each adds least to the fullest moment."""
        blocks, devices, level = self.blocks, np.arange(len(self.is_open)), self.others
        place, fullest = np.zeros((len(devices), most), np.int64), [blocks.fullest(level)]
        taken = np.zeros(self.is_open.shape)
        for number in range(most):
            added = blocks.added + (taken == 0)[blocks.device] * blocks.first_added
            after = blocks.fullest(level[:, None] + added)
            among_equals = taken * 1e-9 * after.max()  # the one with the fewest blocks
            place[:, number] = chosen = np.where(self.is_open, after + among_equals, np.inf).argmin(axis=1)
            taken[devices, chosen] += 1
            level = level + np.take_along_axis(added, chosen[blocks.device][:, None], axis=1)[:, 0]
            fullest.append(blocks.fullest(level))
        return Packing(self, place, np.stack(fullest, axis=1))


@dataclass(frozen=True)
class Packing:
    """Blocks where they take least memory.

    Attributes
    ----------
    crowd : Crowd
    place : int64 (devices, most)
        Where each block goes.
    bytes : float64 (devices, most + 1)
        What the device then holds at most, with no block, one, and so on.
    """

    crowd: Crowd
    place: np.ndarray
    bytes: np.ndarray

    def room(self, limit: float) -> np.ndarray:
        """How many blocks each device holds within so many bytes; -1 where it has no room for any."""
        return (self.bytes * SAFETY <= limit).sum(axis=1) - 1

    def moved(self, partition: LayoutString, limit: float) -> LayoutString:
        """The partition, with no more blocks moved within each device than it needs to stay within the limit."""
        blocks, stages, counts = self.crowd.blocks, list(partition.stages), _block_counts(partition)
        for device in np.flatnonzero(self._held(counts) > limit):
            own = blocks.stage[device][blocks.stage[device] >= 0]
            wanted = np.bincount(self.place[device, : counts[own].sum()], minlength=len(own))
            while (counts[own] != wanted).any() and self._held(counts)[device] > limit:
                moves = [(less, more) for less in own[counts[own] > wanted] for more in own[counts[own] < wanted]]
                held = [self._held(_with_move(counts, *move))[device] for move in moves]
                counts = _with_move(counts, *moves[int(np.argmin(held))])
        for stage, count in enumerate(counts.tolist()):
            stages[stage] = _with_blocks(stages[stage], count)
        return LayoutString(stages)

    def _held(self, counts: np.ndarray) -> np.ndarray:
        return self.crowd.blocks.fullest(self.crowd.others + self.crowd.blocks.bytes_of(counts)) * SAFETY


def _block_counts(partition: LayoutString) -> np.ndarray:
    return np.array([stage.count("t") for stage in partition.stages])


def _with_move(counts: np.ndarray, less: int, more: int) -> np.ndarray:
    """The counts with a block less in one stage and a block more in another."""
    moved = counts.copy()
    moved[less] -= 1
    moved[more] += 1
    return moved


def _last_open(stages: Sequence[str]) -> int:
    """The last stage that may have blocks: none stand behind a prediction module."""
    return next((stage for stage, text in enumerate(stages) if "m" in text), len(stages) - 1)


def _with_blocks(stage: str, count: int) -> str:
    begin, end = stage.count("E"), len(stage.rstrip("mL"))
    return stage[:begin] + "t" * count + stage[end:]
