"""Choose: of every layout and schedule that a config leaves open the one with the most tokens per second that fits."""

from __future__ import annotations

import functools
import heapq
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ppsim.analysis.least import SAFETY, least_memory, least_step
from ppsim.analysis.measures import MEASURES
from ppsim.analysis.occupancy import peak_activations
from ppsim.base.compiling import can_compile
from ppsim.base.errors import BuildError, ConfigError, PpsimError, shown
from ppsim.base.extras import need
from ppsim.config import Config
from ppsim.costs.balance import Pieces, balanced
from ppsim.costs.data_parallel import optimizer_seconds
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.layout_string import LayoutString, of_stages
from ppsim.costs.partition import by_cost
from ppsim.costs.table import CostTable
from ppsim.families.registry import find_family
from ppsim.run.schedules import Schedule
from ppsim.run.timelines import Timeline
from ppsim.studies.space import BALANCED, DEVICES, MICROBATCHES, PARTITION, Point, Source, Space, open_space

if TYPE_CHECKING:
    import pandas

TOP = 10  # points that are ranked
AT_ONCE = 16  # points that an executor is given together
FRONT = 1.1  # the front reaches to steps this many times as long as the shortest
SHOWN = ("iteration_time", "tokens_per_second", "mfu", "peak_memory", "bubble_fraction")


@dataclass(frozen=True)
class Candidate:
    """One point that was simulated and fits.

    Attributes
    ----------
    changes : mapping of dotted key to value
        What makes the point out of the config.
    measures : mapping of measure name to number
        `SHOWN`, and `peak_activations`; None where it is not known.
    """

    changes: Mapping[str, Any]
    measures: Mapping[str, Any]

    @property
    def step(self) -> float:
        """Seconds of one training step."""
        return self.measures["iteration_time"]

    @property
    def memory(self) -> float:
        """Bytes of the fullest device; live activations where bytes are not known."""
        return self.measures["peak_memory" if self.measures["peak_memory"] is not None else "peak_activations"]

    @property
    def rank(self) -> tuple[Any, ...]:
        """What candidates are ordered by: step, then memory, then what they are."""
        return self.step, self.memory, str(sorted(self.changes.items(), key=lambda item: item[0]))


@dataclass(frozen=True)
class Chosen:
    """The winner as a config, simulated.

    Attributes
    ----------
    config : Config
    run : Timeline
    layout_string : str or None
        The stages in Megatron-LM's notation; None where no model is known.
    """

    config: Config
    run: Timeline
    layout_string: str | None


@dataclass(frozen=True)
class Choice:
    """What `choose` returns.

    Attributes
    ----------
    ranked : list of Candidate
        The fastest points that fit, at most `top` of them, the winner first; empty where nothing fits.
    front : list of Candidate
        The points than which no other is both as fast and as small, fastest first.
    counts : mapping
        Points in all, and what became of them: `simulated`; pruned by `memory` (a lower bound of the peak is above the
        limit) or by `step` (a lower bound of the step is above what is kept); `refused` by a rule of the schedule or
        the layout. They sum to `points`.
    space : Space
    headroom : float
    """

    ranked: list[Candidate]
    front: list[Candidate]
    counts: Mapping[str, int]
    space: Space
    headroom: float

    @functools.cached_property
    def best(self) -> Chosen:
        """The winner; ConfigError where nothing fits."""
        if not self.ranked:
            raise ConfigError(
                f"no point fits with {self.headroom:.0%} of the memory kept free; use more GPUs, less headroom or more "
                f"free keys"
            )
        config = _config_of(self.space, self.ranked[0].changes)
        run, costs = config.simulate(), config.costs
        text = costs.megatron_layout(run.schedule.num_stages) if isinstance(costs, DerivedCosts) else None
        return Chosen(config, run, text)

    def rows(self) -> list[dict[str, Any]]:
        """One row a ranked point: its free keys and its measures."""
        return [{**one.changes, **one.measures} for one in self.ranked]

    def to_frame(self) -> pandas.DataFrame:
        """The rows as a pandas table."""
        return need("pandas", "a table of points").DataFrame(self.rows())

    def plot(self):
        """Step against memory of the ranked points and of the front, as a matplotlib figure."""
        from ppsim.plots.front import draw_front

        return draw_front(
            [(one.memory, one.step) for one in self.ranked],
            [(one.memory, one.step) for one in self.front],
            in_bytes=any(one.measures["peak_memory"] is not None for one in self.front),
        )

    def _repr_html_(self) -> str:
        return self.to_frame().to_html(index=False, float_format="{:.4g}".format)


