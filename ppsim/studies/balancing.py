"""Balancing: the partition of a model over a schedule's devices that leaves the busiest least to do, within memory."""

from __future__ import annotations

import itertools
from collections import Counter

import numpy as np

from ppsim.analysis.least_of_layout import layer_seconds
from ppsim.costs.balance import Pieces, balanced
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.layout_string import LayoutString, of_stages
from ppsim.costs.partition import by_cost
from ppsim.schedule.columns import ScheduleColumns


def pieces_of(costs: DerivedCosts) -> Pieces:
    """The model as pieces to spread; blocks count as their mean."""
    model = costs.model
    layers = {layer.name: layer for layer in model.layers}
    seconds = {name: layer_seconds(costs, layer) for name, layer in layers.items()}
    blocks = Counter(layer for layer in model.layers if layer.name == "block")
    mean = sum(count * layer_seconds(costs, one) for one, count in blocks.items()) / model.num_layers
    return Pieces(
        model.num_layers, model.prediction_layers, seconds["embedding"], mean, seconds.get("prediction", 0.0),
        seconds["head"],
    )  # fmt: skip


def balanced_partition(
    costs: DerivedCosts,
    schedule: ScheduleColumns,
    held: np.ndarray | None = None,
    limit: float = np.inf,
    pieces: Pieces | None = None,
) -> LayoutString:
    """The partition that spreads the work evenly over devices, within `limit` bytes a device where that is possible.

    `held` are the bytes that each device holds at least where blocks are spread evenly (`least_memory`); without them
    there is no limit. Where several devices hold a stage, the stages are cut as equal as they can be instead.
    `pieces_of` the costs may be given where they are known already.
    """
    device, stage = schedule.holdings.T
    if len(stage) > schedule.num_stages:
        return _equal_stages(costs, schedule.num_stages)
    most = None if held is None else _most_blocks(costs, schedule, held, limit)
    return balanced(pieces or pieces_of(costs), device[np.argsort(stage)].tolist(), most)


def _equal_stages(costs: DerivedCosts, num_stages: int) -> LayoutString:
    layers = costs.model.layers
    counts = by_cost([layer_seconds(costs, layer) for layer in layers], num_stages)
    ends = list(itertools.accumulate(counts))
    stages = (layers[end - count : end] for count, end in zip(counts, ends, strict=True))
    return of_stages([layer.name for layer in stage] for stage in stages)


def _most_blocks(costs: DerivedCosts, schedule: ScheduleColumns, held: np.ndarray, limit: float) -> list[int]:
    """Blocks that each device has memory for, from what it holds at least where blocks are spread evenly."""
    names = costs.stages(schedule.num_stages)
    device, stage = schedule.holdings.T
    blocks = np.bincount(device, [names[one].get("block", 0) for one in stage], minlength=schedule.devices)
    others = _held_without_blocks(costs, names, schedule)
    each = np.maximum(held - others, 1.0) / np.maximum(blocks, 1)
    return np.maximum(np.floor((limit - others) / each), 0).astype(int).tolist()


def _held_without_blocks(costs: DerivedCosts, names: list[dict[str, int]], schedule: ScheduleColumns) -> np.ndarray:
    """Bytes of state of embedding, head and prediction modules on each device."""
    layers = {layer.name: layer for layer in costs.model.layers}
    device, stage = schedule.holdings.T
    of_stage = [
        sum(
            sum(costs.layout.state_bytes(costs.held([layers[name]] * count), 0.0))
            for name, count in held.items()
            if name != "block"
        )
        for held in names
    ]
    return np.bincount(device, np.array(of_stage)[stage], minlength=schedule.devices)
