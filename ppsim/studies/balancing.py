"""Balancing: the partition of a model over a schedule's devices that leaves the busiest least to do, within memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from ppsim.analysis.static_bounds import SAFETY, ScheduleSummary, layer_bound, memory_at_peaks
from ppsim.costs.balance import Pieces, balanced, balanced_with, stages_for_predictions
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.layout_string import LayoutString, of_stages
from ppsim.costs.partition import by_cost
from ppsim.costs.table import CostTable
from ppsim.schedule.columns import ScheduleColumns
from ppsim.studies.crowding import Blocks, Crowd

TRIES = 8  # cuts that are priced for one that fits


def pieces_of(costs: DerivedCosts) -> Pieces:
    """The model as pieces to spread, by the least seconds of its layers."""
    layers = costs.model.layers
    seconds = {layer: layer_bound(costs, layer) for layer in dict.fromkeys(layers)}
    return Pieces.of([layer.name for layer in layers], [seconds[layer] for layer in layers])


def balanced_partition(costs: DerivedCosts, schedule: ScheduleColumns, pieces: Pieces | None = None) -> LayoutString:
    """The partition that spreads the work evenly over devices, whatever they hold.

    Where several devices hold a stage, the stages are cut as equal as they can be instead. `pieces_of` the costs may be
    given where they are known already.
    """
    device_of_stage = _device_of_stage(schedule)
    if device_of_stage is None:
        return _equal_stages(costs, schedule.num_stages)
    return balanced(pieces or pieces_of(costs), device_of_stage)


def balanced_within(
    costs: DerivedCosts,
    summary: ScheduleSummary,
    table: Callable[[LayoutString], CostTable],
    limit: float,
    pieces: Pieces | None = None,
) -> LayoutString:
    """As `balanced_partition`, with at most `limit` bytes on each device, at least, where that is possible.

    `table` prices the summary's actions under a partition. A device that holds too much gets as many blocks as it has
    room for, and if need be more of them on those of its stages whose activations it holds for a shorter time.
    """
    pieces = pieces or pieces_of(costs)
    first = balanced_partition(costs, summary.actions, pieces)
    device_of_stage, priced = _device_of_stage(summary.actions), table(first)
    if device_of_stage is None or priced.activation_bytes is None or priced.state_bytes is None:
        return first
    if (memory_at_peaks(summary, priced) * SAFETY <= limit).all():
        return first
    fitting = []
    for stage in stages_for_predictions(pieces, device_of_stage):
        blocks = Blocks.of(costs, summary, priced, stage)
        fit = _Fit(pieces, device_of_stage, stage, blocks, lambda one: memory_at_peaks(summary, table(one)), limit)
        fitting += fit.found()
    return min(fitting, key=lambda one: one[0], default=(None, first))[1]


@dataclass(frozen=True)
class _Fit:
    """Balanced partitions within a limit, with all predictions in one stage."""

    pieces: Pieces
    device_of_stage: list[int]
    of_predictions: int
    blocks: Blocks
    held: Callable[[LayoutString], np.ndarray]
    limit: float

    def found(self) -> Iterator[tuple[float, LayoutString]]:
        """Those that fit, after the largest work of a device: with as many blocks on each stage of a device, and with
        more on some where that leaves the busiest less to do or nothing else fits.
        """
        even = self._within(packs=False)
        least, _ = balanced_with(self.pieces, self.device_of_stage, self.of_predictions)
        if even is None or even[0] > least[1]:
            yield from [one for one in (even, self._within(packs=True)) if one is not None]
        else:
            yield even

    def _within(self, packs: bool) -> tuple[float, LayoutString] | None:
        most = self.pieces.blocks
        work, partition = balanced_with(self.pieces, self.device_of_stage, self.of_predictions)
        for _ in range(TRIES):
            held = self.held(partition)
            if (held * SAFETY <= self.limit).all():
                return work[1], partition
            crowd = Crowd.of(self.blocks, partition, held)
            if self._are_too_few(crowd.most_room(self.limit)):
                return None
            packing = crowd.packed(most) if packs else None
            room = packing.room(self.limit) if packing else crowd.even_room(self.limit, most)
            if self._are_too_few(room):
                return None
            work, partition = balanced_with(self.pieces, self.device_of_stage, self.of_predictions, room.tolist())
            if packing:
                partition = packing.moved(partition, self.limit)
        return None

    def _are_too_few(self, room: np.ndarray) -> bool:
        return bool(room.min() < 0 or room.sum() < self.pieces.blocks)


def _device_of_stage(schedule: ScheduleColumns) -> list[int] | None:
    """The device that holds each stage; None where several do."""
    device, stage = schedule.holdings.T
    return None if len(stage) > schedule.num_stages else device[np.argsort(stage)].tolist()


def _equal_stages(costs: DerivedCosts, num_stages: int) -> LayoutString:
    layers = costs.model.layers
    counts = by_cost([layer_bound(costs, layer) for layer in layers], num_stages)
    ends = list(itertools.accumulate(counts))
    stages = (layers[end - count : end] for count, end in zip(counts, ends, strict=True))
    return of_stages([layer.name for layer in stage] for stage in stages)