def choose(
    config: Source,
    free: Iterable[str] | Mapping[str, Iterable[Any]] | None = None,
    *,
    headroom: float = 0.1,
    asynchronous: bool = False,
    top: int = TOP,
    executor: Executor | None = None,
) -> Choice:
    """The fastest layout and schedule of a model on a cluster that fits into the memory of every device.

    Every point is either simulated or proven not to matter: one whose memory is, at least, above the limit; one whose
    step is, at least, longer than those of `top` points that fit and which is, at best, no smaller than a faster one.
    The answer is that of simulating all of them.

    Parameters
    ----------
    config : path, dict or Config
        Model, hardware, GPUs (`hardware.gpus`) and batch (`batch`, sequences a step); what it leaves out is free.
    free : list of keys, or mapping of key to its values, optional
        As in `open_space`: these keys are free, whatever the config has there.
    headroom : float
        Part of each device's memory that must stay free, from 0 to below 1.
    asynchronous : bool
        Whether schedules that train on old weights take part.
    top : int
        How many points are ranked.
    executor : concurrent.futures.Executor, optional
        Simulates the points; default: here, one after the other.

    Raises
    ------
    ConfigError
        As `open_space`; for a headroom outside 0..1.
    """
    if isinstance(headroom, bool) or not isinstance(headroom, int | float) or not 0 <= headroom < 1:
        raise ConfigError(f"headroom={shown(headroom)} must be a part of the memory from 0 to below 1, such as 0.1")
    space = open_space(config, free, asynchronous)
    search = _Search(space, headroom, top)
    search.run(executor)
    return Choice(search.ranked, search.front, dict(search.counts), space, headroom)


def _config_of(space: Space, changes: Mapping[str, Any]) -> Config:
    """The whole config of a point, checked like a file."""
    return space.config.changed(changes)


@dataclass(frozen=True)
class _Group:
    """The points of one layout: every schedule and partition of it."""

    layout: Point
    points: int
    memory: float


@dataclass(frozen=True)
class _Open:
    """A point that may matter, with what simulates it and its least bytes."""

    changes: Point
    config: Config
    schedule: Schedule
    memory: float


