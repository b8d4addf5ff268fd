"""Balancing: the partition of a model over a schedule's devices that leaves the busiest least to do, within memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np

from ppsim.analysis.least_of_layout import layer_seconds
from ppsim.costs.balance import Pieces, balanced
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.layout_string import LayoutString, of_stages
from ppsim.costs.partition import by_cost
from ppsim.costs.summed_effects import once_each
from ppsim.schedule.columns import ScheduleColumns


def pieces_of(costs: DerivedCosts) -> Pieces:
    """The model as pieces to spread, by the least seconds of its layers."""
    layers = costs.model.layers
    return Pieces.of([layer.name for layer in layers], once_each(layers, id, lambda one: layer_seconds(costs, one)))


def balanced_partition(
    costs: DerivedCosts,
    schedule: ScheduleColumns,
    held: Callable[[LayoutString], np.ndarray | None] | None = None,
    limit: float = np.inf,
    pieces: Pieces | None = None,
) -> LayoutString:
    """The partition that spreads the work evenly over devices, within `limit` bytes a device where that is possible.

    `held` gives the bytes that each device holds at least under a partition (`least_memory`); without it there is no
    limit. Where several devices hold a stage, the stages are cut as equal as they can be instead. `pieces_of` the costs
    may be given where they are known already.

    A device that holds too much with n blocks has room for `n limit / held` of them at most, because a block holds no
    more than the nth part of it; these become its most, until all have room or no partition has.
    """
    device, stage = schedule.holdings.T
    if len(stage) > schedule.num_stages:
        return _equal_stages(costs, schedule.num_stages)
    pieces, device_of_stage = pieces or pieces_of(costs), device[np.argsort(stage)]
    found = first = balanced(pieces, device_of_stage.tolist())
    room = np.full(schedule.devices, pieces.blocks)
    bytes_held = None if held is None else held(found)
    while bytes_held is not None and (bytes_held > limit).any():
        counts = np.bincount(device_of_stage, [one.count("t") for one in found.stages], minlength=schedule.devices)
        most = np.floor(counts * limit / np.maximum(bytes_held, 1.0) * (1 + 1e-9)).astype(int)
        room = np.where(bytes_held > limit, np.minimum(most, counts - 1), room)
        if room.min() < 0 or room.sum() < pieces.blocks:
            return first
        found = balanced(pieces, device_of_stage.tolist(), room.tolist())
        bytes_held = held(found) if held else None
    return found


def _equal_stages(costs: DerivedCosts, num_stages: int) -> LayoutString:
    layers = costs.model.layers
    counts = by_cost([layer_seconds(costs, layer) for layer in layers], num_stages)
    ends = list(itertools.accumulate(counts))
    stages = (layers[end - count : end] for count, end in zip(counts, ends, strict=True))
    return of_stages([layer.name for layer in stage] for stage in stages)
