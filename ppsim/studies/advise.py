"""Advice: single changes of a config, each simulated, with its gain and the cause of idle time that it removes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from ppsim.analysis.interval import spread
from ppsim.analysis.memory import HEADROOM, fit_of, headroom_rule
from ppsim.base.errors import ConfigError, PpsimError
from ppsim.base.progress import track
from ppsim.base.rules import argument, checked_call, declared, described
from ppsim.base.tables import Tabular
from ppsim.config import AnyConfig, Config, as_config, config_source, value_at
from ppsim.costs.partition import BALANCED
from ppsim.costs.spread import Spread, order_error
from ppsim.engines.running import compiled_or
from ppsim.frameworks import SCHEDULES_OF_LAUNCH, searched_layouts
from ppsim.launch import flags_in, launch_faults, own_framework
from ppsim.run.timelines import Timeline
from ppsim.studies.alternatives import HARDWARE, LAYERS, OPTIONS, Change, single_changes
from ppsim.studies.free_keys import Key, faults_by_runner, schedules_run_by
from ppsim.studies.points import NOISE, POINT_MEASURES, Candidate, fastest_partitions, peak_of, usable_bytes
from ppsim.studies.reasons import removed_cause, seconds_by_cause
from ppsim.studies.towers import SCHEDULES_WITH_ENCODER, EncoderKey, encoder_size
from ppsim.studies.worker_pool import InProcess, open_resources

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ADVISED = ("iteration_time", "tokens_per_second", "peak_memory", "peak_activations")
ROW = (
    "what", "changes", "idea", "kind", "step", "step_difference", "tokens_per_second", "peak_difference", "fits",
    "removes", "layout_string",
)  # fmt: skip
MAX_FITTING = 4  # changes that `what_fits` returns
SLOWEST = 2.0


@described
@dataclass(frozen=True)
class AdviceList(Tabular):
    """Advice: every single change of a config, simulated; the result of `advise`."""

    config: Config = declared("the config")
    run: Timeline = declared("its simulation without changes")
    fits: bool | None = declared("True if the config itself fits; None if that is not known")
    advice: list[Candidate] = declared(
        "changes of software before those of hardware, those that fit first, then the shortest step first"
    )
    refused: Mapping[str, str] = declared("by change in words: the rule that refuses it")
    headroom: float = declared("fraction of each device's memory that must stay free", default=HEADROOM)

    @cached_property
    def better(self) -> list[Candidate]:
        """The best change of each idea that is certain to gain, or makes the config fit; without faster hardware.

        Changes that the config's framework runs come first. To fit, none takes over `SLOWEST` times the fastest one.
        """
        fitting = [one for one in self.advice if one.fits is not False and one.kind != HARDWARE]
        longest = SLOWEST * min((one.step for one in fitting), default=0.0)
        helping = [one for one in fitting if (one.step <= longest if self.fits is False else self.is_certain(one))]
        first: dict[str, Candidate] = {}
        for one in sorted(helping, key=self.needs_other):
            first.setdefault(one.idea, one)
        return [*first.values()]

    @property
    def better_hardware(self) -> list[Candidate]:
        """The faster hardware that is certain to gain."""
        return [one for one in self.advice if one.kind == HARDWARE and one.fits is not False and self.is_certain(one)]

    def is_certain(self, one: Candidate) -> bool:
        """Return whether the gain of a change exceeds the median error of published pairs of its kind."""
        return one.step * self.error_of(one.kind) < self.run.iteration_time

    def needs_other(self, one: Candidate) -> bool:
        """Return True if the framework that the config names does not run the changed config."""
        name, own = one.changes.get("schedule.name"), own_framework(self.config)
        if own is None:
            return False
        if name and name not in schedules_run_by(SCHEDULES_OF_LAUNCH[own], self.config.model):
            return True
        return self._is_launched and isinstance(flags_in(own, self.config.changed(one.changes)), PpsimError)

    @cached_property
    def _is_launched(self) -> bool:
        own = own_framework(self.config)
        return own is not None and isinstance(flags_in(own, self.config), list)

    def error_of(self, kind: str) -> float:
        """Return the ratio of two steps above which the model can tell which is shorter; 1 for given costs."""
        if not isinstance(spread(self.run), Spread):
            return 1 + NOISE
        return order_error(OPTIONS if kind == HARDWARE else kind).middle

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per change."""
        return [
            {name: getattr(one, name) for name in ROW} | {"changes": dict(one.changes), "peak": one.memory}
            for one in self.advice
        ]

    @checked_call(hint="plot().savefig(path) writes a file")
    def plot(self, *, width: float | None = None, title: str | None = None, theme: str | None = None) -> Figure:
        """Draw the change of the step time for each change that helps, best first, as a matplotlib figure.

        If the config does not fit, these are the changes that make it fit. The options are those of `Timeline.plot`.
        Raises ConfigError if no change helps.
        """
        from ppsim.plots.many_runs import MAX_BARS, draw_bars

        if not self.better:
            raise ConfigError("no single change that fits is certain to help; there is nothing to draw")
        shown, step = sorted(self.better, key=lambda one: one.step)[:MAX_BARS], self.run.iteration_time
        changes = [one.step_difference / step for one in shown]
        names, removed = [one.words for one in shown], [one.removes or "" for one in shown]
        what = f"{self.config.name}: single changes that {'make it fit' if self.fits is False else 'gain most'}"
        words: Any = title or what, "change of step time", "device mean"
        return draw_bars(names, changes, removed, *words, width=width, theme=theme)

    def _table(self) -> tuple[list[dict[str, Any]], dict[str, str]]:
        now, heads = self.run.iteration_time, ("change", "step", "vs now", "peak", "removes")
        rows = [("none", now, "base", peak_of(self.run), None)]
        rows += [(it.words.replace("->", "→"), it.step, it.step / now - 1, it.memory, it.removes) for it in self.better]
        peak = "activations" if self.run.peak_memory is None else "bytes"
        named = [dict(zip(heads, row, strict=True)) for row in rows]
        return named, {"step": "seconds", "vs now": "change", "peak": peak}