class _Search:
    """Best first: what has the lowest bound on its step is opened or simulated next, until no bound is low enough."""

    def __init__(self, space: Space, headroom: float, top: int):
        self.space, self.top = space, top
        self.limit = np.inf
        if isinstance(space.config.costs, DerivedCosts):
            self.limit = space.config.costs.cluster.device.memory * (1 - headroom)
        self.engine = "compiled" if can_compile() else "auto"
        self.counts: Counter[str] = Counter(points=0, simulated=0, memory=0, step=0, refused=0)
        self.fitting: list[Candidate] = []
        self.numbers = itertools.count()
        self.heap: list[tuple[float, int, _Group | _Open]] = []
        self.schedules = functools.lru_cache(maxsize=4096)(_schedule)
        self.tables: dict[Any, CostTable] = {}
        self.number_of_points: dict[int, int] = {}

    @property
    def ranked(self) -> list[Candidate]:
        """The fastest that fit, at most `top`."""
        return sorted(self.fitting, key=lambda one: one.rank)[: self.top]

    @property
    def front(self) -> list[Candidate]:
        """Those than which no other is as fast and as small, fastest first, up to FRONT times the shortest step."""
        front: list[Candidate] = []
        for one in sorted(self.fitting, key=lambda one: one.rank):
            if one.step <= FRONT * self.fitting[0].step and (not front or one.memory < front[-1].memory):
                front.append(one)
        return front

    def run(self, executor: Executor | None) -> None:
        for layout in self.space.layouts():
            self._add_group(layout)
        at_once = 1 if executor is None else AT_ONCE
        while self.heap:
            waiting: list[_Open] = []
            while self.heap and len(waiting) < at_once:
                bound, _, item = heapq.heappop(self.heap)
                points = item.points if isinstance(item, _Group) else 1
                if not self._matters(bound, item.memory):
                    self.counts["step"] += points
                elif isinstance(item, _Group):
                    self._expand(item, bound)
                else:
                    waiting.append(item)
            self._simulate(waiting, executor)

    def _matters(self, step: float, memory: float) -> bool:
        """Whether a point with at least this step and memory can be ranked or on the front."""
        if len(self.fitting) < self.top or step <= self.fitting[self.top - 1].step:
            return True
        if step > FRONT * self.fitting[0].step:
            return False
        return not any(one.step <= step and one.memory <= memory for one in self.front)

    def _add_group(self, layout: Point) -> None:
        """Open a layout, or count its points out where its weights alone are too large or its sizes do not fit."""
        devices = layout.get(DEVICES, self.space.config.schedule["devices"])
        if devices not in self.number_of_points:
            schedules = sum(1 for _ in self.space.schedules(devices))
            self.number_of_points[devices] = schedules * len(self.space.partitions)
        points = self.number_of_points[devices]
        self.counts["points"] += points
        costs = self._costs(layout)
        if costs is None:
            self.counts["refused"] += points
            return
        step, memory = least_of_layout(costs, devices, layout[MICROBATCHES], self.space.config.optimizer)
        if memory > self.limit:
            self.counts["memory"] += points
            return
        heapq.heappush(self.heap, (step, next(self.numbers), _Group(layout, points, memory)))

    def _costs(self, layout: Point, partition: Any = None) -> Any:
        """The costs in a layout; None where it does not fit the model."""
        costs = self.space.config.costs
        if not isinstance(costs, DerivedCosts):
            return costs
        changes = {key.removeprefix("layout."): value for key, value in layout.items() if key.startswith("layout.")}
        if partition is not None:
            changes["partition"] = partition
        try:
            return replace(costs, layout=replace(costs.layout, **changes))
        except PpsimError:
            return None

    def _expand(self, group: _Group, least: float) -> None:
        """Open every point of a layout that may matter."""
        self.tables.clear()
        layout = group.layout
        devices = layout.get(DEVICES, self.space.config.schedule["devices"])
        for chosen in self.space.schedules(devices):
            changes = {**layout, DEVICES: devices, **chosen}
            options = self._options(chosen["schedule.name"])
            sizes = (devices, layout[MICROBATCHES], chosen["schedule.stages_per_device"])
            schedule = self.schedules(chosen["schedule.name"], *sizes, options)
            if schedule is None:
                self.counts["refused"] += len(self.space.partitions)
                continue
            for partition in self.space.partitions:
                self._open(changes, schedule, partition, group, least)

    def _options(self, name: str) -> tuple[tuple[str, Any], ...]:
        """The config's options of its own family."""
        section = self.space.config.schedule
        return tuple(section.get("options", {}).items()) if name == section.get("name") else ()

    def _open(self, changes: Point, schedule: Schedule, partition: Any, group: _Group, least: float) -> None:
        try:
            point, costs = self._partitioned(changes, schedule, partition)
            step, memory = self._least(costs, schedule, group, least)
        except PpsimError:
            self.counts["refused"] += 1
            return
        if memory > self.limit:
            self.counts["memory"] += 1
            return
        config = replace(
            self.space.config, schedule=_section(self.space.config, point), costs=costs, engine=self.engine
        )
        heapq.heappush(self.heap, (step, next(self.numbers), _Open(point, config, schedule, memory)))

    def _partitioned(self, changes: Point, schedule: Schedule, partition: Any) -> tuple[Point, Any]:
        """The point with its partition settled, and its costs."""
        costs = self._costs(changes, "even" if partition == BALANCED else partition)
        if partition is None:
            return _plain(changes, costs), costs
        if partition == BALANCED:
            partition = balanced_partition(costs, schedule, self._table(costs, schedule), self.limit)
            costs = self._costs(changes, partition)
        return _plain({**changes, PARTITION: str(partition)}, costs), costs

    def _least(self, costs: Any, schedule: Schedule, group: _Group, least: float) -> tuple[float, float]:
        """Least seconds and bytes of a point; those of its layout where simulation settles the partition."""
        if isinstance(costs, DerivedCosts) and costs.layout.partition == "optimal":
            return least, group.memory
        table = self._table(costs, schedule)
        config = self.space.config
        sharded = isinstance(costs, DerivedCosts) and costs.layout.sharded
        step = least_step(schedule, table, config.optimizer, sharded)
        held = least_memory(schedule, table)
        memory = held.max() if held is not None else 0.0
        return max(step, least), max(float(memory), group.memory)

    def _table(self, costs: Any, schedule: Schedule) -> CostTable:
        """The cost table; schedules of equal holdings share it."""
        if not isinstance(costs, DerivedCosts):
            return costs.table(schedule)
        key = (costs.layout, schedule.holdings.tobytes(), schedule.devices, schedule.slices)
        if key not in self.tables:
            self.tables[key] = costs.table(schedule)
        return self.tables[key]

    def _simulate(self, waiting: list[_Open], executor: Executor | None) -> None:
        run = map if executor is None else executor.map
        found = run(_measured, [one.config for one in waiting], [one.schedule for one in waiting])
        for item, measures in zip(waiting, found, strict=True):
            if measures is None:
                self.counts["refused"] += 1
                continue
            self.counts["simulated"] += 1
            if measures["peak_memory"] is None or measures["peak_memory"] <= self.limit:
                self.fitting.append(Candidate(item.changes, measures))
        self.fitting.sort(key=lambda one: one.rank)


