"""Crowding: how many blocks a device has room for, and on which of its stages it holds them for the shortest time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ppsim.analysis.least import SAFETY
from ppsim.analysis.outline import Outline
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
        Bytes in each of an outline's moments, by the places of the device's stages; and what the first block of a stage
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
    def of(cls, costs: DerivedCosts, outline: Outline, table: CostTable, of_predictions: int) -> Blocks:
        """The blocks of a model, all alike in their mean, under a schedule, with the predictions in one stage."""
        schedule, moments = outline.actions, outline.moments
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
        return cls(added, moments.again * opened[moments.stage], stage, moments.device, first)

    def bytes_of(self, counts: np.ndarray) -> np.ndarray:
        """What the blocks take in each moment; `counts` says how many each stage has."""
        own = np.where(self.stage < 0, 0, counts[self.stage])[self.device]
        return (self.added * own + self.first_added * (own > 0)).sum(axis=1)

    def fullest(self, held: np.ndarray) -> np.ndarray:
        """The most of what is held in moments, by device."""
        return np.maximum.reduceat(held, self.first, axis=0)


@dataclass(frozen=True)
class Crowd:
    """Blocks put onto each device one after the other, each on the stage where it adds least to the fullest moment.

    Attributes
    ----------
    blocks : Blocks
    others : float64, one entry a moment
        Bytes of all but blocks.
    place : int64 (devices, most)
        Where each block goes.
    bytes : float64 (devices, most + 1)
        What the device then holds at most, with no block, one, and so on.
    """

    blocks: Blocks
    others: np.ndarray
    place: np.ndarray
    bytes: np.ndarray

    @classmethod
    def of(cls, blocks: Blocks, partition: LayoutString, held: np.ndarray, most: int) -> Crowd:
        """Up to `most` blocks on each device; `held` is what each moment holds under a partition, whose other pieces
        stay where they are.
        """
        counts = np.array([stage.count("t") for stage in partition.stages])
        is_open = (blocks.stage >= 0) & (blocks.stage <= _last_open(partition.stages))
        others = level = held - blocks.bytes_of(counts)
        place, fullest = np.zeros((len(is_open), most), np.int64), [blocks.fullest(level)]
        devices, taken = np.arange(len(is_open)), np.zeros(is_open.shape)
        for number in range(most):
            added = blocks.added + np.where(taken == 0, 1.0, 0.0)[blocks.device] * blocks.first_added
            after = blocks.fullest(level[:, None] + added)
            among_equals = taken * 1e-9 * after.max()  # the one with the fewest blocks
            place[:, number] = chosen = np.where(is_open, after + among_equals, np.inf).argmin(axis=1)
            taken[devices, chosen] += 1
            level = level + np.take_along_axis(added, chosen[blocks.device][:, None], axis=1)[:, 0]
            fullest.append(blocks.fullest(level))
        return cls(blocks, others, place, np.stack(fullest, axis=1))

    def room(self, limit: float) -> np.ndarray:
        """How many blocks each device holds within so many bytes; -1 where it has no room for any."""
        return (self.bytes * SAFETY <= limit).sum(axis=1) - 1

    def spread(self, partition: LayoutString, limit: float) -> LayoutString:
        """The partition, with the blocks of devices that are above the limit where they add least."""
        stages = list(partition.stages)
        counts = np.array([stage.count("t") for stage in stages])
        held = self.blocks.fullest(self.others + self.blocks.bytes_of(counts)) * SAFETY
        for device in np.flatnonzero(held > limit):
            own = self.blocks.stage[device]
            own = own[own >= 0]
            placed = np.bincount(self.place[device, : counts[own].sum()], minlength=len(own))
            if own[placed > 0].max(initial=0) <= _last_open(stages):
                for stage, count in zip(own.tolist(), placed.tolist(), strict=True):
                    stages[stage] = _with_blocks(stages[stage], count)
        return LayoutString(stages)


def _last_open(stages: Sequence[str]) -> int:
    """The last stage that may have blocks: none stand behind a prediction module."""
    return next((stage for stage, text in enumerate(stages) if "m" in text), len(stages) - 1)


def _with_blocks(stage: str, count: int) -> str:
    begin, end = stage.count("E"), len(stage.rstrip("mL"))
    return stage[:begin] + "t" * count + stage[end:]
