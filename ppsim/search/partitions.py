"""Partitions found by search: the fastest stages of a model under a schedule, within the memory of its devices."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from ppsim.analysis.occupancy import peak_memory
from ppsim.analysis.static_bounds import SAFETY, Outline, held_in_moments, layer_seconds
from ppsim.analysis.steady import iteration_time
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.partition import LayoutString, Pieces, balanced, by_cost, cut, even, require_enough
from ppsim.costs.summed_effects import once_each
from ppsim.costs.table import CostModel, CostTable
from ppsim.engines.running import run_for_timeline
from ppsim.plan.holding import parts_of
from ppsim.plan.resolve import Plan, make_plan, repriced
from ppsim.schedule.columns import ScheduleColumns
from ppsim.timeline import TimelineColumns

MAX_ROWS = 80_000  # simulated for one descent: about half a second
MAX_CUTS, MIN_CUTS = 64, 8  # simulated in one descent
MAX_EXHAUSTIVE = 500  # so many cuts or fewer are all simulated
MAX_PRICED = 8  # cuts that are priced to find one within the memory

Counts = tuple[int, ...]  # layers of each stage
Objective = Callable[[Counts], Any]  # orders cuts: the lowest value is the best


def with_optimal_stages(
    costs: CostModel, schedule: ScheduleColumns, transport: str, optimizer: str | None
) -> CostModel:
    """Return `costs` with the fastest stages for this run if their partition is `optimal`; other costs unchanged."""
    if not isinstance(costs, DerivedCosts) or costs.layout.partition != "optimal" or costs.layers_of_stages is not None:
        return costs
    return fastest_stages(costs, schedule, transport, optimizer, costs.cluster.device.memory, filled=True)


def fastest_stages(
    costs: DerivedCosts,
    schedule: ScheduleColumns,
    transport: str,
    optimizer: str | None,
    limit: float,
    *,
    engine: str = "auto",
    patience: int = 1,
    starts: Iterable[LayoutString] = (),
    filled: bool = False,
) -> DerivedCosts:
    """Return `costs` with the fastest stages found for this schedule, transport and optimizer step (`best_cut`).

    Cuts compete by the bytes that a device holds above `limit`, then by the simulated step. If no cut fits, the fastest
    one found is taken. The search starts from the balanced cut and from `starts`; it simulates `patience` times as many
    cuts as usual. `filled`: every stage has a layer.
    """
    compute, names = schedule.compute, [layer.name for layer in costs.model.layers]
    first: list[Plan] = []

    @functools.cache
    def excess_and_step(counts: Counts) -> tuple[float, float]:
        """Return the bytes above the limit, and the seconds of the step."""
        own = costs.with_stages(counts)
        table = own.table(compute)
        plan = repriced(first[0], table) if first else make_plan(schedule, table, transport, optimizer)
        first[:] = first or [plan]
        ran, times = run_for_timeline(plan, engine)
        run = TimelineColumns(plan, table, own, times, engine=ran)
        held = peak_memory(run)
        return 0.0 if held is None else max(0.0, float(held.max()) - limit), iteration_time(run)

    devices = _first_holders(compute)
    begin = [*starts, *(balanced(pieces_of(costs), devices, late=late) for late in (False, True))]
    affordable = MAX_ROWS // max(len(compute), 1)
    search = functools.partial(
        best_cut, costs.layer_seconds, devices, starts=[one.layer_counts(names, len(devices)) for one in begin],
        most=patience * min(MAX_CUTS, max(MIN_CUTS, affordable)),
        exhaustive=patience * min(MAX_EXHAUSTIVE, affordable), filled=filled,
    )  # fmt: skip
    best = search(excess_and_step)
    if excess_and_step(best)[0] > 0:
        best = search(lambda counts: excess_and_step(counts)[1])
    return costs.with_stages(best)


def best_cut(
    costs: Sequence[float],
    device_of_stage: Sequence[int],
    objective: Objective,
    most: int,
    exhaustive: int = 0,
    starts: Iterable[Sequence[int]] = (),
    *,
    filled: bool = False,
) -> Counts:
    """Return the cut with the lowest objective that a descent finds; equal inputs give equal answers.

    Parameters
    ----------
    costs : sequence of float
        Seconds of each layer, in order: embedding, blocks, prediction modules, head.
    device_of_stage : sequence of int
        The device that runs each stage.
    objective : function of the layers of each stage
        The seconds of the step, or the bytes that are too many and then the seconds.
    most : int
        Moves of a layer that the descent tries.
    exhaustive : int
        Up to this number of cuts every cut is tried.
    starts : sequences of layers of each stage
        The descent begins at the best of these and of the other methods' cuts, so that the answer is no worse.
    filled : bool
        Every stage has a layer, as all other methods want it. CostError if the layers are too few; `starts` with an
        empty stage are left out. Otherwise only the first stage and the last one must have a layer.
    """
    layers, stages = len(costs), len(device_of_stage)
    if filled:
        require_enough(layers, stages)
    tried = [tuple(counts) for counts in starts if min(counts) or not filled]
    if math.comb(layers - 1 if filled else max(layers + stages - 3, 0), stages - 1) <= exhaustive:
        choose = itertools.combinations if filled else itertools.combinations_with_replacement
        ends = ((0, *inner, layers) for inner in choose(range(1, layers), stages - 1))
        every = (tuple(end - begin for begin, end in itertools.pairwise(one)) for one in ends)
        return min(itertools.chain(tried, every), key=objective)
    if layers >= stages:
        tried += map(tuple, [by_cost(costs, stages), by_cost(costs, stages, "greedy"), _even_blocks(layers, stages)])
    best = min(tried, key=objective)
    least, moves = objective(best), _moves(costs, device_of_stage, filled, best)
    for _ in range(most):
        moved = next(moves, None)
        if moved is None:
            break
        if (found := objective(moved)) < least:
            best, least, moves = moved, found, _moves(costs, device_of_stage, filled, moved)
    return best


def _moves(costs: Sequence[float], device_of_stage: Sequence[int], filled: bool, counts: Counts) -> Iterator[Counts]:
    """Yield the cuts with one layer less in one stage and one more in another.

    Moves from one device to another, those from the busiest to the least busy first, alternate with moves within a
    device. The latter change when and for how long the device holds activations, not how busy it is.
    """
    owner, stages = np.asarray(device_of_stage), len(counts)
    work = np.diff(np.append(0.0, np.cumsum(costs))[np.cumsum([0, *counts])])
    load = np.bincount(owner, work)
    least = np.full(stages, int(filled))
    least[[0, -1]] = 1
    less, more = np.nonzero((np.asarray(counts) > least)[:, None] & ~np.eye(stages, dtype=bool))
    within = owner[less] == owner[more]
    order = np.argsort(load[owner[more]] - load[owner[less]], kind="stable")
    between, inside = order[~within[order]], order[within[order]]
    for pair in itertools.chain.from_iterable(itertools.zip_longest(between.tolist(), inside.tolist())):
        if pair is not None:
            moved = list(counts)
            moved[less[pair]] -= 1
            moved[more[pair]] += 1
            yield tuple(moved)


def _even_blocks(layers: int, stages: int) -> list[int]:
    """Return the layers of each stage with even blocks: the embedding is in the first stage, the head in the last."""
    if layers - 2 < stages:
        return even(layers, stages)
    counts = even(layers - 2, stages)
    return [counts[0] + 1, *counts[1:-1], counts[-1] + 1] if stages > 1 else [layers]


def _first_holders(schedule: ScheduleColumns) -> list[int]:
    """Return the first device that holds each stage."""
    device, stage = schedule.holdings.T
    holders = np.full(schedule.num_stages, schedule.devices)
    np.minimum.at(holders, stage, device)
    return holders.tolist()


def pieces_of(costs: DerivedCosts) -> Pieces:
    """Return the model as pieces to spread, by lower bounds on the seconds of its layers."""
    layers = costs.model.layers
    return Pieces.of([layer.name for layer in layers], once_each(layers, id, lambda one: layer_seconds(costs, one)))


def balanced_partition(costs: DerivedCosts, schedule: ScheduleColumns, pieces: Pieces | None = None) -> LayoutString:
    """Return the partition that spreads the work evenly over devices, whatever memory it takes.

    If several devices hold a stage, the stages get equal work instead. `pieces_of` the costs may be given if known.
    """
    if len(schedule.holdings) == schedule.num_stages:
        return balanced(pieces or pieces_of(costs), _first_holders(schedule))
    layers = costs.model.layers
    counts = by_cost([layer_seconds(costs, layer) for layer in layers], schedule.num_stages)
    return LayoutString.of_stages([layer.name for layer in stage] for stage in cut(layers, counts))


def balanced_within(
    costs: DerivedCosts,
    outline: Outline,
    table: Callable[[LayoutString], CostTable],
    limit: float,
    pieces: Pieces | None = None,
) -> LayoutString:
    """Return the balanced partition, with blocks moved until no device holds more than `limit` bytes.

    The bytes are lower bounds, without simulation (`ppsim.analysis.static_bounds`). `table` prices the summary's
    actions under a partition. Returns the balanced partition itself if the moves lead to none that fits, if several
    devices hold a stage, or if the bytes are not known.
    """
    pieces = pieces or pieces_of(costs)
    found = first = balanced_partition(costs, outline.actions, pieces)
    priced = table(first)
    if len(outline.actions.holdings) > outline.actions.num_stages or priced.state_bytes is None:
        return first
    if priced.activation_bytes is None or (held_in_moments(outline, priced) * SAFETY <= limit).all():
        return first
    packing = _Packing(costs, outline, priced, pieces, limit / SAFETY)
    for _ in range(MAX_PRICED):
        held = held_in_moments(outline, priced)
        if (held * SAFETY <= limit).all():
            return found
        moved = packing.moved(found, held)
        if moved is None:
            break
        found, priced = moved, table(moved)
    return first


class _Packing:
    """Blocks on devices: the bytes that one more block adds on each stage, and the moves that make all blocks fit."""

    def __init__(self, costs: DerivedCosts, outline: Outline, table: CostTable, pieces: Pieces, limit: float):
        schedule, moments = outline.actions, outline.moments
        blocks = [layer for layer in costs.model.layers if layer.name == "block"]
        levels = costs.layout.recompute_of(schedule.num_stages)
        held = {level: np.mean([costs.activation_bytes(one, level) for one in blocks]) for level in {*levels}}
        parts = parts_of(table, np.array([held[level] for level in levels]) / schedule.slices)
        weights, *others = (part / len(blocks) for part in costs.layout.state_bytes(costs.held(blocks), 0.0))
        state = weights * schedule.weight_versions + sum(others)
        added = (parts[:, moments.stage] * moments.held).sum(axis=0) + state[moments.device, None]
        self.owner, self.limit, self.pieces = _first_holders(schedule), limit, pieces
        self.later_devices = np.searchsorted(moments.device, np.arange(1, schedule.devices))
        self.added: list[np.ndarray] = []  # by stage: bytes that a block adds in each moment of its device
        for stage, device in enumerate(self.owner):
            rows = moments.device == device
            self.added.append(added[rows, int((moments.stage[rows][0] == stage).argmax())])

    def moved(self, partition: LayoutString, held: np.ndarray) -> LayoutString | None:
        """Return the partition after moves that bring every device within the limit; None if no moves do.

        `held` are the bytes in each moment. Each move takes a block from the fullest device.
        """
        stages, level = list(partition.stages), np.split(held, self.later_devices)
        seconds = {"E": self.pieces.embedding, "m": self.pieces.prediction, "L": self.pieces.head, "t": self.block}
        load = np.bincount(self.owner, [sum(map(seconds.__getitem__, text)) for text in stages])
        while max(one.max() for one in level) > self.limit:
            best = min(self._moves(stages, level, load), default=None)
            if best is None:
                return None
            for stage, change in zip(best[-2:], (-1, 1), strict=True):
                device = self.owner[stage]
                level[device] = level[device] + change * self.added[stage]
                load[device] += change * self.block
                begin, end = stages[stage].count("E"), len(stages[stage].rstrip("mL"))
                stages[stage] = stages[stage][:begin] + "t" * (end - begin + change) + stages[stage][end:]
        return LayoutString(stages)

    @property
    def block(self) -> float:
        """Seconds of a block."""
        return self.pieces.block or 1.0

    def _moves(self, stages: list[str], level: list[np.ndarray], load: np.ndarray) -> Iterator[tuple[float, ...]]:
        """Yield the moves of a block from the fullest device that lower the bytes above the limit.

        Each is (seconds of the busiest device, bytes above the limit, seconds of the receiver, from stage, to stage):
        the lowest is the best.
        """
        excess = [self._excess(one) for one in level]
        fullest = int(np.argmax(excess))
        last = next((stage for stage, text in enumerate(stages) if "m" in text), len(stages) - 1)
        for more in range(last + 1):  # a block cannot come after a prediction module
            receiver = self.owner[more]
            gained = level[receiver] + self.added[more]
            for less in range(len(stages)):
                if self.owner[less] != fullest or less == more or "t" not in stages[less]:
                    continue
                if receiver == fullest:
                    before, after = excess[fullest], self._excess(gained - self.added[less])
                    busiest = load.max()
                else:
                    before = excess[fullest] + excess[receiver]
                    after = self._excess(gained) + self._excess(level[fullest] - self.added[less])
                    busiest = max(load.max(), load[receiver] + self.block)
                if after < before:
                    yield busiest, after - before, load[receiver], less, more

    def _excess(self, level: np.ndarray) -> float:
        return max(0.0, float(level.max()) - self.limit)