def _schedule(
    name: str, devices: int, microbatches: int, stages_per_device: int | None, options: tuple[tuple[str, Any], ...]
) -> Schedule | None:
    """The schedule; None where the family does not allow its sizes."""
    try:
        return Schedule.of(find_family(name).columns(devices, microbatches, stages_per_device, **dict(options)))
    except BuildError:
        return None


def _section(config: Config, point: Point) -> dict[str, Any]:
    """The section `schedule` at a point."""
    own = {} if point["schedule.name"] != config.schedule.get("name") else dict(config.schedule)
    changes = {key.removeprefix("schedule."): value for key, value in point.items() if key.startswith("schedule.")}
    return {key: value for key, value in {**own, **changes}.items() if value is not None}


def _plain(changes: Point, costs: Any) -> Point:
    """The changes that a config takes: without keys of the layout where no model is known."""
    if isinstance(costs, DerivedCosts):
        return changes
    return {key: value for key, value in changes.items() if key.startswith("schedule.")}


def _measured(config: Config, schedule: Schedule) -> dict[str, Any] | None:
    """The measures of a point; None where it cannot run."""
    try:
        run = config.simulate(schedule)
    except PpsimError:
        return None
    measures = {name: MEASURES[name].number(run) for name in SHOWN}
    return {**measures, "peak_activations": float(peak_activations(run).max())}


def least_of_layout(costs: Any, devices: int, microbatches: int, optimizer: str | None) -> tuple[float, float]:
    """Seconds and bytes that every synchronous schedule and partition takes at least in a layout; 0 where not known.

    All computing and the optimizer step spread evenly over the devices, without a bubble. Likewise the bytes: weights,
    gradients, optimizer state, and one microbatch's activations of every layer, all held when its last forward ends.
    """
    if not isinstance(costs, DerivedCosts):
        return 0.0, 0.0
    layers = costs.model.layers
    held = _least_bytes(costs) / devices if not _gives(costs, "_bytes") else 0.0
    if _gives(costs, "forward", "backward", "input_grad", "weight_grad", "overlap"):
        return 0.0, held * SAFETY
    seconds = sum(count * _layer_seconds(costs, layer) for layer, count in Counter(layers).items())
    stepping = optimizer_seconds(costs.held(layers), costs.layout, costs.cluster) if optimizer else 0.0
    if _gives(costs, "optimizer_step"):
        stepping = 0.0
    return (microbatches * seconds + (stepping or 0.0)) / devices * SAFETY, held * SAFETY


