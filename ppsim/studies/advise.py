"""Advice: single changes of a config, each simulated, with its gain and the cause of idle time that it removes."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ppsim.analysis.memory import HEADROOM, check_headroom
from ppsim.base.compiling import can_compile
from ppsim.base.errors import ConfigError, PpsimError
from ppsim.base.host import need
from ppsim.base.rules import checked_call
from ppsim.base.short_repr import short_repr
from ppsim.base.tables import page_table
from ppsim.config import AnyConfig, Config, as_config, value_at
from ppsim.costs.derive import DerivedCosts
from ppsim.costs.layers import RECOMPUTE
from ppsim.run.timelines import Timeline
from ppsim.search import families, find_family
from ppsim.search.partitions import balanced_partition
from ppsim.studies.best_first import BestFirstSearch
from ppsim.studies.points import POINT_MEASURES, Candidate, fits_within
from ppsim.studies.reasons import removed_cause, seconds_by_cause
from ppsim.studies.space import DEVICES, MICROBATCH_SIZE, PARTITION, SHARDING, TENSOR, schedules_run_by, search_space
from ppsim.studies.worker_pool import InProcess

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

UNITS = {"step": "seconds", "step_difference": "seconds", "tokens_per_second": "tokens per second"}
STAGES_TRIED = (2, 3, 4)
ADVISED = ("iteration_time", "tokens_per_second", "peak_memory", "peak_activations")
ROW = (
    "what", "changes", "step", "step_difference", "tokens_per_second", "peak", "peak_difference", "fits", "removes",
    "layout_string",
)  # fmt: skip
# Keys that `what_fits` frees to find a layout, and keys that go with one partition only.
LAYOUT_KEYS = (TENSOR, DEVICES, MICROBATCH_SIZE, "layout.recompute", SHARDING, PARTITION)
PARTITION_KEYS = ("layout.first_stage_layers", "layout.last_stage_layers", "layout.recompute_stages")
Changes = Mapping[str, Any]


@dataclass(frozen=True)
class AdviceList:
    """Advice: every single change of a config, simulated; the result of `advise`.

    Attributes
    ----------
    config : Config
    run : Timeline
        The config without changes.
    fits : bool or None
        True if the config itself fits; None if that is not known.
    advice : list of Candidate
        Changes that fit before those that do not, then the shortest step first.
    refused : mapping of change in words to the rule that refuses it
    headroom : float
    """

    config: Config
    run: Timeline
    fits: bool | None
    advice: list[Candidate]
    refused: Mapping[str, str]
    headroom: float = HEADROOM

    __repr__ = short_repr

    @property
    def better(self) -> list[Candidate]:
        """The changes that fit and shorten the step; if the config itself does not fit, all changes that fit."""
        fitting = [one for one in self.advice if one.fits is not False]
        return fitting if self.fits is False else [one for one in fitting if one.step_difference < 0]

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per change."""
        return [{name: getattr(one, name) for name in ROW} | {"changes": dict(one.changes)} for one in self.advice]

    def to_frame(self) -> pandas.DataFrame:
        """Return the rows as a pandas table."""
        return need("pandas", "a table of changes").DataFrame(self.rows())

    def plot(self) -> Figure:
        """Draw the change of the step time for each change that helps, best first, as a matplotlib figure.

        Raises ConfigError if no change helps.
        """
        from ppsim.plots.many_runs import MAX_BARS, draw_bars

        if not self.better:
            raise ConfigError("no single change shortens the step and fits; there is nothing to draw")
        shown = self.better[:MAX_BARS]
        step = self.run.iteration_time
        changes = [one.step_difference / step for one in shown]
        return draw_bars(
            [one.words for one in shown], changes, [one.removes or "" for one in shown], "change of the step"
        )

    def _repr_html_(self) -> str:
        peak = "activations" if self.run.peak_memory is None else "bytes"
        rows = [{name: value for name, value in row.items() if name != "changes"} for row in self.rows()]
        return page_table(rows, {**UNITS, "peak": peak, "peak_difference": peak})


@checked_call()
def advise(
    config: AnyConfig, headroom: float = HEADROOM, *, framework: str | None = None, executor: Executor | None = None
) -> AdviceList:
    """Return single changes of a config, each simulated with everything else unchanged.

    Parameters
    ----------
    config : path, dict or Config
        The config to change.
    headroom : float
        Fraction of each device's memory that must stay free for a change to fit, from 0 to below 1.
    framework : {"Megatron-LM", "Primus", "PyTorch"}, optional
        Try only schedules that it runs; default: all synchronous ones.
    executor : concurrent.futures.Executor, optional
        Simulates the changes; default: this process.

    Returns
    -------
    AdviceList
        The changes with step times and peaks before and after, best first, and the refused ones with their rules.

    Raises
    ------
    ConfigError
        The config, the headroom or the framework is wrong.
    PpsimError
        The config itself cannot be simulated.
    """
    check_headroom(headroom)
    names = [*families()] if framework is None else schedules_run_by(framework)
    config = as_config(config)
    config = replace(config, engine="compiled") if can_compile() and config.engine == "auto" else config
    run = config.simulate()
    now = _candidate(run, headroom, {})
    tried: dict[str, Changes] = {}
    for what, changes in _single_changes(config, run, names):
        if changes not in tried.values():
            tried[what] = changes
    work = functools.partial(
        _simulated, config=config, headroom=headroom, before=now, causes_before=seconds_by_cause(run)
    )
    found, refused = [], {}
    for one in (executor or InProcess()).map(work, tried.items()):
        if one.refused is None:
            found.append(one)
        else:
            refused[one.what] = one.refused
    found.sort(key=lambda one: (one.fits is False, one.step, one.peak, one.what))
    return AdviceList(config, run, now.fits, found, refused, headroom)