@checked_call()
def advise(
    config: AnyConfig,
    headroom: float = HEADROOM,
    *,
    framework: str | None = None,
    research: bool = False,
    executor: Executor | None = None,
    workers: int | None = None,
) -> AdviceList:
    """Return single changes of a config, each simulated with everything else unchanged.

    A change keeps the GPUs and the batch: another size of two parallel groups, of the experts' group or of the
    microbatches, another schedule, other stages or layers of them, another recompute level, sharding or overlap. Keys
    that must follow, such as the microbatches of a larger data-parallel group, change with it.

    Parameters
    ----------
    config : path, dict or Config
        The config to change.
    headroom : float
        Fraction of each device's memory that must stay free for a change to fit, from 0 to below 1.
    framework : {"Megatron-LM", "Primus", "PyTorch"}, optional
        Try only schedules that it runs; default: those that a framework launches in the config's layout.
    research : bool
        Also try schedules that no framework runs with the model unchanged.
    executor, workers : optional
        As in `sweep`.

    Raises
    ------
    ConfigError
        The config, the headroom or the framework is wrong.
    PpsimError
        The config itself cannot be simulated.
    """
    argument("headroom", headroom, headroom_rule)
    config = as_config(config)
    searched = searched_layouts(framework, value_at(config.data, "layout.framework"))
    launched = searched.runners if config.model and not research else ()
    names = schedules_run_by(framework, config.model, research, launched)
    if config.has_encoder and encoder_size(config.data, {}, EncoderKey.PLACEMENT) != "first" and not research:
        names = [name for name in names if name in SCHEDULES_WITH_ENCODER]
    config = replace(config, engine=compiled_or(config.engine))
    run = config.simulate()
    now = _candidate(run, headroom, {})
    needs = {} if research else searched.needs
    faults = faults_by_runner([config.costs], (framework,) if framework else launched, needs)
    launched = tuple(name for name, reasons in faults.items() if not reasons)
    checks_all = not launch_faults(config.costs, run.schedule, run.schedule.microbatches, launched)
    changes = single_changes(config, run, {name: needs.get(name, {}) for name in names}, headroom)
    work = functools.partial(
        _simulated, config=config, headroom=headroom, before=now, causes_before=seconds_by_cause(run),
        launched=launched, checks_all=checks_all,
    )  # fmt: skip
    with open_resources(1, executor, workers, None) as (runner, _):
        results = map(work, changes) if isinstance(runner, InProcess) else runner.map(work, changes)
        tried = [*track(results, len(changes), "advising")]
        found = sorted((one for one in tried if one.refused is None), key=_order)
        found = sorted(_with_fastest_stages(config, found, work, headroom, runner), key=_order)
    refused = {one.what: one.refused for one in tried if one.refused is not None}
    return AdviceList(config, run, now.fits, found, refused, headroom)