def _least_bytes(costs: DerivedCosts) -> float:
    """Bytes that the devices of a pipeline hold together, at least."""
    layers, level = costs.model.layers, costs.layout.recompute
    state = sum(costs.layout.state_bytes(costs.held(layers), 0.0))
    if not isinstance(level, str) or costs.layout.recompute_stages is not None:
        return state
    return state + sum(count * costs.activation_bytes(layer, level) for layer, count in Counter(layers).items())


def _gives(costs: DerivedCosts, *endings: str) -> bool:
    return any(name.endswith(endings) for name in costs.given)


def _layer_seconds(costs: DerivedCosts, layer: Any) -> float:
    """Least seconds of one layer for one microbatch, forward and backward; a fused slot may hide its collectives."""
    level = costs.layout.recompute if costs.layout.recompute_stages is None else "none"
    repeated = layer.recompute_flops(level) if isinstance(level, str) else 0.0
    computing = costs.compute_seconds(layer.forward + layer.input_grad + layer.weight_grad + repeated)
    if costs.layout.overlap:
        return computing
    forward, backward = costs.collective_seconds(layer)
    again = forward if level == "full" and layer.recomputable else 0.0
    return computing + forward + backward + again


def balanced_partition(costs: DerivedCosts, schedule: Schedule, even: CostTable, limit: float = np.inf) -> LayoutString:
    """The partition that spreads the work evenly over devices, within `limit` bytes a device where that is possible.

    `even` are the costs where blocks are spread evenly. Where several devices hold a stage, the stages are cut as
    equal as they can be instead.
    """
    device, stage = schedule.holdings.T
    if len(stage) > schedule.num_stages:
        return _equal_stages(costs, schedule.num_stages)
    layers = {layer.name: layer for layer in costs.model.layers}
    seconds = {name: _layer_seconds(costs, layer) for name, layer in layers.items()}
    model = costs.model
    blocks = [layer for layer in model.layers if layer.name == "block"]
    mean = sum(count * _layer_seconds(costs, one) for one, count in Counter(blocks).items()) / len(blocks)
    pieces = Pieces(
        model.num_layers, model.prediction_layers, seconds["embedding"], mean, seconds.get("prediction", 0.0),
        seconds["head"],
    )  # fmt: skip
    place = device[np.argsort(stage)].tolist()
    return balanced(pieces, place, _most_blocks(costs, schedule, even, limit) if np.isfinite(limit) else None)


def _equal_stages(costs: DerivedCosts, num_stages: int) -> LayoutString:
    layers = costs.model.layers
    counts = by_cost([_layer_seconds(costs, layer) for layer in layers], num_stages)
    ends = list(itertools.accumulate(counts))
    stages = (layers[end - count : end] for count, end in zip(counts, ends, strict=True))
    return of_stages([layer.name for layer in stage] for stage in stages)


def _most_blocks(costs: DerivedCosts, schedule: Schedule, table: CostTable, limit: float) -> list[int]:
    """Blocks that each device has memory for, from what it holds where blocks are spread evenly."""
    held = least_memory(schedule, table)
    if held is None or table.state_bytes is None:
        return [costs.model.num_layers] * schedule.devices
    names = costs.stages(schedule.num_stages)
    device, stage = schedule.holdings.T
    blocks = np.bincount(device, [names[one].get("block", 0) for one in stage], minlength=schedule.devices)
    others = _held_without_blocks(costs, names, schedule)
    each = np.maximum(held - others, 1.0) / np.maximum(blocks, 1)
    return np.maximum(np.floor((limit - others) / each), 0).astype(int).tolist()


def _held_without_blocks(costs: DerivedCosts, names: list[dict[str, int]], schedule: Schedule) -> np.ndarray:
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