def _simulated(
    item: tuple[str, Changes], config: Config, headroom: float, before: Candidate, causes_before: Mapping[str, float]
) -> Candidate:
    """Simulate one change, given in words and as keys; return a candidate, refused or with its measures."""
    what, changes = item
    try:
        run = replace(config.changed(changes), engine=config.engine).simulate()
        found = replace(_candidate(run, headroom, changes), what=what, before=before.measures)
        removes = removed_cause(causes_before, seconds_by_cause(run)) if found.step_difference < 0 else None
        return replace(found, removes=removes)
    except PpsimError as error:
        return Candidate(changes, None, str(error).removeprefix(f"{config.path}: "), what=what)


def _candidate(run: Timeline, headroom: float, changes: Changes) -> Candidate:
    numbers = {name: POINT_MEASURES[name].number(run) for name in ADVISED}
    return Candidate(changes, numbers, layout_string=run.layout_string, fits=fits_within(run, headroom))


def _single_changes(config: Config, run: Timeline, names: Iterable[str]) -> Iterator[tuple[str, Changes]]:
    """Yield every single change, in words and as keys."""
    if "csv" not in config.schedule:
        yield from _schedule_changes(config, names)
    if isinstance(config.costs, DerivedCosts):
        yield from _microbatch_changes(config, config.costs)
        yield from _partition_changes(config.costs, run)
        yield from _recompute_changes(config.costs, run)
        yield from _parallelism_changes(config.costs)
        yield from _link_changes(config.costs)
    elif "latency" in config.data.get("costs", {}):
        yield "links with half the latency", {"costs.latency": 0.5 * config.costs.latency}  # type: ignore[attr-defined]


def _schedule_changes(config: Config, names: Iterable[str]) -> Iterator[tuple[str, Changes]]:
    section = config.schedule
    own = find_family(section["name"])
    if not own.fixed_stages:
        now = section.get("stages_per_device") or own.stages_per_device
        for count in (now - 1, now + 1):
            if count > 1:
                yield f"{count} stages a device instead of {now}", {"schedule.stages_per_device": count}
    for name in names:
        family = find_family(name)
        if name == own.name or family.asynchronous or "costs" in family.options:
            continue
        for count in [None] if family.fixed_stages else STAGES_TRIED:
            words = f"schedule {name}" + (f" with {count} stages a device" if count else "")
            changes = {"schedule.name": name, "schedule.stages_per_device": count, "schedule.options": None}
            yield words, {**changes, **_without_stage_list(config)}


def _without_stage_list(config: Config) -> Changes:
    """Return the change to an even partition if the config lists stages, because a list fits one number of stages."""
    costs = config.costs
    listed = isinstance(costs, DerivedCosts) and not isinstance(costs.layout.partition, str)
    return {"layout.partition": None} if listed else {}