def _order(one: Candidate) -> tuple[Any, ...]:
    """Return the sort key of a candidate; refused ones come last."""
    numbers = () if one.refused is not None else (one.kind == HARDWARE, one.fits is False, one.step, one.memory)
    return one.refused is not None, *numbers, one.what


def _with_fastest_stages(
    config: Config, found: list[Candidate], work: Callable[[Change], Candidate], headroom: float, runner: Executor
) -> list[Candidate]:
    """Return candidates, of which the best of each idea with another partition has the fastest stages, if these fit."""
    best: dict[str, Candidate] = {}
    for one in found:
        if one.fits is not False:
            best.setdefault(one.idea, one)
    cut = [one for one in best.values() if Key.PARTITION in one.changes and one.idea != LAYERS]
    points, limit = [one.changes for one in cut], usable_bytes(config, headroom)
    stages = fastest_partitions(config_source(config), points, limit, runner, None)
    for old, new in zip(cut, stages, strict=True):
        if new.get("stages"):
            one = work(Change(old.what, {**old.changes, Key.PARTITION: new["stages"]}, old.idea, old.kind))
            if one.refused is None and one.fits is not False and one.step < old.step:
                found = [one if other is old else other for other in found]
    return found


def _simulated(change: Change, **options: Any) -> Candidate:
    """Simulate one change, with balanced and with even layers if it changes stages whose layers must be balanced."""
    tried = [change]
    if change.keys.get(Key.PARTITION) == BALANCED and change.idea != LAYERS:
        tried.append(change._replace(keys={**change.keys, Key.PARTITION: "even"}))
    return min((_simulated_once(one, **options) for one in tried), key=_order)


def _simulated_once(
    change: Change, config: Config, headroom: float, before: Candidate, causes_before: Mapping[str, float],
    launched: tuple[str, ...], checks_all: bool,
) -> Candidate:  # fmt: skip
    """Simulate one change; return a candidate, refused or with its measures.

    `checks_all` also refuses changes of the layout that none of `launched` launches, not only those of the schedule.
    """
    empty = Candidate(change.keys, None, what=change.what, idea=change.idea, kind=change.kind, before=before.measures)
    try:
        changed = replace(config.changed(change.keys), engine=config.engine)
        run, runners = changed.simulate(), launched if checks_all or "schedule.name" in change.keys else ()
        if faults := launch_faults(changed.costs, run.schedule, run.schedule.microbatches, runners):
            raise ConfigError("; ".join(faults))
        now = _candidate(run, headroom, change.keys)
        found = replace(empty, measures=now.measures, layout_string=now.layout_string, fit=now.fit)
        removes = removed_cause(causes_before, seconds_by_cause(run)) if found.step_difference < 0 else None
        return replace(found, removes=removes)
    except PpsimError as error:
        return replace(empty, refused=str(error).removeprefix(f"{config.path}: "))


def _candidate(run: Timeline, headroom: float, changes: Mapping[str, Any]) -> Candidate:
    numbers = {name: POINT_MEASURES[name].number(run) for name in ADVISED}
    return Candidate(changes, numbers, layout_string=run.layout_string, fit=fit_of(run, headroom))


class Fitting(Tabular, list[Candidate]):
    """Changes that make a config fit, the fastest first, or the config itself."""

    _empty = "no single change fits"

    def _table(self) -> tuple[list[dict[str, Any]], dict[str, str]]:
        rows = [{"change": one.words or "none", "step": one.step, "free": one.spare} for one in self]
        return rows, {"step": "seconds", "free": "bytes"}


@checked_call()
def what_fits(config: AnyConfig, headroom: float = HEADROOM) -> Fitting:
    """Return the config itself if it fits in the memory of its devices, or else changes that make it fit.

    These are the fastest changes of `advise` that fit, at most four and one per idea; `headroom` is its own. Raises
    CostError if the costs do not give the bytes held, or name no device.
    """
    config = as_config(config)
    unchanged = _with_spare(config, _candidate(config.simulate(), headroom, {}), headroom)
    if unchanged.fits:
        return Fitting([unchanged])
    best = advise(config, headroom).better[:MAX_FITTING]
    return Fitting(_with_spare(config, one, headroom) for one in best)


def _with_spare(config: Config, one: Candidate, headroom: float) -> Candidate:
    """Return a candidate with its run and the bytes that it leaves free."""
    run = config.changed(one.changes).simulate()
    return replace(one, run=run, spare=float(run.memory().spare(headroom).min()))