def _microbatch_changes(config: Config, costs: DerivedCosts) -> Iterator[tuple[str, Changes]]:
    count, size = config.schedule.get("microbatches"), costs.layout.microbatch_size
    if count and size % 2 == 0:
        yield (
            "twice the microbatches of half the size",
            {"schedule.microbatches": 2 * count, "layout.microbatch_size": size // 2},
        )
    if count and count % 2 == 0:
        yield (
            "half the microbatches of twice the size",
            {"schedule.microbatches": count // 2, "layout.microbatch_size": 2 * size},
        )


def _partition_changes(costs: DerivedCosts, run: Timeline) -> Iterator[tuple[str, Changes]]:
    ends = {"layout.first_stage_layers": None, "layout.last_stage_layers": None}
    text = str(balanced_partition(costs, run.schedule))
    if text != costs.megatron_layout(run.schedule.num_stages):
        yield f"layers balanced over the devices: {text}", {"layout.partition": text, **ends}
    if costs.layout.partition != "optimal":
        yield "partition by_cost(optimal)", {"layout.partition": "by_cost(optimal)", **ends}


def _recompute_changes(costs: DerivedCosts, run: Timeline) -> Iterator[tuple[str, Changes]]:
    now = costs.layout.recompute_of_stages(run.schedule.num_stages)
    selective = ["selective"] if costs.model.attention == "full" else []
    for level in ["none", *selective, "full"]:
        if set(now) != {level}:
            yield f"recompute {level}", {"layout.recompute": level, "layout.recompute_stages": None}
    if run.peak_memory is not None:
        fullest = int(run.peak_memory.argmax())
        held = set(run.schedule.holdings[run.schedule.holdings[:, 0] == fullest, 1].tolist())
        levels = ["full" if stage in held else level for stage, level in enumerate(now)]
        if levels != now:
            yield (
                f"recompute full on device {fullest} only, the fullest",
                {"layout.recompute": levels, "layout.recompute_stages": None},
            )


def _parallelism_changes(costs: DerivedCosts) -> Iterator[tuple[str, Changes]]:
    layout = costs.layout
    if layout.tensor > 1 and not layout.sequence_parallel:
        yield "sequence parallelism", {"layout.sequence_parallel": True}
    if max(layout.data_groups) > 1 and not layout.sharded:
        if not layout.distributed_optimizer:
            yield "optimizer state split over the copies", {"layout.distributed_optimizer": True}
        yield "weights split over the copies", {"layout.sharded": True}
    if layout.sharded:
        yield (
            "whole weights, optimizer state split over the copies",
            {"layout.sharded": False, "layout.distributed_optimizer": True},
        )


def _link_changes(costs: DerivedCosts) -> Iterator[tuple[str, Changes]]:
    cluster = costs.cluster
    for key, sheet in (("link", cluster.link), ("network", cluster.network)):
        if key == "link" or sheet != cluster.link:
            yield f"a {key} of twice the bandwidth", {f"hardware.{key}.bandwidth": 2 * sheet.bandwidth}


@checked_call()
def what_fits(config: Config, headroom: float = HEADROOM) -> list[Candidate]:
    """Return the config itself if it fits in the memory of its devices, or else changes that make it fit.

    At most four, each with everything else unchanged: the first recompute level that fits (of none, selective, full);
    the first smaller number of microbatches (halving); the fastest other schedule; and the fastest other layout of the
    config's schedule, GPUs and batch.

    Parameters
    ----------
    config : Config
        Its costs must give the bytes held.
    headroom : float
        Fraction of each device's memory that must stay free, from 0 to below 1.

    Returns
    -------
    list of Candidate
        Empty if none of these fits.

    Raises
    ------
    CostError
        The costs do not give the bytes held, or name no device.
    """
    unchanged = _with_spare(config, {}, headroom)
    if unchanged.fits:
        return [unchanged]
    levels = ({"layout.recompute": level, "layout.recompute_stages": None} for level in RECOMPUTE)
    found = [
        next(_fitting(config, levels, headroom), None),
        next(_fitting(config, _fewer_microbatches(config), headroom), None),
        min(_fitting(config, _other_schedules(config), headroom), key=lambda one: one.step, default=None),
        _best_layout(config, headroom),
    ]
    return [one for one in found if one is not None]


def _with_spare(config: Config, changes: Changes, headroom: float) -> Candidate:
    """Return a simulated change with its run and the bytes that it leaves free."""
    run = (config.changed(changes) if changes else config).simulate()
    spare = float(run.memory().spare(headroom).min())
    return replace(_candidate(run, headroom, changes), run=run, spare=spare)


def _fitting(config: Config, tried: Iterator[Changes], headroom: float) -> Iterator[Candidate]:
    """Yield the changes that fit; skip those that a rule refuses."""
    for changes in tried:
        try:
            candidate = _with_spare(config, changes, headroom)
        except PpsimError:
            continue
        if candidate.fits:
            yield candidate


def _fewer_microbatches(config: Config) -> Iterator[Changes]:
    microbatches = config.schedule.get("microbatches", 0) // 2
    while microbatches:
        yield {"schedule.microbatches": microbatches}
        microbatches //= 2


def _other_schedules(config: Config) -> Iterator[Changes]:
    """Yield the change to each other family that needs no search."""
    for name, family in families().items():
        if "costs" not in family.options and name != config.schedule.get("name"):
            yield {"schedule.name": name, "schedule.options": None, "schedule.stages_per_device": None}


def _best_layout(config: Config, headroom: float) -> Candidate | None:
    """Return the fastest layout that fits, with the config's GPUs, schedule and batch."""
    stages = config.schedule.get("stages_per_device")
    free = dict.fromkeys(LAYOUT_KEYS) | {"schedule.name": [config.schedule.get("name")]}
    try:
        space = search_space(config, {key: values or () for key, values in free.items()})
    except PpsimError:
        return None
    search = BestFirstSearch(space, headroom, top=1, executor=InProcess(), with_front=False)
    search.run()
    if not search.ranked:
        return None
    keys = {**dict.fromkeys(PARTITION_KEYS), **search.ranked[0].changes, "schedule.stages_per_device": stages}
    changes = {key: value for key, value in keys.items() if value != value_at(config.data, key)}
    return _with_spare(config, changes, headroom)
